"""Actors and evaluators that die, hang and raise, on a fake engine and a fake clock."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import pytest

from tests.training.toy_run import rollout
from training.crew import ActorCrew
from training.networks import NetworkConfig
from training.queue import RolloutQueue
from training.roles import RestartBudget, RestartBudgetExceeded, RoleFailed, ScoreRequest, actor_id
from training.run_config import RuntimeConfig
from training.scoring import EvaluatorCrew
from training.snapshot import PolicySnapshot
from training.throttle import Throttle, ThrottleConfig


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Ticket:
    """A call on its way; the test says when and how it ends."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.result: Any = None
        self.done = False


class FakeEngine:
    def __init__(self) -> None:
        self.started: list[tuple[int, int, int]] = []
        self.killed: list[Any] = []
        self.open: deque[Ticket] = deque()
        self.evaluators = 0

    def start_actor(self, worker: int, restart: int, snapshot: PolicySnapshot) -> Any:
        self.started.append((worker, restart, snapshot.version))
        return (worker, restart)

    def start_evaluator(self) -> Any:
        self.evaluators += 1
        return f"evaluator-{self.evaluators}"

    def collect(self, actor: Any) -> Ticket:
        self.open.append(Ticket(actor))
        return self.open[-1]

    def score(self, evaluator: Any, request: ScoreRequest) -> Ticket:
        return self.collect(evaluator)

    def wait(self, tickets, timeout_s: float) -> list[Ticket]:
        return [ticket for ticket in tickets if ticket.done]

    def fetch(self, ticket: Ticket) -> Any:
        if isinstance(ticket.result, Exception):
            raise ticket.result
        return ticket.result

    def kill(self, handle: Any) -> None:
        self.killed.append(handle)

    def finish(self, handle: Any, result: Any) -> None:
        """End the oldest open call of a handle."""
        ticket = next(t for t in self.open if t.handle == handle)
        self.open.remove(ticket)
        ticket.result, ticket.done = result, True

    def deliver(self, handle: Any, *, busy_s: float = 0.1, version: int = 0) -> None:
        self.finish(handle, (rollout(version, actor=actor_id(handle)), busy_s))

    def load_of(self, handle: Any) -> int:
        return sum(t.handle == handle for t in self.open)


class Yard:
    """A crew with everything around it."""

    def __init__(self, actors: int, *, limit: int = 5, throttled: bool = False) -> None:
        self.clock = Clock()
        self.engine = FakeEngine()
        self.queue = RolloutQueue(2 * actors, max_staleness=4)
        self.version = 0
        self.seen: list[str] = []
        self.gone: list[str] = []
        self.throttle = Throttle(
            ThrottleConfig(enabled=throttled),
            actors=actors,
            per_update=actors,
            capacity=2 * actors,
            max_staleness=4,
            clock=self.clock,
        )
        self.crew = ActorCrew(
            self.engine,
            self.queue,
            config=RuntimeConfig(start_timeout_s=100.0, fragment_timeout_s=10.0),
            starts=[0] * actors,
            throttle=self.throttle,
            budget=RestartBudget(limit, 60.0, clock=self.clock),
            newest=lambda: PolicySnapshot(self.version, {}, 0),
            on_rollout=lambda r: self.seen.append(r.actor_id),
            on_gone=self.gone.append,
            clock=self.clock,
        )


def test_every_actor_has_one_fragment_to_make_and_one_that_follows():
    yard = Yard(3)
    yard.crew.tend(0.0)
    assert [yard.engine.load_of((w, 0)) for w in range(3)] == [2, 2, 2]
    yard.engine.deliver((1, 0))
    yard.crew.tend(0.0)
    assert yard.engine.load_of((1, 0)) == 2
    assert yard.seen == ["actor-1"]
    assert len(yard.queue) == 1


def test_fragments_under_way_are_limited_and_shared_out_evenly():
    yard = Yard(3, throttled=True)  # in flight: one for each actor
    yard.crew.tend(0.0)
    assert [yard.engine.load_of((w, 0)) for w in range(3)] == [1, 1, 1]
    for worker in range(3):
        yard.engine.deliver((worker, 0))
    yard.crew.tend(0.0)
    # All three wait in the queue: actors are parked until the learner takes them.
    assert len(yard.engine.open) == 0
    assert len(yard.queue.take(3, 0)) == 3
    yard.crew.dispatch()
    assert [yard.engine.load_of((w, 0)) for w in range(3)] == [1, 1, 1]


