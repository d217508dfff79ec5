"""Reward terms for arms: the end effector and the pose it is asked to reach.

As in :mod:`sim.reward_terms`, terms are pure functions and unwanted things are positive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from real.errors import ConfigError
from real.kinematics import Kinematics, pose_error
from real.reach import reached
from sim.reward_terms import RewardInput

Array = NDArray[np.float64]
Ids = NDArray[np.intp]


@dataclass(frozen=True)
class ReachInput:
    """What the end effectors of N worlds did in one control step, base frame.

    Attributes:
        error: ``[N, 6]`` what is missing to the commanded pose: translation [m], rotation [rad].
        before: ``[N, 6]`` what was missing to the same pose one step earlier; of a step that began
            an episode, the same as ``error``.
        velocity: ``[N, 3]`` of the end effector over the step [m/s].
        acceleration: ``[N, 3]`` change of that velocity over the step [m/s^2].
    """

    error: Array
    before: Array
    velocity: Array
    acceleration: Array


class ReachMeasure:
    """Follows the end effectors of N worlds from step to step.

    Args:
        kinematics: of the end effector.
        num: N.
        dt: control period [s].
    """

    def __init__(self, kinematics: Kinematics, num: int, *, dt: float) -> None:
        self._kinematics = kinematics
        self._dt = dt
        self._position: Array = np.zeros((num, 3))
        self._quat: Array = np.zeros((num, 4))
        self._velocity: Array = np.zeros((num, 3))
        self._fresh: NDArray[np.bool_] = np.ones(num, dtype=bool)

    def reset(self, rows: Ids) -> None:
        """Forget the past of worlds ``rows``."""
        self._fresh[rows] = True

    def step(self, q: Array, command: Array) -> ReachInput:
        """Measure one control step; to be called once per step.

        Args:
            q: ``[N, J]`` joint positions after it [rad or m].
            command: ``[N, 7]`` the pose that its action answered.
        """
        position, quat = self._kinematics.pose(q)
        fresh = self._fresh[:, None]
        old_position = np.where(fresh, position, self._position)
        old_quat = np.where(fresh, quat, self._quat)
        velocity = (position - old_position) / self._dt
        measured = ReachInput(
            error=pose_error(command, position, quat),
            before=pose_error(command, old_position, old_quat),
            velocity=velocity,
            acceleration=(velocity - np.where(fresh, velocity, self._velocity)) / self._dt,
        )
        self._position, self._quat, self._velocity = position, quat, velocity
        self._fresh[:] = False
        return measured

    def at_rest(self, q: Array, command: Array) -> ReachInput:
        """The same of a state without what led to it; remembers nothing."""
        error = pose_error(command, *self._kinematics.pose(q))
        still = np.zeros((len(q), 3))
        return ReachInput(error=error, before=error, velocity=still, acceleration=still)

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """Memory of the last step, copied."""
        return {
            "reach_position": self._position.copy(),
            "reach_quat": self._quat.copy(),
            "reach_velocity": self._velocity.copy(),
            "reach_fresh": self._fresh.copy(),
        }

    def load_state_dict(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore what :meth:`state_dict` gave."""
        self._position = np.array(state["reach_position"], dtype=np.float64)
        self._quat = np.array(state["reach_quat"], dtype=np.float64)
        self._velocity = np.array(state["reach_velocity"], dtype=np.float64)
        self._fresh = np.array(state["reach_fresh"], dtype=bool)


def _reach(x: RewardInput) -> ReachInput:
    if x.reach is None:
        raise ConfigError("this reward term needs a commanded pose of an end effector")
    return x.reach


def _distance(error: Array) -> Array:
    return np.sqrt(np.einsum("nk,nk->n", error[:, :3], error[:, :3]))


def _angle(error: Array) -> Array:
    return np.sqrt(np.einsum("nk,nk->n", error[:, 3:], error[:, 3:]))


# ------------------------------------------------------------------ how near


def reach_distance(x: RewardInput) -> Array:
    """|p* - p| [m]: distance of the end effector to the commanded position."""
    return _distance(_reach(x).error)


def reach_angle(x: RewardInput) -> Array:
    """Angle of the rotation from the end effector to the commanded orientation, [0, pi] [rad]."""
    return _angle(_reach(x).error)


def reach_position(x: RewardInput, *, sigma: float = 0.01) -> Array:
    """exp(-|p* - p|^2 / sigma), sigma in m^2. In [0, 1]; its pull is strongest near the pose."""
    return np.exp(_distance(_reach(x).error) ** 2 / -sigma)


def reach_orientation(x: RewardInput, *, sigma: float = 0.1) -> Array:
    """exp(-angle^2 / sigma), sigma in rad^2. In [0, 1]."""
    return np.exp(_angle(_reach(x).error) ** 2 / -sigma)


def reach_pose(x: RewardInput, *, sigma: float = 0.01, lever_m: float = 0.2) -> Array:
    """exp(-(|p* - p|^2 + (lever angle)^2) / sigma), sigma in m^2. In [0, 1].

    One number for both errors: an angle counts as the way of a point ``lever_m`` off the axis.
    """
    error = _reach(x).error
    return np.exp((_distance(error) ** 2 + (lever_m * _angle(error)) ** 2) / -sigma)


def reach_done(x: RewardInput) -> Array:
    """1 while the pose is reached, within 2 cm and 0.1 rad, as the evaluation counts it, else 0."""
    return reached(_reach(x).error).astype(np.float64)


# ------------------------------------------------------------------ how it gets there


def reach_progress(x: RewardInput) -> Array:
    """(distance before - distance) / dt [m/s]: the speed of approach, negative on the way off."""
    reach = _reach(x)
    return (_distance(reach.before) - _distance(reach.error)) / x.dt


def reach_turning(x: RewardInput) -> Array:
    """(angle before - angle) / dt [rad/s]: how fast the orientation comes nearer."""
    reach = _reach(x)
    return (_angle(reach.before) - _angle(reach.error)) / x.dt


def tip_speed(x: RewardInput) -> Array:
    """Speed of the end effector, squared [(m/s)^2]."""
    velocity = _reach(x).velocity
    return np.einsum("nk,nk->n", velocity, velocity)


def tip_acceleration(x: RewardInput) -> Array:
    """Acceleration of the end effector, squared [(m/s^2)^2]: jerky motion spills and shakes."""
    acceleration = _reach(x).acceleration
    return np.einsum("nk,nk->n", acceleration, acceleration)


def rest_at_pose(x: RewardInput, *, near_m: float = 0.05) -> Array:
    """Speed of the end effector, squared, times exp(-(distance / near)^2) [(m/s)^2].

    Fast on the way costs nothing, passing through the pose instead of stopping there does.
    """
    return tip_speed(x) * np.exp(-((_distance(_reach(x).error) / near_m) ** 2))


Term = Callable[..., Array]

#: Terms that mean nothing without a commanded pose.
ARM_TERMS: dict[str, Term] = {
    term.__name__: term
    for term in (
        reach_distance,
        reach_angle,
        reach_position,
        reach_orientation,
        reach_pose,
        reach_done,
        reach_progress,
        reach_turning,
        tip_speed,
        tip_acceleration,
        rest_at_pose,
    )
}
