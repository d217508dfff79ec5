"""A simulated robot behind the border of a real one: one world of an engine as a RobotIO.

Named to the robot node as ``sim.sim_robot:PyBulletRobot`` or ``sim.sim_robot:MujocoRobot``. The
node's calls are the robot's clock: each advances one physics step, and without calls nothing moves.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from real.domain import DomainSample
from real.errors import FerryError
from real.robot_io import GroundTruth
from real.signals import JointCommand, RobotState
from real.spec import RobotSpec
from sim.engine import FLOOR_FRICTION, Engine, WorldState
from sim.robot_world import RobotWorld, robot_world

if TYPE_CHECKING:  # servos do without
    from sim.motors import NetworkMotors

Array = NDArray[np.float64]


class SimRobot:
    """One robot (N = 1) in any engine; implements :class:`real.robot_io.RobotIO`.

    It starts standing in its default pose, feet on the ground. Until somebody takes over, its
    servos keep that pose, like a real robot that hangs on a gantry or stands on a rack until the
    first command that is not damping; ``hold_until_commanded=False`` takes the gantry away, so
    that a legged robot under damping sinks to the ground and has to get up from there. Once
    released it is never held again.

    A fallen or diverged robot is not put back on its feet: to begin anew, build a new one.

    Attributes:
        period_s: the physics step, which each :meth:`exchange` advances [s].
        command_timeout_s: the physics step: without :meth:`exchange` time stands still.
        simulated: True.
    """

    simulated: bool = True

    def __init__(
        self,
        engine: Engine,
        *,
        world: RobotWorld | None = None,
        hold_until_commanded: bool = True,
        sample: DomainSample | None = None,
        hide_truth: bool = False,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Take over an engine.

        Args:
            engine: with one world; closed by :meth:`close`.
            world: what the engine's ground is, and what moves the joints; None for a plane and
                servos.
            hold_until_commanded: keep the default pose until the first command with a position
                gain.
            sample: what was drawn for the engine's world, if anybody knows.
            hide_truth: say neither that nor where the robot is, as hardware.
            clock: read once, at :meth:`start` [ns]; stamps are its time then plus simulated time.

        Raises:
            FerryError: the engine has more than one world, or the learned actuator is not the
                robot's.
        """
        if engine.num != 1:
            raise FerryError(f"a simulated robot is one world; the engine has {engine.num}")
        self.period_s: float = engine.robot.physics_dt_s
        self.command_timeout_s: float | None = engine.robot.physics_dt_s
        self._engine = engine
        self._world = RobotWorld() if world is None else world
        self._start = self._world.start(engine.robot, engine.terrain)
        self._motors = self._learned()
        self._clock = clock
        self._sample = sample
        self._hidden = hide_truth
        self._hold_at_start = hold_until_commanded
        self._held = False
        self._origin_ns: int | None = None
        self._truth: WorldState | None = None
        self._closed = False

    @property
    def held(self) -> bool:
        """Whether it still stands by itself, waiting for the first command."""
        return self._held

    def start(self) -> RobotState:
        """Put the robot on the ground and return its first state. May be called again."""
        self._require_open()
        self._engine.reset(np.arange(1), self._start)
        if self._motors is not None:
            self._motors.reset(np.arange(1))
        self._held = self._hold_at_start
        self._origin_ns = self._clock()
        return self._sense()

    def exchange(self, command: JointCommand) -> RobotState:
        """Advance one physics step under ``command`` (N = 1) and return the state after it.

        Raises:
            FerryError: called before :meth:`start`, after :meth:`close`, the simulation blew up,
                and the message says so, since a real robot would be damaged here, or the robot
                walked off its terrain.
        """
        self._require_open()
        if self._origin_ns is None:
            raise FerryError("simulated robot: exchange() before start()")
        if self._held and bool((command.kp > 0.0).any()):
            self._held = False
        told = self._standing() if self._held else command
        if self._motors is None:
            self._engine.apply(told, substeps=1)
        else:
            self._motors.apply(told)
        state = self._sense()
        if self._truth is not None and bool(self._truth.diverged[0]):
            raise FerryError(
                f"simulated robot {self._engine.robot.name!r}: the simulation diverged; the last "
                "command or the gains were too violent for its physics step of "
                f"{self.period_s} s"
            )
        if self._truth is not None and self._engine.terrain is not None:
            self._world.require_on_ground(self._engine.terrain, self._truth)
        return state

    def ground_truth(self) -> GroundTruth | None:
        """The truth behind the newest state; None before :meth:`start`, or if it is hidden."""
        if self._truth is None or self._hidden:
            return None
        truth = self._truth
        return GroundTruth(
            stamp_ns=int(truth.robot.stamp_ns[0]),
            position_w=truth.position_w[0].copy(),
            quat_wb=truth.robot.quat_wb[0].copy(),
            lin_vel_b=truth.lin_vel_b[0].copy(),
            ang_vel_b=truth.robot.gyro_b[0].copy(),
        )

    def domain_sample(self) -> DomainSample | None:
        """What was drawn for its world; None where nobody knows, or if it is hidden."""
        return None if self._hidden else self._sample

    def close(self) -> None:
        """Close the engine. May be called twice."""
        if not self._closed:
            self._closed = True
            self._engine.close()

    def _require_open(self) -> None:
        if self._closed:
            raise FerryError("simulated robot: used after close()")

    def _learned(self) -> NetworkMotors | None:
        """The learned actuator, one physics step at a time; None where servos move the joints."""
        network, engine = self._world.network, self._engine
        if network is None:
            return None
        from sim.actuator_file import load_actuators
        from sim.motors import NetworkMotors

        return NetworkMotors(load_actuators(network, engine.robot), engine, substeps=1)

    def _standing(self) -> JointCommand:
        robot = self._engine.robot
        return JointCommand.position(
            np.zeros(1, dtype=np.int64),
            robot.actuated_array("q_default")[None],
            kp=robot.actuated_array("kp"),
            kd=robot.actuated_array("kd"),
        )

    def _sense(self) -> RobotState:
        truth = self._engine.state()
        origin = 0 if self._origin_ns is None else self._origin_ns
        state = dataclasses.replace(truth.robot, stamp_ns=truth.robot.stamp_ns + origin)
        self._truth = dataclasses.replace(truth, robot=state)
        return state


