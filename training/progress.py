"""Progress for people: one bar with an estimate of the time left, on stderr.

Long work takes a callback ``progress(done, total, note)`` and knows nothing of terminals. Results
go to stdout; everything here goes to stderr, so that output can be piped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

#: Where bars and log lines go; one object, so that neither draws over the other.
TERMINAL = Console(stderr=True)

#: How often a log file (stderr that is no terminal) gets a line [s].
LOG_PERIOD_S = 30.0


class ProgressFn(Protocol):
    """What long work calls as it advances; cheap enough to call every step."""

    def __call__(self, done: float, total: float, note: str = "") -> None:
        """Say that ``done`` of ``total`` (any unit) is finished, with a short note."""
        ...


def silent(done: float, total: float, note: str = "") -> None:
    """A :class:`ProgressFn` that shows nothing."""


def say(line: str) -> None:
    """Show a line above the bar, if there is one."""
    TERMINAL.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def bar(title: str, *, console: Console | None = None) -> Iterator[ProgressFn]:
    """Show one bar while the block runs; lines instead of a bar where stderr is no terminal.

    Args:
        title: what is being done, e.g. ``training``.
        console: where to draw; :data:`TERMINAL` if None.
    """
    console = console or TERMINAL
    if not console.is_terminal:
        yield _Lines(title, console.print)
        return
    columns = (
        TextColumn("[bold]{task.description:<28}"),
        BarColumn(bar_width=30),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    display = Progress(*columns, console=console)
    task = display.add_task(title, total=None, note="")

    def update(done: float, total: float, note: str = "") -> None:
        # Started here: what is refused at once shows no bar. Starting twice does nothing.
        display.start()
        # An unknown total is drawn as a pulse.
        display.update(task, completed=done, total=total or None, note=note)

    try:
        yield update
        display.update(task, note="", completed=display.tasks[0].total or 0.0)
    finally:
        display.stop()


class _Lines:
    """One line at the first step, every :data:`LOG_PERIOD_S`, and when the total is reached."""

    def __init__(self, title: str, write: Callable[[str], None]) -> None:
        self._title = title
        self._write = write
        self._start = time.monotonic()
        self._next = self._start + LOG_PERIOD_S
        self._begun = self._ended = False

    def __call__(self, done: float, total: float, note: str = "") -> None:
        if not self._begun:
            self._begun = True
            self._write(f"{self._title} ...")
        now = time.monotonic()
        finished = total > 0.0 and done >= total
        if self._ended or not (finished or now >= self._next):
            return
        self._ended = finished
        self._next = now + LOG_PERIOD_S
        elapsed = now - self._start
        share = done / total if total > 0.0 else 0.0
        left = f", {elapsed * (1.0 - share) / share:.0f} s left" if 0.0 < share < 1.0 else ""
        tail = f" ({note})" if note else ""
        self._write(f"{self._title}: {share:.0%} after {elapsed:.0f} s{left}{tail}")


@contextmanager
def ticking(progress: ProgressFn, seconds: float) -> Iterator[None]:
    """Advance a progress display by the clock, for work that only takes its time.

    Args:
        progress: told the time spent, every half second, from a thread of its own.
        seconds: how long the work is expected to take [s].
    """
    over = threading.Event()
    start = time.monotonic()

    def tick() -> None:
        while not over.wait(0.5):
            # The end of the block is the end; until then it is never quite done.
            progress(min(time.monotonic() - start, 0.99 * seconds), seconds)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    progress(seconds, seconds)
