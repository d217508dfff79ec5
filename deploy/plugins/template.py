"""A driver to copy: everything but the two methods that talk to your hardware.

1. Copy this file, e.g. to ``my_driver.py``, and rename the class.
2. Fill in ``_open``, ``_read``, ``_write`` and ``_shut``; give the options your hardware needs.
3. Try it: ``ferry deploy policy.onnx --robot my_driver:MyRobot --robot-file my.yaml`` with your
   ``--option NAME=VALUE``. Nothing moves before somebody calls ``/arm``.

What the rest of Ferry counts on:

* **One thread calls.** ``start`` once, then ``exchange`` every ``period_s``, then ``close``.
* **``exchange`` returns soon**, well within ``period_s``. A call that blocks stops everything, also
  the safe stop: no thread of Python can send for you while you wait. Poll, do not wait.
* **The firmware stops the robot** when nothing is sent for ``command_timeout_s``. If yours cannot,
  say None: robot_node then refuses the robot unless ``allow_no_firmware_timeout`` is set.
* **A stamp is a time of measurement.** If nothing new came, return the last state with its old
  stamp; the safety node sees its age. Never stamp an old value anew.
* **NaN says "I do not know".** Never replace a reading that failed by zero or by the last one.
* **Order is mapped by name**, for every field, gains included; what you have in other units or with
  another sign is converted here and nowhere else.
* **Raise on doubt.** An exception ends robot_node after one more safe stop; an arm of a driver that
  goes on with half a robot is worse.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from real.robot_io import GroundTruth
from real.signals import JointCommand, RobotState
from real.spec import RobotSpec

Array = NDArray[np.float64]


class TemplateRobot:
    """Maps joints by name to the slots of a bus; see the module.

    Args:
        robot: joints in order, gains, safe stop.
        slots: slot on the bus of every joint, by name; every joint once.
        period_s: how often to be called [s]; the control period if None.
        command_timeout_s: after how long without a command the firmware stops the motors [s].
            Measure it: unplug while the robot hangs in the air.

    Raises:
        FerryError: a joint has no slot, a slot no joint, or two have the same.
    """

    simulated: bool = False

    def __init__(
        self,
        robot: RobotSpec,
        *,
        slots: Mapping[str, int],
        period_s: float | None = None,
        command_timeout_s: float | None = None,
    ) -> None:
        names = robot.joint_names
        wrong = [f"{n!r} has no slot" for n in names if n not in slots]
        wrong += [f"{n!r} is no joint of {robot.name!r}" for n in slots if n not in names]
        if wrong or sorted(slots.values()) != list(range(len(names))):
            raise FerryError(
                f"option slots: expected each joint with one of 0 to {len(names) - 1}; found "
                f"{dict(slots)}{'; ' if wrong else ''}{', '.join(wrong)}"
            )
        self.period_s: float = robot.control_dt_s if period_s is None else period_s
        self.command_timeout_s: float | None = command_timeout_s
        # Slot of every joint (states) and of every actuated joint (commands).
        self._slots: NDArray[np.intp] = np.array([slots[n] for n in names])
        self._driven: NDArray[np.intp] = np.array([slots[j.name] for j in robot.actuated])
        self._damping_kd = robot.damping_kd
        self._open_now = False

    # ------------------------------------------------------------ RobotIO

    def start(self) -> RobotState:
        """Open the connection and return the first state. Nothing is commanded yet."""
        self._open()
        self._open_now = True
        return self._state()

    def exchange(self, command: JointCommand) -> RobotState:
        """Send one command, return the newest state."""
        if not self._open_now:
            raise FerryError("exchange() before start()")
        fields = (command.q_des, command.dq_des, command.tau_ff, command.kp, command.kd)
        if not all(np.isfinite(values).all() for values in fields):
            raise FerryError("a command is not finite")
        self._write(*(self._to_bus(values[0]) for values in fields))
        return self._state()

    def ground_truth(self) -> GroundTruth | None:
        """None: only a simulation knows it."""
        return None

    def close(self) -> None:
        """Damp and let go; may be called twice, and after a failure."""
        if self._open_now:
            self._open_now = False
            zero = np.zeros(len(self._slots))
            try:
                self._write(zero, zero, zero, zero, self._to_bus(self._damping_kd))
            finally:
                self._shut()

    def _to_bus(self, values: Array | float) -> Array:
        """``[A]`` in the robot's order -> ``[slots]``; passive joints get zero."""
        out = np.zeros(len(self._slots))
        out[self._driven] = values
        return out

    def _state(self) -> RobotState:
        stamp_ns, q, dq, tau, quat_wb, gyro_b, acc_b = self._read()
        return RobotState(
            stamp_ns=np.array([stamp_ns], dtype=np.int64),
            q=q[self._slots][None],
            dq=dq[self._slots][None],
            tau=tau[self._slots][None],
            quat_wb=quat_wb[None],
            gyro_b=gyro_b[None],
            acc_b=acc_b[None],
            # Report them where you can: temperature [1, J] in °C, voltage [1] in V.
        )

    # ------------------------------------------------------------ yours

    def _open(self) -> None:
        """Connect; raise FerryError with what to do where it fails."""
        raise FerryError("this is the template: fill in _open, _read, _write and _shut of a copy")

    def _read(self) -> tuple[int, Array, Array, Array, Array, Array, Array]:
        """The newest measurement.

        Returns:
            Stamp [ns, ``time.monotonic_ns()`` at reception or better]; positions [rad], velocities
            [rad/s] and efforts [N m] by slot; orientation of the base ``[4]`` wxyz, angular
            velocity ``[3]`` [rad/s] and specific force ``[3]`` [m/s^2], both in the base frame. A
            robot without IMU returns upright and at rest, as here.
        """
        nothing = np.full(len(self._slots), np.nan)
        upright, still = np.array([1.0, 0.0, 0.0, 0.0]), np.zeros(3)
        return (
            time.monotonic_ns(),
            nothing,
            nothing,
            nothing,
            upright,
            still,
            np.array([0, 0, 9.81]),
        )

    def _write(self, q_des: Array, dq_des: Array, tau_ff: Array, kp: Array, kd: Array) -> None:
        """Send all five by slot: tau = kp (q_des - q) + kd (dq_des - dq) + tau_ff in the drive."""
        raise NotImplementedError

    def _shut(self) -> None:
        """Release the connection."""
