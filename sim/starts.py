"""Where episodes begin: about the default pose, and on which tile of the terrain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from real.domain import DomainSample
from real.errors import FerryError
from real.spec import RobotSpec
from sim.engine import Array, Ids, InitialState, WorldState
from sim.task import StartConfig, draw_start, position_limits
from sim.terrain import FOOTPRINT_M, Terrain
from sim.terrain_levels import NAME, SIZE, Levels

State = dict[str, NDArray[np.generic]]
Mask = NDArray[np.bool_]


class Starts:
    """Draws the beginnings of episodes of N worlds.

    Args:
        config: how far initial states are spread.
        robot: in every world.
        rngs: one generator per world.
        terrain: what they stand on; a plane if None.

    Attributes:
        levels: tiles and levels of the worlds; None on a plane.
    """

    def __init__(
        self,
        config: StartConfig,
        robot: RobotSpec,
        rngs: Sequence[np.random.Generator],
        *,
        terrain: Terrain | None,
    ) -> None:
        self._config, self._robot, self._rngs = config, robot, rngs
        self._terrain = terrain
        self._limits = position_limits(robot)
        self.levels: Levels | None = None if terrain is None else Levels(terrain, rngs)

    def draw(self, rows: Ids, again: Mapping[int, DomainSample] | None = None) -> InitialState:
        """Where worlds ``rows`` begin.

        On terrain the base is as much higher as the highest ground within
        :data:`~sim.terrain.FOOTPRINT_M`, so that no foot starts in a step or a stone.

        Args:
            rows: n worlds.
            again: world -> the episode that it shall live through again.

        Raises:
            FerryError: a sample is of another terrain.
        """
        again = {} if again is None else again
        rngs = [self._rngs[row] for row in rows.tolist()]
        if self._terrain is None or self.levels is None:
            if any(NAME in sample.values for sample in again.values()):
                raise FerryError("the sample is of a task on terrain; this one is on a plane")
            return draw_start(self._config, self._robot, rngs, limits=self._limits)
        self.levels.draw(rows, again)
        start = draw_start(self._config, self._robot, rngs, limits=self._limits)
        xy = self.levels.centre()[rows] + self.levels.place[rows, 2:]
        height = self._terrain.field.highest(xy, within_m=FOOTPRINT_M)
        position = start.position_w + np.concatenate([xy, height[:, None]], axis=1)
        return replace(start, position_w=position)

    def left(self, world: WorldState) -> Mask | None:
        """``[N]`` whose base left the tile that its episode began on; None on a plane."""
        if self._terrain is None or self.levels is None:
            return None
        return self._terrain.outside(world.position_w[:, :2], self.levels.centre())

    def learn(self, rows: Ids, episode: dict[str, NDArray[np.generic]], could_s: Array) -> None:
        """Episodes of worlds ``rows`` ended; see :meth:`sim.terrain_levels.Levels.learn`.

        Adds ``terrain_level`` to what is known of the episodes.
        """
        if self.levels is not None and rows.size:
            episode["terrain_level"] = self.levels.learn(rows, episode, could_s)

    @property
    def shared(self) -> Levels | None:
        """Levels that the worlds of all actors have in common; None where none follow success."""
        return None if self.levels is None else self.levels.shared

    def noted(self, rows: Ids) -> Array:
        """``[n, 4]`` what a DomainSample keeps of the starts, copied; ``[n, 0]`` on a plane."""
        return np.empty((rows.size, 0)) if self.levels is None else self.levels.place[rows]

    def columns(self, start: int) -> dict[str, slice]:
        """Where that stands in an episode's draws, after ``start`` others."""
        return {} if self.levels is None else {NAME: slice(start, start + SIZE)}

    def state_dict(self) -> State:
        """Tiles and levels, copied; nothing on a plane."""
        return {} if self.levels is None else self.levels.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Restore what :meth:`state_dict` gave."""
        if self.levels is not None:
            self.levels.load_state_dict(state)
