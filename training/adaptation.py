"""Keeps what the worlds of all actors have in common: the one place that decides on it.

See :mod:`sim.shared`. Actors report what happened with their rollouts, also with those that nobody
learns from: an old policy's failures at the end of a range are as real as its successes. What was
decided travels with the weights, so that whoever has a snapshot has both, and is in the checkpoint.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

from numpy.typing import NDArray

from real.errors import FerryError
from real.rollout import Rollout
from sim.shared import Shared
from sim.state import pack, part_of
from training.snapshot import PolicySnapshot

Arrays = dict[str, NDArray[Any]]

#: Under this name it is in the actors' part of a checkpoint.
_NAME = "shared"


class Adaptation:
    """Decides for all actors; several threads may use it.

    Args:
        shared: of worlds of the task: those that act, where one process has all; else some that
            nobody steps. None for a task without.
    """

    def __init__(self, shared: Shared | None) -> None:
        self._shared = Shared({}) if shared is None else shared
        self._lock = threading.Lock()

    def absorb(self, rollout: Rollout) -> None:
        """Decide by what happened in a rollout's episodes."""
        if rollout.outcomes:
            with self._lock:
                self._shared.absorb(dict(rollout.outcomes))

    def stamped(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        """The snapshot with what holds now."""
        if not self._shared:
            return snapshot
        with self._lock:
            return dataclasses.replace(snapshot, shared=self._shared.state_dict())

    def measures(self) -> dict[str, float]:
        """How far it is, for the metrics of the run."""
        with self._lock:
            return self._shared.measures()

    def state_dict(self) -> Arrays:
        """For a checkpoint, copied; empty where there is nothing."""
        with self._lock:
            return pack({_NAME: self._shared.state_dict()})

    def load_state_dict(self, state: Arrays, *, source: str) -> None:
        """Go on with what :meth:`state_dict` gave.

        Raises:
            FerryError: the state lacks it, or is of another task.
        """
        found = part_of(state, _NAME)
        if lacking := self._shared.lacking(found):
            raise FerryError(
                f"{source} does not say how far all worlds were in {' and '.join(lacking)}; resume "
                "with the serial runtime, which finds it in its worlds"
            )
        with self._lock:
            self._shared.load_state_dict(found)
