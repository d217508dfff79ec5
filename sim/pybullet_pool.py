"""Worker processes with PyBullet worlds, seen from the process that owns them.

A worker that dies or does not answer is an error that names it; it is never waited for without end.
Workers are started afresh (nothing is forked), talk over a socket each, and end with their owner.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import weakref
from collections.abc import Mapping
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from sim.array_messages import Arrays, receive, send
from sim.pybullet_block import Block
from sim.pybullet_plan import Blueprint

Given = Mapping[str, NDArray[np.generic]]

#: How long a worker may take to start [s]: Python, PyBullet, and files of the robot.
_START_S = 120.0
#: How long a worker may take to end by itself [s].
_END_S = 5.0


class Here:
    """A block in this process; calls run at once.

    Args:
        plan: the robot.
        parameters: ``[n, K]`` of its worlds.
    """

    def __init__(self, plan: Blueprint, parameters: Given) -> None:
        self._block = Block(plan, parameters)
        self._answer: Arrays = {}

    def ready(self) -> None:
        """Nothing to wait for."""

    def ask(self, call: str, arrays: Given) -> None:
        """See :meth:`Worker.ask`."""
        self._answer = self._block.call(call, arrays)

    def answer(self) -> Arrays:
        """See :meth:`Worker.answer`."""
        return self._answer

    def close(self) -> None:
        """Disconnect. May be called twice."""
        self._block.close()


class Worker:
    """A block in a process of its own.

    Args:
        plan: the robot.
        parameters: ``[n, K]`` of its worlds.
        name: of the worker and its worlds, for messages.
        timeout_s: longest time for a call [s].

    Attributes:
        pid: of its process.
    """

    def __init__(self, plan: Blueprint, parameters: Given, *, name: str, timeout_s: float) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._call = "start"
        mine, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "sim.pybullet_worker",
                    str(theirs.fileno()),
                    # So that the owner, if there is one, is always the first to lose patience.
                    str(2.0 * max(timeout_s, _START_S)),
                ],
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                },
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # PyBullet prints what nobody asked for
            )
        # A worker that hangs reads nothing, and one that dies in the middle of an answer ends it.
        patience = struct.pack("ll", math.ceil(timeout_s), 0)
        for direction in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            mine.setsockopt(socket.SOL_SOCKET, direction, patience)
        self._line = Connection(mine.detach())
        self.pid: int = self._process.pid
        self._end = weakref.finalize(self, _end, self._process, self._line)
        self._send("start", parameters, json.dumps(dataclasses.asdict(plan)))

    def ready(self) -> None:
        """Wait until the worlds are built.

        Raises:
            FerryError: they cannot be built, or the worker died or hangs.
        """
        self._receive(_START_S)

    def ask(self, call: str, arrays: Given) -> None:
        """Begin a call of :class:`~sim.pybullet_block.Block`; :meth:`answer` ends it.

        Raises:
            FerryError: the worker is not there any more.
        """
        self._send(call, arrays)

    def answer(self) -> Arrays:
        """Wait for what the call gave.

        Raises:
            FerryError: it was refused or raised, or the worker died or hangs.
        """
        return self._receive(self._timeout_s)

    def close(self) -> None:
        """End the process. May be called twice."""
        self._end()

    def _send(self, call: str, arrays: Given, text: str = "") -> None:
        self._call = call
        try:
            send(self._line, call, arrays, text)
        except BlockingIOError:
            raise self._hangs(self._timeout_s) from None
        except OSError:
            raise self._died() from None

    def _receive(self, patience_s: float) -> Arrays:
        try:
            if not self._line.poll(patience_s):
                raise self._hangs(patience_s)
            word, arrays, text = receive(self._line)
        except BlockingIOError:
            raise self._hangs(self._timeout_s) from None
        except (EOFError, OSError):
            raise self._died() from None
        if word == "refused":
            raise FerryError(text)
        if word == "failed":
            raise FerryError(f"{self._name} failed in {self._call!r}:\n{text}")
        return arrays

    def _hangs(self, patience_s: float) -> FerryError:
        self._process.kill()
        return FerryError(
            f"{self._name} did not answer to {self._call!r} within {patience_s:g} s; it hangs, or "
            "the machine is far too busy for so many worlds"
        )

    def _died(self) -> FerryError:
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return FerryError(f"{self._name} closed its line during {self._call!r}")
        if code < 0:
            with contextlib.suppress(ValueError):
                cause = f"killed by {signal.Signals(-code).name}"
                return FerryError(f"{self._name} died during {self._call!r}, {cause}")
        return FerryError(f"{self._name} died during {self._call!r} with exit code {code}")


def _end(process: subprocess.Popen[bytes], line: Connection) -> None:
    """End a worker: closing the line is the request, killing the fallback."""
    line.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
