"""One control tick without ROS: read, check, mode, observe, infer, decode, filter, write.

The two halves are what the two nodes are made of: :class:`~deploy.policy_pipeline.PolicyPipeline`
turns a state and an operator's command into joint targets,
:class:`~deploy.safety_pipeline.SafetyPipeline` decides what of it reaches the robot.
:class:`Controller` is both in one process, for N robots; evaluation runs it.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deploy.checks import Check, Violation
from deploy.policy import Policy
from deploy.policy_pipeline import PolicyOutput, PolicyPipeline
from deploy.safety import SafetySettings
from deploy.safety_pipeline import SafetyPipeline, SafetyTick
from real.signals import JointCommand, RobotState

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Rows = NDArray[np.intp] | Mask | None

log = logging.getLogger(__name__)

_NOT_FINITE = "what the policy remembers is not finite"


@dataclass(frozen=True)
class Tick:
    """Everything about one tick of N robots.

    Attributes:
        safety: what may be executed, and why.
        policy: what the policy said, or None if it raised.
        errors: exceptions that were caught, as violations.
    """

    safety: SafetyTick
    policy: PolicyOutput | None
    errors: tuple[Violation, ...] = ()

    @property
    def command(self) -> JointCommand:
        """Safe to execute by all N robots."""
        return self.safety.command

    @property
    def verdict(self) -> NDArray[np.int8]:
        """``[N]`` :class:`~deploy.safety.Verdict` values."""
        return self.safety.verdict

    @property
    def mode(self) -> NDArray[np.int8]:
        """``[N]`` :class:`~deploy.modes.Mode` values after the tick."""
        return self.safety.mode

    @property
    def violations(self) -> list[Violation]:
        """Every reason; read it before the next tick."""
        stops = () if self.policy is None else np.flatnonzero(self.policy.stop).tolist()
        asked = [
            Violation(Check.COMMAND_NOT_FINITE, None, math.nan, math.nan, world, _NOT_FINITE)
            for world in stops
        ]
        return [*self.errors, *asked, *self.safety.violations]


class Controller:
    """Both halves in one process: what evaluation runs, and what the ROS graph must equal.

    Any exception of policy or filter ends in the safe stop of all its robots; none gets out.

    Args:
        policy: the network and its contract.
        num: N.
        settings: of the safety filter and the ramp; the defaults if None.
        explore: generator of exploration noise; None executes the mean.
    """

    def __init__(
        self,
        policy: Policy,
        num: int,
        *,
        settings: SafetySettings | None = None,
        explore: np.random.Generator | None = None,
    ) -> None:
        self.contract = policy.contract
        self.num = num
        self.policy = PolicyPipeline(policy, num, explore=explore)
        self.safety = SafetyPipeline(policy.contract, num, settings=settings)

    def arm(self, now_ns: int, state: RobotState, rows: Rows = None) -> list[Violation]:
        """Start robots from the pose they are in; see :meth:`SafetyPipeline.arm`.

        Those that are armed begin without a memory, also if no tick came since they ran last.
        """
        before = self.safety.modes.mode.copy()
        refused = self.safety.arm(now_ns, state, rows)
        armed = self.safety.modes.mode != before
        if armed.any():
            self.policy.reset(armed)
        return refused

    def tick(self, now_ns: int, state: RobotState, command: Array) -> Tick:
        """One control period.

        Args:
            now_ns: time [ns], of the clock of the stamps.
            state: newest states, ``[N, ...]``.
            command: ``[N, C]`` what the operator wants.
        """
        output: PolicyOutput | None = None
        errors: list[Violation] = []
        try:
            running = self.safety.advance(now_ns, state)
            output = self.policy.step(state, command, running=running)
            if np.count_nonzero(output.stop):
                log.warning("robots %s stop: %s", np.flatnonzero(output.stop), _NOT_FINITE)
                self.safety.fault(output.stop)
        except Exception as error:
            errors += self._failed("policy", error)
        try:
            sent = None if output is None else output.command
            safety = self.safety.step(now_ns, state, sent)
        except Exception as error:
            errors += self._failed("safety filter", error)
            safety = self.safety.stopped(now_ns)
        return Tick(safety, output, tuple(errors))

    def _failed(self, part: str, error: Exception) -> list[Violation]:
        log.error("the %s raised; all robots stop", part, exc_info=error)
        self.safety.fault()
        note = f"the {part} raised {type(error).__name__}: {error}"
        return [
            Violation(Check.EXCEPTION, None, math.nan, math.nan, world, note)
            for world in range(self.num)
        ]
