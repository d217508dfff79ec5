"""When to tick by the stamps of states, and how late, how long, how often things were."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


class Window:
    """The newest ``size`` durations.

    Args:
        size: how many are kept; 2000 are 10 s at 200 Hz, and p99 is then the 20th largest.
    """

    def __init__(self, size: int = 2000) -> None:
        self._values: NDArray[np.float64] = np.zeros(size)
        self.count = 0

    def add(self, seconds: float) -> None:
        """Take one duration [s]."""
        self._values[self.count % self._values.shape[0]] = seconds
        self.count += 1

    def percentile(self, percent: float) -> float:
        """One of :meth:`percentiles` [s]."""
        return self.percentiles(percent)[0]

    def percentiles(self, *percents: float) -> list[float]:
        """Percentiles of the durations kept [s], each as ``numpy.percentile``; NaN of none.

        That function takes four times as long where caches are cold, and is asked once a second
        between the ticks of a controller.
        """
        kept = self._values[: self.count]
        if not kept.size:
            return [float("nan")] * len(percents)
        ordered = np.sort(kept)
        out: list[float] = []
        for percent in percents:
            # linear between neighbours: x[i] + f (x[i+1] - x[i]), i + f = p (n - 1)
            place = percent / 100.0 * (ordered.shape[0] - 1)
            index = int(place)
            low = float(ordered[index])
            high = float(ordered[min(index + 1, ordered.shape[0] - 1)])
            out.append(low + (place - index) * (high - low))
        return out

    def milliseconds(self, name: str) -> dict[str, float]:
        """``{name}_p50_ms`` and ``{name}_p99_ms``, ready for a diagnostics message."""
        half, most = self.percentiles(50.0, 99.0)
        return {f"{name}_p50_ms": 1e3 * half, f"{name}_p99_ms": 1e3 * most}


class Histogram:
    """All durations since it was made, in bins each 1 % longer than the one before.

    A percentile is the upper edge of its bin: never too small, and too large by 1 % at most. Memory
    is the same however many there are.
    """

    #: Edges of the bins [s]: from a tenth of a microsecond, which holds all below it, to 1000 s.
    SHORTEST_S, LONGEST_S, RATIO = 1e-7, 1e3, 1.01
    _BINS = math.ceil(math.log(LONGEST_S / SHORTEST_S) / math.log(RATIO)) + 1

    def __init__(self) -> None:
        self._counts = [0] * self._BINS
        self.count = 0
        self.longest_s = 0.0

    def add(self, seconds: float) -> None:
        """Take one duration [s]; none is negative."""
        place = 0
        if seconds > self.SHORTEST_S:
            steps = math.log(seconds / self.SHORTEST_S) / math.log(self.RATIO)
            place = min(math.ceil(steps), self._BINS - 1)
        self._counts[place] += 1
        self.count += 1
        self.longest_s = max(self.longest_s, seconds)

    def percentile(self, percent: float) -> float:
        """The shortest edge that so many percent are not longer than [s]; NaN of none."""
        if not self.count:
            return float("nan")
        wanted = max(1, math.ceil(percent / 100.0 * self.count))
        reached = np.searchsorted(np.cumsum(self._counts), wanted)
        return min(self.SHORTEST_S * self.RATIO ** float(reached), self.longest_s)

    def milliseconds(self, name: str) -> dict[str, float]:
        """``{name}_p50_ms``, ``{name}_p99_ms`` and ``{name}_max_ms``."""
        found = {f"{name}_p{p}_ms": 1e3 * self.percentile(p) for p in (50, 99)}
        return {**found, f"{name}_max_ms": 1e3 * self.longest_s}


class Rate:
    """How often in a second something counted happens, between two looks at the count.

    Args:
        clock: seconds of a clock that never goes back.
        shortest_s: looks that follow sooner repeat the rate before, which few events would make
            a number without meaning [s].
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, shortest_s: float = 0.5
    ) -> None:
        self._clock, self._shortest_s = clock, shortest_s
        self._looked = (clock(), 0)
        self._rate = 0.0

    def of(self, count: int) -> float:
        """The rate [1/s], for the count of now."""
        now, (before, counted) = self._clock(), self._looked
        if now - before >= self._shortest_s:
            self._rate, self._looked = (count - counted) / (now - before), (now, count)
        return self._rate


class TickGrid:
    """Which states a controller answers: the first at or after each control period.

    The grid is laid by the first stamp and kept, so that the rate does not drift by the distance
    between states. A stamp that jumps over a period or goes back lays a new one.

    Args:
        period_s: control period [s].
    """

    def __init__(self, period_s: float) -> None:
        self._period_ns = round(period_s * 1e9)
        self._next_ns: int | None = None
        self._last_ns = 0

    def due(self, stamp_ns: int) -> bool:
        """Whether the state with this stamp is answered; call once for every state."""
        step_ns, self._last_ns = stamp_ns - self._last_ns, stamp_ns
        if self._next_ns is None or step_ns < 0:
            self._next_ns = stamp_ns + self._period_ns
            return True
        # Where states come no faster than ticks, their jitter must not skip every other one:
        # a state that is early by less than half the distance to the next counts as on time.
        early_ns = min(step_ns // 2, self._period_ns // 20)
        if step_ns == 0 or stamp_ns + early_ns < self._next_ns:
            return False
        self._next_ns += self._period_ns
        if stamp_ns >= self._next_ns:
            self._next_ns = stamp_ns + self._period_ns
        return True
