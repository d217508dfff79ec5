from __future__ import annotations

import numpy as np
import pytest

from tests.extras import reason

pytest.importorskip("sensor_msgs", reason=reason("sensor_msgs"))

from dataclasses import replace

from geometry_msgs.msg import Twist, TwistStamped
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import Imu, JointState

from deploy.convert import (
    TOPICS,
    CommandReader,
    CommandWriter,
    JointOrder,
    StateReader,
    StateWriter,
    make_pose,
    make_twist,
    read_pose,
    read_twist,
    set_stamp,
    to_ns,
)
from deploy.records import StepRecord, StepWriter, diagnostics, read_step
from real.contract import RobotContract
from real.errors import FerryError
from real.frames import from_rpy, projected_gravity
from real.signals import RobotState
from real.spec import load_robot

NAMES = ("a", "b", "c", "d")
STAMP = 1_700_000_000_123_456_789


@pytest.fixture
def robot():
    """A four-joint robot whose IMU is mounted rolled, pitched and yawed."""
    contract = RobotContract.from_spec(load_robot("a1"))
    rotation = from_rpy([0.4, -1.1, 2.0])
    return replace(
        contract,
        joints=NAMES,
        base_link="trunk",
        imu_link="imu_link",
        imu_rotation=tuple(rotation.tolist()),
    )


def a_state(rng):
    quat = rng.normal(size=4)
    return RobotState(
        stamp_ns=np.array([5]),
        q=rng.normal(size=(1, 4)),
        dq=rng.normal(size=(1, 4)),
        tau=rng.normal(size=(1, 4)),
        quat_wb=(quat / np.linalg.norm(quat))[None],
        gyro_b=rng.normal(size=(1, 3)),
        acc_b=rng.normal(size=(1, 3)),
    )


def over_the_wire(message):
    return deserialize_message(serialize_message(message), type(message))


def test_stamps_survive_to_the_nanosecond():
    message = JointState()
    for ns in (0, 1, STAMP, 2**31 * 10**9 - 1):
        set_stamp(message.header.stamp, ns)
        assert to_ns(over_the_wire(message).header.stamp) == ns


def test_a_state_arrives_as_it_left_with_joints_permuted_and_the_imu_turned(robot):
    rng = np.random.default_rng(0)
    writer = StateWriter(robot)
    wanted = ("c", "a", "d", "b")
    reader = StateReader(wanted, robot)
    for _ in range(3):  # the messages are reused: nothing of the first may stay
        state = a_state(rng)
        writer.write(state, STAMP)
        got = reader.read(over_the_wire(writer.joints), over_the_wire(writer.imu))
        order = [NAMES.index(n) for n in wanted]
        for key in ("q", "dq", "tau"):
            np.testing.assert_array_equal(getattr(got, key), getattr(state, key)[:, order])
        for key in ("gyro_b", "acc_b"):
            np.testing.assert_allclose(getattr(got, key), getattr(state, key), atol=1e-12)
        np.testing.assert_allclose(
            projected_gravity(got.quat_wb), projected_gravity(state.quat_wb), atol=1e-12
        )
        assert got.stamp_ns[0] == STAMP


def test_the_imu_message_is_in_the_frame_of_its_link():
    contract = RobotContract.from_spec(load_robot("a1"))
    # The IMU's x axis points along the base's y axis: yawed by +90 degrees.
    turned = replace(contract, imu_rotation=tuple(from_rpy([0.0, 0.0, np.pi / 2]).tolist()))
    state = replace(
        RobotState.zeros(1, 12),
        gyro_b=np.array([[0.1, 0.7, 0.3]]),
        acc_b=np.array([[1.0, 2.0, 3.0]]),
    )
    writer = StateWriter(turned)
    writer.write(state, STAMP)
    gyro, acc = writer.imu.angular_velocity, writer.imu.linear_acceleration
    np.testing.assert_allclose([gyro.x, gyro.y, gyro.z], [0.7, -0.1, 0.3], atol=1e-12)
    np.testing.assert_allclose([acc.x, acc.y, acc.z], [2.0, -1.0, 3.0], atol=1e-12)
    assert writer.imu.header.frame_id == "imu_link"


