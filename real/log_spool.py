"""Between the writer of a log and a disk that may be full, a process that may be killed."""

from __future__ import annotations

import contextlib
from io import FileIO


class Spool:
    """What an MCAP writer wrote and the operating system has not taken yet.

    The file is whole whenever nothing is being written to it: behind what was handed over stands
    an ``ending``, over which the next goes. A full disk takes a part of what it is given, and
    raises. That part is cut off again and given anew the next time, so that the file goes on
    without a gap once there is room, and can be read if nobody ever comes back.

    Args:
        file: opened for writing, without a buffer of its own. Where it cannot seek, as a pipe
            cannot, it has no endings.
        ending: what makes a whole file of one that goes on, always the same bytes.

    Attributes:
        size: bytes written so far, without an ending [bytes].
    """

    def __init__(self, file: FileIO, ending: bytes) -> None:
        self._file = file
        self._ending = ending if file.seekable() else b""
        self._waiting = bytearray()
        #: How far the file is whole, without its ending, and whether that stands there [bytes].
        self._whole = 0
        self._ended = False
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

    def drain(self, *, last: bool = False) -> None:
        """Hand what waits to the operating system, as whole records.

        Args:
            last: what waits has an ending of its own; nothing follows.

        Raises:
            OSError: it takes no more. The file is as before, and what waits goes on waiting.
        """
        if not self._waiting and (last or self._ended or not self._ending):
            return
        if self._ending:
            self._file.seek(self._whole)
        block = bytes(self._waiting) if last else bytes(self._waiting + self._ending)
        done = 0
        try:
            while done < len(block):
                done += self._file.write(block[done:]) or 0
        except OSError:
            self._cut_off(done)
            raise
        self._whole += len(self._waiting)
        self._ended = not last
        self._waiting.clear()

    def _cut_off(self, taken: int) -> None:
        """After a write that failed: what was taken of it is no whole record."""
        if not self._ending:
            # A pipe cannot take it back, and must not be given it twice.
            self._whole += taken
            del self._waiting[:taken]
            return
        # What stood there had room. The first bytes of a file had none: they may go.
        with contextlib.suppress(OSError):
            self._file.seek(self._whole)
            if self._whole:
                self._file.write(self._ending)
        with contextlib.suppress(OSError):
            self._file.truncate()
