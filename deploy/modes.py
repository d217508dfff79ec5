"""What a robot is doing, and what may change it: a table, for N robots at once.

```
  safe stop -- arm --> RAMP -- arrived ----> RUN
      ^                 |                     |
      +------ disarm, fault ------------------+
      |
      +-- reset -- ESTOP <-- estop, from anywhere
```

The safe stop is DAMP, or HOLD for robots that would drop (the contract says which). Nothing but an
explicit ``arm`` leaves it, however harmless the reason for stopping was.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Modes = NDArray[np.int8]
Rows = NDArray[np.intp] | Mask | None


class Mode(IntEnum):
    """What a robot is doing. The names are those of ``/safety/mode``."""

    DAMP = 0
    """Stopped: joints resist motion and hold nothing."""
    HOLD = 1
    """Stopped: joints hold their position."""
    RAMP = 2
    """Moving from the pose it was armed in to the default pose."""
    RUN = 3
    """Executing the policy."""
    ESTOP = 4
    """Stopped by hand: as the safe stop, and refuses to arm until it is reset."""


#: Modes in which a robot moves, and those in which it may be armed.
MOVING, STOPPED = (Mode.RAMP, Mode.RUN), (Mode.DAMP, Mode.HOLD)


class Event(IntEnum):
    """What may change the mode."""

    ARM = 0
    RAMPED = 1
    DISARM = 2
    FAULT = 3
    ESTOP = 4
    RESET = 5


_REFUSED = -1
#: Entries that depend on the robot: its safe stop.
_SAFE_STOP = -2

#: (mode, event) -> mode. What is not listed is refused and changes nothing.
TRANSITIONS: Mapping[tuple[Mode, Event], int] = {
    (Mode.DAMP, Event.ARM): Mode.RAMP,
    (Mode.HOLD, Event.ARM): Mode.RAMP,
    (Mode.RAMP, Event.RAMPED): Mode.RUN,
    (Mode.RAMP, Event.DISARM): _SAFE_STOP,
    (Mode.RUN, Event.DISARM): _SAFE_STOP,
    (Mode.DAMP, Event.DISARM): _SAFE_STOP,
    (Mode.HOLD, Event.DISARM): _SAFE_STOP,
    (Mode.RAMP, Event.FAULT): _SAFE_STOP,
    (Mode.RUN, Event.FAULT): _SAFE_STOP,
    (Mode.DAMP, Event.ESTOP): Mode.ESTOP,
    (Mode.HOLD, Event.ESTOP): Mode.ESTOP,
    (Mode.RAMP, Event.ESTOP): Mode.ESTOP,
    (Mode.RUN, Event.ESTOP): Mode.ESTOP,
    (Mode.ESTOP, Event.ESTOP): Mode.ESTOP,
    (Mode.ESTOP, Event.RESET): _SAFE_STOP,
    # A reset of a robot that is stopped for another reason is no mistake; arming still follows.
    (Mode.DAMP, Event.RESET): _SAFE_STOP,
    (Mode.HOLD, Event.RESET): _SAFE_STOP,
}


#: As plain numbers: an array compared with a member of an enum costs five times as much.
_RAMP, _RUN = int(Mode.RAMP), int(Mode.RUN)


class ModeMachine:
    """Modes of N robots. The clock is the caller's: every method that needs time is told it.

    Args:
        num: N.
        safe_stop: ``damp`` or ``hold``, from the contract.
        goal: ``[A]`` pose at the end of the ramp [rad or m].
        ramp_s: duration of the ramp [s]; 0 goes to RUN at once, for robots that already stand in
            the default pose, such as those of an evaluation.
        reach: how far from the goal a joint may be when the ramp is over [rad or m].

    Attributes:
        mode: ``[N]`` :class:`Mode` values, starting in the safe stop; written by events alone.
        running: ``[N]`` which robots execute the policy.
        ramping: ``[N]`` which robots move to the default pose.
        all_run: whether all robots execute the policy.
    """

    def __init__(
        self, num: int, *, safe_stop: str, goal: Array, ramp_s: float, reach: float = np.inf
    ) -> None:
        stops = {"damp": Mode.DAMP, "hold": Mode.HOLD}
        if safe_stop not in stops:
            raise FerryError(f"safe_stop is {safe_stop!r}; expected 'damp' or 'hold'")
        self.safe_stop: Mode = stops[safe_stop]
        self.mode: Modes = np.full(num, self.safe_stop, dtype=np.int8)
        self._goal = goal
        self._reach = reach
        self._ramp_ns = round(ramp_s * 1e9)
        self._start_ns: NDArray[np.int64] = np.zeros(num, dtype=np.int64)
        self._start: Array = np.zeros((num, goal.shape[0]))
        self._table: Modes = np.full((len(Mode), len(Event)), _REFUSED, dtype=np.int8)
        for (mode, event), new in TRANSITIONS.items():
            self._table[mode, event] = self.safe_stop if new == _SAFE_STOP else new
        self._set(self.mode)

    def fire(self, event: Event, rows: Rows = None) -> Mask:
        """Apply an event to robots ``rows`` (ids or mask; None for all).

        Use :meth:`arm` for arming: it needs the pose.

        Returns:
            ``[N]`` which of these robots refused it; their mode is unchanged.
        """
        chosen = self._chosen(rows)
        new = self._table[self.mode, event]
        refused = chosen & (new == _REFUSED)
        self._set(np.where(chosen & ~refused, new, self.mode))
        return refused

    def arm(self, now_ns: int, pose: Array, rows: Rows = None) -> Mask:
        """Start the ramp of robots ``rows`` from their measured pose.

        Args:
            now_ns: time [ns].
            pose: ``[N, A]`` measured positions of the actuated joints [rad or m].
            rows: ids or mask; None for all.

        Returns:
            ``[N]`` which of these robots refused; an emergency stop must be reset first.
        """
        refused = self.fire(Event.ARM, rows)
        armed = self._chosen(rows) & ~refused
        self._start_ns[armed] = now_ns
        self._start[armed] = pose[armed]
        if not self._ramp_ns:
            self.fire(Event.RAMPED, armed)
        return refused

    def advance(self, now_ns: int, pose: Array) -> Mask | None:
        """Let robots run whose ramp is over, and stop those that have not come along.

        Args:
            now_ns: time [ns].
            pose: ``[N, A]`` measured positions of the actuated joints [rad or m].

        Returns:
            ``[N, A]`` which joints of the robots that stop for it are too far from the goal; None
            if there are none.
        """
        if not self._some_ramp:
            return None
        over = self.ramping & (now_ns - self._start_ns >= self._ramp_ns)
        # Written so that NaN is far away.
        far = ~(np.abs(pose - self._goal) <= self._reach) & over[:, None]
        missed: Mask = np.logical_or.reduce(far, axis=1)
        self.fire(Event.RAMPED, over & ~missed)
        self.fire(Event.FAULT, missed)
        return far if missed.any() else None

    def ramp_target(self, now_ns: int) -> Array:
        """``[N, A]`` where a ramping robot should be now [rad or m].

        A cubic from the pose at arming to the goal, at rest at both ends: s = 3 u^2 - 2 u^3.
        """
        u = np.clip((now_ns - self._start_ns) / max(self._ramp_ns, 1), 0.0, 1.0)[:, None]
        return self._start + (3.0 * u**2 - 2.0 * u**3) * (self._goal - self._start)

    def _set(self, mode: Modes) -> None:
        """Modes change seldom and are asked for in every tick: who runs is worked out here."""
        self.mode = mode
        self.running: Mask = mode == _RUN
        self.ramping: Mask = mode == _RAMP
        for shared in (self.mode, self.running, self.ramping):
            shared.setflags(write=False)
        self.all_run = bool(self.running.all())
        self._some_ramp = bool(self.ramping.any())

    def _chosen(self, rows: Rows) -> Mask:
        chosen = np.zeros(self.mode.shape[0], dtype=bool)
        chosen[slice(None) if rows is None else rows] = True
        return chosen
