"""The adapters for ros2_control, against a fake controller and broadcasters over DDS.

Its joint orders are permuted and differ from each other, since equal orders hide a wrong map.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from sensor_msgs.msg import Imu, JointState
from std_msgs.msg import Float64MultiArray

from deploy.convert import set_stamp
from deploy.ros2_control import ForwardCommandRobot
from real.errors import FerryError
from real.robot_io import RobotIO
from real.signals import JointCommand
from real.spec import load_robot
from tests.deploy.ros_probe import describe, running, with_parameters
from tests.extras import need

pytestmark = pytest.mark.ros

PATIENCE_S = 60.0
ACCEPTED = {"drive_gains": "confirmed", "timeout_s": PATIENCE_S}


class Controller:
    """A controller manager as seen from outside: its parameter, its topics, its broadcasters."""

    def __init__(self, spec, name, topic, kind, *, joints=None, interface="position"):
        self.context = rclpy.Context()
        rclpy.init(context=self.context)
        self.node = rclpy.create_node(name, context=self.context)
        names = [joint.name for joint in spec.actuated]
        self.joints = [*names[1:], names[0]] if joints is None else joints
        if self.joints:
            self.node.declare_parameter("joints", self.joints)
        if interface:
            self.node.declare_parameter("interface_name", interface)
        self.received = []
        self._new = threading.Condition()
        self.node.create_subscription(kind, f"/{name}/{topic}", self._take, 10)
        broadcast = self.node.create_publisher
        self._states = broadcast(JointState, "/joint_state_broadcaster/joint_states", 1)
        self._imus = broadcast(Imu, "/imu_sensor_broadcaster/imu", 1)
        self.frame = spec.base_link
        # The state's order is another one, with a finger that is none of the policy's joints.
        self.order = [*reversed(spec.joint_names), *(name for name, _ in spec.locked)]
        self.q = {name: 0.1 * i for i, name in enumerate(spec.joint_names)}
        self.speed = 2.0  # velocity as a multiple of position
        self.gyro_x = 0.3
        self.imu_stamp_ns = None
        self.stamp_ns = 0
        self._ticks = 0
        self.node.create_timer(0.01, self._broadcast)
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.node)
        self._running = True
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    def _spin(self):
        while self._running:
            self._executor.spin_once(timeout_sec=0.05)

    def _take(self, message):
        with self._new:
            self.received.append(message)
            self._new.notify_all()

    def _broadcast(self):
        self._ticks += 1
        self.stamp_ns = time.time_ns()
        state = JointState(name=self.order)
        state.position = [self.q.get(name, 0.7) for name in self.order]
        state.velocity = [self.speed * p for p in state.position]
        state.effort = [float("nan")] * len(self.order)
        set_stamp(state.header.stamp, self.stamp_ns)
        self._states.publish(state)
        imu = Imu()
        imu.header.frame_id = self.frame
        imu.orientation.w, imu.orientation.z = 0.6, 0.8
        imu.angular_velocity.x, imu.linear_acceleration.z = self.gyro_x, 9.7
        set_stamp(imu.header.stamp, self.imu_stamp_ns or self.stamp_ns)
        self._imus.publish(imu)

    def until(self, condition):
        with self._new:
            assert self._new.wait_for(condition, timeout=PATIENCE_S), self.received[-1:]

    def close(self):
        self._running = False
        self._thread.join(timeout=5.0)
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


@pytest.fixture
def opened():
    """Closes what a test opened, last first."""
    things = []
    yield lambda thing: things.append(thing) or thing
    for thing in reversed(things):
        thing.close()


@pytest.fixture(scope="module")
def panda():
    return load_robot("panda")


@pytest.fixture(scope="module")
def a1():
    return load_robot("a1")


def forward(spec, **options):
    return Controller(spec, "forward_position_controller", "commands", Float64MultiArray, **options)


def position(spec, q):
    stamp = np.zeros(1, dtype=np.int64)
    gains = {"kp": spec.actuated_array("kp"), "kd": spec.actuated_array("kd")}
    return JointCommand.position(stamp, np.asarray(q, dtype=np.float64)[None], **gains)


def damping(spec):
    return JointCommand.damping(np.zeros(1, dtype=np.int64), len(spec.actuated), damping_kd=3.0)


def test_targets_arrive_in_the_controllers_order_and_states_come_back_by_name(panda, opened):
    fake = opened(forward(panda))
    robot = opened(ForwardCommandRobot(panda, **ACCEPTED))
    assert isinstance(robot, RobotIO)
    state = robot.start()
    np.testing.assert_allclose(state.q[0], [fake.q[n] for n in panda.joint_names])
    np.testing.assert_allclose(state.dq[0], 2.0 * state.q[0])
    np.testing.assert_array_equal(state.tau, np.zeros_like(state.q))  # NaN there: not measured
    targets = np.linspace(-0.5, 0.9, len(panda.actuated))
    robot.exchange(position(panda, targets))
    fake.until(lambda: fake.received)
    by_name = dict(zip((j.name for j in panda.actuated), targets, strict=True))
    assert list(fake.received[-1].data) == pytest.approx([by_name[n] for n in fake.joints])
    assert fake.joints != [j.name for j in panda.actuated]


def test_the_graph_stands_a_robot_behind_a_controller_and_its_node_refuses_one_without_time_out(
    a1, opened, tmp_path
):
    fake = opened(forward(a1))
    fake.q = {joint.name: joint.q_default for joint in a1.joints}
    fake.speed = fake.gyro_x = 0.0
    options = {"damping": "hold", **ACCEPTED}
    plugin = {"plugin": "deploy.ros2_control:ForwardCommandRobot"}

    def described(**more):
        text = json.dumps({**options, **more})
        return with_parameters(describe(tmp_path), "robot_node", plugin_options=text, **plugin)

    with running(described(command_timeout_s=0.2), tmp_path) as (_, probe):
        probe.arm()
        before = len(fake.received)
        fake.until(lambda: len(fake.received) > before + 5)
        # A standing policy asks for the default pose, give or take what its ramp leaves.
        default = [fake.q[name] for name in fake.joints]
        np.testing.assert_allclose(fake.received[-1].data, default, atol=0.05)
        probe.until(lambda: probe.states, "a state of the robot")
        assert probe.states[-1].name == list(a1.joint_names)
    spec = next(n for n in described().nodes if n.name == "robot_node")
    environment = {**os.environ, **described().environment}
    ended = subprocess.run(
        spec.command(), capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert ended.returncode == 2
    assert "declares no command_timeout_s" in ended.stderr


def test_an_imu_comes_with_the_state_and_a_frozen_one_makes_it_stale(a1, opened):
    fake = opened(forward(a1))
    robot = opened(ForwardCommandRobot(a1, damping="hold", **ACCEPTED))
    state = robot.start()
    np.testing.assert_allclose(state.quat_wb[0], [0.6, 0.0, 0.0, 0.8])
    np.testing.assert_allclose(state.gyro_b[0], [0.3, 0.0, 0.0])
    np.testing.assert_allclose(state.acc_b[0], [0.0, 0.0, 9.7])
    frozen = fake.imu_stamp_ns = time.time_ns()
    hold = position(a1, a1.actuated_array("q_default"))
    deadline = time.monotonic() + PATIENCE_S
    while robot.exchange(hold).stamp_ns[0] != frozen:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    later = fake.stamp_ns + 50_000_000
    while fake.stamp_ns < later:
        time.sleep(0.01)
    assert robot.exchange(hold).stamp_ns[0] == frozen


def test_a_damping_stop_holds_the_pose_measured_when_it_began(a1, opened):
    fake = opened(forward(a1))
    robot = opened(ForwardCommandRobot(a1, damping="hold", **ACCEPTED))
    began = robot.start().q[0]
    robot.exchange(damping(a1))
    fake.q = {name: q + 1.0 for name, q in fake.q.items()}  # somebody pushes it
    deadline = time.monotonic() + PATIENCE_S
    while robot.exchange(damping(a1)).q[0, 0] < began[0] + 0.5:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    fake.until(lambda: len(fake.received) > 1)
    held = dict(zip(a1.joint_names, began, strict=True))
    for message in fake.received:
        assert list(message.data) == pytest.approx([held[n] for n in fake.joints])


def test_what_a_position_controller_cannot_do_is_refused_until_it_is_accepted(a1, panda):
    with pytest.raises(FerryError, match=r"cannot damp.*--option damping=hold"):
        ForwardCommandRobot(a1, **ACCEPTED)
    with pytest.raises(FerryError, match=r"FR_hip_joint 40/1.*drive_gains=confirmed"):
        ForwardCommandRobot(with_gains(a1), damping="hold")
    with pytest.raises(FerryError, match="drive_gains"):
        ForwardCommandRobot(panda)
    with pytest.raises(FerryError, match="expected hold"):
        ForwardCommandRobot(panda, damping="soft", **ACCEPTED)
    with pytest.raises(FerryError, match=r"close a loop.*use_local_topics"):
        ForwardCommandRobot(panda, joint_states="/joint_states", **ACCEPTED)
    # No time-out of its own: robot_node refuses it, unless the hardware component has one.
    assert ForwardCommandRobot(panda, **ACCEPTED).command_timeout_s is None
    assert ForwardCommandRobot(panda, command_timeout_s=0.1, **ACCEPTED).command_timeout_s == 0.1


def with_gains(spec):
    return replace(spec, joints=tuple(replace(j, kp=40.0, kd=1.0) for j in spec.joints))


def test_velocities_efforts_and_nan_are_not_dropped_silently(panda, opened):
    opened(forward(panda))
    robot = opened(ForwardCommandRobot(panda, **ACCEPTED))
    robot.start()
    good = position(panda, panda.actuated_array("q_default"))
    with pytest.raises(FerryError, match="velocities or efforts"):
        robot.exchange(replace(good, tau_ff=np.ones_like(good.q_des)))
    with pytest.raises(FerryError, match="not finite"):
        robot.exchange(replace(good, q_des=np.full_like(good.q_des, np.nan)))


def test_a_controller_of_other_joints_is_refused_by_name(panda, opened):
    names = [j.name for j in panda.actuated]
    opened(forward(panda, joints=[*names[:-1], "panda_joint9"]))
    robot = opened(ForwardCommandRobot(panda, **ACCEPTED))
    with pytest.raises(FerryError, match="'panda_joint7' is missing, 'panda_joint9' is unknown"):
        robot.start()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"interface": "effort"}, r"the interface 'effort' .*expected 'position'"),
        ({"interface": ""}, r"the interface '' .*expected 'position'"),
        ({"joints": []}, "'panda_joint1' is missing"),
    ],
)
def test_a_controller_that_takes_no_positions_or_names_no_joints_is_refused(
    panda, opened, options, words
):
    opened(forward(panda, **options))
    robot = opened(ForwardCommandRobot(panda, **ACCEPTED))
    with pytest.raises(FerryError, match=words):
        robot.start()


def test_a_second_publisher_ends_it_and_so_does_a_controller_that_went_away(panda, opened):
    fake = forward(panda)
    robot = opened(ForwardCommandRobot(panda, **ACCEPTED))
    robot.start()
    rival = fake.node.create_publisher(
        Float64MultiArray, "/forward_position_controller/commands", 1
    )
    good = position(panda, panda.actuated_array("q_default"))

    def fails(words):
        deadline = time.monotonic() + PATIENCE_S
        with pytest.raises(FerryError, match=words):
            while time.monotonic() < deadline:
                robot.exchange(good)
                time.sleep(0.002)

    fails("2 publishers")
    fake.node.destroy_publisher(rival)
    fake.close()
    deadline = time.monotonic() + PATIENCE_S
    while True:  # the rival is forgotten a little later than the controller, or before
        with pytest.raises(FerryError) as ended:
            for _ in range(10_000):
                robot.exchange(good)
                time.sleep(0.002)
        if "the controller is gone" in str(ended.value):
            return
        assert time.monotonic() < deadline


def test_without_a_controller_start_says_what_is_missing(panda, opened):
    robot = opened(ForwardCommandRobot(panda, drive_gains="confirmed", timeout_s=0.2))
    with pytest.raises(FerryError, match="nothing comes on /joint_state_broadcaster/joint_states"):
        robot.start()


def test_a_trajectory_has_one_point_in_the_controllers_order_and_is_due_soon(panda, opened):
    messages = need("trajectory_msgs.msg")
    from deploy.ros2_trajectory import JointTrajectoryRobot

    fake = opened(
        Controller(
            panda, "joint_trajectory_controller", "joint_trajectory", messages.JointTrajectory
        )
    )
    robot = opened(JointTrajectoryRobot(panda, horizon_s=0.04, **ACCEPTED))
    robot.start()
    targets = np.linspace(-0.5, 0.9, len(panda.actuated))
    robot.exchange(position(panda, targets))
    fake.until(lambda: fake.received)
    message = fake.received[-1]
    assert list(message.joint_names) == fake.joints
    (point,) = message.points
    by_name = dict(zip((j.name for j in panda.actuated), targets, strict=True))
    assert list(point.positions) == pytest.approx([by_name[n] for n in fake.joints])
    assert (point.time_from_start.sec, point.time_from_start.nanosec) == (0, 40_000_000)
    assert (message.header.stamp.sec, message.header.stamp.nanosec) == (0, 0)
    with pytest.raises(FerryError, match="expected > 0"):
        JointTrajectoryRobot(panda, horizon_s=0.0, **ACCEPTED)
