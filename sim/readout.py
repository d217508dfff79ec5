"""What is true of N MuJoCo worlds after a step, read from the batch in few array operations.

Derived once per control step from what MuJoCo computes anyway, instead of by its sensors, which
run in every physics step: measured on A1 (256 worlds, 2 threads), sensors for IMU and feet cost 3
to 6 % of a step, this about 2 %.
"""

from __future__ import annotations

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
        self._xmat: Array = batch.bind("xmat").reshape(batch.nsim, -1, 3, 3)
        self._cvel: Array = batch.bind("cvel")
        self._com: Array = batch.bind("subtree_com")
        self._site: Array = batch.bind("site_xpos")
        self._geom: Array = batch.bind("geom_xpos")
        self._contacts: NDArray[np.int32] = batch.bind("ncon")
        if self._fixed:
            self._xpos: Array = batch.bind("xpos")
            self._xquat: Array = batch.bind("xquat")
        if self.needs_sensors:
            self._sensors: Array = batch.bind("sensordata")

    def _locate(self) -> None:
        """Where the robot's things are; columns of motion for positions and velocities."""
        built = self._built
        velocities = 1 + built.model.nq
        self._q = as_index(1 + built.joint_qpos_adr)
        self._dq = as_index(velocities + built.joint_dof_adr)
        self._dof = as_index(built.joint_dof_adr)
        self._base_q = 1 + built.base_qpos_adr
        self._base_dq = velocities + built.base_dof_adr
        self._base = built.base_body_id
        self._root = int(built.model.body_rootid[self._base])
        self._foot_site = as_index(built.foot_site_ids)
        self._foot_geom = as_index(built.foot_geom_ids)
        self._foot_body = as_index(built.model.site_bodyid[built.foot_site_ids].astype(np.intp))
        self._imu_b: Array = built.model.site_pos[built.model.site("imu").id].copy()
        self._imu_off_base = bool(self._imu_b.any())

    def world(self, rows: Ids | None = None, *, failed: Mask) -> WorldState:
        """The state of worlds, in new arrays.

        Args:
            rows: which; all N if None.
            failed: ``[N]`` worlds in which MuJoCo raised an error.
        """
        at = slice(None) if rows is None else rows
        # One copy fetches what other threads wrote; most of the rest reads from it.
        motion = self._motion[at].copy()
        rotation = self._xmat[at, self._base]  # [N, 3, 3], v_w = R v_b
        if self._fixed:
            position = self._xpos[at, self._base].copy()
            quat = self._xquat[at, self._base].copy()
            gyro, lin_vel_b = np.zeros((2, len(motion), 3))
        else:
            # A free joint's linear velocity is the world's, its angular velocity the body's.
            position = motion[:, self._base_q : self._base_q + 3]
            quat = motion[:, self._base_q + 3 : self._base_q + 7]
            gyro = motion[:, self._base_dq + 3 : self._base_dq + 6]
            linear_w = motion[:, self._base_dq : self._base_dq + 3]
            lin_vel_b = np.einsum("nji,nj->ni", rotation, linear_w)
        with np.errstate(invalid="ignore"):  # a broken time is found below
            stamp_ns = np.rint(motion[:, 0] * 1e9).astype(np.int64)
        foot_position = self._site[at][:, self._foot_site].copy()
        foot_contact, body_contact = self._touching(at)
        return WorldState(
            robot=RobotState(
                stamp_ns=stamp_ns,
                q=motion[:, self._q],
                dq=motion[:, self._dq],
                tau=self.effort[at][:, self._dof].copy(),
                quat_wb=quat,
                gyro_b=gyro,
                acc_b=self._specific_force(at, rotation, gyro),
            ),
            position_w=position,
            lin_vel_b=lin_vel_b,
            foot_position_w=foot_position,
            foot_velocity_w=self._foot_velocity(at, foot_position),
            foot_contact=foot_contact,
            body_contact=body_contact,
            diverged=self._diverged(at, motion) | failed[at],
        )

    def _specific_force(self, at: Rows, rotation: Array, gyro: Array) -> Array:
        """``[N, 3]`` what an accelerometer feels: R^T (a - g) + alpha x r + w x (w x r)."""
        gravity = self.gravity if self.gravity.ndim == 1 else self.gravity[at]
        if self._fixed:
            return np.einsum("nji,nj->ni", rotation, np.broadcast_to(-gravity, (len(gyro), 3)))
        first = self._built.base_dof_adr
        acceleration = self.qacc[at]
        force_w = acceleration[:, first : first + 3] - gravity
        force_b = np.einsum("nji,nj->ni", rotation, force_w)
        if self._imu_off_base:
            alpha = acceleration[:, first + 3 : first + 6]
            force_b += _cross(alpha, self._imu_b) + _cross(gyro, _cross(gyro, self._imu_b))
        return force_b

    def _foot_velocity(self, at: Rows, position: Array) -> Array:
        """``[N, F, 3]`` v = v_com + w x (p - com), from velocities about the robot's centre."""
        # Angular, then linear, each number of all feet side by side: [6, F, N].
        spatial = self._cvel[at][:, self._foot_body].transpose(2, 1, 0).copy()
        (wx, wy, wz), velocity = spatial[:3], spatial[3:]
        rx, ry, rz = position.transpose(2, 1, 0) - self._com[at][:, self._root].T[:, None]
        velocity[0] += wy * rz - wz * ry
        velocity[1] += wz * rx - wx * rz
        velocity[2] += wx * ry - wy * rx
        return velocity.T

    def _touching(self, at: Rows) -> tuple[Mask, Mask]:
        """Contact of each foot ``[N, F]``, and of anything else ``[N]``, with the floor."""
        if self.needs_sensors:
            counts = self._sensors[at][:, self._built.foot_contact_adr]
            everything = self._sensors[at][:, self._built.contact_adr]
            return counts > 0.0, everything > counts.sum(axis=1)
        feet = self._geom[at][:, self._foot_geom, 2] <= self._built.foot_radius
        # No robot has so many feet that a byte could not count them.
        return feet, self._contacts[at] > np.einsum("nf->n", feet.view(np.int8))

    def _diverged(self, at: Rows, motion: Array) -> Mask:
        """Anything MuJoCo warned of since the reset, or motion that is not finite."""
        warnings = self._batch.warning[at]
        with np.errstate(over="ignore", invalid="ignore"):
            total = float(np.add.reduce(motion, axis=None))  # finite only if all its parts are
            if math.isfinite(total) and not np.count_nonzero(warnings):
                return np.zeros(len(motion), dtype=bool)
            return warnings[:, :, _NUMBER].any(axis=1) | ~np.isfinite(motion.sum(axis=1))

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


def needs_sensors(built: MujocoModel) -> bool:
    """Whether contact must be asked from sensors: a foot is no sphere, or the floor no plane."""
    return built.model.nhfield > 0 or not bool(np.isfinite(built.foot_radius).all())
