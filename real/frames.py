"""Rotations and directions, for arrays of robots.

Quaternions are ``wxyz``, unit length, and named by what they turn: ``quat_wb`` takes a vector
given in the base frame ``b`` to the world frame ``w``. Every function broadcasts over leading
axes, so ``[N, 4]`` and ``[4]`` both work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

IDENTITY: Array = np.array([1.0, 0.0, 0.0, 0.0])


def _join(*parts: Array) -> Array:
    """Arrays ``[...]`` side by side, ``[..., K]``: np.stack, in half its time."""
    out = np.empty((*parts[0].shape, len(parts)))
    for column, part in enumerate(parts):
        out[..., column] = part
    return out


def normalize(quat: ArrayLike) -> Array:
    """Scale quaternions to unit length.

    Args:
        quat: ``[..., 4]`` wxyz. A zero quaternion gives NaN, so that a sensor that has not
            reported yet is seen as not finite instead of as "upright".

    Returns:
        ``[..., 4]``.
    """
    q = np.asarray(quat, dtype=np.float64)
    # Row by row: np.linalg.norm takes three times as long for a few hundred quaternions.
    length = np.sqrt(np.einsum("...i,...i->...", q, q))
    with np.errstate(invalid="ignore", divide="ignore"):
        return q / length[..., None]


def conjugate(quat: ArrayLike) -> Array:
    """Inverse of unit quaternions ``[..., 4]`` wxyz."""
    return np.asarray(quat, dtype=np.float64) * np.array([1.0, -1.0, -1.0, -1.0])


def multiply(left: ArrayLike, right: ArrayLike) -> Array:
    """Hamilton product: the rotation ``right`` followed by ``left``; ``[..., 4]`` wxyz."""
    a = np.asarray(left, dtype=np.float64)
    b = np.asarray(right, dtype=np.float64)
    aw, ax, ay, az = a[..., 0], a[..., 1], a[..., 2], a[..., 3]
    bw, bx, by, bz = b[..., 0], b[..., 1], b[..., 2], b[..., 3]
    return _join(
        aw * bw - ax * bx - ay * by - az * bz,
        aw * bx + ax * bw + ay * bz - az * by,
        aw * by - ax * bz + ay * bw + az * bx,
        aw * bz + ax * by - ay * bx + az * bw,
    )


#: Rows of (w, x, y, z, -w, -x, -y, -z) that multiply each number of u in (w, x, y, z) (0, u).
_SMALL_TURN = np.array([[5, 0, 3, 6], [6, 7, 0, 1], [7, 2, 5, 0]])


def turn_slightly(quat_wb: Array, turn_b: Array) -> Array:
    """Attitudes turned by small rotation vectors in the base frame: q (1, e / 2), normalised.

    As :func:`multiply` and :func:`normalize` one after the other, in a quarter of their array
    operations.

    Args:
        quat_wb: ``[N, 4]`` wxyz.
        turn_b: ``[N, 3]`` e [rad].

    Returns:
        ``[N, 4]``, each number of all N side by side in memory.
    """
    q = quat_wb.T
    signed = np.concatenate([q, -q])
    # q (1, u) = q + q (0, u), of which three products each are added up.
    products = signed.take(_SMALL_TURN, axis=0)  # [3, 4, N]
    products *= (0.5 * turn_b.T)[:, None]
    out = np.add.reduce(products, axis=0)
    out += q
    with np.errstate(invalid="ignore", divide="ignore"):
        out /= np.sqrt(np.add.reduce(out * out, axis=0))
    return out.T


def rotate(quat_ab: ArrayLike, vector_b: ArrayLike) -> Array:
    """Express vectors of frame ``b`` in frame ``a``; ``[..., 4]``, ``[..., 3] -> [..., 3]``.

    v_a = v + 2 w (u x v) + 2 u x (u x v), with quat = (w, u).
    """
    q = np.asarray(quat_ab, dtype=np.float64)
    w, x, y, z = q[..., 0], q[..., 1], q[..., 2], q[..., 3]
    v = np.asarray(vector_b, dtype=np.float64)
    vx, vy, vz = v[..., 0], v[..., 1], v[..., 2]
    # t = 2 (u x v)
    tx = 2.0 * (y * vz - z * vy)
    ty = 2.0 * (z * vx - x * vz)
    tz = 2.0 * (x * vy - y * vx)
    # v + w t + u x t
    return _join(
        vx + w * tx + y * tz - z * ty,
        vy + w * ty + z * tx - x * tz,
        vz + w * tz + x * ty - y * tx,
    )


def rotate_inverse(quat_ab: ArrayLike, vector_a: ArrayLike) -> Array:
    """Express vectors of frame ``a`` in frame ``b``; the inverse of :func:`rotate`."""
    return rotate(conjugate(quat_ab), vector_a)


def about(axis: ArrayLike, angle: ArrayLike) -> Array:
    """Rotations about a unit vector ``[3]`` by angles [rad]; ``[...] -> [..., 4]`` wxyz."""
    half = 0.5 * np.asarray(angle, dtype=np.float64)[..., None]
    return np.concatenate([np.cos(half), np.sin(half) * np.asarray(axis)], axis=-1)


def projected_gravity(quat_wb: ArrayLike) -> Array:
    """Direction of gravity in the base frame, unit length; ``[..., 4] -> [..., 3]``.

    Upright gives (0, 0, -1). It is the third row of the rotation matrix, negated.
    """
    q = np.asarray(quat_wb, dtype=np.float64)
    if q.shape == (1, 4):
        # One robot: plain numbers give the same bits in a fifth of the time.
        w, x, y, z = q[0].tolist()
        row = (2.0 * (w * y - x * z), -2.0 * (y * z + w * x), 2.0 * (x * x + y * y) - 1.0)
        return np.array([row])
    w, x, y, z = q[..., 0], q[..., 1], q[..., 2], q[..., 3]
    return _join(2.0 * (w * y - x * z), -2.0 * (y * z + w * x), 2.0 * (x * x + y * y) - 1.0)


def tilt(quat_wb: ArrayLike) -> Array:
    """Angle between the base's z axis and the world's [rad], in [0, pi]; ``[..., 4] -> [...]``."""
    return np.arccos(np.clip(-projected_gravity(quat_wb)[..., 2], -1.0, 1.0))


def yaw(quat_wb: ArrayLike) -> Array:
    """Heading about the world's z axis [rad], in (-pi, pi]; ``[..., 4] -> [...]``."""
    q = np.asarray(quat_wb, dtype=np.float64)
    w, x, y, z = q[..., 0], q[..., 1], q[..., 2], q[..., 3]
    return np.arctan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))


