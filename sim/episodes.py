"""Where each world is in its episode, and what the episode has been worth so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from sim.terminations import Conditions

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Ids = NDArray[np.intp]
State = dict[str, NDArray[np.generic]]


class Episodes:
    """Clocks, sums and counters of N worlds.

    Args:
        num: N.
        limit: steps after which an episode is truncated, >= 1.
        parts: names of the K reward parts.

    Attributes:
        limit: steps after which an episode is truncated.
        clock: ``[N]`` steps towards the limit.
        length: ``[N]`` steps lived; behind the clock in an episode that began in its middle.
        counters: totals since construction: ``steps`` of all worlds together, ``episodes`` that
            ended, ``diverged`` worlds.
    """

    def __init__(self, num: int, *, limit: int, parts: tuple[str, ...]) -> None:
        self.limit = limit
        self.clock: NDArray[np.int64] = np.zeros(num, dtype=np.int64)
        self.counters: dict[str, int] = {"steps": 0, "episodes": 0, "diverged": 0}
        self._names = parts
        self.length: NDArray[np.int64] = np.zeros(num, dtype=np.int64)
        self._sums: Array = np.zeros((len(parts), num))
        self._left: Mask | None = None
        self._nothing: State | None = None  # what `close` says of no worlds

    def reset(self, rows: Ids) -> None:
        """Begin new episodes in worlds ``rows``."""
        self.clock[rows] = 0
        self.length[rows] = 0
        self._sums[:, rows] = 0.0

    def spread(self, rngs: Sequence[np.random.Generator]) -> None:
        """Let every world's clock stand anywhere, so that their first time-outs come one by one."""
        self.clock[:] = [int(rng.integers(self.limit)) for rng in rngs]

    def tick(self) -> None:
        """One control step has passed."""
        self.clock += 1
        self.length += 1
        self.counters["steps"] += self.clock.shape[0]

    def add(self, parts: Array) -> None:
        """Add the reward parts ``[K, N]`` of a step."""
        self._sums += parts

    def over(self, left: Mask | None = None, terminated: Mask | None = None) -> Mask:
        """``[N]`` whether the time limit is reached, or the world's part of the terrain left.

        Args:
            left: ``[N]``; None where there is none to leave.
            terminated: ``[N]``; who ends by falling did not end by leaving. None for nobody.
        """
        left = left if left is None or terminated is None else left & ~terminated
        self._left = left
        late = self.clock >= self.limit
        return late if left is None else late | left

    def could_last(self, rows: Ids) -> Array:
        """``[n]`` steps from where episodes of worlds ``rows`` began to the time limit.

        To the last one of those that left their part of the terrain: there was no more of it.
        """
        could = (self.limit - (self.clock[rows] - self.length[rows])).astype(np.float64)
        return could if self._left is None else np.where(self._left[rows], self.length[rows], could)

    def close(self, ended: Ids, conditions: Conditions) -> dict[str, NDArray[np.generic]]:
        """Count the episodes that ended and say what they were, ``[n]`` each.

        Returns:
            ``return``, ``length`` (steps lived), ``fallen``, ``strayed``, ``body_contact``,
            ``diverged``, and ``reward/<part>``, the sum of each part; on terrain also ``left``,
            whether the world's part of it was left.
        """
        if not ended.size and self._nothing is not None:
            return dict(self._nothing)  # as in most steps
        sums = self._sums[:, ended]
        diverged = conditions.diverged[ended]
        self.counters["episodes"] += ended.size
        self.counters["diverged"] += int(diverged.sum())
        out: dict[str, NDArray[np.generic]] = {
            "return": sums.sum(axis=0),
            "length": self.length[ended],
            "fallen": conditions.fallen[ended],
            "strayed": conditions.strayed[ended],
            "body_contact": conditions.body_contact[ended],
            "diverged": diverged,
            **({} if self._left is None else {"left": self._left[ended]}),
            **{f"reward/{k}": v for k, v in zip(self._names, sums, strict=True)},
        }
        if not ended.size:
            self._nothing = out
        return dict(out)

    def state_dict(self) -> State:
        """Clocks, sums and counters, copied."""
        return {
            "clock": self.clock.copy(),
            "length": self.length.copy(),
            "sums": self._sums.copy(),
            "counters": np.array(list(self.counters.values()), dtype=np.int64),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what :meth:`state_dict` gave.

        Raises:
            FerryError: the state is of another number of worlds or reward terms.
        """
        if state["sums"].shape != self._sums.shape:
            found, expected = state["sums"].shape, self._sums.shape
            raise FerryError(
                f"env state has {found[0]} reward terms in {found[1]} worlds; expected "
                f"{expected[0]} terms in {expected[1]} worlds"
            )
        self.clock[...] = state["clock"]
        self.length[...] = state["length"]
        self._sums[...] = state["sums"]
        values = [int(value) for value in state["counters"].tolist()]
        self.counters.update(zip(self.counters, values, strict=True))
