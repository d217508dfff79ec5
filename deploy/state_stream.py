"""States as they arrive: joints and IMU paired by stamp, decoded only when somebody needs one.

A robot sends states several times faster than a policy ticks. Messages are therefore taken as raw
bytes, of which the stamp is read in place, and only the state that is answered is decoded.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from rclpy.serialization import deserialize_message
from sensor_msgs.msg import Imu, JointState

from deploy.convert import StateReader
from deploy.state_bytes import StateBytes
from real.contract import RobotContract
from real.errors import FerryError
from real.signals import RobotState

T = TypeVar("T")

#: How many stamps are remembered: enough for messages that overtake each other.
_KEPT = 16


def peek_stamp_ns(data: bytes) -> int:
    """Stamp of a serialised message that begins with a std_msgs/Header [ns].

    CDR: four bytes of encapsulation, whose second says little (odd) or big endian, then the first
    field, here builtin_interfaces/Time as int32 and uint32 (OMG DDSI-RTPS 2.5, section 10.5).
    """
    seconds, nanoseconds = struct.unpack_from("<iI" if data[1] & 1 else ">iI", data, 4)
    return seconds * 1_000_000_000 + nanoseconds


class StateStream:
    """Pairs ``/joint_states`` and ``/imu/data``.

    Args:
        joints: joint order wanted, e.g. the policy's.
        robot: what the robot says of itself.
        clock: nanoseconds of a clock that never goes back; measures the age of what came.

    Attributes:
        stamp_ns: stamp of the newest complete state, None before the first [ns].
        received_ns: when a state with a new stamp last came [ns].
    """

    def __init__(
        self,
        joints: Sequence[str],
        robot: RobotContract,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._reader = StateReader(joints, robot)
        self._bytes = StateBytes(self._reader.in_base)
        self._has_imu = robot.imu_link is not None
        self._clock = clock
        self._joints: dict[int, bytes] = {}
        self._imus: dict[int, bytes] = {}
        self._arrivals: dict[int, int] = {}
        self._pair: tuple[bytes, bytes | None] | None = None
        self._decoded: RobotState | None = None
        self.stamp_ns: int | None = None
        self.received_ns = 0

    def on_joints(self, data: bytes) -> bool:
        """Take a serialised JointState; True if it completes a state with a new stamp."""
        return self._take(data, self._joints, self._imus)

    def on_imu(self, data: bytes) -> bool:
        """Take a serialised Imu; True if it completes a state with a new stamp."""
        return self._take(data, self._imus, self._joints)

    def state(self) -> RobotState:
        """The newest complete state (N = 1).

        Raises:
            FerryError: its joints, sizes or frames do not fit, or there is none.
        """
        if self._decoded is None:
            if self._pair is None:
                raise FerryError("no state has come yet")
            joints, imu = self._pair
            stamp_ns = peek_stamp_ns(joints)
            self._decoded = self._bytes.read(joints, imu, stamp_ns=stamp_ns) or self._decode(
                joints, imu
            )
        return self._decoded

    def _decode(self, joints: bytes, imu: bytes | None) -> RobotState:
        """As messages; and learn from them how to read the next ones in place."""
        state_of = deserialize_message(joints, JointState)
        turn_of = None if imu is None else deserialize_message(imu, Imu)
        state = self._reader.read(state_of, turn_of)
        order = self._reader.order(state_of.name)
        frame = "" if turn_of is None else turn_of.header.frame_id
        self._bytes.learn(joints, imu, state=state, order=order, frame=frame)
        return state

    def lacks(self) -> str:
        """What keeps states from being complete, or nothing."""
        if not self._has_imu or (self._joints and self._imus and self._pair is not None):
            return ""
        if self._joints and self._imus:
            return "/joint_states and /imu/data carry different stamps"
        if self._joints or self._imus:
            return f"no {'/imu/data' if self._joints else '/joint_states'} comes"
        return ""

    def arrival_ns(self, stamp_ns: int) -> int | None:
        """When the state with this stamp was complete, if that is still known [ns]."""
        return self._arrivals.get(stamp_ns)

    def _take(self, data: bytes, own: dict[int, bytes], other: dict[int, bytes]) -> bool:
        stamp = peek_stamp_ns(data)
        if self._has_imu:
            _remember(own, stamp, data)
            if stamp not in other:
                return False
            self._pair = (self._joints[stamp], self._imus[stamp])
        else:
            self._pair = (data, None)
        self._decoded = None
        if stamp == self.stamp_ns:
            return False
        self.stamp_ns = stamp
        self.received_ns = self._clock()
        _remember(self._arrivals, stamp, self.received_ns)
        return True


def _remember(store: dict[int, T], key: int, value: T) -> None:
    store[key] = value
    if len(store) > _KEPT:
        del store[next(iter(store))]
