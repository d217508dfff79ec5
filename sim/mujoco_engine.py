"""N worlds on ``mujoco.batch``: one call per control step, everything else a few array operations.

``stage=mjSTAGE_VEL`` makes positions, velocities and contacts those of the new state at no cost: a
persistent batch continues its next step from there. MuJoCo's sensors are switched off where
:mod:`sim.readout` can do without.
"""

# The names of MuJoCo come from compiled modules, which the type checker cannot see.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Protocol

import mujoco
import numpy as np
from mujoco import batch as mujoco_batch
from numpy.typing import NDArray

from real.errors import FerryError
from real.frames import normalize, rotate
from real.signals import JointCommand
from real.spec import RobotSpec
from sim.actuators import Servos
from sim.engine import Array, Ids, InitialState, WorldState
from sim.model import MujocoModel, build_mujoco
from sim.readout import Readout, needs_sensors
from sim.terrain import Terrain

log = logging.getLogger(__name__)

State = dict[str, NDArray[np.generic]]

_STAGE_VEL = int(mujoco.mjtStage.mjSTAGE_VEL)
_STAGE_NONE = int(mujoco.mjtStage.mjSTAGE_NONE)


class Recorder(Protocol):
    """Sees what an engine does; :class:`sim.black_box.BlackBox` is one."""

    def note(self, state: Array, /) -> None:
        """The states ``[N, S]``, targets included, that a step begins with."""
        ...

    def forget(self, rows: Ids, /) -> None:
        """Worlds ``rows`` begin anew."""
        ...


