"""On which tile of the terrain episodes begin, and how difficulty follows success.

Each world has a level of its own on every tile. An episode that went well brings it to the next
one, a fall or a poor episode back. A world that passed the last level meets levels at random from
then on, so that easy ones are not forgotten (Rudin et al. 2022, "Learning to walk in minutes",
section 3.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from real.domain import DomainSample
from real.errors import FerryError
from sim.curriculum import measured
from sim.engine import Array, Ids
from sim.terrain import FOOTPRINT_M, Terrain

State = dict[str, NDArray[np.generic]]
Mask = NDArray[np.bool_]

#: What a DomainSample keeps of where an episode began, under this name: tile, level, and where on
#: the tile, x and y from its middle [m].
NAME, SIZE = "terrain", 4


class Levels:
    """Tiles and levels of N worlds.

    Args:
        terrain: K tiles of L levels.
        num: N.

    Attributes:
        place: ``[N, 4]`` where the present episodes began, see :data:`NAME`.
        level: ``[N, K]`` level that a world meets next on each tile; L once it passed the last.
    """

    def __init__(self, terrain: Terrain, num: int) -> None:
        self._terrain, self._rule = terrain, terrain.config.curriculum
        first = 0 if self._rule is None else self._rule.start
        self.place: Array = np.zeros((num, SIZE))
        self.level: NDArray[np.int64] = np.full((num, len(terrain.names)), first, dtype=np.int64)
        self._counts: Mask = np.ones(num, dtype=bool)

    def draw(
        self,
        rows: Ids,
        rngs: Sequence[np.random.Generator],
        again: Mapping[int, DomainSample],
    ) -> None:
        """Begin episodes in worlds ``rows``.

        Args:
            rows: n worlds.
            rngs: one generator for each of the n; they are asked as often for a replay.
            again: world -> the episode that it shall live through again.

        Raises:
            FerryError: a sample is of another terrain.
        """
        terrain = self._terrain
        chance = np.stack([rng.random(SIZE) for rng in rngs])
        tile = (chance[:, 0] * len(terrain.names)).astype(np.int64)
        anywhere = (chance[:, 1] * terrain.levels).astype(np.int64)
        level = anywhere
        if self._rule is not None:
            own = self.level[rows, tile]
            level = np.where(own < terrain.levels, own, anywhere)
        spread = 0.5 * terrain.config.platform_m - FOOTPRINT_M
        self.place[rows, 0], self.place[rows, 1] = tile, level
        self.place[rows, 2:] = spread * (2.0 * chance[:, 2:] - 1.0)
        self._counts[rows] = True
        for row, sample in again.items():
            self.place[row] = self._kept(sample)
            self._counts[row] = False  # a replay teaches nothing

    def _kept(self, sample: DomainSample) -> list[float]:
        found = sample.values.get(NAME)
        tiles, levels = len(self._terrain.names), self._terrain.levels
        if found is None or len(found) != SIZE or not (found[0] < tiles and found[1] < levels):
            raise FerryError(
                f"the sample begins on the terrain at {found}; expected (tile, level, x, y) on "
                f"{tiles} tiles of {levels} levels; was the table `terrain` changed?"
            )
        return found

    def centre(self) -> Array:
        """``[N, 2]`` middle of the tile that each world is on [m]."""
        tile, level = self.place[:, :2].astype(np.int64).T
        return self._terrain.centre(tile, level)

    def learn(
        self, rows: Ids, episode: Mapping[str, NDArray[np.generic]], could_s: Array
    ) -> NDArray[np.int64]:
        """Episodes of worlds ``rows`` ended; their levels may change.

        Args:
            rows: n worlds.
            episode: what the episodes were, see :meth:`sim.episodes.Episodes.close`.
            could_s: ``[n]`` how long they could have lasted [s].

        Returns:
            ``[n]`` the level that each meets next on the tile it was on.
        """
        tile, played = self.place[rows, :2].astype(np.int64).T
        if self._rule is None:
            return played
        given = measured(self._rule.measure, episode, section="terrain.curriculum") / could_s
        failed = np.zeros(rows.size, dtype=bool)
        for name in ("fallen", "strayed", "diverged"):
            failed |= np.asarray(episode[name], dtype=bool)
        # Written so that a broken number counts as poor.
        well = (given >= self._rule.up_at) & ~failed
        poor = ~(given > self._rule.down_at) | failed
        own = self.level[rows, tile]
        # Who passed everything stays so until a level is too hard.
        up = np.where(own < self._terrain.levels, played + 1, own)
        following = np.where(well, up, np.where(poor, np.maximum(played - 1, 0), own))
        following = np.where(self._counts[rows], following, own)
        self.level[rows, tile] = following
        return following

    def state_dict(self) -> State:
        """Levels and where episodes began, copied."""
        kept = {"place": self.place, "level": self.level, "counts": self._counts}
        return {f"terrain.{name}": values.copy() for name, values in kept.items()}

    def load_state_dict(self, state: State) -> None:
        """Restore what :meth:`state_dict` gave.

        Raises:
            FerryError: the state is of another terrain.
        """
        found = state.get("terrain.level")
        if found is None or found.shape != self.level.shape:
            raise FerryError(
                f"the state has levels {None if found is None else found.shape}; expected "
                f"{self.level.shape} (worlds, tiles); was the table `terrain` changed?"
            )
        self.level[...] = found
        self.place[...] = state["terrain.place"]
        self._counts[...] = state["terrain.counts"]
