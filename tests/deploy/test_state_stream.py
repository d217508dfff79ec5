from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.extras import reason

pytest.importorskip("rclpy", reason=reason("rclpy"))

from rclpy.serialization import serialize_message
from sensor_msgs.msg import JointState

from deploy.convert import StateWriter, set_stamp
from deploy.state_stream import StateStream, peek_stamp_ns
from real.contract import RobotContract
from real.errors import FerryError
from real.signals import RobotState
from real.spec import load_robot

ROBOT = RobotContract.from_spec(load_robot("a1"))


class Clock:
    ns = 100

    def __call__(self):
        return self.ns


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def stream(clock):
    return StateStream(ROBOT.joints, ROBOT, clock=clock)


def raw(stamp, hip):
    """Serialised joints and IMU of one state; the first joint and the gyro tell it apart."""
    writer = StateWriter(ROBOT)
    state = RobotState.zeros(1, 12)
    state.q[0, 0], state.gyro_b[0, 2] = hip, hip
    writer.write(state, stamp)
    return bytes(serialize_message(writer.joints)), bytes(serialize_message(writer.imu))


def test_the_stamp_is_read_in_place():
    message = JointState()
    for ns in (1, 1_700_000_000_999_999_999, 4_294_967_295):
        set_stamp(message.header.stamp, ns)
        data = bytes(serialize_message(message))
        assert peek_stamp_ns(data) == ns
        # The same in big endian, which the second byte of the encapsulation announces.
        words = np.frombuffer(data[4:12], dtype="<u4").astype(">u4").tobytes()
        assert peek_stamp_ns(bytes([0, 0, 0, 0]) + words) == ns


def test_a_state_is_complete_when_both_its_messages_are_there_in_either_order(stream):
    joints, imu = raw(10, 0.1)
    assert not stream.on_imu(imu)
    assert stream.on_joints(joints)
    joints, imu = raw(20, 0.2)
    assert not stream.on_joints(joints)
    assert stream.on_imu(imu)
    assert stream.stamp_ns == 20
    assert stream.state().q[0, 0] == stream.state().gyro_b[0, 2] == 0.2


def test_messages_of_different_states_are_never_mixed(stream):
    first, second, third = raw(10, 0.1), raw(20, 0.2), raw(30, 0.3)
    stream.on_imu(first[1])
    assert not stream.on_joints(second[0])  # the joints of the first were lost
    assert not stream.on_imu(third[1])
    assert stream.stamp_ns is None
    with pytest.raises(FerryError, match="no state"):
        stream.state()
    assert stream.on_joints(third[0])  # the IMU of the second was late
    assert stream.state().gyro_b[0, 2] == 0.3


def test_repeated_stamps_are_no_new_state_and_do_not_count_as_alive(stream, clock):
    joints, imu = raw(10, 0.1)
    stream.on_imu(imu)
    assert stream.on_joints(joints)
    assert stream.received_ns == 100
    clock.ns = 900
    assert not stream.on_joints(joints)
    assert not stream.on_imu(imu)
    assert stream.received_ns == 100
    assert stream.arrival_ns(10) == 100
    assert stream.arrival_ns(11) is None


def test_a_decoded_state_does_not_outlive_the_next_one(stream):
    for stamp, hip in ((10, 0.1), (20, 0.2), (30, 0.3)):
        joints, imu = raw(stamp, hip)
        stream.on_imu(imu)
        stream.on_joints(joints)
        assert stream.state().q[0, 0] == hip


def test_a_robot_without_an_imu_needs_no_imu_message():
    fixed = replace(ROBOT, imu_link=None)
    stream = StateStream(ROBOT.joints, fixed)
    assert stream.on_joints(raw(10, 0.1)[0])
    np.testing.assert_array_equal(stream.state().quat_wb, [[1.0, 0.0, 0.0, 0.0]])


def test_memory_stays_bounded_when_one_topic_never_comes(stream):
    for stamp in range(1, 500):
        stream.on_joints(raw(stamp, 0.0)[0])
    assert len(stream._joints) <= 16