class MujocoEngine:
    """N worlds of a robot in MuJoCo; implements :class:`sim.engine.Engine`.

    World i does not depend on the others nor on the number of threads, bit for bit.

    Making an engine stops MuJoCo from writing ``MUJOCO_LOG.TXT`` and warnings to the terminal, in
    the whole process: what diverges is in ``WorldState.diverged``.

    Args:
        robot: the robot in every world; its limits must be known.
        num: N.
        threads: physics threads; 0 for the CPUs this process may use, with 16 worlds each at least.
        delay_max_s: longest actuator delay [s] that :meth:`Servos.set_delay` accepts.
        terrain: what the robots stand on; a plane if None.

    Attributes:
        robot: the robot in every world.
        num: N.
        terrain: what the robots stand on; None for a plane.
        threads: physics threads in use.
        built: the model and where the robot's things are in it.
        batch: the MuJoCo batch. Change model fields through :meth:`field`.
        fields: per-world model fields ``[N, ...]`` in use, by name; see :meth:`field`.
        servos: the joint drives: gains, strength, delay.
        recorder: sees every step and reset; None for nobody.

    Raises:
        FerryError: the robot or a number is wrong; see also :func:`sim.model.build_mujoco`.
    """

    def __init__(
        self,
        robot: RobotSpec,
        num: int = 1,
        *,
        threads: int = 0,
        delay_max_s: float = 0.0,
        terrain: Terrain | None = None,
    ) -> None:
        if num < 1 or threads < 0:
            raise FerryError(f"{num} worlds on {threads} threads; expected >= 1 and >= 0")
        robot.require_complete()
        _quiet_log()
        self.robot = robot
        self.num = num
        self.terrain = terrain
        field = None if terrain is None else terrain.field
        self.built: MujocoModel = build_mujoco(robot, delay_max_s=delay_max_s, field=field)
        model = self.built.model
        if not needs_sensors(self.built):
            model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_SENSOR)
        self.threads = threads or _default_threads(num)
        self.batch = mujoco_batch.Batch(model, num, self.threads, persistent=True)
        self.fields: dict[str, Array] = {}
        self.recorder: Recorder | None = None
        self._failed: NDArray[np.bool_] = np.zeros(num, dtype=bool)
        self._ever_failed = False
        self._readout = Readout(self.built, self.batch)
        self._qpos: Array = self.batch.bind("qpos")
        self._qvel: Array = self.batch.bind("qvel")
        self.servos = Servos(
            self.built,
            num,
            field=self.field,
            ctrl=self.batch.bind("ctrl"),
            history=self.batch.bind("history").reshape(num, -1),
        )
        self.reset(np.arange(num), InitialState.default(robot, num))

    # -------------------------------------------------------------- model of each world

    def field(self, name: str) -> Array:
        """Per-world values ``[N, ...]`` of an MjModel field, live.

        After writing one that MuJoCo derives constants from (masses, inertias, positions,
        armature), call :meth:`refresh_constants`. They are part of :meth:`state_dict`.
        """
        if name not in self.fields:
            self.fields[name] = self.batch.expand(name)
        return self.fields[name]

    def gravity(self) -> Array:
        """``[N, 3]`` gravity of each world [m/s^2], live; accelerometers feel it."""
        values = self.field("opt.gravity")
        self._readout.gravity = values
        return values

    def renew_model(self, rows: Ids) -> None:
        """Give worlds ``rows`` the nominal model again, whatever a broken number has reached."""
        for name, values in self.fields.items():
            nominal = self.built.model
            for part in name.split("."):  # also opt.gravity
                nominal = getattr(nominal, part)
            values[rows] = nominal
        self.servos.renew(rows)
        self.refresh_constants(rows)

    def refresh_constants(self, rows: Ids) -> None:
        """Derive the constants of worlds ``rows`` anew (``mj_setConst``), about 0.03 ms each."""
        self.batch.set_const(np.sort(rows))

    # -------------------------------------------------------------- stepping

    def step(self, q_des: Array, *, substeps: int | None = None) -> None:
        """Track joint targets ``[N, A]`` with the robot's gains; see :class:`sim.engine.Engine`.

        A target that is not finite makes its world ``diverged``.
        """
        self.servos.track(q_des)
        self._advance(substeps)

    def apply(self, command: JointCommand, *, substeps: int | None = None) -> None:
        """As :meth:`step` with the gains of ``command``; see :class:`sim.engine.Engine`."""
        self.servos.command(command)
        self._advance(substeps)

    def _advance(self, substeps: int | None) -> None:
        count = self.robot.substeps if substeps is None else substeps
        if self.recorder is not None:
            self.recorder.note(self.batch.state)
        try:
            self.batch.step(nstep=count, stage=_STAGE_VEL)
        except mujoco_batch.SimulationError as error:
            self._note_failure(error)

    def _note_failure(self, error: mujoco_batch.SimulationError) -> None:
        # These worlds keep the state before the call, which looks healthy: remember them.
        self._failed[error.ids] = self._ever_failed = True
        log.warning("physics failed, worlds marked diverged until reset: %s", error)

    def add_velocity(self, rows: Ids, lin_w: Array, ang_b: Array) -> None:
        """Change the velocity of the floating base at once, as a short, hard push would.

        Derived quantities follow with the next step.

        Args:
            rows: n worlds.
            lin_w: ``[n, 3]`` world frame [m/s].
            ang_b: ``[n, 3]`` base frame [rad/s].

        Raises:
            FerryError: the base is fixed.
        """
        base = self.built.base_dof_adr
        if base < 0:
            raise FerryError(f"robot {self.robot.name!r} has a fixed base, which nothing can push")
        self._qvel[rows, base : base + 3] += lin_w
        self._qvel[rows, base + 3 : base + 6] += ang_b

    # -------------------------------------------------------------- resetting

    def reset(self, rows: Ids, start: InitialState) -> None:
        """Begin anew in worlds ``rows``, whole; see :class:`sim.engine.Engine`.

        Servos hold the start pose, also those that still wait for a delayed target.

        Raises:
            ValueError: rows are repeated or out of range, or ``start`` has another length.
        """
        if start.q.shape[0] != rows.size:
            raise ValueError(f"{rows.size} worlds to reset, but {start.q.shape[0]} initial states")
        if self.recorder is not None:
            self.recorder.forget(rows)
        ids = np.sort(rows)
        self.batch.reset(ids, stage=_STAGE_NONE)
        at = rows[:, None]
        self._qpos[at, self.built.joint_qpos_adr] = start.q
        self._qvel[at, self.built.joint_dof_adr] = start.dq
        if self.built.base_qpos_adr >= 0:
            self._place_base(rows, start)
        self.servos.hold(rows, start.q)
        self._failed[rows] = False
        try:
            self.batch.forward(ids)
        except mujoco_batch.SimulationError as error:
            self._note_failure(error)

    def _place_base(self, rows: Ids, start: InitialState) -> None:
        quat = normalize(start.quat_wb)
        pos, vel = self.built.base_qpos_adr, self.built.base_dof_adr
        self._qpos[rows, pos : pos + 3] = start.position_w
        self._qpos[rows, pos + 3 : pos + 7] = quat
        # A free joint's linear velocity is the world's, its angular velocity the body's.
        self._qvel[rows, vel : vel + 3] = rotate(quat, start.lin_vel_b)
        self._qvel[rows, vel + 3 : vel + 6] = start.ang_vel_b

    def state(self) -> WorldState:
        """The state after the last step or reset, in new arrays; see :class:`sim.engine.Engine`.

        ``tau`` and ``acc_b`` belong to the last physics step, as forces do in MuJoCo; after a
        reset they are those of holding the start pose.
        """
        return self._read(None)

    def renew_state(self, world: WorldState, rows: Ids) -> WorldState:
        """See :class:`sim.engine.Engine`; writes to ``world``."""
        world.put(rows, self._read(rows))
        return world

    def _read(self, rows: Ids | None) -> WorldState:
        world = self._readout.world(rows, failed=self._failed if self._ever_failed else None)
        if self.servos.speed_damping is not None:
            at = self.robot.actuated_ids
            world.robot.tau[:, at] -= self.servos.lost_to_speed(world.robot.dq[:, at], rows)
        if self.terrain is not None:
            below = self.terrain.ground(world.position_w, world.foot_position_w)
            world = replace(world, ground_w=below)
        return world

    # -------------------------------------------------------------- keeping

    def state_dict(self) -> State:
        """Everything a bit-exact continuation needs, copied."""
        return {
            "state": self.batch.state.copy(),
            "warning": self.batch.warning.copy(),
            "failed": self._failed.copy(),
            "qacc": self._readout.qacc.copy(),
            "qfrc_actuator": self._readout.effort.copy(),
            **{f"servos/{key}": values for key, values in self.servos.state_dict().items()},
            **{f"field/{name}": values.copy() for name, values in self.fields.items()},
        }

    def load_state_dict(self, state: State) -> None:
        """Continue where :meth:`state_dict` was taken, in an engine of the same robot and N.

        Raises:
            FerryError: the state is of another number of worlds, robot or delay buffer.
        """
        if "state" not in state:
            raise FerryError("engine state is of another engine; expected one of MuJoCo")
        found = state["state"].shape
        if found != self.batch.state.shape:
            raise FerryError(
                f"engine state has shape {found}; expected {self.batch.state.shape} for "
                f"{self.num} worlds of {self.robot.name!r} with delays up to "
                f"{self.built.delay_max_s} s"
            )
        if self.recorder is not None:
            self.recorder.forget(np.arange(self.num))
        for name, values in _under(state, "field/").items():
            self.field(name)[...] = values
        self.servos.load_state_dict(_under(state, "servos/"))
        self._failed[...] = state["failed"]
        self._ever_failed = bool(self._failed.any())
        self.batch.set_const()
        self.batch.state[...] = state["state"]
        self.batch.forward(stage=_STAGE_VEL)
        self.batch.warning[...] = state["warning"]
        self._readout.restore_forces(
            np.asarray(state["qacc"], dtype=np.float64),
            np.asarray(state["qfrc_actuator"], dtype=np.float64),
        )

    def close(self) -> None:
        """Let go of threads and worlds. May be called twice; nothing else may follow."""
        for name in set(vars(self)) - {"robot", "num", "threads", "built"}:
            delattr(self, name)


def _default_threads(num: int) -> int:
    # MuJoCo's own default counts the machine's CPUs, also those a container may not use. Handing
    # a dozen worlds to another thread takes longer than stepping them.
    return min(len(os.sched_getaffinity(0)), max(1, num // 16))


def _under(state: State, prefix: str) -> State:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def _quiet_log() -> None:
    config = mujoco.MjLogConfig.get()
    config.logto_file = False
    config.logto_console = False
    mujoco.MjLogConfig.set(config)
