"""A task without a command from its file to its score and its bundle."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.linalg import solve_continuous_are

from deploy.bundle import read_bundle
from deploy.policy import OnnxPolicy
from real.errors import FerryError
from real.spec import load_robot
from training.contract import run_contract
from training.evaluator import evaluate, evaluate_path, selection_scorer
from training.export import export_run
from training.run_config import load_run_config
from training.train import train

OVERRIDES = ["sim.worlds=32", "training.network.hidden=[16]", "training.network.critic_hidden=[16]"]
CONFIG = load_run_config("cartpole_balance", OVERRIDES)
ROBOT = load_robot("cartpole")
STEPS = 3 * 32 * CONFIG.training.horizon


class Still:
    """Asks for the middle of the rail whatever it sees."""

    contract = run_contract(CONFIG, {})

    def infer(self, observation):
        mean = np.zeros((observation.shape[0], 1), dtype=np.float32)
        return mean, mean - 1.0


class Catching(Still):
    """The linear-quadratic regulator of the file's masses and the robot's servo.

    x'' = (kp (u - x) - kd x') / M, theta'' = (m g l theta - m l x'') / (I + m l^2), with the pole's
    reaction on the cart left out.
    """

    def __init__(self):
        cart = ROBOT.joints[0]
        total, m, length = 1.1, 0.1, 0.5
        inertia = 1.0 + m * length**2
        servo = np.array([-cart.kp, 0.0, -cart.kd, 0.0]) / total  # cart's acceleration of a state
        push = cart.kp / total
        a = np.zeros((4, 4))
        a[0, 2] = a[1, 3] = 1.0
        a[2] = servo
        a[3] = -m * length / inertia * servo
        a[3, 1] += m * 9.81 * length / inertia
        b = np.array([[0.0], [0.0], [push], [-m * length / inertia * push]])
        solution = solve_continuous_are(a, b, np.diag([0.1, 10.0, 0.1, 1.0]), np.eye(1) * 0.1)
        self._gain = -(b.T @ solution)[0] / 0.1 / cart.action_scale

    def infer(self, observation):
        mean = (observation[:, :4] @ self._gain)[:, None].astype(np.float32)
        return mean, np.full_like(mean, -1.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("balanced") / "run"
    train(CONFIG, folder, steps=STEPS, evaluate=lambda module: {"score": 0.5})
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["nominal", "pybullet"])
def test_a_pole_that_is_caught_scores_one_in_both_engines(suite):
    found = evaluate(Catching(), CONFIG, suite=suite, episodes=3, seed=2)
    assert found.measure == "upright"
    assert found.score.mean == 1.0
    assert found.falls_per_minute.mean == 0.0
    assert found.clamped_share < 0.1


@pytest.mark.slow
def test_a_pole_that_is_let_fall_scores_the_time_until_it_leans():
    found = evaluate(Still(), CONFIG, episodes=6, seed=2)
    # From 0.05 rad and 0.05 rad/s at most: theta = xi / 2 e^(0.69 t) with xi <= 0.123 reaches 0.2
    # rad after ln(0.4 / 0.123) / 0.69 = 1.7 s at the earliest; the episode lasts 20 s.
    assert all(1.6 / 20.0 < e.score < 0.6 for e in found.each)
    assert all(e.fallen_s is not None and e.fallen_s > 20.0 * e.score for e in found.each)
    assert len({e.score for e in found.each}) > 3  # every episode starts elsewhere
    again = evaluate(Still(), CONFIG, episodes=2, seed=2)
    assert again.each == found.each[:2]


def test_a_score_stands_under_its_own_name_and_nobody_takes_it_for_tracking():
    found = evaluate(Still(), CONFIG, episodes=2, seed=1)
    record = json.loads(json.dumps(found.as_json()))
    assert record["measure"] == "upright"
    assert record["upright"]["mean"] == found.score.mean
    assert record["each"][1]["upright"] == found.each[1].score
    assert "tracking" not in record and "score" not in record
    with pytest.raises(FerryError, match="'upright' and no tracking"):
        _ = found.tracking


def test_the_scorer_of_a_training_run_reports_the_share_of_time_upright(monkeypatch):
    monkeypatch.setattr("training.evaluator.TorchPolicy", lambda module, contract: module)
    record = selection_scorer(CONFIG, episodes=2)(Catching())  # type: ignore[arg-type]
    assert record["score"] == record["upright"]["mean"] == 1.0
    assert record["purpose"] == "selection"


@pytest.mark.slow
def test_a_robot_with_nothing_to_balance_and_nothing_to_follow_cannot_be_scored():
    walk = load_run_config("a1_walk")
    lost = ("track_lin_vel", "track_ang_vel", "feet_air_time", "foot_clearance", "trot")
    rewards = {k: v for k, v in walk.rewards.items() if k not in lost}
    observation = {k: v for k, v in walk.observation.items() if k != "command"}
    update = {"command": None, "rewards": rewards, "observation": observation}
    config = walk.model_copy(update=update)

    class Standing(Still):
        contract = run_contract(config, {})

        def infer(self, observation):
            mean = np.zeros((observation.shape[0], 12), dtype=np.float32)
            return mean, mean

    with pytest.raises(FerryError, match="there is nothing to score"):
        evaluate(Standing(), config, episodes=1)


@pytest.mark.slow
def test_a_bundle_of_it_carries_a_command_of_length_zero_and_scores_as_its_run(run, tmp_path):
    path = tmp_path / "balance.onnx"
    report = export_run(run, path)
    assert report.max_error < 1e-5
    contract = read_bundle(path).contract
    assert (contract.command.dim, contract.command.names) == (0, ())
    assert [(j.name, j.kind, j.actuated) for j in contract.joints] == [
        ("slider_to_cart", "slide", True),
        ("cart_to_pole", "hinge", False),
    ]
    assert [t.name for t in contract.observation.terms] == ["joint_pos", "joint_vel", "prev_action"]
    bundled = evaluate(OnnxPolicy(read_bundle(path)), None, episodes=3)
    direct = evaluate_path(run, episodes=3)
    expected = [e.score for e in direct.each]
    assert [e.score for e in bundled.each] == pytest.approx(expected, abs=5e-3)


@pytest.mark.slow
def test_the_shipped_task_learns_to_balance(tmp_path):
    # Of its 1.2 million steps 0.9 are enough to tell; doing nothing scores about 0.25.
    result = train(load_run_config("cartpole_balance"), tmp_path / "run", steps=900_000)
    assert result.best_score is not None and result.best_score > 0.7
