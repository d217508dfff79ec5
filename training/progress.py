"""Progress for people: one bar with an estimate of the time left, on stderr.

Long work takes a callback ``progress(done, total, note)`` and knows nothing of terminals. Results
go to stdout; everything here goes to stderr, so that output can be piped.
"""

from __future__ import annotations

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

#: How often a log file (stderr that is no terminal) gets a line [s].
LOG_PERIOD_S = 30.0


class ProgressFn(Protocol):
    """What long work calls as it advances; cheap enough to call every step."""

    def __call__(self, done: float, total: float, note: str = "") -> None:
        """Say that ``done`` of ``total`` (any unit) is finished, with a short note."""
        ...


class Stage(Protocol):
    """Opens a titled progress display: ``with stage("training") as progress: ...``."""

    def __call__(self, title: str) -> Iterator[ProgressFn]: ...


def silent(done: float, total: float, note: str = "") -> None:
    """A :class:`ProgressFn` that shows nothing."""


@contextmanager
def bar(title: str, *, console: Console | None = None) -> Iterator[ProgressFn]:
    """Show one bar while the block runs; lines instead of a bar where stderr is no terminal.

    Args:
        title: what is being done, e.g. ``training``.
        console: where to draw; stderr if None.
    """
    console = console or Console(stderr=True)
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
    with Progress(*columns, console=console, transient=False) as display:
        task = display.add_task(title, total=None, note="")

        def update(done: float, total: float, note: str = "") -> None:
            display.update(task, completed=done, total=total, note=note)

        yield update
        display.update(task, note="", completed=display.tasks[0].total or 0.0)


class _Lines:
    """One line at the start, every :data:`LOG_PERIOD_S`, and when the total is reached."""

    def __init__(self, title: str, write: Callable[[str], None]) -> None:
        self._title = title
        self._write = write
        self._start = time.monotonic()
        self._next = self._start + LOG_PERIOD_S
        self._ended = False
        write(f"{title} ...")

    def __call__(self, done: float, total: float, note: str = "") -> None:
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