def from_rpy(rpy: ArrayLike) -> Array:
    """Quaternion of URDF's fixed-axis roll, pitch, yaw [rad]; ``[..., 3] -> [..., 4]`` wxyz.

    R = Rz(yaw) Ry(pitch) Rx(roll), as in the URDF specification of ``<origin rpy>``.
    """
    half = 0.5 * np.asarray(rpy, dtype=np.float64)
    (cr, cp, cy), (sr, sp, sy) = (
        np.moveaxis(np.cos(half), -1, 0),
        np.moveaxis(np.sin(half), -1, 0),
    )
    return np.stack(
        [
            cr * cp * cy + sr * sp * sy,
            sr * cp * cy - cr * sp * sy,
            cr * sp * cy + sr * cp * sy,
            cr * cp * sy - sr * sp * cy,
        ],
        axis=-1,
    )


def to_matrix(quat_ab: ArrayLike) -> Array:
    """Rotation matrices ``R_ab`` with ``v_a = R_ab v_b``; ``[..., 4] -> [..., 3, 3]``."""
    q = np.asarray(quat_ab, dtype=np.float64)
    basis = np.eye(3)
    columns = [rotate(q, np.broadcast_to(basis[i], (*q.shape[:-1], 3))) for i in range(3)]
    return np.stack(columns, axis=-1)


def to_rpy(quat_ab: ArrayLike) -> tuple[float, float, float]:
    """Roll, pitch, yaw [rad] of one rotation, the inverse of :func:`from_rpy`.

    R = Rz(yaw) Ry(pitch) Rx(roll); yaw is 0 where it is not unique, at pitch +-90 degrees.
    """
    r = to_matrix(quat_ab)
    if abs(r[2, 0]) > 1.0 - 1e-12:  # pitch +-90 degrees: only roll -+ yaw is determined
        return math.atan2(-r[1, 2], r[1, 1]), math.copysign(math.pi / 2.0, -r[2, 0]), 0.0
    return (
        math.atan2(r[2, 1], r[2, 2]),
        math.asin(-r[2, 0]),
        math.atan2(r[1, 0], r[0, 0]),
    )


@dataclass(frozen=True)
class Pose:
    """A frame in another one: position ``[3]`` [m] and orientation ``[4]`` wxyz."""

    position: Array
    quat: Array

    def then(self, child: Pose) -> Pose:
        """The pose of ``child``, which is given in this frame, in this frame's parent."""
        return Pose(
            self.position + rotate(self.quat, child.position), multiply(self.quat, child.quat)
        )

    def inverse(self) -> Pose:
        """The parent in this frame."""
        back = conjugate(self.quat)
        return Pose(-rotate(back, self.position), back)
