"""What can be wrong with a state or a command, each as a mask over N robots that names itself.

A fault is not clipped away: either it passes within a few ticks (the last safe target is held
meanwhile) or the robot stops. Comparisons are written so that NaN counts as the bad case.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from real.signals import JointCommand, RobotState

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Check(StrEnum):
    """Faults that the filter looks for; limits are in :class:`~real.joint_limits.LimitKind`."""

    CLOCK = "clock"
    STATE_STALE = "state_stale"
    STATE_NOT_FINITE = "state_not_finite"
    FALL = "fall"
    TILT = "tilt"
    HEIGHT = "height"
    GYRO = "gyro"
    TEMPERATURE = "temperature"
    VOLTAGE = "voltage"
    WORKSPACE = "workspace"
    OUTSIDE = "outside_range"
    JUMP = "position_jump"
    COMMAND_STALE = "command_stale"
    COMMAND_NOT_FINITE = "command_not_finite"
    COMMAND_IMPLAUSIBLE = "command_implausible"
    EXCEPTION = "exception"
    MODE = "mode"
    RAMP = "ramp_not_followed"


#: What a violation's numbers count in; rad and rad/s of a hinge are m and m/s of a slide.
UNITS = {
    "position": "rad",
    "rate": "rad/s",
    "acceleration": "rad/s^2",
    "velocity": "rad/s",
    "torque": "N m",
    Check.CLOCK: "s",
    Check.STATE_STALE: "s",
    Check.COMMAND_STALE: "s",
    Check.FALL: "rad",
    Check.TILT: "rad",
    Check.HEIGHT: "m",
    Check.GYRO: "rad",
    Check.TEMPERATURE: "°C",
    Check.VOLTAGE: "V",
    Check.WORKSPACE: "m",
    Check.OUTSIDE: "rad",
    Check.JUMP: "rad",
    Check.COMMAND_IMPLAUSIBLE: "rad",
    Check.RAMP: "rad",
}


@dataclass(frozen=True)
class Violation:
    """One reason why a command did not pass as it was.

    Attributes:
        kind: a :class:`Check` or :class:`~real.joint_limits.LimitKind`.
        joint: which joint, or None where it concerns the whole robot.
        value: what was found.
        limit: what it was held against; NaN where there is no such number.
        world: index of the robot.
        note: more words, such as an exception's message.
    """

    kind: str
    joint: str | None
    value: float
    limit: float
    world: int = 0
    note: str = ""

    def __str__(self) -> str:
        """E.g. ``torque of FR_hip_joint: 31.2 N m, limit 20 N m``."""
        where = f" of {self.joint}" if self.joint else ""
        unit = f" {UNITS[self.kind]}" if self.kind in UNITS else ""
        limit = "" if np.isnan(self.limit) else f", limit {self.limit:.4g}{unit}"
        value = "" if np.isnan(self.limit) and self.note else f": {self.value:.4g}{unit}{limit}"
        return f"{self.kind}{where}{value}" + (f": {self.note}" if self.note else "")


@dataclass(frozen=True)
class Fault:
    """A check that found something.

    Attributes:
        kind: which check.
        rows: ``[N]`` robots concerned.
        stops: whether the robot stops at once; if not, the last safe target is held and only a
            fault that lasts stops it.
        detail: gives ``(mask, value, limit)``, each ``[N]`` or ``[N, A]``; called only when
            somebody wants to read the violations.
        warns: it is only said: the robot is in a soft zone, short of the limit that stops it.
    """

    kind: Check
    rows: Mask
    stops: bool
    detail: Callable[[], tuple[Mask, Array, Array]]
    warns: bool = False

    def violations(self, joints: Sequence[str]) -> Iterator[Violation]:
        """Every robot and joint concerned."""
        mask, value, limit = self.detail()
        yield from name_each(self.kind, mask, value, limit=limit, joints=joints)


def name_each(
    kind: str, mask: Mask, value: Array, *, limit: Array, joints: Sequence[str]
) -> Iterator[Violation]:
    """One violation per true element of a mask, ``[N]`` (whole robots) or ``[N, A]`` (joints)."""
    value, limit = np.broadcast_to(value, mask.shape), np.broadcast_to(limit, mask.shape)
    for index in np.argwhere(mask).tolist():
        joint = joints[index[1]] if len(index) == 2 else None
        where = tuple(index)
        yield Violation(kind, joint, float(value[where]), float(limit[where]), index[0])


# ------------------------------------------------------------------ state


@dataclass(frozen=True)
class StateBounds:
    """Numbers that the checks of a state hold it against.

    Attributes:
        state_age_ns: oldest acceptable state [ns].
        ahead_ns: how far stamps may lie in the future [ns]; more means that a clock was set back.
        min_upright: cosine of the largest tilt; None where the base cannot fall.
        soft_upright: cosine of the tilt from which it is said.
        q_min: ``[A]`` lowest believable position [rad or m].
        q_max: ``[A]`` highest.
        jump_rate: ``[A]`` a joint that moves faster than this between two states has jumped.
        jump_slack: ``[A]`` allowance on it [rad or m]; infinite where jumps are not looked for.
    """

    state_age_ns: int
    ahead_ns: int
    min_upright: float | None
    soft_upright: float | None
    q_min: Array
    q_max: Array
    jump_rate: Array
    jump_slack: Array


def finite_state(state: RobotState) -> Mask:
    """``[N]`` whether everything a controller acts on is finite.

    A sum is not finite as soon as one of its terms is not, and needs one pass.
    """
    parts = (state.q, state.dq, state.tau, state.quat_wb, state.gyro_b, state.acc_b)
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.add.reduce(np.concatenate(parts, axis=1), axis=1)
    return np.isfinite(total)


def upright(quat_wb: Array) -> Array:
    """Cosine of the tilt, ``[N, 4] -> [N]``; of quaternions that are not quite of unit length, too.

    cos(tilt) = (w^2 - x^2 - y^2 + z^2) / |q|^2; NaN for a quaternion of zeros.
    """
    square = quat_wb * quat_wb
    w, x, y, z = square[:, 0], square[:, 1], square[:, 2], square[:, 3]
    with np.errstate(invalid="ignore"):
        return (w - x - y + z) / (w + x + y + z)


def state_faults(
    now_ns: int,
    state: RobotState,
    q: Array,
    *,
    bounds: StateBounds,
    last_q: Array | None = None,
    last_ns: NDArray[np.int64] | None = None,
) -> list[Fault]:
    """What is wrong with the states of N robots.

    Args:
        now_ns: time [ns], of the clock of the stamps.
        state: the states.
        q: ``[N, A]`` positions of the actuated joints [rad or m].
        bounds: what is acceptable.
        last_q: ``[N, A]`` the same one state earlier, NaN where there was none.
        last_ns: ``[N]`` stamps of that state [ns].
    """
    # The details below are computed when somebody reads them: no name may be used twice.
    found: list[Fault] = []
    finite = finite_state(state)
    if not finite.all():
        found.append(Fault(Check.STATE_NOT_FINITE, ~finite, True, lambda: _not_finite(state, q)))
    age = now_ns - state.stamp_ns
    old = (age > bounds.state_age_ns) | (age < -bounds.ahead_ns)
    if old.any():
        oldest = np.where(age < 0, -bounds.ahead_ns, bounds.state_age_ns)
        found.append(
            Fault(Check.STATE_STALE, old, True, lambda: (old, _seconds(age), _seconds(oldest)))
        )
    if bounds.min_upright is not None:
        found += _tilt_faults(upright(state.quat_wb), finite, bounds, bounds.min_upright)
    below, above = q < bounds.q_min, q > bounds.q_max
    outside = below | above
    if outside.any():
        outside &= np.isfinite(q)  # infinity is another fault
        bound = np.where(below, bounds.q_min, bounds.q_max)
        found.append(Fault(Check.OUTSIDE, _any_joint(outside), True, lambda: (outside, q, bound)))
    if last_q is not None and last_ns is not None:
        elapsed = state.stamp_ns - last_ns
        if (elapsed < 0).any():
            # What lies far back is stale as well; this is the small step that is not.
            back, zero = (elapsed < 0) & ~np.isnan(last_q[:, 0]), np.zeros(1)
            found.append(Fault(Check.CLOCK, back, False, lambda: (back, _seconds(elapsed), zero)))
        with np.errstate(invalid="ignore"):  # infinity less infinity
            moved = np.abs(q - last_q)
        allowed = bounds.jump_rate * (np.maximum(elapsed, 0) * 1e-9)[:, None] + bounds.jump_slack
        # False where either is NaN: the first state, or one that is reported as not finite.
        if (moved > allowed).any():
            jumped = (moved > allowed) & (moved < np.inf)
            rows = _any_joint(jumped)
            found.append(Fault(Check.JUMP, rows, True, lambda: (jumped, moved, allowed)))
    return found


def _tilt_faults(cosine: Array, finite: Mask, bounds: StateBounds, least: float) -> list[Fault]:
    found: list[Fault] = []
    if (cosine >= max(least, bounds.soft_upright or least)).all():
        return found
    fallen = ~(cosine >= least) & finite
    leaning = np.zeros_like(fallen)
    if bounds.soft_upright is not None:
        leaning = (cosine < bounds.soft_upright) & ~fallen
    for kind, rows, limit in (
        (Check.FALL, fallen, least),
        (Check.TILT, leaning, bounds.soft_upright),
    ):
        if limit is not None and rows.any():
            detail = functools.partial(_tilt_detail, rows, cosine, limit)
            found.append(Fault(kind, rows, kind is Check.FALL, detail, warns=kind is Check.TILT))
    return found


def _tilt_detail(rows: Mask, cosine: Array, limit: float) -> tuple[Mask, Array, Array]:
    return rows, np.arccos(np.clip(cosine, -1.0, 1.0)), np.array(math.acos(limit))


def _seconds(nanoseconds: NDArray[np.int64]) -> Array:
    return np.asarray(nanoseconds, dtype=np.float64) * 1e-9


def _any_joint(mask: Mask) -> Mask:
    """``[N, A] -> [N]``."""
    return np.logical_or.reduce(mask, axis=1)


def _not_finite(state: RobotState, q: Array) -> tuple[Mask, Array, Array]:
    """By joint where positions are at fault, else by robot."""
    bad = ~np.isfinite(q)
    nan = np.array(np.nan)
    if bad.any():
        return bad, q, nan
    rows = ~finite_state(state)
    return rows, np.full(rows.shape, np.nan), nan


# ------------------------------------------------------------------ command


@dataclass(frozen=True)
class CommandBounds:
    """Numbers that the checks of a command hold it against.

    Attributes:
        command_age_ns: oldest acceptable command, counted from the state it answers [ns].
        ahead_ns: how far stamps may lie in the future [ns].
        low: ``[A]`` a target below this is no target but a defect [rad or m].
        high: ``[A]`` a target above this.
    """

    command_age_ns: int
    ahead_ns: int
    low: Array
    high: Array


def command_faults(
    now_ns: int,
    stamp_ns: NDArray[np.int64],
    command: JointCommand | None,
    *,
    running: Mask,
    bounds: CommandBounds,
) -> list[Fault]:
    """What is wrong with the commands of the robots that execute them.

    Args:
        now_ns: time [ns].
        stamp_ns: ``[N]`` stamp of the newest command, or of the moment since which one is awaited
            [ns].
        command: the newest command, or None if none has come.
        running: ``[N]`` which robots execute it.
        bounds: what is acceptable.
    """
    found: list[Fault] = []
    age = now_ns - stamp_ns
    old = ((age > bounds.command_age_ns) | (age < -bounds.ahead_ns)) & running
    if old.any():
        limit = np.where(age < 0, -bounds.ahead_ns, bounds.command_age_ns)
        found.append(
            Fault(Check.COMMAND_STALE, old, True, lambda: (old, _seconds(age), _seconds(limit)))
        )
    if command is None:
        return found
    target = command.q_des
    # NaN fails both comparisons, so one test finds all three kinds of bad target.
    bad = ~((target >= bounds.low) & (target <= bounds.high)) & running[:, None]
    if not bad.any():
        return found
    finite = np.isfinite(target)
    broken, wild = bad & ~finite, bad & finite
    if broken.any():
        rows, nan = _any_joint(broken), np.array(np.nan)
        found.append(Fault(Check.COMMAND_NOT_FINITE, rows, False, lambda: (broken, target, nan)))
    if wild.any():
        bound = np.where(target < bounds.low, bounds.low, bounds.high)
        rows = _any_joint(wild)
        found.append(Fault(Check.COMMAND_IMPLAUSIBLE, rows, False, lambda: (wild, target, bound)))
    return found
