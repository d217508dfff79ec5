from __future__ import annotations

import json

import numpy as np
import pytest

from real.errors import FerryError
from tests.extras import need
from training.contract import run_contract
from training.export import export_run
from training.gym_run import load_any_run_config, mean_return
from training.gym_worlds import GymWorlds
from training.run_config import RunConfig
from training.run_folder import load_policy
from training.train import train

PENDULUM = "env=gymnasium:Pendulum-v1"
SMALL = ["sim.worlds=4", "training.horizon=32", "training.ppo.minibatches=2", "scoring.episodes=2"]


def test_discrete_actions_come_as_one_hot_and_worlds_end_within_the_step() -> None:
    worlds = GymWorlds("gymnasium:CartPole-v1", 3, seed=4)
    assert (worlds.policy_dim, worlds.action_dim, worlds.discrete) == (4, 2, True)
    # Pushed to one side only, a pole falls within a dozen steps.
    right, left = [0.0, 1.0], [1.0, 0.0]
    for _ in range(15):
        before = worlds.observation["policy"]
        result = worlds.step(np.array([right, left, right]))
        # Cart velocity: what is pushed right gets faster to the right.
        for world, sign in enumerate((1, -1, 1)):
            if world not in result.final_ids:
                assert sign * (result.obs["policy"][world, 1] - before[world, 1]) > 0.0
        if result.final_ids.size:
            break
    assert result.terminated[result.final_ids].all()
    assert not result.truncated.any()
    assert (np.abs(result.final_obs["policy"][:, 2]) > 0.2).all()
    assert (np.abs(result.obs["policy"][result.final_ids, 2]) < 0.06).all()
    assert (result.episode["return"] == result.episode["length"]).all()
    worlds.close()


def test_continuous_actions_fill_the_range_of_the_env() -> None:
    worlds = GymWorlds("gymnasium:Pendulum-v1", 1)  # torque in [-2, 2]
    assert not worlds.discrete
    for given, taken in ((0.0, 0.0), (0.5, 1.0), (-1.0, -2.0), (7.0, 2.0)):
        assert worlds.decode(np.array([given])).tolist() == [taken]
    worlds.close()


def test_worlds_differ_and_the_same_seed_is_the_same_and_a_resumed_run_repeats_none() -> None:
    def start(seed: int, stream: tuple[int, int] = (0, 0)) -> GymWorlds:
        return GymWorlds("gymnasium:CartPole-v1", 3, seed=seed, stream=stream)

    one, same, other, beside = start(1), start(1), start(2), start(1, (1, 0))
    first = one.observation["policy"]
    assert len(np.unique(first[:, 0])) == 3
    np.testing.assert_array_equal(first, same.observation["policy"])
    assert (first != other.observation["policy"]).any(axis=1).all()
    assert (first != beside.observation["policy"]).any(axis=1).all()
    same.load_state_dict(one.state_dict())
    assert (first != same.observation["policy"]).any(axis=1).all()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("gymnasium:NoSuch-v3", "cannot be made: Environment `NoSuch` doesn't exist"),
        ("ant", "expected gymnasium:ID"),
    ],
)
def test_an_env_that_is_not_there_is_named(env: str, message: str) -> None:
    with pytest.raises(FerryError, match=message):
        load_any_run_config("gym", [f"env={env}"])


def test_a_robots_task_is_read_as_before_and_the_action_space_chooses_the_distribution() -> None:
    assert isinstance(load_any_run_config("cartpole_balance"), RunConfig)
    assert load_any_run_config("gym").training.network.discrete
    assert not load_any_run_config("gym", [PENDULUM]).training.network.discrete


@pytest.mark.slow
def test_pendulum_runs_resumes_and_says_that_it_has_no_robot(tmp_path) -> None:
    config = load_any_run_config("gym", [PENDULUM, *SMALL])
    train(config, tmp_path / "run", steps=256)
    result = train(config, tmp_path / "run", resume=True, steps=512)
    assert result.steps == 512
    lines = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    # Never above 0, and about -1600 at worst.
    assert all(-2000.0 < json.loads(line)["score"] < 0.0 for line in lines)
    with pytest.raises(FerryError, match="Pendulum-v1, which has no robot"):
        export_run(tmp_path / "run", tmp_path / "policy.onnx")
    with pytest.raises(FerryError, match="has no robot"):
        run_contract(config, {})


@pytest.mark.slow
def test_cartpole_is_learned(tmp_path) -> None:
    config = load_any_run_config("gym", ["training.run.stop_score=300"])
    train(config, tmp_path / "run", steps=80_000)
    policy = load_policy(tmp_path / "run").module
    assert mean_return(policy, env="gymnasium:CartPole-v1", episodes=10)["score"] > 150.0


@pytest.mark.slow
@pytest.mark.ray
def test_actors_of_the_ray_runtime_have_gymnasium_worlds_too(tmp_path, address) -> None:
    need("ray")
    config = load_any_run_config("gym", [*SMALL, "training.runtime.actors=1"])
    result = train(config, tmp_path / "run", steps=1024, runtime="ray", address=address)
    assert result.steps >= 1024
