"""Pushes: the base's velocity changes at once, as if something had bumped into the robot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from sim.distributions import Distribution, Sampler
from sim.engine import Array, Engine, Ids

State = dict[str, NDArray[np.generic]]


class Pushes:
    """Pushes N worlds now and then, each at times of its own.

    Args:
        law: velocity along x and along y of the world, drawn apart [m/s].
        interval_s: shortest and longest time between two pushes, and before the first [s].
        engine: the worlds.
        control_dt_s: control period [s].

    Raises:
        FerryError: the base is fixed.
    """

    def __init__(
        self,
        law: Distribution,
        interval_s: tuple[float, float],
        engine: Engine,
        *,
        control_dt_s: float,
    ) -> None:
        if engine.robot.base == "fixed":
            raise FerryError(
                f"random term 'push' moves the base of {engine.robot.name!r}, which is fixed: it "
                f"would change nothing; remove it from `randomize`"
            )
        self._engine = engine
        self._velocity = Sampler([(law, 2)])
        self._interval_s = interval_s
        self._dt = control_dt_s
        self._left: NDArray[np.int64] = np.zeros(engine.num, dtype=np.int64)
        self._age: NDArray[np.int64] = np.zeros(engine.num, dtype=np.int64)
        # Flat (time, vx, vy) of the pushes of the present episode.
        self._given: list[list[float]] = [[] for _ in range(engine.num)]

    def begin(self, rows: Ids, rngs: Sequence[np.random.Generator]) -> None:
        """Begin an episode in worlds ``rows``, which have the generators ``rngs``."""
        self._age[rows] = 0
        for row, rng in zip(rows.tolist(), rngs, strict=True):
            self._given[row] = []
            self._left[row] = self._wait(rng)

    def _wait(self, rng: np.random.Generator) -> int:
        low, high = self._interval_s
        return max(1, round((low + (high - low) * rng.random()) / self._dt))

    def step(self, rngs: Sequence[np.random.Generator]) -> None:
        """Push the worlds whose time has come; before every control step.

        Args:
            rngs: generators of all N worlds.
        """
        now = self._left == 0
        if np.count_nonzero(now):
            due = np.flatnonzero(now)
            velocity = np.zeros((due.size, 3))
            for push, row in zip(velocity, due.tolist(), strict=True):
                push[:2] = self._velocity.draw(rngs[row])
                self._left[row] = self._wait(rngs[row])
                self._given[row] += [float(self._age[row]) * self._dt, *push[:2].tolist()]
            self._engine.add_velocity(due, velocity, np.zeros_like(velocity))
        self._left -= 1
        self._age += 1

    def of(self, row: int) -> list[float]:
        """Time since the episode began [s], vx and vy [m/s] of every push so far, in one list.

        Not copied: the episode's later pushes are added to it.
        """
        return self._given[row]

    def state_dict(self) -> State:
        """Timers and pushes so far, copied."""
        given = [
            [float(row), *flat[i : i + 3]]
            for row, flat in enumerate(self._given)
            for i in range(0, len(flat), 3)
        ]
        return {
            "push_left": self._left.copy(),
            "push_age": self._age.copy(),
            "push_given": np.array(given, dtype=np.float64).reshape(-1, 4),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what :meth:`state_dict` gave."""
        self._left[...] = state["push_left"]
        self._age[...] = state["push_age"]
        self._given = [[] for _ in self._given]
        given: Array = np.asarray(state["push_given"], dtype=np.float64)
        for row, *push in given.tolist():
            self._given[int(row)] += push
