"""Reward terms: pure functions from what was measured in a step to one number per world.

A term's keyword-only arguments are its parameters in the task file. Weights carry the sign: a
term that measures something unwanted is positive and gets a negative weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from real.errors import ConfigError

if TYPE_CHECKING:
    from sim.arm_terms import ReachInput

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Ids = NDArray[np.intp]


@dataclass(frozen=True)
class RewardInput:
    """One control step of N worlds with J joints (A of them actuated) and F feet.

    Attributes:
        dt: control period [s].
        command: ``[N, C]`` what the action answered: (vx, vy, wz) [m/s, m/s, rad/s], a pose, or
            nothing, C = 0.
        moving: ``[N]`` whether that command asks for motion.
        lin_vel_b: ``[N, 3]`` base linear velocity in the base frame [m/s].
        ang_vel_b: ``[N, 3]`` base angular velocity in the base frame [rad/s].
        gravity_b: ``[N, 3]`` direction of gravity in the base frame, unit length.
        height: ``[N]`` base height above the ground [m].
        q: ``[N, J]`` joint positions [rad or m].
        q_offset: ``[N, J]`` joint positions minus the default pose [rad or m].
        q_soft: ``[2, J]`` soft position limits, low and high [rad or m].
        dq: ``[N, J]`` joint velocities [rad/s or m/s].
        ddq: ``[N, J]`` joint accelerations over the step [rad/s^2].
        tau: ``[N, J]`` applied efforts [N m or N]; zero in passive joints.
        actuated: ``[A]`` which of the J joints have a motor.
        passive_hinges: ``[P]`` which of the J joints turn without one, such as a pole on a cart.
        action: ``[N, A]`` the clipped action of this step.
        action_1: ``[N, A]`` the one before, zero at the start of an episode.
        action_2: ``[N, A]`` the one before that.
        diagonals: ``[2, 2]`` columns of the feet of each diagonal pair, from where they stand in
            the default pose; empty for robots that do not stand on four.
        foot_position_w: ``[N, F, 3]`` [m], z above the ground below each foot.
        foot_speed: ``[N, F]`` horizontal speed of each foot [m/s].
        foot_contact: ``[N, F]`` 1.0 where a foot touches the ground, else 0.0.
        foot_landed: ``[N, F]`` 1.0 where a foot touched down in this step, else 0.0.
        foot_air_s: ``[N, F]`` time off the ground; of a foot that landed, the whole swing [s].
        body_contact: ``[N]`` whether anything but a foot touches the ground.
        fallen: ``[N]`` whether the robot has fallen, or a joint left the bounds of the task,
            whatever the task does about it.
        clamped: ``[N, A]`` whether the robot's limits moved the target of this step.
        reach: what the end effector did, of a task that commands poses; else None.
    """

    dt: float
    command: Array
    moving: Mask
    lin_vel_b: Array
    ang_vel_b: Array
    gravity_b: Array
    height: Array
    q: Array
    q_offset: Array
    q_soft: Array
    dq: Array
    ddq: Array
    tau: Array
    actuated: Ids
    passive_hinges: Ids
    action: Array
    action_1: Array
    action_2: Array
    diagonals: NDArray[np.intp]
    foot_position_w: Array
    foot_speed: Array
    foot_contact: Array
    foot_landed: Array
    foot_air_s: Array
    body_contact: Mask
    fallen: Mask
    clamped: Mask
    reach: ReachInput | None = None


def _sum_of_squares(x: Array) -> Array:
    """Sum of squares over the last axis; ``[N, K] -> [N]``."""
    return np.add.reduce(x * x, axis=1)


def _square(x: Array) -> Array:
    """x^2. Not ``**``, which is code of its own: after physics none of it is in the caches."""
    return x * x


def _sum(x: Array) -> Array:
    """Sum over the last axis; ``[N, K] -> [N]``. Without the Python of ``x.sum``."""
    return np.add.reduce(x, axis=1)


# ------------------------------------------------------------------ the task


def track_lin_vel(x: RewardInput, *, sigma: float = 0.25) -> Array:
    """exp(-((vx* - vx)^2 + (vy* - vy)^2) / sigma), sigma in (m/s)^2. In [0, 1].

    The kernel of Rudin et al. 2022, "Learning to walk in minutes", table 2.
    """
    ex = x.command[:, 0] - x.lin_vel_b[:, 0]
    ey = x.command[:, 1] - x.lin_vel_b[:, 1]
    return np.exp((ex * ex + ey * ey) / -sigma)


def track_ang_vel(x: RewardInput, *, sigma: float = 0.25) -> Array:
    """exp(-(wz* - wz)^2 / sigma), sigma in (rad/s)^2. In [0, 1]. Same source."""
    return np.exp(_square(x.command[:, 2] - x.ang_vel_b[:, 2]) / -sigma)


# ------------------------------------------------------------------ the base


def lin_vel_z(x: RewardInput) -> Array:
    """Vertical velocity in the base frame, squared: vz^2 [(m/s)^2]."""
    return _square(x.lin_vel_b[:, 2])


def ang_vel_xy(x: RewardInput) -> Array:
    """Rolling and pitching: wx^2 + wy^2 [(rad/s)^2]."""
    return _sum_of_squares(x.ang_vel_b[:, :2])


def orientation(x: RewardInput) -> Array:
    """gx^2 + gy^2 = sin^2 of the tilt [1]."""
    return _sum_of_squares(x.gravity_b[:, :2])


def base_height(x: RewardInput, *, target_m: float = 0.28) -> Array:
    """(height - target)^2 [m^2]."""
    return _square(x.height - target_m)


# ------------------------------------------------------------------ the joints


def torque(x: RewardInput) -> Array:
    """Sum over joints of tau^2 [(N m)^2]: heating of the motors."""
    return _sum_of_squares(x.tau)


def power(x: RewardInput) -> Array:
    """Sum over joints of |tau dq| [W]."""
    return _sum(np.abs(x.tau * x.dq))


def joint_vel(x: RewardInput) -> Array:
    """Sum over joints of dq^2 [(rad/s)^2]."""
    return _sum_of_squares(x.dq)


def joint_acc(x: RewardInput) -> Array:
    """Sum over joints of ((dq - dq_before) / dt)^2 [(rad/s^2)^2]."""
    return _sum_of_squares(x.ddq)


def joint_limits(x: RewardInput) -> Array:
    """Sum over joints of how far each is outside its soft limits [rad]."""
    inside = np.maximum(x.q, x.q_soft[0])
    np.minimum(inside, x.q_soft[1], out=inside)
    outside = np.subtract(x.q, inside, out=inside)
    return _sum(np.abs(outside, out=outside))


def default_pose(x: RewardInput) -> Array:
    """Sum over joints of (q - q_default)^2 [rad^2]: keeps a gait near the default pose."""
    return _sum_of_squares(x.q_offset)


def stand_still(x: RewardInput) -> Array:
    """Sum over joints of |q - q_default| [rad] while the command is zero, else 0."""
    return _sum(np.abs(x.q_offset)) * ~x.moving


# ------------------------------------------------------------------ balancing


def upright(x: RewardInput, *, sigma: float = 0.05) -> Array:
    """Mean over passive hinges of exp(-chord^2 / sigma), sigma in rad^2. In [0, 1].

    chord^2 = 2 - 2 cos(q - q_default), about the squared angle, and the same after a full turn.
    """
    if not x.passive_hinges.size:
        raise ConfigError("reward upright needs a hinge without a motor; the robot has none")
    chord = 2.0 - 2.0 * np.cos(x.q_offset[:, x.passive_hinges])
    return np.exp(chord / -sigma).mean(axis=1)


def passive_vel(x: RewardInput) -> Array:
    """Sum over passive hinges of dq^2 [(rad/s)^2]: a pole that swings."""
    return _sum_of_squares(x.dq[:, x.passive_hinges])


def actuated_pos(x: RewardInput) -> Array:
    """Sum over actuated joints of (q - q_default)^2 [m^2 or rad^2]: a cart off its place."""
    return _sum_of_squares(x.q_offset[:, x.actuated])


def actuated_vel(x: RewardInput) -> Array:
    """Sum over actuated joints of dq^2 [(m/s)^2 or (rad/s)^2]: a cart on the move."""
    return _sum_of_squares(x.dq[:, x.actuated])


# ------------------------------------------------------------------ the actions


def action_rate(x: RewardInput) -> Array:
    """Sum over actions of (a_t - a_{t-1})^2 [1]."""
    return _sum_of_squares(x.action - x.action_1)


def action_smoothness(x: RewardInput) -> Array:
    """Sum over actions of (a_t - 2 a_{t-1} + a_{t-2})^2 [1]: the second difference."""
    second = -2.0 * x.action_1
    second += x.action
    second += x.action_2
    return _sum_of_squares(second)


def clamped(x: RewardInput) -> Array:
    """Share of the joints whose target the robot's limits moved [1]. Needs ``filter: on``."""
    return x.clamped.mean(axis=1)