def test_an_imu_in_the_base_frame_is_not_turned(robot):
    rng = np.random.default_rng(1)
    state = a_state(rng)
    writer = StateWriter(robot, imu_in_base=True)
    writer.write(state, STAMP)
    assert writer.imu.header.frame_id == "trunk"
    got = StateReader(NAMES, robot).read(writer.joints, writer.imu)
    np.testing.assert_array_equal(got.gyro_b, state.gyro_b)
    np.testing.assert_array_equal(got.quat_wb, state.quat_wb)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda j, i: setattr(i.header, "frame_id", "head"), "frame 'head'; expected 'trunk'"),
        (lambda j, i: set_stamp(i.header.stamp, STAMP + 1), "different stamps"),
        (lambda j, i: i.orientation_covariance.__setitem__(0, -1.0), "has no orientation"),
        (lambda j, i: setattr(j, "name", ["a", "b", "c", "e"]), "'d' is missing, 'e' is unknown"),
        (lambda j, i: setattr(j, "name", ["a", "b", "c", "d", "c"]), "'c' is named twice"),
        (lambda j, i: setattr(j, "position", [1.0, 2.0]), "position: 2 values for 4 joints"),
        (lambda j, i: setattr(j, "velocity", []), "velocity: 0 values for 4 joints"),
    ],
)
def test_messages_that_do_not_fit_are_refused(robot, change, words):
    writer = StateWriter(robot)
    writer.write(a_state(np.random.default_rng(0)), STAMP)
    change(writer.joints, writer.imu)
    with pytest.raises(FerryError, match=words):
        StateReader(NAMES, robot).read(writer.joints, writer.imu)


def test_efforts_that_nobody_measured_are_zero(robot):
    writer = StateWriter(robot)
    writer.write(a_state(np.random.default_rng(0)), STAMP)
    writer.joints.effort = []
    got = StateReader(NAMES, robot).read(writer.joints, writer.imu)
    np.testing.assert_array_equal(got.tau, np.zeros((1, 4)))


def test_a_changed_order_is_noticed_in_the_very_next_message():
    order = JointOrder(NAMES, what="test")
    np.testing.assert_array_equal(order.of(["d", "c", "b", "a"]), [3, 2, 1, 0])
    np.testing.assert_array_equal(order.of(["d", "c", "b", "a"]), [3, 2, 1, 0])
    np.testing.assert_array_equal(order.of(["b", "a", "d", "c"]), [1, 0, 3, 2])
    with pytest.raises(FerryError, match="'a' is missing"):
        order.of(["b", "d", "c"])


def test_commands_go_by_name_and_empty_means_safe_stop():
    writer, reader = CommandWriter(NAMES), CommandReader(("d", "a", "c", "b"), what="/test")
    targets = np.array([1.0, 2.0, 3.0, 4.0])
    message = over_the_wire(writer.targets(STAMP, targets))
    np.testing.assert_array_equal(reader.read(message), [4.0, 1.0, 3.0, 2.0])
    assert to_ns(message.header.stamp) == STAMP
    assert reader.read(over_the_wire(writer.safe_stop(STAMP))) is None
    # A stop in between leaves no trace in the next targets.
    np.testing.assert_array_equal(
        reader.read(over_the_wire(writer.targets(STAMP, -targets))), [-4.0, -1.0, -3.0, -2.0]
    )


def test_commands_hand_on_what_is_not_finite_for_the_filter_to_judge():
    message = CommandWriter(NAMES).targets(STAMP, np.array([np.nan, 1.0, np.inf, 1e9]))
    got = CommandReader(NAMES, what="/test").read(message)
    np.testing.assert_array_equal(got, [np.nan, 1.0, np.inf, 1e9])


@pytest.mark.parametrize("field", ["velocity", "effort"])
def test_commands_with_velocities_or_efforts_are_refused(field):
    message = JointState(name=list(NAMES), position=[0.0] * 4)
    setattr(message, field, [1.0] * 4)
    with pytest.raises(FerryError, match="velocity and effort must be empty"):
        CommandReader(NAMES, what="/test").read(message)


