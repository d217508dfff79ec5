"""When an episode ends because of what happened to the robot: pure conditions over arrays.

Conditions are evaluated whether or not they end the episode, so a reward that looks at them does
not change with the switch. Comparisons are written so that NaN counts as the bad case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from real.config import Config
from real.errors import ConfigError, nearest
from real.fall import FALL_LOW_S, FALL_TILT_RAD, low_steps
from real.signals import RobotState
from sim.engine import WorldState

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Ids = NDArray[np.intp]


class FallConfig(Config):
    """Fall: tilt above a bound, or base too low for a while (the height is the robot's)."""

    enabled: bool = True
    tilt_rad: float = Field(
        default=FALL_TILT_RAD, gt=0.0, lt=3.1416, description="tilt above this is a fall [rad]"
    )
    low_s: float = Field(
        default=FALL_LOW_S, ge=0.0, description="base low for this long is a fall [s]"
    )


class BodyContactConfig(Config):
    """Contact of anything but a foot with the ground."""

    enabled: bool = False


class TerminationConfig(Config):
    """Which conditions end an episode. A diverged world always ends: nothing of it is usable."""

    fall: FallConfig = FallConfig()
    body_contact: BodyContactConfig = BodyContactConfig()
    joints: dict[str, Annotated[float, Field(gt=0.0)]] = Field(
        default={},
        description="by joint: further than this from its default position ends it [rad or m]",
    )


@dataclass(frozen=True)
class Conditions:
    """What happened to N robots, ``[N]`` each.

    Attributes:
        fallen: tilted too far, or low for too long.
        strayed: a joint is further from its default position than the task allows.
        body_contact: something but a foot touches the ground.
        diverged: numbers of this world are not finite, or the engine gave it up.
        terminated: a condition holds that ends the episode in this task.
    """

    fallen: Mask
    strayed: Mask
    body_contact: Mask
    diverged: Mask
    terminated: Mask

    @property
    def failed(self) -> Mask:
        """Fallen or strayed: what a reward may punish, whether or not it ends the episode."""
        return self.fallen | self.strayed

    def with_diverged(self, more: Mask) -> Conditions:
        """The same with worlds ``more`` diverged too, and so terminated."""
        return replace(self, diverged=self.diverged | more, terminated=self.terminated | more)


def _numbers(world: WorldState, sensed: RobotState) -> list[Array]:
    """Every number that rewards, critic or policy read."""
    robot = world.robot
    parts = [world.position_w, world.lin_vel_b, world.foot_position_w, world.foot_velocity_w]
    parts += [robot.q, robot.dq, robot.tau, robot.quat_wb, robot.gyro_b, robot.acc_b]
    if sensed is not robot:
        parts += [sensed.q, sensed.dq, sensed.tau, sensed.quat_wb, sensed.gyro_b, sensed.acc_b]
    return parts


def all_finite(world: WorldState, sensed: RobotState) -> bool:
    """Whether every number of every world is finite: one look at the whole.

    A sum is not finite as soon as one of its terms is not, so False may also mean that the sum
    was too large; :func:`finite_rows` knows.

    Args:
        world: the true state.
        sensed: what the sensors made of it.
    """
    # Most are parts of one block of memory, or passed on by sensors: each block is added up once.
    wholes = {
        id(whole): whole
        for part in _numbers(world, sensed)
        for whole in (part.base if type(part.base) is np.ndarray else part,)
    }
    with np.errstate(over="ignore", invalid="ignore"):
        total = sum([float(np.add.reduce(whole, axis=None)) for whole in wholes.values()])
    return math.isfinite(total)


def finite_rows(world: WorldState, sensed: RobotState) -> Mask:
    """``[N]`` whether every number that rewards, critic or policy read of a world is finite.

    Args:
        world: the true state.
        sensed: what the sensors made of it.
    """
    num = world.position_w.shape[0]
    good = np.ones(num, dtype=bool)
    for part in _numbers(world, sensed):
        good &= np.isfinite(part).reshape(num, -1).all(axis=1)
    return good


def tilted(gravity_b: Array, *, tilt_rad: float) -> Mask:
    """Whether the angle between the base's z axis and the vertical is above ``tilt_rad``.

    angle = arccos(-gz) > tilt  <=>  -gz < cos(tilt); NaN counts as tilted.

    Args:
        gravity_b: ``[N, 3]`` direction of gravity in the base frame.
        tilt_rad: bound in (0, pi) [rad].
    """
    return ~(-gravity_b[:, 2] >= np.cos(tilt_rad))


def too_low(height: Array, *, fall_height_m: float) -> Mask:
    """Whether the base is below the fall height; NaN counts as low.

    Args:
        height: ``[N]`` base height above the ground [m].
        fall_height_m: bound [m].
    """
    return ~(height >= fall_height_m)


def strayed(q: Array, *, low: Array, high: Array) -> Mask:
    """Whether any joint is outside ``[low, high]``; NaN counts as outside.

    Args:
        q: ``[N, J]`` joint positions [rad or m].
        low: ``[J]``, -infinity where everything is allowed.
        high: ``[J]``.
    """
    inside: Mask = (q >= low) & (q <= high)
    return ~np.logical_and.reduce(inside, axis=1)


def joint_bounds(
    bounds: Mapping[str, float], *, joints: Sequence[str], q_default: Array
) -> tuple[Array, Array]:
    """How far each joint may go: q_default -+ its bound, everything where there is none.

    Returns:
        Low and high, ``[J]`` each [rad or m].

    Raises:
        ConfigError: a bound is for a joint that the robot does not have.
    """
    for name in bounds:
        if name not in joints:
            raise ConfigError(
                f"terminations.joints: the robot has no joint {name!r}{nearest(name, joints)}; "
                f"its joints: {', '.join(joints)}"
            )
    reach = np.array([bounds.get(name, np.inf) for name in joints])
    return q_default - reach, q_default + reach


class Terminations:
    """Evaluates the conditions of N worlds and counts how long each base has been low.

    Args:
        config: switches and bounds.
        num: N.
        fall_height_m: the robot's, or None where height means nothing.
        joints: names of the robot's J joints.
        q_default: ``[J]`` default pose [rad or m].
        control_dt_s: control period [s].

    Raises:
        ConfigError: a bound is for a joint that the robot does not have.
    """

    def __init__(
        self,
        config: TerminationConfig,
        num: int,
        *,
        fall_height_m: float | None,
        joints: Sequence[str],
        q_default: Array,
        control_dt_s: float,
    ) -> None:
        self.config = config
        self._fall_height = fall_height_m
        self._patience = low_steps(control_dt_s, low_s=config.fall.low_s)
        self._low_steps: NDArray[np.int64] = np.zeros(num, dtype=np.int64)
        self._bounds = joint_bounds(config.joints, joints=joints, q_default=q_default)
        self._nobody: Mask = np.zeros(num, dtype=bool)

    def reset(self, rows: Ids) -> None:
        """Start counting anew for worlds ``rows``."""
        self._low_steps[rows] = 0

    def check(
        self, gravity_b: Array, height: Array, *, q: Array, body_contact: Mask, diverged: Mask
    ) -> Conditions:
        """Evaluate the state after a control step; to be called once per step.

        Args:
            gravity_b: ``[N, 3]`` direction of gravity in the base frame.
            height: ``[N]`` base height above the ground [m].
            q: ``[N, J]`` joint positions [rad or m].
            body_contact: ``[N]``.
            diverged: ``[N]``.
        """
        fallen = tilted(gravity_b, tilt_rad=self.config.fall.tilt_rad)
        if self._fall_height is not None:
            low = too_low(height, fall_height_m=self._fall_height)
            self._low_steps += 1
            self._low_steps *= low  # counts from zero again where it is not low
            fallen |= self._low_steps >= self._patience
        terminated = diverged | fallen if self.config.fall.enabled else diverged.copy()
        away = self._nobody
        if self.config.joints:
            low, high = self._bounds
            away = strayed(q, low=low, high=high)
            terminated |= away
        if self.config.body_contact.enabled:
            terminated |= body_contact
        return Conditions(
            fallen=fallen,
            strayed=away,
            body_contact=body_contact,
            diverged=diverged,
            terminated=terminated,
        )

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """Counters, copied."""
        return {"low_steps": self._low_steps.copy()}

    def load_state_dict(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore what :meth:`state_dict` gave."""
        self._low_steps[...] = state["low_steps"]
