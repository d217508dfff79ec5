"""N worlds on ``mujoco.batch``: one call per control step, everything else a few array operations.

What costs time here was measured on A1 (256 worlds, 2 threads, 4 substeps, 8 ms a step):

* MuJoCo computes sensors in every substep, 3 to 6 % for IMU and foot velocities, while the same
  quantities taken once per control step from ``qpos``, ``qvel``, ``cvel`` and ``qacc`` cost 1 %.
  So the engine switches sensors off (``mjDSBL_SENSOR``) and derives them.
* A contact between a sphere and the floor exists exactly when the sphere reaches below it, so
  spherical feet need no contact sensor, and the contacts of a world beyond those of its feet
  belong to its body. Feet of other shapes keep the model's contact sensors.
* ``stage=mjSTAGE_VEL`` makes positions, velocities and contacts those of the new state at no
  cost: a persistent batch continues its next step from there.
"""

# The names of MuJoCo come from compiled modules, which the type checker cannot see.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import logging
import os

import mujoco
import numpy as np
from mujoco import batch as mujoco_batch
from numpy.typing import NDArray

from real.errors import FerryError
from real.frames import normalize, rotate
from real.signals import JointCommand, RobotState
from real.spec import RobotSpec
from sim.actuators import Servos, as_index
from sim.engine import Array, Ids, InitialState, WorldState
from sim.model import MujocoModel, build_mujoco

log = logging.getLogger(__name__)

State = dict[str, NDArray[np.generic]]

_STAGE_VEL = int(mujoco.mjtStage.mjSTAGE_VEL)
_STAGE_NONE = int(mujoco.mjtStage.mjSTAGE_NONE)
_NUMBER = 1  # column of mjWarningStat that counts


