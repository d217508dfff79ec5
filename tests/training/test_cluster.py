"""The asynchronous runtime on Ray: it learns, scores beside, measures, resumes, and cleans up."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from real.errors import FerryError
from tests.training.toy_run import (
    FRAGMENT,
    descendants,
    score,
    slow_env,
    toy_config,
    toy_env,
    workers,
)
from training.checkpoint import newest_checkpoint, pointed
from training.train import load_policy, train

pytestmark = pytest.mark.ray
pytest.importorskip("ray", reason="the `cluster` extra is not installed")

ROOT = Path(__file__).resolve().parents[2]


def records(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_learns_scores_beside_measures_resumes_and_leaves_nothing(tmp_path):
    config = toy_config(
        "training.run.evaluate_every=10",
        "training.runtime.actors=2",
        "training.runtime.max_staleness=4",
        "training.runtime.throttle.period_s=0.5",
    )
    one = train(
        config,
        tmp_path,
        steps=30 * 2 * FRAGMENT,
        evaluate=score,
        env_factory=slow_env,
        runtime="ray",
    )
    assert descendants() == []
    assert not one.interrupted
    assert one.steps == 30 * 2 * FRAGMENT

    metrics = [r for r in records(tmp_path / "metrics.jsonl") if "lag/mean" in r]
    assert [r["learner/version"] for r in metrics] == list(range(1, 31))
    assert all(r["learner/lag"] <= r["lag/max"] <= 4 for r in metrics)
    last = metrics[-1]
    assert last["queue/used_over_bound"] == 0
    assert last["lag/mean"] <= 2.0
    assert last["train/worlds_finished"] == 1.0  # of both actors
    assert 0.0 <= last["actors/idle_share"] <= 1.0

    found = records(tmp_path / "evaluations.jsonl")
    assert found[-1]["step"] == one.steps  # the last policy is always scored
    assert one.best_score == max(r["score"] for r in found)
    best = pointed(tmp_path / "checkpoints", "best")
    assert newest_checkpoint(tmp_path / "checkpoints").counters["best_score"] == one.best_score
    # What stands in the record is what the checkpoint's policy is worth.
    assert score(load_policy(tmp_path, "best").module)["score"] == pytest.approx(one.best_score)
    assert best is not None
    assert best.name == f"step_{load_policy(tmp_path, 'best').meta['step']:08d}"

    # A resumed run scores what it loaded before it goes on, and that is what it was worth.
    before = newest_checkpoint(tmp_path / "checkpoints")
    assert before.actor["starts"].tolist() == [1, 1]
    two = train(
        config,
        tmp_path,
        steps=34 * 2 * FRAGMENT,
        evaluate=score,
        env_factory=slow_env,
        runtime="ray",
        resume=True,
    )
    assert two.steps == 34 * 2 * FRAGMENT
    after = newest_checkpoint(tmp_path / "checkpoints")
    assert after.counters["version"] == 34
    assert after.actor["starts"].tolist() == [2, 2]  # nobody draws numbers of the first session
    assert after.policy["obs_norm.count"] == two.steps
    with pytest.raises(FerryError, match="resume with --runtime ray"):
        train(config, tmp_path, resume=True, env_factory=toy_env, steps=10**9)


def test_a_serial_run_is_resumed_side_by_side_and_its_loaded_policy_scored_first(tmp_path):
    config = toy_config()
    train(config, tmp_path, steps=5 * FRAGMENT, env_factory=toy_env)
    stored = load_policy(tmp_path, "latest").module
    result = train(
        config,
        tmp_path,
        steps=8 * FRAGMENT,
        evaluate=score,
        env_factory=toy_env,
        runtime="ray",
        resume=True,
    )
    assert result.steps == 8 * FRAGMENT
    first, last = records(tmp_path / "evaluations.jsonl")
    assert (first["step"], last["step"]) == (5 * FRAGMENT, 8 * FRAGMENT)
    assert first["score"] == pytest.approx(score(stored)["score"], rel=1e-6)


SCRIPT = """
import sys
from pathlib import Path
from tests.training.toy_run import FRAGMENT, score, slow_env, toy_config
from training.train import train

