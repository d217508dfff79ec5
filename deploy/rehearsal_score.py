"""How well a rehearsed robot did what it was told: velocities followed, or poses reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from real.contract import PolicyContract
from real.kinematics import Kinematics, pose_error
from real.reach import FAIR_S, HELD_S, fair_spans, poses_reached
from real.robot_io import GroundTruth
from real.signals import RobotState

Array = NDArray[np.float64]

VELOCITIES = ("vx", "vy", "vz", "wx", "wy", "wz")


class Score(Protocol):
    """Takes what the robot did in each physics step, and says in the end how well that was."""

    def add(self, command: Array, state: RobotState, truth: GroundTruth | None) -> None:
        """Take a step: the command ``[C]`` in force, the state after it, and the truth.

        The state's joints are in the contract's order.
        """
        ...

    def miss(self, command: Array) -> None:
        """Take a step in which the robot fell or stopped."""
        ...

    def result(self) -> dict[str, Any]:
        """``rms_error`` of velocities by name, and ``poses``; see :class:`PoseScore`."""
        ...


def score_of(contract: PolicyContract, *, dt_s: float) -> Score:
    """The score of what a policy is told.

    Args:
        contract: of the policy.
        dt_s: physics step [s].
    """
    if contract.reach is None:
        return VelocityScore(contract.command.names)
    chain = Kinematics(contract.reach.chain, contract.joint_names)
    return PoseScore(chain, dt_s=dt_s)


class VelocityScore:
    """Root of the mean square of velocity less command.

    Args:
        names: of the contract's commands, some of :data:`VELOCITIES`.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._errors: list[Array] = []

    def add(self, command: Array, state: RobotState, truth: GroundTruth | None) -> None:
        """Take a step; one whose truth nobody knows does not count."""
        if truth is None:
            return
        six: list[float] = [*truth.lin_vel_b.tolist(), *truth.ang_vel_b.tolist()]
        parts: dict[str, float] = dict(zip(VELOCITIES, six, strict=True))
        self._errors.append(np.array([parts[n] for n in self._names]) - command)

    def miss(self, command: Array) -> None:
        """Take nothing: falls and stops are counted elsewhere."""

    def result(self) -> dict[str, Any]:
        """``rms_error`` by name [m/s or rad/s]; empty if nothing was measured."""
        errors = np.array(self._errors)
        rms: list[float] = np.sqrt((errors**2).mean(axis=0)).tolist() if errors.size else []
        return {"rms_error": dict(zip(self._names, rms, strict=False)), "poses": None}


class PoseScore:
    """How many poses were reached and kept, as an evaluation counts them, and how far off.

    The end effector is where the measured joints put it.

    Args:
        kinematics: of the end effector.
        dt_s: from one step to the next [s].
    """

    def __init__(self, kinematics: Kinematics, *, dt_s: float) -> None:
        self._kinematics, self._dt_s = kinematics, dt_s
        self._commands: list[Array] = []
        self._q: list[Array] = []

    def add(self, command: Array, state: RobotState, truth: GroundTruth | None) -> None:
        """Take a step."""
        self._commands.append(command)
        self._q.append(state.q[0].copy())

    def miss(self, command: Array) -> None:
        """Take a step in which the arm was nowhere."""
        if self._q:
            self._commands.append(command)
            self._q.append(np.full_like(self._q[-1], np.nan))

    def result(self) -> dict[str, Any]:
        """``poses``, or None of them if no step was taken.

        Of it: ``asked``, poses commanded for :data:`~real.reach.FAIR_S` or longer; ``reached``, the
        share of them that :func:`~real.reach.poses_reached` counts; ``position_m`` and
        ``angle_rad``, means over all steps, the ways to the poses included; ``kept_position_m`` and
        ``kept_angle_rad``, means over the last :data:`~real.reach.HELD_S` of each pose asked for.
        What has no value is None.
        """
        if not self._q:
            return {"rms_error": {}, "poses": None}
        command, q = np.array(self._commands), np.array(self._q)  # [T, 7], [T, J]
        error = pose_error(command, *self._kinematics.pose(q))
        far, turned = np.linalg.norm(error[:, :3], axis=1), np.linalg.norm(error[:, 3:], axis=1)
        held = max(1, round(HELD_S / self._dt_s))
        spans = fair_spans(command, steps=max(round(FAIR_S / self._dt_s), held))
        ends = np.concatenate([np.arange(b - held, b) for _, b in spans] or [np.arange(0)])
        share: float | None = None
        if spans:
            one = (command[:, None], q[:, None])
            share = float(poses_reached(*one, self._kinematics, dt_s=self._dt_s)[0])
        poses: Mapping[str, Any] = {
            "asked": len(spans),
            "reached": share,
            "position_m": _mean(far),
            "angle_rad": _mean(turned),
            "kept_position_m": _mean(far[ends]),
            "kept_angle_rad": _mean(turned[ends]),
        }
        return {"rms_error": {}, "poses": poses}


def _mean(values: Array) -> float | None:
    """Of those that were measured; None of none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else None


def score_rows(plain: Mapping[str, Any], disturbed: Mapping[str, Any] | None) -> list[list[str]]:
    """Rows of the table that tell of the score: what, undisturbed, disturbed."""
    runs = (plain, disturbed)
    rows: list[list[str]] = []
    for name in plain["rms_error"]:
        values = [None if r is None else r["rms_error"].get(name) for r in runs]
        rows.append([f"rms error of {name}", *map(_told, runs, values)])
    if plain.get("poses") is None:
        return rows
    poses = [None if r is None else _poses(r) for r in runs]
    rows.append(["poses reached and kept", *map(_share, poses)])
    for words, name in (
        ("mean position error [m]", "position_m"),
        ("mean angle error [rad]", "angle_rad"),
        ("position error when kept [m]", "kept_position_m"),
        ("angle error when kept [rad]", "kept_angle_rad"),
    ):
        rows.append([words, *(_told(p, None if p is None else p.get(name)) for p in poses)])
    return rows


def _poses(run: Mapping[str, Any]) -> Mapping[str, Any]:
    return run.get("poses") or {}


def _told(run: object, value: float | None) -> str:
    if run is None:
        return "-"
    return "not measured" if value is None else f"{value:.3f}"


def _share(poses: Mapping[str, Any] | None) -> str:
    if poses is None:
        return "-"
    share = poses.get("reached")
    asked = poses.get("asked", 0)
    return "not measured" if share is None else f"{round(share * asked)} of {asked}"
