"""Runs a graph from the first process to the last: ``ferry deploy``.

If one node ends, all are stopped, which ends in the safe stop.
"""

from __future__ import annotations

import json
import math
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from deploy.graph import Graph, choose_robot, graph
from deploy.options import read_options, safety_file
from deploy.preflight import Cleared, preflight
from deploy.processes import STOP_S, Status, Supervisor
from deploy.schedule import Schedule, tour
from real.errors import FerryError

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
        reason += f"; had to kill {', '.join(run.killed)}, not stopped after {STOP_S:g} s"
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


@dataclass(frozen=True)
class DeployResult:
    """How a deployment went.

    Attributes:
        ok: whether it ended as planned.
        reason: why it ended.
        graph: the graph's own report: modes, exit codes, what each node said at its end.
        operator: what the operator node reported: ``arm_ns``, ``start_ns``, ``end_ns`` (times of
            reception, as in the recording), ``completed``, ``failure``; empty without operator.
        record: the recording, or None.
    """

    ok: bool
    reason: str
    graph: GraphReport
    operator: Mapping[str, Any]
    record: Path | None

    def rows(self) -> Mapping[str, str]:
        """What a person wants to know, name -> text."""
        safety = self.graph.summaries.get("safety_node", {})
        counts = {
            v: int(safety.get(f"verdict {v}", 0)) for v in ("PASS", "CLAMPED", "HOLD", "DAMP")
        }
        stops = "; ".join(f"{m} after {t:.1f} s: {why}" for t, m, why in self.graph.modes)
        policy = self.graph.summaries.get("policy_node", {})
        return {
            "ended": self.reason,
            "modes": stops or "never armed",
            "commands": ", ".join(f"{n} {v.lower()}" for v, n in counts.items()),
            "policy tick p50 / p99": _milliseconds(policy, "tick"),
            "safety tick p50 / p99": _milliseconds(safety, "tick"),
            "state to command p50 / p99": _milliseconds(safety, "state_to_command"),
            "recording": str(self.record or "none"),
            "logs of the nodes": self._logs(),
        }

    def _logs(self) -> str:
        kept = self.graph.log_dir.is_dir()
        return str(self.graph.log_dir) if kept else "removed, since the run ended well"


def _milliseconds(summary: Mapping[str, Any], name: str) -> str:
    p50, p99 = summary.get(f"{name}_p50_ms"), summary.get(f"{name}_p99_ms")
    if p50 is None or p99 is None or math.isnan(p50) or math.isnan(p99):
        return "not measured"
    return f"{p50:.2f} / {p99:.2f} ms"


