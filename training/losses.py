"""The terms of PPO's loss, as pure functions of tensors. B samples.

A weight of a sample says how much of it counts: less than 1 where the policy that acted is older
than wanted. None stands for all ones.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from training.normalizer import Moments

#: Log of the largest ratio that is ever computed: float32 overflows at 88.
_LOG_RATIO_MAX = 20.0


def clipped_surrogate(
    log_ratio: Tensor, advantages: Tensor, *, clip: float, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """PPO's loss with the ratio to the policy that acted.

    Source: Schulman et al., "Proximal policy optimization algorithms", 2017, equation 7.

    Args:
        log_ratio: ``[B]`` log density of the policy over that of the one that acted.
        advantages: ``[B]``.
        clip: bound on ratio - 1.
        weights: ``[B]`` of the samples.

    Returns:
        The loss ``[]`` and the share of samples whose ratio was outside the bound ``[]``.
    """
    # L = -min(r A, clip(r, 1 - e, 1 + e) A)
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1.0 - clip, 1.0 + clip)
    gain = torch.minimum(ratio * advantages, bounded * advantages)
    return -weighted_mean(gain, weights), (bounded != ratio).float().mean()


def decoupled_surrogate(
    log_prob: Tensor,
    advantages: Tensor,
    *,
    proximal: Tensor,
    behaviour: Tensor,
    clip: float,
    weight_bar: float | None,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """PPO's loss with two policies in place of one old one.

    The ratio that is bounded is to a *proximal* policy, here the one before the update, so the
    trust region is where the learner is and not where an actor was long ago. The *behaviour*
    policy that acted only weights the samples. Where both are the same this is
    :func:`clipped_surrogate`.

    Source: Hilton et al., "Batch size-invariance for policy optimization", 2021, equation 3. There
    the proximal policy is an average of recent ones, since one object is that results do not
    depend on the batch size, and ``weight_bar`` is infinite. Where the object is stale data alone,
    the policy before the update is the usual choice (Fu et al., "AReaL", 2025); a bound keeps a few
    samples from ruling a minibatch once the data is old.

    Args:
        log_prob: ``[B]`` log density of the actions under the policy.
        advantages: ``[B]``.
        proximal: ``[B]`` the same under the policy before the update.
        behaviour: ``[B]`` the same under the policy that acted.
        clip: bound on ratio - 1.
        weight_bar: bound on pi_proximal / pi_behaviour; None for none.
        weights: ``[B]`` of the samples, besides.

    Returns:
        The loss ``[]`` and the share of samples whose ratio was outside the bound ``[]``.
    """
    # L = -pi_prox / pi_behav min(r A, clip(r, 1 - e, 1 + e) A),  r = pi / pi_prox
    importance = importance_weights(proximal, behaviour, bar=weight_bar, weights=weights)
    return clipped_surrogate(log_prob - proximal, advantages, clip=clip, weights=importance)


def importance_weights(
    proximal: Tensor, behaviour: Tensor, *, bar: float | None, weights: Tensor | None = None
) -> Tensor:
    """``min(pi_proximal / pi_behaviour, bar)`` from log densities, times the weights: ``[B]``."""
    largest = _LOG_RATIO_MAX if bar is None else min(math.log(bar), _LOG_RATIO_MAX)
    importance = (proximal - behaviour).clamp(max=largest).exp()
    return importance if weights is None else importance * weights


def value_loss(
    value: Tensor,
    targets: Tensor,
    *,
    old: Tensor,
    clip: float | None,
    weights: Tensor | None = None,
) -> Tensor:
    """Squared error of values ``[B]``, maybe of bounded ones: ``[]``.

    Args:
        value: ``[B]`` of the critic.
        targets: ``[B]``.
        old: ``[B]`` before the update.
        clip: bound on ``|value - old|``; None for none.
        weights: ``[B]`` of the samples.
    """
    error = (value - targets).square()
    if clip is None:
        return weighted_mean(error, weights)
    # The larger of the two errors: a value that already moved far gains nothing by moving on.
    near = old + (value - old).clamp(-clip, clip)
    return weighted_mean(torch.maximum(error, (near - targets).square()), weights)


def weighted_mean(samples: Tensor, weights: Tensor | None) -> Tensor:
    """``sum w x / B``: not divided by the weights, or a batch all stale would count in full."""
    return samples.mean() if weights is None else (weights * samples).mean()


def normalized(advantages: Tensor, moments: Moments | None = None) -> Tensor:
    """Advantages ``[B]`` with mean 0 and standard deviation 1.

    Args:
        advantages: ``[B]``.
        moments: ``[1]`` of the samples to normalise over, which may be more than these; None for
            these.
    """
    if moments is None:
        return (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
    mean, std = moments.mean.to(advantages), moments.var.sqrt().to(advantages)
    return (advantages - mean) / (std + 1e-8)
