"""How far the joints of a robot may be asked to go: numbers, and the ways to switch them off.

Each limit is one of three things:

* **absent** (NaN): nobody knows it. :meth:`JointLimits.from_joints` refuses, naming the joint.
* **zero**: it is known to be zero and enforced as zero: a torque limit of 0 leaves no authority
  (the target is where the motor rests), a speed limit of 0 allows only torque against the motion, a
  target rate of 0 freezes the target, a target acceleration of 0 lets it stop and never start.
* **disabled**: switched off on purpose, by :attr:`LimitSettings.disabled` or by an infinite limit
  such as that of a ``continuous`` joint. It is not applied, whatever its value. Infinity of the
  wrong sign (a highest speed of -inf) is a mistake and refused, as every negative limit is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from real.config import Config
from real.errors import FerryError, nearest
from real.spec import JointSpec

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Signs of the two directions, over robots and joints.
BOTH: Array = np.array([1.0, -1.0])[:, None, None]

#: Stands for "no limit". Finite, so that a zero share of it is zero and not NaN.
FREE = 1e30

#: In :attr:`LimitSettings.disabled`: every joint.
ALL_JOINTS = "all"


class LimitKind(StrEnum):
    """What a limit is about."""

    POSITION = "position"
    RATE = "rate"
    ACCELERATION = "acceleration"
    TORQUE = "torque"
    VELOCITY = "velocity"


class LimitSettings(Config):
    """How closely a robot may approach its limits."""

    margin: Annotated[float, Field(ge=0.0)] = 0.01
    """Distance that targets keep from the end of the joint's range [rad or m]."""

    stop_s: Annotated[float, Field(ge=0.0)] = 0.05
    """Time in which the joint's motor brings it from its highest speed to rest [s].

    Gives the stopping distance. An A1 leg, about 0.05 kg m^2 at the joint, takes 0.03 s with all of
    its torque; the rest is reserve for gravity and ground contact.
    """

    soft_speed: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """Share of the velocity limit from which driving torque fades, to zero at the limit."""

    target_rate: Annotated[float, Field(ge=0.0)] | None = None
    """Highest speed of a target [rad/s or m/s]; None: the velocity limit of its joint.

    A target that runs ahead of what the joint can follow is a jump, not a motion.
    """

    target_accel: Annotated[float, Field(ge=0.0)] | None = None
    """Highest acceleration of a target [rad/s^2 or m/s^2]; None: full speed within ``start_s``."""

    start_s: Annotated[float, Field(gt=0.0)] = 0.02
    """Time in which a target may go from rest to its joint's highest speed [s].

    An A1 leg takes twice as long with all of its torque: 33.5 N m over 0.05 kg m^2 is 670 rad/s^2,
    and its speed limit 28.6 rad/s.
    """

    disabled: Mapping[LimitKind, tuple[str, ...]] = {}
    """Limits that are not applied: kind -> names of joints, or ``[all]``."""


