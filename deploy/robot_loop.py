"""The loop that owns a robot: absolute deadlines, age of the command, safe stop. No ROS in it.

It runs in a thread of its own, so that nothing that happens on the network delays a deadline, and
it is the last to decide: without a fresh, finite command the robot gets its safe stop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deploy import punctual
from deploy.timing import Histogram, Window
from real.errors import FerryError
from real.robot_io import RobotIO
from real.signals import JointCommand, RobotState
from real.spec import RobotSpec

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Received:
    """A command and when it came.

    Attributes:
        q_des: ``[A]`` targets [rad or m], or None for the safe stop.
        at_ns: time of reception on the loop's clock [ns].
        reason: why it is a safe stop; empty for targets.
    """

    q_des: Array | None
    at_ns: int
    reason: str


class RobotLoop:
    """Calls a robot every period, with the newest command or its safe stop.

    The first command is always the safe stop. Targets come with the gains of the robot's own
    specification: gains never travel with commands.

    Args:
        robot: the driver; called from the thread that calls :meth:`run`, and from no other.
        spec: order, gains, damping and safe stop.
        command_timeout_s: age at which a command is too old [s].
        publish: called with each state, in the loop's thread.
        clock: nanoseconds of a clock that never goes back.
        sleep: waits for a number of seconds, to the point.
    """

    def __init__(
        self,
        robot: RobotIO,
        spec: RobotSpec,
        *,
        command_timeout_s: float,
        publish: Callable[[RobotState], None],
        clock: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = punctual.wait,
    ) -> None:
        self._robot = robot
        self._spec = spec
        self._timeout_ns = round(command_timeout_s * 1e9)
        self._publish = publish
        self._clock = clock
        self._sleep = sleep
        self._received = Received(None, clock(), "no command yet")
        self._blocked = ""
        self._hold: Array | None = None
        self._ids = spec.actuated_ids
        self._kp = spec.actuated_array("kp")
        self._kd = spec.actuated_array("kd")
        self._stopping = False
        #: Why the robot is in its safe stop; empty while it follows commands.
        self.reason = self._received.reason
        self.steps = 0
        self.missed = 0
        self.lateness = Window()
        self.exchange_time = Window()
        #: How far the time from one step to the next is from the period, since `count_anew`.
        self.period_error = Histogram()
        self._woke_ns: int | None = None
        #: When the driver call in progress began [ns], 0 between calls.
        self.inside_since_ns = 0

    # ------------------------------------------------------- called from other threads

    def command(self, q_des: Array | None, *, reason: str = "safe stop commanded") -> None:
        """Hand over a command: ``[A]`` targets, or None for the safe stop and why."""
        if q_des is not None:
            pairs = zip(self._spec.actuated, q_des.tolist(), strict=True)
            bad = [joint.name for joint, q in pairs if not math.isfinite(q)]
            if bad:
                q_des, reason = None, f"command is not finite for {', '.join(bad)}"
        self._received = Received(q_des, self._clock(), "" if q_des is not None else reason)

    def block(self, reason: str) -> None:
        """Refuse all commands while ``reason`` is not empty."""
        self._blocked = reason

    def count_anew(self) -> None:
        """Forget the period errors so far: of a graph whose other nodes were still starting."""
        self.period_error = Histogram()

    def stop(self) -> None:
        """End :meth:`run` after the step in progress, with a safe stop."""
        self._stopping = True

    # ------------------------------------------------------- the loop's own thread

    def run(self) -> None:
        """Start the robot, call it until :meth:`stop`, then stop it safely and close it.

        Whatever ends the loop, an exception of the driver included, the last command is the safe
        stop and the driver is closed.
        """
        state: RobotState | None = None
        punctual.sharpen_timers()
        try:
            state = self._started()
            period_ns = round(self._robot.period_s * 1e9)
            deadline = self._clock()
            while not self._stopping:
                state = self.step(state)
                deadline = self._wait(deadline + period_ns, period_ns)
        finally:
            try:
                if state is not None:
                    self._robot.exchange(self._safe_stop(state))
            finally:
                self._robot.close()

    def step(self, state: RobotState) -> RobotState:
        """One call of the robot: command for ``state``, exchange, publish what it answers."""
        command = self._command(state)
        self.inside_since_ns = self._clock()
        state = self._robot.exchange(command)
        self.exchange_time.add((self._clock() - self.inside_since_ns) * 1e-9)
        self.inside_since_ns = 0
        self._check(state)
        self._publish(state)
        self.steps += 1
        return state

    def _started(self) -> RobotState:
        state = self._robot.start()
        self._check(state)
        self._publish(state)
        return state

    def _check(self, state: RobotState) -> None:
        joints = len(self._spec.joints)
        if state.q.shape != (1, joints):
            raise FerryError(
                f"the robot's driver returned positions of shape {state.q.shape}; "
                f"expected (1, {joints})"
            )

    def _wait(self, deadline: int, period_ns: int) -> int:
        """Sleep until ``deadline``; returns the deadline to count from.

        After a miss the next deadline is a period from now: catching up in a burst would hand the
        robot several commands at once.
        """
        now = self._clock()
        if now < deadline:
            self._sleep((deadline - now) * 1e-9)
            now = self._clock()
        late_ns = now - deadline
        self.lateness.add(late_ns * 1e-9)
        if self._woke_ns is not None:
            self.period_error.add(abs(now - self._woke_ns - period_ns) * 1e-9)
        self._woke_ns = now
        if late_ns < period_ns:
            return deadline
        self.missed += late_ns // period_ns
        return now

    def _command(self, state: RobotState) -> JointCommand:
        received = self._received
        age_ns = self._clock() - received.at_ns
        reason = self._blocked or received.reason
        if not reason and age_ns > self._timeout_ns:
            reason = f"newest command is {age_ns * 1e-6:.0f} ms old"
        self.reason = reason
        if reason or received.q_des is None:
            return self._safe_stop(state)
        self._hold = None
        return JointCommand.position(state.stamp_ns, received.q_des[None], kp=self._kp, kd=self._kd)

    def _safe_stop(self, state: RobotState) -> JointCommand:
        """Damping, or the pose measured when the stop began, held with the robot's gains."""
        if self._spec.safe_stop == "hold":
            hold = state.q[0, self._ids].copy() if self._hold is None else self._hold
            if np.isfinite(hold).all():
                self._hold = hold
                return JointCommand.position(state.stamp_ns, hold[None], kp=self._kp, kd=self._kd)
        return JointCommand.damping(
            state.stamp_ns, len(self._ids), damping_kd=self._spec.damping_kd
        )
