"""``ferry deploy``: check, describe the graph, run it, say how it went."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from deploy.graph import choose_robot, graph
from deploy.preflight import Cleared, preflight
from deploy.schedule import Schedule, tour
from deploy.supervisor import GraphReport, Status, run_graph


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


def deploy(
    bundle: Path,
    robot: str,
    *,
    seconds: float | None = None,
    record: Path | None = None,
    schedule: Schedule | None = None,
    on_status: Status | None = None,
    robot_name: str | None = None,
    twist_stamped: bool = False,
    watchdog_periods: float | None = None,
    domain_id: int | None = None,
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
        robot_name: robot file; the one that the bundle names if None.
        twist_stamped: ``/cmd_vel`` is a TwistStamped; needs a person or node that drives.
        watchdog_periods: control periods of silence until the safe stop; see
            :func:`deploy.graph.graph`.
        domain_id: of DDS; None: a free one for simulated robots, the environment's for hardware.

    Raises:
        FerryError: something is wrong that is seen before a node starts.
    """
    cleared = preflight(bundle, choose_robot(robot), robot_name=robot_name, record=record)
    plan = _plan(cleared, schedule, seconds)
    log_dir = Path(tempfile.mkdtemp(prefix="ferry-"))
    files: dict[str, Path] = {}
    if plan is not None:
        files = {"schedule": log_dir / "schedule.json", "report": log_dir / "operator.json"}
        plan.save(files["schedule"])
    described = graph(
        bundle,
        cleared.choice,
        robot_name=robot_name or cleared.bundle.contract.robot,
        repeat=plan is not None and seconds is None and schedule is None,
        record=record,
        metadata=_metadata(cleared, robot),
        twist_stamped=twist_stamped,
        watchdog_periods=watchdog_periods,
        domain_id=domain_id,
        schedule=files.get("schedule"),
        report=files.get("report"),
    )
    if on_status is not None:
        domain = described.environment.get("ROS_DOMAIN_ID", "the environment's")
        on_status(f"ROS domain id: {domain}; logs of the nodes: {log_dir}")
        if plan is None:
            on_status("nobody arms this robot: call the service /arm when it may move")
    limit = seconds if plan is None else None
    report = run_graph(described, seconds=limit, on_status=on_status, log_dir=log_dir)
    return DeployResult(
        ok=report.ok,
        reason=report.reason,
        graph=report,
        operator=_read_report(files.get("report")),
        record=record,
    )


def _plan(cleared: Cleared, schedule: Schedule | None, seconds: float | None) -> Schedule | None:
    """What an operator node will play, if there is to be one."""
    if schedule is not None:
        return schedule if seconds is None else schedule.first(seconds)
    if not cleared.choice.simulated:
        return None
    return tour(cleared.bundle.contract.command, seconds=60.0 if seconds is None else seconds)


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