def deploy(
    bundle: Path,
    robot: str,
    *,
    seconds: float | None = None,
    record: Path | None = None,
    schedule: Schedule | None = None,
    on_status: Status | None = None,
    progress: Progress | None = None,
    robot_name: str | None = None,
    options: Sequence[str] = (),
    safety_settings: Path | None = None,
    safety: Sequence[str] = (),
    twist_stamped: bool = False,
    watchdog_periods: float | None = None,
    arm_timeout_s: float = 30.0,
    domain_id: int | None = None,
    trusted_keys: Path | None = None,
) -> DeployResult:
    """Run a bundle on a robot, simulated or not, over ROS 2.

    A simulated robot is armed and driven: through the schedule, or a tour of the command range
    for ``seconds`` (again and again if None). Hardware is armed by nobody unless a schedule is
    given: a person calls ``/arm``.

    Args:
        bundle: the policy file.
        robot: ``sim:pybullet``, ``sim:mujoco``, ``loopback`` or ``module:Class``.
        seconds: how long to drive, or, without a schedule on hardware, to run [s].
        record: MCAP file to write.
        schedule: velocity commands to play.
        on_status: called with one line for everything worth telling.
        progress: called several times a second.
        robot_name: robot file, by name or path; the one that the bundle names if None.
        options: ``key=value`` for the plug-in, the value in YAML.
        safety_settings: YAML file of :class:`deploy.safety.SafetySettings`.
        safety: ``key=value`` that replace values of it, or of the defaults.
        twist_stamped: ``/cmd_vel`` is a TwistStamped.
        watchdog_periods: control periods of silence until the safe stop; see
            :func:`deploy.graph.graph`. Simulated robots get ten, since a pause of 100 ms is
            ordinary where a simulator shares its cores; hardware gets three.
        arm_timeout_s: how long the operator tries to arm [s].
        domain_id: of DDS; None: a free one for simulated robots, the environment's for hardware.
        trusted_keys: folder of keys with one of which the bundle must be signed.

    Raises:
        FerryError: something is wrong that is seen before a node starts.
    """
    robot_name = _absolute(robot_name)
    choice = choose_robot(robot, options=read_options(options))
    cleared = preflight(
        bundle, choice, robot_name=robot_name, record=record, trusted_keys=trusted_keys
    )
    plan = _plan(cleared, schedule, seconds)
    log_dir = Path(tempfile.mkdtemp(prefix="ferry-"))
    try:
        settings = safety_file(safety, log_dir, base=safety_settings)
    except FerryError:
        shutil.rmtree(log_dir)
        raise
    files = _operator_files(plan, log_dir)
    described = graph(
        bundle,
        cleared.choice,
        robot_name=robot_name or cleared.bundle.contract.robot,
        repeat=plan is not None and seconds is None and schedule is None,
        record=record,
        metadata=_metadata(cleared, robot),
        safety_settings=settings,
        twist_stamped=twist_stamped,
        watchdog_periods=watchdog_periods,
        domain_id=domain_id,
        schedule=files.get("schedule"),
        arm_timeout_s=arm_timeout_s,
        report=files.get("report"),
        bundle_sha256=cleared.bundle.sha256,
        trusted_keys=trusted_keys,
    )
    if on_status is not None:
        for line in _opening(described, log_dir, armed=plan is not None):
            on_status(line)
    limit = seconds if plan is None else None
    report = run_graph(
        described, seconds=limit, on_status=on_status, progress=progress, log_dir=log_dir
    )
    operator = _read_report(files.get("report"))
    if report.ok and not any(report.exit_codes.values()):
        shutil.rmtree(log_dir, ignore_errors=True)
    return DeployResult(report.ok, report.reason, report, operator, record)


def _absolute(robot_name: str | None) -> str | None:
    """Nodes start elsewhere; a shipped robot's name is no path."""
    is_file = Path(robot_name or "").is_file()
    return str(Path(robot_name or "").absolute()) if is_file else robot_name


def _plan(cleared: Cleared, schedule: Schedule | None, seconds: float | None) -> Schedule | None:
    """What an operator node will play, if there is to be one."""
    if schedule is not None:
        return schedule if seconds is None else schedule.first(seconds)
    if not cleared.choice.simulated:
        return None
    return tour(cleared.bundle.contract.command, seconds=60.0 if seconds is None else seconds)


def _operator_files(plan: Schedule | None, folder: Path) -> dict[str, Path]:
    """Files by which the operator node is told and tells; none without a plan."""
    if plan is None:
        return {}
    files = {"schedule": folder / "schedule.json", "report": folder / "operator.json"}
    plan.save(files["schedule"])
    return files


def _opening(described: Graph, log_dir: Path, *, armed: bool) -> list[str]:
    domain = described.environment.get("ROS_DOMAIN_ID", "the environment's")
    lines = [f"ROS domain id: {domain}; logs of the nodes: {log_dir}"]
    return lines if armed else [*lines, "nobody arms this robot: call /arm when it may move"]


def _metadata(cleared: Cleared, robot: str) -> dict[str, str]:
    contract = cleared.bundle.contract
    return {
        "bundle_sha256": cleared.bundle.sha256,
        "robot": contract.robot,
        "plugin": robot,
        "config_hash": contract.config_hash,
        "git_sha": contract.git_sha,
        "policy_version": str(contract.policy_version),
        "contract": contract.to_json(),
    }


def _read_report(path: Path | None) -> Mapping[str, Any]:
    if path is None or not path.is_file():
        return {}
    return cast("dict[str, Any]", json.loads(path.read_text()))
