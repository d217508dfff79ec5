"""PPO: the loss, the minibatches and the step size. The only place with gradients.

Source: Schulman et al., "Proximal policy optimization algorithms", 2017; the adaptive step size
is that of rsl_rl (Rudin et al., "Learning to walk in minutes", 2022, appendix A.3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from real.config import Config
from training.flat import FlatAdam
from training.networks import ActorCritic, gaussian_entropy, gaussian_kl, gaussian_log_prob


class PpoConfig(Config):
    """Settings of the learner."""

    gamma: float = Field(default=0.99, ge=0.0, le=1.0, description="discount per control step")
    lam: float = Field(default=0.95, ge=0.0, le=1.0, description="lambda of GAE and V-trace")
    returns: Literal["gae", "vtrace"] = Field(
        default="gae", description="vtrace corrects for data of older policies"
    )
    rho_bar: float = Field(default=1.0, gt=0.0, description="V-trace: bound on the ratio")
    c_bar: float = Field(default=1.0, gt=0.0, description="V-trace: bound on the trace")
    clip: float = Field(default=0.2, gt=0.0, lt=1.0, description="bound on ratio - 1")
    value_clip: float | None = Field(
        default=0.2, gt=0.0, description="bound on a value's change per update; null for none"
    )
    value_coef: float = Field(default=1.0, ge=0.0, description="weight of the value loss")
    entropy_coef: float = Field(default=0.005, ge=0.0, description="weight of the entropy")
    epochs: int = Field(default=5, ge=1, description="passes over a batch")
    minibatches: int = Field(default=4, ge=1, description="steps per pass")
    learning_rate: float = Field(default=1e-3, gt=0.0, description="initial step size of Adam")
    min_learning_rate: float = Field(default=1e-5, gt=0.0, description="lower bound")
    max_learning_rate: float = Field(default=1e-2, gt=0.0, description="upper bound")
    desired_kl: float | None = Field(
        default=0.01, gt=0.0, description="KL the step size aims at [nat]; null keeps it fixed"
    )
    max_grad_norm: float = Field(default=1.0, gt=0.0, description="bound on the gradient's norm")


#: Factor by which the step size is adapted, and the band about the desired KL without change.
_RATE_FACTOR = 1.5
_KL_BAND = 2.0


@dataclass(frozen=True)
class Batch:
    """B samples. Observations are already normalised, under the statistics that collected them.

    Attributes:
        obs: ``[B, D]`` normalised; ``[2 B, D]`` if ``mirrored``: each sample's mirror image
            stands B rows below it, in ``obs``, ``actions`` and ``means``.
        critic_obs: ``[B, C]`` normalised.
        actions: ``[B or 2 B, A]`` unclipped.
        means: ``[B or 2 B, A]`` of the policy before the update.
        log_probs: ``[B]`` of the policy that acted.
        advantages: ``[B]``.
        targets: ``[B]`` of the value.
        values: ``[B]`` before the update.
        mirrored: whether mirror images are there.
    """

    obs: Tensor
    critic_obs: Tensor
    actions: Tensor
    means: Tensor
    log_probs: Tensor
    advantages: Tensor
    targets: Tensor
    values: Tensor
    mirrored: bool = False

    @property
    def size(self) -> int:
        """B."""
        return self.log_probs.shape[0]

    def take(self, rows: Tensor, image: Tensor) -> Batch:
        """Samples ``rows [b]``, mirrored where ``image [b]`` is 1, in contiguous memory."""
        actor_rows = rows + self.size * image if self.mirrored else rows
        return Batch(
            obs=self.obs.index_select(0, actor_rows),
            critic_obs=self.critic_obs.index_select(0, rows),
            actions=self.actions.index_select(0, actor_rows),
            means=self.means.index_select(0, actor_rows),
            log_probs=self.log_probs.index_select(0, rows),
            advantages=self.advantages.index_select(0, rows),
            targets=self.targets.index_select(0, rows),
            values=self.values.index_select(0, rows),
        )


@dataclass(frozen=True)
class PpoStats:
    """Means over the minibatches of an update; see :mod:`training.metrics` for the meanings."""

    surrogate: float
    value_loss: float
    kl: float
    clip_fraction: float
    grad_norm: float


class NonFiniteUpdateError(ArithmeticError):
    """A loss or gradient was not finite; parameters and optimiser are as before the update."""


def adapted_rate(rate: float, *, kl: float, config: PpoConfig) -> float:
    """The step size after a minibatch moved the policy by ``kl``.

    A KL of exactly zero or below says that nothing was learned, and one that is not finite that
    something broke; neither is a reason to step further.

    Args:
        rate: present step size.
        kl: KL(policy before the update || policy now) [nat].
        config: desired KL and bounds.
    """
    if config.desired_kl is None:
        return rate
    if not math.isfinite(kl) or kl > _KL_BAND * config.desired_kl:
        return max(config.min_learning_rate, rate / _RATE_FACTOR)
    if 0.0 < kl < config.desired_kl / _KL_BAND:
        return min(config.max_learning_rate, rate * _RATE_FACTOR)
    return rate


def normalized(advantages: Tensor) -> Tensor:
    """Advantages with mean 0 and standard deviation 1 over the whole batch."""
    return (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)


class Ppo:
    """Improves an :class:`ActorCritic` in place.

    Args:
        policy: its parameters are moved into a flat vector; see :class:`FlatAdam`.
        config: settings.
        generator: draws the order of samples.
    """

    def __init__(
        self, policy: ActorCritic, config: PpoConfig, *, generator: torch.Generator
    ) -> None:
        self.policy = policy
        self.config = config
        self.generator = generator
        self.optimizer = FlatAdam(policy, learning_rate=config.learning_rate)

    def update(self, batch: Batch) -> PpoStats:
        """All epochs over one batch, or nothing at all.

        Raises:
            NonFiniteUpdateError: parameters and optimiser are as they were before the call; an
                adaptive step size is lower.
        """
        saved, rate = self.optimizer.save(), self.optimizer.learning_rate
        old_log_std = self.policy.log_std.detach().clone()
        sums = torch.zeros(4)
        grad_norms = 0.0
        first = True
        for epoch in range(self.config.epochs):
            # A new order in every epoch, so that minibatches differ between epochs.
            order = torch.randperm(batch.size, generator=self.generator)
            image = self._images(batch)
            for part, rows in enumerate(order.tensor_split(self.config.minibatches)):
                self.optimizer.zero_grad()
                loss, stats = self._loss(batch.take(rows, image[rows]), old_log_std)
                loss.backward()
                norm = self.optimizer.clip_grad(self.config.max_grad_norm)
                if not math.isfinite(norm) or not math.isfinite(loss.item()):
                    what = self._culprit(stats)
                    self.optimizer.restore(saved)
                    self.optimizer.learning_rate = adapted_rate(
                        rate, kl=math.nan, config=self.config
                    )
                    raise NonFiniteUpdateError(
                        f"{what} is not finite in minibatch {part} of epoch {epoch}"
                    )
                if not first:  # before the first step the KL is zero by definition
                    self.optimizer.learning_rate = adapted_rate(
                        self.optimizer.learning_rate, kl=float(stats[2]), config=self.config
                    )
                first = False
                self.optimizer.step()
                sums += stats
                grad_norms += norm
        count = self.config.epochs * self.config.minibatches
        surrogate, value_loss, kl, clipped = (sums / count).tolist()
        return PpoStats(surrogate, value_loss, kl, clipped, grad_norms / count)

    def _images(self, batch: Batch) -> Tensor:
        """``[B]`` 1 where a sample's mirror image is used in this epoch, a random half."""
        if not batch.mirrored:
            return torch.zeros(batch.size, dtype=torch.int64)
        return torch.randint(2, (batch.size,), generator=self.generator)

    def _loss(self, batch: Batch, old_log_std: Tensor) -> tuple[Tensor, Tensor]:
        """The loss ``[]`` and (surrogate, value loss, KL, clipped share) ``[4]``, detached."""
        config, log_std = self.config, self.policy.log_std
        mean = self.policy.actor(batch.obs)
        value = self.policy.critic(batch.critic_obs).squeeze(-1)
        log_ratio = gaussian_log_prob(batch.actions, mean, log_std) - batch.log_probs
        ratio = log_ratio.exp()
        # L = -min(r A, clip(r, 1 - e, 1 + e) A)
        bounded = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
        surrogate = -torch.minimum(ratio * batch.advantages, bounded * batch.advantages).mean()
        value_loss = self._value_loss(value, batch)
        loss = surrogate + config.value_coef * value_loss
        loss = loss - config.entropy_coef * gaussian_entropy(log_std)
        with torch.no_grad():
            kl = gaussian_kl(batch.means, old_log_std, mean, log_std)
            clipped = (bounded != ratio).float().mean()
            return loss, torch.stack((surrogate.detach(), value_loss.detach(), kl, clipped))

    def _value_loss(self, value: Tensor, batch: Batch) -> Tensor:
        error = (value - batch.targets).square()
        if self.config.value_clip is None:
            return error.mean()
        # The larger of the two errors: a value that already moved far gains nothing by moving on.
        bound = self.config.value_clip
        near = batch.values + (value - batch.values).clamp(-bound, bound)
        return torch.maximum(error, (near - batch.targets).square()).mean()

    def _culprit(self, stats: Tensor) -> str:
        for name, value in zip(("the surrogate", "the value loss"), stats.tolist(), strict=False):
            if not math.isfinite(value):
                return name
        for name, parameter in self.policy.named_parameters():
            if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
                return f"the gradient of {name}"
        return "the loss"
