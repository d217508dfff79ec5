"""What a demonstration found: numbers for people, for scripts, and for the report."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.drive import Drive
from training.evaluator import Evaluation
from training.report import Curve, ReportData, Trace
from training.run_config import RunConfig
from training.run_folder import git_sha
from training.train import TrainResult


@dataclass(frozen=True)
class Variant:
    """One way of training, carried through all stages.

    Attributes:
        label: for tables and plots.
        folder: where its run, bundle and recording lie.
        training: how training went.
        nominal: score in MuJoCo.
        drive: score in PyBullet over ROS 2.
        tick_us: ``p50`` and ``p99`` of a controller tick [us]; see :data:`NOTES`.
        latency_ms: the same of state to command [ms].
        stopped: why the drive ended early, or "".
    """

    label: str
    folder: Path
    training: TrainResult
    nominal: Evaluation
    drive: Drive
    tick_us: Mapping[str, float]
    latency_ms: Mapping[str, float]
    stopped: str

    def as_json(self) -> dict[str, Any]:
        """Keys are stable."""
        return {
            "training_s": self.training.training_s,
            "tracking_mujoco": self.nominal.tracking.mean,
            "tracking_pybullet_ros": self.drive.tracking,
            "falls": self.drive.falls,
            "clamped_share": self.drive.clamped_share,
            # JSON has no NaN; null says that a node said nothing at its end.
            "tick_us": {k: None if np.isnan(v) else v for k, v in self.tick_us.items()},
        }

    def cells(self) -> list[str]:
        """What the table shows, in the order of :data:`ROWS`."""
        score, falls = self.nominal.tracking, self.nominal.falls_per_minute
        drive = self.drive
        early = drive.stopped_s is not None
        end = f"after {drive.stopped_s:.1f} s: {self.stopped}" if early else "no"
        return [
            f"{self.training.training_s / 60.0:.1f} min, {self.training.steps / 1e6:.1f} M steps",
            f"{score.mean:.3f} [{score.low:.3f}, {score.high:.3f}]",
            f"{falls.mean:.2f} [{falls.low:.2f}, {falls.high:.2f}]",
            f"{drive.tracking:.3f}",
            f"{drive.falls} in {drive.time_s[-1]:.0f} s",
            end,
            f"{100.0 * drive.clamped_share:.1f} %",
            f"{self.tick_us['p50']:.0f} / {self.tick_us['p99']:.0f} us",
            f"{self.latency_ms['p50']:.2f} / {self.latency_ms['p99']:.2f} ms",
        ]


ROWS = (
    "training",
    "tracking, MuJoCo (95 %)",
    "falls per minute (95 %)",
    "tracking, PyBullet, ROS 2",
    "falls",
    "stopped early",
    "clamped commands",
    "tick time, p50 / p99",
    "state to command, p50 / p99",
)

NOTES = {
    "tracking": "(2 lin + yaw) / 3 with lin = exp(-(ex² + ey²) / 0.25) and "
    "yaw = exp(-ewz² / 0.25), at 50 Hz in the base frame, averaged over time after the first "
    "second; 1 is perfect. A robot that fell or was stopped scores 0 until the run would have "
    "ended.",
    "MuJoCo": "nominal: no randomisation, noise or delay; commands and seeds that training never "
    "used; through the robot's own controller code. Intervals are 95 % over episodes.",
    "PyBullet, ROS 2": "policy, safety, robot and recorder nodes as processes of their own; "
    "scored from the recording: /cmd_vel against /ground_truth/odom.",
    "stopped early": "whether and why the safety node ended the drive before its time.",
    "clamped commands": "share of the policy's commands that the safety node changed.",
    "tick time": "time in policy_node (read, observe, infer, decode, publish) plus time in "
    "safety_node (check, filter, publish) for one state, each measured by the node itself over its "
    "last 2000 ticks. The sum of two p99 is an upper bound of the p99 of the sum.",
    "state to command": "from the arrival of a state at safety_node to its answer: the way to "
    "policy_node and back through the middleware, and both ticks.",
}


@dataclass(frozen=True)
class DemoResult:
    """What a demonstration found.

    Attributes:
        main: trained with randomisation.
        other: trained without, where asked for.
        report: the HTML page.
    """

    main: Variant
    other: Variant | None
    report: Path

    def as_json(self) -> dict[str, Any]:
        """Keys are stable; ``compare`` is there when asked for."""
        compared = {} if self.other is None else {"compare": self.other.as_json()}
        return {**self.main.as_json(), **compared}

    def table_header(self) -> list[str]:
        """One column per variant."""
        return ["", *(v.label for v in self.variants)]

    def table_rows(self) -> list[list[str]]:
        """One row per quantity."""
        cells = [v.cells() for v in self.variants]
        return [[name, *(column[i] for column in cells)] for i, name in enumerate(ROWS)]

    @property
    def variants(self) -> tuple[Variant, ...]:
        """One or two."""
        return (self.main,) if self.other is None else (self.main, self.other)


def report_data(result: DemoResult, config: RunConfig, picture: Path | None) -> ReportData:
    """Everything that the page shows.

    Args:
        result: what was found.
        config: the task.
        picture: of the drive, or None.
    """
    return ReportData(
        title="A1: trained in MuJoCo, walking in PyBullet over ROS 2",
        summary=f"Task {config.name}. The policy saw only MuJoCo while it learned; here it drives "
        "the same robot in another physics engine, through real ROS 2 nodes and a safety filter.",
        header=result.table_header(),
        rows=result.table_rows(),
        curves=[read_curve(v.folder / "run", v.label) for v in result.variants],
        traces=[_trace(v) for v in result.variants],
        picture=picture,
        notes=NOTES,
        origin={
            "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            "seed": str(config.training.seed),
            "commit": git_sha(),
            "bundle": str(result.main.folder / "policy.onnx"),
            "recording": str(result.main.folder / "drive.mcap"),
        },
    )


def read_curve(run_dir: Path, label: str) -> Curve:
    """The evaluations of a run as a curve; empty if there were none.

    Args:
        run_dir: a run folder.
        label: what to call it.
    """
    path = run_dir / "evaluations.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines]

    def column(pick: Callable[[dict[str, Any]], float]) -> NDArray[np.float64]:
        return np.array([pick(r) for r in records], dtype=np.float64)

    return Curve(
        label=label,
        minutes=column(lambda r: r["training_s"] / 60.0),
        mean=column(lambda r: r["tracking"]["mean"]),
        low=column(lambda r: r["tracking"]["low"]),
        high=column(lambda r: r["tracking"]["high"]),
    )


def _trace(variant: Variant) -> Trace:
    drive = variant.drive
    ends = [t for t in (drive.fallen_s, drive.stopped_s) if t is not None]
    return Trace(
        label=variant.label,
        time_s=drive.time_s,
        command=drive.command,
        velocity=drive.velocity,
        fallen_at_s=min(ends, default=None),
    )
