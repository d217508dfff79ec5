"""Commands: what the robot is asked to do, in training, evaluation and demonstration.

A velocity command is (vx, vy, wz) in the base frame [m/s, m/s, rad/s], held for a while, then drawn
again; an arm is commanded poses (:mod:`sim.pose_commands`). A task that asks for one thing only,
such as to keep a pole upright, has no command: dimension 0.
"""

from __future__ import annotations

import math
from typing import Annotated, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Discriminator, Field, Tag

from real.config import Config
from real.contract import CommandLimits
from real.errors import ConfigError, FerryError
from real.reach import ReachSpace
from sim.pose_commands import HoldRange, PoseCommandConfig, PoseCommands, Range

Array = NDArray[np.float64]
Ids = NDArray[np.intp]


class CommandConfig(Config):
    """Ranges and timing of velocity commands."""

    vx: Range = Field(description="forward velocity, low and high [m/s]")
    vy: Range = Field(description="velocity to the left, low and high [m/s]")
    wz: Range = Field(description="turning to the left, low and high [rad/s]")
    standing_share: float = Field(ge=0.0, le=1.0, description="share of draws that are zero")
    deadband: float = Field(
        default=0.1,
        ge=0.0,
        description="draws shorter than this are zero too: a robot cannot tell them from standing",
    )
    hold_s: HoldRange = Field(description="a command is held for U(low, high) [s]")

    def limits(self) -> CommandLimits:
        """Names, ranges and units, for the contract."""
        ranges = (self.vx, self.vy, self.wz)
        return CommandLimits(
            names=("vx", "vy", "wz"),
            low=tuple(r[0] for r in ranges),
            high=tuple(r[1] for r in ranges),
            units=("m/s", "m/s", "rad/s"),
        )


def _kind(config: object) -> str:
    """Which of the commands a section describes."""
    kind = config.get("kind") if isinstance(config, dict) else getattr(config, "kind", None)
    return "pose" if kind == "pose" else "velocity"


#: The ``command:`` section of a task file. A velocity command has no ``kind``.
AnyCommandConfig = Annotated[
    Annotated[CommandConfig, Tag("velocity")] | Annotated[PoseCommandConfig, Tag("pose")],
    Discriminator(_kind),
]


def command_limits(config: CommandConfig | PoseCommandConfig | None) -> CommandLimits:
    """Names, ranges and units of a task's command, for the contract; empty for a task without."""
    if config is None:
        return CommandLimits(names=(), low=(), high=(), units=())
    return config.limits()


def velocity_command(config: CommandConfig | PoseCommandConfig | None, task: str) -> CommandConfig:
    """The velocity command of a task that must have one.

    Raises:
        FerryError: it has none.
    """
    if not isinstance(config, CommandConfig):
        has = "`command: null`" if config is None else "it commands poses"
        raise FerryError(
            f"task {task!r} has no velocity command ({has}), and nobody can drive its "
            "robot; expected a task such as a1_walk"
        )
    return config


