"""What motors were told and did, as samples at the rate of the physics: from logs of a robot.

A target counts from the stamp of its command, which is that of the state it answers: what passes
until the drive hears of it is then part of what is fitted, and of the simulation, whose targets are
in force at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from real.log import Log, TopicLog
from real.spec import RobotSpec

Array = NDArray[np.float64]

STATES, COMMANDS = "/joint_states", "/joint_command"
#: Stretches between two states that are longer than so many physics steps are holes.
_HOLE = 2.5
#: Commands older than so many control periods are not in force any more; see the robot's watchdog.
_STALE = 3.0


@dataclass(frozen=True)
class Samples:
    """T samples of A motors without a hole, at the rate of the physics.

    Attributes:
        q_des: ``[T, A]`` targets in force [rad or m].
        q: ``[T, A]`` positions.
        dq: ``[T, A]`` velocities.
        tau: ``[T, A]`` efforts [N m or N].
    """

    q_des: Array
    q: Array
    dq: Array
    tau: Array

    def __post_init__(self) -> None:
        """Refuse arrays that do not belong together.

        Raises:
            FerryError: shapes differ, or a number is not finite.
        """
        for field in fields(self):
            values: Array = getattr(self, field.name)
            if values.shape != self.q.shape or not np.isfinite(values).all():
                raise FerryError(
                    f"samples of actuators: {field.name} has shape {values.shape} or numbers that "
                    f"are not finite; expected {self.q.shape}, as q has"
                )


def windows(samples: Sequence[Samples], history: int) -> tuple[Array, Array]:
    """Every H samples in a row, with the torque at the last of them.

    Args:
        samples: pieces; no window reaches over the end of one.
        history: H.

    Returns:
        ``[M, A, 2 H]``, H errors and then H velocities, oldest first; and torques ``[M, A]``.

    Raises:
        FerryError: no piece is as long.
    """
    seen, tau = list[Array](), list[Array]()
    for piece in samples:
        if len(piece.q) < history:
            continue
        parts = (piece.q_des - piece.q, piece.dq)
        view = [np.lib.stride_tricks.sliding_window_view(p, history, axis=0) for p in parts]
        seen.append(np.concatenate(view, axis=2))
        tau.append(piece.tau[history - 1 :])
    if not seen:
        raise FerryError(f"no {history} samples in a row, as a history of {history} needs")
    return np.concatenate(seen), np.concatenate(tau)


def read_samples(log: Log, robot: RobotSpec) -> list[Samples]:
    """The pieces of a log in which the robot was under commands.

    Safe stops, holes and what comes after the last command are left out.

    Args:
        log: with joint states and commands, as the recorder writes them.
        robot: says which joints have motors, and the rate.

    Raises:
        FerryError: a topic or a joint is missing, the robot reports no efforts, or its states are
            rarer than the physics steps.
    """
    states, commands = log[STATES], log[COMMANDS]
    names = [joint.name for joint in robot.actuated]
    columns = {topic.topic: _columns(topic, names, log) for topic in (states, commands)}
    if states.values["effort"].shape[1] == 0:
        raise FerryError(f"{log.path}: {STATES} has no efforts, which are what is to be learned")
    # Seconds since the first state: since 1970 they would be known to a quarter of a microsecond.
    zero = int(states.stamp_ns[0]) if len(states) else 0
    stamp = (states.stamp_ns - zero) * 1e-9
    first = np.unique(states.stamp_ns, return_index=True)[1]  # of equal stamps the first
    stamp, dt = stamp[first], robot.physics_dt_s
    period = float(np.median(np.diff(stamp))) if stamp.size > 1 else np.inf
    if period > 1.5 * dt:
        raise FerryError(
            f"{log.path}: states come every {period:.4g} s, physics_dt_s is {dt:g} s; expected a "
            "log at that rate or faster, since what is between two states is not known"
        )
    grid = stamp[0] + dt * np.arange(int((stamp[-1] - stamp[0]) / dt) + 1)

    def at_grid(name: str) -> Array:
        values = states.values[name][first][:, columns[STATES]]
        return np.stack([np.interp(grid, stamp, column) for column in values.T], axis=1)

    order = np.argsort(commands.stamp_ns, kind="stable")
    told_at = (commands.stamp_ns[order] - zero) * 1e-9
    told = commands.values["position"][order][:, columns[COMMANDS]]
    newest = np.searchsorted(told_at, grid + 1e-9, side="right") - 1
    q_des = told[np.maximum(newest, 0)]
    age = grid - told_at[np.maximum(newest, 0)]
    before = np.searchsorted(stamp, grid + 1e-9, side="right") - 1
    after = np.minimum(before + 1, stamp.size - 1)
    good = (newest >= 0) & np.isfinite(q_des).all(axis=1) & (age <= _STALE * robot.control_dt_s)
    good &= stamp[after] - stamp[before] <= _HOLE * max(dt, period)
    q, dq, tau = (at_grid(name) for name in ("position", "velocity", "effort"))
    edges = np.flatnonzero(np.diff(np.concatenate([[False], good, [False]]).astype(int)))
    return [Samples(q_des[a:b], q[a:b], dq[a:b], tau[a:b]) for a, b in edges.reshape(-1, 2)]


def _columns(topic: TopicLog, names: Sequence[str], log: Log) -> list[int]:
    missing = [name for name in names if name not in topic.names]
    if missing:
        raise FerryError(f"{log.path}: {topic.topic} lacks the joints {', '.join(missing)}")
    return [topic.names.index(name) for name in names]
