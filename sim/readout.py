"""What is true of N MuJoCo worlds after a step, read from the batch in few array operations.

Derived once per control step from what MuJoCo computes anyway, instead of by its sensors, which
run in every physics step: measured on A1 (256 worlds, 2 threads), sensors for IMU and feet cost 3
to 6 % of a step, this about 2 %.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from mujoco import batch as mujoco_batch
from numpy.typing import NDArray

from real.signals import RobotState
from sim.actuators import as_index
from sim.engine import Array, Ids, WorldState
from sim.model import MujocoModel

Mask = NDArray[np.bool_]
Rows = slice | Ids

_NUMBER = 1  # column of mjWarningStat that counts


class Readout:
    """Reads the worlds of a batch.

    A contact between a sphere and a level floor exists exactly when the sphere reaches below it, so
    spherical feet need no contact sensor, and the contacts of a world beyond those of its feet
    belong to its body. Feet of other shapes, or on terrain, are felt by the model's contact
    sensors, which belong to the start of the last physics step.

    Args:
        built: the model.
        batch: its worlds.

    Attributes:
        needs_sensors: whether the model's sensors must run.
        gravity: ``[3]``, or ``[N, 3]`` where it differs between worlds [m/s^2].
    """

    def __init__(self, built: MujocoModel, batch: mujoco_batch.Batch) -> None:
        self._built = built
        self._batch = batch
        self.gravity: Array = built.model.opt.gravity.copy()
        self._fixed = built.base_dof_adr < 0
        self.needs_sensors: bool = needs_sensors(built)
        self._bind()
        self._locate()

    def _bind(self) -> None:
        """Register every field once; the arrays stay live."""
        batch, model = self._batch, self._built.model
        # An integration state begins with time, qpos and qvel: all that moves, side by side.
        self._motion: Array = batch.state[:, : 1 + model.nq + model.nv]
        self.qacc: Array = batch.bind("qacc")
        self.effort: Array = batch.bind("qfrc_actuator")
        self._xmat: Array = batch.bind("xmat").reshape(batch.nsim, -1)
        self._cvel: Array = batch.bind("cvel")
        self._com: Array = batch.bind("subtree_com")
        self._site: Array = batch.bind("site_xpos")
        self._contacts: NDArray[np.int32] = batch.bind("ncon")
        if self._fixed:
            self._xpos: Array = batch.bind("xpos")
            self._xquat: Array = batch.bind("xquat")
        if self.needs_sensors:
            self._sensors: Array = batch.bind("sensordata")

    def _locate(self) -> None:
        """Where the robot's things are in MuJoCo, and which rows of a block they get."""
        built, model = self._built, self._built.model
        self._dof = as_index(built.joint_dof_adr)
        self._base = built.base_body_id
        self._turns = slice(9 * self._base, 9 * self._base + 9)
        self._root = int(model.body_rootid[self._base])
        self._foot_site = as_index(built.foot_site_ids)
        self._foot_geom = as_index(built.foot_geom_ids)
        # Of most feet the sphere is about the origin of the link, where the site is.
        self._foot_is_site = _alike(built, built.foot_site_ids, built.foot_geom_ids)
        if not (self._foot_is_site or self.needs_sensors):
            self._geom: Array = self._batch.bind("geom_xpos")
        self._foot_body = as_index(model.site_bodyid[built.foot_site_ids].astype(np.intp))
        self._foot_radius: Array = np.asarray(built.foot_radius, dtype=np.float64)[:, None]
        self._imu_b: Array = model.site_pos[model.site("imu").id].copy()
        self._imu_off_base = bool(self._imu_b.any())
        # Motion comes as it is.
        velocities = 1 + model.nq
        self._moves = slice(0, velocities + model.nv)
        self._q = as_index(1 + built.joint_qpos_adr)
        self._dq = as_index(velocities + built.joint_dof_adr)
        # What is derived follows.
        feet = len(built.foot_site_ids)
        places = _stack(self._moves.stop, 3, 3, 3, len(built.joint_dof_adr), 3 * feet, 3 * feet)
        self._lin_vel, self._force, self._down, self._tau, self._foot, self._foot_velocity = places
        self._vectors = slice(self._lin_vel.start, self._force.stop)
        self._size = self._foot_velocity.stop
        if self._fixed:
            self._position, self._quat, self._gyro = _stack(self._size, 3, 4, 3)
            self._size = self._gyro.stop
        else:
            q, dq = 1 + built.base_qpos_adr, velocities + built.base_dof_adr
            # A free joint's linear velocity is the world's, its angular velocity the body's.
            self._position, self._quat = slice(q, q + 3), slice(q + 3, q + 7)
            self._linear_w, self._gyro = slice(dq, dq + 3), slice(dq + 3, dq + 6)

    def world(self, rows: Ids | None = None, *, failed: Mask | None = None) -> WorldState:
        """The state of worlds, in new arrays.

        All numbers are parts of one block ``[K, N]``, a row for each number of a world: what is
        done to one number of all worlds is then done to memory in one piece, and one look at the
        block tells whether anything in it is broken.

        Args:
            rows: which; all N if None.
            failed: ``[N]`` worlds in which MuJoCo raised an error; None for none.
        """
        at = slice(None) if rows is None else rows
        motion = self._motion[at]
        block = np.empty((self._size, len(motion)))
        block[self._moves] = motion.T
        block[self._tau] = self.effort[at][:, self._dof].T
        if self._fixed:
            block[self._position] = self._xpos[at, self._base].T
            block[self._quat] = self._xquat[at, self._base].T
            block[self._gyro] = 0.0
        stamp_ns = np.empty(len(motion), dtype=np.int64)
        with np.errstate(over="ignore", invalid="ignore"):  # what is broken is found at the end
            self._turn(at, block)
            foot_position, foot_velocity = self._feet(at, block)
            foot_contact, body_contact = self._touching(at, foot_position[2])
            stamp_ns[...] = block[0] * 1e9 + 0.5  # time is positive: this rounds
            diverged = self._diverged(at, block)
        if failed is not None:
            diverged |= failed[at]
        robot = RobotState(
            stamp_ns=stamp_ns,
            q=block[self._q].T,
            dq=block[self._dq].T,
            tau=block[self._tau].T,
            quat_wb=block[self._quat].T,
            gyro_b=block[self._gyro].T,
            acc_b=block[self._force].T,
        )
        return WorldState(
            robot=robot,
            position_w=block[self._position].T,
            lin_vel_b=block[self._lin_vel].T,
            foot_position_w=foot_position.transpose(2, 1, 0),
            foot_velocity_w=foot_velocity.transpose(2, 1, 0),
            foot_contact=foot_contact,
            body_contact=body_contact,
            diverged=diverged,
            gravity_b=block[self._down].T,
        )

    def _turn(self, at: Rows, block: Array) -> None:
        """Velocity of the base and what an accelerometer feels, in the base frame.

        The latter is R^T (a - g) + alpha x r + w x (w x r).
        """
        num = block.shape[1]
        rotation = self._xmat[at, self._turns].T.reshape(3, 3, num)  # [world, base, N]
        vectors_w = np.empty((2, 3, num))
        gravity = self.gravity[:, None] if self.gravity.ndim == 1 else self.gravity[at].T
        if self._fixed:
            vectors_w[0], vectors_w[1] = 0.0, -gravity
        else:
            first = self._built.base_dof_adr
            vectors_w[0] = block[self._linear_w]
            np.subtract(self.qacc[at, first : first + 3].T, gravity, out=vectors_w[1])
        np.multiply(rotation[2], -1.0, out=block[self._down])
        # v_b = R^T v_w of both at once; a sum of three has one order, whatever N is.
        vectors_b = block[self._vectors].reshape(2, 3, num)
        np.add.reduce(rotation * vectors_w[:, :, None], axis=1, out=vectors_b)
        if self._imu_off_base and not self._fixed:
            first = self._built.base_dof_adr
            alpha, gyro = self.qacc[at, first + 3 : first + 6], block[self._gyro].T
            turned = _cross(alpha, self._imu_b) + _cross(gyro, _cross(gyro, self._imu_b))
            block[self._force] += turned.T

    def _feet(self, at: Rows, block: Array) -> tuple[Array, Array]:
        """Positions and velocities of the feet in the world frame, ``[3, F, N]`` each.

        v = v_com + w x (p - com), from velocities about the robot's centre.
        """
        shape = (3, -1, block.shape[1])
        position = block[self._foot].reshape(shape)
        velocity = block[self._foot_velocity].reshape(shape)
        position[...] = self._site[at][:, self._foot_site].transpose(2, 1, 0)
        # Two rows again, so that (y, z, x) and (z, x, y) are slices of y z x y z.
        arm, spin = np.empty((2, 5, *position.shape[1:]))
        np.subtract(position, self._com[at][:, self._root].T[:, None], out=arm[2:])
        arm[:2] = arm[3:]
        spatial = self._cvel[at][:, self._foot_body].transpose(2, 1, 0)  # angular, then linear
        spin[2:] = spatial[:3]
        spin[:2] = spin[3:]
        np.multiply(spin[:3], arm[1:4], out=velocity)
        velocity -= spin[1:4] * arm[:3]
        velocity += spatial[3:]
        return position, velocity

    def _touching(self, at: Rows, height: Array) -> tuple[Mask, Mask]:
        """Contact of each foot ``[N, F]``, and of anything else ``[N]``, with the floor.

        ``height [F, N]`` is that of the feet's sites.
        """
        if self.needs_sensors:
            counts = self._sensors[at][:, self._built.foot_contact_adr]
            everything = self._sensors[at][:, self._built.contact_adr]
            return counts > 0.0, everything > counts.sum(axis=1)
        if not self._foot_is_site:
            height = np.ascontiguousarray(self._geom[at][:, self._foot_geom, 2].T)
        feet = height <= self._foot_radius
        # Counted in floating point, as the rest is: integers would be code of their own.
        count = np.empty(height.shape)
        count[...] = feet
        return feet.T, np.add.reduce(count, axis=0) < self._contacts[at]

    def _diverged(self, at: Rows, block: Array) -> Mask:
        """Anything MuJoCo warned of since the reset, or numbers that are not finite."""
        warnings = self._batch.warning[at]
        total = float(np.add.reduce(block, axis=None))  # finite only if all its parts are
        if math.isfinite(total) and not np.count_nonzero(warnings):
            return np.zeros(block.shape[1], dtype=bool)
        return warnings[:, :, _NUMBER].any(axis=1) | ~np.isfinite(block).all(axis=0)

    def restore_forces(self, qacc: Array, effort: Array) -> None:
        """Put back what belonged to the last physics step of a saved batch.

        That step is over and only these outputs, which MuJoCo writes after every call, hold it.
        """
        for output, values in ((self.qacc, qacc), (self.effort, effort)):
            output.flags.writeable = True
            output[...] = values
            output.flags.writeable = False


