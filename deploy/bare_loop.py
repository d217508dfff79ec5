"""A loop that keeps a robot's deadlines and does nothing else, beside a graph that works.

``ferry bench deploy`` runs it in a process of its own. A deadline that it misses, too, was missed
since no core was free, whoever had them, and not through what goes on inside ``robot_node``.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from typing import Any, Self, cast

from deploy.punctual import settle_memory, sharpen_timers, take_priority
from deploy.timing import Histogram

#: How long its end is waited for [s].
_PATIENCE_S = 10.0


class BareLoop:
    """Runs it in another process as long as the context lasts.

    Args:
        rate: of its deadlines [Hz].
        priority: of real time; see :func:`deploy.punctual.take_priority`.
    """

    def __init__(self, rate: int, *, priority: int = 0) -> None:
        self.rate, self._priority = rate, priority
        #: What :func:`keep` returned; empty before the end, and where it did not end well.
        self.result: dict[str, float] = {}

    def __enter__(self) -> Self:
        """Start it."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "deploy.bare_loop", str(self.rate), str(self._priority)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the graph; this one ends with its input
        )
        return self

    def count_anew(self) -> None:
        """Forget what it saw so far."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it ended; `result` will be empty
                self._process.stdin.write(b".")
                self._process.stdin.flush()

    def __exit__(self, *_: object) -> None:
        """End it, and read what it saw."""
        try:
            said = self._process.communicate(timeout=_PATIENCE_S)[0]  # closes its input
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return
        if self._process.returncode == 0:
            self.result = cast("dict[str, float]", json.loads(said))


def keep(rate: int, stop: threading.Event, anew: threading.Event) -> dict[str, Any]:
    """Keep absolute deadlines until ``stop``, as :class:`~deploy.robot_loop.RobotLoop` does.

    It sleeps to the end and does not look at the clock for the last part of a wait: beside the
    robot's loop that would take the core which that one needs. So its period errors are those of
    the kernel's timers, and may be larger than the robot's.

    Args:
        rate: of the deadlines [Hz].
        stop: ends it.
        anew: makes it forget what it saw so far.

    Returns:
        ``missed`` and ``steps``, and ``period_error_p50_ms``, ``_p99_ms`` and ``_max_ms``.
    """
    period_ns = round(1e9 / rate)
    errors, steps, missed = Histogram(), 0, 0
    deadline, woken = time.monotonic_ns(), 0
    while not stop.is_set():
        if anew.is_set():
            anew.clear()
            errors, steps, missed = Histogram(), 0, 0
        deadline += period_ns
        time.sleep(max(0.0, (deadline - time.monotonic_ns()) * 1e-9))
        now = time.monotonic_ns()
        if steps:
            errors.add(abs(now - woken - period_ns) * 1e-9)
        woken, steps = now, steps + 1
        if now - deadline >= period_ns:
            missed += (now - deadline) // period_ns
            deadline = now
    return {"missed": missed, "steps": steps, **errors.milliseconds("period_error")}


def main() -> None:
    """``python -m deploy.bare_loop RATE PRIORITY``, until its input is closed; prints JSON."""
    stop, anew = threading.Event(), threading.Event()

    def watch() -> None:
        while os.read(0, 4096):
            anew.set()
        stop.set()

    rate, priority = map(int, sys.argv[1:])
    take_priority(priority)
    sharpen_timers()
    settle_memory()
    threading.Thread(target=watch, daemon=True).start()
    sys.stdout.write(json.dumps(keep(rate, stop, anew)) + "\n")


if __name__ == "__main__":
    main()
