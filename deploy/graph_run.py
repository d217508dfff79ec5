"""Runs a graph from the first process to the last.

If one node ends, all are stopped, which ends in the safe stop.
"""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.graph import Graph
from deploy.processes import Status, Supervisor

#: Called with (seconds done, seconds in all or 0, what is going on).
Progress = Callable[[float, float, str], None]

#: Nodes must be ready within this [s]; importing a physics engine on a busy computer takes a few.
READY_S = 60.0


@dataclass(frozen=True)
class GraphReport:
    """How a graph ended.

    Attributes:
        ok: whether it ended as planned.
        reason: why it ended.
        seconds: how long it ran [s].
        exit_codes: of each node; negative for the signal that killed it.
        killed: nodes that did not stop when they were asked to; then it did not end as planned.
        modes: every change of mode: seconds since the start, mode, reason.
        summaries: what each node said at its end.
        log_dir: standard error of each node; a folder that was made for it is removed after a run
            that ended well.
    """

    ok: bool
    reason: str
    seconds: float
    exit_codes: Mapping[str, int]
    modes: Sequence[tuple[float, str, str]]
    summaries: Mapping[str, Mapping[str, Any]]
    log_dir: Path
    killed: tuple[str, ...] = ()


@dataclass
class _Interrupt:
    """Turns SIGINT and SIGTERM into a question that the loop asks."""

    asked: bool = False
    _before: dict[int, Any] = field(default_factory=dict[int, Any])

    def __enter__(self) -> _Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, *_: object) -> None:
        self.asked = True


def run_graph(
    graph: Graph,
    *,
    seconds: float | None = None,
    on_status: Status | None = None,
    progress: Progress | None = None,
    log_dir: Path | None = None,
) -> GraphReport:
    """Run a graph until it has finished, a node ends, its time is over, or somebody interrupts.

    Args:
        graph: what to run.
        seconds: end after this long, counted from when all nodes are ready; None: not by time.
        on_status: called with one line for everything worth telling.
        progress: called several times a second.
        log_dir: for the nodes' standard error; None makes a folder, and removes it after a run that
            ended well.
    """
    with _Interrupt() as interrupt, Supervisor(graph, on_status=on_status, log_dir=log_dir) as run:
        watch = _Watch(run, seconds, interrupt, progress)
        ok, reason = watch.until_end()
        ran_s = time.monotonic() - run.started_s
    if run.killed:
        # A robot whose node had to be killed was not stopped by it, whatever came before.
        ok = False
        reason += f"; had to kill {', '.join(run.killed)}, not stopped in time"
    if log_dir is None and ok and not any(p.returncode for p in run.processes.values()):
        shutil.rmtree(run.log_dir, ignore_errors=True)
    return GraphReport(
        ok=ok,
        reason=reason,
        seconds=ran_s,
        exit_codes={n: p.returncode for n, p in run.processes.items()},
        modes=run.modes,
        summaries=run.summaries,
        log_dir=run.log_dir,
        killed=tuple(run.killed),
    )


@dataclass
class _Watch:
    """Waits for the end of a graph."""

    run: Supervisor
    seconds: float | None
    interrupt: _Interrupt
    progress: Progress | None
    ready_s: float | None = None
    played_s: float | None = None
    total_s: float = 0.0

    def until_end(self) -> tuple[bool, str]:
        """Whether the end was the planned one, and what it was."""
        while True:
            happened = self.run.poll(0.05)
            now = time.monotonic()
            if happened is not None and happened[1].get("event") == "playing":
                self.played_s, self.total_s = now, float(happened[1]["seconds"])
            end = self._end(now)
            if end is not None:
                return end
            if self.progress is not None:
                since = self.played_s or (self.ready_s if self.seconds is not None else None)
                total = self.seconds or self.total_s
                done = 0.0 if since is None else min(now - since, total or now - since)
                self.progress(done, total, self.run.mode)

    def _end(self, now: float) -> tuple[bool, str] | None:
        run = self.run
        ended = run.ended()
        if ended is not None:
            node, code = ended
            if node.finishes and code == 0:
                return True, f"{node.name} has finished"
            return False, run.why_ended(node, code)
        if self.interrupt.asked:
            return True, "interrupted"
        late = {node.name for node in run.graph.nodes} - run.ready
        if late and now - run.started_s > READY_S:
            return False, f"not ready within {READY_S:.0f} s: {', '.join(sorted(late))}"
        if not late and self.ready_s is None:
            self.ready_s = now
        if self.seconds is not None and now - (self.ready_s or now) >= self.seconds:
            return True, f"ran for {self.seconds:g} s"
        return None
