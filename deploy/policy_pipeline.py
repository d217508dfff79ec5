"""The front half of a control tick: a state and an operator's command become joint targets."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deploy.memory import PolicyMemory
from deploy.policy import Policy
from real.action import ActionDecoder
from real.observation import ObservationBuilder
from real.reach import ReachSpace
from real.signals import JointCommand, RobotState

Array = NDArray[np.float64]
Float32 = NDArray[np.float32]
Mask = NDArray[np.bool_]
Rows = NDArray[np.intp] | Mask | None

_LOG_2PI = math.log(2.0 * math.pi)


@dataclass(frozen=True)
class PolicyOutput:
    """What a policy made of a state.

    Attributes:
        command: absolute joint targets under the contract's gains, stamped as the state.
        observation: ``[N, D]`` what the network saw.
        mean: ``[N, A]`` what it answered.
        log_std: ``[N, A]``.
        action: ``[N, A]`` the action before clipping: the mean, or a sample when exploring.
        log_prob: ``[N]`` log density of that action.
        stop: ``[N]`` robots for which the policy asks for a safe stop: what it remembers of them
            is not finite, and was forgotten.
    """

    command: JointCommand
    observation: Float32
    mean: Float32
    log_std: Float32
    action: Array
    log_prob: Array
    stop: Mask


class PolicyPipeline:
    """Observe, infer, decode for N robots; owns what a policy remembers between ticks.

    Args:
        policy: the network and its contract.
        num: N.
        explore: generator of exploration noise; None executes the mean.
    """

    def __init__(
        self, policy: Policy, num: int, *, explore: np.random.Generator | None = None
    ) -> None:
        contract = policy.contract
        self.contract = contract
        self.num = num
        q_default = [j.q_default for j in contract.joints]
        self._policy = policy
        self._memory = PolicyMemory(policy, num)
        self._space: ReachSpace | None = None
        if contract.reach is not None:
            box = {"low": contract.command.low, "high": contract.command.high}
            self._space = ReachSpace(contract.reach, contract.joints, **box)
        self._builder = ObservationBuilder(
            contract.observation,
            q_default,
            num,
            kinematics=None if self._space is None else self._space.kinematics,
        )
        actuated = [j.actuated for j in contract.joints]
        self._actuated = slice(None) if all(actuated) else np.flatnonzero(actuated)
        self._decoder = ActionDecoder(contract.action)
        self._explore = explore
        self._low: Array = np.array(contract.command.low)[None]  # [1, C]
        self._high: Array = np.array(contract.command.high)[None]
        shape = (num, contract.action.dim)
        self._kp: Array = np.tile([j.kp for j in contract.actuated], (num, 1))
        self._kd: Array = np.tile([j.kd for j in contract.actuated], (num, 1))
        self._zero: Array = np.zeros(shape)
        self._everyone: Mask = np.ones(num, dtype=bool)
        for shared in (self._kp, self._kd, self._zero, self._everyone):
            shared.setflags(write=False)
        self._prev_action: Array = np.zeros(shape)
        self._was_running: Mask = np.zeros(num, dtype=bool)
        self._all_ran = False

    def reset(self, rows: Rows = None) -> None:
        """Forget all of robots ``rows`` (ids or mask; None for all): action, history, state."""
        self._memory.reset(rows)
        self._prev_action[slice(None) if rows is None else rows] = 0.0
        self._builder.reset(rows)

    def warm_up(self) -> None:
        """Run once on zeros, so that the first real tick is as fast as the others.

        Nothing of it is remembered, and nothing that was is forgotten.
        """
        other = PolicyPipeline(self._policy, self.num)
        state = RobotState.zeros(self.num, len(self.contract.joints))
        other.step(state, np.zeros((self.num, self.contract.command.dim)))

    @property
    def hidden(self) -> Float32:
        """A copy of what the network remembers of each robot, ``[N, H]``; H is 0 for nothing."""
        return self._memory.hidden

    def step(
        self, state: RobotState, command: Array, *, running: Mask | None = None
    ) -> PolicyOutput:
        """One tick.

        Args:
            state: newest states, ``[N, ...]``.
            command: ``[N, C]`` what the operator wants; brought into the range that the policy
                was trained on. A command that is not finite counts as none: zero, or the pose of
                the default joint positions (:meth:`real.reach.ReachSpace.usable`).
            running: ``[N]`` whose output is executed; all if None. The others keep no memory:
                when they begin to run, previous action, history and hidden state start anew.
        """
        running = self._everyone if running is None else running
        everyone = np.count_nonzero(running) == self.num
        if not (everyone and self._all_ran):
            begins = ~(running & self._was_running)
            if begins.any():
                self.reset(begins)
            self._was_running, self._all_ran = running.copy(), everyone
        given = self._usable(command)
        observation = self._builder.build(state, given, self._prev_action)
        mean, log_std, broken = self._memory.infer(
            observation, stamp_ns=state.stamp_ns, running=running
        )
        action = np.asarray(mean, dtype=np.float64)
        log_prob = -np.asarray(np.add.reduce(log_std, axis=1), dtype=np.float64)
        log_prob -= 0.5 * log_std.shape[1] * _LOG_2PI
        if self._explore is not None:
            noise = self._explore.standard_normal(action.shape)
            action = action + np.exp(log_std) * noise
            log_prob -= 0.5 * (noise * noise).sum(axis=1)
        clipped = self._decoder.clip(action)
        target = self._decoder.decode(clipped, state.q[:, self._actuated])
        self._prev_action = clipped if everyone else np.where(running[:, None], clipped, 0.0)
        stamp = state.stamp_ns.copy()  # states may be views that the next step writes to
        sent = JointCommand(stamp, target, self._zero, self._zero, self._kp, self._kd)
        stop = broken & running
        return PolicyOutput(sent, observation, mean, log_std, action, log_prob, stop)

    def _usable(self, command: Array) -> Array:
        """The command within the range that the policy was trained on."""
        if self._space is not None:
            return self._space.usable(command)
        # What is not finite is not within, either.
        within = (command >= self._low) & (command <= self._high)
        if np.count_nonzero(within) == within.size:
            return command
        finite = np.isfinite(command)
        if not finite.all():
            command = np.where(finite.all(axis=1, keepdims=True), command, 0.0)
        return np.minimum(np.maximum(command, self._low), self._high)