# ------------------------------------------------------------------ the feet


def feet_air_time(x: RewardInput, *, threshold_s: float = 0.2, longest_s: float = 0.5) -> Array:
    """Sum over feet that land of min(swing, longest) - threshold [s], while moving.

    Paid once per touch-down, so short steps cost and long ones pay, up to ``longest_s``.
    After Rudin et al. 2022; the upper bound keeps a leg from being held up for the bonus.
    """
    swing = np.minimum(x.foot_air_s, longest_s) - threshold_s
    return _sum(swing * x.foot_landed) * x.moving


def foot_slip(x: RewardInput) -> Array:
    """Sum over feet on the ground of their horizontal speed, squared [(m/s)^2]."""
    return _sum(_square(x.foot_speed) * x.foot_contact)


def foot_clearance(x: RewardInput, *, target_m: float = 0.08) -> Array:
    """Sum over feet in the air of (z - target)^2 * horizontal speed [m^3/s], while moving.

    The product asks for height in the middle of the swing, where a foot is fast (Ji et al. 2022,
    "Concurrent training of a control policy and a state estimator", table of rewards).
    """
    swing = x.foot_speed * (1.0 - x.foot_contact)
    error = x.foot_position_w[:, :, 2] - target_m
    return _sum(_square(error) * swing) * x.moving


