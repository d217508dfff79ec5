"""The queue between actors and learner: bounded, and closed to rollouts of policies too old.

An actor that adds to a full queue never waits: the oldest rollout is dropped for it and counted.
What is too old is found out when the learner takes: lag is its version *then* minus the version
that acted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from real.errors import FerryError
from real.rollout import Rollout

#: What happens to a rollout over the bound: it is dropped, or counts for less.
OverBound = Literal["drop", "weight"]


@dataclass(frozen=True)
class QueueCounts:
    """Totals since construction.

    Attributes:
        added: rollouts that actors put in.
        taken: rollouts that the learner took.
        overflowed: dropped because the queue was full.
        stale: dropped because they were over the bound.
        over_bound: taken with less weight although they were over the bound.
    """

    added: int = 0
    taken: int = 0
    overflowed: int = 0
    stale: int = 0
    over_bound: int = 0

    @property
    def dropped(self) -> int:
        """Rollouts that nobody learned from."""
        return self.overflowed + self.stale


@dataclass(frozen=True)
class Admitted:
    """A rollout that the learner may use.

    Attributes:
        rollout: what an actor made.
        lag: learner version minus the version that acted.
        weight: how much it counts, in (0, 1]; 1 up to the bound.
    """

    rollout: Rollout
    lag: int
    weight: float


class QueueClosed(FerryError):
    """The queue was closed while somebody waited for it."""


class RolloutQueue:
    """First in, first out; safe to use from several threads.

    Args:
        capacity: rollouts it holds at most.
        max_staleness: largest lag at which a rollout is used whole [versions].
        over_bound: what happens to older ones. ``weight`` lets them count for one half at one
            version over the bound, one third at two, and so on.
    """

    def __init__(
        self, capacity: int, *, max_staleness: int, over_bound: OverBound = "drop"
    ) -> None:
        if capacity < 1 or max_staleness < 0:
            raise FerryError(
                f"a queue of {capacity} rollouts with lag up to {max_staleness}; expected a "
                "capacity of at least 1 and a lag of at least 0"
            )
        self.capacity = capacity
        self.max_staleness = max_staleness
        self.over_bound = over_bound
        self._held: deque[Rollout] = deque()
        self._counts = QueueCounts()
        self._changed = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        """Rollouts that wait."""
        return len(self._held)

    @property
    def counts(self) -> QueueCounts:
        """Totals so far."""
        with self._changed:
            return self._counts

    def put(self, rollout: Rollout) -> None:
        """Add a rollout at once; the oldest one makes way if the queue is full."""
        with self._changed:
            overflowed = 0
            while len(self._held) >= self.capacity:
                self._held.popleft()
                overflowed += 1
            self._held.append(rollout)
            self._count(added=1, overflowed=overflowed)
            self._changed.notify_all()

    def take(self, count: int, version: int, *, timeout_s: float = 0.0) -> list[Admitted]:
        """The oldest ``count`` rollouts that are admitted, or none if there are not so many.

        Args:
            count: how many; fewer are never given, so that every batch has the same size.
            version: the learner's, which decides what is too old.
            timeout_s: how long to wait for them.

        Raises:
            QueueClosed: see :meth:`close`.
            FerryError: the queue can never hold so many.
        """
        if not 1 <= count <= self.capacity:
            raise FerryError(f"cannot take {count} rollouts from a queue of {self.capacity}")
        with self._changed:
            self._changed.wait_for(lambda: self._ready(count, version), timeout_s)
            if self._closed:
                raise QueueClosed("the rollout queue was closed")
            if not self._ready(count, version):
                return []
            taken = [self._admit(self._held.popleft(), version) for _ in range(count)]
            over = sum(admitted.lag > self.max_staleness for admitted in taken)
            self._count(taken=count, over_bound=over)
            return taken

    def close(self) -> None:
        """Wake whoever waits, now and later, with :class:`QueueClosed`."""
        with self._changed:
            self._closed = True
            self._held.clear()
            self._changed.notify_all()

    def _ready(self, count: int, version: int) -> bool:
        """Whether ``count`` rollouts are there; those too old are dropped on the way."""
        if self.over_bound == "drop":
            fresh = [r for r in self._held if version - r.policy_version <= self.max_staleness]
            self._count(stale=len(self._held) - len(fresh))
            self._held = deque(fresh)
        return self._closed or len(self._held) >= count

    def _admit(self, rollout: Rollout, version: int) -> Admitted:
        lag = version - rollout.policy_version
        # 1 at the bound and inside it, 1/2, 1/3, ... beyond
        return Admitted(rollout, lag, weight=1.0 / (1 + max(0, lag - self.max_staleness)))

    def _count(self, **more: int) -> None:
        now = {name: getattr(self._counts, name) + value for name, value in more.items()}
        self._counts = replace(self._counts, **now)


@dataclass(frozen=True)
class LagStats:
    """Lags of the newest rollouts that the learner used [versions]."""

    mean: float
    p95: float
    largest: float

    @staticmethod
    def of(lags: Sequence[int]) -> LagStats:
        """Mean, 95th percentile (the smallest lag that 95 % do not exceed) and largest."""
        if not lags:
            return LagStats(0.0, 0.0, 0.0)
        values = np.asarray(lags, dtype=np.float64)
        p95 = np.quantile(values, 0.95, method="inverted_cdf")
        return LagStats(float(values.mean()), float(p95), float(values.max()))
