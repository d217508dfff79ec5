"""Actors, queue and learners as events in time: what :mod:`training.plan` runs.

The order of events is that of :class:`training.async_loop.AsyncRuntime`, and the same
:class:`~training.throttle.Throttle` decides. Nothing is learned and no time passes.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from training.crew import PER_ACTOR
from training.load import unread_share
from training.plan_weights import Acted, Weights
from training.rates import Rates
from training.run_config import RuntimeConfig
from training.throttle import Load, Throttle

#: Versions of which is known whether anybody acted with them; as many as a run remembers.
_REMEMBERED = 1000


@dataclass(frozen=True)
class Cluster:
    """What is simulated.

    Attributes:
        actors: K, one core each.
        learners: L, data-parallel.
        horizon: T, steps of a rollout.
        fragment: samples of a rollout, T N.
        per_update: rollouts of an update.
        capacity: rollouts that may wait.
    """

    actors: int
    learners: int
    horizon: int
    fragment: int
    per_update: int
    capacity: int

    def rollout_s(self, rates: Rates) -> float:
        """Mean duration of a rollout: T N / rate [s]."""
        return self.fragment / rates.actor_steps_per_s

    def update_s(self, rates: Rates) -> float:
        """Duration of an update [s].

        fixed + per_sample B / L + sync (L - 1) / L; the last is the share of a ring all-reduce,
        Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009.
        """
        batch, learners = self.per_update * self.fragment, self.learners
        sync = rates.sync_s * (learners - 1) / learners
        return rates.update_fixed_s + rates.update_s_per_sample * batch / learners + sync


@dataclass
class Totals:
    """What happened since ``since_s``.

    Attributes:
        since_s: time of the model [s].
        arrived: rollouts that came to the queue.
        dropped: rollouts that were pushed out of it or were too old.
        waited_s: time in which the learner waited.
        busy_s: time of actors at work, added up.
        idle_s: time of actors that have work and are not at it, added up.
        parked_s: time of actors that were given none, since enough was under way, added up.
        lags: of every rollout used, which are those of its first step [versions].
        step_lags: means over the steps of every rollout used [versions].
        depths: rollouts that waited at the start of each update.
        published: versions that came to the actors.
    """

    since_s: float = 0.0
    arrived: int = 0
    dropped: int = 0
    waited_s: float = 0.0
    busy_s: float = 0.0
    idle_s: float = 0.0
    parked_s: float = 0.0
    lags: list[int] = field(default_factory=list)
    step_lags: list[float] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    published: int = 0

    @property
    def drop_share(self) -> float:
        """Of the rollouts whose fate is known."""
        return self.dropped / max(1, self.dropped + len(self.lags))

    @property
    def actor_idle(self) -> float:
        """Share of all actors' time, parked ones included, as :mod:`training.crew` has it."""
        return self.idle_s / max(1e-12, self.idle_s + self.busy_s + self.parked_s)

    @property
    def actor_parked(self) -> float:
        """The same of the time in which they were given no work."""
        return self.parked_s / max(1e-12, self.idle_s + self.busy_s + self.parked_s)