def test_a_dead_actor_is_replaced_by_one_with_the_newest_weights_a_new_name_and_new_numbers():
    yard = Yard(3)
    yard.crew.tend(0.0)
    yard.version = 7
    yard.engine.finish((2, 0), RoleFailed("ActorDiedError"))
    yard.crew.tend(0.0)
    assert yard.engine.started[-1] == (2, 1, 7)
    assert yard.engine.killed == [(2, 0)]
    assert yard.gone == ["actor-2"]
    assert yard.crew.starts == [0, 0, 1]
    assert yard.engine.load_of((2, 1)) == 2
    yard.engine.deliver((2, 1))
    yard.crew.tend(0.0)
    assert yard.seen == ["actor-2-restart-1"]
    assert [yard.engine.load_of((w, 0)) for w in range(2)] == [2, 2]  # the others go on


def test_an_actor_that_hangs_is_killed_after_its_time():
    yard = Yard(2)
    yard.crew.tend(0.0)
    yard.clock.now = 50.0  # starting may take longer than a fragment
    yard.crew.tend(0.0)
    assert yard.engine.killed == []
    yard.engine.deliver((0, 0))
    yard.crew.tend(0.0)
    yard.clock.now = 59.0
    yard.crew.tend(0.0)
    assert yard.engine.killed == []
    yard.clock.now = 61.0  # actor 0: 11 s since its last rollout; actor 1 has yet to start
    yard.crew.tend(0.0)
    assert yard.engine.killed == [(0, 0)]
    yard.clock.now = 101.0
    yard.crew.tend(0.0)
    assert yard.engine.killed == [(0, 0), (1, 0)]


def test_a_rollout_on_its_way_from_far_keeps_nobody_from_giving_out_work():
    yard = Yard(2)
    yard.crew.tend(0.0)
    fetching, arrived = threading.Event(), threading.Event()
    fetch = yard.engine.fetch

    def slowly(ticket: Ticket) -> Any:
        fetching.set()
        assert arrived.wait(30.0)
        return fetch(ticket)

    yard.engine.fetch = slowly
    yard.engine.deliver((0, 0))
    tending = threading.Thread(target=yard.crew.tend, args=(0.0,))
    tending.start()
    assert fetching.wait(30.0)

    asked = threading.Thread(target=lambda: (yard.crew.dispatch(), yard.crew.times))
    asked.start()
    asked.join(10.0)
    waited = asked.is_alive()
    arrived.set()
    tending.join(30.0)
    assert not waited
    assert yard.seen == ["actor-0"]
    assert len(yard.queue) == 1


def test_a_parked_actor_does_not_hang():
    yard = Yard(1, throttled=True)
    yard.crew.tend(0.0)
    yard.engine.deliver((0, 0))
    yard.crew.tend(0.0)
    yard.clock.now = 1000.0  # its rollout waits in the queue all the time
    yard.crew.tend(0.0)
    assert yard.engine.killed == []
    yard.queue.take(1, 0)
    yard.crew.tend(0.0)
    yard.clock.now = 1009.0  # at work for 9 s
    yard.crew.tend(0.0)
    assert yard.engine.killed == []


def test_one_restart_too_many_ends_the_run_with_the_cause():
    yard = Yard(1, limit=2)
    yard.crew.tend(0.0)
    for restart in range(2):
        yard.engine.finish((0, restart), RoleFailed("Traceback: no such motor"))
        yard.crew.tend(0.0)
    yard.engine.finish((0, 2), RoleFailed("Traceback: no such motor"))
    with pytest.raises(RestartBudgetExceeded, match=r"(?s)max_restarts is 2.*no such motor"):
        yard.crew.tend(0.0)


def test_restarts_of_long_ago_do_not_count():
    clock = Clock()
    budget = RestartBudget(2, 60.0, clock=clock)
    for _ in range(5):
        budget.spend("a", "x")
        clock.now += 31.0  # never three within 60 s
        budget.note_work()
    assert budget.spent == 5
    budget.spend("a", "x")
    with pytest.raises(RestartBudgetExceeded):
        budget.spend("a", "x")


def test_restarts_of_long_ago_count_as_long_as_nothing_came_of_them():
    clock = Clock()
    budget = RestartBudget(3, 60.0, clock=clock)
    budget.spend("a", "x")
    clock.now += 100.0
    budget.note_work()  # the first is forgotten
    for _ in range(3):
        clock.now += 100.0  # so slowly that a window sees one at a time
        budget.spend("a", "x")
    clock.now += 100.0
    with pytest.raises(RestartBudgetExceeded, match="without any work done since"):
        budget.spend("a", "the cause")