class _BuiltRobot(SimRobot):
    """A robot that builds its own engine, as a plug-in must.

    Args:
        robot: what it shall be.
        friction: contact friction of robot and floor.
        hold_until_commanded: see :class:`SimRobot`.
        hide_truth: see :class:`SimRobot`.
        terrain: table of the ground, as in a task file; None for a plane.
        actuator: file of a learned actuator; None for servos.
        task: a task by name or file, whose ground and motors to take.
        plane: whether to leave out the terrain.
        tile: name of the tile to begin on; drawn if None.
        level: of that tile; drawn if None.
        seed: of these draws.
    """

    def __init__(
        self,
        robot: RobotSpec,
        *,
        friction: float = FLOOR_FRICTION,
        hold_until_commanded: bool = True,
        hide_truth: bool = False,
        terrain: Mapping[str, Any] | None = None,
        actuator: str | None = None,
        task: str | None = None,
        plane: bool = False,
        tile: str | None = None,
        level: int | None = None,
        seed: int = 0,
    ) -> None:
        _require_friction(friction)
        world = robot_world(
            robot,
            terrain=terrain,
            actuator=actuator,
            task=task,
            plane=plane,
            tile=tile,
            level=level,
            seed=seed,
        )
        super().__init__(
            self._build(robot, friction, world),
            world=world,
            hold_until_commanded=hold_until_commanded,
            # Nothing else differs from the nominal robot, and nothing else was drawn by chance.
            sample=world.sample(friction),
            hide_truth=hide_truth,
        )

    @classmethod
    def planned_world(cls, robot: RobotSpec, options: Mapping[str, Any]) -> str:
        """See :class:`real.robot_io.PlannedWorld`."""
        _require_friction(options.get("friction", FLOOR_FRICTION))
        own = {k: v for k, v in options.items() if k not in _OF_THE_ROBOT}
        return robot_world(robot, **own).words()

    @staticmethod
    def _build(robot: RobotSpec, friction: float, world: RobotWorld) -> Engine:
        """One world. Engines are imported here, so that only the one asked for is loaded."""
        raise NotImplementedError


def _require_friction(friction: float) -> None:
    if not 0.0 <= friction < math.inf:
        raise FerryError(f"option friction={friction}: expected a finite number, 0 or more")


#: Options that say nothing of the world around.
_OF_THE_ROBOT = ("friction", "hold_until_commanded", "hide_truth")


class MujocoRobot(_BuiltRobot):
    """A robot in the training engine."""

    @staticmethod
    def _build(robot: RobotSpec, friction: float, world: RobotWorld) -> Engine:
        from sim.mujoco_engine import MujocoEngine

        engine = MujocoEngine(robot, 1, threads=1, terrain=world.ground())
        engine.field("geom_friction")[:, engine.built.floor_geom_id, 0] = friction
        return engine


class PyBulletRobot(_BuiltRobot):
    """A robot in the second engine, in which no policy was trained."""

    @staticmethod
    def _build(robot: RobotSpec, friction: float, world: RobotWorld) -> Engine:
        from sim.pybullet_engine import PyBulletEngine

        return PyBulletEngine(robot, 1, friction=friction, terrain=world.ground())