@dataclass(frozen=True)
class JointLimits:
    """Limits and gains of A joints, ``[A]`` each; :data:`FREE` (or infinity) is "disabled".

    Attributes:
        names: of the joints.
        q_min: lower end of the range [rad or m].
        q_max: upper end of the range [rad or m].
        q_low: lowest target, inside ``q_min`` by the margin [rad or m].
        q_high: highest target [rad or m].
        dq_max: highest speed [rad/s or m/s].
        tau_max: highest effort [N m or N].
        rate: highest speed of a target [rad/s or m/s].
        accel: highest acceleration of a target [rad/s^2 or m/s^2].
        kp: position gain the robot applies.
        kd: velocity gain the robot applies.
        brake: stopping distance per speed squared, 1 / (2 a) [s^2/rad].
        fade: ``1 / ((1 - soft_speed) dq_max)``, over which driving torque fades [s/rad].
        lead: ``kd / kp``: how far a target leads to balance damping [s]; 0 without ``kp``.
        reach: ``tau_max / kp``: how far a target may be off before the motor saturates [rad].
    """

    names: tuple[str, ...]
    q_min: Array
    q_max: Array
    q_low: Array
    q_high: Array
    dq_max: Array
    tau_max: Array
    rate: Array
    accel: Array
    kp: Array
    kd: Array
    brake: Array
    fade: Array
    lead: Array
    reach: Array

    @staticmethod
    def from_joints(
        joints: Sequence[JointSpec], *, settings: LimitSettings | None = None
    ) -> JointLimits:
        """The limits of actuated joints, in their order.

        Args:
            joints: ``RobotSpec.actuated`` or ``PolicyContract.actuated``.
            settings: margins; the defaults if None.

        Raises:
            FerryError: naming each limit that is absent (NaN), negative or upside down, and each
                unknown joint of ``settings.disabled``.
        """
        chosen = LimitSettings() if settings is None else settings
        names = tuple(j.name for j in joints)
        off = {kind: _disabled(chosen, kind, names) for kind in LimitKind}

        def get(attribute: str, kind: LimitKind, free: float) -> Array:
            given = np.array([float(getattr(j, attribute)) for j in joints])
            # Infinity on the other side leaves nothing rather than everything: refused below.
            return np.where(off[kind] | (given == np.copysign(np.inf, free)), free, given)

        q_min = get("q_min", LimitKind.POSITION, -FREE)
        q_max = get("q_max", LimitKind.POSITION, FREE)
        dq_max = get("dq_max", LimitKind.VELOCITY, FREE)
        tau_max = get("tau_max", LimitKind.TORQUE, FREE)
        # Rates follow the joint's own speed limit even where that limit is not enforced.
        own = np.array([j.dq_max for j in joints])
        rate = _given(chosen.target_rate, own, off=off[LimitKind.RATE])
        accel = _given(chosen.target_accel, own / chosen.start_s, off=off[LimitKind.ACCELERATION])
        known = {"q_min": q_min, "q_max": q_max, "dq_max": dq_max, "tau_max": tau_max}
        _require_known(joints, **known, rate=rate, accel=accel)
        kp = np.array([j.kp for j in joints])
        kd = np.array([j.kd for j in joints])
        middle = 0.5 * (q_min + q_max)
        return JointLimits(
            names=names,
            q_min=q_min,
            q_max=q_max,
            # A margin wider than half of the range leaves its middle, not an empty range.
            q_low=np.minimum(q_min + chosen.margin, middle),
            q_high=np.maximum(q_max - chosen.margin, middle),
            dq_max=dq_max,
            tau_max=tau_max,
            rate=rate,
            accel=accel,
            kp=kp,
            kd=kd,
            # a = dq_max / stop_s; with dq_max = 0 there is no motion to stop.
            brake=_ratio(np.full_like(dq_max, 0.5 * chosen.stop_s), dq_max, otherwise=0.0),
            fade=_ratio(np.ones_like(dq_max), (1.0 - chosen.soft_speed) * dq_max, otherwise=FREE),
            # Without a position gain no target can change the torque: nothing to bound.
            lead=_ratio(kd, kp, otherwise=0.0),
            reach=_ratio(tau_max, kp, otherwise=FREE),
        )

    @cached_property
    def _ends(self) -> Array:
        """``[2, 1, A]`` highest targets, and the lowest ones negated."""
        return np.stack([self.q_high, -self.q_low])[:, None]

    @cached_property
    def _other_ends(self) -> Array:
        """``[2, 1, A]`` the same, of the other end each: the interval is never empty."""
        return -self._ends[::-1]

    def room(
        self, *, q: Array, dq: Array, previous: Array, velocity: Array | None, dt_s: float
    ) -> Array:
        """Highest targets within every limit, and the lowest ones negated; ``[2, N, A]``.

        With both directions in one array this takes half of the calls that the intervals of
        :mod:`real.limits` take, which is what one robot's tick spends its time on. Empty (the sum
        of both below zero) where limits contradict each other.
        """
        sign = BOTH
        speed = sign * dq
        # In units of the limits: how much of the driving torque is left at this speed.
        left = np.minimum(np.maximum((self.dq_max - speed) * self.fade, 0.0), 1.0)
        out = sign * (q + self.lead * dq) + self.reach * left
        towards = np.maximum(speed, 0.0)
        soft = np.maximum(self._ends - self.brake * towards * towards, self._other_ends)
        step = self.rate * dt_s
        if velocity is not None:
            gain = np.maximum((sign * velocity + self.accel * dt_s) * dt_s, 0.0)
            step = np.minimum(step, gain)
        return np.minimum(np.minimum(out, soft), sign * previous + step)

    def torque(self, target: Array, *, q: Array, dq: Array) -> Array:
        """Torque the motor is asked for: tau = kp (q_des - q) - kd dq; ``[N, A]`` [N m or N]."""
        return self.kp * (target - q) - self.kd * dq


def _given(setting: float | None, own: Array, *, off: Mask) -> Array:
    values = own if setting is None else np.full(own.shape, setting)
    return np.where(off | (values == np.inf), FREE, values)


def _disabled(settings: LimitSettings, kind: LimitKind, names: tuple[str, ...]) -> Mask:
    given = settings.disabled.get(kind, ())
    for name in given:
        if name not in names and name != ALL_JOINTS:
            raise FerryError(
                f"limits.disabled.{kind}: there is no joint {name!r}{nearest(name, names)}; "
                f"joints: {', '.join(names)}, or {ALL_JOINTS}"
            )
    return np.array([ALL_JOINTS in given or name in given for name in names], dtype=bool)


def _require_known(joints: Sequence[JointSpec], **arrays: Array) -> None:
    wrong: list[str] = []
    for index, joint in enumerate(joints):
        for key, values in arrays.items():
            value = float(values[index])
            if math.isnan(value):
                wrong.append(f"joint {joint.name!r}: {key} is not given (NaN)")
            elif value < 0.0 and key not in {"q_min", "q_max"}:
                wrong.append(f"joint {joint.name!r}: {key} is {value}; expected >= 0")
        if arrays["q_min"][index] > arrays["q_max"][index]:
            wrong.append(
                f"joint {joint.name!r}: q_min {arrays['q_min'][index]} is above "
                f"q_max {arrays['q_max'][index]}"
            )
    if wrong:
        raise FerryError(
            "joint limits cannot be enforced:\n  "
            + "\n  ".join(wrong)
            + "\n  give each in the robot file under joints.<name>.limits, or switch it off under "
            "limits.disabled"
        )


def _ratio(above: Array, below: Array, *, otherwise: float) -> Array:
    """``above / below``, at most :data:`FREE`, and ``otherwise`` where ``below`` is zero."""
    safe = np.where(below == 0.0, 1.0, below)
    with np.errstate(over="ignore"):
        return np.where(below == 0.0, otherwise, np.minimum(above / safe, FREE))
