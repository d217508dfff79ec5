"""Real processes are killed, stopped and broken while a run goes on; the run goes on too."""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.extras import reason

pytest.importorskip("ray", reason=reason("ray"))

from tests.training.climbing_run import climbing_config, levels, noted_env
from tests.training.growing_run import run_env
from tests.training.ray_nodes import await_nodes, kill_all, node
from tests.training.toy_run import (
    HORIZON,
    PATIENCE_S,
    broken_env,
    counted_env,
    faulty_env,
    score,
    slow_env,
    toy_config,
    wait_until,
    workers,
)
from training.checkpoint import newest_checkpoint
from training.roles import RestartBudgetExceeded, actor_id
from training.train import train

pytestmark = pytest.mark.ray


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


def test_whoever_is_killed_hangs_stops_or_raises_is_replaced_and_training_goes_on(
    tmp_path, address, caplog
):
    run, faults = tmp_path / "run", tmp_path / "faults"
    faults.mkdir()

    def tell(story: Story) -> Iterator[Callable[[], bool]]:
        yield story.more_updates(3)
        # One for each actor. Who hangs or is stopped costs both the same time-out.
        for pair in (("raise", "kill"), ("hang", "stop")):
            restarts = story.metric("actors/restarts")
            for what in pair:
                (faults / what).touch()
            yield lambda: not any(faults.iterdir())
            yield lambda: story.metric("actors/restarts") >= restarts + 2  # noqa: B023 - at once
            yield story.more_updates(3)
            # Who hung or was stopped is gone, not left behind.
            yield lambda: len(workers("_Actor")) <= 2

        (store,) = workers("WeightStore")
        os.kill(store, signal.SIGKILL)
        yield lambda: bool(workers("WeightStore")) and store not in workers("WeightStore")
        # Were it empty, actors would stay with old weights and the bound would end all updates.
        yield story.more_updates(3 * 4)
        assert story.metric("lag/max") <= 4

        yield lambda: bool(workers("_Evaluator"))
        (evaluator,) = workers("_Evaluator")
        os.kill(evaluator, signal.SIGKILL)
        yield lambda: bool(workers("_Evaluator")) and evaluator not in workers("_Evaluator")
        scores = story.scores()
        yield lambda: story.scores() > scores

    story = Story(run, tell)
    result = train(
        toy_config(
            "training.run.evaluate_every=2",
            "training.runtime.actors=2",
            "training.runtime.fragments_per_update=1",
            "training.runtime.max_staleness=4",
            "training.runtime.fragment_timeout_s=5.0",
            "training.runtime.max_restarts=50",
        ),
        run,
        evaluate=score,
        env_factory=functools.partial(faulty_env, faults=faults),
        runtime="ray",
        address=address,
        progress=story,
    )
    assert result.interrupted
    assert "the gears are full of sand" in caplog.text
    assert "it hangs" in caplog.text
    assert story.metric("queue/used_over_bound") == 0
    checkpoint = newest_checkpoint(run / "checkpoints")
    # Each start has a name and random numbers of its own, and old names are forgotten.
    starts = checkpoint.actor["starts"].tolist()
    assert sum(starts) >= 2 + 4
    names = {key.partition(".")[0] for key in checkpoint.episodes} - {"total"}
    assert names <= {actor_id((worker, n - 1)) for worker, n in enumerate(starts)}


