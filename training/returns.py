"""Advantages, value targets and staleness of rollouts, as pure functions of arrays.

Shapes: T steps, N worlds. ``values[t]`` is the critic's value of what was seen before step t;
``values[T]`` of what was seen after the last one. An episode that was cut at step t is
bootstrapped with ``final_values[t]``, the value of the observation it ended in, and not with
``values[t + 1]``, which belongs to the next episode. A terminated one is not bootstrapped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Ends:
    """Where episodes ended, each ``[T, N]``.

    Attributes:
        terminated: in a terminal state; wins where both are set.
        truncated: cut.
        final_values: value of the observation a cut episode ended in; not read elsewhere.
    """

    terminated: Bools
    truncated: Bools
    final_values: Floats

    @property
    def going_on(self) -> Bools:
        """``[T, N]`` where the next step belongs to the same episode."""
        return ~(self.terminated | self.truncated)

    def next_values(self, values: Floats) -> Floats:
        """Value of what followed each step within its own episode: ``[T+1, N] -> [T, N]``.

        It is 0 after a terminal state, ``final_values`` at a cut and ``values[1:]`` elsewhere.
        """
        following = np.where(self.truncated, self.final_values, values[1:])
        return np.where(self.terminated, np.zeros((), dtype=values.dtype), following)


def gae(
    rewards: Floats,
    values: Floats,
    *,
    ends: Ends,
    gamma: float,
    lam: float,
) -> tuple[Floats, Floats]:
    """Generalised advantage estimation.

    Source: Schulman et al., "High-dimensional continuous control using generalized advantage
    estimation", 2016, equation 16.

    Args:
        rewards: ``[T, N]``.
        values: ``[T+1, N]``.
        ends: where episodes ended.
        gamma: discount per step.
        lam: lambda; 0 is one-step, 1 is Monte Carlo.

    Returns:
        Advantages and value targets (advantage + value), each ``[T, N]``.
    """
    delta = rewards + gamma * ends.next_values(values) - values[:-1]  # [T, N]
    decay = gamma * lam * ends.going_on  # 0 where an episode ends
    advantages = np.empty_like(delta)
    running = np.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        # A_t = delta_t + gamma lambda A_{t+1}, within the episode
        running = delta[t] + decay[t] * running
        advantages[t] = running
    return advantages, advantages + values[:-1]


def vtrace(
    rewards: Floats,
    values: Floats,
    *,
    log_ratio: Floats,
    ends: Ends,
    gamma: float,
    lam: float,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> tuple[Floats, Floats]:
    """V-trace targets for data of an older policy; equal to :func:`gae` where the ratio is 1.

    With ``rho_t = min(rho_bar, pi/mu)`` and ``c_t = lambda min(c_bar, pi/mu)`` of step t, pi the
    policy that learns and mu the one that acted::

        v_s = V_s + sum_{t >= s} gamma^(t-s) (prod_{i=s}^{t-1} c_i) rho_t delta_t
        delta_t = r_t + gamma V_{t+1} - V_t
        A_s = r_s + gamma (V_{s+1} + lambda (v_{s+1} - V_{s+1})) - V_s

    ``rho_bar`` decides whose values are learned, those of pi if it is infinite; ``c_bar`` only how
    fast. Both are 1, the paper's values. The advantages lack the factor rho of their own step,
    since PPO's ratio supplies it.

    Source: Espeholt et al., "IMPALA", 2018, equation 1, with c = lambda min(c_bar, rho) as in
    its remark 2.

    Args:
        rewards: ``[T, N]``.
        values: ``[T+1, N]``.
        log_ratio: ``[T, N]`` log of the learner's over the actor's density of each action.
        ends: where episodes ended.
        gamma: discount per step.
        lam: lambda.
        rho_bar: bound on the ratio that weights each temporal difference.
        c_bar: bound on the ratio that carries later differences back.

    Returns:
        Advantages and value targets, each ``[T, N]``.
    """
    # Bounding the logarithm bounds the ratio and cannot overflow.
    rho = np.exp(np.minimum(log_ratio, np.log(rho_bar)))
    c = lam * np.exp(np.minimum(log_ratio, np.log(c_bar)))
    delta = rewards + gamma * ends.next_values(values) - values[:-1]  # [T, N]
    going_on = ends.going_on
    advantages = np.empty_like(delta)
    targets = np.empty_like(delta)
    # correction = v_{t+1} - V(x_{t+1}), zero across the end of an episode
    correction = np.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        correction = going_on[t] * correction
        # A_t = r_t + gamma (V_{t+1} + lambda (v_{t+1} - V_{t+1})) - V_t
        advantages[t] = delta[t] + gamma * lam * correction
        # v_t - V_t = rho_t delta_t + gamma c_t (v_{t+1} - V_{t+1})
        correction = rho[t] * delta[t] + gamma * c[t] * correction
        targets[t] = values[t] + correction
    return advantages, targets


#: A ratio counts as bounded from so far above the bound: recomputing a density in another order
#: moves its logarithm by less, and fresh data must not look stale.
_ROUNDING = 1e-4
#: Log of the largest ratio that is counted; a larger one decides the sums alone anyway.
_LOG_RATIO_MAX = 30.0


@dataclass(frozen=True)
class RatioSums:
    """Sums over samples of what tells how stale they are; the sums of parts add up.

    Attributes:
        vector: ``[5]`` float64: samples, sum of ratios, sum of their squares, samples whose ratio
            is above rho_bar, samples whose ratio is above c_bar.
    """

    vector: NDArray[np.float64]

    @staticmethod
    def of(log_ratio: Floats, *, rho_bar: float, c_bar: float) -> RatioSums:
        """Sums over ``log_ratio``, of any shape."""
        log_ratio = log_ratio.astype(np.float64)
        ratio = np.exp(np.minimum(log_ratio, _LOG_RATIO_MAX))
        bounded = [
            np.count_nonzero(log_ratio > np.log(bar) + _ROUNDING) for bar in (rho_bar, c_bar)
        ]
        return RatioSums(
            np.array([ratio.size, ratio.sum(), np.square(ratio).sum(), *bounded], np.float64)
        )

    @property
    def rho_clip_share(self) -> float:
        """Share of samples whose temporal difference V-trace bounds."""
        return float(self.vector[3] / self.vector[0])

    @property
    def c_clip_share(self) -> float:
        """Share of samples whose trace V-trace bounds."""
        return float(self.vector[4] / self.vector[0])

    @property
    def effective_sample_size(self) -> float:
        """Share of the samples that importance weighting leaves: 1 where all ratios are equal.

        Source: Kish, "Survey sampling", 1965: ``(sum w)^2 / (n sum w^2)``.
        """
        return float(self.vector[1] ** 2 / (self.vector[0] * self.vector[2]))
