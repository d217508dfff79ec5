"""A way that messages take in a rehearsal: they come late, unevenly, or not at all."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from real.errors import FerryError

T = TypeVar("T")


@dataclass(frozen=True)
class Disturbance:
    """What happens to each message on its way.

    Attributes:
        latency_s: mean delay [s].
        jitter_s: the delay is uniform within this of the mean, and never below zero [s].
        loss: probability of a message not to arrive at all.
    """

    latency_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("latency", self.latency_s), ("jitter", self.jitter_s)):
            if not 0.0 <= value <= 1.0:
                raise FerryError(f"{name} is {value} s; expected 0 to 1 s")
        if not 0.0 <= self.loss < 1.0:
            raise FerryError(f"loss is {self.loss}; expected a share from 0 to below 1")

    @property
    def any(self) -> bool:
        """Whether it disturbs at all."""
        return self != Disturbance()


class Channel(Generic[T]):
    """Takes messages at one end and gives them at the other, in order, as DDS does.

    Args:
        disturbance: of every message.
        rng: where chance comes from.
    """

    def __init__(self, disturbance: Disturbance, rng: np.random.Generator) -> None:
        self._disturbance = disturbance
        self._rng = rng
        self._waiting: deque[tuple[int, T]] = deque()
        self._last_ns = 0
        self.lost = 0

    def send(self, now_ns: int, message: T) -> None:
        """Send at ``now_ns``."""
        how = self._disturbance
        # Both numbers are drawn for every message, so that losing one moves no other.
        chance, spread = self._rng.random(2).tolist()
        if chance < how.loss:
            self.lost += 1
            return
        delay_s = max(0.0, how.latency_s + (2.0 * spread - 1.0) * how.jitter_s)
        # One that is faster than its predecessor waits for it.
        self._last_ns = max(self._last_ns, now_ns + round(delay_s * 1e9))
        self._waiting.append((self._last_ns, message))

    def arrived(self, now_ns: int) -> list[T]:
        """All that has come by ``now_ns`` and was not given before, oldest first."""
        out: list[T] = []
        while self._waiting and self._waiting[0][0] <= now_ns:
            out.append(self._waiting.popleft()[1])
        return out

    def clear(self) -> None:
        """Forget what is still on its way."""
        self._waiting.clear()