def test_the_replacement_of_a_killed_actor_begins_with_ranges_and_levels_that_the_run_has_reached(
    tmp_path, address
):
    run, notes = tmp_path / "run", tmp_path / "notes"
    notes.mkdir()
    grown: list[float] = []
    config = climbing_config("training.runtime.actors=1")

    def tell(story: Story) -> Iterator[Callable[[], bool]]:
        yield story.more_updates(1)
        yield lambda: story.metric("curriculum/mean") > 0.2 and story.metric("terrain/mean") > 1.0
        yield lambda: bool(workers("_Actor"))
        grown.append(story.metric("curriculum/mean"))
        (actor,) = workers("_Actor")
        os.kill(actor, signal.SIGKILL)
        yield lambda: story.metric("actors/restarts") >= 1
        yield story.more_updates(3)

    train(
        config,
        run,
        env_factory=functools.partial(noted_env, notes=notes),
        runtime="ray",
        address=address,
        progress=Story(run, tell),
    )
    first, second = (
        dict(np.load(notes / f"{name}.npz")) for name in ("actor-0", "actor-0-restart-1")
    )
    assert (first["curriculum.shares"] == 0.0).all() and (first["levels"] == 0).all()
    assert (first["friction"] == first["friction"][0]).all()  # nominal
    # Before its first step, in all worlds: none of its samples is of ranges at the beginning.
    shares = second["curriculum.shares"]
    assert shares.mean() >= grown[0]
    assert (second["friction"] != first["friction"][0]).all()
    kept = newest_checkpoint(run / "checkpoints").actor
    assert kept["shared.curriculum.shares"].mean() >= shares.mean()
    # Nor at the beginning of the terrain: of the run's levels it has those of its own numbers.
    twin = run_env(config, (0, 1))
    twin.shared.follow()
    twin.shared.load_state_dict({k: v for k, v in second.items() if "." in k})
    np.testing.assert_array_equal(second["levels"], levels(twin))
    assert second["levels"].mean() > 0.5
    tile, level = second["began"].T
    np.testing.assert_array_equal(level, second["levels"][np.arange(len(tile)), tile])
    # The newest report in the checkpoint is of its worlds, which went on from there.
    newest = kept["shared.terrain.worlds"][-1]
    assert newest.sum(axis=1).tolist() == [len(tile)] * 2
    assert newest @ np.arange(newest.shape[1]) @ [1, 1] > second["levels"].sum()


def test_actors_that_always_fail_end_the_run_with_the_original_traceback(tmp_path, address):
    with pytest.raises(RestartBudgetExceeded) as error:
        train(
            toy_config("training.runtime.max_restarts=1"),
            tmp_path,
            env_factory=broken_env,
            runtime="ray",
            address=address,
        )
    text = str(error.value)
    assert "max_restarts is 1" in text
    assert 'raise RuntimeError("the gears are full of sand")' in text
    assert "toy_run.py" in text


def test_a_learner_much_slower_than_its_actors_gets_fresh_rollouts_and_memory_stays_flat(
    tmp_path, address
):
    memory: list[float] = []
    run, count = tmp_path / "run", tmp_path / "count"
    count.touch()

    def tell(story: Story) -> Iterator[Callable[[], bool]]:
        for _ in range(20):
            yield story.more_updates(1)
            enough = count.stat().st_size + 10 * HORIZON
            wait_until(lambda: count.stat().st_size >= enough, "ten rollouts")  # noqa: B023
            memory.append(resident_mb())

    story = Story(run, tell)
    train(
        toy_config("training.runtime.throttle.enabled=false", "training.runtime.queue_capacity=3"),
        run,
        env_factory=functools.partial(counted_env, count=count),
        runtime="ray",
        address=address,
        progress=story,
    )
    assert story.metric("queue/overflowed") > 40  # several times what was learned from
    assert story.metric("queue/depth") <= 3
    assert story.metric("queue/used_over_bound") == 0
    assert story.metric("lag/max") <= 4
    # Near what is newest, not near the bound: the queue holds three, and drops the oldest.
    assert story.metric("lag/mean") <= 2.0
    assert max(memory[10:]) - memory[5] < 30.0


def test_actors_on_two_machines_and_one_of_the_machines_is_lost(tmp_path, cluster, address):
    """Where each actor is, is chosen: see :mod:`training.placement`."""
    first, _ = cluster

    def tell(story: Story) -> Iterator[Callable[[], bool]]:
        def on(machine) -> int:
            return len(workers("_Actor", machine.pid))

        yield story.more_updates(3)
        yield lambda: (on(first), on(other)) == (1, 1)
        kill_all(other)
        yield lambda: on(first) == 2
        yield story.more_updates(10)

    with node(f"--address={address}", "--num-cpus=1") as other:
        await_nodes(address, 2)
        result = train(
            toy_config("training.runtime.actors=2", "training.runtime.fragments_per_update=1"),
            tmp_path,
            env_factory=slow_env,
            runtime="ray",
            address=address,
            progress=Story(tmp_path, tell),
        )
    assert result.interrupted


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
