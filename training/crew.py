"""Keeps actors at work, and replaces those that die or hang.

Nothing here waits for the learner, and the learner waits for nothing here.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from real.rollout import Rollout
from training.queue import RolloutQueue
from training.roles import Engine, RestartBudget, RoleFailed, actor_id
from training.run_config import RuntimeConfig
from training.snapshot import PolicySnapshot
from training.throttle import Throttle

log = logging.getLogger(__name__)

#: Fragments an actor has at most: one that it makes and one that follows without a gap.
PER_ACTOR = 2


@dataclass
class _Seat:
    """The place of one actor, whoever sits in it."""

    worker: int
    restart: int
    handle: Any
    since: float
    started: bool = False
    tickets: deque[Any] = field(default_factory=deque[Any])


@dataclass
class ActorTimes:
    """Where the time of actors went, from their first fragment on [s]; K actors count K-fold.

    Attributes:
        total: all of it.
        busy: collecting.
        parked: kept back, since enough fragments are under way.
    """

    total: float = 0.0
    busy: float = 0.0
    parked: float = 0.0

    def since(self, earlier: ActorTimes) -> ActorTimes:
        """What was added after ``earlier``."""
        return ActorTimes(
            self.total - earlier.total, self.busy - earlier.busy, self.parked - earlier.parked
        )

    @property
    def idle_share(self) -> float:
        """Neither busy nor parked."""
        return min(1.0, max(0.0, 1.0 - (self.busy + self.parked) / max(self.total, 1e-9)))


class ActorCrew:
    """K actors at work on fragments, each of which ends in the queue.

    One thread calls :meth:`tend`; all else may be called by others at any time.

    Args:
        engine: runs them.
        queue: takes their rollouts.
        config: time-outs.
        starts: how often each was started before; their number is K.
        throttle: says how many fragments may be under way.
        budget: of restarts.
        newest: the newest published snapshot; whoever is started knows it from the beginning.
        on_rollout: told of every rollout before it enters the queue.
        on_gone: told the name of every actor that is replaced.
        clock: monotonic time [s].
    """

    def __init__(
        self,
        engine: Engine,
        queue: RolloutQueue,
        *,
        config: RuntimeConfig,
        starts: Sequence[int],
        throttle: Throttle,
        budget: RestartBudget,
        newest: Callable[[], PolicySnapshot],
        on_rollout: Callable[[Rollout], None],
        on_gone: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._queue = queue
        self._on_rollout = on_rollout
        self._on_gone = on_gone
        self._config = config
        self._throttle = throttle
        self._budget = budget
        self._newest = newest
        self._clock = clock
        self._lock = threading.RLock()
        self._times = ActorTimes()
        self._noted = clock()
        self._seats = [
            _Seat(worker, restart, engine.start_actor(worker, restart, newest()), clock())
            for worker, restart in enumerate(starts)
        ]

    @property
    def starts(self) -> list[int]:
        """How often each actor was started before the present one."""
        with self._lock:
            return [seat.restart for seat in self._seats]

    @property
    def times(self) -> ActorTimes:
        """Totals so far."""
        with self._lock:
            self._note_time()
            return ActorTimes(self._times.total, self._times.busy, self._times.parked)

    def dispatch(self) -> None:
        """Give work to actors, as far as the throttle allows; never waits."""
        with self._lock:
            self._note_time()
            settings = self._throttle.settings
            active = self._seats[: settings.active_actors]
            under_way = sum(len(seat.tickets) for seat in self._seats) + len(self._queue)
            for _ in range(under_way, settings.in_flight):
                seat = min(active, key=lambda seat: len(seat.tickets))
                if len(seat.tickets) >= PER_ACTOR:
                    return
                if not seat.tickets:
                    seat.since = self._clock()
                seat.tickets.append(self._engine.collect(seat.handle))

    def tend(self, timeout_s: float) -> None:
        """Receive what is ready, replace who is dead or hangs, and give out work.

        Args:
            timeout_s: how long to wait for the first.

        Raises:
            RestartBudgetExceeded: too many had to be replaced.
        """
        self.dispatch()
        with self._lock:
            first = {seat.tickets[0]: seat for seat in self._seats if seat.tickets}
        for ticket in self._engine.wait(list(first), timeout_s):
            self._receive(first[ticket], ticket)
        with self._lock:
            for seat in self._seats:
                self._replace_if_hung(seat)
        self.dispatch()

    def _receive(self, seat: _Seat, ticket: Any) -> None:
        try:
            # Without the lock, for which the learner would wait: it may come from far away.
            rollout, busy_s = self._engine.fetch(ticket)
        except RoleFailed as failure:
            with self._lock:
                self._replace(seat, str(failure))
            return
        self._on_rollout(rollout)
        with self._lock:
            self._note_time()
            seat.tickets.popleft()
            if seat.started:
                self._times.busy += busy_s
            seat.started = True
            seat.since = self._clock()
            self._budget.note_work()
            self._queue.put(rollout)

    def _replace_if_hung(self, seat: _Seat) -> None:
        limit = self._config.fragment_timeout_s if seat.started else self._config.start_timeout_s
        if seat.tickets and self._clock() - seat.since > limit:
            what = "no rollout" if seat.started else "no first rollout"
            self._replace(seat, f"{what} within {limit:g} s: it hangs, or there is no CPU for it")

    def _replace(self, seat: _Seat, cause: str) -> None:
        """A new actor with the newest weights and statistics, its own random numbers and name."""
        self._note_time()
        name = actor_id((seat.worker, seat.restart))
        self._engine.kill(seat.handle)
        self._on_gone(name)
        self._budget.spend(name, cause)
        seat.restart += 1
        log.warning("%s is replaced by %s: %s", name, actor_id((seat.worker, seat.restart)), cause)
        seat.handle = self._engine.start_actor(seat.worker, seat.restart, self._newest())
        seat.tickets.clear()
        seat.started = False
        seat.since = self._clock()

    def _note_time(self) -> None:
        """Account for the time since the last call, before anything changes."""
        now = self._clock()
        passed, self._noted = now - self._noted, now
        for seat in self._seats:
            if seat.started:
                self._times.total += passed
                self._times.parked += 0.0 if seat.tickets else passed
