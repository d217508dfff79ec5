"""A bundle on a robot over ROS 2, checked before and reported after: ``ferry deploy``."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import tempfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from deploy.graph import Graph, choose_robot, graph
from deploy.graph_run import GraphReport, Progress, run_graph
from deploy.options import read_options, safety_file
from deploy.preflight import Cleared, preflight
from deploy.processes import Status
from deploy.schedule import Schedule, arm_tour, tour
from deploy.sim_world import WorldWish


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
        world: what a simulated robot stood in; empty where nobody says it.
    """

    ok: bool
    reason: str
    graph: GraphReport
    operator: Mapping[str, Any]
    record: Path | None
    world: str = ""

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
            **({"world": self.world} if self.world else {}),
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
    minimum_score: float | None = None,
    params: Path | None = None,
    world: WorldWish | None = None,
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
        minimum_score: lowest score of the evaluation that the bundle must carry; None asks for
            none, unless ``params`` does. The stricter of the two counts.
        params: parameter file of the nodes, as ``deploy/share/params.yaml``.
        world: what a simulated robot shall stand in; if None the world that the policy was trained
            in, as far as the bundle carries it.

    Raises:
        FerryError: something is wrong that is seen before a node starts.
    """
    with _new_folder() as folder:
        cleared = preflight(
            bundle,
            choose_robot(robot, options=read_options(options)),
            robot_name=_absolute(robot_name),
            record=record,
            trusted_keys=trusted_keys,
            minimum_score=minimum_score,
            params=params,
            world=world,
            folder=folder / "world",
        )
        plan = _plan(cleared, schedule, seconds)
        files = _write_files(plan, safety, folder, base=safety_settings)
        described = graph(
            bundle,
            cleared.choice,
            robot_name=_absolute(robot_name) or cleared.bundle.contract.robot,
            repeat=plan is not None and seconds is None and schedule is None,
            record=record,
            metadata=cleared.metadata(robot),
            safety_settings=files.settings,
            twist_stamped=twist_stamped,
            watchdog_periods=watchdog_periods,
            domain_id=domain_id,
            schedule=files.schedule,
            arm_timeout_s=arm_timeout_s,
            report=files.report,
            bundle_sha256=cleared.bundle.sha256,
            trusted_keys=trusted_keys,
            minimum_score=cleared.minimum_score,
            params=params,
        )
    # An operator ends the graph; without one its time does.
    limit = seconds if plan is None else None
    first = f"the simulated robot's world: {cleared.world}" if cleared.world else ""
    report, told = _run(described, files, limit, first, on_status=on_status, progress=progress)
    return DeployResult(report.ok, report.reason, report, told, record, cleared.world)


@dataclass(frozen=True)
class _Files:
    """What is written for the nodes.

    Attributes:
        folder: of all this, and of the nodes' logs.
        settings: safety settings, or None for the defaults.
        schedule: what an operator node plays, if there is to be one.
        report: what it will write.
    """

    folder: Path
    settings: Path | None
    schedule: Path | None
    report: Path | None


@contextlib.contextmanager
def _new_folder() -> Generator[Path]:
    """A folder for what the nodes read and say, of which nothing stays if they do not start."""
    folder = Path(tempfile.mkdtemp(prefix="ferry-"))
    try:
        yield folder
    # Ctrl-C, too: there is nothing in it yet that anybody would look for.
    except BaseException:
        shutil.rmtree(folder)
        raise


def _write_files(
    plan: Schedule | None, safety: Sequence[str], folder: Path, *, base: Path | None
) -> _Files:
    settings = safety_file(safety, folder, base=base)
    if plan is None:
        return _Files(folder, settings, None, None)
    files = _Files(folder, settings, folder / "schedule.json", folder / "operator.json")
    plan.save(folder / "schedule.json")
    return files


def _run(
    described: Graph,
    files: _Files,
    seconds: float | None,
    first: str,
    *,
    on_status: Status | None,
    progress: Progress | None,
) -> tuple[GraphReport, Mapping[str, Any]]:
    """Run the graph, for so many seconds if given, and say first what a person must know.

    What was written for it is removed if it ended well.
    """
    if on_status is not None:
        armed = any(node.name == "operator_node" for node in described.nodes)
        for line in [*([first] if first else []), *_opening(described, files.folder, armed=armed)]:
            on_status(line)
    report = run_graph(
        described, seconds=seconds, on_status=on_status, progress=progress, log_dir=files.folder
    )
    told = _read_report(files.report)
    if report.ok and not any(report.exit_codes.values()):
        shutil.rmtree(files.folder, ignore_errors=True)
    return report, told


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
    contract, length = cleared.bundle.contract, 60.0 if seconds is None else seconds
    if contract.reach is not None:
        return arm_tour(contract, seconds=length)
    return tour(contract.command, seconds=length)


def _opening(described: Graph, log_dir: Path, *, armed: bool) -> list[str]:
    domain = described.environment.get("ROS_DOMAIN_ID", "the environment's")
    lines = [f"ROS domain id: {domain}; logs of the nodes: {log_dir}"]
    return lines if armed else [*lines, "nobody arms this robot: call /arm when it may move"]


def _read_report(path: Path | None) -> Mapping[str, Any]:
    if path is None or not path.is_file():
        return {}
    return cast("dict[str, Any]", json.loads(path.read_text()))