def test_an_actor_that_hangs_at_every_start_ends_the_run_however_long_it_takes_to_see():
    yard = Yard(1, limit=3)  # a start may take 100 s, the window is 60 s
    with pytest.raises(RestartBudgetExceeded, match="no first rollout within 100 s"):
        for _ in range(10):
            yard.crew.tend(0.0)
            yard.clock.now += 101.0
    assert len(yard.engine.killed) == 4


def test_time_is_busy_parked_or_idle():
    yard = Yard(1, throttled=True)
    yard.crew.tend(0.0)
    yard.clock.now = 30.0  # starting is nobody's idle time
    yard.engine.deliver((0, 0), busy_s=25.0)
    yard.crew.tend(0.0)
    yard.clock.now = 40.0  # parked for 10 s
    yard.queue.take(1, 0)
    yard.crew.dispatch()
    yard.clock.now = 70.0  # 30 s with a fragment, of which 24 s were work
    yard.engine.deliver((0, 0), busy_s=24.0)
    yard.crew.tend(0.0)
    times = yard.crew.times
    assert (times.total, times.parked, times.busy) == (40.0, 10.0, 24.0)
    assert times.idle_share == pytest.approx(6.0 / 40.0)


# ------------------------------------------------------------------ evaluators


def request(step: int) -> ScoreRequest:
    return ScoreRequest(
        PolicySnapshot(step, {}, 0), (4, 5, 2), NetworkConfig(), f"c{step}", step, 1
    )


def evaluators(number: int, *, limit: int = 3, start_s: float = 0.0):
    clock, engine = Clock(), FakeEngine()
    budget = RestartBudget(limit, 1e9, clock=clock)
    crew = EvaluatorCrew(
        engine, number, timeout_s=50.0, budget=budget, clock=clock, start_s=start_s
    )
    return crew, engine, clock


def told(scored) -> list[tuple[int, Any]]:
    return [(s.request.step, s.record and s.record["score"]) for s in scored]


def test_evaluators_take_what_waits_and_the_newest_takes_the_place_of_an_older_one():
    crew, engine, _ = evaluators(1)
    crew.submit(request(1))
    crew.submit(request(2))
    assert crew.poll() == []
    crew.submit(request(3))  # 1 is being scored, 2 gives way
    assert told(crew.poll()) == [(2, None)]
    engine.finish("evaluator-1", ({"score": 0.5}, 2.0))
    assert told(crew.poll()) == [(1, 0.5)]
    engine.finish("evaluator-1", ({"score": 0.7}, 2.0))
    assert told(crew.poll()) == [(3, 0.7)]


def test_an_evaluator_that_dies_or_hangs_is_replaced_and_its_policy_has_no_score():
    crew, engine, clock = evaluators(2)
    crew.submit(request(1))
    crew.submit(request(2))
    engine.finish("evaluator-1", RoleFailed("died"))
    assert told(crew.poll()) == [(1, None)]
    clock.now = 51.0
    assert told(crew.poll()) == [(2, None)]
    assert engine.killed == ["evaluator-1", "evaluator-2"]
    crew.submit(request(3))
    engine.finish("evaluator-3", ({"score": 0.9}, 1.0))
    assert told(crew.poll()) == [(3, 0.9)]


def test_an_evaluator_that_has_yet_to_start_has_more_time():
    crew, engine, clock = evaluators(1, start_s=100.0)
    crew.submit(request(1))
    clock.now = 149.0
    assert crew.poll() == []
    engine.finish("evaluator-1", ({"score": 0.5}, 2.0))
    assert told(crew.poll()) == [(1, 0.5)]
    crew.submit(request(2))
    clock.now += 51.0  # it runs now: an evaluation takes 50 s at most
    assert told(crew.poll()) == [(2, None)]
    crew.submit(request(3))
    clock.now += 149.0  # whoever replaces it starts, too
    assert crew.poll() == []
    clock.now += 2.0
    assert told(crew.poll()) == [(3, None)]
    assert engine.killed == ["evaluator-1", "evaluator-2"]


def test_when_evaluation_always_fails_training_goes_on_without_scores():
    crew, engine, _ = evaluators(1, limit=1)
    for step in (1, 2, 3):
        crew.submit(request(step))
        if engine.open:
            engine.finish(engine.open[0].handle, RoleFailed("no engine"))
        assert told(crew.poll()) == [(step, None)]
    assert engine.evaluators == 2  # the first and its one replacement
