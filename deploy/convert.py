"""Messages <-> signals: the one place that knows both, by name and with checks.

Reading refuses what does not fit (:class:`~real.errors.FerryError` says why) and never guesses;
writing reuses its message, since a new one for every tick is most of what a tick would cost.
The wire is section 4 of the design: JointState carries states and commands, joints are mapped by
name in every message, an empty position is the safe stop.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PointStamped, PoseStamped, Twist, TwistStamped
from nav_msgs.msg import Odometry
from numpy.typing import NDArray
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import BatteryState, Imu, JointState, Temperature
from std_msgs.msg import Float64MultiArray, String

from real.contract import RobotContract
from real.errors import FerryError, nearest
from real.frames import conjugate, multiply, rotate, rotate_inverse
from real.signals import RobotState

Array = NDArray[np.float64]

#: The wire: topic -> message type. `/cmd_vel` is a TwistStamped where a parameter says so.
TOPICS: dict[str, type] = {
    "/joint_states": JointState,
    "/imu/data": Imu,
    "/motor_temperatures": Temperature,
    "/battery_state": BatteryState,
    "/base_height": PointStamped,
    "/cmd_vel": Twist,
    "/target_pose": PoseStamped,
    "/policy/joint_command": JointState,
    "/joint_command": JointState,
    "/policy/step": Float64MultiArray,
    "/safety/mode": String,
    "/safety/step": Float64MultiArray,
    "/diagnostics": DiagnosticArray,
    "/robot/contract": String,
    "/ground_truth/odom": Odometry,
    "/ground_truth/domain": String,
    "/clock": Clock,
}
#: Topics whose last message late subscribers must get.
LATCHED = frozenset({"/safety/mode", "/robot/contract", "/ground_truth/domain"})


def type_name(type_: type) -> str:
    """A message type as ROS names it, e.g. ``sensor_msgs/msg/JointState``."""
    return f"{type_.__module__.split('.')[0]}/msg/{type_.__name__}"


def to_ns(stamp: Any) -> int:
    """Nanoseconds of a builtin_interfaces/Time."""
    return stamp.sec * 1_000_000_000 + stamp.nanosec


def set_stamp(stamp: Any, ns: int) -> None:
    """Write nanoseconds into a builtin_interfaces/Time."""
    stamp.sec, stamp.nanosec = divmod(int(ns), 1_000_000_000)


class JointOrder:
    """Maps the joints of a message to a fixed order, by name.

    Args:
        names: the order wanted.
        what: who sends, for messages to the user.
    """

    def __init__(self, names: Sequence[str], *, what: str) -> None:
        self.names = tuple(names)
        self._what = what
        self._seen: list[str] | None = None
        self._order: NDArray[np.intp] = np.arange(len(self.names))

    def of(self, found: Sequence[str]) -> NDArray[np.intp]:
        """Positions of the wanted joints among ``found``.

        Raises:
            FerryError: a joint is missing, unknown or named twice; all of them are listed.
        """
        if found == self._seen:  # senders keep their order, so this is one list comparison
            return self._order
        place = {name: i for i, name in enumerate(found)}
        missing = [n for n in self.names if n not in place]
        extra = [n for n in place if n not in self.names]
        wrong = [f"{n!r} is missing" for n in missing]
        wrong += [f"{n!r} is unknown{nearest(n, missing)}" for n in extra]
        if len(place) != len(found):
            twice = sorted({n for n in found if list(found).count(n) > 1})
            wrong += [f"{n!r} is named twice" for n in twice]
        if wrong:
            raise FerryError(f"joints of {self._what}: {', '.join(wrong)}")
        self._order = np.array([place[n] for n in self.names], dtype=np.intp)
        self._seen = list(found)
        return self._order


def _joint_values(values: Any, order: NDArray[np.intp], what: str) -> Array:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.shape != order.shape:
        raise FerryError(f"{what}: {numbers.size} values for {order.size} joints")
    return numbers[order]


class StateReader:
    """Joint and IMU messages -> RobotState in a joint order of choice and the base frame.

    Args:
        joints: all joints in the order wanted, e.g. the policy's.
        robot: frames, as the robot reports them.
    """

    def __init__(self, joints: Sequence[str], robot: RobotContract) -> None:
        self._robot = robot
        self._order = JointOrder(joints, what="/joint_states")
        self._rotation = np.asarray(robot.imu_rotation, dtype=np.float64)
        self._identity = bool(np.array_equal(self._rotation, (1.0, 0.0, 0.0, 0.0)))

    def order(self, names: Sequence[str]) -> NDArray[np.intp]:
        """Places of the wanted joints among ``names``; see :meth:`JointOrder.of`."""
        return self._order.of(names)

    def read(self, joints: Any, imu: Any | None) -> RobotState:
        """One state (N = 1) of messages that carry the same stamp.

        Args:
            joints: sensor_msgs/JointState.
            imu: sensor_msgs/Imu, or None for a robot without one: upright and at rest, which is
                true of a fixed base; a floating one without IMU is refused (deploy/agreement.py).

        Raises:
            FerryError: joints, sizes or frames do not fit, or the stamps differ.
        """
        order = self._order.of(joints.name)
        q = _joint_values(joints.position, order, "/joint_states position")
        dq = _joint_values(joints.velocity, order, "/joint_states velocity")
        if len(joints.effort):
            tau = _joint_values(joints.effort, order, "/joint_states effort")
        else:
            tau = np.zeros_like(q)
        stamp = to_ns(joints.header.stamp)
        if imu is None:
            quat, gyro, acc = np.array([1.0, 0, 0, 0]), np.zeros(3), np.array([0, 0, 9.81])
        else:
            if to_ns(imu.header.stamp) != stamp:
                raise FerryError("/imu/data and /joint_states carry different stamps")
            quat, gyro, acc = self._imu(imu)
        return RobotState(
            stamp_ns=np.array([stamp], dtype=np.int64),
            q=q[None],
            dq=dq[None],
            tau=tau[None],
            quat_wb=quat[None],
            gyro_b=gyro[None],
            acc_b=acc[None],
        )

    def _imu(self, imu: Any) -> tuple[Array, Array, Array]:
        frame, robot = str(imu.header.frame_id), self._robot
        if frame not in (robot.base_link, robot.imu_link):
            raise FerryError(
                f"/imu/data is in frame {frame!r}; expected {robot.base_link!r} or "
                f"{robot.imu_link!r}"
            )
        if imu.orientation_covariance[0] == -1.0:
            raise FerryError("/imu/data has no orientation (its covariance begins with -1)")
        o, g, a = imu.orientation, imu.angular_velocity, imu.linear_acceleration
        quat = np.array([o.w, o.x, o.y, o.z])
        return self.in_base(frame, quat, np.array([g.x, g.y, g.z]), np.array([a.x, a.y, a.z]))

    def in_base(
        self, frame: str, quat: Array, gyro: Array, acc: Array
    ) -> tuple[Array, Array, Array]:
        """Quaternion ``[4]``, angular velocity and acceleration ``[3]`` of an IMU, of the base."""
        if frame == self._robot.base_link or self._identity:
            return quat, gyro, acc
        # q_wb = q_wi q_ib, v_b = R_bi v_i
        back = conjugate(self._rotation)
        return multiply(quat, back), rotate(self._rotation, gyro), rotate(self._rotation, acc)


class StateWriter:
    """RobotState -> JointState and Imu messages, reused from call to call.

    Args:
        robot: names, order, frames.
        imu_in_base: write the IMU in the base frame instead of its link's, for computers that
            do not have the description with the rotation between the two.
    """

    def __init__(self, robot: RobotContract, *, imu_in_base: bool = False) -> None:
        self.joints: Any = JointState()
        self.joints.name = list(robot.joints)
        self._q = shared(self.joints, "position", len(robot.joints))
        self._dq = shared(self.joints, "velocity", len(robot.joints))
        self._tau = shared(self.joints, "effort", len(robot.joints))
        self.imu: Any = Imu()
        in_base = imu_in_base or robot.imu_link is None
        self.imu.header.frame_id = robot.base_link if in_base else robot.imu_link
        self._rotation = np.asarray(robot.imu_rotation, dtype=np.float64)
        self._identity = in_base or robot.imu_rotation == (1.0, 0.0, 0.0, 0.0)

    def write(self, state: RobotState, stamp_ns: int) -> None:
        """Fill :attr:`joints` and :attr:`imu` from row 0 of a state."""
        set_stamp(self.joints.header.stamp, stamp_ns)
        set_stamp(self.imu.header.stamp, stamp_ns)
        self._q[:] = state.q[0]
        self._dq[:] = state.dq[0]
        self._tau[:] = state.tau[0]
        quat, gyro, acc = state.quat_wb[0], state.gyro_b[0], state.acc_b[0]
        if not self._identity:
            quat = multiply(quat, self._rotation)
            gyro, acc = rotate_inverse(self._rotation, gyro), rotate_inverse(self._rotation, acc)
        set_quaternion(self.imu.orientation, quat)
        set_vector(self.imu.angular_velocity, gyro)
        set_vector(self.imu.linear_acceleration, acc)


class CommandWriter:
    """Joint targets -> the JointState that commands them, reused from call to call."""

    def __init__(self, actuated: Sequence[str]) -> None:
        self._targets: Any = JointState()
        self._targets.name = list(actuated)
        self._q = shared(self._targets, "position", len(actuated))
        self._stop: Any = JointState()

    def targets(self, stamp_ns: int, q_des: Array) -> Any:
        """Absolute position targets ``[A]`` [rad or m]."""
        set_stamp(self._targets.header.stamp, stamp_ns)
        self._q[:] = q_des
        return self._targets

    def safe_stop(self, stamp_ns: int) -> Any:
        """The empty command: damping, or hold for robots whose contract says so."""
        set_stamp(self._stop.header.stamp, stamp_ns)
        return self._stop


class CommandReader:
    """JointState -> joint targets in contract order."""

    def __init__(self, actuated: Sequence[str], *, what: str) -> None:
        self._what = what
        self._order = JointOrder(actuated, what=what)

    def read(self, message: Any) -> Array | None:
        """``[A]`` targets [rad or m], NaN and infinities included; None for the safe stop.

        Raises:
            FerryError: joints or sizes do not fit, or it carries velocities or efforts, which
                this wire does not have: ignoring them would move the robot otherwise than asked.
        """
        if len(message.velocity) or len(message.effort):
            raise FerryError(f"{self._what}: velocity and effort must be empty in a command")
        if not len(message.position):
            return None
        return _joint_values(message.position, self._order.of(message.name), self._what)


def read_twist(message: Any, names: Sequence[str]) -> Array:
    """``[C]`` a velocity command in the base frame, by the names of the contract.

    Raises:
        FerryError: a name that a twist does not have, or a number that is not finite.
    """
    twist = message.twist if isinstance(message, TwistStamped) else message
    parts = {
        "vx": twist.linear.x,
        "vy": twist.linear.y,
        "vz": twist.linear.z,
        "wx": twist.angular.x,
        "wy": twist.angular.y,
        "wz": twist.angular.z,
    }
    unknown = [n for n in names if n not in parts]
    if unknown:
        raise FerryError(f"/cmd_vel cannot carry {unknown}; a twist has {', '.join(parts)}")
    values = np.array([parts[n] for n in names], dtype=np.float64)
    if not np.isfinite(values).all():
        raise FerryError(f"/cmd_vel is not finite: {dict(zip(names, values, strict=True))}")
    return values


def make_twist(values: Sequence[float], names: Sequence[str]) -> Any:
    """The Twist whose named parts are ``values``; the inverse of :func:`read_twist`."""
    message: Any = Twist()
    groups = {"v": message.linear, "w": message.angular}
    for name, value in zip(names, values, strict=True):
        setattr(groups[name[0]], name[1], float(value))
    return message


def read_pose(message: Any, frame: str) -> Array:
    """``[7]`` position [m] and quaternion wxyz of a PoseStamped in the base frame, as it is.

    Raises:
        FerryError: it is in another frame than ``frame``; nothing here knows how those two lie.
    """
    found = message.header.frame_id
    if found != frame:
        raise FerryError(
            f"/target_pose is in frame {found!r}; expected {frame!r}, the robot's base link"
        )
    p, o = message.pose.position, message.pose.orientation
    return np.array([p.x, p.y, p.z, o.w, o.x, o.y, o.z], dtype=np.float64)


def make_pose(values: Sequence[float], frame: str) -> Any:
    """The PoseStamped of ``[7]`` values; the inverse of :func:`read_pose`."""
    message: Any = PoseStamped()
    message.header.frame_id = frame
    numbers = np.asarray(values, dtype=np.float64)
    set_vector(message.pose.position, numbers[:3])
    set_quaternion(message.pose.orientation, numbers[3:])
    return message


def shared(message: Any, field: str, size: int) -> Array:
    """A numpy view of the memory of a message's float64 sequence, made ``size`` long."""
    setattr(message, field, array("d", bytes(8 * size)))
    # Read back: the setter may have copied.
    return np.frombuffer(getattr(message, field), dtype=np.float64)


def set_vector(out: Any, v: Array) -> None:
    """Write ``[3]`` into a Vector3 or Point."""
    out.x, out.y, out.z = float(v[0]), float(v[1]), float(v[2])


def set_quaternion(out: Any, q: Array) -> None:
    """Write ``[4]`` wxyz into a Quaternion."""
    out.w, out.x, out.y, out.z = float(q[0]), float(q[1]), float(q[2]), float(q[3])
