"""Between the writer of a log and a disk that may be full."""

from __future__ import annotations

from io import FileIO


class Spool:
    """What an MCAP writer wrote and the operating system has not taken yet.

    A full disk takes a part of what it is given, and raises. What it took is forgotten here and
    nothing else, so that the file goes on without a gap once there is room again.

    Args:
        file: opened for writing, without a buffer of its own.

    Attributes:
        size: bytes written so far [bytes].
    """

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._waiting = bytearray()
        self.size = 0

    def write(self, data: bytes) -> int:
        """Take bytes; none reach the file yet."""
        self._waiting += data
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        """Bytes written so far."""
        return self.size

    def flush(self) -> None:
        """What the MCAP writer calls after each chunk; :meth:`drain` is what reaches the file."""

    def drain(self) -> None:
        """Hand what waits to the operating system.

        Raises:
            OSError: it takes no more; what it took is not given to it again.
        """
        while self._waiting:
            taken = self._file.write(self._waiting) or 0
            del self._waiting[:taken]
