"""N robots through the episodes of a suite: the physics, the controller, and what they did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.controller import Controller
from deploy.policy import Policy
from deploy.safety import SafetySettings
from real.contract import PolicyContract
from real.errors import FerryError
from real.frames import tilt
from real.reach import ReachSpace
from real.signals import JointCommand, RobotState
from real.spec import RobotSpec
from sim.engine import Engine, InitialState, WorldState
from sim.engines import make_engine
from sim.measure import passive_hinges
from sim.motors import make_motors
from sim.randomize import Randomizer
from sim.sensors import Sensors
from sim.starts import Starts
from sim.task import EnvConfig, draw_start
from sim.terrain import TerrainConfig
from sim.world_config import WorldConfig
from training.bundle_world import REMEDY
from training.progress import ProgressFn
from training.scores import lean
from training.suites import (
    ANY_HEADING,
    OFF_BALANCE,
    EpisodeSeeds,
    Suite,
    episode_commands,
    generators,
)

Array = NDArray[np.float64]

#: Robots of an evaluation start in or near their default pose, so they need no ramp. Everything
#: else is what a robot has by default.
SAFETY = SafetySettings(ramp_s=0.0)


@dataclass(frozen=True)
class Trajectory:
    """What N robots did in T control steps.

    Attributes:
        command: ``[T, N, C]``.
        lin_vel_b: ``[T, N, 3]`` true velocity at the end of each step [m/s].
        ang_vel_b: ``[T, N, 3]`` [rad/s].
        tilt_rad: ``[T, N]``; NaN where the physics diverged.
        height_m: ``[T, N]`` height of the base above the ground [m].
        lean_rad: ``[T, N]`` how far passive hinges are from upright, see
            :func:`training.scores.lean`; NaN where the physics diverged.
        q: ``[T, N, J]`` joint positions at the end of each step [rad or m].
        verdict: ``[T, N]`` :class:`~deploy.safety.Verdict` values.
        counted: ``[N]`` steps until a robot left its tile of the terrain; T if it did not.
    """

    command: Array
    lin_vel_b: Array
    ang_vel_b: Array
    tilt_rad: Array
    height_m: Array
    lean_rad: Array
    q: Array
    verdict: NDArray[np.int8]
    counted: NDArray[np.intp]


class Worlds:
    """The simulated robots of a suite: an engine and, where the suite has it, the task's noise.

    Args:
        suite: which physics, and whether the task's randomisation applies.
        robot: the robot.
        config: its task, for suites with randomisation or terrain, and for its actuators.
        seeds: of every episode.

    Raises:
        FerryError: the suite needs a task or its terrain, and there is none.
    """

    def __init__(
        self,
        suite: Suite,
        robot: RobotSpec,
        *,
        config: EnvConfig | WorldConfig | None,
        seeds: EpisodeSeeds,
    ) -> None:
        self.suite = suite
        self.seeds = seeds
        self.robot = robot
        self._rows = np.arange(len(seeds))
        self._first = InitialState.default(robot, len(seeds))
        self._randomizer: Randomizer | None = None
        self._sensors: Sensors | None = None
        self._actuators = None if config is None else config.actuators
        self._starts: Starts | None = None
        if not suite.randomized:
            self._engine: Engine = _engine(suite, robot, len(seeds), {}, _terrain(suite, config))
            rngs = generators(seeds, "start")
            if suite.terrain:
                starts = Starts(ANY_HEADING, robot, rngs, terrain=self._engine.terrain)
                self._starts, self._first = starts, starts.draw(self._rows)
            elif passive_hinges(robot).size:
                self._first = draw_start(OFF_BALANCE, robot, rngs)
            return
        if config is None:
            raise FerryError(
                f"suite {suite.name!r} needs the task's own randomisation, and this bundle was "
                f"exported before bundles carried it: {REMEDY}"
            )
        engine = self._engine = _engine(suite, robot, len(seeds), config.randomize, None)
        self._randomizer = Randomizer(
            config.randomize,
            engine,
            control_dt_s=robot.control_dt_s,
            rngs=generators(seeds, "domain"),
        )
        self._sensors = Sensors(
            config.sensors,
            len(seeds),
            generators(seeds, "sensor"),
            joints=len(robot.joints),
            control_dt_s=robot.control_dt_s,
        )
        self._first = draw_start(config.start, robot, generators(seeds, "start"))

    def start(self) -> RobotState:
        """Begin all episodes; what the sensors then report."""
        if self._randomizer is not None:
            self._randomizer.draw(self._rows)
        self._engine.reset(self._rows, self._first)
        # Also in a nominal suite: it stands for motors as they are.
        self._motors = make_motors(self._actuators, self._engine)
        if self._sensors is not None:
            self._sensors.reset(self._rows)
        return self._sensed(self._engine.state())

    def step(self, command: JointCommand) -> tuple[RobotState, WorldState]:
        """One control period; what the sensors report after it, and what is true."""
        if self._randomizer is not None:
            self._randomizer.before_step()
            command = replace(command, q_des=self._randomizer.to_motors(command.q_des))
        self._motors.apply(command)
        truth = self._engine.state()
        return self._sensed(truth), truth

    def left(self, truth: WorldState) -> NDArray[np.bool_]:
        """``[N]`` which robots are not on the tile of the terrain that they began on."""
        gone = None if self._starts is None else self._starts.left(truth)
        return np.zeros(len(self.seeds), dtype=bool) if gone is None else gone

    def close(self) -> None:
        """Release the engine."""
        self._engine.close()

    def _sensed(self, truth: WorldState) -> RobotState:
        if self._randomizer is None or self._sensors is None:
            return truth.robot
        return self._sensors.sense(self._randomizer.reported(truth.robot))


def _terrain(suite: Suite, config: EnvConfig | WorldConfig | None) -> TerrainConfig | None:
    """What a suite's robots stand on: all tiles and levels of the task's terrain alike."""
    if not suite.terrain:
        return None
    if config is None:
        raise FerryError(
            f"suite {suite.name!r} needs the task's own terrain, and this bundle was exported "
            f"before bundles carried it: {REMEDY}"
        )
    if config.terrain is None:
        raise FerryError(
            f"suite {suite.name!r} needs the task's own terrain, and this one was trained on a "
            "plane; of a bundle another task can be named with --task"
        )
    return config.terrain.model_copy(update={"curriculum": None})


def _engine(
    suite: Suite,
    robot: RobotSpec,
    num: int,
    randomize: Mapping[str, Any],
    terrain: TerrainConfig | None,
) -> Engine:
    # Few worlds are stepped in less time than it takes to wake other threads on a busy machine, or
    # to start other processes.
    few: int | None = 1 if suite.engine == "mujoco" else None
    enough = 64 if suite.engine == "mujoco" else 4
    threads = 0 if num > enough else few
    return make_engine(
        suite.engine, robot, num, threads=threads, randomize=randomize, terrain=terrain
    )


def run_trial(policy: Policy, worlds: Worlds, *, progress: ProgressFn) -> Trajectory:
    """Let a policy drive the robots of a suite through their episodes, all at once.

    Raises:
        FerryError: a robot cannot be armed, or policy or filter raised.
    """
    contract, seeds = policy.contract, worlds.seeds
    dt, num = contract.control_dt_s, len(seeds)
    steps = round(worlds.suite.episode_s / dt)
    space = contract_space(contract)
    command = episode_commands(
        contract.command, generators(seeds, "command"), steps=steps, dt_s=dt, space=space
    )
    lin_vel, ang_vel = np.empty((steps, num, 3)), np.empty((steps, num, 3))
    tilted, height = np.empty((steps, num)), np.empty((steps, num))
    leaning = np.empty((steps, num))
    positions = np.empty((steps, num, len(worlds.robot.joints)))
    hinges, upright = passive_hinges(worlds.robot), worlds.robot.q_default
    verdict, gone = np.empty((steps, num), dtype=np.int8), np.zeros((steps, num), dtype=bool)
    controller = Controller(policy, num, settings=SAFETY)
    state = worlds.start()
    refused = controller.arm(_now_ns(state), state)
    if refused:
        raise FerryError(f"the robot cannot be armed: {'; '.join(map(str, refused))}")
    for step in range(steps):
        tick = controller.tick(_now_ns(state), state, command[step])
        if tick.errors:
            raise FerryError(f"{tick.errors[0]}")
        state, truth = worlds.step(tick.command)
        lin_vel[step], ang_vel[step] = truth.lin_vel_b, truth.robot.gyro_b
        tilted[step] = np.where(truth.diverged, np.nan, tilt(truth.robot.quat_wb))
        height[step], gone[step] = truth.height, worlds.left(truth)
        positions[step] = truth.robot.q
        off = (truth.robot.q - upright)[:, hinges]
        leaning[step] = np.where(truth.diverged, np.nan, lean(off))
        verdict[step] = tick.verdict
        progress(step + 1, steps)
    counted = np.where(gone.any(axis=0), gone.argmax(axis=0), steps)
    return Trajectory(
        command, lin_vel, ang_vel, tilted, height, leaning, positions, verdict, counted
    )


def contract_space(contract: PolicyContract) -> ReachSpace | None:
    """The poses that a policy may be commanded; None where it is commanded none."""
    if contract.reach is None:
        return None
    low, high = contract.command.low, contract.command.high
    return ReachSpace(contract.reach, contract.joints, low=low, high=high)


def _now_ns(state: RobotState) -> int:
    return int(state.stamp_ns.max())
