"""What was drawn for a world: enough to say what the world was like, and to build it again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError

Array = NDArray[np.float64]
Streams = NDArray[np.uint64]


@dataclass(frozen=True)
class DomainSample:
    """What was drawn for one episode of one world.

    Attributes:
        seed: seed of the generator that drew it.
        values: name of a random term -> its values, delays included, in the term's unit. ``push``
            lists (time since the episode began [s], velocity along x, along y [m/s]) of each push,
            ``terrain`` where it began: tile, level, x and y from the middle of the tile [m].
        streams: ``[S, 6]`` where the world's random streams stood when the episode began, as
            :func:`sim.streams.pack_streams` writes them. They bring back what ``values`` does not
            say: start, commands, sensor noise, and pushes still to come. Empty where not known.
        clock: steps towards the time limit with which the episode began.
    """

    seed: int
    values: Mapping[str, list[float]]
    streams: tuple[tuple[int, ...], ...] = ()
    clock: int = 0

    def to_json(self) -> str:
        """JSON text, as recordings keep it."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> DomainSample:
        """Read what :meth:`to_json` wrote.

        Raises:
            FerryError: it is something else.
        """
        try:
            body: Any = json.loads(text)
            streams = tuple(tuple(int(n) for n in row) for row in body.pop("streams"))
            values = {str(k): [float(x) for x in v] for k, v in body.pop("values").items()}
            return DomainSample(values=values, streams=streams, **body)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FerryError(f"no DomainSample: {text[:80]!r} ({error})") from error


@dataclass(frozen=True)
class DomainDraws:
    """What was drawn for E episodes, as arrays: an actor keeps it with every rollout.

    Attributes:
        columns: random term -> its columns in ``draws``.
        seed: seed of the generators.
        world: ``[E]`` in which world.
        step: ``[E]`` first step of the episode within the rollout; 0 if it was under way before.
        age: ``[E]`` steps of the episode that lie before the rollout.
        clock: ``[E]`` steps towards the time limit with which the episode began.
        draws: ``[E, P]`` as drawn: factors under ``*``, additions under ``+``.
        streams: ``[E, S, 6]``, see :attr:`DomainSample.streams`.
        pushes: E lists of (time, vx, vy), see :attr:`DomainSample.values`; None for a task without.
    """

    columns: Mapping[str, slice]
    seed: int
    world: NDArray[np.int64]
    step: NDArray[np.int64]
    age: NDArray[np.int64]
    clock: NDArray[np.int64]
    draws: Array
    streams: Streams
    pushes: Sequence[Sequence[float]] | None = field(default=None)

    @property
    def num(self) -> int:
        """Episodes, E."""
        return len(self.world)

    def sample(self, index: int) -> DomainSample:
        """What was drawn for one of the E episodes."""
        values = {name: self.draws[index, at].tolist() for name, at in self.columns.items()}
        if self.pushes is not None:
            values["push"] = list(self.pushes[index])
        streams = tuple(tuple(row) for row in self.streams[index].tolist())
        return DomainSample(self.seed, values, streams=streams, clock=int(self.clock[index]))

    def find(self, step: int, world: int) -> int:
        """Index of the episode that step ``step`` of world ``world`` belongs to.

        Raises:
            FerryError: there is none.
        """
        rows = np.flatnonzero((self.world == world) & (self.step <= step))
        if not rows.size:
            raise FerryError(f"no draws are kept of step {step} of world {world}")
        return int(rows[np.argmax(self.step[rows])])

    @staticmethod
    def join(parts: Sequence[tuple[int, DomainDraws]]) -> DomainDraws:
        """The draws of one rollout.

        Args:
            parts: first step within the rollout, and the draws of the episodes that begin there;
                the first part is of the episodes under way.

        Returns:
            A copy that what happens later in these episodes does not change.
        """
        first = parts[0][1]
        every = [part for _, part in parts]
        pushes = None
        if first.pushes is not None:
            pushes = tuple(tuple(given) for part in every for given in part.pushes or ())
        return DomainDraws(
            columns=first.columns,
            seed=first.seed,
            world=np.concatenate([part.world for part in every]),
            step=np.repeat([step for step, _ in parts], [part.num for part in every]),
            age=np.concatenate([part.age for part in every]),
            clock=np.concatenate([part.clock for part in every]),
            draws=np.concatenate([part.draws for part in every]),
            streams=np.concatenate([part.streams for part in every]),
            pushes=pushes,
        )
