"""A robot without a robot: the shipped fake behind the :class:`~real.robot_io.RobotIO` border.

Each joint is a viscous first-order system under the commanded gains. It has its own joint order,
as hardware has, and a firmware time-out that stops it when nobody calls, as hardware should.
Use it to try a driver, a graph or a fault without a simulator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError, nearest
from real.robot_io import GroundTruth
from real.signals import JointCommand, RobotState
from real.spec import RobotSpec

Array = NDArray[np.float64]


class LoopbackRobot:
    """First-order joints that follow commands by name.

    A joint obeys ``b dq = kp (q_des - q) + kd (dq_des - dq) + tau_ff``, so its time constant is
    ``(b + kd) / kp``, and it stands still without gains. The base does not move.

    Args:
        robot: what it pretends to be; only names, order and default pose are read.
        period_s: how often it wants to be called [s]; the robot's physics period if None.
        command_timeout_s: firmware stops the joints this long after the last call [s].
        viscosity: b [N m s/rad]; 1.0 gives 50 ms at kp 40, kd 1.
        hardware_order: all joints in the order of the pretended hardware; reversed if None.
        start: measured position by joint where it is not the default [rad or m].
        quat_wb: ``[4]`` wxyz, how the base lies.
        clock: nanoseconds of a clock that never goes back.
    """

    simulated: bool = True

    def __init__(
        self,
        robot: RobotSpec,
        *,
        period_s: float | None = None,
        command_timeout_s: float = 0.1,
        viscosity: float = 1.0,
        hardware_order: Sequence[str] | None = None,
        start: Mapping[str, float] | None = None,
        quat_wb: Sequence[float] = (1.0, 0.0, 0.0, 0.0),
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        names = robot.joint_names
        order = tuple(reversed(names)) if hardware_order is None else tuple(hardware_order)
        if sorted(order) != sorted(names):
            raise FerryError(
                f"loopback robot: hardware_order {list(order)} must name each joint of "
                f"{robot.name!r} once: {list(names)}"
            )
        for name in start or {}:
            if name not in names:
                raise FerryError(f"loopback robot: no joint {name!r}{nearest(name, names)}")
        if not viscosity > 0.0:
            raise FerryError(f"loopback robot: viscosity is {viscosity}; expected > 0")
        self.period_s: float = robot.physics_dt_s if period_s is None else period_s
        self.command_timeout_s: float | None = command_timeout_s
        self.firmware_stops = 0
        self._viscosity = viscosity
        self._clock = clock
        # Hardware slot of each joint of the spec, and of each actuated joint: the two maps that
        # a driver needs. Every field goes through them, gains included.
        slot = {name: i for i, name in enumerate(order)}
        self._slots: NDArray[np.intp] = np.array([slot[n] for n in names])
        self._actuated: NDArray[np.intp] = np.array([slot[j.name] for j in robot.actuated])
        self._q: Array = np.zeros(len(names))
        self._q[self._slots] = [
            (start or {}).get(n, float(d)) for n, d in zip(names, robot.q_default, strict=True)
        ]
        self._dq: Array = np.zeros(len(names))
        self._tau: Array = np.zeros(len(names))
        self._quat: Array = np.asarray(quat_wb, dtype=np.float64)
        self._called_ns: int | None = None
        self._held: tuple[Array, Array, Array, Array, Array] | None = None

    def start(self) -> RobotState:
        """First state; nothing is commanded yet."""
        self._called_ns = self._clock()
        return self._state(self._called_ns)

    def exchange(self, command: JointCommand) -> RobotState:
        """Move for the time since the last call under the command before, then take this one."""
        if self._called_ns is None:
            raise FerryError("loopback robot: exchange() before start()")
        now = self._clock()
        self._advance((now - self._called_ns) * 1e-9)
        self._called_ns = now
        fields = (command.q_des, command.dq_des, command.tau_ff, command.kp, command.kd)
        self._held = (
            self._to_hardware(fields[0]),
            self._to_hardware(fields[1]),
            self._to_hardware(fields[2]),
            self._to_hardware(fields[3]),
            self._to_hardware(fields[4]),
        )
        return self._state(now)

    def ground_truth(self) -> GroundTruth | None:
        """None: it has no world to be anywhere in."""
        return None

    def close(self) -> None:
        """Forget the command, which stops the joints."""
        self._held = None

    def _to_hardware(self, values: Array) -> Array:
        out = np.zeros_like(self._q)
        out[self._actuated] = values[0]
        return out

    def _advance(self, seconds: float) -> None:
        """Exact solution of the joint equation over ``seconds``, or until the time-out."""
        if self._held is None:
            return
        driven = seconds
        if self.command_timeout_s is not None and seconds > self.command_timeout_s:
            driven = self.command_timeout_s
        q_des, dq_des, tau_ff, kp, kd = self._held
        drag = self._viscosity + kd
        push = kd * dq_des + tau_ff
        # With kp: q -> q_inf + (q - q_inf) exp(-t kp / drag). Without: dq = push / drag.
        spring = kp > 0.0
        safe_kp = np.where(spring, kp, 1.0)
        q_inf = q_des + push / safe_kp
        decay = np.exp(-driven * kp / drag)
        moved = np.where(spring, q_inf + (self._q - q_inf) * decay, self._q + driven * push / drag)
        self._dq = (kp * (q_des - moved) + push) / drag
        self._tau = kp * (q_des - moved) + kd * (dq_des - self._dq) + tau_ff
        self._q = moved
        if driven < seconds:
            self.firmware_stops += 1
            self._held = None
            self._dq = np.zeros_like(self._q)
            self._tau = np.zeros_like(self._q)

    def _state(self, stamp_ns: int) -> RobotState:
        return RobotState(
            stamp_ns=np.array([stamp_ns], dtype=np.int64),
            q=self._q[self._slots][None],
            dq=self._dq[self._slots][None],
            tau=self._tau[self._slots][None],
            quat_wb=self._quat[None].copy(),
            gyro_b=np.zeros((1, 3)),
            acc_b=np.array([[0.0, 0.0, 9.81]]),
        )
