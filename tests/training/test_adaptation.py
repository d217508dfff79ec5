"""What all worlds have in common is decided once, travels with the weights, and is never lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from real.errors import FerryError
from tests.training.growing_run import (
    HORIZON,
    WORLDS,
    growing_config,
    run_env,
    shares,
)
from training.actor import ActorWorker
from training.async_loop import AsyncRuntime
from training.learner import Learner
from training.loop import SerialRuntime
from training.metrics import check_names
from training.roles import RoleFailed, Stream, actor_id
from training.snapshot import PolicySnapshot

CONFIG = growing_config()


def worker(stream: Stream = (0, 0)) -> ActorWorker:
    env = run_env(CONFIG, stream)
    return ActorWorker(
        env, actor_id(stream), network=CONFIG.training.network, seed=0, stream=stream
    )


def learner(env) -> Learner:
    training = CONFIG.training
    return Learner(
        env.policy_dim,
        env.critic_dim,
        action_dim=env.action_dim,
        network=training.network,
        ppo=training.ppo,
        seed=0,
    )


class InProcess:
    """An engine whose actors collect when somebody waits for them; it can kill one."""

    def __init__(self, make: Callable[[Stream], ActorWorker] = worker) -> None:
        self.make = make
        self.actors: dict[str, ActorWorker] = {}
        self.stored: PolicySnapshot
        self.dead: set[str] = set()

    def start_actor(self, worker_: int, restart: int, snapshot: PolicySnapshot):
        made = self.make((worker_, restart))
        made.shared.follow()
        self.actors[made.actor_id] = made
        return made

    def collect(self, actor):
        return (actor,)

    def wait(self, tickets, timeout_s):
        return list(tickets)

    def fetch(self, ticket):
        if ticket[0].actor_id in self.dead:
            raise RoleFailed("killed")
        return ticket[0].collect(self.stored, HORIZON), 0.001

    def publish(self, snapshot):
        self.stored = snapshot

    def kill(self, handle):
        pass

    def tend_store(self):
        pass


def asynchronous(engine: InProcess, actors: int = 3) -> AsyncRuntime:
    env = run_env(CONFIG, (0, 0))
    return AsyncRuntime(
        learner(env),
        engine,  # pyright: ignore[reportArgumentType] - it has no evaluators
        config=CONFIG.training.runtime,
        actors=actors,
        horizon=HORIZON,
        shared=env.shared,
    )


def serial(steps: int, *, start: SerialRuntime | None = None) -> SerialRuntime:
    actor = worker()
    runtime = SerialRuntime(actor, learner(actor.env), horizon=HORIZON)
    if start is not None:
        runtime.restore(start.checkpoint())
    for _ in range(steps):
        check_names(runtime.iterate())
    return runtime


@pytest.fixture(scope="module")
def half() -> SerialRuntime:
    return serial(5)


def test_a_fresh_actor_begins_all_its_worlds_with_what_the_run_has_learned(half):
    snapshot = half.store.newest()
    grown = shares(half.actor.env)
    assert grown.mean() > 0.0 and (grown == snapshot.shared["curriculum.shares"]).all()
    fresh = worker((2, 1))
    neutral = fresh.env.drawn().draws.copy()
    assert (shares(fresh.env) == 0.0).all() and (neutral == neutral[0]).all()
    rollout = fresh.collect(snapshot, 1)
    np.testing.assert_array_equal(shares(fresh.env), grown)
    # Not only later episodes: the first step is in worlds of these ranges.
    assert rollout.domain is not None and (rollout.domain.step == 0).all()
    assert (rollout.domain.draws != neutral).any(axis=1).all()  # every world
    # One that learned nothing yet leaves the worlds as they are.
    other = worker((2, 1))
    beginning = dataclasses.replace(snapshot, shared=worker().shared.state_dict())
    again = other.collect(beginning, 1)
    np.testing.assert_array_equal(again.domain.draws, neutral)


@pytest.mark.slow
def test_a_serial_run_resumed_halfway_has_the_same_ranges_and_the_same_policy(half):
    twice, once = serial(5, start=half), serial(10)
    for name, value in once.checkpoint().actor.items():
        np.testing.assert_array_equal(twice.checkpoint().actor[name], value, err_msg=name)
    assert (
        once.checkpoint().counters["policy_digest"]
        == (twice.checkpoint().counters["policy_digest"])
    )
    assert shares(once.actor.env).mean() > shares(half.actor.env).mean()


def test_many_actors_go_on_where_one_was_and_their_checkpoint_keeps_it(half):
    engine = InProcess()
    runtime = asynchronous(engine)
    runtime.restore(half.checkpoint())
    before = shares(half.actor.env)
    assert (engine_shares(runtime) == before).all()
    try:
        for _ in range(4):
            metrics = runtime.iterate()
            assert metrics is not None
            check_names(metrics)
    finally:
        runtime.rest()
    after = engine_shares(runtime)
    assert after.mean() > before.mean() and metrics["curriculum/mean"] > before.mean()
    # Nobody decided for himself: each has what was published when it began its newest rollout.
    for actor in engine.actors.values():
        own = shares(actor.env)
        assert (own >= before).all() and (own <= after).all()
    again = asynchronous(InProcess())
    again.restore(runtime.checkpoint())
    np.testing.assert_array_equal(engine_shares(again), after)
    # Whoever is started next is told at once.
    told = again.adaptation.stamped(again.learner.snapshot()).shared["curriculum.shares"]
    np.testing.assert_array_equal(told, after)


def engine_shares(runtime: AsyncRuntime) -> np.ndarray:
    return np.asarray(runtime.adaptation.state_dict()["shared.curriculum.shares"])


def test_a_checkpoint_that_does_not_say_how_far_the_ranges_were_is_refused(half):
    kept = half.checkpoint()
    older = {k: v for k, v in kept.actor.items() if not k.startswith("shared.")}
    with pytest.raises(FerryError, match="how far all worlds were in curriculum;"):
        asynchronous(InProcess()).restore(dataclasses.replace(kept, actor=older))


def test_a_rollout_reports_its_outcomes_once_and_only_of_one_who_follows(half):
    snapshot = half.store.newest()
    alone, follower = worker((1, 0)), worker((1, 0))
    follower.shared.follow()
    ended = 0
    for _ in range(3):
        assert not alone.collect(snapshot, HORIZON).outcomes
        rollout = follower.collect(snapshot, HORIZON)
        ended += len(rollout.outcomes.get("curriculum.end", ()))
        assert len(rollout.outcomes["curriculum.end"]) <= len(rollout.episodes)
    assert 0 < ended <= 3 * HORIZON // 5 * WORLDS + WORLDS
    assert (shares(follower.env) == snapshot.shared["curriculum.shares"]).all()
    assert (shares(alone.env) > snapshot.shared["curriculum.shares"]).any()
