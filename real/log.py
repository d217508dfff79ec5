"""Logs in MCAP, read back as arrays without ROS; :mod:`real.log_writer` writes them.

Reading trusts nothing: stamps of zero, negative or centuries away are dropped and counted, types
nobody knows are skipped and listed, and a file cut short by a power failure is read up to the
damage. A folder of parts, as a long recording is, is read as one log.

Format: https://mcap.dev/spec and https://mcap.dev/spec/registry#ros2.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcap.records import Channel, Footer, Header, McapRecord, Message, Metadata, Schema
from mcap.stream_reader import StreamReader
from mcap_ros2.decoder import DecoderFactory

from real.errors import FerryError, nearest
from real.log_parts import REPEATED, Repeats, parts_of
from real.log_rows import READERS, Rows, TopicLog
from real.log_writer import LIBRARY, MAGIC

logger = logging.getLogger(__name__)

#: Of a file whose writer was killed.
_NOT_CLOSED = "not closed: what came last before its writer ended may be lacking"


@dataclass(frozen=True)
class Log:
    """A log as arrays.

    Attributes:
        path: the file, or the folder of parts.
        topics: by name.
        metadata: records of text, name -> (key -> value).
        skipped: topics that were not decoded, with the reason.
        damage: what ended the reading of a file early, that nobody closed it, or which parts are
            absent; or None.
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
        FerryError: no such file, not MCAP (of a folder: none of its parts), a folder without parts
            or with those of several recordings, or a needed topic is not in it.
    """
    file = Path(path)
    files, absent = parts_of(file) if file.is_dir() else ([file], "")
    reading = _Reading(topics)
    if absent:
        reading.damage.append(absent)
    unread: list[FerryError] = []
    for part in files:
        try:
            damage = reading.read(part)
        except FerryError as error:  # as a power failure may leave the last part of several
            unread.append(error)
            reading.damage.append(str(error))
            continue
        if damage:
            reading.damage.append(damage if part is file else f"{part.name} is {damage}")
    if len(unread) == len(files):
        raise unread[0]
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
        ours = False
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
            elif isinstance(record, Header):
                ours = record.library == LIBRARY
            elif isinstance(record, Footer) and ours and not record.summary_start:
                damage.append(_NOT_CLOSED)
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
        if stream.read(len(MAGIC)) != MAGIC:
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
