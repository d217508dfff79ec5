"""The learner's side of the asynchronous runtime, with actors that run in this process."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from tests.training.toy_run import FRAGMENT, HORIZON, toy_config, toy_env
from training.actor import ActorWorker
from training.async_loop import AsyncRuntime
from training.learner import Learner
from training.parallel import LearnerLostError
from training.roles import RestartBudgetExceeded, RoleFailed, actor_id
from training.snapshot import PolicySnapshot


class NearbyEngine:
    """Actors collect when somebody waits for them; the store can be taken away."""

    def __init__(self, config) -> None:
        self.config = config
        self.stored: PolicySnapshot | None = None
        self.away = False
        self.error: Exception | None = None
        self.results: dict[Any, Any] = {}
        self._number = 0

    def start_actor(self, worker: int, restart: int, snapshot: PolicySnapshot) -> Any:
        stream, training = (worker, restart), self.config.training
        env = toy_env(self.config, stream)
        actor = ActorWorker(
            env, actor_id(stream), network=training.network, seed=training.seed, stream=stream
        )
        return {"actor": actor, "snapshot": snapshot}

    def collect(self, actor: Any) -> Any:
        self._number += 1
        self.results[self._number] = actor
        return self._number

    def wait(self, tickets, timeout_s: float) -> list[Any]:
        time.sleep(0.001)
        return list(tickets)

    def fetch(self, ticket: Any) -> Any:
        if self.error is not None:
            raise self.error
        seat = self.results.pop(ticket)
        if not self.away and self.stored.version > seat["snapshot"].version:
            seat["snapshot"] = self.stored
        return seat["actor"].collect(seat["snapshot"], HORIZON), 0.001

    def kill(self, handle: Any) -> None:
        pass

    def publish(self, snapshot: PolicySnapshot) -> None:
        self.stored = snapshot

    def tend_store(self) -> None:
        pass


@pytest.fixture
def made():
    runtimes: list[AsyncRuntime] = []

    def make(*overrides: str, actors: int = 1) -> tuple[AsyncRuntime, NearbyEngine]:
        config = toy_config(*overrides)
        engine = NearbyEngine(config)
        training = config.training
        learner = Learner(
            4, 5, action_dim=2, network=training.network, ppo=training.ppo, seed=training.seed
        )
        runtimes.append(
            AsyncRuntime(learner, engine, config=training.runtime, actors=actors, horizon=HORIZON)
        )
        return runtimes[-1], engine

    yield make
    for runtime in runtimes:
        runtime.rest()


def give_up_after(seconds: float) -> threading.Event:
    stop = threading.Event()
    timer = threading.Timer(seconds, stop.set)
    timer.daemon = True
    timer.start()
    return stop


def test_an_update_takes_one_rollout_of_as_many_as_there_are_actors(made):
    runtime, _ = made(actors=3)
    for version in range(1, 6):
        metrics = runtime.iterate()
        assert metrics["learner/version"] == version
        assert metrics["lag/max"] <= 4
    assert runtime.progress.steps == 5 * 3 * FRAGMENT
    assert runtime.learner.policy.obs_norm.count == runtime.progress.steps
    assert metrics["train/worlds_finished"] > 0.0


@pytest.mark.slow
def test_without_the_store_the_learner_goes_on_up_to_the_bound_and_no_further(made):
    runtime, engine = made("training.runtime.max_staleness=3")
    runtime.iterate()
    engine.away = True
    while (metrics := runtime.iterate(give_up_after(3.0))) is not None:
        newest = metrics
    stopped = runtime.learner.version
    assert newest["lag/max"] == 3
    assert newest["queue/used_over_bound"] == 0
    assert runtime.queue.counts.stale > 0  # what came later is dropped and counted
    engine.away = False
    assert runtime.iterate(give_up_after(30.0)) is not None
    assert runtime.learner.version == stopped + 1


def test_by_configuration_it_goes_on_with_less_and_less_weight(made):
    runtime, engine = made("training.runtime.max_staleness=1", "training.runtime.over_bound=weight")
    given: list[tuple[int, float]] = []
    update = runtime.learner.update

    def spy(rollouts, *, weights):
        given.extend(
            (runtime.learner.version - r.policy_version, w)
            for r, w in zip(rollouts, weights, strict=True)
        )
        return update(rollouts, weights=weights)

    runtime.learner.update = spy
    runtime.iterate()
    engine.away = True
    for _ in range(6):
        metrics = runtime.iterate(give_up_after(30.0))
    expected = {0: 1.0, 1: 1.0, 2: 1 / 2, 3: 1 / 3, 4: 1 / 4, 5: 1 / 5, 6: 1 / 6}
    assert all(weight == pytest.approx(expected[lag]) for lag, weight in given)
    assert max(lag for lag, _ in given) >= 4
    assert metrics["queue/used_over_bound"] == sum(lag > 1 for lag, _ in given)


@pytest.mark.slow
def test_a_learner_that_is_slower_than_its_actors_holds_no_more_than_a_queue_full(made):
    runtime, _ = made(
        "training.runtime.throttle.enabled=false", "training.runtime.queue_capacity=3"
    )
    for _ in range(5):
        metrics = runtime.iterate()
        time.sleep(0.2)
        assert len(runtime.queue) <= 3
    assert metrics["queue/overflowed"] > 5
    assert metrics["queue/dropped_share"] > 0.5
    assert metrics["lag/max"] <= 2


def test_when_actors_always_fail_whoever_learns_is_told_why(made):
    runtime, engine = made("training.runtime.max_restarts=2")
    runtime.iterate()
    engine.error = RoleFailed("Traceback: the gears are full of sand")
    with pytest.raises(RestartBudgetExceeded, match=r"(?s)max_restarts is 2.*full of sand"):
        while True:
            runtime.iterate(give_up_after(30.0))


def test_a_wait_for_rollouts_ends_when_the_run_shall_stop(made):
    runtime, engine = made()
    engine.wait = lambda tickets, timeout_s: time.sleep(0.01) or []
    assert runtime.iterate(give_up_after(0.3)) is None
    assert runtime.progress.steps == 0


def test_weights_are_published_as_often_as_the_throttle_says(made):
    runtime, engine = made("training.runtime.throttle.period_s=1000.0")
    published = []
    engine_publish = engine.publish
    engine.publish = lambda s: (published.append(s.version), engine_publish(s))
    runtime.throttle.settings = replace(runtime.throttle.settings, publish_every=3)
    for _ in range(7):
        runtime.iterate()
    assert published == [0, 3, 6]


def test_what_a_checkpoint_keeps_goes_on_with_new_random_numbers(made):
    runtime, _ = made(actors=2)
    for _ in range(3):
        runtime.iterate()
    runtime.throttle.settings = replace(runtime.throttle.settings, publish_every=2)
    runtime.rest()
    kept = runtime.checkpoint()
    same, _ = made(actors=2)
    same.restore(kept)
    assert same.throttle.settings == runtime.throttle.settings
    again, _ = made(actors=3)
    again.restore(kept)
    assert again.learner.version == 3
    assert again.progress.steps == 3 * 2 * FRAGMENT
    assert again.score_request().snapshot.version == 3
    again.iterate()
    # Two were started once before; the third is new.
    assert again.checkpoint().actor["starts"].tolist() == [2, 2, 1]
    assert set(again._episodes.actors) <= {
        "actor-0-restart-1",
        "actor-1-restart-1",
        "actor-2",
    }


def test_actors_that_a_shorter_crew_left_out_do_not_begin_as_they_did_before(made):
    runtime, _ = made(actors=3)
    runtime.iterate()
    runtime.rest()
    few, _ = made(actors=1)
    few.restore(runtime.checkpoint())
    few.iterate()
    few.rest()
    kept = few.checkpoint()
    assert kept.actor["starts"].tolist() == [2, 1, 1]
    again, _ = made(actors=4)
    again.restore(kept)
    again.iterate()
    assert again.checkpoint().actor["starts"].tolist() == [3, 2, 2, 1]


def test_an_update_that_lost_a_learner_is_made_with_the_same_rollouts_however_often(made):
    runtime, _ = made(actors=2)
    update, seen = runtime.learner.update, []

    def losing(rollouts, *, weights):
        seen.append(rollouts)
        if len(seen) <= 2000:  # more than Python may call into itself
            raise LearnerLostError("gone")
        return update(rollouts, weights=weights)

    runtime.learner.update = losing
    assert runtime.iterate()["learner/version"] == 1
    assert all(a is b for again in seen for a, b in zip(again, seen[0], strict=True))
