"""The last gate before the motors: nothing outside the limits leaves it, and every answer says why.

Python on a general kernel is not a certified safety system. Torque, current and temperature limits
and a time-out on missing commands must also live in the drive's firmware or in ros2_control.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from deploy.checks import (
    Check,
    CommandBounds,
    Fault,
    StateBounds,
    Violation,
    command_faults,
    name_each,
    state_faults,
)
from real.config import Config
from real.contract import PolicyContract
from real.joint_limits import FREE, JointLimits, LimitKind, LimitSettings
from real.limits import LimitResult, limit_targets
from real.signals import JointCommand, RobotState

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Stamps = NDArray[np.int64]
Rows = NDArray[np.intp] | Mask | None
Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]


class Verdict(IntEnum):
    """What became of a command, from harmless to severe."""

    PASS = 0
    """Forwarded unchanged."""
    CLAMPED = 1
    """Forwarded within the limits."""
    HOLD = 2
    """Not forwarded; the last safe target is held."""
    DAMP = 3
    """Not forwarded; the joints resist motion."""


class SafetySettings(Config):
    """What counts as a fault, and how the robot is started."""

    limits: LimitSettings = LimitSettings()

    state_periods: Positive = 3.0
    """Oldest acceptable state [control periods]."""

    command_periods: Positive = 3.0
    """Oldest acceptable command, counted from the state it answers [control periods]."""

    hold_ticks: Annotated[int, Field(ge=0)] = 3
    """So many bad commands in a row are bridged by holding the last safe target."""

    tilt_rad: Annotated[float, Field(gt=0.0, lt=3.1416)] | None = 1.0
    """A floating base that tilts more has fallen [rad]; None: disabled, the robot may lie over."""

    outside: NotNegative | None = 0.25
    """A joint further outside its range than this is not believed [rad or m]; None: disabled.

    Real stops give a little and calibration is off a little; a quarter radian is neither.
    """

    jump_factor: Positive | None = 2.0
    """A joint that moves faster than this times its speed limit has jumped; None: disabled."""

    jump_slack: NotNegative = 0.1
    """Allowance on that, for noise and for stamps that are not exact [rad or m]."""

    implausible: Positive = 10.0
    """A target further outside the range than this is a defect and not clipped [rad or m]."""

    ramp_s: NotNegative = 2.0
    """Time in which the robot moves from the pose it is armed in to its default pose [s]."""

    ramp_reach: Positive = 0.3
    """A joint further than this from its default position at the ramp's end is a fault [rad or m].

    It is blocked, without power, or not the joint it is taken for, and the policy must not find
    out. Legs sag under the robot's weight, by the holding torque divided by kp; an A1 was at most
    0.21 rad off in either simulator.
    """


@dataclass(frozen=True)
class SafetyResult:
    """What leaves the filter for N robots, and why.

    Attributes:
        command: safe to execute; stamped as the policy's command or, where none was used, as the
            state; gains are the contract's, or those of damping.
        verdict: ``[N]`` :class:`Verdict` values.
        stop: ``[N]`` whether the robot must stop and stay stopped until it is armed again.
    """

    command: JointCommand
    verdict: NDArray[np.int8]
    stop: Mask
    _faults: tuple[Fault, ...]
    _limited: LimitResult
    _engaged: Mask

    @cached_property
    def violations(self) -> list[Violation]:
        """Every reason, built when first read: faults first, then limits of forwarded commands."""
        names = self._limited.limits.names
        found = [v for f in self._faults for v in f.violations(names) if self._engaged[v.world]]
        forwarded = self.verdict == Verdict.CLAMPED
        if forwarded.any():
            for kind in LimitKind:
                clipped = self._limited.clipped(kind)
                mask = clipped.mask & forwarded[:, None]
                if mask.any():
                    found += name_each(kind, mask, clipped.asked, limit=clipped.limit, joints=names)
        return found


class SafetyFilter:
    """Checks and limits the commands of N robots. The clock is the caller's.

    Only the position targets of a command are used: velocities, feed-forward and gains are not
    the policy's to choose and are replaced by the contract's.

    Args:
        contract: robot, limits, gains, period, safe stop.
        num: N.
        settings: margins and time-outs; the defaults if None.

    Raises:
        FerryError: a limit is absent (see :mod:`real.joint_limits`).
    """

    def __init__(
        self, contract: PolicyContract, num: int, *, settings: SafetySettings | None = None
    ) -> None:
        self.settings = SafetySettings() if settings is None else settings
        self.num = num
        joints = contract.actuated
        self.limits = JointLimits.from_joints(joints, settings=self.settings.limits)
        self._state_bounds, self._command_bounds = _bounds(contract, self.limits, self.settings)
        self._period_s = contract.control_dt_s
        self._hold = contract.safe_stop == "hold"
        self._damping_kd = contract.damping_kd
        actuated = [j.actuated for j in contract.joints]
        #: Columns of the actuated joints; a slice where that is all of them, which is faster.
        self.columns: slice | NDArray[np.intp] = (
            slice(None) if all(actuated) else np.flatnonzero(actuated)
        )
        shape = (num, len(joints))
        self._kp, self._kd = np.tile(self.limits.kp, (num, 1)), np.tile(self.limits.kd, (num, 1))
        self._zero: Array = np.zeros(shape)
        self._everyone, self._nobody = np.ones(num, dtype=bool), np.zeros(num, dtype=bool)
        # Handed out with every command or compared with, and never to be written to.
        for shared in (self._kp, self._kd, self._zero, self._everyone, self._nobody):
            shared.setflags(write=False)
        self._target: Array = np.full(shape, np.nan)  # sent last, NaN after a reset
        self._q: Array = np.full(shape, np.nan)
        self._q_ns: Stamps = np.zeros(num, dtype=np.int64)
        self._now_ns: int | None = None
        self._command_ns: Stamps = np.zeros(num, dtype=np.int64)
        self._waiting: Mask = np.ones(num, dtype=bool)  # no command since the last reset
        self._bad_ticks: NDArray[np.int64] = np.zeros(num, dtype=np.int64)

    def reset(self, rows: Rows = None, *, now_ns: int = 0) -> None:
        """Forget previous targets and measurements of ``rows`` (ids or mask; None for all).

        The next target of these robots starts from the measured pose, and the age of a command
        that has not come yet counts from ``now_ns``.
        """
        chosen = slice(None) if rows is None else rows
        # New arrays: results that were handed out refer to the old ones.
        self._target, self._q = self._target.copy(), self._q.copy()
        self._target[chosen] = np.nan
        self._q[chosen] = np.nan
        self._waiting, self._command_ns = self._waiting.copy(), self._command_ns.copy()
        self._waiting[chosen] = True
        self._command_ns[chosen] = now_ns
        self._bad_ticks[chosen] = 0
        if self._waiting.all():
            # Nobody is in the middle of anything: the clock may have been set in between.
            self._now_ns = None

    def check(self, now_ns: int, state: RobotState) -> list[Fault]:
        """What is wrong with a state on its own; arming is refused on any of it."""
        q = state.q[:, self.columns]
        return state_faults(now_ns, state, q, bounds=self._state_bounds)

    def filter(
        self,
        now_ns: int,
        state: RobotState,
        command: JointCommand | None,
        *,
        engaged: Mask | None = None,
        running: Mask | None = None,
        ramp: Array | None = None,
    ) -> SafetyResult:
        """Let commands pass, limit them, or stop; remembers what it sent.

        Args:
            now_ns: time [ns], of the clock of the stamps.
            state: newest states, ``[N, ...]``.
            command: newest commands of the policy, or None if there is none.
            engaged: ``[N]`` which robots may move; the others get their safe stop and no
                questions. All if None.
            running: ``[N]`` which robots execute the policy, and so depend on its commands. All
                if None.
            ramp: ``[N, A]`` targets of engaged robots that are not running [rad or m].
        """
        engaged = self._everyone if engaged is None else engaged
        running = self._everyone if running is None else running
        q, dq = state.q[:, self.columns], state.dq[:, self.columns]
        seen = self._state_faults(now_ns, state, q)
        faults = seen + self._command_faults(now_ns, command, running)
        stop, held, blind = ~engaged, self._nobody, self._nobody
        for fault in seen:
            blind = blind | fault.rows
        for fault in faults:
            if fault.stops:
                stop = stop | fault.rows
            else:
                held = held | fault.rows
        self._bad_ticks = np.where(held, self._bad_ticks + 1, 0)
        stop = stop | (self._bad_ticks > self.settings.hold_ticks)

        known = ~np.isnan(self._target)
        previous = np.where(known, self._target, q)
        request = previous if command is None else command.q_des
        if ramp is not None:
            request = np.where(running[:, None], request, ramp)
        keep = held | stop
        if keep.any():
            request = np.where(keep[:, None], previous, request)
        limited = limit_targets(
            self.limits, request, q=q, dq=dq, previous=previous, dt_s=self._elapsed_s(now_ns)
        )
        target = limited.target
        if blind.any():
            # What a wrong measurement says must not move a target. A pose that was never
            # measured cannot be held either: its robot damps.
            last = np.where(known.all(axis=1, keepdims=True), self._target, np.nan)
            target = np.where(blind[:, None], last, target)
        stamp = state.stamp_ns if command is None else command.stamp_ns
        if command is not None and not running.all():
            stamp = np.where(running, stamp, state.stamp_ns)
        verdict = self._verdict(limited, target, stop=stop, held=held)
        result = SafetyResult(
            command=self._command(stamp, target, verdict),
            verdict=verdict,
            stop=stop,
            _faults=tuple(faults),
            _limited=limited,
            _engaged=engaged,
        )
        self._now_ns = now_ns
        # States may be views that the next measurement writes to.
        self._q, self._q_ns = q.copy(), state.stamp_ns.copy()
        self._target = np.where((verdict == Verdict.DAMP)[:, None], np.nan, target)
        return result

    def _elapsed_s(self, now_ns: int) -> float:
        """Time that the target may move in [s]: of one tick, and after a pause of two at most."""
        if self._now_ns is None:
            return self._period_s
        elapsed = (now_ns - self._now_ns) * 1e-9
        # A clock that stands or goes back is a fault; the step then only must not divide by zero.
        return min(elapsed, 2.0 * self._period_s) if elapsed > 0.0 else self._period_s

    def _state_faults(self, now_ns: int, state: RobotState, q: Array) -> list[Fault]:
        bounds = self._state_bounds
        return state_faults(now_ns, state, q, bounds=bounds, last_q=self._q, last_ns=self._q_ns)

    def _command_faults(
        self, now_ns: int, command: JointCommand | None, running: Mask
    ) -> list[Fault]:
        if command is not None:
            self._command_ns, self._waiting = command.stamp_ns.copy(), self._nobody
        elif self._waiting.any():
            # Before the policy's turn its silence is no fault; the wait starts with its turn.
            self._command_ns = np.where(self._waiting & ~running, now_ns, self._command_ns)
        faults = command_faults(
            now_ns, self._command_ns, command, running=running, bounds=self._command_bounds
        )
        if self._now_ns is not None and now_ns <= self._now_ns:
            rows, step = self._everyone, np.full(self.num, (now_ns - self._now_ns) * 1e-9)
            faults.append(Fault(Check.CLOCK, rows, False, lambda: (rows, step, np.zeros(1))))
        return faults

    def _verdict(
        self, limited: LimitResult, target: Array, *, stop: Mask, held: Mask
    ) -> NDArray[np.int8]:
        verdict = np.where(limited.changed.any(axis=1), Verdict.CLAMPED, Verdict.PASS)
        if held.any() or stop.any():
            unknown = ~np.isfinite(target).all(axis=1)
            damp = (stop & (not self._hold)) | unknown
            verdict = np.where(damp, Verdict.DAMP, np.where(held | stop, Verdict.HOLD, verdict))
        return verdict.astype(np.int8)

    def _command(self, stamp_ns: Stamps, target: Array, verdict: NDArray[np.int8]) -> JointCommand:
        zero, kp, kd = self._zero, self._kp, self._kd
        damp = (verdict == Verdict.DAMP)[:, None]
        if damp.any():
            target, kp = np.where(damp, 0.0, target), np.where(damp, 0.0, kp)
            kd = np.where(damp, self._damping_kd, kd)
        return JointCommand(stamp_ns.copy(), target, zero, zero, kp, kd)


def _bounds(
    contract: PolicyContract, limits: JointLimits, settings: SafetySettings
) -> tuple[StateBounds, CommandBounds]:
    period = contract.control_dt_s
    falls = contract.base == "floating" and settings.tilt_rad is not None
    # No speed limit, no notion of a jump; written into the slack, since infinity times no time
    # at all would be NaN.
    blind = limits.dq_max >= FREE
    if settings.jump_factor is None:
        blind = np.ones_like(blind)
    speed = np.where(blind, 0.0, limits.dq_max)
    outside = np.inf if settings.outside is None else settings.outside
    state = StateBounds(
        state_age_ns=round(settings.state_periods * period * 1e9),
        ahead_ns=round(period * 1e9),
        min_upright=float(np.cos(settings.tilt_rad or 0.0)) if falls else None,
        q_min=limits.q_min - outside,
        q_max=limits.q_max + outside,
        jump_rate=(settings.jump_factor or 0.0) * speed,
        jump_slack=np.where(blind, np.inf, settings.jump_slack),
    )
    command = CommandBounds(
        command_age_ns=round(settings.command_periods * period * 1e9),
        ahead_ns=round(period * 1e9),
        low=limits.q_min - settings.implausible,
        high=limits.q_max + settings.implausible,
    )
    return state, command
