"""Real processes are killed, stopped and broken while a run goes on; the run goes on too."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.training.toy_run import (
    broken_env,
    descendants,
    faulty_env,
    score,
    slow_env,
    toy_config,
    workers,
)
from training.checkpoint import newest_checkpoint
from training.roles import RestartBudgetExceeded
from training.train import train

pytestmark = pytest.mark.ray
pytest.importorskip("ray", reason="the `cluster` extra is not installed")

ROOT = Path(__file__).resolve().parents[2]
#: How long a fault may take to be noticed and mended on a busy machine [s].
PATIENCE_S = 200.0


class Story:
    """Is told of each update and goes on with a story; its end ends the run, as Ctrl-C does."""

    def __init__(self, run: Path, tell: Callable[[Story], Iterator[Callable[[], bool]]]) -> None:
        self.run = run
        self.updates = 0
        self._steps = tell(self)
        self._wait: Callable[[], bool] = lambda: True
        self._since = time.monotonic()

    def __call__(self, done: float, total: float, note: str = "") -> None:
        self.updates += 1
        assert time.monotonic() - self._since < PATIENCE_S, "the story does not go on"
        while self._wait():
            self._since = time.monotonic()
            try:
                self._wait = next(self._steps)
            except StopIteration:
                os.kill(os.getpid(), signal.SIGINT)
                self._wait = lambda: False

    def more_updates(self, number: int) -> Callable[[], bool]:
        goal = self.updates + number
        return lambda: self.updates >= goal

    def metric(self, name: str) -> float:
        lines = (self.run / "metrics.jsonl").read_text().splitlines()
        return next(r[name] for r in map(json.loads, reversed(lines)) if name in r)

    def scores(self) -> int:
        path = self.run / "evaluations.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0


def test_actor_store_and_evaluator_are_killed_one_after_the_other_and_training_goes_on(tmp_path):
    def tell(story: Story) -> Iterator[Callable[[], bool]]:
        yield story.more_updates(3)
        (actor,) = workers("_Actor")
        os.kill(actor, signal.SIGKILL)
        yield lambda: story.metric("actors/restarts") == 1
        yield story.more_updates(3)
        assert actor not in workers("_Actor")

        (store,) = workers("_Store")
        os.kill(store, signal.SIGKILL)
        yield lambda: bool(workers("_Store")) and store not in workers("_Store")
        # Were it empty, actors would stay with old weights and the bound would end all updates.
        yield story.more_updates(3 * 4)
        assert story.metric("lag/max") <= 4

        (evaluator,) = workers("_Evaluator")
        os.kill(evaluator, signal.SIGKILL)
        yield lambda: bool(workers("_Evaluator")) and evaluator not in workers("_Evaluator")
        scores = story.scores()
        yield lambda: story.scores() > scores

    story = Story(tmp_path, tell)
    result = train(
        toy_config("training.run.evaluate_every=2", "training.runtime.max_staleness=4"),
        tmp_path,
        evaluate=score,
        env_factory=slow_env,
        runtime="ray",
        progress=story,
    )
    assert result.interrupted
    assert descendants() == []
    assert story.metric("queue/used_over_bound") == 0
    checkpoint = newest_checkpoint(tmp_path / "checkpoints")
    actors = {key.partition(".")[0] for key in checkpoint.episodes} - {"total"}
    assert actors == {"actor-0-restart-1"}  # a new name, and the old one is forgotten
    assert checkpoint.actor["starts"].tolist() == [2]


def test_an_env_that_raises_hangs_stops_or_crashes_costs_its_actor_only(
    tmp_path, monkeypatch, caplog
):
    faults = tmp_path / "faults"
    faults.mkdir()
    monkeypatch.setenv("TOY_FAULTS", str(faults))

    def tell(story: Story) -> Iterator[Callable[[], bool]]:
        yield story.more_updates(3)
        for what in ("raise", "hang", "kill", "stop"):
            restarts = story.metric("actors/restarts")
            (faults / what).touch()
            yield lambda: not (faults / what).exists()  # noqa: B023 - asked before the next one
            yield lambda: story.metric("actors/restarts") > restarts  # noqa: B023
            yield story.more_updates(3)
            assert len(workers("_Actor")) <= 2  # who hung or was stopped is gone, not left behind

    story = Story(tmp_path / "run", tell)
    result = train(
        toy_config(
            "training.runtime.actors=2",
            "training.runtime.fragments_per_update=1",
            "training.runtime.fragment_timeout_s=8.0",
            "training.runtime.max_restarts=50",
        ),
        tmp_path / "run",
        env_factory=faulty_env,
        runtime="ray",
        progress=story,
    )
    assert result.interrupted
    assert descendants() == []
    assert "the gears are full of sand" in caplog.text
    assert "it hangs" in caplog.text


def test_actors_that_always_fail_end_the_run_with_the_original_traceback(tmp_path):
    with pytest.raises(RestartBudgetExceeded) as error:
        train(
            toy_config("training.runtime.max_restarts=1"),
            tmp_path,
            env_factory=broken_env,
            runtime="ray",
        )
    text = str(error.value)
    assert "max_restarts is 1" in text
    assert 'raise RuntimeError("the gears are full of sand")' in text
    assert "toy_run.py" in text
    assert descendants() == []


def test_a_learner_much_slower_than_its_actors_gets_fresh_rollouts_and_memory_stays_flat(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TOY_STEP_S", "0.0005")
    memory: list[float] = []
    story: Story

    def tell(story: Story) -> Iterator[Callable[[], bool]]:
        for _ in range(20):
            yield story.more_updates(1)
            time.sleep(0.4)
            memory.append(resident_mb())

    story = Story(tmp_path, tell)
    train(
        toy_config("training.runtime.throttle.enabled=false", "training.runtime.queue_capacity=3"),
        tmp_path,
        env_factory=slow_env,
        runtime="ray",
        progress=story,
    )
    assert story.metric("queue/overflowed") > 40  # several times what was learned from
    assert story.metric("queue/depth") <= 3
    assert story.metric("queue/used_over_bound") == 0
    assert story.metric("lag/max") <= 4
    assert story.metric("lag/mean") <= 2.0  # near what is newest, not near the bound
    assert max(memory[10:]) - memory[5] < 30.0


def test_actors_on_two_machines_and_one_of_the_machines_is_lost(tmp_path, monkeypatch):
    """Two nodes of a cluster on the loopback, as the README starts them on two machines."""
    port = free_port()
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 32)
    head = node("--head", f"--port={port}", "--include-dashboard=false", "--num-cpus=3")
    other = node(f"--address=127.0.0.1:{port}", "--num-cpus=1")
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", TWO_MACHINES, str(tmp_path), f"127.0.0.1:{port}"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: versions(tmp_path) >= 3, child)
        wait_until(lambda: len(workers("_Actor", head.pid)) == 1, child)
        wait_until(lambda: len(workers("_Actor", other.pid)) == 1, child)
        for pid in descendants(other.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        before = versions(tmp_path)
        wait_until(lambda: len(workers("_Actor", head.pid)) == 2, child)
        wait_until(lambda: versions(tmp_path) >= before + 10, child)
        child.send_signal(signal.SIGINT)
        assert child.wait(20.0) == 130
        wait_until(lambda: not workers("_Actor", head.pid))
    finally:
        for process in (child, other, head):
            family = descendants(process.pid)
            process.kill()
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait(20.0)
        child.stderr.close()


TWO_MACHINES = """
import sys
from pathlib import Path
from tests.training.toy_run import slow_env, toy_config
from training.train import train

config = toy_config("training.runtime.actors=2", "training.runtime.fragments_per_update=1")
result = train(config, Path(sys.argv[1]), env_factory=slow_env, runtime="ray", address=sys.argv[2])
sys.exit(130 if result.interrupted else 0)
"""


def node(*options: str) -> subprocess.Popen:
    """What ``ray start`` does on one machine of a cluster."""
    start = "from ray.scripts.scripts import main; main()"
    fixed = ["start", "--block", "--disable-usage-stats", "--object-store-memory=100000000"]
    return subprocess.Popen(
        [sys.executable, "-c", start, *fixed, *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def versions(run: Path) -> int:
    path = run / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def wait_until(condition: Callable[[], bool], child: subprocess.Popen | None = None) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        assert child is None or child.poll() is None, child.stderr.read()
        time.sleep(0.1)


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
