"""Scores a drive over ROS 2 from its recording: what was commanded, and what the robot did.

Nothing here was on the robot's side of the wire: the score needs the recorded commands and the
ground truth that only simulated robots publish.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from real.frames import tilt
from real.log import Log
from real.log_rows import TopicLog
from real.spec import RobotSpec
from sim.render import Poses
from training.scores import NEVER, fall_steps, tracking

Array = NDArray[np.float64]
Stamps = NDArray[np.int64]

#: What a recording must hold to be scored.
TOPICS = (
    "/cmd_vel",
    "/ground_truth/odom",
    "/safety/mode",
    "/policy/joint_command",
    "/joint_command",
    "/joint_states",
)

#: Older truth is no truth: a robot that nobody hears of scores nothing [s].
STALE_S = 0.5

#: A mode that ends this much before the schedule is an early end; less is the operator's own step
#: from the last command to /disarm, on a busy computer [s].
END_SLACK_S = 0.3


@dataclass(frozen=True)
class Drive:
    """A drive of T control steps, sampled at the control rate.

    Attributes:
        time_s: ``[T]`` end of each step since the robot ran [s].
        command: ``[T, 3]`` in force during each step: vx, vy [m/s], wz [rad/s].
        velocity: ``[T, 3]`` true velocity in the base frame at the end of each step; NaN after the
            robot was stopped.
        tracking: score in [0, 1]; see :func:`training.scores.tracking`.
        fallen_s: when it fell, or None [s].
        stopped_s: when the safety node ended it before its time, or None [s].
        clamped_share: share of the policy's commands that the safety filter changed.
    """

    time_s: Array
    command: Array
    velocity: Array
    tracking: float
    fallen_s: float | None
    stopped_s: float | None
    clamped_share: float

    @property
    def falls(self) -> int:
        """0 or 1: who has fallen stays down."""
        return int(self.fallen_s is not None)


def score_drive(log: Log, robot: RobotSpec, *, seconds: float) -> Drive:
    """Score a recorded drive.

    It begins when the safety node reports RUN, and is sampled at the control rate by times of
    reception, which all topics of a recording share. A robot that fell, or that the safety node
    stopped, scores 0 from then to the end that the drive would have had.

    Args:
        log: recording with :data:`TOPICS`.
        robot: whose.
        seconds: how long the drive was meant to last [s].

    Raises:
        FerryError: the robot never ran, or a topic is missing.
    """
    dt = robot.control_dt_s
    steps = round(seconds / dt)
    start_ns, end_ns = _running(log["/safety/mode"], log)
    # Step i ends at start + (i + 1) dt; its command is the newest when it began.
    ends = start_ns + np.rint(np.arange(1, steps + 1) * dt * 1e9).astype(np.int64)
    cut_short = end_ns < ends[-1] - round(END_SLACK_S * 1e9)
    ran = int(np.searchsorted(ends, end_ns, side="right")) if cut_short else steps

    odom, orders = log["/ground_truth/odom"], log["/cmd_vel"]
    seen = _newest(odom.log_ns, ends)
    known = (seen >= 0) & (ends - odom.log_ns[seen] <= round(STALE_S * 1e9))
    truth = np.concatenate([odom.values["linear"], odom.values["angular"]], axis=1)[seen]
    truth[~known | (np.arange(steps) >= ran)] = np.nan
    asked = _newest(orders.log_ns, ends - round(dt * 1e9))
    command = np.stack(
        [
            orders.values["linear"][asked, 0],
            orders.values["linear"][asked, 1],
            orders.values["angular"][asked, 2],
        ],
        axis=1,
    )
    command[asked < 0] = 0.0
    # What is known of it after the stop still tells a fall, as far as the recording goes.
    last = steps if known.all() else int(np.argmin(known))
    if last == 0:
        raise FerryError(f"{log.path}: no ground truth when the robot began to run")
    fallen = fall_steps(
        tilt(odom.values["quat"][seen[:last]])[:, None],
        odom.values["position"][seen[:last], 2][:, None],
        fall_height_m=robot.fall_height_m,
        dt_s=dt,
    )
    score = tracking(
        command[:, None], truth[:, None, :3], truth[:, None, 3:], fallen_at=fallen, dt_s=dt
    )
    window = (start_ns, min(end_ns, int(ends[-1])))
    return Drive(
        time_s=dt * np.arange(1, steps + 1, dtype=np.float64),
        command=command,
        velocity=np.stack([truth[:, 0], truth[:, 1], truth[:, 5]], axis=1),
        tracking=float(score[0]),
        fallen_s=None if fallen[0] == NEVER else float((fallen[0] + 1) * dt),
        stopped_s=1e-9 * (end_ns - start_ns) if cut_short else None,
        clamped_share=_changed(log["/policy/joint_command"], log["/joint_command"], window),
    )


def drive_poses(log: Log, robot: RobotSpec, *, start_s: float, seconds: float) -> Poses:
    """Where the robot was during a part of the drive, for a picture.

    Args:
        log: recording with :data:`TOPICS`.
        robot: whose.
        start_s: since the robot ran [s].
        seconds: how long, at most to the end of the drive [s].

    Raises:
        FerryError: the robot did not run for so long, or a topic is missing.
    """
    first, end = _running(log["/safety/mode"], log)
    odom, joints = log["/ground_truth/odom"], log["/joint_states"]
    first += round(start_s * 1e9)
    end = min(end, first + round(seconds * 1e9))
    rows = np.flatnonzero((odom.log_ns >= first) & (odom.log_ns <= end))
    if not rows.size:
        raise FerryError(f"{log.path}: the robot ran for less than {start_s:g} s")
    at = np.maximum(_newest(joints.log_ns, odom.log_ns[rows]), 0)
    order = [joints.names.index(name) for name in robot.joint_names]
    return Poses(
        time_s=1e-9 * (odom.log_ns[rows] - first).astype(np.float64),
        position_w=odom.values["position"][rows],
        quat_wb=odom.values["quat"][rows],
        q=joints.values["position"][at][:, order],
    )


def _running(mode: TopicLog, log: Log) -> tuple[int, int]:
    """When the robot began to run and when that ended [ns]; the end of the log if it never did."""
    runs = [i for i, name in enumerate(mode.text) if name == "RUN"]
    if not runs:
        seen = ", ".join(dict.fromkeys(mode.text)) or "none"
        raise FerryError(f"{log.path}: the robot never ran; modes in it: {seen}")
    first = runs[0]
    after = [i for i in range(first + 1, len(mode.text)) if mode.text[i] != "RUN"]
    end = mode.log_ns[after[0]] if after else log["/ground_truth/odom"].log_ns[-1]
    return int(mode.log_ns[first]), int(end)


def _newest(times: Stamps, at: Stamps) -> NDArray[np.intp]:
    """Index of the newest of ``times`` at or before each of ``at``; -1 where there is none."""
    return np.searchsorted(times, at, side="right") - 1


def _changed(asked: TopicLog, sent: TopicLog, window: tuple[int, int]) -> float:
    """Share of the policy's commands whose answer by the safety node differs; paired by stamp."""
    mine = {int(s): i for i, s in enumerate(sent.stamp_ns)}
    order = [sent.names.index(name) for name in asked.names]
    inside = (asked.log_ns >= window[0]) & (asked.log_ns <= window[1])
    pairs = [(i, mine[s]) for i in np.flatnonzero(inside) if (s := int(asked.stamp_ns[i])) in mine]
    if not pairs:
        return 0.0
    rows, answers = np.array(pairs).T
    wanted = asked.values["position"][rows]
    # A safe stop has no positions (NaN) and counts as changed.
    same = np.abs(sent.values["position"][answers][:, order] - wanted) <= 1e-9
    return float(1.0 - same.all(axis=1).mean())
