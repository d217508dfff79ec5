"""The asynchronous runtime on Ray: it learns, scores beside, measures, resumes, and cleans up."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from real.errors import FerryError
from tests.extras import reason
from tests.training.toy_run import (
    FRAGMENT,
    alive,
    left_behind,
    score,
    slow_env,
    toy_config,
    toy_env,
    wait_until,
    workers,
)
from training.checkpoint import Checkpoint, newest_checkpoint, pointed
from training.process_tree import descendants
from training.train import TrainResult, load_policy, train

pytestmark = pytest.mark.ray
pytest.importorskip("ray", reason=reason("ray"))

ROOT = Path(__file__).resolve().parents[2]
#: Of a rollout of each of two actors.
UPDATE = 2 * FRAGMENT


def records(path: Path) -> list[dict]:
    """The complete lines of a file that is perhaps still written to, perhaps not there yet."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]


def updates(run: Path) -> list[dict]:
    """Records of updates by actors side by side."""
    return [r for r in records(run / "metrics.jsonl") if "lag/mean" in r]


#: Policy and critic remember: fragments go on where the ones before ended.
MEMORIES = ("training.network.gru=6", "training.network.critic_gru=5")


def two_actors():
    return toy_config(
        *MEMORIES,
        "training.run.evaluate_every=10",
        "training.runtime.actors=2",
        "training.runtime.max_staleness=4",
        "training.runtime.throttle.period_s=0.5",
    )


def two_learners():
    return toy_config("training.runtime.learners=2")


SCRIPT = """
import sys
from pathlib import Path
from tests.training.test_cluster import two_actors, two_learners
from tests.training.toy_run import score, slow_env
from training.train import train

learners = "--learners" in sys.argv
result = train(
    two_learners() if learners else two_actors(),
    Path(sys.argv[1]),
    evaluate=None if learners else score,
    env_factory=slow_env,
    runtime="ray",
    resume="--resume" in sys.argv,
)
sys.exit(130 if result.interrupted else 0)
"""


@contextlib.contextmanager
def running(run: Path, *options: str, until: Callable[[], bool]) -> Iterator[subprocess.Popen[str]]:
    """The run in a process group of its own, with Ray, until a condition is met."""
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(run), *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )

    def there() -> bool:
        assert child.poll() is None, child.stderr.read()
        return until()

    try:
        wait_until(there, "the run")
        yield child
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        child.stderr.close()


@dataclass
class Life:
    """A run that begins serially, goes on with Ray, is killed there, and is resumed to its end."""

    run: Path
    #: What the policy of the serial run is worth.
    serial_score: float
    #: Processes that outlived the kill.
    left: list[int]
    #: The newest checkpoint of the killed run.
    reached: Checkpoint
    #: Records of scores when it was killed.
    scored: int
    result: TrainResult


@pytest.fixture(scope="module")
def life(tmp_path_factory) -> Life:
    run = tmp_path_factory.mktemp("life") / "run"
    train(toy_config(*MEMORIES), run, steps=5 * FRAGMENT, env_factory=toy_env)
    serial_score = score(load_policy(run, "latest").module)["score"]

    scores = run / "evaluations.jsonl"
    with running(run, "--resume", until=lambda: len(records(scores)) >= 2) as child:
        # Ray's two agents find out for themselves, minutes later.
        agents = workers("DashboardAgent", child.pid) + workers("RuntimeEnvAgent", child.pid)
        family = set(descendants(child.pid)) - set(agents)
        assert len(family) >= 5  # Ray's own, two actors, the evaluator and the store
        child.kill()
        child.wait()
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not alive(family))
    left = alive(family)
    for pid in agents:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    reached, scored = newest_checkpoint(run / "checkpoints"), len(records(scores))
    result = train(
        two_actors(),
        run,
        steps=reached.step + 25 * UPDATE,
        evaluate=score,
        env_factory=slow_env,
        runtime="ray",
        resume=True,
    )
    assert left_behind() == []
    return Life(run, serial_score, left, reached, scored, result)


def test_a_run_that_is_killed_takes_its_processes_along(life):
    assert life.left == []


