"""The whole road in one run: train in MuJoCo, export, walk in PyBullet over ROS 2, report.

Every stage is what its own command does; nothing is special to the demonstration but the order.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from deploy.preflight import require_ros
from deploy.schedule import Schedule
from deploy.supervisor import DeployResult, deploy
from real.errors import FerryError
from real.log import read_log
from real.spec import load_robot
from sim.commands import command_schedule, velocity_command
from sim.render import render_frames, save_gif
from training.demo_result import DemoResult, Variant, report_data
from training.drive import TOPICS, Drive, drive_poses, score_drive
from training.evaluator import evaluate_path, selection_scorer
from training.export import export_run
from training.progress import ProgressFn, say, ticking
from training.report import write_report
from training.run_config import RunConfig, load_run_config
from training.train import train

log = logging.getLogger(__name__)

#: Opens a titled progress display.
Stage = Callable[[str], AbstractContextManager[ProgressFn]]

TASK = "a1_walk"
ROBOT = "sim:pybullet"
#: Share of the time that is spent on training: 9.6 of 15 minutes. The rest is the drive,
#: evaluation, export, the picture, and room for a slower computer.
TRAIN_SHARE = 0.64
#: The drive, and the shortest one that visits every kind of motion [s].
DRIVE_S, SHORTEST_DRIVE_S = 60.0, 12.0
#: Starting five processes, ramping from the measured pose, stopping [s]; for the progress bar.
START_STOP_S = 12.0
#: A busy computer may miss the watchdogs while five processes start; training is not lost to that.
ATTEMPTS = 2
#: Episodes in MuJoCo.
EPISODES = 20
#: The picture shows so much of the drive, at this size and rate [s, pixels, 1/s].
PICTURE_S, PICTURE_SIZE, PICTURE_FPS = 12.0, (360, 240), 12.5


def run_demo(
    out: Path,
    *,
    minutes: float,
    compare: bool,
    seed: int,
    stage: Stage,
    overrides: Sequence[str] = (),
) -> DemoResult:
    """Train, evaluate, export, drive and report.

    Args:
        out: folder for all of it; new or empty.
        minutes: about how long it may take; twice that with ``compare``.
        compare: also train without randomisation, and do the same with that policy.
        seed: of the training runs.
        stage: opens a progress display.
        overrides: further settings ``a.b=c`` of the task.

    Raises:
        FerryError: ROS 2 or PyBullet is missing, or the folder is in use; before anything else.
        KeyboardInterrupt: somebody interrupted a stage.
    """
    require_ros()
    # Found missing now, not after ten minutes of training.
    if importlib.util.find_spec("pybullet") is None:
        raise FerryError("PyBullet is not installed here: pip install 'ferry[pybullet]'")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FerryError(f"{out} is not empty: choose another folder with --out")
    config = load_run_config(TASK, [f"training.seed={seed}", *overrides])
    try:
        return _run(config, out, minutes=minutes, compare=compare, stage=stage)
    except KeyboardInterrupt:
        say(_interrupted(out))
        raise


def _interrupted(out: Path) -> str:
    """What is left of a demonstration that was interrupted, and how its training goes on."""
    runs = [run for run in (out / "randomised/run", out / "not_randomised/run") if run.is_dir()]
    line = f"interrupted; what was made so far is in {out}"
    if not runs:
        return line
    return f"{line}; go on: ferry train {runs[-1]}/config.yaml --out {runs[-1]} --resume"


def _run(
    config: RunConfig, out: Path, *, minutes: float, compare: bool, stage: Stage
) -> DemoResult:
    say(f"about {minutes * (1 + compare):g} minutes; everything is written to {out}")
    main = _variant("randomised", config, out / "randomised", minutes=minutes, stage=stage)
    other = None
    if compare:
        plain = plain_config(config)
        label = "not randomised"
        other = _variant(label, plain, out / "not_randomised", minutes=minutes, stage=stage)
    result = DemoResult(main, other, out / "report.html")
    with stage("picture and report") as progress, ticking(progress, 15.0):
        picture = _picture(main, config, out / "walk.gif")
        write_report(report_data(result, config, picture), result.report)
    return result


def plain_config(config: RunConfig) -> RunConfig:
    """The same task without random terms, sensor noise and delay, everything else equal."""
    # The critic's view of the random terms goes with them.
    critic = tuple(name for name in config.critic if name != "randomization")
    return config.model_copy(update={"randomize": {}, "sensors": None, "critic": critic})


def drive_seconds(minutes: float) -> float:
    """How long to drive in a demonstration of this length [s]."""
    return float(np.clip(12.0 * minutes, SHORTEST_DRIVE_S, DRIVE_S))


def _variant(
    label: str, config: RunConfig, folder: Path, *, minutes: float, stage: Stage
) -> Variant:
    """One way of training through all stages but the report."""
    with stage(f"training, {label}") as progress:
        trained = train(
            config,
            folder / "run",
            minutes=TRAIN_SHARE * minutes,
            evaluate=selection_scorer(config),
            progress=progress,
        )
    if trained.interrupted:
        raise KeyboardInterrupt
    with stage("exporting the policy") as progress, ticking(progress, 15.0):
        bundle = export_run(folder / "run", folder / "policy.onnx").path
    with stage("evaluating in MuJoCo") as progress:
        nominal = evaluate_path(bundle, suite="nominal", episodes=EPISODES, progress=progress)
    seconds = drive_seconds(minutes)
    with stage("driving in PyBullet over ROS 2") as progress:
        drive, ended = drive_bundle(
            bundle, config, folder / "drive.mcap", seconds=seconds, progress=progress
        )
    return Variant(
        label=label,
        folder=folder,
        training=trained,
        nominal=nominal,
        drive=drive,
        tick_us=tick_us(ended.graph.summaries),
        latency_ms=_percentiles(ended.graph.summaries.get("safety_node", {}), "state_to_command"),
        stopped=why_stopped(ended),
    )


def drive_bundle(
    bundle: Path, config: RunConfig, record: Path, *, seconds: float, progress: ProgressFn
) -> tuple[Drive, DeployResult]:
    """Drive a bundle through varied commands over ROS 2 and score the recording.

    Args:
        bundle: the policy.
        config: its task; gives robot and command ranges.
        record: MCAP file to write.
        seconds: length of the schedule [s].
        progress: told the time.

    Raises:
        FerryError: the graph did not come up, or the robot never ran.
        KeyboardInterrupt: somebody interrupted the graph.
    """
    robot = load_robot(config.robot)
    dt = robot.control_dt_s
    asked = velocity_command(config.command, config.name)
    limits = asked.limits()
    commands = command_schedule(asked, seconds=seconds, dt=dt, seed=0)
    plan = Schedule(dt, limits.names, commands)
    problem = ""
    for _ in range(ATTEMPTS):
        with ticking(progress, seconds + START_STOP_S):
            ended = deploy(bundle, ROBOT, record=record, schedule=plan, on_status=log.info)
        if ended.reason.startswith("interrupted"):
            raise KeyboardInterrupt
        if "start_ns" in ended.operator:
            return score_drive(read_log(record, topics=TOPICS), robot, seconds=seconds), ended
        problem = f"{why_stopped(ended)}; logs of the nodes: {ended.graph.log_dir}"
        log.warning("the robot did not start: %s", problem)
        record.unlink(missing_ok=True)
    raise FerryError(
        f"the robot did not start in {ATTEMPTS} attempts; is this computer busy? {problem}"
    )


def why_stopped(ended: DeployResult) -> str:
    """Why a deployment ended before its time, "" if it did not: the safety node's own words."""
    if ended.ok:
        return ""
    if ended.graph.killed:
        return ended.reason
    stops = [why for _, mode, why in ended.graph.modes if mode not in ("RAMP", "RUN")]
    return stops[-1] if stops else ended.reason


