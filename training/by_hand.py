"""A minibatch's losses and gradients in closed form, for plain networks and a plain Gaussian.

The losses are those of :mod:`training.losses`, and so are the numbers, up to rounding; autograd
through them is the reference and does all else: squashed actions, mixed precision, compiled and
recurrent networks. What is gained stands in :mod:`training.mlp`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from training.batch import ActorBatch, CriticBatch
from training.distributions import Gaussian, gaussian_entropy, gaussian_kl
from training.losses import importance_weights, weighted_mean
from training.mlp import MlpPasses, is_plain
from training.networks import ActorCritic
from training.ppo_config import PpoConfig


@dataclass(frozen=True)
class SurrogateGradient:
    """The surrogate loss's gradient at a minibatch of b samples.

    Attributes:
        mean: ``[b, A]`` by the mean of the Gaussian.
        log_std: ``[A]``.
        stats: ``[5]`` surrogate, KL, clip share, loss, room for one more.
    """

    mean: Tensor
    log_std: Tensor
    stats: Tensor


def surrogate_gradient(
    part: ActorBatch,
    mean: Tensor,
    log_std: Tensor,
    *,
    old_log_std: Tensor,
    clip: float,
    entropy_coef: float,
    weight_bar: float | None,
) -> SurrogateGradient:
    """Gradient of the clipped or decoupled surrogate less the weighted entropy.

    Args:
        part: the samples.
        mean: ``[b, A]`` of the policy at them.
        log_std: ``[A]`` of the policy.
        old_log_std: ``[A]`` before the update.
        clip: bound on ratio - 1.
        entropy_coef: weight of the entropy.
        weight_bar: decoupled: see :func:`training.losses.decoupled_surrogate`.
    """
    inverse_std = torch.exp(-log_std)
    z = (part.actions - mean).mul_(inverse_std)  # [b, A]
    squares = z.square()
    # log N(a) = H_0 - 1/2 sum z^2 with H_0 = A/2 - H, the log density at the mean
    entropy = gaussian_entropy(log_std)
    log_prob = squares.sum(-1).mul_(-0.5).add_(0.5 * mean.shape[-1] - entropy)
    weights, anchor = part.weights, part.log_probs
    if part.proximal is not None:
        weights = importance_weights(part.proximal, anchor, bar=weight_bar, weights=weights)
        anchor = part.proximal
    ratio = log_prob.sub_(anchor).exp_()
    bounded = ratio.clamp(1.0 - clip, 1.0 + clip)
    free, held = ratio * part.advantages, bounded * part.advantages
    surrogate = -weighted_mean(torch.minimum(free, held), weights)
    # min(r A, clip(r) A) moves with r unless the second is the smaller: then it is constant.
    # dL/dlogp = -w r A / b
    slope = torch.where(free <= held, free, 0.0)
    if weights is not None:
        slope.mul_(weights)
    slope.div_(-len(slope))
    # dlogp/dmean = z / sigma,  dlogp/dlog sigma = z^2 - 1,  dH/dlog sigma = 1
    by_log_std = torch.mv(squares.t(), slope).sub_(slope.sum() + entropy_coef)
    by_mean = z.mul_(inverse_std).mul_(slope.unsqueeze(-1))
    kl = gaussian_kl(part.means, old_log_std, mean, log_std)
    clipped = (bounded != ratio).float().mean()
    loss = surrogate - entropy_coef * entropy
    stats = torch.stack((surrogate, kl, clipped, loss, torch.zeros_like(loss)))
    return SurrogateGradient(by_mean, by_log_std, stats)


def value_gradient(
    part: CriticBatch, value: Tensor, *, clip: float | None
) -> tuple[Tensor, Tensor]:
    """The value loss ``[]`` and its gradient ``[b]`` by the values ``[b]``; clip as in the loss."""
    error = value - part.targets
    loss, slope = error.square(), error
    if clip is not None:
        moved = value - part.values
        near = moved.clamp(-clip, clip)
        held = (part.values + near).sub_(part.targets)
        larger = held.square()
        # The larger error counts; that of a bounded value does not move with it.
        slope = torch.where(loss >= larger, error, torch.where(near == moved, held, 0.0))
        loss = torch.maximum(loss, larger)
    if part.weights is not None:
        slope = slope * part.weights
    return weighted_mean(loss, part.weights), slope * (2.0 / len(slope))


class ByHand:
    """Gradients of both networks of a policy; one thread may ask for each.

    Args:
        policy: one that :meth:`suits`. Gradients are written into those of its parameters.
        config: settings.
    """

    def __init__(self, policy: ActorCritic, config: PpoConfig) -> None:
        self._policy = policy
        self._config = config
        self._actor = MlpPasses(policy.actor)
        self._critic = MlpPasses(policy.critic)

    @staticmethod
    def suits(policy: ActorCritic, config: PpoConfig) -> bool:
        """Whether policy and settings are among those that are done here."""
        plain = is_plain(policy.actor) and is_plain(policy.critic)
        # A network with more parts than these does not read its observations directly.
        known = ("actor.", "critic.", "log_std")
        whole = all(name.startswith(known) for name, _ in policy.named_parameters())
        switched = config.bf16 or config.compile or config.autograd
        return plain and whole and not switched and type(policy.distribution) is Gaussian

    @torch.no_grad()
    def actor(
        self,
        part: ActorBatch,
        old_log_std: Tensor,
        *,
        clip: float,
        entropy_coef: float,
        share: float,
    ) -> Tensor:
        """Write the gradient of the actor's loss times ``share``; the statistics, ``[5]``."""
        log_std = self._policy.log_std
        found = surrogate_gradient(
            part,
            self._actor.forward(part.obs),
            log_std,
            old_log_std=old_log_std,
            clip=clip,
            entropy_coef=entropy_coef,
            weight_bar=self._config.proximal_bar,
        )
        self._actor.backward(found.mean.mul_(share))
        assert log_std.grad is not None
        log_std.grad.copy_(found.log_std.mul_(share))
        return found.stats

    @torch.no_grad()
    def critic(self, part: CriticBatch, *, share: float) -> Tensor:
        """Write the gradient of the weighted value loss times ``share``; the loss, ``[]``."""
        value = self._critic.forward(part.critic_obs).squeeze(-1)
        loss, slope = value_gradient(part, value, clip=self._config.value_clip)
        self._critic.backward(slope.mul_(self._config.value_coef * share).unsqueeze(-1))
        return loss