def test_velocity_commands_are_read_by_the_names_of_the_contract():
    twist = make_twist([0.3, -0.2, 0.7], ["vx", "vy", "wz"])
    assert (twist.linear.x, twist.linear.y, twist.angular.z) == (0.3, -0.2, 0.7)
    np.testing.assert_array_equal(read_twist(twist, ["wz", "vx"]), [0.7, 0.3])
    np.testing.assert_array_equal(read_twist(TwistStamped(twist=twist), ["vy"]), [-0.2])


def test_velocity_commands_that_cannot_be_meant_are_refused():
    with pytest.raises(FerryError, match=r"cannot carry \['height'\]"):
        read_twist(Twist(), ["vx", "height"])
    twist = Twist()
    twist.angular.z = float("nan")
    with pytest.raises(FerryError, match="not finite"):
        read_twist(twist, ["vx", "wz"])


def test_a_step_describes_itself():
    rng = np.random.default_rng(2)
    step = StepRecord(
        stamp_ns=STAMP,
        observation=rng.normal(size=5).astype(np.float32),
        mean=rng.normal(size=3).astype(np.float32),
        action=rng.normal(size=3),
        log_prob=-2.5,
        policy_version=41,
        explore=True,
    )
    writer = StepWriter(5, 3)
    writer.write(replace(step, stamp_ns=1, explore=False))
    message = over_the_wire(writer.write(step))
    assert [(d.label, d.size) for d in message.layout.dim] == [
        ("stamp", 2),
        ("observation", 5),
        ("mean", 3),
        ("action", 3),
        ("log_prob", 1),
        ("policy_version", 1),
        ("explore", 1),
    ]
    got = read_step(message)
    assert (got.stamp_ns, got.log_prob, got.policy_version, got.explore) == (STAMP, -2.5, 41, True)
    for key in ("observation", "mean", "action"):
        np.testing.assert_array_equal(getattr(got, key), getattr(step, key))
    message.layout.dim[1].size = 4
    with pytest.raises(FerryError, match="layout describes 15 of 16"):
        read_step(message)


def test_diagnostics_write_numbers_short_and_leave_unknown_ones_empty():
    status = diagnostics(
        "node", STAMP, level=b"\x01", message="m", values={"a": 1 / 3, "b": float("nan"), "c": 7}
    ).status[0]
    assert [(v.key, v.value) for v in status.values] == [("a", "0.3333"), ("b", ""), ("c", "7")]


def test_a_pose_crosses_whole_in_its_frame_and_in_no_other():
    pose = [0.4, -0.2, 0.3, 0.5, -0.5, 0.1, 0.7]
    message = make_pose(pose, "panda_link0")
    o = message.pose.orientation
    assert (o.w, o.x, o.y, o.z) == (0.5, -0.5, 0.1, 0.7)
    np.testing.assert_array_equal(read_pose(message, "panda_link0"), pose)
    with pytest.raises(FerryError, match="in frame 'panda_link0'; expected 'base', the robot's"):
        read_pose(message, "base")


def test_the_wire_uses_the_types_that_the_design_names():
    found = {topic: type_.__name__ for topic, type_ in TOPICS.items()}
    assert found == {
        "/joint_states": "JointState",
        "/imu/data": "Imu",
        "/motor_temperatures": "Temperature",
        "/battery_state": "BatteryState",
        "/base_height": "PointStamped",
        "/cmd_vel": "Twist",
        "/target_pose": "PoseStamped",
        "/policy/joint_command": "JointState",
        "/joint_command": "JointState",
        "/policy/step": "Float64MultiArray",
        "/safety/mode": "String",
        "/safety/step": "Float64MultiArray",
        "/diagnostics": "DiagnosticArray",
        "/robot/contract": "String",
        "/ground_truth/odom": "Odometry",
        "/ground_truth/domain": "String",
        "/clock": "Clock",
    }
    assert Imu is TOPICS["/imu/data"]
