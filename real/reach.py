"""Poses as commands: what an arm is asked to reach, and which poses may be asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from real.kinematics import Chain, Kinematics
from real.spec import JointSpec

Array = NDArray[np.float64]

#: Numbers of a pose command and their units, in order.
POSE_NAMES = ("x", "y", "z", "qw", "qx", "qy", "qz")
POSE_UNITS = ("m", "m", "m", "1", "1", "1", "1")

#: Candidates of one draw. With one in ten inside the box, one draw in 500 finds none.
CANDIDATES = 64


@dataclass(frozen=True)
class Reach:
    """What a pose command is about.

    Attributes:
        chain: the way from the base frame to the link that shall reach the pose.
        share: of each joint's range about the default pose, where commanded poses are from.
    """

    chain: Chain
    share: float


class ReachSpace:
    """The poses that an arm can be asked for, drawn by forward kinematics so that it can get there.

    Args:
        reach: chain and share.
        joints: all J joints of the robot.
        low: ``[3]`` lower corner of the box that positions are in, base frame [m].
        high: ``[3]`` upper corner.

    Attributes:
        kinematics: of the chain.
        rest: ``[7]`` the pose of the default joint positions.
    """

    def __init__(
        self,
        reach: Reach,
        joints: Sequence[JointSpec],
        *,
        low: Sequence[float],
        high: Sequence[float],
    ) -> None:
        self.kinematics = Kinematics(reach.chain, [j.name for j in joints])
        self._low, self._high = np.array(low[:3]), np.array(high[:3])
        self._q_default: Array = np.array([j.q_default for j in joints])
        # A joint without a stop may turn half around either way.
        ends = [(j.q_min, j.q_max) for j in joints]
        span = [(a, b) if np.isfinite(a) and np.isfinite(b) else (-np.pi, np.pi) for a, b in ends]
        self._q_low: Array = self._q_default + reach.share * (
            np.array([a for a, _ in span]) - self._q_default
        )
        self._q_high: Array = self._q_default + reach.share * (
            np.array([b for _, b in span]) - self._q_default
        )
        self.rest: Array = self._poses(self._q_default[None])[0]

    def _poses(self, q: Array) -> Array:
        position, quat = self.kinematics.pose(q)
        # q and -q are one orientation; a network shall see one of them.
        return np.concatenate([position, np.where(quat[:, :1] < 0.0, -quat, quat)], axis=1)

    def draw(self, rngs: Sequence[np.random.Generator]) -> Array:
        """A pose for each of n worlds from its own generator, ``[n, 7]``.

        The first of :data:`CANDIDATES` joint positions, uniform in their ranges, whose pose is in
        the box; the pose of the default joint positions where none is.
        """
        joints = len(self._q_default)
        share = np.stack([rng.random((CANDIDATES, joints)) for rng in rngs])  # [n, K, J]
        q = self._q_low + share * (self._q_high - self._q_low)
        poses = self._poses(q.reshape(-1, joints)).reshape(len(rngs), CANDIDATES, 7)
        inside = self.inside(poses)  # [n, K]
        first = inside.argmax(axis=1)
        chosen = poses[np.arange(len(rngs)), first]
        return np.where(inside.any(axis=1, keepdims=True), chosen, self.rest)

    def inside(self, poses: Array) -> NDArray[np.bool_]:
        """Whether the positions of ``[..., 7]`` are in the box."""
        position = poses[..., :3]
        within: NDArray[np.bool_] = (position >= self._low) & (position <= self._high)
        return np.logical_and.reduce(within, axis=-1)

    def share_inside(self, rng: np.random.Generator, *, samples: int = 500) -> float:
        """Share of drawn joint positions whose pose is in the box."""
        share = rng.random((samples, len(self._q_default)))
        q = self._q_low + share * (self._q_high - self._q_low)
        return float(self.inside(self._poses(q)).mean())

    def usable(self, command: Array) -> Array:
        """Commands ``[N, 7]`` as a policy may be given them.

        Positions are brought into the box and quaternions to unit length. What is no pose (not
        finite, or without an orientation) is nobody's command: the arm goes to its default pose.
        """
        length = np.linalg.norm(command[:, 3:], axis=1)
        finite = np.isfinite(command.sum(axis=1, keepdims=True))
        safe: Array = np.where(finite & (length[:, None] > 1e-3), command, self.rest)
        quat: Array = safe[:, 3:] / np.linalg.norm(safe[:, 3:], axis=1, keepdims=True)
        quat = np.where(quat[:, :1] < 0.0, -quat, quat)
        return np.concatenate([np.clip(safe[:, :3], self._low, self._high), quat], axis=1)
