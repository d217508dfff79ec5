"""Which weights the actors of a modelled run have at which time; see :mod:`training.plan_model`."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple


class Acted(NamedTuple):
    """The versions that a rollout was made with.

    Attributes:
        oldest: of its first step, which is what a rollout is stamped with.
        mean: over its steps.
    """

    oldest: int
    mean: float


class Weights:
    """Versions that came to where actors find them, and when.

    Args:
        remembered: so many at least are known; of a time before, the oldest of these.
    """

    def __init__(self, remembered: int) -> None:
        self._remembered = remembered
        self._times: list[float] = [0.0]
        self._versions: list[int] = [0]

    @property
    def newest(self) -> int:
        """The version that an actor finds now."""
        return self._versions[-1]

    @property
    def recent(self) -> list[int]:
        """Versions in the order in which they came, the newest last."""
        return self._versions[-self._remembered :]

    def come(self, version: int, at_s: float) -> None:
        """A version came at this time [s], which is none before the last one's."""
        self._times.append(at_s)
        self._versions.append(version)
        if len(self._times) > 2 * self._remembered:
            del self._times[: -self._remembered], self._versions[: -self._remembered]

    def acted(
        self, begin: int, *, begin_s: float, end_s: float, steps: int, every: int | None
    ) -> Acted:
        """Versions of a rollout that ends now, as :class:`training.actor.Refresh` takes them up.

        Args:
            begin: version that it began with.
            begin_s: when it began [s].
            end_s: when it ended; its steps are of equal length [s].
            steps: T.
            every: steps between two looks for newer weights; None for no look.
        """
        looks = [] if every is None else range(every, steps, every)
        total, version, since = 0, begin, 0
        for step in looks:
            total += version * (step - since)
            at_s = begin_s + (end_s - begin_s) * step / steps
            version = max(version, self._at(at_s))
            since = step
        total += version * (steps - since)
        return Acted(begin, total / steps)

    def _at(self, at_s: float) -> int:
        return self._versions[max(0, bisect_right(self._times, at_s) - 1)]
