"""Where every episode came from: what its world drew, and where its random streams stood.

With the streams put back, an episode draws again all it drew: start, commands, random terms, pushes
and sensor noise, in whichever world and beside whichever others it runs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from real.domain import DomainDraws, DomainSample
from real.errors import FerryError
from sim.episodes import Episodes
from sim.randomize import Randomizer
from sim.starts import Starts
from sim.streams import PURPOSES, Generators, pack_streams, unpack_streams

Ids = NDArray[np.intp]
State = dict[str, NDArray[np.generic]]


class Origins:
    """Keeps the beginnings of the present episodes of N worlds.

    Args:
        rngs: purpose -> one generator per world.
        randomizer: what the worlds drew.
        episodes: how far they are.
        starts: where they began.
    """

    def __init__(
        self,
        rngs: Mapping[str, Generators],
        *,
        randomizer: Randomizer,
        episodes: Episodes,
        starts: Starts,
    ) -> None:
        self._rngs = rngs
        self._starts = starts
        self._randomizer = randomizer
        self._episodes = episodes
        num = episodes.clock.size
        self._streams: NDArray[np.uint64] = np.zeros((num, len(PURPOSES), 6), dtype=np.uint64)

    def begin(self, rows: Ids, again: Mapping[int, DomainSample]) -> None:
        """Begin episodes in worlds ``rows``; to be called before anything of them is drawn.

        Args:
            rows: n worlds.
            again: world -> the episode whose streams it shall go through again.

        Raises:
            FerryError: a sample is of other streams, or of a world that does not begin.
        """
        for row, sample in again.items():
            if row not in rows:
                raise FerryError(f"there is no world {row} to replay in; there are {rows.size}")
            if not sample.streams:
                continue
            packed = np.array(sample.streams, dtype=np.uint64)
            if packed.shape != self._streams.shape[1:]:
                raise FerryError(
                    f"the sample has random streams {packed.shape}; expected "
                    f"{self._streams.shape[1:]}, those for {', '.join(PURPOSES)}"
                )
            for purpose, state in zip(PURPOSES, packed, strict=True):
                unpack_streams([self._rngs[purpose][row]], state[None])
        every = [self._rngs[purpose][row] for row in rows.tolist() for purpose in PURPOSES]
        self._streams[rows] = pack_streams(every).reshape(rows.size, len(PURPOSES), 6)

    def drawn(self, rows: Ids) -> DomainDraws:
        """What the present episodes of worlds ``rows`` drew, and how old they are.

        All is copied but the pushes, to which the env adds those still to come.
        """
        age = self._episodes.length[rows]
        draws, pushes = self._randomizer.drawn(rows)
        return DomainDraws(
            columns={**self._randomizer.columns, **self._starts.columns(draws.shape[1])},
            seed=self._randomizer.seed_of(int(rows[0])) if rows.size else -1,
            world=rows.astype(np.int64),
            step=np.zeros(rows.size, dtype=np.int64),
            age=age,
            clock=self._episodes.clock[rows] - age,
            draws=np.concatenate([draws, self._starts.noted(rows)], axis=1),
            streams=self._streams[rows],
            pushes=pushes,
        )

    def state_dict(self) -> State:
        """Where the streams stood, copied."""
        return {"streams": self._streams.copy()}

    def load_state_dict(self, state: State) -> None:
        """Restore what :meth:`state_dict` gave."""
        self._streams[...] = state["streams"]
