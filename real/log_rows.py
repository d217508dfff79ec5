"""From logged messages to rows of arrays: which types, stamps and joints are believed.

Messages come as the decoded objects of any ROS 2 reader (attributes named as in the message
definition); nothing here knows the file format.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

logger = logging.getLogger(__name__)

Array = NDArray[np.float64]
Stamps = NDArray[np.int64]

#: A stamp at or after this is a fault of the writer, not a time: the year 2100.
LATEST_STAMP_NS = 4_102_444_800 * 10**9


@dataclass(frozen=True)
class Row:
    """One message.

    Attributes:
        stamp_ns: stamp in the header, or None for types without one [ns].
        values: field -> numbers.
        text: the message as text, for types whose content is text.
    """

    stamp_ns: int | None
    values: Mapping[str, Array]
    text: str | None = None


@dataclass(frozen=True)
class TopicLog:
    """The messages of one topic, in the order of the file.

    Attributes:
        topic: its name.
        type_name: its message type.
        stamp_ns: ``[n]`` stamp in the header, or time of reception for types without one [ns].
        log_ns: ``[n]`` time of reception [ns].
        values: field -> array with n rows. Joint fields are mapped by name to ``names``; a
            command without positions (the safe stop) is a row of NaN. Quaternions are wxyz.
        text: ``[n]`` strings of a text topic, frames of a topic of temperatures, else empty.
        names: joints in the order of the columns, else empty.
        dropped: rows left out for a stamp of zero, below zero or beyond the year 2100.
        refused: rows left out for joints or sizes that do not fit the first message, or for
            bytes that do not decode.
        backwards: how often the stamp is smaller than the one before. Rows stay as written.
    """

    topic: str
    type_name: str
    stamp_ns: Stamps
    log_ns: Stamps
    values: Mapping[str, Array]
    text: tuple[str, ...]
    names: tuple[str, ...]
    dropped: int
    refused: int
    backwards: int

    def __len__(self) -> int:
        return int(self.stamp_ns.shape[0])


@dataclass
class Rows:
    """Collects the rows of one topic.

    Attributes:
        topic: its name.
        type_name: a key of :data:`READERS`.
        decode: bytes -> message object.
    """

    topic: str
    type_name: str
    decode: Callable[[bytes], Any]
    stamp_ns: list[int] = field(default_factory=list[int])
    log_ns: list[int] = field(default_factory=list[int])
    values: dict[str, list[Array]] = field(default_factory=dict[str, list[Array]])
    text: list[str] = field(default_factory=list[str])
    names: tuple[str, ...] = ()
    widths: dict[str, int] = field(default_factory=dict[str, int])
    dropped: int = 0
    refused: int = 0

    def add(self, data: bytes, log_ns: int) -> None:
        """Decode one message and keep it, or count why not."""
        try:
            message = self.decode(data)
            row = READERS[self.type_name](message)
            values = self._checked(message, row.values)
        # Damaged payloads make the decoder raise anything; the count says how many there were.
        except Exception as error:
            logger.debug("%s: message refused: %s", self.topic, error)
            self.refused += 1
            return
        stamp = log_ns if row.stamp_ns is None else row.stamp_ns
        if not (0 < stamp < LATEST_STAMP_NS and 0 < log_ns < LATEST_STAMP_NS):
            self.dropped += 1
            return
        self.stamp_ns.append(stamp)
        self.log_ns.append(log_ns)
        for key, value in values.items():
            self.values.setdefault(key, []).append(value)
        if row.text is not None:
            self.text.append(row.text)

    def finish(self) -> TopicLog:
        """The arrays."""
        stamps = np.array(self.stamp_ns, dtype=np.int64)
        return TopicLog(
            topic=self.topic,
            type_name=self.type_name,
            stamp_ns=stamps,
            log_ns=np.array(self.log_ns, dtype=np.int64),
            values={k: _stacked(v) for k, v in self.values.items()},
            text=tuple(self.text),
            names=self.names,
            dropped=self.dropped,
            refused=self.refused,
            backwards=int((np.diff(stamps) < 0).sum()),
        )

    def _checked(self, message: Any, values: Mapping[str, Array]) -> Mapping[str, Array]:
        if self.type_name.endswith("/JointState"):
            return self._by_name(list(message.name), values)
        sizes = {key: value.shape[0] for key, value in values.items()}
        if not self.widths:
            self.widths = sizes
        if sizes != self.widths:
            raise ValueError(f"fields {sizes}, the first message had {self.widths}")
        return values

    def _by_name(self, names: list[str], values: Mapping[str, Array]) -> Mapping[str, Array]:
        if len(set(names)) != len(names):
            raise ValueError(f"joint named twice: {names}")
        known = self.names or tuple(names)
        if names and set(names) != set(known):
            raise ValueError(f"joints {names}, the first message had {known}")
        order = [names.index(n) for n in known] if names else []
        # An empty field was not measured or not commanded; any other length must fit the names.
        ordered = {k: _ordered(v, order) if v.shape[0] else v for k, v in values.items()}
        self.names = known
        return ordered


def _ordered(value: Array, order: list[int]) -> Array:
    if value.shape[0] != len(order):
        raise ValueError(f"{value.shape[0]} values for {len(order)} joints")
    return value[order]


def _stacked(rows: list[Array]) -> Array:
    width = max(r.shape[0] for r in rows)
    missing = np.full(width, np.nan)
    return np.stack([r if r.shape[0] else missing for r in rows])


# ------------------------------------------------------------------ one reader per type


def _floats(values: Any) -> Array:
    return np.asarray(values, dtype=np.float64)


def _vector(v: Any) -> Array:
    return np.array([v.x, v.y, v.z], dtype=np.float64)


def _quaternion(q: Any) -> Array:
    return np.array([q.w, q.x, q.y, q.z], dtype=np.float64)


def _twist(twist: Any) -> dict[str, Array]:
    return {"linear": _vector(twist.linear), "angular": _vector(twist.angular)}


def _header_ns(m: Any) -> int:
    return int(m.header.stamp.sec) * 10**9 + int(m.header.stamp.nanosec)


def _joints(m: Any) -> Row:
    return Row(
        _header_ns(m),
        {
            "position": _floats(m.position),
            "velocity": _floats(m.velocity),
            "effort": _floats(m.effort),
        },
    )


def _imu(m: Any) -> Row:
    return Row(
        _header_ns(m),
        {
            "quat": _quaternion(m.orientation),
            "gyro": _vector(m.angular_velocity),
            "acc": _vector(m.linear_acceleration),
        },
    )


def _point(m: Any) -> Row:
    return Row(_header_ns(m), {"position": _vector(m.point)})


def _pose(m: Any) -> Row:
    return Row(
        _header_ns(m),
        {"position": _vector(m.pose.position), "quat": _quaternion(m.pose.orientation)},
    )


def _temperature(m: Any) -> Row:
    """The frame says whose temperature it is."""
    return Row(_header_ns(m), {"temperature": _floats([m.temperature])}, str(m.header.frame_id))


def _odometry(m: Any) -> Row:
    pose = m.pose.pose
    return Row(
        _header_ns(m),
        {
            "position": _vector(pose.position),
            "quat": _quaternion(pose.orientation),
            **_twist(m.twist.twist),
        },
    )


def _labelled(m: Any) -> Row:
    """A self-describing array: its parts by the labels of its layout, ``stamp`` as the stamp."""
    data = _floats(m.data)
    parts: dict[str, Array] = {}
    start = int(m.layout.data_offset)
    for dim in m.layout.dim:
        parts[str(dim.label)] = data[start : start + int(dim.size)]
        start += int(dim.size)
    if start != data.shape[0] or not parts:
        raise ValueError(f"layout describes {start} numbers, message has {data.shape[0]}")
    stamp = parts.pop("stamp", None)
    if stamp is None:
        return Row(None, parts)
    # NaN does not become an integer; a zero stamp is dropped and counted.
    seconds, nanoseconds = stamp if np.isfinite(stamp).all() else (0.0, 0.0)
    return Row(int(seconds) * 10**9 + int(nanoseconds), parts)


def _diagnostics(m: Any) -> Row:
    levels = [s.level[0] if isinstance(s.level, bytes) else int(s.level) for s in m.status]
    lines = [
        f"{s.name}: {s.message} " + " ".join(f"{v.key}={v.value}" for v in s.values)
        for s in m.status
    ]
    return Row(_header_ns(m), {"level": _floats([max(levels, default=0)])}, "\n".join(lines))


#: Message type -> how to read it.
READERS: dict[str, Callable[[Any], Row]] = {
    "sensor_msgs/msg/JointState": _joints,
    "sensor_msgs/msg/Imu": _imu,
    "sensor_msgs/msg/BatteryState": lambda m: Row(_header_ns(m), {"voltage": _floats([m.voltage])}),
    "sensor_msgs/msg/Temperature": _temperature,
    "geometry_msgs/msg/PointStamped": _point,
    "geometry_msgs/msg/PoseStamped": _pose,
    "nav_msgs/msg/Odometry": _odometry,
    "geometry_msgs/msg/Twist": lambda m: Row(None, _twist(m)),
    "geometry_msgs/msg/TwistStamped": lambda m: Row(_header_ns(m), _twist(m.twist)),
    "std_msgs/msg/Float64MultiArray": _labelled,
    "std_msgs/msg/String": lambda m: Row(None, {}, str(m.data)),
    "diagnostic_msgs/msg/DiagnosticArray": _diagnostics,
    "rosgraph_msgs/msg/Clock": lambda m: Row(
        None, {"clock": _floats([m.clock.sec + 1e-9 * m.clock.nanosec])}
    ),
}
