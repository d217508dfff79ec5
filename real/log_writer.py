"""Writes logs in MCAP, as ROS 2 tools do: profile ``ros2``, CDR payloads, ``ros2msg`` schemas.

Standard tools open them, also those whose writer was killed: whenever nothing is being written, the
file on the disk is a whole one (:mod:`real.log_spool`).

Format: https://mcap.dev/spec and https://mcap.dev/spec/registry#ros2.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from mcap.well_known import MessageEncoding, SchemaEncoding
from mcap.writer import Writer

from real.errors import FerryError
from real.log_spool import Spool

MAGIC = b"\x89MCAP0\r\n"
#: Who wrote a file, as its header says.
LIBRARY = "ferry"
#: The end of a file without an index, which readers then read from its beginning: DataEnd without
#: a check sum, Footer without a summary, each with its length; https://mcap.dev/spec#records.
_DATA_END = b"\x0f" + (4).to_bytes(8, "little") + bytes(4)
_FOOTER = b"\x02" + (20).to_bytes(8, "little") + bytes(20)
ENDING = _DATA_END + _FOOTER + MAGIC


class LogWriter:
    """Writes serialised messages to one MCAP file.

    What is older than ``flush_s`` is handed to the operating system at the next write or
    :meth:`flush`, as a complete chunk: a killed process loses no more than that, and leaves a file
    that every reader takes, only without an index. An ``OSError`` of these loses nothing: the next
    call goes on where it ended.

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
        self._spool = Spool(self._stream, ENDING)
        self._writer = Writer(cast("Any", self._spool))
        self._writer.start(profile="ros2", library=LIBRARY)
        for name, values in (metadata or {}).items():
            self.add_metadata(name, values)
        self._finished = self._entered = False
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

    @property
    def deleted(self) -> bool:
        """Whether nobody will ever see what is written, since the file has no name any more."""
        return not os.fstat(self._stream.fileno()).st_nlink

    def flush(self) -> None:
        """Hand everything to the operating system."""
        if not self._finished:
            self._writer.flush()
        self._spool.drain(last=self._finished)
        self._flushed_s = time.monotonic()

    def sync(self) -> None:
        """Wait until the disk has what was flushed, so that a power failure leaves it.

        Raises:
            OSError: the disk fails.
            FerryError: somebody deleted the file; the system would take what comes all the same.
        """
        os.fdatasync(self._stream.fileno())
        if self.deleted:
            raise FerryError(f"log {self.path} was deleted: whatever is written to it is lost")
        if not self._entered:
            sync_folder(self.path.parent)
            self._entered = True

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
        self._spool.drain(last=True)
        if sync:
            self.sync()
        self._stream.close()

    def abandon(self) -> None:
        """Close without what the disk has not taken: a whole file, without an index."""
        self._stream.close()

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in a folder: a new file's, too, may be lost."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
