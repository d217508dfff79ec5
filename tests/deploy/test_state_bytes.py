"""States read in place: bit for bit what the messages say, or not at all."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest

from tests.extras import reason

pytest.importorskip("rclpy", reason=reason("rclpy"))

from rclpy.serialization import serialize_message

from deploy.convert import StateReader, StateWriter
from deploy.state_bytes import StateBytes
from deploy.state_stream import StateStream
from real.contract import RobotContract
from real.errors import FerryError
from real.signals import RobotState
from real.spec import load_robot

A1 = load_robot("a1")
#: With an IMU that is turned, as seen from the base.
ROBOT = replace(RobotContract.from_spec(A1), imu_rotation=(0.5, 0.5, -0.5, 0.5))
WANTED = tuple(np.random.default_rng(7).permutation(ROBOT.joints).tolist())


def random_state(rng, joints=12):
    quat = rng.normal(size=(1, 4))
    return RobotState(
        stamp_ns=np.array([1]),
        q=rng.normal(size=(1, joints)),
        dq=rng.normal(size=(1, joints)),
        tau=rng.normal(size=(1, joints)),
        quat_wb=quat / np.linalg.norm(quat),
        gyro_b=rng.normal(size=(1, 3)),
        acc_b=rng.normal(size=(1, 3)),
    )


def messages(state, stamp, change=lambda joints, imu: None, robot=ROBOT):
    """What a sender makes of a state, after ``change``: objects, and their bytes."""
    writer = StateWriter(robot)
    writer.write(state, stamp)
    change(writer.joints, writer.imu)
    both = (writer.joints, writer.imu)
    return both, tuple(bytes(serialize_message(m)) for m in both)


def read_both(stream, reader, objects, raw, *, imu=True):
    """The state by the stream and by the slow reader, and whether the first was read in place."""
    stream.on_imu(raw[1])
    stream.on_joints(raw[0])
    in_place = stream._bytes.read(raw[0], raw[1] if imu else None, stamp_ns=stream.stamp_ns)
    got, expected = stream.state(), reader.read(objects[0], objects[1] if imu else None)
    for name in ("stamp_ns", "q", "dq", "tau", "quat_wb", "gyro_b", "acc_b"):
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name), err_msg=name)
        assert getattr(got, name).shape == getattr(expected, name).shape
        assert getattr(got, name).flags.writeable
    return in_place is not None


def test_from_the_second_message_on_states_are_read_in_place_and_are_the_same():
    stream, reader = StateStream(WANTED, ROBOT), StateReader(WANTED, ROBOT)
    rng = np.random.default_rng(0)
    seen = []
    for stamp in range(10, 15):
        objects, raw = messages(random_state(rng), stamp * 10**9 + 123)
        seen.append(read_both(stream, reader, objects, raw))
    assert seen == [False, True, True, True, True]
    state = random_state(rng)
    state.q[0, 3], state.dq[0, 1] = np.nan, np.inf  # for others to judge
    assert read_both(stream, reader, *messages(state, 99))


@pytest.mark.parametrize(
    ("change", "after"),
    [
        (lambda joints, imu: setattr(joints, "name", joints.name[::-1]), True),
        (lambda joints, imu: setattr(joints, "effort", []), True),
        (lambda joints, imu: setattr(joints.header, "frame_id", "a frame"), True),
        (lambda joints, imu: setattr(imu.header, "frame_id", ROBOT.base_link), True),
    ],
)
def test_what_changes_in_a_sender_is_decoded_once_and_then_read_in_place_again(change, after):
    stream, reader = StateStream(WANTED, ROBOT), StateReader(WANTED, ROBOT)
    rng = np.random.default_rng(1)
    for stamp in (10, 20):
        read_both(stream, reader, *messages(random_state(rng), stamp))
    seen = [
        read_both(stream, reader, *messages(random_state(rng), stamp, change))
        for stamp in (30, 40, 50)
    ]
    assert seen == [False, after, after]


def test_velocities_moved_into_efforts_are_of_equal_length_and_still_refused():
    stream = StateStream(WANTED, ROBOT)
    rng = np.random.default_rng(2)

    def take(stamp, change=lambda joints, imu: None):
        _, raw = messages(random_state(rng), stamp, change)
        stream.on_imu(raw[1])
        stream.on_joints(raw[0])
        return stream.state()

    def half(joints, imu):
        joints.position, joints.velocity = joints.position[:11], [*joints.velocity, 0.0]

    def renamed(joints, imu):
        joints.name = [joints.name[1], joints.name[1], *joints.name[2:]]

    def no_orientation(joints, imu):
        imu.orientation_covariance[0] = -1.0

    take(10)
    take(20)
    for stamp, change, words in (
        (30, half, "position: 11 values for 12 joints"),
        (40, renamed, "is missing"),
        (50, no_orientation, "has no orientation"),
    ):
        with pytest.raises(FerryError, match=words):
            take(stamp, change)
    take(60)


def test_a_robot_without_an_imu_is_read_in_place_too_and_nobody_shares_its_arrays():
    panda = RobotContract.from_spec(load_robot("panda"))
    assert panda.imu_link is None
    stream, reader = StateStream(panda.joints, panda), StateReader(panda.joints, panda)
    rng, seen = np.random.default_rng(3), []
    for stamp in (10, 20, 30):
        state = random_state(rng, joints=len(panda.joints))
        objects, raw = messages(state, stamp, robot=panda)
        seen.append(read_both(stream, reader, objects, raw, imu=False))
        stream.state().quat_wb[:] = 7.0
    assert seen == [False, True, True]


def test_bytes_that_are_cut_big_endian_or_nonsense_are_never_read_in_place():
    reader = StateReader(ROBOT.joints, ROBOT)
    rng = np.random.default_rng(4)
    objects, raw = messages(random_state(rng), 10)
    state = reader.read(*objects)
    order = reader.order(objects[0].name)

    def learned(joints, imu):
        made = StateBytes(reader.in_base)
        frame = ROBOT.imu_link
        made.learn(joints, imu, state=state, order=order, frame=frame)
        return made

    made = learned(*raw)
    assert made.read(*raw, stamp_ns=10) is not None
    big = b"\x00\x00" + raw[0][2:]
    for joints in (raw[0][:-8], raw[0] + bytes(8), big, b""):
        assert made.read(joints, raw[1], stamp_ns=10) is None
        assert learned(joints, raw[1]).read(*raw, stamp_ns=10) is None
    # Between texts and numbers anything may stand.
    filled = bytearray(raw[0])
    gap = filled.index(b"FR_hip_joint\0") + len("FR_hip_joint") + 1
    filled[gap] ^= 0xFF
    assert made.read(bytes(filled), raw[1], stamp_ns=10) is not None
    filled[gap - 3] ^= 0x01
    assert made.read(bytes(filled), raw[1], stamp_ns=10) is None
    for _ in range(300):
        torn = bytearray(raw[0])
        place = rng.integers(0, len(torn) - 4)
        struct.pack_into("<I", torn, place, rng.integers(0, 2**32))
        learned(bytes(torn), raw[1])  # whatever it is, it is no crash
        learned(bytes(torn[: rng.integers(0, len(torn))]), raw[1])
