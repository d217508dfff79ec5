"""Everything that N robots report, as late as their worlds are: the way from sensors to policy.

A delay of parts of a control step lies between two measurements. What sensors do each to its own
signal (:mod:`sim.transport`) comes after that.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from real.frames import normalize
from real.signals import RobotState
from sim.engine import Array, Ids

State = dict[str, NDArray[np.generic]]

#: What is late. The stamp is not: nobody tells the robot that its measurements are old.
FIELDS = ("q", "dq", "tau", "quat_wb", "gyro_b", "acc_b")


class LateSignals:
    """The last measurements of N robots.

    Args:
        num: N.
        joints: J.
        longest_s: longest delay that a world may have [s].
        control_dt_s: control period, between two measurements [s].
    """

    def __init__(self, num: int, joints: int, *, longest_s: float, control_dt_s: float) -> None:
        self._dt = control_dt_s
        slots = math.ceil(longest_s / control_dt_s - 1e-9) + 1
        sizes = {"q": joints, "dq": joints, "tau": joints, "quat_wb": 4, "gyro_b": 3, "acc_b": 3}
        #: ``[N, slots, K]`` newest first.
        self._past: dict[str, Array] = {f: np.zeros((num, slots, sizes[f])) for f in FIELDS}
        self._fresh: NDArray[np.bool_] = np.ones(num, dtype=bool)
        self._everyone: Ids = np.arange(num)

    def begin(self, rows: Ids) -> None:
        """Begin an episode in worlds ``rows``: nothing has been measured yet."""
        self._fresh[rows] = True

    def report(self, state: RobotState, late_s: Array) -> RobotState:
        """What arrives of all measurements, the newest of which is ``state``.

        To be called once per control step, and once more for worlds that begin an episode: their
        first measurement is then the oldest there is, and nothing of the others' moves on.

        Args:
            state: N robots.
            late_s: ``[N]`` how late what arrives is [s].
        """
        rows = self._everyone
        if self._fresh.any():
            rows = np.flatnonzero(self._fresh)
            self._fresh[:] = False
            for name, past in self._past.items():
                past[rows] = getattr(state, name)[rows, None]
        else:
            for name, past in self._past.items():
                past[:, 1:] = past[:, :-1].copy()
                past[:, 0] = getattr(state, name)
        late = late_s / self._dt
        slots = self._past["q"].shape[1]
        # A whole number of steps but for rounding is that number.
        late = np.where(np.abs(late - np.rint(late)) < 1e-9, np.rint(late), late)
        whole = np.clip(late.astype(np.intp), 0, slots - 1)
        part: Array = (late - whole.astype(np.float64))[:, None]
        changed: dict[str, Any] = {}
        for name, past in self._past.items():
            new = past[self._everyone, whole]
            old = past[self._everyone, np.minimum(whole + 1, slots - 1)]
            changed[name] = np.where(part > 0.0, _between(name, new, old, part), new)
        return replace(state, **changed)

    def state_dict(self) -> State:
        """What was measured, copied."""
        out: State = {f"late.{name}": past.copy() for name, past in self._past.items()}
        return out | {"late.fresh": self._fresh.copy()}

    def load_state_dict(self, state: State) -> None:
        """Restore what :meth:`state_dict` gave.

        Raises:
            FerryError: the state has no such measurements, or of other delays.
        """
        found = state["late.q"].shape if "late.q" in state else None
        if found != self._past["q"].shape:
            raise FerryError(
                f"the state has past measurements {found}; expected {self._past['q'].shape} "
                "(worlds, steps, joints); was observation_delay changed?"
            )
        for name, past in self._past.items():
            past[...] = state[f"late.{name}"]
        self._fresh[...] = state["late.fresh"]


def _between(name: str, new: Array, old: Array, part: Array) -> Array:
    """A measurement between two of n robots, ``part [n, 1]`` of the way to the older one."""
    with np.errstate(invalid="ignore", over="ignore"):
        if name != "quat_wb":
            return (1.0 - part) * new + part * old
        # q and -q are the same attitude; the way between is the short one.
        old = np.where((new * old).sum(axis=1, keepdims=True) < 0.0, -old, old)
        return normalize((1.0 - part) * new + part * old)
