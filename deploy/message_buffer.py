"""Messages that wait for the disk: bounded, with what latched topics said last."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

#: What a message takes beside its bytes: the objects that Python keeps of it [bytes]. Without it a
#: buffer of 64 MiB would take 800 MiB for messages as small as those of ``/clock``.
ROW_BYTES = 140


@dataclass
class MessageBuffer:
    """What waits for the disk, up to ``limit`` bytes of memory. Used under the recording's lock."""

    limit: int
    latched: frozenset[str]
    #: What latched topics said last, of what has left the buffer, and when [ns since 1970].
    said: dict[str, tuple[bytes, int]] = field(default_factory=dict[str, tuple[bytes, int]])
    rows: deque[tuple[str, bytes, int]] = field(default_factory=deque[tuple[str, bytes, int]])
    size: int = 0
    received: Counter[str] = field(default_factory=Counter[str])
    dropped: Counter[str] = field(default_factory=Counter[str])

    def put(self, topic: str, data: bytes, log_ns: int) -> None:
        """Take a message; beyond the limit the oldest are dropped and counted.

        One that is larger than all the room is dropped alone: it would cost all others, and itself.
        """
        self.received[topic] += 1
        if _room(data) > self.limit:
            self.dropped[topic] += 1
            return
        self.rows.append((topic, data, log_ns))
        self.size += _room(data)
        while self.size > self.limit:
            self.dropped[self._pop()[0]] += 1

    def _pop(self) -> tuple[str, bytes, int]:
        topic, data, log_ns = row = self.rows.popleft()
        self.size -= _room(data)
        if topic in self.latched:
            self.said[topic] = (data, log_ns)
        return row

    def take(self, limit: int) -> list[tuple[str, bytes, int]]:
        """The oldest messages, until they have ``limit`` bytes: topic, data, time [ns]."""
        out: list[tuple[str, bytes, int]] = []
        taken = 0
        while self.rows and taken < limit:
            out.append(self._pop())
            taken += len(out[-1][1])
        return out

    def put_back(self, rows: list[tuple[str, bytes, int]], *, lost: str) -> None:
        """Return what was taken and not written, but for the message of topic ``lost``."""
        self.dropped[lost] += 1
        self.said.pop(lost, None)  # no file takes it, that of the next part neither
        self.rows.extendleft(reversed(rows))
        self.size += sum(_room(data) for _, data, _ in rows)


def _room(data: bytes) -> int:
    return len(data) + ROW_BYTES
