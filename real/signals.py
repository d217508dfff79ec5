"""What a robot reports and what it accepts, for N robots at once (N = 1 on hardware).

J counts every joint of the :class:`~real.spec.RobotSpec` in its order, A the actuated ones among
them in the same order. Arrays are float64; stamps are nanoseconds of the clock that the source
of the signal uses (monotonic, or simulated time).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Stamps = NDArray[np.int64]


@dataclass(frozen=True)
class RobotState:
    """One measurement of N robots.

    Attributes:
        stamp_ns: ``[N]`` time of measurement [ns].
        q: ``[N, J]`` joint positions [rad or m].
        dq: ``[N, J]`` joint velocities [rad/s or m/s].
        tau: ``[N, J]`` measured or estimated efforts [N m or N]; zero where not measured.
        quat_wb: ``[N, 4]`` base orientation, wxyz.
        gyro_b: ``[N, 3]`` angular velocity in the base frame [rad/s].
        acc_b: ``[N, 3]`` specific force in the base frame [m/s^2] (0, 0, +9.81 at rest).
        temperature: ``[N, J]`` of the motors [°C], NaN where one does not report it; None where
            none does. What is not reported is not checked; see :mod:`deploy.vitals`.
        voltage: ``[N]`` of the battery [V], the same.
        height: ``[N]`` of the base above the ground, as somebody estimates it [m], the same.
    """

    stamp_ns: Stamps
    q: Array
    dq: Array
    tau: Array
    quat_wb: Array
    gyro_b: Array
    acc_b: Array
    temperature: Array | None = None
    voltage: Array | None = None
    height: Array | None = None

    @property
    def num(self) -> int:
        """Number of robots, N."""
        return self.q.shape[0]

    @staticmethod
    def zeros(num: int, joints: int) -> RobotState:
        """Upright, at rest, all joints at zero."""
        quat = np.zeros((num, 4))
        quat[:, 0] = 1.0
        acc = np.zeros((num, 3))
        acc[:, 2] = 9.81
        return RobotState(
            stamp_ns=np.zeros(num, dtype=np.int64),
            q=np.zeros((num, joints)),
            dq=np.zeros((num, joints)),
            tau=np.zeros((num, joints)),
            quat_wb=quat,
            gyro_b=np.zeros((num, 3)),
            acc_b=acc,
        )

    def reported(self) -> dict[str, Any]:
        """The signals by name, without those that nobody reports."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def of(self, rows: NDArray[np.intp]) -> RobotState:
        """What robots ``rows`` report, copied."""
        return RobotState(**{name: value[rows] for name, value in self.reported().items()})

    def finite(self) -> NDArray[np.bool_]:
        """``[N]`` whether everything that every robot reports is finite."""
        parts = (self.q, self.dq, self.tau, self.quat_wb, self.gyro_b, self.acc_b)
        good = np.ones(self.num, dtype=bool)
        for part in parts:
            good &= np.isfinite(part).all(axis=-1)
        return good


@dataclass(frozen=True)
class JointCommand:
    """Targets of the actuated joints: tau = kp (q_des - q) + kd (dq_des - dq) + tau_ff.

    Damping is ``kp = 0, dq_des = 0, tau_ff = 0, kd = damping_kd``; see :meth:`damping`.

    Attributes:
        stamp_ns: ``[N]`` stamp of the state this command answers [ns].
        q_des: ``[N, A]`` [rad or m].
        dq_des: ``[N, A]`` [rad/s or m/s].
        tau_ff: ``[N, A]`` [N m or N].
        kp: ``[N, A]`` [N m/rad or N/m].
        kd: ``[N, A]`` [N m s/rad or N s/m].
    """

    stamp_ns: Stamps
    q_des: Array
    dq_des: Array
    tau_ff: Array
    kp: Array
    kd: Array

    @property
    def num(self) -> int:
        """Number of robots, N."""
        return self.q_des.shape[0]

    @staticmethod
    def position(stamp_ns: Stamps, q_des: Array, *, kp: Array, kd: Array) -> JointCommand:
        """Position targets ``[N, A]`` under the gains ``[A]``, or ``[N, A]``, which is faster."""
        zero = np.zeros(q_des.shape)
        return JointCommand(
            stamp_ns=stamp_ns,
            q_des=q_des,
            dq_des=zero,
            tau_ff=zero,
            kp=kp if kp.shape == q_des.shape else np.broadcast_to(kp, q_des.shape),
            kd=kd if kd.shape == q_des.shape else np.broadcast_to(kd, q_des.shape),
        )

    @staticmethod
    def damping(stamp_ns: Stamps, joints: int, *, damping_kd: float) -> JointCommand:
        """Resist motion with ``damping_kd`` and nothing else: the safe stop of a legged robot."""
        zero = np.zeros((stamp_ns.shape[0], joints))
        return JointCommand(
            stamp_ns=stamp_ns,
            q_des=zero,
            dq_des=zero,
            tau_ff=zero,
            kp=zero,
            kd=np.full_like(zero, damping_kd),
        )
