"""A simulated robot behind the border of a real one: one world of an engine as a RobotIO.

Named to the robot node as ``sim.sim_robot:PyBulletRobot`` or ``sim.sim_robot:MujocoRobot``. The
node's calls are the robot's clock: each advances one physics step, and without calls nothing moves.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from real.domain import DomainSample
from real.errors import FerryError
from real.robot_io import GroundTruth
from real.signals import JointCommand, RobotState
from real.spec import RobotSpec
from sim.engine import FLOOR_FRICTION, Engine, InitialState, WorldState

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
        hold_until_commanded: bool = True,
        sample: DomainSample | None = None,
        hide_truth: bool = False,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Take over an engine.

        Args:
            engine: with one world; closed by :meth:`close`.
            hold_until_commanded: keep the default pose until the first command with a position
                gain.
            sample: what was drawn for the engine's world, if anybody knows.
            hide_truth: say neither that nor where the robot is, as hardware.
            clock: read once, at :meth:`start` [ns]; stamps are its time then plus simulated time.

        Raises:
            FerryError: the engine has more than one world.
        """
        if engine.num != 1:
            raise FerryError(f"a simulated robot is one world; the engine has {engine.num}")
        self.period_s: float = engine.robot.physics_dt_s
        self.command_timeout_s: float | None = engine.robot.physics_dt_s
        self._engine = engine
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
        self._engine.reset(np.arange(1), InitialState.default(self._engine.robot, 1))
        self._held = self._hold_at_start
        self._origin_ns = self._clock()
        return self._sense()

    def exchange(self, command: JointCommand) -> RobotState:
        """Advance one physics step under ``command`` (N = 1) and return the state after it.

        Raises:
            FerryError: called before :meth:`start`, after :meth:`close`, or the simulation blew
                up; the message says so, since a real robot would be damaged here.
        """
        self._require_open()
        if self._origin_ns is None:
            raise FerryError("simulated robot: exchange() before start()")
        if self._held and bool((command.kp > 0.0).any()):
            self._held = False
        self._engine.apply(self._standing() if self._held else command, substeps=1)
        state = self._sense()
        if self._truth is not None and bool(self._truth.diverged[0]):
            raise FerryError(
                f"simulated robot {self._engine.robot.name!r}: the simulation diverged; the last "
                "command or the gains were too violent for its physics step of "
                f"{self.period_s} s"
            )
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
    """

    def __init__(
        self,
        robot: RobotSpec,
        *,
        friction: float = FLOOR_FRICTION,
        hold_until_commanded: bool = True,
        hide_truth: bool = False,
    ) -> None:
        engine = self._build(robot, friction)
        super().__init__(
            engine,
            hold_until_commanded=hold_until_commanded,
            # Nothing else differs from the nominal robot, and nothing was drawn by chance.
            sample=DomainSample(seed=0, values={"friction": [friction]}),
            hide_truth=hide_truth,
        )

    @staticmethod
    def _build(robot: RobotSpec, friction: float) -> Engine:
        """One world. Engines are imported here, so that only the one asked for is loaded."""
        raise NotImplementedError


class MujocoRobot(_BuiltRobot):
    """A robot in the training engine."""

    @staticmethod
    def _build(robot: RobotSpec, friction: float) -> Engine:
        from sim.mujoco_engine import MujocoEngine

        engine = MujocoEngine(robot, 1, threads=1)
        engine.field("geom_friction")[:, engine.built.floor_geom_id, 0] = friction
        return engine


class PyBulletRobot(_BuiltRobot):
    """A robot in the second engine, in which no policy was trained."""

    @staticmethod
    def _build(robot: RobotSpec, friction: float) -> Engine:
        from sim.pybullet_engine import PyBulletEngine

        return PyBulletEngine(robot, 1, friction=friction)
