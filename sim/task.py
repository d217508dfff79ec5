"""A task as data: what is observed, commanded, rewarded, randomised, and when it ends.

``configs/a1_walk.yaml`` is the first one. This module turns such a file into the parts that
:mod:`sim.env` steps; it knows what the task wants, the engine knows how to measure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator

from real.action import ActionKind, ActionSpec
from real.config import Config, InOrder, load_config
from real.errors import ConfigError, nearest
from real.observation import POSE_SOURCES, SOURCES, ObservationSpec, make_term
from real.spec import RobotSpec
from sim.arm_terms import ARM_TERMS
from sim.commands import AnyCommandConfig, CommandConfig, command_limits
from sim.curriculum import CurriculumConfig
from sim.engine import InitialState
from sim.engine_terms import EngineName, require_supported
from sim.motors import OF_SERVOS, ActuatorsConfig
from sim.observe import PRIVILEGED
from sim.pose_commands import PoseCommandConfig
from sim.randomize import RandomizeConfig
from sim.reward_terms import FOLLOW_A_VELOCITY
from sim.rewards import TERMS, RewardConfig, check_rewards
from sim.sensors import SensorConfig
from sim.shaping import ShapingConfig
from sim.targets import FilterConfig
from sim.terminations import TerminationConfig
from sim.terrain import TerrainConfig

Array = NDArray[np.float64]


def _one_of(what: str, known: Iterable[str]) -> Callable[[str], str]:
    """A validator that refuses names outside a vocabulary, at the line where they stand."""
    names = tuple(known)

    def check(name: str) -> str:
        if name not in names:
            raise ConfigError(
                f"{what} {name!r} is not known{nearest(name, names)}; known: {', '.join(names)}"
            )
        return name

    return check


def _one_word(name: str) -> str:
    """A validator that refuses what cannot be part of a folder's name, as of a new run."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise ConfigError(
            f"the name {name!r} begins the name of run folders; expected letters, digits, '_', '-' "
            "and '.' only"
        )
    return name


def _no_twins(names: tuple[str, ...]) -> tuple[str, ...]:
    """A validator that refuses a name given twice."""
    twins = sorted({name for name in names if names.count(name) > 1})
    if twins:
        raise ConfigError(f"expected every name once, found twice: {', '.join(twins)}")
    return names


RewardName = Annotated[str, AfterValidator(_one_of("reward term", TERMS))]
ObservationName = Annotated[str, AfterValidator(_one_of("observation term", SOURCES))]
CriticName = Annotated[str, AfterValidator(_one_of("critic term", PRIVILEGED))]


class SimConfig(Config):
    """Which physics and how much of it."""

    engine: EngineName = Field(default="mujoco", description="mujoco, or pybullet, far slower")
    worlds: int = Field(default=256, ge=1, description="N, stepped together")
    threads: int = Field(
        default=0, ge=0, description="physics threads, of PyBullet processes; 0 = all CPUs"
    )


class ObsTermConfig(Config):
    """How one signal enters the observation; the key is the signal's name."""

    scale: float = Field(default=1.0, description="factor on the signal")
    clip: float | None = Field(default=None, gt=0.0, description="bound after scaling")
    history: int = Field(default=1, ge=1, description="steps kept, oldest first")


class ActionConfig(Config):
    """Meaning and bound of the network's output; the scale is the robot's."""

    kind: ActionKind = Field(
        default="joint_position",
        description="from the default pose, or joint_position_delta: from the observed one",
    )
    clip: float = Field(gt=0.0, description="bound on an action before scaling [1]")


class StartConfig(Config):
    """How far initial states are spread about the default pose, uniformly in +-value."""

    joint_offset: float = Field(default=0.0, ge=0.0, description="joint positions [rad or m]")
    joint_vel: float = Field(default=0.0, ge=0.0, description="joint velocities [rad/s or m/s]")
    yaw: float = Field(default=0.0, ge=0.0, description="heading [rad]")
    lin_vel: float = Field(default=0.0, ge=0.0, description="base velocity, each axis [m/s]")
    ang_vel: float = Field(default=0.0, ge=0.0, description="base rate, each axis [rad/s]")
    lift: float = Field(default=0.0, ge=0.0, description="base starts this much higher [m]")


