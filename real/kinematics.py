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
from real.frames import conjugate, multiply, rotate

Array = NDArray[np.float64]


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
        num = q.shape[0]
        position = np.zeros((num, 3))
        quat = np.tile([1.0, 0.0, 0.0, 0.0], (num, 1))
        for index, column in enumerate(self._columns):
            position = position + rotate(quat, self._position[index])
            quat = multiply(quat, self._quat[index])
            if self._slides[index]:
                position = position + rotate(quat, q[:, column, None] * self._axis[index])
                continue
            half = 0.5 * q[:, column]
            turn = np.empty((num, 4))
            turn[:, 0] = np.cos(half)
            turn[:, 1:] = np.sin(half)[:, None] * self._axis[index]
            quat = multiply(quat, turn)
        return position + rotate(quat, self._tip[0]), multiply(quat, self._tip[1])


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
