"""How a run ends when something breaks: what was learned is kept, and the error says why."""

from __future__ import annotations

import json
import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from real.errors import FerryError
from tests.training.test_async_loop import NearbyEngine
from tests.training.test_checkpoint import checkpoint, file_size_limit
from tests.training.toy_run import FRAGMENT, HORIZON, toy_config, toy_env
from training.async_loop import AsyncRuntime
from training.checkpoint import CheckpointError, newest_checkpoint, pointed, save_checkpoint
from training.learner import MAX_REFUSED, Learner, TrainingDiverged
from training.metrics import MetricsWriter
from training.roles import RestartBudgetExceeded, RoleFailed
from training.session import Session
from training.toy_env import PointEnv
from training.train import train

#: On a full disk TensorBoard's own thread ends, too, whenever it gets to it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

#: Nothing is written but at the end.
RARELY = "training.run.checkpoint_every=1000"


class PoisonedEnv(PointEnv):
    """Its rewards are no numbers any more after so many steps."""

    good_steps = 3 * HORIZON

    def step(self, actions):
        self.good_steps -= 1
        result = super().step(actions)
        if self.good_steps < 0:
            result.reward[:] = np.nan
        return result


def poisoned(config, stream) -> PoisonedEnv:
    return PoisonedEnv(16, seed=config.training.seed, limit=11, stream=stream)


@pytest.mark.slow
def test_a_run_whose_updates_are_all_refused_leaves_its_last_good_state(tmp_path):
    with pytest.raises(TrainingDiverged, match=f"{MAX_REFUSED} updates in a row") as error:
        train(toy_config(RARELY), tmp_path / "bad", steps=10**6, env_factory=poisoned)
    frames = [frame.name for frame in traceback.extract_tb(error.value.__traceback__)]
    assert "update" in frames  # where it came from, not where it was kept
    assert "rewards" in str(error.value)
    train(toy_config(RARELY), tmp_path / "good", steps=3 * FRAGMENT, env_factory=toy_env)
    kept, good = (newest_checkpoint(tmp_path / n / "checkpoints") for n in ("bad", "good"))
    assert kept.counters["version"] == 3
    for name, array in good.policy.items():
        np.testing.assert_array_equal(kept.policy[name], array, err_msg=name)
    assert kept.learner["refused"] == 0  # whoever resumes has all tries again

    result = train(
        toy_config(RARELY),
        tmp_path / "bad",
        steps=kept.step + 2 * FRAGMENT,
        env_factory=toy_env,
        resume=True,
    )
    assert result.steps == kept.step + 2 * FRAGMENT


def session(out: Path, runtime: AsyncRuntime, config) -> Session:
    return Session(
        out,
        config,
        runtime=runtime,
        writer=MetricsWriter(out),
        scorers=None,
        stop=threading.Event(),
    )


def failing(out: Path, *, after: int) -> tuple[Session, AsyncRuntime]:
    """A run whose actors fail for good after so many updates."""
    config = toy_config(RARELY, "training.runtime.max_restarts=2")
    engine, training = NearbyEngine(config), config.training
    learner = Learner(4, 5, action_dim=2, network=training.network, ppo=training.ppo, seed=0)
    runtime = AsyncRuntime(learner, engine, config=training.runtime, actors=1, horizon=HORIZON)
    update = learner.update

    def updated(*rollouts: Any, **more: Any):
        found = update(*rollouts, **more)
        if learner.version == after:
            engine.error = RoleFailed("Traceback: the gears are full of sand")
        return found

    learner.update = updated
    return session(out, runtime, config), runtime


def silent(done: float, total: float, note: str = "") -> None:
    pass


def test_a_spent_restart_budget_leaves_what_was_learned_and_the_actors_traceback(tmp_path):
    made, runtime = failing(tmp_path, after=3)
    with pytest.raises(
        RestartBudgetExceeded, match=r"(?s)max_restarts is 2.*full of sand"
    ) as error:
        made.run(silent, resumed=False)
    frames = [frame.name for frame in traceback.extract_tb(error.value.__traceback__)]
    assert "spend" in frames  # of the thread in which it was raised
    kept = newest_checkpoint(tmp_path / "checkpoints")
    assert kept.counters["version"] == runtime.learner.version >= 3
    assert kept.step == FRAGMENT * kept.counters["version"] == kept.policy["obs_norm.count"]


def test_a_full_disk_does_not_hide_why_a_run_ended(tmp_path, caplog):
    made, _ = failing(tmp_path, after=2)
    (tmp_path / "checkpoints").write_text("")  # no folder can be made there
    with pytest.raises(RestartBudgetExceeded, match="full of sand"):
        made.run(silent, resumed=False)
    assert "what was learned since the last checkpoint is lost" in caplog.text
    assert f"Make room in {tmp_path}, or choose another --out" in caplog.text


def test_a_disk_that_is_full_before_the_first_checkpoint_is_one_error_that_names_the_folder(
    tmp_path,
):
    with (
        file_size_limit(100),
        pytest.raises(FerryError, match=f"cannot write run folder {tmp_path}/run: .*too large"),
    ):
        train(toy_config(), tmp_path / "run", steps=FRAGMENT, env_factory=toy_env)
    with (
        file_size_limit(100),
        pytest.raises(CheckpointError, match=f"Make room in {tmp_path}, .*and start again"),
    ):
        save_checkpoint(tmp_path / "checkpoints", checkpoint(1))


@pytest.mark.parametrize("first", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_no_number_is_never_the_best_and_stops_nothing(tmp_path, caplog, first):
    scores = iter([first, 0.2, float("nan"), 0.1])
    result = train(
        toy_config("training.run.evaluate_every=1", "training.run.stop_score=0.9"),
        tmp_path,
        steps=4 * FRAGMENT,
        env_factory=toy_env,
        evaluate=lambda policy: {"score": next(scores)},
    )
    assert (result.steps, result.best_score) == (4 * FRAGMENT, 0.2)
    best = pointed(tmp_path / "checkpoints", "best")
    assert best is not None
    assert best.name == f"step_{2 * FRAGMENT:08d}"
    assert f"the score is {first:g}" in caplog.text
    lines = (tmp_path / "evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [FRAGMENT * i for i in range(1, 5)]


def test_without_any_score_that_is_a_number_there_is_no_best(tmp_path):
    result = train(
        toy_config("training.run.evaluate_every=1"),
        tmp_path,
        steps=2 * FRAGMENT,
        env_factory=toy_env,
        evaluate=lambda policy: {"score": float("nan")},
    )
    assert result.best_score is None
    assert pointed(tmp_path / "checkpoints", "best") is None
