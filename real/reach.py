"""Poses as commands: which poses an arm may be asked for, and when one counts as reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from real.kinematics import Chain, Kinematics, pose_error
from real.spec import JointSpec

Array = NDArray[np.float64]

#: Numbers of a pose command and their units, in order.
POSE_NAMES = ("x", "y", "z", "qw", "qx", "qy", "qz")
POSE_UNITS = ("m", "m", "m", "1", "1", "1", "1")

#: Candidates of one draw. With one in ten inside the box, one draw in 500 finds none.
CANDIDATES = 64

#: A pose is reached within this of its position [m] and orientation [rad].
REACHED_M, REACHED_RAD = 0.02, 0.1

#: A pose is reached if it is kept for this long at the end of its time [s], and counts if it was
#: commanded for at least the other.
HELD_S, FAIR_S = 0.2, 2.5


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


def reached(error: Array) -> NDArray[np.bool_]:
    """Whether poses are reached; NaN is not.

    Args:
        error: ``[..., 6]``, see :func:`real.kinematics.pose_error`.
    """
    near = np.linalg.norm(error[..., :3], axis=-1) <= REACHED_M
    return near & (np.linalg.norm(error[..., 3:], axis=-1) <= REACHED_RAD)


def fair_spans(command: Array, *, steps: int) -> list[tuple[int, int]]:
    """Where in ``[T, 7]`` each command begins and ends, of those that are kept for ``steps``."""
    new = (command[1:] != command[:-1]).any(axis=1)
    ends = [*(np.flatnonzero(new) + 1).tolist(), command.shape[0]]
    starts = [0, *ends[:-1]]
    return [(a, b) for a, b in zip(starts, ends, strict=True) if b - a >= steps]


def poses_reached(command: Array, q: Array, kinematics: Kinematics, *, dt_s: float) -> Array:
    """Share of commanded poses that N episodes of equal length reached and kept.

    A command counts as reached if the end effector is within 2 cm and 0.1 rad of it in each of the
    last :data:`HELD_S` of its time. Commands of less than :data:`FAIR_S` do not count: the end of
    an episode may cut one short.

    Args:
        command: ``[T, N, 7]``, in force during each step.
        q: ``[T, N, J]`` at the end of each step [rad or m]; NaN is nowhere.
        kinematics: of the end effector.
        dt_s: control period [s].

    Returns:
        ``[N]`` in [0, 1].

    Raises:
        FerryError: no command of an episode lasts long enough.
    """
    steps, num = command.shape[:2]
    pose = kinematics.pose(q.reshape(steps * num, -1))
    good = reached(pose_error(command.reshape(steps * num, 7), *pose)).reshape(steps, num)
    held, fair = max(1, round(HELD_S / dt_s)), round(FAIR_S / dt_s)
    scores = np.empty(num)
    for episode in range(num):
        spans = fair_spans(command[:, episode], steps=max(fair, held))
        if not spans:
            raise FerryError(
                f"no pose was commanded for {FAIR_S:g} s in {steps} steps of {dt_s} s; score "
                "longer runs"
            )
        scores[episode] = np.mean([good[b - held : b, episode].all() for _, b in spans])
    return scores
