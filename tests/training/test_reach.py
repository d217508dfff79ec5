"""An arm's task the whole way: contract, evaluation in both engines, score of a known policy."""

from __future__ import annotations

import numpy as np
import pytest

from real.contract import PolicyContract
from training.contract import run_contract
from training.evaluator import evaluate
from training.run_config import load_run_config


class Inverse:
    """No network: goes the way that inverse kinematics says, a share of it in each step."""

    def __init__(self, contract: PolicyContract, share: float) -> None:
        self.contract = contract
        self._step = contract.observation.slices()["pose_step"]
        self._factor = share / (3.0 * 0.1)  # the term's scale, and radians per unit of action

    def infer(self, observation):
        mean = self._factor * observation[:, self._step]
        return mean.astype(np.float32), np.full_like(mean, -1.0)


@pytest.mark.parametrize("task", ["panda_reach", "iiwa_reach"])
def test_the_contract_of_an_arm_says_all_that_its_commands_need(task):
    config = load_run_config(task)
    contract = run_contract(config, {})
    assert PolicyContract.from_json(contract.to_json()) == contract
    assert contract.reach is not None
    assert [j.name for j in contract.reach.chain.joints] == [j.name for j in contract.joints]
    assert contract.safe_stop == "hold"
    assert contract.action.kind == "joint_position_delta"
    assert contract.command.dim == 7


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["nominal", "pybullet"])
@pytest.mark.parametrize("task", ["panda_reach", "iiwa_reach"])
def test_going_where_inverse_kinematics_says_reaches_most_poses_in_both_engines(task, suite):
    # Gravity bends the arm, which such a policy does not know; that is what is left to learn.
    config = load_run_config(task)
    contract = run_contract(config, {})
    found = evaluate(Inverse(contract, 1.0), config, suite=suite, episodes=3)
    assert found.measure == "reached"
    assert found.score.mean > 0.4
    assert found.falls_per_minute.mean == 0.0
    lazy = evaluate(Inverse(contract, 0.0), config, suite=suite, episodes=1)
    assert lazy.score.mean == 0.0
