"""States read in place from serialised messages, where these are laid out as those before.

A JointState and an Imu as Python objects take most of the time of reading a state: half a
millisecond where caches are cold, as they are at 50 Hz. A sender's messages differ in their numbers
alone, so the way the first one is read says where the numbers of the others are. Whatever differs
in frame, names or lengths is nobody's business here, and is decoded as a message.

Layout: CDR, little endian (OMG DDS-XTypes 1.3, section 7.4.3): primitives are aligned to their
size, counted from behind the four bytes of encapsulation; strings and sequences begin with their
length.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from real.signals import RobotState

Array = NDArray[np.float64]
Order = NDArray[np.intp]

#: What a message begins with that can be read here: CDR_LE, and no options.
_LITTLE = b"\x00\x01\x00\x00"
#: Where the stamp ends: the encapsulation, int32 and uint32.
_STAMPED = 12
#: float64 of an Imu behind its header: orientation xyzw, covariance, angular velocity, covariance,
#: acceleration, covariance; and where the parts that are read begin.
_IMU_SIZE, _COVARIANCE, _GYRO, _ACC = 37, 4, 13, 25


@dataclass(frozen=True)
class _Layout:
    """Where the numbers of messages are, and what tells that they are there.

    Attributes:
        size: of the message [bytes].
        same: begin, end and content of what is in every message: frame, names, lengths.
        starts: of the runs of float64 [bytes]; -1 for an empty one.
        count: of each run.
    """

    size: int
    same: tuple[tuple[int, int, bytes], ...]
    starts: tuple[int, ...]
    count: int

    def fits(self, data: bytes) -> bool:
        """Whether a message is laid out so, little endian included."""
        if len(data) != self.size or data[:4] != _LITTLE:
            return False
        return all(data[a:b] == there for a, b, there in self.same)

    def run(self, data: bytes, index: int) -> Array:
        """Numbers of a run, in place; zeros of an empty one."""
        start = self.starts[index]
        if start < 0:
            return np.zeros(self.count)
        return np.frombuffer(data, np.float64, self.count, start)


class StateBytes:
    """Reads the states of one sender; see the module.

    Args:
        in_base: turns quaternion ``[4]``, angular velocity and acceleration ``[3]`` of an IMU in a
            frame, named first, into those of the base.
    """

    def __init__(
        self, in_base: Callable[[str, Array, Array, Array], tuple[Array, Array, Array]]
    ) -> None:
        self._in_base = in_base
        self._joints: _Layout | None = None
        self._imu: _Layout | None = None
        self._frame = ""
        self._order: Order = np.arange(0)
        #: Orientation, rate and acceleration of a robot without an IMU.
        self._at_rest: tuple[Array, Array, Array] | None = None

    def read(self, joints: bytes, imu: bytes | None, *, stamp_ns: int) -> RobotState | None:
        """The state (N = 1) of two messages that carry this stamp; None if they have to be decoded.

        Args:
            joints: a serialised sensor_msgs/JointState.
            imu: a serialised sensor_msgs/Imu, or None.
            stamp_ns: of both [ns].
        """
        layout = self._joints
        if layout is None or not layout.fits(joints):
            return None
        turn = self._at_rest if imu is None else self._turn(imu)
        if turn is None:
            return None
        quat, gyro, acc = turn if imu is not None else (part.copy() for part in turn)
        q, dq, tau = (layout.run(joints, index)[self._order][None] for index in range(3))
        stamp = np.array([stamp_ns], dtype=np.int64)
        # Copies, all of them: nobody's state changes with the next one.
        return RobotState(stamp, q, dq, tau, quat[None], gyro[None], acc[None])

    def _turn(self, imu: bytes) -> tuple[Array, Array, Array] | None:
        layout = self._imu
        if layout is None or not layout.fits(imu):
            return None
        numbers = layout.run(imu, 0)
        if numbers[_COVARIANCE] == -1.0:
            return None  # it has no orientation
        quat = numbers[[3, 0, 1, 2]]
        gyro, acc = numbers[_GYRO : _GYRO + 3].copy(), numbers[_ACC : _ACC + 3].copy()
        return self._in_base(self._frame, quat, gyro, acc)

    def learn(
        self, joints: bytes, imu: bytes | None, *, state: RobotState, order: Order, frame: str
    ) -> None:
        """Remember where the numbers are of two messages that were decoded, if that can be told.

        Args:
            joints: a serialised sensor_msgs/JointState.
            imu: a serialised sensor_msgs/Imu, or None.
            state: what they say, decoded.
            order: places of the wanted joints among the message's.
            frame: of the IMU.
        """
        self._order, self._frame = order, frame
        try:
            self._joints = _joint_layout(joints)
            self._imu = None if imu is None else _imu_layout(imu)
            still = (state.quat_wb[0].copy(), state.gyro_b[0].copy(), state.acc_b[0].copy())
            self._at_rest = still if imu is None else None
        except struct.error:
            self._joints = None
            return
        again = self.read(joints, imu, stamp_ns=int(state.stamp_ns[0]))
        # The proof is in the reading; a layout that gives anything else is none.
        if again is None or not _equal(again, state):
            self._joints = None


def _equal(a: RobotState, b: RobotState) -> bool:
    numbers = ("q", "dq", "tau", "quat_wb", "gyro_b", "acc_b")
    return np.array_equal(a.stamp_ns, b.stamp_ns) and all(
        np.array_equal(getattr(a, name), getattr(b, name), equal_nan=True) for name in numbers
    )


def _aligned(place: int, size: int) -> int:
    """The next place that is a multiple of ``size``, counted from behind the encapsulation."""
    return place + (4 - place) % size


def _length(data: bytes, place: int) -> tuple[int, int]:
    """A length and where it is, aligned: (length, its place)."""
    place = _aligned(place, 4)
    return int(struct.unpack_from("<I", data, place)[0]), place


def _text(data: bytes, place: int) -> tuple[int, int, bytes]:
    """A text with its length: where it begins and ends, and its bytes."""
    length, place = _length(data, place)
    end = place + 4 + length
    return place, end, data[place:end]


def _imu_layout(data: bytes) -> _Layout | None:
    frame = _text(data, _STAMPED)
    start = _aligned(frame[1], 8)
    if start + 8 * _IMU_SIZE > len(data):
        return None
    return _Layout(len(data), (frame,), (start,), _IMU_SIZE)


def _joint_layout(data: bytes) -> _Layout | None:
    """Of frame and names, which are the same in every message, and of three runs of numbers.

    Not of what is between them to align them: there anything may stand, each time something else.
    """
    same = [_text(data, _STAMPED)]
    names, place = _length(data, same[-1][1])
    same.append((place, place + 4, data[place : place + 4]))
    for _ in range(min(names, len(data))):
        same.append(_text(data, same[-1][1]))
    starts: list[int] = []
    end = same[-1][1]
    for _ in range(3):
        count, place = _length(data, end)
        same.append((place, place + 4, data[place : place + 4]))
        end = place + 4
        starts.append(_aligned(end, 8) if count else -1)
        if count:
            end = starts[-1] + 8 * count
        if count not in (0, names) or end > len(data):
            return None
    return _Layout(len(data), tuple(same), tuple(starts), names)
