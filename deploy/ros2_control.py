"""Robots behind ros2_control: a RobotIO that talks to a controller and to broadcasters.

``ForwardCommandRobot`` publishes for ``forward_command_controller`` on position interfaces; the
trajectory controller has a file of its own, :mod:`deploy.ros2_trajectory`. States come from
``joint_state_broadcaster`` and, where the robot has one, ``imu_sensor_broadcaster``:

    joint_state_broadcaster: {ros__parameters: {use_local_topics: true}}

since ``/joint_states`` is the topic on which robot_node itself publishes what it read.

What such a robot cannot do, and what is therefore asked for by name:

* **It cannot damp.** A position controller knows no gains; the nearest to the safe stop is to hold
  the pose measured when the stop began, stiff, also after a fall. For a robot whose file says
  ``safe_stop: hold`` that is the safe stop; any other is refused unless ``damping=hold`` accepts.
* **Its gains are its drives'.** Those of the robot file, with which the policy was trained, are not
  sent. ``drive_gains=confirmed`` says that somebody set the same in the drives.
* **It does not stop by itself.** Both controllers keep their last target when commands cease, so
  ``command_timeout_s`` is None, and robot_node refuses the robot, unless the option gives the
  time-out that the hardware component has.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import rclpy
from numpy.typing import NDArray
from rcl_interfaces.msg import ParameterValue
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.parameter_client import AsyncParameterClient
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Imu, JointState
from std_msgs.msg import Float64MultiArray

from deploy.convert import JointOrder, StateReader, set_stamp, shared, to_ns
from deploy.introduction import contract_of
from real.errors import FerryError
from real.robot_io import GroundTruth
from real.signals import JointCommand, RobotState
from real.spec import RobotSpec

Array = NDArray[np.float64]

#: Topics of robot_node: a robot that reads them would read itself.
OWN_TOPICS = frozenset({"/joint_states", "/imu/data"})
#: Exchanges between two looks at who else is on the controller's topic.
LOOK_EVERY = 20


class Ros2ControlRobot:
    """What both controllers share; see the module for what the options mean.

    Args:
        robot: names, order, safe stop.
        controller: name of the controller node.
        command_topic: below the controller's name.
        command_type: its message type.
        joint_states: topic of joint_state_broadcaster.
        imu: topic of imu_sensor_broadcaster; not read for a robot without IMU.
        ignore_joints: joints of the topic that are none of the robot's; locked ones are known.
        damping: ``hold`` accepts that a safe stop by damping becomes a stiff hold.
        drive_gains: ``confirmed`` says that the drives have the gains of the robot file.
        period_s: how often to be called [s]; the control period if None.
        command_timeout_s: time-out of the hardware component [s]; None: it has none.
        timeout_s: how long :meth:`start` waits for controller and states [s].

    Raises:
        FerryError: what the robot cannot do was not accepted, or a topic is robot_node's own.
    """

    simulated: bool = False

    def __init__(
        self,
        robot: RobotSpec,
        *,
        controller: str,
        command_topic: str,
        command_type: type,
        joint_states: str = "/joint_state_broadcaster/joint_states",
        imu: str = "/imu_sensor_broadcaster/imu",
        ignore_joints: Sequence[str] = (),
        damping: str = "",
        drive_gains: str = "",
        period_s: float | None = None,
        command_timeout_s: float | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        _require_accepted(robot, controller, damping=damping, drive_gains=drive_gains)
        for topic in {joint_states, imu} & OWN_TOPICS:
            raise FerryError(
                f"{topic} is where robot_node publishes: reading it would close a loop. Let the "
                "broadcaster publish on local topics (use_local_topics: true), or remap it"
            )
        self.period_s: float = robot.control_dt_s if period_s is None else period_s
        self.command_timeout_s: float | None = command_timeout_s
        self._robot = robot
        self._controller = controller.strip("/")
        self._topic = f"/{self._controller}/{command_topic}"
        self._type = command_type
        self._sources = (joint_states, imu if robot.imu_link is not None else "")
        self._ignored = {name for name, _ in robot.locked} | set(ignore_joints)
        self._timeout_s = timeout_s
        self._reader = StateReader(robot.joint_names, contract_of(robot))
        self._ids = robot.actuated_ids
        self._new = threading.Condition()
        self._joints: Any = None
        self._imu: Any = None
        self._hold: Array | None = None
        self._calls = 0
        self._closing = False
        self._node: Any = None

    # ------------------------------------------------------------ RobotIO

    def start(self) -> RobotState:
        """Find controller and broadcasters; nothing is commanded.

        Raises:
            FerryError: one of them is not there in time, another node commands the controller, or
                its joints are not the robot's.
        """
        self._context = rclpy.Context()
        rclpy.init(context=self._context)
        self._node = rclpy.create_node("ferry_ros2_control", context=self._context)
        self._out = self._node.create_publisher(self._type, self._topic, 1)
        quality = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
        listen: Callable[..., Any] = self._node.create_subscription
        listen(JointState, self._sources[0], self._on_joints, quality)
        if self._sources[1]:
            listen(Imu, self._sources[1], self._on_imu, quality)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._thread = threading.Thread(target=self._spin, name="ros2-control", daemon=True)
        self._thread.start()
        wanted = {self._sources[0]: lambda: self._joints, self._sources[1]: lambda: self._imu}
        for topic, there in wanted.items():
            if topic:
                self._wait(there, f"nothing comes on {topic}: is its broadcaster active?")
        self._wait(
            lambda: self._node.count_subscribers(self._topic),
            f"nobody listens on {self._topic}: is the controller active?",
        )
        self._require_alone()
        self._prepare()
        return self._state()

    def exchange(self, command: JointCommand) -> RobotState:
        """Publish one target and return the newest state.

        Raises:
            FerryError: the controller is gone, somebody else commands it, the command has what a
                position controller cannot do, or the state does not fit the robot.
        """
        self._calls += 1
        if self._calls % LOOK_EVERY == 0:
            self._require_alone()
        state = self._state()
        target = self._target(command, state)
        if target is not None:
            self._out.publish(self._message(target))
        return state

    def ground_truth(self) -> GroundTruth | None:
        """None: nobody knows it."""
        return None

    def close(self) -> None:
        """Leave the graph. The controller keeps its last target: see the module."""
        node, self._node = self._node, None
        if node is None:
            return
        self._closing = True
        self._thread.join(timeout=2.0)
        node.destroy_node()
        rclpy.shutdown(context=self._context)

    # ------------------------------------------------------------ of the kind of controller

    def _prepare(self) -> None:
        """After the controller was found, before the first state is returned."""
        raise NotImplementedError

    def _message(self, target: Array) -> Any:
        """The message for targets ``[A]`` of the actuated joints [rad or m]."""
        raise NotImplementedError

    def _joints_of_controller(self) -> list[str]:
        """The parameter ``joints`` of the controller, in its order.

        Raises:
            FerryError: it does not answer, has none, or has others than the robot.
        """
        found = [str(n) for n in self._parameter("joints").string_array_value]
        names = [joint.name for joint in self._robot.actuated]
        JointOrder(names, what=f"the controller {self._controller}").of(found)
        return found

    def _parameter(self, name: str) -> Any:
        """A parameter of the controller; of no type where it has none of that name."""
        client: Any = AsyncParameterClient(self._node, self._controller)
        self._wait(client.services_are_ready, f"{self._controller} offers no parameters")
        future = client.get_parameters([name])
        self._wait(future.done, f"{self._controller} does not tell its parameter {name}")
        # rclcpp tells nothing at all of a name that it does not have.
        return next(iter(future.result().values), ParameterValue())

    # ------------------------------------------------------------ inside

    def _target(self, command: JointCommand, state: RobotState) -> Array | None:
        """What to publish; None where not even the pose to hold is known."""
        if not command.kp.any():
            measured = state.q[0, self._ids]
            if self._hold is None and np.isfinite(measured).all():
                self._hold = measured.copy()
            return self._hold
        self._hold = None
        if command.dq_des.any() or command.tau_ff.any():
            raise FerryError(
                f"{self._controller} takes positions only; the command has velocities or efforts"
            )
        if not np.isfinite(command.q_des).all():
            raise FerryError(f"{self._controller}: a target is not finite")
        return command.q_des[0]

    def _state(self) -> RobotState:
        """The newest state, as old as its older part: a frozen IMU makes the whole state stale."""
        (joints, stamp), imu = self._joints, None
        if self._imu is not None:
            imu, imu_stamp = self._imu
            stamp = min(stamp, imu_stamp)
            set_stamp(imu.header.stamp, stamp)
        set_stamp(joints.header.stamp, stamp)
        state = self._reader.read(joints, imu)
        return dataclasses.replace(state, stamp_ns=np.array([stamp], dtype=np.int64))

    def _on_joints(self, message: Any) -> None:
        with self._new:
            self._joints = _own_joints(message, self._ignored), to_ns(message.header.stamp)
            self._new.notify_all()

    def _on_imu(self, message: Any) -> None:
        with self._new:
            self._imu = message, to_ns(message.header.stamp)
            self._new.notify_all()

    def _require_alone(self) -> None:
        writers = self._node.count_publishers(self._topic)
        readers = self._node.count_subscribers(self._topic)
        if writers > 1:
            raise FerryError(f"{writers} publishers on {self._topic}: two who command are none")
        if not readers:
            raise FerryError(f"nobody listens on {self._topic} any more: the controller is gone")

    def _wait(self, there: Callable[[], Any], complaint: str) -> None:
        deadline = time.monotonic() + self._timeout_s
        with self._new:
            # The graph changes without a message, so the condition alone would not wake us.
            while not there():
                if time.monotonic() > deadline:
                    raise FerryError(f"{complaint} (waited {self._timeout_s:g} s)")
                self._new.wait(timeout=0.02)

    def _spin(self) -> None:
        with contextlib.suppress(ExternalShutdownException):
            while not self._closing:
                self._executor.spin_once(timeout_sec=0.05)


class ForwardCommandRobot(Ros2ControlRobot):
    """Publishes for ``forward_command_controller`` or ``position_controllers``.

    The message has no names, so the order is asked of the controller: its parameter ``joints``. Nor
    does it say what its numbers are, so ``interface_name`` must be ``position``.

    Args:
        robot: names, order, safe stop.
        controller: name of the controller node.
        options: of :class:`Ros2ControlRobot`.
    """

    def __init__(
        self, robot: RobotSpec, *, controller: str = "forward_position_controller", **options: Any
    ) -> None:
        super().__init__(
            robot,
            controller=controller,
            command_topic="commands",
            command_type=Float64MultiArray,
            **options,
        )

    def _prepare(self) -> None:
        drives = self._parameter("interface_name").string_value
        if drives != "position":
            raise FerryError(
                f"{self._controller} commands the interface {drives!r} (its interface_name); "
                "expected 'position': it would take positions for something else"
            )
        place = {joint.name: i for i, joint in enumerate(self._robot.actuated)}
        self._slots = np.array([place[n] for n in self._joints_of_controller()], dtype=np.intp)
        self._filled: Any = Float64MultiArray()
        self._data = shared(self._filled, "data", len(self._slots))

    def _message(self, target: Array) -> Any:
        self._data[:] = target[self._slots]
        return self._filled


def _own_joints(message: Any, ignored: set[str]) -> Any:
    """A JointState without joints that are none of the robot's and without unmeasured efforts.

    joint_state_broadcaster writes NaN for an interface that a joint does not have.
    """
    keep = [i for i, name in enumerate(message.name) if name not in ignored]
    if len(message.effort) and np.isnan(np.asarray(message.effort)[keep]).all():
        message.effort = []
    if len(keep) < len(message.name):
        count = len(message.name)
        for field in ("position", "velocity", "effort"):
            values = getattr(message, field)
            if len(values) == count:
                setattr(message, field, [values[i] for i in keep])
        message.name = [message.name[i] for i in keep]
    return message


def _require_accepted(robot: RobotSpec, controller: str, *, damping: str, drive_gains: str) -> None:
    if damping not in ("", "hold"):
        raise FerryError(f"option damping is {damping!r}; expected hold, or nothing")
    if robot.safe_stop == "damp" and damping != "hold":
        raise FerryError(
            f"{controller} takes positions and cannot damp, which is the safe stop of "
            f"{robot.name!r}: it would hold the measured pose, stiff, also after a fall. Accept "
            "that with --option damping=hold, or use a driver that takes gains"
        )
    if drive_gains != "confirmed":
        gains = ", ".join(f"{j.name} {j.kp:g}/{j.kd:g}" for j in robot.actuated)
        raise FerryError(
            f"{controller} uses the gains of its drives, not those the policy was trained with. "
            f"Set kp/kd there to {gains}; then --option drive_gains=confirmed"
        )
