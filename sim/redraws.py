"""When random terms are drawn anew within an episode, each world at times of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.engine import Ids

State = dict[str, NDArray[np.generic]]


class Redraws:
    """Timers of K random terms in N worlds.

    Args:
        intervals_s: shortest and longest time between two draws of each term [s].
        num: N.
        control_dt_s: control period [s].
    """

    def __init__(
        self, intervals_s: Sequence[tuple[float, float]], num: int, *, control_dt_s: float
    ) -> None:
        self._intervals = intervals_s
        self._dt = control_dt_s
        self._left: NDArray[np.int64] = np.zeros((num, len(intervals_s)), dtype=np.int64)

    def begin(self, rows: Ids, rngs: Sequence[np.random.Generator]) -> None:
        """Begin an episode in worlds ``rows``, which have the generators ``rngs``."""
        for row, rng in zip(rows.tolist(), rngs, strict=True):
            self._left[row] = [self._wait(term, rng) for term in range(len(self._intervals))]

    def _wait(self, term: int, rng: np.random.Generator) -> int:
        low, high = self._intervals[term]
        return max(1, round((low + (high - low) * rng.random()) / self._dt))

    def due(self, rngs: Sequence[np.random.Generator]) -> list[tuple[int, int]]:
        """(world, term) whose time has come; before every control step, once.

        Args:
            rngs: generators of all N worlds, from which the next waits are drawn.
        """
        found: list[tuple[int, int]] = [(int(r), int(t)) for r, t in np.argwhere(self._left == 0)]
        for row, term in found:
            self._left[row, term] = self._wait(term, rngs[row])
        self._left -= 1
        return found

    def state_dict(self) -> State:
        """Timers, copied."""
        return {"redraw_left": self._left.copy()}

    def load_state_dict(self, state: State) -> None:
        """Restore what :meth:`state_dict` gave."""
        self._left[...] = state["redraw_left"]
