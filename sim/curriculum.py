"""Automatic domain randomisation: ranges grow while the policy copes with their ends.

Akkaya et al., "Solving Rubik's Cube with a Robot Hand" (2019), section 5: each random term begins
as a narrow range about its nominal value. Some episodes put one term at one of its present ends and
draw the others as usual. Once an end has been tried often enough, it moves outwards if the mean
performance there is high, inwards if it is low.

In a task file::

    curriculum: {measure: reward/track_lin_vel, widen_at: 1.4, narrow_at: 0.8}

The table of random terms says how far ranges may grow; evaluations always use all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from real.config import Config
from real.errors import ConfigError, FerryError, nearest
from sim.distributions import Distribution
from sim.engine import Array, Ids
from sim.state import State, part_of


class CurriculumConfig(Config):
    """The ``curriculum`` section of a task."""

    measure: str = Field(
        default="return",
        description="performance of an episode: return, or reward/TERM, per second it could last",
    )
    widen_at: float = Field(description="mean performance at an end from which on it moves out")
    narrow_at: float = Field(description="and up to which it moves in")
    step: float = Field(
        default=0.1, gt=0.0, le=1.0, description="how far, as a share of the way to the table's end"
    )
    start: float = Field(default=0.0, ge=0.0, le=1.0, description="share of the way at first")
    episodes: int = Field(default=16, ge=1, description="episodes at an end that decide on it")
    at_an_end: float = Field(
        default=0.5, gt=0.0, le=1.0, description="share of episodes with a term at one of its ends"
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.narrow_at >= self.widen_at:
            raise ConfigError(
                f"curriculum.narrow_at is {self.narrow_at:g}; expected less than widen_at, "
                f"{self.widen_at:g}"
            )
        return self


@dataclass(frozen=True)
class Range:
    """What a curriculum needs to know of a random term.

    Attributes:
        name: of the term.
        law: its whole distribution.
        where: its columns in the draws.
        nominal: ``[K]`` values without randomisation.
    """

    name: str
    law: Distribution
    where: slice
    nominal: Array

    @property
    def neutral(self) -> float:
        """The draw that changes least: where ranges begin."""
        neutral = {"*": 1.0, "+": 0.0}.get(self.law.op, float(self.nominal.mean()))
        return float(np.clip(neutral, self.law.low, self.law.high))


class Curriculum:
    """How far the ranges of K random terms reach, and how N worlds fare at their ends.

    Args:
        config: when to move an end.
        ranges: K terms.
        num: N.

    Attributes:
        shares: ``[K, 2]`` how far the low and the high end have come, 0 nominal, 1 the table's.

    Raises:
        FerryError: there is no term to widen, or one whose range has no ends that could move.
    """

    def __init__(self, config: CurriculumConfig, ranges: Sequence[Range], num: int) -> None:
        if not ranges:
            raise FerryError("curriculum: there is no random term whose range it could widen")
        for one in ranges:
            if one.law.kind == "choice":
                raise FerryError(
                    f"curriculum: random term {one.name!r} is a choice, which has no range to "
                    f"widen; give it as U, LogU or N"
                )
        self._config, self._ranges = config, ranges
        self.shares: Array = np.full((len(ranges), 2), config.start)
        # Which end a world is at in its present episode: 2 term + (0 low, 1 high), or -1.
        self._end: NDArray[np.int64] = np.full(num, -1, dtype=np.int64)
        self._seen: Array = np.zeros((2 * len(ranges), config.episodes))
        self._count: NDArray[np.int64] = np.zeros(2 * len(ranges), dtype=np.int64)
        # (ends [n], performances [n]) not yet reported; None for one that decides itself.
        self._unreported: list[tuple[NDArray[np.int64], Array]] | None = None

    def narrow(self, rows: Ids, draws: Array, rngs: Sequence[np.random.Generator]) -> None:
        """Bring draws ``[n, P]`` of the whole table into the present ranges, in place.

        Args:
            rows: n worlds, whose episodes begin.
            draws: as the table's distributions gave them.
            rngs: of the n worlds; they decide who goes to which end.
        """
        for k, one in enumerate(self._ranges):
            offset = draws[:, one.where] - one.neutral
            share = np.where(offset < 0.0, self.shares[k, 0], self.shares[k, 1])
            draws[:, one.where] = one.neutral + share * offset
        for i, (row, rng) in enumerate(zip(rows.tolist(), rngs, strict=True)):
            chance, which = rng.random(2).tolist()
            self._end[row] = -1
            if chance < self._config.at_an_end:
                end = int(which * 2 * len(self._ranges))
                self._end[row] = end
                draws[i, self._ranges[end // 2].where] = self._at(end)

    def _at(self, end: int) -> float:
        one = self._ranges[end // 2]
        furthest = one.law.high if end % 2 else one.law.low
        return one.neutral + float(self.shares[end // 2, end % 2]) * (furthest - one.neutral)

    def forget(self, row: int) -> None:
        """The episode of world ``row`` is a replay, which teaches nothing."""
        self._end[row] = -1

    def measured(self, episode: Mapping[str, NDArray[np.generic]]) -> Array:
        """``[n]`` what counts of n episodes; see :func:`measured`."""
        return measured(self._config.measure, episode)

    def note(self, rows: Ids, performance: Array) -> None:
        """Episodes of worlds ``rows`` ended with ``performance [n]``; ends may move.

        Not those of one that follows: it keeps what happened for its next report.
        """
        tried = self._end[rows] >= 0
        ends, values = self._end[rows][tried], performance[tried]
        if self._unreported is None:
            self._learn(ends, values)
        else:
            self._unreported.append((ends, values))

    def _learn(self, ends: NDArray[np.int64], values: Array) -> None:
        """Episodes at ``ends [n]`` had performance ``values [n]``."""
        for end, value in zip(ends.tolist(), values.tolist(), strict=True):
            # A broken episode is the worst there is, and must not poison a mean.
            self._seen[end, self._count[end]] = value if np.isfinite(value) else -1e9
            self._count[end] += 1
            if self._count[end] == self._config.episodes:
                self._decide(end)

    def _decide(self, end: int) -> None:
        mean, at = float(self._seen[end].mean()), (end // 2, end % 2)
        move = (mean >= self._config.widen_at) - (mean <= self._config.narrow_at)
        self.shares[at] = np.clip(self.shares[at] + move * self._config.step, 0.0, 1.0)
        self._count[end] = 0

    def reached(self) -> dict[str, tuple[float, float]]:
        """Present ends of each term's draws."""
        return {
            one.name: (self._at(2 * k), self._at(2 * k + 1)) for k, one in enumerate(self._ranges)
        }

    # -------------------------------------------------------------- many actors, see sim.shared

    def follow(self) -> None:
        """See :class:`sim.shared.SharedPart`."""
        if self._unreported is None:
            self._unreported = []

    def report(self) -> State:
        """See :class:`sim.shared.SharedPart`: ``end [n]`` and ``value [n]`` of n episodes."""
        if not self._unreported:
            return {}
        ends, values = zip(*self._unreported, strict=True)
        self._unreported = []
        return {"end": np.concatenate(ends), "value": np.concatenate(values)}

    def absorb(self, report: State) -> None:
        """See :class:`sim.shared.SharedPart`."""
        self._learn(report["end"].astype(np.int64), report["value"].astype(np.float64))

    def shared_state(self) -> State:
        """See :class:`sim.shared.SharedPart`: how far ends have come, and what was seen there."""
        values = {"shares": self.shares, "seen": self._seen, "count": self._count}
        return {name: value.copy() for name, value in values.items()}

    def load_shared_state(self, state: State) -> None:
        """See :class:`sim.shared.SharedPart`."""
        seen = state.get("seen")
        if seen is None or seen.shape != self._seen.shape:
            raise FerryError(
                "the state has no curriculum of these random terms; was the table or "
                "curriculum.episodes changed?"
            )
        self.shares[...] = state["shares"]
        self._seen[...] = seen
        self._count[...] = state["count"]

    def measures(self) -> dict[str, float]:
        """See :class:`sim.shared.SharedPart`: share of the way that both ends of a term came."""
        each = {one.name: float(self.shares[k].mean()) for k, one in enumerate(self._ranges)}
        return {"mean": float(self.shares.mean()), **each}

    # -------------------------------------------------------------- keeping

    def state_dict(self) -> State:
        """Ends, who is at which and what was seen there, copied."""
        everything = {**self.shared_state(), "end": self._end.copy()}
        return {f"curriculum.{name}": value for name, value in everything.items()}

    def load_state_dict(self, state: State) -> None:
        """Restore what :meth:`state_dict` gave.

        Raises:
            FerryError: the state is of another curriculum.
        """
        self.load_shared_state(part_of(state, "curriculum"))
        self._end[...] = state["curriculum.end"]


def measured(
    name: str, episode: Mapping[str, NDArray[np.generic]], *, section: str = "curriculum"
) -> Array:
    """``[n]`` performance of n episodes.

    Args:
        name: of the measure: return, or reward/TERM.
        episode: what the episodes were, see :meth:`sim.episodes.Episodes.close`.
        section: of the task, for messages.

    Raises:
        FerryError: the task has no such measure.
    """
    sums = ("return", *(k for k in episode if "/" in k))
    if name not in sums:
        raise FerryError(
            f"{section}.measure {name!r} is not known{nearest(name, sums)}; "
            f"known: {', '.join(sums)}"
        )
    return np.asarray(episode[name], dtype=np.float64)