class Simulation:
    """Events in the order of time: ``made``, ``arrived``, ``updated``, ``published``.

    Args:
        cluster: how many of what.
        runtime: staleness bound, throttle, and how often actors look for newer weights.
        rates: durations.
        seed: of their spread.
    """

    def __init__(
        self, cluster: Cluster, runtime: RuntimeConfig, rates: Rates, *, seed: int
    ) -> None:
        self._cluster, self._rates, self._runtime = cluster, rates, runtime
        self._rng = np.random.default_rng(np.random.SeedSequence(seed))
        self._durations: list[float] = []
        self._now = 0.0
        self._throttle = Throttle(
            runtime.throttle,
            actors=cluster.actors,
            per_update=cluster.per_update,
            capacity=cluster.capacity,
            max_staleness=runtime.max_staleness,
            clock=lambda: self._now,
        )
        self._events: list[tuple[float, int, str, int]] = []
        self._order = itertools.count()
        self._tickets = [0] * cluster.actors  # given out and not yet arrived
        self._pending = [0] * cluster.actors  # of these, not begun
        self._making = [False] * cluster.actors
        # Actors by their number of tickets; an entry whose number has changed is stale.
        self._by_tickets = [deque(range(cluster.actors)), deque[int]()]
        self._parked: list[int] = []
        self._under_way = self._makers = self._employed = 0
        self._queue: deque[Acted] = deque()
        # What came to the actors, what is on the way to them, what each began its rollout with and
        # when, what is on the way from each, and what the learner's rollouts were begun with.
        self._weights = Weights(_REMEMBERED)
        self._published_to_come: deque[int] = deque()
        self._began = [(0, 0.0)] * cluster.actors
        self._delivered: list[deque[Acted]] = [deque() for _ in range(cluster.actors)]
        self._acted: deque[int] = deque(maxlen=_REMEMBERED)
        self._version = self._published = 0
        self._idle_since: float | None = 0.0
        self._of_plan, self._of_period = Totals(), Totals()

    @property
    def active_actors(self) -> int:
        """Actors that the throttle leaves at work."""
        return self._throttle.settings.active_actors

    def run(self, updates: int) -> tuple[Totals, float]:
        """Simulate half as many updates, which nobody looks at, and then these.

        Returns:
            What happened in the latter, and how long they took [s].
        """
        start = updates // 2
        self._dispatch()
        while self._version < start + updates:
            before = self._version
            self._next()
            if before < start <= self._version:
                self._of_plan = Totals(since_s=self._now)
        return self._of_plan, self._now - self._of_plan.since_s

    # -------------------------------------------------------------- events

    def _next(self) -> None:
        when, _, kind, which = heapq.heappop(self._events)
        self._pass(when - self._now)
        self._now = when
        if kind == "made":
            self._making[which] = False
            self._makers -= 1
            self._delivered[which].append(self._versions_of(which))
            self._at(self._rates.deliver_s, "arrived", which)
            self._begin(which)
        elif kind == "arrived":
            self._arrive(which, self._delivered[which].popleft())
        elif kind == "updated":
            self._update()
        else:
            self._come(self._published_to_come.popleft())
        self._learn()
        self._dispatch()
        if self._throttle.due() and self._version:
            self._decide()

    def _at(self, delay: float, kind: str, which: int) -> None:
        heapq.heappush(self._events, (self._now + delay, next(self._order), kind, which))

    def _pass(self, seconds: float) -> None:
        parked = len(self._tickets) - self._employed
        idle = self._employed - self._makers  # their rollouts are on the way to the queue
        for totals in (self._of_plan, self._of_period):
            totals.busy_s += self._makers * seconds
            totals.idle_s += idle * seconds
            totals.parked_s += parked * seconds
            totals.waited_s += 0.0 if self._idle_since is None else seconds

    # -------------------------------------------------------------- actors

    def _dispatch(self) -> None:
        """Give out work up to the throttle's settings, to those first who have least of it."""
        while self._under_way + len(self._queue) < self._throttle.settings.in_flight:
            which = self._least()
            if which is None:
                return
            self._employed += self._tickets[which] == 0
            self._tickets[which] += 1
            self._pending[which] += 1
            self._under_way += 1
            self._file(which)
            self._begin(which)

    def _file(self, which: int) -> None:
        if self._tickets[which] < PER_ACTOR:
            self._by_tickets[self._tickets[which]].append(which)

    def _least(self) -> int | None:
        for tickets, bucket in enumerate(self._by_tickets):
            while bucket:
                which = bucket.popleft()
                if self._tickets[which] != tickets:
                    continue
                if which < self._throttle.settings.active_actors:
                    return which
                self._parked.append(which)
        return None

    def _begin(self, which: int) -> None:
        """Make the next rollout, with the newest weights that have come."""
        if self._making[which] or not self._pending[which]:
            return
        self._pending[which] -= 1
        self._making[which] = True
        self._makers += 1
        self._began[which] = self._weights.newest, self._now
        self._at(self._rollout_s(), "made", which)

    def _versions_of(self, which: int) -> Acted:
        """Versions of the rollout that is made just now: also those that came within it."""
        version, since = self._began[which]
        every, steps = self._runtime.refresh_every, self._cluster.horizon
        return self._weights.acted(
            version, begin_s=since, end_s=self._now, steps=steps, every=every
        )

    def _rollout_s(self) -> float:
        mean, spread = self._cluster.rollout_s(self._rates), self._rates.spread
        if spread == 0.0:
            return mean
        if not self._durations:  # a block, since single draws are slow
            shape = spread**-2  # a gamma distribution of mean 1 and this spread
            self._durations = self._rng.gamma(shape, 1.0 / shape, 4096).tolist()
        return mean * self._durations.pop()

    def _arrive(self, which: int, made: Acted) -> None:
        self._tickets[which] -= 1
        self._employed -= self._tickets[which] == 0
        self._under_way -= 1
        self._file(which)
        lost = 0
        while len(self._queue) >= self._cluster.capacity:
            self._queue.popleft()
            lost += 1
        self._queue.append(made)
        for totals in (self._of_plan, self._of_period):
            totals.arrived += 1
            totals.dropped += lost

    # -------------------------------------------------------------- learner

    def _learn(self) -> None:
        count = self._cluster.per_update
        if self._idle_since is None:
            return
        if self._runtime.over_bound == "drop":
            limit = self._version - self._runtime.max_staleness
            fresh = deque(made for made in self._queue if made.oldest >= limit)
            for totals in (self._of_plan, self._of_period):
                totals.dropped += len(self._queue) - len(fresh)
            self._queue = fresh
        if len(self._queue) < count:
            return
        taken = [self._queue.popleft() for _ in range(count)]
        self._acted.extend(made.oldest for made in taken)
        for totals in (self._of_plan, self._of_period):
            totals.lags += [self._version - made.oldest for made in taken]
            totals.step_lags += [self._version - made.mean for made in taken]
            totals.depths.append(len(self._queue) + count)
        self._idle_since = None
        self._at(self._cluster.update_s(self._rates), "updated", 0)

    def _update(self) -> None:
        self._version += 1
        self._idle_since = self._now
        if self._version - self._published >= self._throttle.settings.publish_every:
            self._published = self._version
            if self._rates.publish_s == 0.0:
                self._come(self._version)
            else:
                self._published_to_come.append(self._version)
                self._at(self._rates.publish_s, "published", 0)

    def _come(self, version: int) -> None:
        """Weights have come to where actors find them."""
        self._weights.come(version, self._now)
        self._of_period.published += 1

    def _decide(self) -> None:
        seen, elapsed = self._of_period, self._now - self._of_period.since_s
        unread = unread_share(self._weights.recent, new=seen.published, acted=set(self._acted))
        self._throttle.decide(
            Load(
                arrived=seen.arrived,
                dropped=seen.dropped,
                used=len(seen.lags),
                lag_mean=mean(seen.lags),
                learner_idle=seen.waited_s / elapsed if elapsed else 0.0,
                actor_idle=seen.actor_idle,
                # Within rollouts newer versions act, too, as in a run: nobody knows which.
                unread_share=unread if self._runtime.refresh_every is None else 0.0,
                queue_depth=len(self._queue),
            )
        )
        self._of_period = Totals(since_s=self._now)
        for which in self._parked:
            self._file(which)
        self._parked = []
        self._dispatch()


def mean(values: Sequence[float]) -> float:
    """0 of nothing."""
    return sum(values) / len(values) if values else 0.0