def test_a_serial_run_is_resumed_side_by_side_and_its_loaded_policy_scored_first(life):
    first = records(life.run / "evaluations.jsonl")[0]
    assert first["step"] == 5 * FRAGMENT
    assert first["score"] == pytest.approx(life.serial_score, rel=1e-6)
    with pytest.raises(FerryError, match="resume with --runtime ray"):
        train(two_actors(), life.run, resume=True, env_factory=toy_env, steps=10**9)


def test_a_killed_run_goes_on_where_its_last_checkpoint_was(life):
    reached, after = life.reached, newest_checkpoint(life.run / "checkpoints")
    assert life.result.steps == reached.step + 25 * UPDATE
    assert after.counters["version"] == reached.counters["version"] + 25
    # Of the serial part, the killed part and the rest, each step counts once.
    assert after.policy["obs_norm.count"] == life.result.steps
    # Nobody draws numbers of an earlier session.
    before = reached.actor["starts"].tolist()
    assert len(before) == 2
    assert after.actor["starts"].tolist() == [n + 1 for n in before]
    steps = [r["step"] for r in updates(life.run)]
    assert steps == sorted(set(steps))  # no update is in the record twice
    assert steps[-25:] == [reached.step + (k + 1) * UPDATE for k in range(25)]


def test_it_measures_what_it_does(life):
    metrics = updates(life.run)[-25:]
    assert all(r["learner/lag"] <= r["lag/max"] <= 4 for r in metrics)
    last = metrics[-1]
    assert last["queue/used_over_bound"] == 0
    assert last["train/worlds_finished"] == 1.0  # of both actors
    assert 0.0 <= last["actors/idle_share"] <= 1.0


def test_policies_with_a_memory_act_and_learn_from_what_they_remembered(life):
    assert load_policy(life.run, "latest").module.hidden_size == 6
    found = updates(life.run)
    assert all(r["learner/refused"] == 0.0 for r in found)
    error = [r["ppo/ratio_error"] for r in found]
    assert np.isfinite(error).all()
    assert min(error) < 1e-5  # fragments of the newest version: the stored state is the right one


def test_what_stands_in_its_record_is_what_its_policies_are_worth(life):
    found, checkpoints = records(life.run / "evaluations.jsonl"), life.run / "checkpoints"
    assert len(found) > life.scored
    assert found[-1]["step"] == life.result.steps  # the last policy is always scored
    assert life.result.best_score == max(r["score"] for r in found)
    assert newest_checkpoint(checkpoints).counters["best_score"] == life.result.best_score
    loaded = load_policy(life.run, "best")
    assert score(loaded.module)["score"] == pytest.approx(life.result.best_score)
    best = pointed(checkpoints, "best")
    assert best is not None
    assert best.name == f"step_{loaded.meta['step']:08d}"


def test_ctrl_c_ends_all_processes_within_ten_seconds_and_leaves_a_checkpoint(tmp_path):
    """Also one that hangs. The signal goes to the whole group, as a terminal sends it."""
    with running(tmp_path, "--learners", until=lambda: len(updates(tmp_path)) >= 3) as child:
        (learner,) = workers("_Learner", child.pid)
        os.kill(learner, signal.SIGSTOP)
        family = descendants(child.pid)
        assert len(family) >= 5  # Ray's own, the actors, the other learner and the store
        shared = shared_memory(family)
        os.killpg(child.pid, signal.SIGINT)
        assert child.wait(10.0) == 130, child.stderr.read()
    wait_until(lambda: not alive(family), "the end of all processes")
    assert not [path for path in shared if path.exists()]
    checkpoint = newest_checkpoint(tmp_path / "checkpoints")
    assert checkpoint.step == updates(tmp_path)[-1]["step"]  # nothing that was learned is lost
    assert np.isfinite(checkpoint.policy["log_std"]).all()


def shared_memory(pids: list[int]) -> set[Path]:
    """Files of shared memory that processes have open."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/maps").read_text().split()
            found |= {Path(word) for word in words if word.startswith("/dev/shm/")}
    return found


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


def test_a_machine_too_slow_for_ray_to_start_on_is_one_clear_error(tmp_path, monkeypatch):
    def init(**_):
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(FerryError, match="cannot start Ray on this machine: The current node"):
        train(toy_config(), tmp_path / "run", env_factory=toy_env, runtime="ray")
