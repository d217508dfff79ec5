"""Where the end effector of an arm is: forward kinematics along one chain of joints.

A chain is data, written into a policy's contract, so that a robot computer without any description
file computes the same pose from the same joint positions as the simulator did in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from real.frames import about, conjugate, multiply, rotate

Array = NDArray[np.float64]

#: Damping of :meth:`Kinematics.step_towards` [m and rad]: directions in which the whole arm moves
#: its end effector by less than this per radian are given up.
DAMPING = 0.05


@dataclass(frozen=True)
class ChainJoint:
    """A joint on the way from the base to the end effector.

    Attributes:
        name: of the joint.
        kind: ``hinge`` or ``slide``.
        position: of the joint's frame in the frame of the joint before, or in the base's [m].
        quat: its orientation there, wxyz.
        axis: about or along which it moves, in its own frame, unit length.
    """

    name: str
    kind: str
    position: tuple[float, float, float]
    quat: tuple[float, float, float, float]
    axis: tuple[float, float, float]


@dataclass(frozen=True)
class Chain:
    """From the base frame to a link.

    Attributes:
        link: the end effector.
        joints: on the way, from the base on.
        position: of the link in the frame of the last joint [m].
        quat: its orientation there, wxyz.
    """

    link: str
    joints: tuple[ChainJoint, ...]
    position: tuple[float, float, float]
    quat: tuple[float, float, float, float]


class Kinematics:
    """Poses of the end effector of N robots.

    Args:
        chain: the way to it.
        joints: names of the robot's J joints, in the order of its vectors.

    Raises:
        FerryError: a joint of the chain is not among them.
    """

    def __init__(self, chain: Chain, joints: Sequence[str]) -> None:
        missing = [joint.name for joint in chain.joints if joint.name not in joints]
        if missing:
            raise FerryError(
                f"the way to {chain.link!r} has joints {', '.join(missing)}, which are not among "
                f"the robot's: {', '.join(joints)}"
            )
        self.chain = chain
        self._joints = len(joints)
        self._columns = [joints.index(joint.name) for joint in chain.joints]
        self._position: list[Array] = [np.array(joint.position) for joint in chain.joints]
        self._quat: list[Array] = [np.array(joint.quat) for joint in chain.joints]
        self._axis: list[Array] = [np.array(joint.axis) for joint in chain.joints]
        self._slides = [joint.kind == "slide" for joint in chain.joints]
        self._tip: tuple[Array, Array] = (np.array(chain.position), np.array(chain.quat))

    def pose(self, q: Array) -> tuple[Array, Array]:
        """Position ``[N, 3]`` [m] and orientation ``[N, 4]`` wxyz in the base frame.

        Args:
            q: ``[N, J]`` joint positions [rad or m].
        """
        return self._walk(q)[:2]

    def step_towards(self, target: Array, q: Array) -> Array:
        """Joint motion that removes the error of the pose, to first order, ``[N, J]`` [rad or m].

        Damped least squares, dq = J^T (J J^T + d^2 1)^-1 e, which stays small where the arm cannot
        move in some direction (Nakamura and Hanafusa, "Inverse kinematic solutions with singularity
        robustness for robot manipulator control", 1986; Wampler 1986). Other joints get zero.

        Args:
            target: ``[N, 7]`` wanted position and orientation wxyz.
            q: ``[N, J]`` joint positions.
        """
        position, quat, places, axes = self._walk(q)
        error = pose_error(target, position, quat)
        jacobian = np.zeros((q.shape[0], 6, len(self._columns)))
        for index, (place, axis) in enumerate(zip(places, axes, strict=True)):
            if self._slides[index]:
                jacobian[:, :3, index] = axis
                continue
            # A turn about an axis moves the end effector across its lever: v = w x r
            jacobian[:, :3, index] = np.cross(axis, position - place)
            jacobian[:, 3:, index] = axis
        square = np.einsum("nij,nkj->nik", jacobian, jacobian) + DAMPING**2 * np.eye(6)
        out = np.zeros((q.shape[0], self._joints))
        inverse: Array = np.asarray(np.linalg.inv(square), dtype=np.float64)
        out[:, self._columns] = np.einsum("nij,nik,nk->nj", jacobian, inverse, error)
        return out

    def _walk(self, q: Array) -> tuple[Array, Array, list[Array], list[Array]]:
        """Pose of the end effector, and place and axis of every joint of the chain, base frame."""
        num = q.shape[0]
        places: list[Array] = []
        axes: list[Array] = []
        position = np.zeros((num, 3))
        quat = np.tile([1.0, 0.0, 0.0, 0.0], (num, 1))
        for index, column in enumerate(self._columns):
            position = position + rotate(quat, self._position[index])
            quat = multiply(quat, self._quat[index])
            places.append(position)
            axes.append(rotate(quat, self._axis[index]))
            if self._slides[index]:
                position = position + q[:, column, None] * axes[index]
                continue
            quat = multiply(quat, about(self._axis[index], q[:, column]))
        tip = position + rotate(quat, self._tip[0])
        return tip, multiply(quat, self._tip[1]), places, axes


def rotation_vector(quat_ab: Array) -> Array:
    """Axis times angle [rad] of rotations, the shorter way round; ``[..., 4] -> [..., 3]``.

    angle = 2 atan2(|v|, w) for w >= 0; for small rotations 2 v.
    """
    quat = np.where(quat_ab[..., :1] < 0.0, -quat_ab, quat_ab)
    vector = quat[..., 1:]
    length = np.linalg.norm(vector, axis=-1, keepdims=True)
    angle = 2.0 * np.arctan2(length, quat[..., :1])
    return vector * np.where(length > 1e-9, angle / np.maximum(length, 1e-9), 2.0)


def pose_error(target: Array, position: Array, quat: Array) -> Array:
    """What is missing to a pose: translation [m], then rotation vector [rad], in the base frame.

    Args:
        target: ``[N, 7]`` wanted position and orientation wxyz.
        position: ``[N, 3]`` where the end effector is.
        quat: ``[N, 4]`` how it stands.

    Returns:
        ``[N, 6]``.
    """
    turn = multiply(target[:, 3:], conjugate(quat))  # R* = turn R
    return np.concatenate([target[:, :3] - position, rotation_vector(turn)], axis=1)
