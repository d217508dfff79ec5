"""The last gate before the motors: nothing outside the limits leaves it, and every answer says why.

Python on a general kernel is not a certified safety system. Torque, current and temperature limits
and a time-out on missing commands must also live in the drive's firmware or in ros2_control.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deploy.checks import Check, Fault, command_faults, state_faults
from deploy.glance import Before, Glance
from deploy.gyro_check import gyro_check
from deploy.safety_result import SafetyResult, Verdict
from deploy.safety_settings import SafetySettings, bounds_of
from deploy.vitals import derated, vital_faults
from deploy.workspace import Workspace
from real.contract import PolicyContract
from real.joint_limits import JointLimits
from real.limits import LimitResult, hard_position_interval, limit_targets
from real.signals import JointCommand, RobotState

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Stamps = NDArray[np.int64]
Rows = NDArray[np.intp] | Mask | None

#: As a plain number: an array compared with a member of an enum costs five times as much.
_DAMP = int(Verdict.DAMP)


@dataclass(frozen=True)
class _Rows:
    """``[N]`` who stops, who holds, whose measurement is wrong; ``calm``: all go on as told."""

    stop: Mask
    held: Mask
    blind: Mask
    warned: bool
    calm: bool


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
        self._state_bounds, self._command_bounds = bounds_of(contract, self.limits, self.settings)
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
        self._passed: NDArray[np.int8] = np.full(num, Verdict.PASS, dtype=np.int8)
        # Handed out with every command or compared with, and never to be written to.
        shared = (self._kp, self._kd, self._zero, self._everyone, self._nobody, self._passed)
        for array in shared:
            array.setflags(write=False)
        self._target: Array = np.full(shape, np.nan)  # sent last, NaN after a reset
        self._known = False  # whether all of it is a number
        self._speed: Array = np.zeros(shape)  # of that target, zero after a reset
        box = self.settings.workspace
        self._workspace = box and Workspace.load(box, contract, columns=self.columns)
        self._gyro = gyro_check(contract, num, settings=self.settings)
        self._glance: Glance | None = None
        if num == 1 and box is None:
            bounds = (self._state_bounds, self._command_bounds)
            self._glance = Glance(contract, self.limits, *bounds, columns=self.columns)
        self._q: Array = np.full(shape, np.nan)
        self._q_ns: Stamps = np.zeros(num, dtype=np.int64)
        self._now_ns: int | None = None
        self._command_ns: Stamps = np.zeros(num, dtype=np.int64)
        self._waiting: Mask = np.ones(num, dtype=bool)  # no command since the last reset
        self._bad_ticks: NDArray[np.int64] = np.zeros(num, dtype=np.int64)
        self._holding = False  # whether some of them may be above zero

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
        self._known = False
        self._speed = self._speed.copy()
        self._speed[chosen] = 0.0
        if self._gyro is not None:
            self._gyro.reset(rows)
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
        found = state_faults(now_ns, state, q, bounds=self._state_bounds)
        found += self._vital_faults(state)
        return [fault for fault in found if not fault.warns]

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
        alike = engaged is None and running is None and ramp is None
        if alike and (passed := self._pass(now_ns, state, command)) is not None:
            return passed
        engaged = self._everyone if engaged is None else engaged
        running = self._everyone if running is None else running
        q = state.q[:, self.columns]
        seen = self._state_faults(now_ns, state, q)
        faults = seen + self._command_faults(now_ns, command, running)
        rows = self._sort(seen, faults, engaged)
        previous = (
            self._target if self._known else np.where(np.isnan(self._target), q, self._target)
        )
        request = previous if command is None else command.q_des
        if ramp is not None:
            request = np.where(running[:, None], request, ramp)
        if not rows.calm:
            request = np.where((rows.held | rows.stop)[:, None], previous, request)
        dt_s = self._elapsed_s(now_ns)
        limited, drawn = self._limit(request, state, previous=previous, dt_s=dt_s)
        faults += drawn
        target = limited.target
        if not rows.calm and rows.blind.any():
            target = self._unmoved(target, rows.blind)
        stamp = state.stamp_ns if command is None else command.stamp_ns
        if command is not None and running is not self._everyone:
            stamp = np.where(running, stamp, state.stamp_ns)
        verdict = self._verdict(limited, target, rows)
        result = SafetyResult(
            command=self._command(stamp, target, verdict),
            verdict=verdict,
            stop=rows.stop,
            _faults=tuple(faults),
            _limited=limited,
            _engaged=engaged,
            warned=rows.warned,
        )
        self._remember(now_ns, state, q)
        self._sent(target, (target - previous) / dt_s, verdict)
        return result

    def _limit(
        self, request: Array, state: RobotState, *, previous: Array, dt_s: float
    ) -> tuple[LimitResult, list[Fault]]:
        """The nearest targets that joint limits and the box allow, and whom the box held back."""
        limited = limit_targets(
            derated(self.limits, state, self.settings.vitals, self.columns),
            request,
            q=state.q[:, self.columns],
            dq=state.dq[:, self.columns],
            previous=previous,
            dt_s=dt_s,
            velocity=self._speed,
        )
        if self._workspace is None:
            return limited, []
        # A joint that has come back into its range must not be drawn out of it again.
        low, high = hard_position_interval(self.limits, q=limited.q)
        start = np.minimum(np.maximum(previous, low), high)
        target, drawn = self._workspace.limit(limited.target, previous=start, q=state.q)
        return dataclasses.replace(limited, target=target, changed=target != request), drawn

    def _pass(
        self, now_ns: int, state: RobotState, command: JointCommand | None
    ) -> SafetyResult | None:
        """The command itself, if one look says that nothing is wrong with one robot; else None."""
        if self._glance is None or command is None or not self._known:
            return None
        if self._now_ns is None or now_ns <= self._now_ns or self._vital_faults(state):
            return None
        if derated(self.limits, state, self.settings.vitals, self.columns) is not self.limits:
            return None
        dt_s = self._elapsed_s(now_ns)
        before = Before(self._q, self._q_ns, self._target, self._speed)
        if not self._glance.fine(now_ns, state, command, before=before, dt_s=dt_s):
            return None
        # Comes last: it takes a state in that is fine, which must not happen twice.
        if self._gyro is not None and not self._gyro.agrees(state, state.stamp_ns - self._q_ns):
            return None
        if self._holding:
            self._bad_ticks, self._holding = np.zeros_like(self._bad_ticks), False
        self._command_ns, self._waiting = command.stamp_ns.copy(), self._nobody
        self._remember(now_ns, state, state.q[:, self.columns])
        target = command.q_des
        self._sent(target, (target - self._target) / dt_s, self._passed)
        sent = self._command(command.stamp_ns, target, self._passed)
        return SafetyResult(sent, self._passed, self._nobody)

    def _sent(self, target: Array, speed: Array, verdict: NDArray[np.int8]) -> None:
        self._target, self._speed, self._known = target, speed, True
        if verdict is not self._passed and (verdict == _DAMP).any():
            damped = (verdict == _DAMP)[:, None]
            self._target = np.where(damped, np.nan, target)
            self._speed = np.where(damped, 0.0, speed)
            self._known = False

    def _unmoved(self, target: Array, blind: Mask) -> Array:
        """What a wrong measurement says must not move a target.

        A pose that was never measured cannot be held either: NaN, and its robot damps.
        """
        known = ~np.isnan(self._target).any(axis=1, keepdims=True)
        return np.where(blind[:, None], np.where(known, self._target, np.nan), target)

    def _remember(self, now_ns: int, state: RobotState, q: Array) -> None:
        self._now_ns = now_ns
        # States may be views that the next measurement writes to.
        self._q, self._q_ns = q.copy(), state.stamp_ns.copy()

    def _sort(self, seen: list[Fault], faults: list[Fault], engaged: Mask) -> _Rows:
        """Whom these faults concern, and how; counts how long robots have been holding."""
        if not faults and engaged is self._everyone:
            if self._holding:
                self._bad_ticks, self._holding = np.zeros_like(self._bad_ticks), False
            nobody = self._nobody
            return _Rows(nobody, nobody, nobody, warned=False, calm=True)
        stop, held, blind, warned = ~engaged, self._nobody, self._nobody, False
        for fault in faults:
            if fault.warns:
                warned = True
            elif fault.stops:
                stop = stop | fault.rows
            else:
                held = held | fault.rows
        for fault in seen:
            if not fault.warns:
                blind = blind | fault.rows
        self._bad_ticks, self._holding = np.where(held, self._bad_ticks + 1, 0), True
        stop = stop | (self._bad_ticks > self.settings.hold_ticks)
        return _Rows(stop, held, blind, warned=warned, calm=False)

    def _elapsed_s(self, now_ns: int) -> float:
        """Time that the target may move in [s]: of one tick, and after a pause of two at most."""
        if self._now_ns is None:
            return self._period_s
        elapsed = (now_ns - self._now_ns) * 1e-9
        # A clock that stands or goes back is a fault; the step then only must not divide by zero.
        return min(elapsed, 2.0 * self._period_s) if elapsed > 0.0 else self._period_s

    def _state_faults(self, now_ns: int, state: RobotState, q: Array) -> list[Fault]:
        bounds = self._state_bounds
        found = state_faults(now_ns, state, q, bounds=bounds, last_q=self._q, last_ns=self._q_ns)
        found += self._vital_faults(state)
        if self._gyro is not None:
            fault = self._gyro.update(state, state.stamp_ns - self._q_ns)
            found += [] if fault is None else [fault]
        return found

    def _vital_faults(self, state: RobotState) -> list[Fault]:
        found = vital_faults(state, self.settings.vitals, self.columns)
        if self._workspace is not None:
            fault = self._workspace.state_fault(state.q)
            found += [] if fault is None else [fault]
        return found

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

    def _verdict(self, limited: LimitResult, target: Array, rows: _Rows) -> NDArray[np.int8]:
        if rows.calm and not limited.stages and self._workspace is None:
            return self._passed
        verdict = np.where(limited.changed.any(axis=1), Verdict.CLAMPED, Verdict.PASS)
        if not rows.calm:
            unknown = ~np.isfinite(target).all(axis=1) & (rows.held | rows.stop)
            damp = (rows.stop & (not self._hold)) | unknown
            held = np.where(rows.held | rows.stop, Verdict.HOLD, verdict)
            verdict = np.where(damp, Verdict.DAMP, held)
        return verdict.astype(np.int8)

    def _command(self, stamp_ns: Stamps, target: Array, verdict: NDArray[np.int8]) -> JointCommand:
        zero, kp, kd = self._zero, self._kp, self._kd
        if verdict is not self._passed and (verdict == _DAMP).any():
            damp = (verdict == _DAMP)[:, None]
            target, kp = np.where(damp, 0.0, target), np.where(damp, 0.0, kp)
            kd = np.where(damp, self._damping_kd, kd)
        return JointCommand(stamp_ns.copy(), target, zero, zero, kp, kd)
