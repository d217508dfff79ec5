"""Logs in MCAP: the one place that writes and reads them.

A log is written as ROS 2 tools write it (profile ``ros2``, CDR payloads, ``ros2msg`` schemas), so
that standard tools open it, and read back as arrays without ROS. Reading trusts nothing: stamps
of zero, negative or centuries away are dropped and counted, types nobody knows are skipped and
listed, and a file cut short by a power failure is read up to the damage. A folder of parts, as a
long recording is, is read as one log.

Format: https://mcap.dev/spec and https://mcap.dev/spec/registry#ros2.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from mcap.records import Channel, McapRecord, Message, Metadata, Schema
from mcap.stream_reader import StreamReader
from mcap.well_known import MessageEncoding, SchemaEncoding
from mcap.writer import Writer
from mcap_ros2.decoder import DecoderFactory

from real.errors import FerryError, nearest
from real.log_parts import REPEATED, Repeats, parts_of
from real.log_rows import READERS, Rows, TopicLog
from real.log_spool import Spool

logger = logging.getLogger(__name__)

_MAGIC = b"\x89MCAP0\r\n"


class LogWriter:
    """Writes serialised messages to one MCAP file.

    What is older than ``flush_s`` is handed to the operating system at the next write or
    :meth:`flush`, as a complete chunk: a killed process loses no more than that. An ``OSError`` of
    these loses nothing: the next call goes on where it ended.

    Args:
        path: file to write; its folder must exist.
        metadata: records of text kept in the file, name -> (key -> value).
        flush_s: longest time a message waits in memory [s].
        overwrite: whether an existing file may be replaced.

    Raises:
        FerryError: the file exists, or cannot be created.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        metadata: Mapping[str, Mapping[str, str]] | None = None,
        flush_s: float = 0.25,
        overwrite: bool = False,
    ) -> None:
        self.path = Path(path)
        self.count = 0
        try:
            self._stream = self.path.open("wb" if overwrite else "xb", buffering=0)
        except FileExistsError as error:
            raise FerryError(f"log {self.path} exists already; give another name") from error
        except OSError as error:
            raise FerryError(f"log {self.path} cannot be written: {error.strerror}") from error
        self._spool = Spool(self._stream)
        self._writer = Writer(cast("Any", self._spool))
        self._writer.start(profile="ros2", library="ferry")
        for name, values in (metadata or {}).items():
            self.add_metadata(name, values)
        self._finished = False
        self._flush_s = flush_s
        self._flushed_s = time.monotonic()
        self._channels: dict[str, int] = {}
        self._schemas: dict[str, int] = {}

    def add_topic(self, topic: str, type_name: str, definition: str, *, qos: str = "") -> None:
        """Announce a topic.

        Args:
            topic: e.g. ``/joint_states``.
            type_name: e.g. ``sensor_msgs/msg/JointState``.
            definition: text of the type and all types in it, as the registry entry ``ros2msg``
                describes.
            qos: profiles that it is offered with, YAML as rosbag2 keeps it; empty: not told.
        """
        if type_name not in self._schemas:
            self._schemas[type_name] = self._writer.register_schema(
                type_name, SchemaEncoding.ROS2, definition.encode()
            )
        self._channels[topic] = self._writer.register_channel(
            topic,
            MessageEncoding.CDR,
            self._schemas[type_name],
            metadata={"offered_qos_profiles": qos} if qos else {},
        )

    def add_metadata(self, name: str, values: Mapping[str, str]) -> None:
        """Write a record of text; it stands before the messages that are written later."""
        self._writer.add_metadata(name, dict(values))

    def write(self, topic: str, data: bytes, *, log_ns: int, publish_ns: int | None = None) -> None:
        """Append one serialised message of an announced topic.

        Args:
            topic: where it was received.
            data: the CDR bytes.
            log_ns: when it was received [ns since 1970].
            publish_ns: when it was sent, if known [ns since 1970].
        """
        self._writer.add_message(
            self._channels[topic],
            log_time=log_ns,
            data=data,
            publish_time=log_ns if publish_ns is None else publish_ns,
            sequence=self.count & 0xFFFFFFFF,
        )
        self.count += 1
        if time.monotonic() - self._flushed_s >= self._flush_s:
            self.flush()

    @property
    def size(self) -> int:
        """Bytes of the file so far, without the chunk in progress."""
        return self._spool.size

    def flush(self) -> None:
        """Hand everything to the operating system."""
        if not self._finished:
            self._writer.flush()
        self._spool.drain()
        self._flushed_s = time.monotonic()

    def sync(self) -> None:
        """Wait until the disk has what was flushed, so that a power failure leaves it."""
        os.fdatasync(self._stream.fileno())

    def close(self, *, sync: bool = False) -> None:
        """Write the index and close. May be called twice, also after an ``OSError``.

        Args:
            sync: wait for the disk before, see :meth:`sync`.
        """
        if self._stream.closed:
            return
        if not self._finished:
            self._writer.finish()
            self._finished = True
        self._spool.drain()
        if sync:
            self.sync()
        self._stream.close()

    def abandon(self) -> None:
        """Close without what the disk has not taken."""
        self._stream.close()

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Log:
    """A log as arrays.

    Attributes:
        path: the file, or the folder of parts.
        topics: by name.
        metadata: records of text, name -> (key -> value).
        skipped: topics that were not decoded, with the reason.
        damage: what ended the reading of a file early, or which parts are absent; or None.
    """

    path: Path
    topics: Mapping[str, TopicLog]
    metadata: Mapping[str, Mapping[str, str]]
    skipped: Mapping[str, str]
    damage: str | None

    def __getitem__(self, topic: str) -> TopicLog:
        if topic not in self.topics:
            raise FerryError(_absent(self.path, topic, self.topics, self.skipped))
        return self.topics[topic]