def _cross(a: Array, b: Array) -> Array:
    """``a x b`` over the last axis; several times as fast as ``np.cross`` for some hundred rows."""
    ax, ay, az = a[..., 0], a[..., 1], a[..., 2]
    bx, by, bz = b[..., 0], b[..., 1], b[..., 2]
    out = np.empty(np.broadcast_shapes(a.shape, b.shape))
    out[..., 0] = ay * bz - az * by
    out[..., 1] = az * bx - ax * bz
    out[..., 2] = ax * by - ay * bx
    return out


def _alike(built: MujocoModel, sites: Ids, geoms: Ids) -> bool:
    """Whether the middles of geoms are where these sites are, always."""
    model = built.model
    same = (model.site_pos[sites] == model.geom_pos[geoms]).all()
    return bool(same and (model.site_bodyid[sites] == model.geom_bodyid[geoms]).all())


def _stack(start: int, *sizes: int) -> list[slice]:
    """Slices of these sizes, one after the other from ``start`` on."""
    ends = np.cumsum([start, *sizes]).tolist()
    return [slice(low, high) for low, high in itertools.pairwise(ends)]


def needs_sensors(built: MujocoModel) -> bool:
    """Whether contact must be asked from sensors: a foot is no sphere, or the floor no plane."""
    return built.model.nhfield > 0 or not bool(np.isfinite(built.foot_radius).all())
