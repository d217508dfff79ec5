"""The back half of a control tick: modes and filter decide what reaches the robot."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from deploy.checks import Check, Violation, name_each
from deploy.modes import Event, Mode, ModeMachine
from deploy.safety import SafetyFilter, SafetyResult, SafetySettings, Verdict
from real.contract import PolicyContract
from real.signals import JointCommand, RobotState

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Rows = NDArray[np.intp] | Mask | None

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SafetyTick:
    """What may be executed.

    Attributes:
        command: safe to execute by all N robots.
        verdict: ``[N]`` :class:`~deploy.safety.Verdict` values.
        stop: ``[N]`` who must stop safely: on the wire, an empty position.
        mode: ``[N]`` :class:`~deploy.modes.Mode` values after this tick.
    """

    command: JointCommand
    verdict: NDArray[np.int8]
    stop: Mask
    mode: NDArray[np.int8]
    _result: SafetyResult | None = None
    _ramp: tuple[Violation, ...] = ()

    @property
    def warned(self) -> bool:
        """Whether :attr:`violations` tell of a soft zone, even where every command passed."""
        return self._result is not None and self._result.warned

    @property
    def violations(self) -> list[Violation]:
        """Every reason, robots and joints by name; read it before the next tick."""
        return [*self._ramp, *([] if self._result is None else self._result.violations)]


class SafetyPipeline:
    """Modes and filter for N robots. Every way out of RUN ends in the contract's safe stop.

    Args:
        contract: robot, limits, gains, safe stop.
        num: N.
        settings: margins, time-outs, ramp; the defaults if None.
    """

    def __init__(
        self, contract: PolicyContract, num: int, *, settings: SafetySettings | None = None
    ) -> None:
        chosen = SafetySettings() if settings is None else settings
        self.contract = contract
        self.num = num
        self.filter = SafetyFilter(contract, num, settings=chosen)
        # Not the action's offset, which is zero where actions count from the measured pose.
        goal = np.array([j.q_default for j in contract.actuated])
        self.modes = ModeMachine(
            num,
            safe_stop=contract.safe_stop,
            goal=goal,
            ramp_s=chosen.ramp_s,
            reach=chosen.ramp_reach,
        )
        self._goal: Array = goal
        #: Who did not follow the ramp, until the next step reports it.
        self._missed: list[Violation] = []
        #: What was decided last, for when nothing else is left.
        self._last: SafetyResult | None = None

    @property
    def running(self) -> Mask:
        """``[N]`` whose policy output is executed."""
        return self.modes.running

    def arm(self, now_ns: int, state: RobotState, rows: Rows = None) -> list[Violation]:
        """Start robots ``rows`` (ids or mask; None for all) from the pose they are in.

        Returns:
            Why robots were refused; those that are not named here are armed.
        """
        chosen = np.zeros(self.num, dtype=bool)
        chosen[slice(None) if rows is None else rows] = True
        reasons: list[Violation] = []
        sound = chosen.copy()
        for fault in self.filter.check(now_ns, state):
            reasons += [v for v in fault.violations(self.filter.limits.names) if chosen[v.world]]
            sound &= ~fault.rows
        before = self.modes.mode
        refused = self.modes.arm(now_ns, state.q[:, self.filter.columns], sound)
        self.filter.reset(sound & ~refused, now_ns=now_ns)
        for world in np.flatnonzero(refused).tolist():
            now = Mode(int(before[world])).name
            hint = "reset it first" if now == Mode.ESTOP.name else "it is armed already"
            reasons.append(
                Violation(Check.MODE, None, math.nan, math.nan, world, f"mode is {now}: {hint}")
            )
        return reasons

    def disarm(self, rows: Rows = None) -> None:
        """Stop safely, as the operator wishes."""
        self.modes.fire(Event.DISARM, rows)

    def estop(self, rows: Rows = None) -> None:
        """Stop safely and refuse to arm until :meth:`reset_estop`."""
        self.modes.fire(Event.ESTOP, rows)

    def reset_estop(self, rows: Rows = None) -> None:
        """Release an emergency stop; the robot stays in its safe stop until it is armed."""
        self.modes.fire(Event.RESET, rows)

    def fault(self, rows: Rows = None) -> None:
        """Stop safely because something outside the filter failed."""
        self.modes.fire(Event.FAULT, rows)

    def enforce(self, contract: PolicyContract) -> None:
        """Stop safely, and from now on apply the limits of this contract of the same robot.

        Modes are kept: an emergency stop still wants its reset.

        Raises:
            FerryError: a limit is absent or upside down; the old ones stay.
        """
        self.fault()
        self.filter = SafetyFilter(contract, self.num, settings=self.filter.settings)

    def advance(self, now_ns: int, state: RobotState) -> Mask:
        """Let ramps that are over end; returns :attr:`running` for the policy of this tick.

        A robot whose joints did not follow its ramp stops; :meth:`step` says which they are.
        """
        q = state.q[:, self.filter.columns]
        far = self.modes.advance(now_ns, q)
        if far is not None:
            reach = np.array(self.filter.settings.ramp_reach)
            names = self.filter.limits.names
            off = np.abs(q - self._goal)
            self._missed += name_each(Check.RAMP, far, off, limit=reach, joints=names)
            for violation in self._missed:
                log.warning("robot %d stops: %s", violation.world, violation)
        return self.modes.running

    def step(self, now_ns: int, state: RobotState, command: JointCommand | None) -> SafetyTick:
        """Decide what N robots execute now.

        Args:
            now_ns: time [ns], of the clock of the stamps.
            state: newest states.
            command: newest policy commands, or None if there is none.
        """
        running = self.advance(now_ns, state)
        missed, self._missed = tuple(self._missed), []
        if self.modes.all_run:
            result = self.filter.filter(now_ns, state, command)
            engaged = running
        else:
            ramping = self.modes.ramping
            engaged = running | ramping
            ramp = self.modes.ramp_target(now_ns) if ramping.any() else None
            result = self.filter.filter(
                now_ns, state, command, engaged=engaged, running=running, ramp=ramp
            )
        stopped = result.stop & engaged
        if np.count_nonzero(stopped):
            self.modes.fire(Event.FAULT, stopped)
            for violation in result.violations:
                if stopped[violation.world]:
                    log.warning("robot %d stops: %s", violation.world, violation)
        self._last = result
        mode = self.modes.mode
        return SafetyTick(result.command, result.verdict, result.stop, mode, result, missed)

    def stopped(self, now_ns: int) -> SafetyTick:
        """The safe stop of all N robots, made of nothing that can fail."""
        stamp = np.full(self.num, now_ns, dtype=np.int64)
        command = JointCommand.damping(
            stamp, self.contract.action.dim, damping_kd=self.contract.damping_kd
        )
        verdicts = np.full(self.num, Verdict.DAMP, dtype=np.int8)
        if self.contract.safe_stop == "hold" and self._last is not None:
            # An arm would drop: hold what was last sent, unless that was damping already.
            command = replace(self._last.command, stamp_ns=stamp)
            verdicts[self._last.verdict != Verdict.DAMP] = Verdict.HOLD
        everyone = np.ones(self.num, dtype=bool)
        return SafetyTick(command, verdicts, everyone, self.modes.mode)