class Commands(Protocol):
    """The commands of N worlds.

    Attributes:
        value: ``[N, C]`` in force; written in place, so copy what you keep.
    """

    value: Array

    def reset(self, rows: Ids) -> None:
        """Begin anew in worlds ``rows``."""
        ...

    def step(self) -> None:
        """Advance one control step."""
        ...

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """What a continuation needs, copied. The generators are saved by their owner."""
        ...

    def load_state_dict(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore what :meth:`state_dict` gave."""
        ...


class NoCommands:
    """Commands of a task that has none, ``[N, 0]``; draws nothing."""

    def __init__(self, num: int) -> None:
        self.value: Array = np.zeros((num, 0))

    def reset(self, rows: Ids) -> None:
        """See :class:`Commands`."""

    def step(self) -> None:
        """See :class:`Commands`."""

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See :class:`Commands`."""


def make_commands(
    config: CommandConfig | PoseCommandConfig | None,
    num: int,
    rngs: list[np.random.Generator],
    *,
    control_dt_s: float,
    space: ReachSpace | None = None,
) -> Commands:
    """The commands of N worlds of a task; see :class:`VelocityCommands` and `PoseCommands`."""
    if config is None:
        return NoCommands(num)
    if isinstance(config, PoseCommandConfig):
        if space is None:
            raise ValueError("pose commands are drawn in a reach space; there is none")
        return PoseCommands(space, num, rngs, hold_s=config.hold_s, control_dt_s=control_dt_s)
    return VelocityCommands(config, num, rngs, control_dt_s=control_dt_s)


class VelocityCommands:
    """Draws commands for N worlds, each from its own generator.

    Args:
        config: ranges and timing.
        num: N.
        rngs: one generator per world.
        control_dt_s: control period [s].

    Attributes:
        value: ``[N, 3]`` the command of every world; written in place, so copy what you keep.
    """

    def __init__(
        self,
        config: CommandConfig,
        num: int,
        rngs: list[np.random.Generator],
        *,
        control_dt_s: float,
    ) -> None:
        if len(rngs) != num:
            raise ValueError(f"{len(rngs)} generators for {num} worlds; expected one each")
        self.config = config
        self.num = num
        self.value: Array = np.zeros((num, 3))
        limits = config.limits()
        self._low: Array = np.array(limits.low)
        self._span: Array = np.array(limits.high) - self._low
        self._rngs = rngs
        self._dt = control_dt_s
        self._steps_left: NDArray[np.int64] = np.zeros(num, dtype=np.int64)

    def reset(self, rows: Ids) -> None:
        """Draw a new command for worlds ``rows``."""
        shortest, longest = self.config.hold_s
        for row in rows.tolist():
            # One call per draw: [vx, vy, wz, standing, hold], all uniform on [0, 1).
            draw = self._rngs[row].random(5)
            command = self._low + self._span * draw[:3]
            standing = draw[3] < self.config.standing_share
            if standing or math.hypot(*command.tolist()) < self.config.deadband:
                command[:] = 0.0
            self.value[row] = command
            hold = shortest + (longest - shortest) * draw[4]
            self._steps_left[row] = max(1, round(hold / self._dt))

    def step(self) -> None:
        """Advance one control step; commands whose time is over are drawn again."""
        self._steps_left -= 1
        over = self._steps_left <= 0
        if np.count_nonzero(over):
            self.reset(np.flatnonzero(over))

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """Commands and timers, copied. The generators are saved by their owner."""
        return {"value": self.value.copy(), "steps_left": self._steps_left.copy()}

    def load_state_dict(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore what :meth:`state_dict` gave."""
        self.value[...] = state["value"]
        self._steps_left[...] = state["steps_left"]


#: Which way each kind of segment points, in shares of the range: + is its upper end, - its lower.
_SEGMENTS: dict[str, tuple[float, float, float]] = {
    "forward": (1.0, 0.0, 0.0),
    "turn left": (0.0, 0.0, 1.0),
    "backward": (-1.0, 0.0, 0.0),
    "left": (0.0, 1.0, 0.0),
    "forward and right": (0.7, 0.0, -0.7),
    "stand": (0.0, 0.0, 0.0),
    "right": (0.0, -1.0, 0.0),
    "turn right": (0.0, 0.0, -1.0),
    "forward and left": (0.7, 0.3, 0.7),
}


def command_schedule(config: CommandConfig, *, seconds: float, dt: float, seed: int) -> Array:
    """Varied, piecewise constant commands for evaluation and demonstration.

    The first second stands, so that the robot can take the load. Then every kind of motion comes
    once per round (forward, backward, sideways, turning, curves, standing), in an order and with
    sizes of 50 to 100 % of the range that depend on the seed.

    Args:
        config: ranges; a range that does not reach below zero has no backward part.
        seconds: length [s].
        dt: control period [s].
        seed: of the order and sizes.

    Returns:
        ``[T, 3]`` commands, T = round(seconds / dt).

    Raises:
        ConfigError: ``seconds`` or ``dt`` is not positive.
    """
    if not (seconds > 0.0 and dt > 0.0):
        raise ConfigError(f"a schedule of {seconds} s in steps of {dt} s; expected both > 0")
    total = round(seconds / dt)
    out = np.zeros((total, 3))
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    limits = config.limits()
    high = np.maximum(limits.high, 0.0)
    low = np.maximum(-np.array(limits.low), 0.0)
    # A round must fit: hold each segment for the middle of hold_s, or shorter, but not below 1 s.
    moving_s = max(seconds - 1.0, dt)
    hold_s = min(0.5 * sum(config.hold_s), max(1.0, moving_s / len(_SEGMENTS)))
    hold = max(1, round(hold_s / dt))
    kinds = list(_SEGMENTS.values())
    start = round(1.0 / dt)
    while start < total:
        for index in rng.permutation(len(kinds)):
            share = np.array(kinds[index]) * rng.uniform(0.5, 1.0)
            out[start : start + hold] = np.where(share > 0.0, share * high, share * low)
            start += hold
    return out