class EnvConfig(Config):
    """A task file, ``configs/*.yaml``. The ``training`` section means nothing to the simulator."""

    schema_version: Literal[1]
    name: Annotated[str, AfterValidator(_one_word)] = Field(min_length=1)
    robot: str = Field(description="name in configs/robots, or a file")
    sim: SimConfig = SimConfig()
    # A day is far beyond any task, and far below what a step counter overflows at.
    episode_s: float = Field(gt=0.0, le=86400.0, description="time limit, a truncation [s]")
    randomize_episode_phase: bool = Field(
        default=False,
        description="whole resets start in the middle of an episode, so that time-outs spread out",
    )
    start: StartConfig = StartConfig()
    observation: Annotated[dict[ObservationName, ObsTermConfig], InOrder()] = Field(min_length=1)
    critic: Annotated[tuple[CriticName, ...], AfterValidator(_no_twins)] = Field(
        default=(), description="privileged terms that follow the policy's for the critic"
    )
    action: ActionConfig
    filter: FilterConfig = Field(
        default=FilterConfig(), description="on: targets pass the limits of the robot's filter"
    )
    command: AnyCommandConfig | None = Field(
        description="velocity or pose commands; null where the task asks for one thing only"
    )
    soft_limit: float = Field(
        default=0.9, gt=0.0, le=1.0, description="share of a joint's range that counts as inside"
    )
    rewards: Annotated[
        dict[RewardName, RewardConfig], Field(min_length=1), AfterValidator(check_rewards)
    ]
    shaping: ShapingConfig | None = Field(
        default=None, description="potential-based shaping beside the rewards; null for none"
    )
    terminations: TerminationConfig = TerminationConfig()
    randomize: RandomizeConfig = Field(default={}, description="table of random terms")
    curriculum: CurriculumConfig | None = Field(
        default=None, description="ranges of random terms that grow; null: whole from the start"
    )
    sensors: SensorConfig | None = Field(default=None, description="errors; null for perfect")
    actuators: ActuatorsConfig | None = Field(
        default=None, description="a learned actuator; null for servos with the robot's gains"
    )
    terrain: TerrainConfig | None = Field(default=None, description="ground; null for a plane")
    training: dict[str, Any] = {}

    @model_validator(mode="after")
    def _randomizes_motors_that_are_there(self) -> Self:
        lost = [n for n in OF_SERVOS if n in self.randomize and self.actuators is not None]
        if lost:
            raise ConfigError(
                f"randomize.{lost[0]} changes servos, but the task has a learned actuator, which "
                "was fitted with gains of its own: remove the term; motor_strength scales its "
                "torque, and delay its targets",
                key=("randomize", lost[0]),
            )
        return self

    @model_validator(mode="after")
    def _follows_what_it_is_told(self) -> Self:
        has = "none (`command: null`)"
        if self.command is not None:
            pose = isinstance(self.command, PoseCommandConfig)
            has = "a pose command" if pose else "a velocity command"
        self._require(CommandConfig, "a velocity command", FOLLOW_A_VELOCITY, has)
        self._require(PoseCommandConfig, "a pose command", frozenset(ARM_TERMS), has)
        return self

    @model_validator(mode="after")
    def _costs_what_can_happen(self) -> Self:
        if "clamped" in self.rewards and not self.filter.enabled:
            raise ConfigError(
                "rewards.clamped counts targets that the robot's limits moved, but no limits are "
                "applied: add `filter: on`, or remove the term",
                key=("rewards", "clamped"),
            )
        return self

    @model_validator(mode="after")
    def _levels_follow_what_is_measured(self) -> Self:
        rule = None if self.terrain is None else self.terrain.curriculum
        parts = [f"reward/{name}" for name, term in self.rewards.items() if term.weight != 0.0]
        known = ["return", *parts, *(["reward/shaping"] if self.shaping is not None else [])]
        if rule is not None and rule.measure not in known:
            raise ConfigError(
                f"terrain.curriculum.measure {rule.measure!r} is not known"
                f"{nearest(rule.measure, known)}; known: {', '.join(known)}",
                key=("terrain", "curriculum", "measure"),
            )
        return self

    @model_validator(mode="after")
    def _can_be_simulated(self) -> Self:
        require_supported(self.sim.engine, self.randomize)
        return self

    def _require(self, kind: type, named: str, terms: frozenset[str], has: str) -> None:
        """Refuse what follows a command of another kind than the task's."""
        if isinstance(self.command, kind):
            return
        shaped = {} if self.shaping is None else self.shaping.potentials
        lost = [f"rewards.{n}" for n in self.rewards if n in terms]
        lost += [f"shaping.potentials.{n}" for n in shaped if n in terms]
        if self.command is None and kind is CommandConfig and "command" in self.observation:
            lost.append("observation.command")
        if kind is PoseCommandConfig:
            lost += [f"observation.{n}" for n in self.observation if n in POSE_SOURCES]
        if lost:
            raise ConfigError(
                f"{', '.join(lost)} follow {named}, but the task has {has}: remove them, or give "
                "the command's ranges"
            )

    def nominal(self) -> EnvConfig:
        """The task without random terms, sensor noise and delay, from the start of an episode.

        Its terrain stays; tiles and levels are met each as often.
        """
        ground = self.terrain and self.terrain.model_copy(update={"curriculum": None})
        return self.model_copy(
            update={
                "randomize": {},
                "curriculum": None,
                "sensors": None,
                "randomize_episode_phase": False,
                "terrain": ground,
            }
        )