def read_log(path: str | Path, *, topics: Sequence[str] | None = None) -> Log:
    """Read a log.

    Args:
        path: an MCAP file with ROS 2 messages, or a folder with the parts of one recording.
        topics: the topics needed; others are not decoded. None reads all.

    Raises:
        FerryError: no such file, not MCAP, a folder without parts or with those of several
            recordings, or a needed topic is not in it.
    """
    file = Path(path)
    files, absent = parts_of(file) if file.is_dir() else ([file], "")
    reading = _Reading(topics)
    if absent:
        reading.damage.append(absent)
    for part in files:
        damage = reading.read(part)
        if damage:
            reading.damage.append(damage if part is file else f"{part.name} is {damage}")
    for topic in topics or ():
        if topic not in reading.rows:
            raise FerryError(_absent(file, topic, reading.seen, reading.skipped))
    for topic, reason in reading.skipped.items():
        logger.warning("%s: %s is left out: %s", file, topic, reason)
    for damage in reading.damage:
        logger.warning("%s: %s", file, damage)
    return Log(
        path=file,
        topics={topic: r.finish() for topic, r in reading.rows.items()},
        metadata=reading.metadata,
        skipped=reading.skipped,
        damage="; ".join(reading.damage) or None,
    )


class _Reading:
    """What has been read so far of one or several files.

    Args:
        topics: the topics needed, or None for all.
    """

    def __init__(self, topics: Sequence[str] | None) -> None:
        self.rows: dict[str, Rows] = {}
        self.skipped: dict[str, str] = {}
        self.metadata: dict[str, dict[str, str]] = {}
        self.seen: list[str] = []
        self.damage: list[str] = []
        self._repeats = Repeats()
        self._topics = topics
        self._decoders = DecoderFactory()

    def read(self, file: Path) -> str:
        """Add a file; returns what ended it early, or nothing."""
        # Ids are those of one file: another part may number its channels otherwise.
        schemas: dict[int, Schema] = {}
        channels: dict[int, Channel] = {}
        damage: list[str] = []
        self._repeats.begin()
        for record in _records(file, damage):
            if isinstance(record, Schema):
                schemas[record.id] = record
            elif isinstance(record, Metadata) and record.name == REPEATED:
                self._repeats.announce(record.metadata)
            elif isinstance(record, Metadata):
                self.metadata[record.name] = dict(record.metadata)
            elif isinstance(record, Channel):
                channels[record.id] = record
                self.seen.append(record.topic)
            elif isinstance(record, Message) and record.channel_id in channels:
                channel = channels[record.channel_id]
                self._add(record, channel, schemas.get(channel.schema_id))
        return damage[0] if damage else ""

    def _add(self, record: Message, channel: Channel, schema: Schema | None) -> None:
        topic = channel.topic
        if topic in self.skipped or (self._topics is not None and topic not in self._topics):
            return
        if self._repeats.known(topic, record.log_time):
            return
        if topic not in self.rows:
            found = _open_topic(channel, schema, self._decoders)
            if isinstance(found, str):
                self.skipped[topic] = found
                return
            self.rows[topic] = found
        self.rows[topic].add(record.data, record.log_time)


def _absent(
    path: Path, topic: str, present: Sequence[str] | Mapping[str, Any], skipped: Mapping[str, str]
) -> str:
    if topic in skipped:
        return f"{path}: topic {topic!r} cannot be read: {skipped[topic]}"
    listed = ", ".join(sorted(set(present))) or "none"
    return f"{path}: no messages on {topic!r}{nearest(topic, present)}; topics in it: {listed}"


def _records(path: Path, damage: list[str]) -> Iterator[McapRecord]:
    """All records up to the end or the damage, whose description is appended to ``damage``."""
    try:
        stream = path.open("rb")
    except OSError as error:
        raise FerryError(f"log {path} cannot be read: {error.strerror}") from error
    with stream:
        if stream.read(len(_MAGIC)) != _MAGIC:
            raise FerryError(f"{path} is not an MCAP file (its first bytes are not the magic)")
        stream.seek(0)
        size = path.stat().st_size
        records = StreamReader(stream, validate_crcs=True, record_size_limit=size).records
        while True:
            try:
                record = next(records)
            except StopIteration:
                return
            # The parser meets arbitrary bytes here: whatever it raises means "damaged from here".
            except Exception as error:
                damage.append(
                    f"damaged at byte {stream.tell()} of {size} ({type(error).__name__}: {error}); "
                    "read up to there"
                )
                return
            yield record


def _open_topic(channel: Channel, schema: Schema | None, decoders: DecoderFactory) -> Rows | str:
    """A collector for a topic, or the reason why it cannot be read."""
    if schema is None:
        return "it has no schema"
    if schema.name not in READERS:
        return f"type {schema.name!r} is not one that logs are read for"
    try:
        decode = decoders.decoder_for(channel.message_encoding, schema)
    # A truncated or foreign definition makes the schema parser raise anything.
    except Exception as error:
        return f"definition of {schema.name!r} is not readable ({error})"
    if decode is None:
        return f"encoding {channel.message_encoding!r}/{schema.encoding!r}, expected cdr/ros2msg"
    return Rows(channel.topic, schema.name, decode)
