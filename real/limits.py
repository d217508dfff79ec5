"""Limits of joint targets: pure functions of limits, state, previous target and time step.

The safety filter applies them on the robot; whoever wants to train against them may, too. They
act on position targets only, because a target is all that travels to a robot: gains are fixed, so
every bound on torque or speed is turned into the interval of targets that keeps it.

The limits, from the one that yields first to the one that always holds:

1. *position, soft*: margin inside the joint's range, drawn in by the stopping distance;
2. *acceleration*, and *rate*: a target starts no faster, and moves no faster, than the joint can;
3. *torque*, and within it *velocity*: the motor is not asked for more than it has, nor to drive a
   joint that is already at full speed;
4. *position, hard*: never outside the joint's range, and from outside only inwards.

Each is an interval of targets, and a target is clipped to one after the other. On a line, clipping
to an interval never leaves an earlier one if the two overlap, so all limits hold wherever they can
hold together, and where they cannot, the later one wins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from real.joint_limits import BOTH, JointLimits, LimitKind

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Interval = tuple[Array, Array]


# ------------------------------------------------------------------ intervals of targets


def soft_position_interval(limits: JointLimits, *, dq: Array) -> Interval:
    """Targets that let a moving joint stop inside its range; ``[N, A]`` each.

    A joint at speed dq needs d = dq^2 / (2 a) to stop, so the end that it moves towards is drawn
    in by d. At most the whole range is lost: the interval is never empty.
    """
    distance = limits.brake * dq * dq
    low = limits.q_low + np.where(dq < 0.0, distance, 0.0)
    high = limits.q_high - np.where(dq > 0.0, distance, 0.0)
    return np.minimum(low, limits.q_high), np.maximum(high, limits.q_low)


def rate_interval(limits: JointLimits, *, previous: Array, dt_s: float) -> Interval:
    """Targets within reach of the previous one: |q_des - previous| <= rate dt; ``[N, A]`` each.

    Against the previous *target*, not the measured position: limiting against the measurement
    would slow a loaded joint down, since the target then never leads far enough.
    """
    step = limits.rate * dt_s
    return previous - step, previous + step


def acceleration_interval(
    limits: JointLimits, *, previous: Array, velocity: Array, dt_s: float
) -> Interval:
    """Targets whose speed grows by no more than accel dt; ``[N, A]`` each.

    A target may stop where it is at any time, however fast it moved: what slows it down is the
    motor, whose torque is limited below, and a target that had to run on would pass every stop.
    """
    low = previous + (velocity - limits.accel * dt_s) * dt_s
    high = previous + (velocity + limits.accel * dt_s) * dt_s
    return np.minimum(low, previous), np.maximum(high, previous)


def torque_interval(limits: JointLimits, *, q: Array, dq: Array) -> Interval:
    """Targets for which |kp (q_des - q) - kd dq| <= tau_max; ``[N, A]`` each.

    The motor would saturate there anyway; clipping the target gives the same torque at this
    instant and names the joint that asked for more.
    """
    rest = q + limits.lead * dq  # the target at which the motor gives no torque
    return rest - limits.reach, rest + limits.reach


def velocity_interval(limits: JointLimits, *, q: Array, dq: Array) -> Interval:
    """Targets whose torque does not drive a joint beyond its speed limit; ``[N, A]`` each.

    Driving torque fades from ``soft_speed dq_max`` on and is zero at ``dq_max``, as a motor's own
    torque-speed curve does; braking torque is never reduced.
    """
    rest = q + limits.lead * dq
    up = np.minimum(np.maximum((limits.dq_max - dq) * limits.fade, 0.0), 1.0)
    down = np.minimum(np.maximum((limits.dq_max + dq) * limits.fade, 0.0), 1.0)
    return rest - limits.reach * down, rest + limits.reach * up


def hard_position_interval(limits: JointLimits, *, q: Array) -> Interval:
    """Targets inside the joint's range, or between it and a joint that is outside; ``[N, A]``.

    A joint may start outside its range (a robot that lies folded). Its target then may stay or go
    inwards, never further out than the joint is.
    """
    return np.minimum(limits.q_min, q), np.maximum(limits.q_max, q)


# ------------------------------------------------------------------ all of them


@dataclass(frozen=True)
class Stage:
    """One interval that a target was clipped to; ``[N, A]`` each."""

    kind: LimitKind
    before: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Clipped:
    """What limits of one kind did, ``[N, A]`` each; numbers mean something where ``mask`` is true.

    Attributes:
        mask: where the target was moved.
        asked: what the request would have meant, in the unit of the limit.
        limit: what it was moved to.
    """

    mask: Mask
    asked: Array
    limit: Array


@dataclass(frozen=True)
class LimitResult:
    """Targets within the limits, and what was needed to bring them there.

    Attributes:
        target: ``[N, A]`` [rad or m], finite wherever ``previous`` was.
        changed: ``[N, A]`` whether a target differs from the requested one.
        not_finite: ``[N, A]`` where request or state were NaN or infinite; the previous target
            stands there. None if nowhere.
    """

    target: Array
    changed: Mask
    not_finite: Mask | None
    limits: JointLimits
    q: Array
    dq: Array
    previous: Array
    dt_s: float
    stages: tuple[Stage, ...]
    velocity: Array | None = None

    def clipped(self, kind: LimitKind) -> Clipped:
        """Where a limit of this kind moved the target, what was asked for, and the limit it met.

        Position [rad or m], rate and velocity [rad/s or m/s] and acceleration [rad/s^2 or m/s^2]
        with the sign of the motion, torque [N m or N] as predicted from the gains.
        """
        shape = self.target.shape
        mask = np.zeros(shape, dtype=bool)
        asked, limit = np.zeros(shape), np.zeros(shape)
        # Backwards, so that of two stages of a kind the first, which saw the request, is reported.
        for stage in reversed([s for s in self.stages if s.kind is kind]):
            low, high = stage.before < stage.low, stage.before > stage.high
            mask |= low | high
            asked = np.where(low | high, stage.before, asked)
            limit = np.where(low, stage.low, np.where(high, stage.high, limit))
        if self.not_finite is not None:
            mask &= ~self.not_finite
        asked, limit = np.where(mask, asked, 0.0), np.where(mask, limit, 0.0)
        if kind is LimitKind.RATE:
            asked, limit = self._speed(asked), self._speed(limit)
        elif kind is LimitKind.ACCELERATION and self.velocity is not None:
            asked = (self._speed(asked) - self.velocity) / self.dt_s
            limit = (self._speed(limit) - self.velocity) / self.dt_s
        elif kind is LimitKind.TORQUE:
            asked = self.limits.torque(asked, q=self.q, dq=self.dq)
            limit = self.limits.torque(limit, q=self.q, dq=self.dq)
        elif kind is LimitKind.VELOCITY:
            asked, limit = self.dq, np.copysign(self.limits.dq_max, self.dq)
        return Clipped(mask, asked, limit)

    def _speed(self, target: Array) -> Array:
        return (target - self.previous) / self.dt_s


def limit_targets(
    limits: JointLimits,
    q_des: Array,
    *,
    q: Array,
    dq: Array,
    previous: Array,
    dt_s: float,
    velocity: Array | None = None,
) -> LimitResult:
    """Bring joint targets within all limits.

    Args:
        limits: of the A joints.
        q_des: ``[N, A]`` requested targets [rad or m]; may hold anything, also NaN.
        q: ``[N, A]`` measured positions [rad or m].
        dq: ``[N, A]`` measured velocities [rad/s or m/s].
        previous: ``[N, A]`` targets sent last, or the measured positions at the start; finite.
        dt_s: time since they were sent [s], > 0.
        velocity: ``[N, A]`` speed of the targets before [rad/s or m/s], finite; zero at the start.
            None: accelerations are not limited.

    Returns:
        The targets. Where request or state are not finite, the previous target.
    """
    if q_des.shape[0] == 1:
        # One robot, on hardware: most commands are within all limits, and one look says so.
        with np.errstate(all="ignore"):
            room = limits.room(q=q, dq=dq, previous=previous, velocity=velocity, dt_s=dt_s)
            if (BOTH * q_des <= room).all():
                nothing = np.zeros(q_des.shape, dtype=bool)
                return LimitResult(
                    q_des, nothing, None, limits, q, dq, previous, dt_s, (), velocity
                )
    not_finite: Mask | None = None
    finite = np.isfinite(q_des) & np.isfinite(q) & np.isfinite(dq)
    if not finite.all():
        not_finite = ~finite
        q_des, q = np.where(finite, q_des, previous), np.where(finite, q, previous)
        dq = np.where(finite, dq, 0.0)
    target = q_des
    stages: list[Stage] = []
    for kind, (low, high) in _intervals(
        limits, q=q, dq=dq, previous=previous, velocity=velocity, dt_s=dt_s
    ):
        stages.append(Stage(kind, target, low, high))
        target = np.minimum(np.maximum(target, low), high)
    changed = target != q_des
    if not_finite is not None:
        target = np.where(not_finite, previous, target)
        changed |= not_finite
    return LimitResult(
        target=target,
        changed=changed,
        not_finite=not_finite,
        limits=limits,
        q=q,
        dq=dq,
        previous=previous,
        dt_s=dt_s,
        stages=tuple(stages),
        velocity=velocity,
    )


def _intervals(
    limits: JointLimits,
    *,
    q: Array,
    dq: Array,
    previous: Array,
    velocity: Array | None,
    dt_s: float,
) -> list[tuple[LimitKind, Interval]]:
    """Every limit in the order of the module, weakest first."""
    # A square of an absurd but finite speed overflows to infinity, which clips as it should.
    with np.errstate(over="ignore"):
        out = [(LimitKind.POSITION, soft_position_interval(limits, dq=dq))]
        if velocity is not None:
            speeding = acceleration_interval(
                limits, previous=previous, velocity=velocity, dt_s=dt_s
            )
            out.append((LimitKind.ACCELERATION, speeding))
        out += [
            (LimitKind.RATE, rate_interval(limits, previous=previous, dt_s=dt_s)),
            (LimitKind.TORQUE, torque_interval(limits, q=q, dq=dq)),
            (LimitKind.VELOCITY, velocity_interval(limits, q=q, dq=dq)),
            (LimitKind.POSITION, hard_position_interval(limits, q=q)),
        ]
    return out
