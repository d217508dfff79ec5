"""Pose commands: where an arm is asked to bring its end effector, and how it shall stand there."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from real.config import Config
from real.contract import CommandLimits
from real.errors import ConfigError
from real.kinematics import Kinematics
from real.reach import POSE_NAMES, POSE_UNITS, Reach, ReachSpace
from real.spec import RobotSpec
from sim.chain import end_effector_chain

Array = NDArray[np.float64]
Ids = NDArray[np.intp]

#: Fewer of the drawn poses in the box than this, and the box is not where the arm can reach.
MIN_INSIDE = 0.05


def _ordered(pair: tuple[float, float]) -> tuple[float, float]:
    if pair[0] > pair[1]:
        raise ConfigError(f"the range [{pair[0]}, {pair[1]}] is empty; expected low <= high")
    return pair


Range = Annotated[tuple[float, float], AfterValidator(_ordered)]
HoldRange = Annotated[
    tuple[Annotated[float, Field(gt=0.0)], Annotated[float, Field(gt=0.0)]],
    AfterValidator(_ordered),
]


class PoseCommandConfig(Config):
    """Where commanded poses of the robot's end effector are drawn, and for how long they hold.

    Poses are those of random joint positions, so that each can be reached; those outside the box
    are left out.
    """

    kind: Literal["pose"]
    share: float = Field(
        default=0.5, gt=0.0, le=1.0, description="of each joint's range about its default"
    )
    x: Range = Field(description="low and high, base frame [m]")
    y: Range = Field(description="low and high, base frame [m]")
    z: Range = Field(description="low and high, base frame [m]")
    hold_s: HoldRange = Field(description="a command is held for U(low, high) [s]")

    def limits(self) -> CommandLimits:
        """Names, ranges and units, for the contract; any orientation is within them."""
        box = (self.x, self.y, self.z)
        return CommandLimits(
            names=POSE_NAMES,
            low=(*(r[0] for r in box), *(-1.0,) * 4),
            high=(*(r[1] for r in box), *(1.0,) * 4),
            units=POSE_UNITS,
        )


def reach_of(config: object, robot: RobotSpec) -> Reach | None:
    """What a task's pose command is about; None for any other command.

    Raises:
        FerryError: the robot has no end effector that joints move.
    """
    if not isinstance(config, PoseCommandConfig):
        return None
    return Reach(end_effector_chain(robot), config.share)


def reach_space(
    config: object, robot: RobotSpec
) -> tuple[ReachSpace, Kinematics] | tuple[None, None]:
    """The poses of a task's pose command, and the way to them; None for any other command.

    Raises:
        ConfigError: the arm hardly ever gets into the box.
    """
    reach = reach_of(config, robot)
    if reach is None or not isinstance(config, PoseCommandConfig):
        return None, None
    limits = config.limits()
    space = ReachSpace(reach, robot.joints, low=limits.low, high=limits.high)
    share = space.share_inside(np.random.default_rng(0))
    if share < MIN_INSIDE:
        raise ConfigError(
            f"command: {100.0 * share:.1f} % of the poses of {reach.chain.link!r} are within x "
            f"{config.x}, y {config.y}, z {config.z}; expected at least {100.0 * MIN_INSIDE:g} %: "
            "widen the box or the share of the joints' ranges"
        )
    return space, space.kinematics


class PoseCommands:
    """Draws poses for N worlds, each from its own generator; see `sim.commands.Commands`.

    Args:
        space: the poses.
        num: N.
        rngs: one generator per world.
        hold_s: shortest and longest time that a command holds [s].
        control_dt_s: control period [s].

    Attributes:
        value: ``[N, 7]`` position [m] and orientation wxyz, written in place.
    """

    def __init__(
        self,
        space: ReachSpace,
        num: int,
        rngs: list[np.random.Generator],
        *,
        hold_s: tuple[float, float],
        control_dt_s: float,
    ) -> None:
        if len(rngs) != num:
            raise ValueError(f"{len(rngs)} generators for {num} worlds; expected one each")
        self.value: Array = np.tile(space.rest, (num, 1))
        self._space = space
        self._rngs = rngs
        self._hold_s = hold_s
        self._dt = control_dt_s
        self._steps_left: NDArray[np.int64] = np.zeros(num, dtype=np.int64)

    def reset(self, rows: Ids) -> None:
        """Draw a new pose for worlds ``rows``."""
        if not rows.size:
            return
        rngs = [self._rngs[row] for row in rows.tolist()]
        self.value[rows] = self._space.draw(rngs)
        shortest, longest = self._hold_s
        hold = [shortest + (longest - shortest) * rng.random() for rng in rngs]
        self._steps_left[rows] = np.maximum(1, np.rint(np.array(hold) / self._dt))

    def step(self) -> None:
        """Advance one control step; commands whose time is over are drawn again."""
        self._steps_left -= 1
        self.reset(np.flatnonzero(self._steps_left <= 0))

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """Commands and timers, copied. The generators are saved by their owner."""
        return {"value": self.value.copy(), "steps_left": self._steps_left.copy()}

    def load_state_dict(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore what :meth:`state_dict` gave."""
        self.value[...] = state["value"]
        self._steps_left[...] = state["steps_left"]