def tick_us(summaries: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Controller tick from what the nodes said at their end; NaN where one said nothing [us]."""
    nodes = [_percentiles(summaries.get(n, {}), "tick") for n in ("policy_node", "safety_node")]
    return {share: 1e3 * sum(node[share] for node in nodes) for share in ("p50", "p99")}


def _percentiles(summary: Mapping[str, Any], name: str) -> dict[str, float]:
    """``p50`` and ``p99`` of what a node measured [ms]; NaN where it said nothing."""
    return {p: float(summary.get(f"{name}_{p}_ms", np.nan)) for p in ("p50", "p99")}


def _picture(variant: Variant, config: RunConfig, path: Path) -> Path | None:
    """A GIF of the drive, or None: a picture is never worth a run."""
    try:
        robot = load_robot(config.robot)
        recording = read_log(variant.folder / "drive.mcap", topics=TOPICS)
        start_s = liveliest(variant.drive, PICTURE_S)
        poses = drive_poses(recording, robot, start_s=start_s, seconds=PICTURE_S)
        width, height = PICTURE_SIZE
        frames = render_frames(robot, poses, width=width, height=height, fps=PICTURE_FPS)
        return None if frames is None else save_gif(frames, path, fps=PICTURE_FPS)
    except Exception:
        log.warning("no picture", exc_info=True)
        return None


def liveliest(drive: Drive, seconds: float) -> float:
    """Where the part of a drive begins in which the robot moved most [s].

    Args:
        drive: what was recorded.
        seconds: length of the part [s].
    """
    dt = float(drive.time_s[0])
    speed = np.nan_to_num(np.linalg.norm(drive.velocity, axis=1))
    width = min(round(seconds / dt), speed.size)
    # The sum over every window of this width: differences of the running sum.
    total = np.concatenate([[0.0], np.cumsum(speed)])
    return dt * int(np.argmax(total[width:] - total[:-width]))