config = toy_config("training.run.evaluate_every=5")
result = train(config, Path(sys.argv[1]), evaluate=score, env_factory=slow_env, runtime="ray")
sys.exit(130 if result.interrupted else 0)
"""


@contextlib.contextmanager
def running(run: Path) -> Iterator[subprocess.Popen[str]]:
    """The run in a process group of its own, as far as its first score."""
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(run)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 200.0
        while not (run / "evaluations.jsonl").exists():
            assert child.poll() is None, child.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.stderr.close()


def test_ctrl_c_ends_all_processes_within_ten_seconds_and_leaves_a_checkpoint(tmp_path):
    """The signal goes to the whole group, as a terminal sends it."""
    with running(tmp_path) as child:
        family = descendants(child.pid)
        assert len(family) >= 4  # Ray's own, the actor, the evaluator and the store
        before = shared_memory()
        os.killpg(child.pid, signal.SIGINT)
        assert child.wait(10.0) == 130, child.stderr.read()
    assert_gone(family)
    assert shared_memory() <= before
    checkpoint = newest_checkpoint(tmp_path / "checkpoints")
    done = [r for r in records(tmp_path / "metrics.jsonl") if "lag/mean" in r]
    assert checkpoint.step == done[-1]["step"]  # nothing that was learned is lost
    assert np.isfinite(checkpoint.policy["log_std"]).all()


def test_a_run_that_is_killed_takes_its_processes_along_and_is_resumed(tmp_path):
    with running(tmp_path) as child:
        # Ray's two agents find out for themselves, minutes later.
        agents = workers("DashboardAgent", child.pid) + workers("RuntimeEnvAgent", child.pid)
        family = set(descendants(child.pid)) - set(agents)
        assert len(family) >= 4
        child.kill()
        child.wait(10.0)
    assert_gone(sorted(family))
    for pid in agents:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    reached = newest_checkpoint(tmp_path / "checkpoints")
    goal = reached.step + 3 * FRAGMENT
    result = train(
        toy_config("training.run.evaluate_every=5"),
        tmp_path,
        steps=goal,
        evaluate=score,
        env_factory=slow_env,
        runtime="ray",
        resume=True,
    )
    assert result.steps == goal
    after = newest_checkpoint(tmp_path / "checkpoints")
    assert after.counters["version"] == reached.counters["version"] + 3
    assert after.policy["obs_norm.count"] == reached.policy["obs_norm.count"] + 3 * FRAGMENT
    steps = [r["step"] for r in records(tmp_path / "metrics.jsonl") if "lag/mean" in r]
    assert steps == sorted(set(steps))  # no update is in the record twice


def assert_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 20.0
    while alive(pids):
        assert time.monotonic() < deadline, alive(pids)
        time.sleep(0.1)


def alive(pids: list[int]) -> list[int]:
    def state(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return "gone"

    return [pid for pid in pids if state(pid) not in ("gone", "Z", "X")]


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("plasma*")}


def test_the_address_of_a_cluster_needs_the_runtime_that_joins_it(tmp_path):
    with pytest.raises(FerryError, match="needs the runtime ray"):
        train(toy_config(), tmp_path, env_factory=toy_env, address="10.0.0.1:6379")


@pytest.mark.parametrize(
    ("address", "words"),
    [("127.0.0.1:1", "no Ray cluster listens at 127.0.0.1:1"), ("here", "expected HOST:PORT")],
)
def test_an_address_where_no_cluster_is_is_one_clear_error_at_once(tmp_path, address, words):
    with pytest.raises(FerryError, match=words):
        train(toy_config(), tmp_path / "run", env_factory=toy_env, runtime="ray", address=address)
    assert not (tmp_path / "run").exists()
