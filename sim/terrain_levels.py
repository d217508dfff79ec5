"""On which tile of the terrain episodes begin, and how difficulty follows success.

Each world has a level of its own on every tile. An episode that went well brings it to the next
one, a fall or a poor episode back. A world that passed the last level meets levels at random from
then on, so that easy ones are not forgotten (Rudin et al. 2022, "Learning to walk in minutes",
section 3.2).

Where many actors have worlds, each world still decides on its own level: only its own episodes say
anything about it, and nobody has to be asked. What a run must not lose with an actor is how far its
worlds are. So every report of an actor is a picture of all its worlds, how many are at which level
of which tile, and one place keeps the newest :data:`PICTURES` of any actors. Pictures, and not
episodes that ended: worlds that fall at once would be in the reports more often than those that
walk on. The worlds of whoever is started later, in place of a dead actor or after a resume, begin
at levels drawn from these pictures, each tile by itself: the policy is the same in all worlds, so
what one is good at says hardly more about its next tile than what the others are good at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from real.domain import DomainSample
from real.errors import FerryError
from sim.curriculum import measured
from sim.engine import Array, Ids
from sim.state import State
from sim.terrain import FOOTPRINT_M, Terrain

Mask = NDArray[np.bool_]

#: What a DomainSample keeps of where an episode began, under this name: tile, level, and where on
#: the tile, x and y from its middle [m].
NAME, SIZE = "terrain", 4
#: Reports that say at which levels the worlds of a run are. More than a few, since one actor's
#: worlds are a small sample; not many more, since levels move on.
PICTURES = 16


class Levels:
    """Tiles and levels of N worlds.

    Args:
        terrain: K tiles of L levels.
        rngs: one generator for each of the N.

    Attributes:
        place: ``[N, 4]`` where the present episodes began, see :data:`NAME`.
        level: ``[N, K]`` level that a world meets next on each tile; L once it passed the last.
    """

    def __init__(self, terrain: Terrain, rngs: Sequence[np.random.Generator]) -> None:
        self._terrain, self._rule, self._rngs = terrain, terrain.config.curriculum, rngs
        num = len(rngs)
        first = 0 if self._rule is None else self._rule.start
        self.place: Array = np.zeros((num, SIZE))
        self.level: NDArray[np.int64] = np.full((num, len(terrain.names)), first, dtype=np.int64)
        self._counts: Mask = np.ones(num, dtype=bool)
        # [P, K, L + 1] of the run; None while these worlds are all there are.
        self._pictures: NDArray[np.int64] | None = None
        self._follows = self._new = False

    def draw(self, rows: Ids, again: Mapping[int, DomainSample]) -> None:
        """Begin episodes in worlds ``rows``; their generators are asked as often for a replay.

        Args:
            rows: n worlds.
            again: world -> the episode that it shall live through again.

        Raises:
            FerryError: a sample is of another terrain.
        """
        terrain = self._terrain
        chance = np.stack([self._rngs[row].random(SIZE) for row in rows.tolist()])
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
        if not self._follows:
            self._pictures = None  # what they were told is out of date
        return following

    # -------------------------------------------------------------- many actors, see sim.shared

    @property
    def shared(self) -> Levels | None:
        """Itself, where levels follow success; else worlds have nothing in common here."""
        return None if self._rule is None else self

    def follow(self) -> None:
        """See :class:`sim.shared.SharedPart`. The worlds begin where the run is when told."""
        self._follows = self._new = True

    def report(self) -> State:
        """See :class:`sim.shared.SharedPart`: ``worlds [1, K, L + 1]``, how many are where now."""
        return {"worlds": self._picture()} if self._follows else {}

    def absorb(self, report: State) -> None:
        """See :class:`sim.shared.SharedPart`: the newest pictures are kept, whoever's they are."""
        found = report["worlds"].astype(np.int64)
        known = found if self._pictures is None else np.concatenate([self._pictures, found])
        self._pictures = known[-PICTURES:]

    def shared_state(self) -> State:
        """See :class:`sim.shared.SharedPart`: the pictures, oldest first."""
        known = self._picture() if self._pictures is None else self._pictures.copy()
        return {"worlds": known}

    def load_shared_state(self, state: State) -> None:
        """See :class:`sim.shared.SharedPart`. Worlds that follow and are new are drawn levels.

        All others keep theirs, which say more about them.
        """
        found, expected = state.get("worlds"), (len(self._terrain.names), self._terrain.levels + 1)
        if found is None or found.shape[1:] != expected or not len(found):
            raise FerryError(
                f"the state has worlds at levels {None if found is None else found.shape[1:]}; "
                f"expected {expected} (tiles, levels and passed); was the table `terrain` changed?"
            )
        if self._new and not np.array_equal(found, self._picture()):
            self._begin_at(found.sum(axis=0).astype(np.int64))
        self._pictures, self._new = found.astype(np.int64), False

    def _begin_at(self, worlds: NDArray[np.int64]) -> None:
        """Draw levels of all worlds as they are distributed in ``worlds [K, L + 1]``."""
        below = worlds.cumsum(axis=1)  # [K, L + 1] worlds up to each level
        for row, rng in enumerate(self._rngs):
            # The one of all worlds whose level it takes, of each tile; in whole numbers.
            which = (rng.random(len(below)) * below[:, -1]).astype(np.int64)
            self.level[row] = (which[:, None] >= below).sum(axis=1)

    def _picture(self) -> NDArray[np.int64]:
        reached = np.arange(self._terrain.levels + 1)
        return (self.level[:, :, None] == reached).sum(axis=0, dtype=np.int64)[None]

    def measures(self) -> dict[str, float]:
        """See :class:`sim.shared.SharedPart`: mean level of each tile, L where it is passed."""
        worlds = self.shared_state()["worlds"].sum(axis=0).astype(np.float64)
        level = worlds @ np.arange(worlds.shape[1]) / worlds.sum(axis=1)
        each = dict(zip(self._terrain.names, level.tolist(), strict=True))
        return {"mean": float(level.mean()), **each}

    # -------------------------------------------------------------- keeping

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
        self._pictures = None
