"""One look at one robot that says that nothing is wrong, as in nearly every tick.

The checks of :mod:`deploy.checks` and the limits of :mod:`real.limits` find and name everything
that is wrong with any number of robots. On one robot their time goes into some eighty calls of
numpy, few of which ever have anything to find. The look asks the same in a quarter of the calls,
and answers only yes or no. It is nowhere laxer than they are and in places a little stricter, so a
yes means that they would find nothing and change nothing; after a no they are asked themselves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from deploy.checks import CommandBounds, StateBounds
from real.contract import PolicyContract
from real.joint_limits import JointLimits
from real.signals import JointCommand, RobotState

Array = NDArray[np.float64]
Stamps = NDArray[np.int64]
Columns = slice | NDArray[np.intp]

#: No number of a robot is this large, NaN is not below it, and products of some that are do not
#: overflow.
_HUGE = 1e50
#: Gyroscope, accelerometer and orientation.
_IMU = 10


class Before(NamedTuple):
    """What a state and a target are compared with, N = 1.

    Attributes:
        q: ``[1, A]`` positions one state earlier, NaN if there was none [rad or m].
        stamp_ns: ``[1]`` stamp of that state [ns].
        target: ``[1, A]`` sent last [rad or m].
        velocity: ``[1, A]`` of that target [rad/s or m/s].
    """

    q: Array
    stamp_ns: Stamps
    target: Array
    velocity: Array


class Glance:
    """Looks at state, command and limits of one robot; its buffers are written by every look.

    Numbers stand in a row twice, as they are and negated, so that both ends of an interval are one
    comparison from above: ``-x <= -low`` is ``x >= low``, to the last bit.

    Args:
        contract: of the robot.
        limits: of its A actuated joints.
        state: what states are held against.
        command: what commands are held against. Only their age: a target within the limits of its
            joint is not implausible.
        columns: the actuated ones among the J joints.
    """

    def __init__(
        self,
        contract: PolicyContract,
        limits: JointLimits,
        state: StateBounds,
        command: CommandBounds,
        *,
        columns: Columns,
    ) -> None:
        self._state, self._command, self._columns = state, command, columns
        self._least = state.min_upright
        if self._least is not None:
            self._least = max(self._least, state.soft_upright or self._least)
        # Jumps are looked for as if half a period had passed, the least that this takes.
        self._least_ns = round(contract.control_dt_s * 1e9) // 2
        self._near: Array = (state.jump_rate * (self._least_ns * 1e-9) + state.jump_slack)[None]
        count = len(limits.names)
        self._lead, self._reach, self._brake, self._rate, self._accel = (
            np.tile(values, 2)
            for values in (limits.lead, limits.reach, limits.brake, limits.rate, limits.accel)
        )
        self._ends: Array = np.concatenate([limits.q_high, -limits.q_low])
        # q, dq, previous target, its velocity and the wished one, [5, 2, A]; then all the rest.
        rest = 3 * len(contract.joints) + _IMU
        size = 2 * (5 * count + rest)
        self._row: Array = np.empty((1, size))
        self._sign: Array = np.empty((1, size))
        self._highest: Array = np.full((1, size), _HUGE)
        both = np.array([1.0, -1.0])
        self._sign[0, : 10 * count] = np.tile(both.repeat(count), 5)
        self._sign[0, 10 * count :] = both.repeat(rest)
        joint = self._row[0, : 10 * count].reshape(5, 2 * count)
        self._q, self._dq, self._previous, self._velocity, self._wish = joint
        first = self._highest[0]
        first[: 2 * count] = np.minimum(np.concatenate([state.q_max, -state.q_min]), _HUGE)
        first[2 * count : 4 * count] = np.tile(_full_torque(limits), 2)
        self._fits = np.empty((1, size), dtype=bool)
        self._torque, self._stop, self._step = (np.empty(2 * count) for _ in range(3))
        self._below = np.empty(2 * count, dtype=bool)

    def fine(
        self,
        now_ns: int,
        state: RobotState,
        command: JointCommand,
        *,
        before: Before,
        dt_s: float,
    ) -> bool:
        """Whether nothing is wrong with state and command, and every limit lets the target pass.

        Args:
            now_ns: time [ns], later than that of the tick before.
            state: newest state, N = 1.
            command: newest command.
            before: what was one tick earlier.
            dt_s: time since then [s], > 0.
        """
        stamp = state.stamp_ns.item()
        if not (
            -self._state.ahead_ns <= now_ns - stamp <= self._state.state_age_ns
            and -self._command.ahead_ns
            <= now_ns - command.stamp_ns.item()
            <= self._command.command_age_ns
            and stamp - before.stamp_ns.item() >= self._least_ns
        ):
            return False
        q, dq, wish = state.q[:, self._columns], state.dq[:, self._columns], command.q_des
        imu = (state.quat_wb, state.gyro_b, state.acc_b)
        rest = (state.q, state.dq, state.tau, *imu)
        old, speed = before.target, before.velocity
        pairs = (q, q, dq, dq, old, old, speed, speed, wish, wish)
        np.concatenate((*pairs, *rest, *rest), axis=1, out=self._row)
        np.multiply(self._row, self._sign, out=self._row)
        # All finite, joints inside their range, and none so fast that its torque is limited.
        if not _all(np.less_equal(self._row, self._highest, out=self._fits)):
            return False
        return (
            self._upright(state.quat_wb)
            and _all(np.abs(q - before.q) <= self._near)
            and _all(np.less_equal(self._wish, self._room(dt_s), out=self._below))
        )

    def _upright(self, quat_wb: Array) -> bool:
        """Not even in the soft zone of tilt; as :func:`deploy.checks.upright`, to the last bit."""
        if self._least is None:
            return True
        w, x, y, z = quat_wb[0].tolist()
        w, x, y, z = w * w, x * x, y * y, z * z
        length = w + x + y + z
        return length > 0.0 and (w - x - y + z) / length >= self._least

    def _room(self, dt_s: float) -> Array:
        """As :meth:`JointLimits.room`, ``[2 A]``, of joints that are slow.

        Stricter in two ways that spare two calls each: a joint that moves inwards may not come as
        near to the end of its range, and a target that is too fast to turn may not stop, either.
        """
        torque, stop, step = self._torque, self._stop, self._step
        np.multiply(self._lead, self._dq, out=torque)
        np.add(torque, self._q, out=torque)
        np.add(torque, self._reach, out=torque)
        np.multiply(self._brake, self._dq, out=stop)
        np.multiply(stop, self._dq, out=stop)
        np.subtract(self._ends, stop, out=stop)
        np.multiply(self._accel, dt_s, out=step)
        np.add(self._velocity, step, out=step)
        np.multiply(step, dt_s, out=step)
        np.minimum(step, self._rate * dt_s, out=step)
        np.add(self._previous, step, out=step)
        np.minimum(torque, stop, out=torque)
        return np.minimum(torque, step, out=torque)


def _full_torque(limits: JointLimits) -> Array:
    """``[A]`` speeds up to which no torque is withheld, -1 where there is no such speed [rad/s].

    Where ``left`` of :meth:`JointLimits.room` is 1; a hair less, for rounding.
    """
    speed = (limits.dq_max - 1.0 / limits.fade) * (1.0 - 1e-9)
    return np.where((limits.dq_max - speed) * limits.fade >= 1.0, speed, -1.0)


def _all(mask: NDArray[np.bool_]) -> bool:
    """As ``mask.all()``, which takes four times as long on a few numbers."""
    return np.count_nonzero(mask) == mask.size