class MujocoEngine:
    """N worlds of a robot in MuJoCo; implements :class:`sim.engine.Engine`.

    World i does not depend on the others nor on the number of threads, bit for bit.

    Making an engine stops MuJoCo from writing ``MUJOCO_LOG.TXT`` and warnings to the terminal, in
    the whole process: what diverges is in ``WorldState.diverged``.

    Args:
        robot: the robot in every world; its limits must be known.
        num: N.
        threads: physics threads; 0 for the CPUs this process may use.
        delay_max_s: longest actuator delay [s] that :meth:`Servos.set_delay` accepts.

    Attributes:
        robot: the robot in every world.
        num: N.
        threads: physics threads in use.
        built: the model and where the robot's things are in it.
        batch: the MuJoCo batch. Change model fields through :meth:`field`.
        servos: the joint drives: gains, strength, delay.

    Raises:
        FerryError: the robot or a number is wrong; see also :func:`sim.model.build_mujoco`.
    """

    def __init__(
        self, robot: RobotSpec, num: int = 1, *, threads: int = 0, delay_max_s: float = 0.0
    ) -> None:
        if num < 1 or threads < 0:
            raise FerryError(f"{num} worlds on {threads} threads; expected >= 1 and >= 0")
        robot.require_complete()
        _quiet_log()
        self.robot = robot
        self.num = num
        self.built: MujocoModel = build_mujoco(robot, delay_max_s=delay_max_s)
        model = self.built.model
        self._round_feet = bool(np.isfinite(self.built.foot_radius).all())
        if self._round_feet:
            model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_SENSOR)
        # MuJoCo's own default counts the machine's CPUs, also those a container may not use.
        self.threads = threads or len(os.sched_getaffinity(0))
        self.batch = mujoco_batch.Batch(model, num, self.threads, persistent=True)
        self._fields: dict[str, Array] = {}
        self._failed: NDArray[np.bool_] = np.zeros(num, dtype=bool)
        self._bind()
        self.servos = Servos(
            self.built, num, field=self.field, ctrl=self._ctrl, history=self._history
        )
        self.reset(np.arange(num), InitialState.default(robot, num))

    def _bind(self) -> None:
        """Register every field once; the arrays stay live."""
        batch, built = self.batch, self.built
        self._time: Array = batch.bind("time")
        self._qpos: Array = batch.bind("qpos")
        self._qvel: Array = batch.bind("qvel")
        self._ctrl: Array = batch.bind("ctrl")
        self._history: Array = batch.bind("history").reshape(self.num, -1)
        self._qacc: Array = batch.bind("qacc")
        self._effort: Array = batch.bind("qfrc_actuator")
        self._xpos: Array = batch.bind("xpos")
        self._xquat: Array = batch.bind("xquat")
        self._xmat: Array = batch.bind("xmat").reshape(self.num, -1, 3, 3)
        self._cvel: Array = batch.bind("cvel")
        self._com: Array = batch.bind("subtree_com")
        self._site: Array = batch.bind("site_xpos")
        self._geom: Array = batch.bind("geom_xpos")
        self._contacts: NDArray[np.int32] = batch.bind("ncon")
        self._sensors: Array = batch.bind("sensordata")
        self._q = as_index(built.joint_qpos_adr)
        self._dq = as_index(built.joint_dof_adr)
        self._foot_site = as_index(built.foot_site_ids)
        self._foot_geom = as_index(built.foot_geom_ids)
        self._foot_body = as_index(built.model.site_bodyid[built.foot_site_ids].astype(np.intp))
        self._root = int(built.model.body_rootid[built.base_body_id])
        self._imu_b: Array = built.model.site_pos[built.model.site("imu").id].copy()

    # -------------------------------------------------------------- model of each world

    def field(self, name: str) -> Array:
        """Per-world values ``[N, ...]`` of an MjModel field, live.

        After writing one that MuJoCo derives constants from (masses, inertias, positions,
        armature), call :meth:`refresh_constants`. They are part of :meth:`state_dict`.
        """
        if name not in self._fields:
            self._fields[name] = self.batch.expand(name)
        return self._fields[name]

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
        try:
            self.batch.step(nstep=count, stage=_STAGE_VEL)
        except mujoco_batch.SimulationError as error:
            self._note_failure(error)

    def _note_failure(self, error: mujoco_batch.SimulationError) -> None:
        # These worlds keep the state before the call, which looks healthy: remember them.
        self._failed[error.ids] = True
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

    # -------------------------------------------------------------- observing

    def state(self) -> WorldState:
        """The state after the last step or reset, in new arrays; see :class:`sim.engine.Engine`.

        ``tau`` and ``acc_b`` belong to the last physics step, as forces do in MuJoCo; after a
        reset they are those of holding the start pose.
        """
        base = self.built.base_body_id
        rotation = self._xmat[:, base]  # [N, 3, 3], v_w = R v_b
        robot = self._robot_state(rotation)
        foot_position = self._site[:, self._foot_site].copy()
        if self.built.base_dof_adr >= 0:
            linear = self._qvel[:, self.built.base_dof_adr : self.built.base_dof_adr + 3]
            lin_vel_b = np.einsum("nji,nj->ni", rotation, linear)
        else:
            lin_vel_b = np.zeros((self.num, 3))
        foot_contact, body_contact = self._touching()
        return WorldState(
            robot=robot,
            position_w=self._xpos[:, base].copy(),
            lin_vel_b=lin_vel_b,
            foot_position_w=foot_position,
            foot_velocity_w=self._foot_velocity(foot_position),
            foot_contact=foot_contact,
            body_contact=body_contact,
            diverged=self._diverged(),
        )

    def _robot_state(self, rotation: Array) -> RobotState:
        if self.built.base_dof_adr >= 0:
            first = self.built.base_dof_adr
            quat = self._qpos[:, self.built.base_qpos_adr + 3 : self.built.base_qpos_adr + 7].copy()
            gyro = self._qvel[:, first + 3 : first + 6].copy()
            force_w = self._qacc[:, first : first + 3] - self.built.model.opt.gravity
            # Specific force at the base origin, R^T (a - g) ...
            acc = np.einsum("nji,nj->ni", rotation, force_w)
            if self._imu_b.any():
                # ... and at the IMU: + alpha x r + w x (w x r).
                alpha = self._qacc[:, first + 3 : first + 6]
                acc += np.cross(alpha, self._imu_b) + np.cross(gyro, np.cross(gyro, self._imu_b))
        else:
            quat = self._xquat[:, self.built.base_body_id].copy()
            gyro = np.zeros((self.num, 3))
            acc = np.einsum("nji,j->ni", rotation, -self.built.model.opt.gravity)
        return RobotState(
            stamp_ns=np.rint(self._time * 1e9).astype(np.int64),
            q=self._qpos[:, self._q].copy(),
            dq=self._qvel[:, self._dq].copy(),
            tau=self._effort[:, self._dq].copy(),
            quat_wb=quat,
            gyro_b=gyro,
            acc_b=acc,
        )

    def _foot_velocity(self, position: Array) -> Array:
        """``[N, F, 3]`` v = v_com + w x (p - com), from velocities about the robot's centre."""
        spatial = self._cvel[:, self._foot_body]  # angular, then linear
        arm = position - self._com[:, self._root, None]
        wx, wy, wz = spatial[..., 0], spatial[..., 1], spatial[..., 2]
        rx, ry, rz = arm[..., 0], arm[..., 1], arm[..., 2]
        out = spatial[..., 3:].copy()
        out[..., 0] += wy * rz - wz * ry
        out[..., 1] += wz * rx - wx * rz
        out[..., 2] += wx * ry - wy * rx
        return out

    def _touching(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Contact of each foot ``[N, F]``, and of anything else ``[N]``, with the floor."""
        if self._round_feet:
            feet = self._geom[:, self._foot_geom, 2] <= self.built.foot_radius
            return feet, self._contacts > feet.sum(axis=1)
        counts = self._sensors[:, self.built.foot_contact_adr]
        return counts > 0.0, self._sensors[:, self.built.contact_adr] > counts.sum(axis=1)

    def _diverged(self) -> NDArray[np.bool_]:
        """Anything MuJoCo warned of since the reset, or a number that is not finite."""
        warned = self.batch.warning[:, :, _NUMBER].any(axis=1)
        with np.errstate(over="ignore", invalid="ignore"):
            # A sum is finite only if all of its parts are.
            total = self.batch.state.sum(axis=1)
        return self._failed | warned | ~np.isfinite(total)

    # -------------------------------------------------------------- keeping

    def state_dict(self) -> State:
        """Everything a bit-exact continuation needs, copied."""
        return {
            "state": self.batch.state.copy(),
            "warning": self.batch.warning.copy(),
            "failed": self._failed.copy(),
            # Forces belong to the last substep, which is over; only the outputs still hold them.
            "qacc": self._qacc.copy(),
            "qfrc_actuator": self._effort.copy(),
            **{f"servos/{key}": values for key, values in self.servos.state_dict().items()},
            **{f"field/{name}": values.copy() for name, values in self._fields.items()},
        }

    def load_state_dict(self, state: State) -> None:
        """Continue where :meth:`state_dict` was taken, in an engine of the same robot and N.

        Raises:
            FerryError: the state is of another number of worlds, robot or delay buffer.
        """
        found = state["state"].shape
        if found != self.batch.state.shape:
            raise FerryError(
                f"engine state has shape {found}; expected {self.batch.state.shape} for "
                f"{self.num} worlds of {self.robot.name!r} with delays up to "
                f"{self.built.delay_max_s} s"
            )
        for name, values in _under(state, "field/").items():
            self.field(name)[...] = values
        self.servos.load_state_dict(_under(state, "servos/"))
        self._failed[...] = state["failed"]
        self.batch.set_const()
        self.batch.state[...] = state["state"]
        self.batch.forward(stage=_STAGE_VEL)
        self.batch.warning[...] = state["warning"]
        for output, key in ((self._qacc, "qacc"), (self._effort, "qfrc_actuator")):
            output.flags.writeable = True
            output[...] = state[key]
            output.flags.writeable = False

    def close(self) -> None:
        """Let go of threads and worlds. May be called twice; nothing else may follow."""
        for name in set(vars(self)) - {"robot", "num", "threads", "built"}:
            delattr(self, name)


def _under(state: State, prefix: str) -> State:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def _quiet_log() -> None:
    config = mujoco.MjLogConfig.get()
    config.logto_file = False
    config.logto_console = False
    mujoco.MjLogConfig.set(config)
