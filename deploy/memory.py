"""Runs a policy for N robots and keeps what it remembers of each, where it has a memory."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from deploy.policy import Policy, RecurrentPolicy

Float32 = NDArray[np.float32]
Mask = NDArray[np.bool_]
Stamps = NDArray[np.int64]
Rows = NDArray[np.intp] | Mask | None

#: A gap in the states longer than this is an interruption: so long a silence of the policy is also
#: what the watchdogs stop a robot for [control periods].
MAX_GAP = 3


class PolicyMemory:
    """The hidden states of N robots. What is in them is always finite.

    A robot begins with the contract's initial state, and does so again after :meth:`reset`, after
    it did not run, and after its states were interrupted or went back in time: what the policy
    remembers then belongs to another motion.

    Args:
        policy: the network; if its contract has no state, all this does is ask it.
        num: N.
    """

    def __init__(self, policy: Policy, num: int) -> None:
        self._policy = policy
        state = policy.contract.state
        self._recurrent = None if state is None else cast("RecurrentPolicy", policy)
        initial = () if state is None else state.initial
        self._initial: Float32 = np.array(initial, dtype=np.float32)
        self._hidden: Float32 = np.tile(self._initial, (num, 1))
        self._last_ns: Stamps = np.zeros(num, dtype=np.int64)
        self._nobody: Mask = np.zeros(num, dtype=bool)
        self._nobody.setflags(write=False)
        self._gap_ns = round(MAX_GAP * policy.contract.control_dt_s * 1e9)

    @property
    def hidden(self) -> Float32:
        """A copy of what is remembered, ``[N, H]``; H is 0 without a memory."""
        return self._hidden.copy()

    def reset(self, rows: Rows = None) -> None:
        """Let robots ``rows`` (ids or mask; None for all) begin with the initial state."""
        self._hidden[slice(None) if rows is None else rows] = self._initial

    def infer(
        self, observation: Float32, *, stamp_ns: Stamps, running: Mask
    ) -> tuple[Float32, Float32, Mask]:
        """Ask the policy, and remember for robots that run.

        Args:
            observation: ``[N, D]``.
            stamp_ns: ``[N]`` time of measurement of the states that are observed [ns].
            running: ``[N]`` whose answer is executed.

        Returns:
            Mean and log_std ``[N, A]``, and whose next hidden state is not finite ``[N]``: these
            robots must stop, and their mean is NaN. A network that is broken inside must not move
            anything, however innocent its output looks.
        """
        if self._recurrent is None:
            return (*self._policy.infer(observation), self._nobody)
        gap = stamp_ns - self._last_ns
        interrupted = (gap < 0) | (gap > self._gap_ns)
        if interrupted.any():
            self.reset(interrupted)
        self._last_ns = stamp_ns.copy()  # stamps may be views that the next step writes to
        mean, log_std, following = self._recurrent.advance(observation, self._hidden)
        finite: Mask = np.logical_and.reduce(np.isfinite(following), axis=1)
        if not finite.all():
            mean = np.where(finite[:, None], mean, np.float32(np.nan))
        # A new array: whoever ran the network may keep the one it returned.
        kept = running & finite
        self._hidden = np.where(kept[:, None], following, self._initial)
        return mean, log_std, ~finite
