"""What the worlds of all actors of a run have in common and change by what happens in them.

A curriculum is such a thing: every episode says something about ranges that are those of all
worlds. In one env it decides for itself, at once. Where many actors have worlds, it is decided in
one place: actors *follow*, they report what happened and are told what holds. What one place makes
of reports A and then B is what it makes of both together, so it does not matter whose worlds they
are from. Levels of terrain are another: each world decides on its own, and what is shared is at
which levels a run's worlds are, so that whoever joins begins there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from sim.state import State, pack, part_of


class SharedPart(Protocol):
    """One thing that the worlds of all actors have in common.

    :class:`sim.curriculum.Curriculum` and :class:`sim.terrain_levels.Levels` are such.

    What belongs to single worlds, such as where one of them is tried in its present episode, is no
    part of the state here: another actor's worlds would not know what to do with it.
    """

    def follow(self) -> None:
        """Decide nothing from now on: somebody else does, who gets the reports."""
        ...

    def report(self) -> State:
        """What happened since the last report, oldest first; empty of one who does not follow."""
        ...

    def absorb(self, report: State) -> None:
        """Decide by what happened elsewhere."""
        ...

    def shared_state(self) -> State:
        """What holds in all worlds, and what the next decision needs, copied."""
        ...

    def load_shared_state(self, state: State) -> None:
        """Let what :meth:`shared_state` gave hold from the next episodes on.

        Raises:
            FerryError: the state is of another table or task.
        """
        ...

    def measures(self) -> dict[str, float]:
        """Names and numbers that say how far it is, for the run's metrics."""
        ...


class Shared:
    """All that the worlds of an env have in common with those of other actors.

    Args:
        parts: name -> part; None for one that the task does not have.
    """

    def __init__(self, parts: Mapping[str, SharedPart | None]) -> None:
        self._parts = {name: part for name, part in parts.items() if part is not None}

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return bool(self._parts)

    def follow(self) -> None:
        """Report from now on, and decide nothing."""
        for part in self._parts.values():
            part.follow()

    def report(self) -> State:
        """What happened since the last report: flat arrays, ``part.name``."""
        return pack({name: part.report() for name, part in self._parts.items()})

    def absorb(self, report: State) -> None:
        """Decide by what happened in the worlds of somebody who follows."""
        for name, part in self._parts.items():
            if found := part_of(report, name):
                part.absorb(found)

    def state_dict(self) -> State:
        """What holds in all worlds: flat arrays, ``part.name``."""
        return pack({name: part.shared_state() for name, part in self._parts.items()})

    def lacking(self, state: State) -> list[str]:
        """Names of the parts that a state says nothing of."""
        return [name for name in self._parts if not part_of(state, name)]

    def load_state_dict(self, state: State) -> bool:
        """Let it hold here too.

        Returns:
            Whether it is anything new: then worlds that began before do not know of it.

        Raises:
            FerryError: the state is of another task.
        """
        before = self.state_dict()
        for name, part in self._parts.items():
            part.load_shared_state(part_of(state, name))
        after = self.state_dict()
        return any(not np.array_equal(after[name], value) for name, value in before.items())

    def measures(self) -> dict[str, float]:
        """``part/name`` -> number, for the run's metrics."""
        return {
            f"{name}/{what}": value
            for name, part in self._parts.items()
            for what, value in part.measures().items()
        }
