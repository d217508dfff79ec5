"""What an operator will ask for, as data: velocities, or poses of an arm, at a fixed step."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from real.contract import CommandLimits, PolicyContract
from real.errors import FerryError
from real.reach import ReachSpace

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Schedule:
    """Commands to play one after the other.

    Attributes:
        dt_s: time from one to the next [s].
        names: e.g. ``("vx", "vy", "wz")``.
        commands: ``[T, C]``.
        frame: link in whose frame poses are; empty for velocities.
    """

    dt_s: float
    names: tuple[str, ...]
    commands: Array
    frame: str = ""

    def __post_init__(self) -> None:
        shape = self.commands.shape
        if len(shape) != 2 or shape[1] != len(self.names) or not shape[0]:
            raise FerryError(
                f"schedule: commands have shape {shape}; expected at least one row of "
                f"{len(self.names)} ({', '.join(self.names)})"
            )
        if not 0.002 <= self.dt_s <= 0.25:
            # /cmd_vel older than 0.5 s is no command, so it must come at least twice as often.
            raise FerryError(f"schedule: dt is {self.dt_s} s; expected 0.002 to 0.25 s")
        if not np.isfinite(self.commands).all():
            row = int(np.flatnonzero(~np.isfinite(self.commands).all(axis=1))[0])
            raise FerryError(f"schedule: command {row} is not finite: {self.commands[row]}")

    @property
    def seconds(self) -> float:
        """How long it takes [s]."""
        return self.commands.shape[0] * self.dt_s

    def first(self, seconds: float) -> Schedule:
        """Its beginning."""
        rows = max(1, round(seconds / self.dt_s))
        return replace(self, commands=self.commands[:rows])

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        body = {
            "dt": self.dt_s,
            "names": list(self.names),
            "commands": cast("list[list[float]]", self.commands.tolist()),
            "frame": self.frame,
        }
        path.write_text(json.dumps(body))

    @staticmethod
    def load(path: Path) -> Schedule:
        """Read what :meth:`save` wrote.

        Raises:
            FerryError: not readable, or not a schedule.
        """
        try:
            body = cast("dict[str, Any]", json.loads(path.read_text()))
            return Schedule(
                float(body["dt"]),
                tuple(str(n) for n in body["names"]),
                np.array(body["commands"], dtype=np.float64),
                str(body.get("frame", "")),
            )
        except OSError as error:
            raise FerryError(f"schedule {path} cannot be read: {error.strerror}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise FerryError(
                f"schedule {path} is not readable ({error!r}); expected JSON with dt [s], names "
                "and commands, a list of rows"
            ) from error


def tour(limits: CommandLimits, *, seconds: float = 60.0, dt_s: float = 0.05) -> Schedule:
    """A walk through the range of commands: stand, then each command to 60 % of either end.

    Args:
        limits: names and ranges.
        seconds: how long it takes [s].
        dt_s: step [s].
    """
    low, high = 0.6 * np.array(limits.low), 0.6 * np.array(limits.high)
    legs: list[Array] = []
    for i in range(limits.dim):
        for value in (high[i], low[i]):
            leg = np.zeros((2, limits.dim))  # go, then stand
            leg[0, i] = value
            legs.append(leg)
    corners = np.concatenate([np.zeros((1, limits.dim)), *legs])
    # Two thirds of the time are spent going, one third standing.
    weights = np.array([1.0] + [2.0, 1.0] * (len(corners) // 2))
    rows = max(len(corners), round(seconds / dt_s))
    edges: Array = np.rint(np.cumsum(weights) / weights.sum() * rows)
    counts: NDArray[np.intp] = np.diff(edges, prepend=0.0).astype(np.intp)
    return Schedule(dt_s, limits.names, np.repeat(corners, counts, axis=0))


def arm_tour(
    contract: PolicyContract, *, seconds: float = 60.0, dt_s: float = 0.05, stay_s: float = 3.0
) -> Schedule:
    """The pose that an arm starts in, then others that it can reach, each for ``stay_s``.

    Args:
        contract: of a policy that is commanded poses; gives their range and frame.
        seconds: how long it takes [s].
        dt_s: step [s].
        stay_s: how long each pose is asked for [s].

    Raises:
        FerryError: the policy is not commanded poses.
    """
    if contract.reach is None:
        raise FerryError(f"the policy for {contract.robot!r} is not commanded poses")
    limits = contract.command
    space = ReachSpace(contract.reach, contract.joints, low=limits.low, high=limits.high)
    rows, stay = max(1, round(seconds / dt_s)), max(1, round(stay_s / dt_s))
    others = -(-rows // stay) - 1
    poses = [space.rest[None]]
    if others:
        poses.append(space.draw([np.random.default_rng(i) for i in range(others)]))
    commands = np.repeat(np.concatenate(poses), stay, axis=0)[:rows]
    return Schedule(dt_s, limits.names, commands, contract.base_link)