def load_env_config(path: str | Path, overrides: Sequence[str] = ()) -> EnvConfig:
    """Read a task file by name (``a1_walk``) or path.

    Args:
        path: name in ``configs`` or a file.
        overrides: ``"a.b.c=value"``.

    Raises:
        ConfigError: one line per mistake, with file and line.
    """
    return load_config(EnvConfig, path, overrides=overrides)


def observation_spec(config: EnvConfig, robot: RobotSpec) -> ObservationSpec:
    """The policy's observation, terms in the order of the file."""
    return ObservationSpec(
        terms=tuple(
            make_term(
                name,
                robot,
                command_dim=command_limits(config.command).dim,
                scale=term.scale,
                clip=term.clip,
                history=term.history,
            )
            for name, term in config.observation.items()
        )
    )


def action_spec(config: EnvConfig, robot: RobotSpec) -> ActionSpec:
    """Joint position offsets about the default pose, or about the observed one."""
    return ActionSpec.from_robot(robot, clip=config.action.clip, kind=config.action.kind)


# ------------------------------------------------------------------ where an episode starts


def position_limits(robot: RobotSpec) -> Array:
    """Low and high ``[2, J]`` [rad or m], NaN where a joint has none."""
    return np.array([[j.q_min for j in robot.joints], [j.q_max for j in robot.joints]])


def draw_start(
    config: StartConfig,
    robot: RobotSpec,
    rngs: Sequence[np.random.Generator],
    *,
    limits: Array | None = None,
) -> InitialState:
    """Initial states of n worlds about the default pose.

    Joint positions stay within their limits; the base is lifted by ``config.lift``, so that
    feet of an offset pose do not start deep in the ground.

    Args:
        config: spread.
        robot: default pose and limits.
        rngs: one generator for each of the n worlds.
        limits: the robot's :func:`position_limits`, where they are known already.
    """
    joints = len(robot.joints)
    # One call per world: joint positions, joint velocities, yaw, linear, angular; all in [-1, 1).
    draw = np.array([rng.uniform(-1.0, 1.0, 2 * joints + 7) for rng in rngs])
    q, dq, base = draw[:, :joints], draw[:, joints : 2 * joints], draw[:, 2 * joints :]
    start = InitialState.default(robot, len(rngs))
    # A joint without a limit (NaN) is never outside it: fmax and fmin pass over NaN.
    low, high = position_limits(robot) if limits is None else limits
    half = 0.5 * config.yaw * base[:, 0]
    start.quat_wb[:, 0], start.quat_wb[:, 3] = np.cos(half), np.sin(half)
    start.position_w[:, 2] += config.lift
    return InitialState(
        q=np.fmin(np.fmax(start.q + config.joint_offset * q, low), high),
        dq=config.joint_vel * dq,
        position_w=start.position_w,
        quat_wb=start.quat_wb,
        lin_vel_b=config.lin_vel * base[:, 1:4],
        ang_vel_b=config.ang_vel * base[:, 4:],
    )
