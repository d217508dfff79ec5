"""The processes of a graph: started, listened to, and ended in every case.

No ROS here: nodes tell what happens by lines on standard output, and their standard input is a
pipe whose end means "stop", also where the supervisor is gone. They are stopped in order, those
that command first, the recorder last; what does not stop in time is killed.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from deploy.graph import STATUS_ENV, Graph, NodeSpec

logger = logging.getLogger(__name__)

Status = Callable[[str], None]

#: Who commands, and then who moves, get this long to stop by themselves [s].
STOP_S = 2.5
#: The recorder, which is stopped last, may have a full buffer to write to a slow disk [s].
RECORDER_STOP_S = 10.0
_LOG_TAIL = 6


class Supervisor:
    """The processes of a graph; a context that leaves none behind.

    Nodes that finish by themselves are those that command: they are started when all others have
    reported ready, so that nobody arms before the recorder listens.

    Args:
        graph: what to start.
        on_status: called with one line for everything worth telling.
        log_dir: for the nodes' standard error; a new temporary folder if None.
    """

    def __init__(
        self, graph: Graph, *, on_status: Status | None = None, log_dir: Path | None = None
    ) -> None:
        self.graph = graph
        self.log_dir = Path(tempfile.mkdtemp(prefix="ferry-")) if log_dir is None else log_dir
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.events: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self.ready: set[str] = set()
        self.mode = ""
        self.modes: list[tuple[float, str, str]] = []
        self.summaries: dict[str, dict[str, Any]] = {}
        self.errors: dict[str, str] = {}
        self.killed: list[str] = []
        self.started_s = time.monotonic()
        self._on_status: Status = on_status or logger.info
        self._readers: dict[str, threading.Thread] = {}
        self._environment: Mapping[str, str] = {}
        self._stopping = False

    def __enter__(self) -> Supervisor:
        environment = {**os.environ, **self.graph.environment, STATUS_ENV: "1"}
        environment.setdefault("ROS_LOG_DIR", str(self.log_dir))
        try:
            self._environment = environment
            for node in self.graph.nodes:
                if not node.finishes:
                    self._start(node, environment)
            self._start_those_who_command()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def poll(self, timeout_s: float) -> tuple[str, dict[str, Any]] | None:
        """Take in the next event, waiting at most ``timeout_s`` for one; None if none came."""
        try:
            name, event = self.events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        kind = event.get("event")
        if kind == "ready":
            self.ready.add(name)
            self._start_those_who_command()
        elif kind == "mode":
            self.mode = str(event.get("mode"))
            since = time.monotonic() - self.started_s
            self.modes.append((since, self.mode, str(event.get("reason"))))
        elif kind == "summary":
            self.summaries[name] = event
        elif kind in ("error", "refused"):
            self.errors[name] = str(event.get("message") or event.get("reason"))
        if kind != "summary":
            self._on_status(_line(name, event))
        return name, event

    def ended(self) -> tuple[NodeSpec, int] | None:
        """The first node that has ended, with its exit code."""
        for node in self.graph.nodes:
            process = self.processes.get(node.name)
            code = None if process is None else process.poll()
            if code is not None:
                return node, code
        return None

    def why_ended(self, node: NodeSpec, code: int) -> str:
        """One sentence on the end of a node: its own words, or the last lines of its log."""
        # Its last words may still be on the way through the pipe.
        self._readers[node.name].join(timeout=1.0)
        self._drain()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended ({code})"
        said = self.errors.get(node.name) or "\n  ".join(self._tail(node.name))
        return f"{node.name} {how}" + (f": {said}" if said else "")

    def stop(self) -> None:
        """Stop all nodes: first who commands, then who moves, last who records. Idempotent."""
        self._stopping = True
        groups = (
            [n.name for n in self.graph.nodes if n.finishes],
            [n.name for n in self.graph.nodes if not n.finishes and n.name != "recorder_node"],
            ["recorder_node"],
        )
        for names in groups:
            alive = {n: self.processes[n] for n in names if n in self.processes}
            for process in alive.values():
                _ask_to_stop(process)
            limit_s = RECORDER_STOP_S if "recorder_node" in names else STOP_S
            deadline = time.monotonic() + limit_s
            for name, process in alive.items():
                try:
                    process.wait(timeout=max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    logger.warning("%s (process %d) does not stop; killing it", name, process.pid)
                    self.killed.append(name)
                    process.kill()
                    process.wait()
        for reader in self._readers.values():
            reader.join(timeout=1.0)
        self._drain()

    def _start_those_who_command(self) -> None:
        waiting = [n for n in self.graph.nodes if n.finishes and n.name not in self.processes]
        others = {n.name for n in self.graph.nodes if not n.finishes}
        if waiting and others <= self.ready and not self._stopping:
            for node in waiting:
                self._start(node, self._environment)

    def _start(self, node: NodeSpec, environment: Mapping[str, str]) -> None:
        with (self.log_dir / f"{node.name}.log").open("wb") as log:
            process = subprocess.Popen(
                node.command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=dict(environment),
                # Ctrl-C in a terminal reaches its whole process group; the order is ours to give.
                start_new_session=True,
            )
        self.processes[node.name] = process
        reader = threading.Thread(target=self._read, args=(node.name, process), daemon=True)
        reader.start()
        self._readers[node.name] = reader

    def _read(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Turn a node's standard output into events; what is no event goes to its log."""
        if process.stdout is None:
            return
        with process.stdout, (self.log_dir / f"{name}.log").open("ab") as log:
            for line in process.stdout:
                try:
                    event: Any = json.loads(line)
                except ValueError:
                    event = None
                if isinstance(event, dict) and "event" in event:
                    self.events.put((name, cast("dict[str, Any]", event)))
                else:
                    log.write(line)
                    log.flush()

    def _drain(self) -> None:
        while self.poll(0.0) is not None:
            pass

    def _tail(self, name: str) -> list[str]:
        try:
            text = (self.log_dir / f"{name}.log").read_text(errors="replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-_LOG_TAIL:]


def _ask_to_stop(process: subprocess.Popen[bytes]) -> None:
    """By signal and by the end of its standard input.

    Python loses a SIGINT that arrives in a callback of its import locks, so one in several hundred
    nodes asked while they start would never know. The end of the input is there whenever they look.
    """
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    if process.stdin is not None:
        process.stdin.close()


def _line(name: str, event: Mapping[str, Any]) -> str:
    rest = {k: v for k, v in event.items() if k not in ("node", "event")}
    return f"{name}: {event['event']}" + "".join(f" {k}={v}" for k, v in rest.items())
