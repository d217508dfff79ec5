"""Messages to MCAP files, by a thread of its own: a slow or full disk delays nobody.

Who receives a message puts it into a buffer and goes on. A thread takes it from there, hands it to
the operating system as a complete chunk several times a second, and lets the disk catch up once a
second, so that neither a killed process nor a power failure costs more than the last second. While
the disk does not take anything the buffer fills; then the oldest messages are dropped, and counted
by topic.

A recording into a folder is a bag of rosbag2: each part begins with what the latched topics said
last, and ``metadata.yaml`` lists the parts.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.bag_index import NAME, PartIndex, bag_metadata, make_folder, offered_qos, write_whole
from deploy.message_buffer import MessageBuffer
from real.errors import FerryError
from real.log_parts import REPEATED, SUFFIX, part_path
from real.log_writer import LogWriter

logger = logging.getLogger(__name__)

MIB = 2**20
#: How often what came is handed to the operating system, and to the disk [s].
FLUSH_S, SYNC_S = 0.25, 1.0
#: How often the thread looks [s], how much it takes at once [bytes], and after how long it tries
#: again what failed [s].
LOOK_S, BATCH, RETRY_S = 0.05, MIB, 0.5
#: A disk that answers later than this is reported while it does not [s].
STALLED_S = 1.0


@dataclass(frozen=True)
class RecordingSettings:
    """How much may wait, and when the next file begins.

    Attributes:
        buffer_bytes: of messages that wait for the disk; beyond it the oldest are dropped.
        split_bytes: size at which a recording into a folder goes on in the next file.
        split_s: age at which it does [s].
        sync: whether the disk is waited for once a second.
    """

    buffer_bytes: int = 64 * MIB
    split_bytes: int = 512 * MIB
    split_s: float = 600.0
    sync: bool = True


@dataclass(frozen=True)
class RecordingStatus:
    """How a recording does.

    Attributes:
        received: messages by topic.
        dropped: of them, by topic, what the disk was too slow for, or what no file takes.
        waiting_bytes: in the buffer.
        parts: files begun.
        problem: why nothing is written just now, or nothing.
    """

    received: Mapping[str, int]
    dropped: Mapping[str, int]
    waiting_bytes: int
    parts: int
    problem: str


class Recording:
    """One file, or a folder of files, written beside whatever else the process does.

    Args:
        path: a file that ends in ``.mcap``, which is never split; or a folder to make, for
            ``NAME/NAME_0000.mcap`` and so on.
        topics: topic -> type name and definition, see :meth:`real.log.LogWriter.add_topic`.
        metadata: records of text kept in every file.
        latched: topics of which every file shall begin with the newest message.
        settings: sizes; the defaults if None.
        open_log: opens one file.

    Raises:
        FerryError: the file or folder exists, or cannot be created.
    """

    def __init__(
        self,
        path: Path,
        topics: Mapping[str, tuple[str, str]],
        *,
        metadata: Mapping[str, Mapping[str, str]] | None = None,
        latched: Collection[str] = (),
        settings: RecordingSettings | None = None,
        open_log: Callable[..., LogWriter] = LogWriter,
    ) -> None:
        self.path = path
        self._settings = settings or RecordingSettings()
        self._topics, self._metadata, self._open_log = topics, metadata, open_log
        self._splits = path.suffix != SUFFIX
        self.parts = 0
        self._index: list[PartIndex] = []
        #: Parts that ``metadata.yaml`` tells of, and that have what was said before them.
        self._described = self._begun = 0
        self._problem = ""
        #: When the call of the disk that is going on began [s], 0 between calls.
        self._inside_s = 0.0
        self._lock = threading.Lock()
        self._buffer = MessageBuffer(self._settings.buffer_bytes, frozenset(latched))
        self._log: LogWriter | None = self._first()
        self._flushed_s = self._synced_s = time.monotonic()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self._thread.start()

    def put(self, topic: str, data: bytes, log_ns: int) -> None:
        """Take one serialised message; returns at once, whatever the disk does.

        Args:
            topic: one of the topics.
            data: the CDR bytes.
            log_ns: when it was received [ns since 1970].
        """
        with self._lock:
            self._buffer.put(topic, data, log_ns)

    def status(self) -> RecordingStatus:
        """How it does just now."""
        inside_s = self._inside_s
        stalled_s = time.monotonic() - inside_s if inside_s else 0.0
        problem = self._problem
        if stalled_s > STALLED_S:
            problem = f"the disk of {self.path} has not answered for {stalled_s:.0f} s"
        with self._lock:
            buffer = self._buffer
            received, dropped = dict(buffer.received), dict(buffer.dropped)
            return RecordingStatus(received, dropped, buffer.size, self.parts, problem)

    def close(self, *, timeout_s: float = 2.0) -> str:
        """Write what waits, the index, and close; as long as the disk takes anything.

        Args:
            timeout_s: how long a disk that takes nothing is waited for [s].

        Returns:
            What could not be written and why, or nothing.
        """
        self._closing.set()
        fewest, deadline = self._waiting(), time.monotonic() + timeout_s
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._thread.join(timeout=min(LOOK_S, timeout_s))
            waiting = self._waiting()
            if waiting < fewest:
                fewest, deadline = waiting, time.monotonic() + timeout_s
        waiting, problem = self._waiting(), self._problem
        if self._thread.is_alive():
            problem = f"the disk of {self.path} has taken nothing for {timeout_s:g} s"
        elif waiting and not problem:
            problem = f"the thread that writes {self.path} has ended early"
        rest = f"; {waiting} messages in the buffer, and what was not flushed before them, are lost"
        return problem + rest if problem and (waiting or self._log) else problem

    def _waiting(self) -> int:
        with self._lock:
            return len(self._buffer.rows)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        retry_s = 0.0
        self._try(self._head)
        while not self._closing.wait(LOOK_S):
            if time.monotonic() >= retry_s and not self._try(self._write):
                retry_s = time.monotonic() + RETRY_S
        self._try(self._finish)

    def _try(self, action: Callable[[], None]) -> bool:
        """Do something with the disk; what fails is a problem with a name, and no more."""
        self._inside_s = time.monotonic()
        try:
            action()
            self._problem = ""
        except OSError as error:
            self._fail(
                f"{error.filename or self.path} cannot be written: {error.strerror or error}"
            )
        except FerryError as error:
            self._fail(str(error))
        # Whatever it is: a thread that ended by it would leave a node that says it records.
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}", because=error)
        finally:
            self._inside_s = 0.0
        return not self._problem

    def _fail(self, problem: str, *, because: Exception | None = None) -> None:
        if problem != self._problem:
            logger.error(
                "recording: %s; tried again every %g s", problem, RETRY_S, exc_info=because
            )
        self._problem = problem

    def _head(self) -> None:
        """Let the first file be one, with its topics."""
        if self._log is not None:
            self._flush(self._log)

    def _write(self) -> None:
        """Hand over what waits, in batches."""
        log = self._ready()
        if self._problem:
            self._flush(log)  # nothing is taken before what was taken has gone
        more = True
        while more:
            more = self._take(log)
            if more or time.monotonic() - self._flushed_s >= FLUSH_S:
                self._flush(log)
        if self._described < self.parts:
            self._describe()

    def _ready(self) -> LogWriter:
        """The file to write to; the next one where that is full or old."""
        log, settings = self._log, self._settings
        if self._splits and log is not None and log.deleted:
            logger.error("recording: %s was deleted; another is begun", log.path)
            log.abandon()
            self._index.pop()
            log = self._log = None
        if self._splits and log is not None and log.count:
            aged = time.monotonic() - self._opened_s >= settings.split_s
            if aged or log.size >= settings.split_bytes:
                log.close(sync=settings.sync)
                log = self._log = None
        if log is None:
            log = self._log = self._open()
            self._flush(log)  # killed now, it would leave a file that no reader takes
        return log

    def _take(self, log: LogWriter) -> bool:
        """Move a batch into the file's chunk; whether it was a full one."""
        with self._lock:
            said = {} if self._begun == self.parts else dict(self._buffer.said)
            rows = self._buffer.take(BATCH)
        if rows and self._begun < self.parts:
            self._begun = self.parts
            self._repeat(log, said, rows[0][2])
        for i, (topic, data, log_ns) in enumerate(rows):
            try:
                log.write(topic, data, log_ns=log_ns)
                self._index[-1].add(topic, log_ns)
            except Exception:
                # That one would fail again; those behind it wait for the next attempt.
                with self._lock:
                    self._buffer.put_back(rows[i + 1 :], lost=topic)
                raise
        return sum(len(data) for _, data, _ in rows) >= BATCH

    def _repeat(self, log: LogWriter, said: dict[str, tuple[bytes, int]], log_ns: int) -> None:
        """Begin a part with what was said before it, at the time of its own first message."""
        if said:
            log.add_metadata(REPEATED, {topic: str(at_ns) for topic, (_, at_ns) in said.items()})
        for topic, (data, at_ns) in said.items():
            try:
                log.write(topic, data, log_ns=log_ns, publish_ns=at_ns)
                self._index[-1].add(topic, log_ns)
            except Exception as error:  # no reason to lose what is behind it
                logger.warning("recording: %s is not said again: %r", topic, error)
                with self._lock:
                    self._buffer.said.pop(topic, None)

    def _flush(self, log: LogWriter) -> None:
        log.flush()
        now = self._flushed_s = time.monotonic()
        self._inside_s = now
        if self._settings.sync and now - self._synced_s >= SYNC_S:
            log.sync()
            self._synced_s = time.monotonic()

    def _finish(self) -> None:
        try:
            log = self._ready() if self._waiting() else self._log
            while log is not None and self._take_what_goes(log):
                self._flush(log)
            if log is not None:
                log.close(sync=self._settings.sync)
                self._log = None
        except Exception:
            if self._log is not None:
                self._log.abandon()
            raise
        self._describe()

    def _take_what_goes(self, log: LogWriter) -> bool:
        """As :meth:`_take`, at the end: nobody comes again for what is behind a message that no
        file takes.
        """
        while True:
            try:
                return self._take(log)
            # Whatever it is: that message is out of the buffer and counted, so this ends.
            except Exception as error:
                logger.error("recording: a message is lost: %s: %s", type(error).__name__, error)

    def _describe(self) -> None:
        """Write ``metadata.yaml``, which makes a bag of a folder."""
        if self._splits:
            distro, latched = os.environ.get("ROS_DISTRO", ""), self._buffer.latched
            text = bag_metadata(self._index, self._topics, latched, ros_distro=distro)
            write_whole(self.path / NAME, text, sync=self._settings.sync)
        self._described = self.parts

    def _first(self) -> LogWriter:
        """Open the first file; where that fails, nothing is left of the recording."""
        if not self._splits:
            return self._open()
        make_folder(self.path)
        try:
            return self._open()
        except FerryError:
            self.path.rmdir()
            raise

    def _open(self) -> LogWriter:
        path = part_path(self.path, self.parts) if self._splits else self.path
        # The thread says when it is flushed, so that writing never waits for the disk.
        log = self._open_log(path, metadata=self._metadata, flush_s=float("inf"))
        for topic, (type_name, definition) in self._topics.items():
            qos = offered_qos(latched=topic in self._buffer.latched)
            log.add_topic(topic, type_name, definition, qos=qos)
        self.parts += 1
        self._index.append(PartIndex(path.name))
        self._opened_s = time.monotonic()
        return log