def trot(x: RewardInput) -> Array:
    """1 while exactly one diagonal pair of feet is down, while moving, else 0.

    Small robots trot at every speed of a walk, and a policy that is told so finds stepping sooner.
    """
    (a, b), (c, d) = x.diagonals.tolist()
    # 0 or 1 each: 2 of one pair and none of the other, or the other way round.
    first = x.foot_contact[:, a] + x.foot_contact[:, b]
    second = x.foot_contact[:, c] + x.foot_contact[:, d]
    return ((np.abs(first - second) == 2.0) & x.moving).astype(np.float64)


def standing_contact(x: RewardInput) -> Array:
    """Number of feet off the ground while the command is zero, else 0 [1]."""
    return (x.foot_contact.shape[1] - _sum(x.foot_contact)) * ~x.moving


# ------------------------------------------------------------------ events


def undesired_contact(x: RewardInput) -> Array:
    """1 while anything but a foot touches the ground."""
    return x.body_contact.astype(np.float64)


def alive(x: RewardInput) -> Array:
    """1 while the robot has not fallen or strayed, whether or not that ends the episode."""
    return (~x.fallen).astype(np.float64)


def termination(x: RewardInput) -> Array:
    """1 in a step that finds the robot fallen or strayed, whether or not that ends the episode.

    Where it does, this is paid once; a world that diverged pays it too (see ``RewardTable``).
    """
    return x.fallen.astype(np.float64)


#: Terms that mean something for robots on four feet alone.
FOUR_FEET: frozenset[str] = frozenset({"trot"})

Term = Callable[..., Array]

#: Terms that mean nothing without a velocity command.
FOLLOW_A_VELOCITY = frozenset(
    {"track_lin_vel", "track_ang_vel", "feet_air_time", "foot_clearance", "trot"}
)

TERMS: dict[str, Term] = {
    term.__name__: term
    for term in (
        track_lin_vel,
        track_ang_vel,
        lin_vel_z,
        ang_vel_xy,
        orientation,
        base_height,
        torque,
        power,
        joint_vel,
        joint_acc,
        joint_limits,
        default_pose,
        stand_still,
        upright,
        passive_vel,
        actuated_pos,
        actuated_vel,
        action_rate,
        action_smoothness,
        clamped,
        feet_air_time,
        foot_slip,
        foot_clearance,
        trot,
        standing_contact,
        undesired_contact,
        alive,
        termination,
    )
}
