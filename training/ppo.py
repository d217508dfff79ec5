"""PPO: the loss, the minibatches and the step size. The only place with gradients.

Source: Schulman et al., "Proximal policy optimization algorithms", 2017. The idea of a step size
that follows the KL is from there too (section 4), its use for walking from Rudin et al., "Learning
to walk in minutes", 2022. They adapt after every minibatch; since the KL grows within an update,
the step size then swings by orders of magnitude in each. Here it changes once per update.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from real.config import Config
from training.flat import FlatAdam
from training.networks import ActorCritic, gaussian_entropy, gaussian_kl, gaussian_log_prob

S = TypeVar("S")
T = TypeVar("T")


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
    entropy_coef: float = Field(default=0.005, ge=0.0, description="weight of the entropy")
    epochs: int = Field(default=5, ge=1, description="passes over a batch")
    minibatches: int = Field(default=4, ge=1, description="steps per pass")
    learning_rate: float = Field(
        default=1e-3, gt=0.0, description="initial step size of the actor's Adam"
    )
    critic_learning_rate: float = Field(
        default=1e-3, gt=0.0, description="step size of the critic's Adam"
    )
    min_learning_rate: float = Field(default=1e-5, gt=0.0, description="lower bound")
    max_learning_rate: float = Field(default=1e-2, gt=0.0, description="upper bound")
    desired_kl: float | None = Field(
        default=0.01, gt=0.0, description="KL the step size aims at [nat]; null keeps it fixed"
    )
    max_grad_norm: float = Field(
        default=1.0, gt=0.0, description="bound on the gradient's norm, of each network"
    )


#: After an update the step size changes by this factor, if the KL is outside this band about the
#: desired one. Small and slow: the KL of one update is a noisy measure of what the step size does.
_RATE_FACTOR, _KL_BAND = 1.2, 1.3
#: Within an update the step size is cut by this factor in every minibatch whose KL is so many times
#: the desired one: one update must not wreck a policy, for instance the first with a bold start.
_BRAKE_FACTOR, _KL_BRAKE = 1.5, 4.0


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

    def actor_part(self, rows: Tensor, image: Tensor) -> ActorBatch:
        """Samples ``rows [b]``, mirrored where ``image [b]`` is 1, in contiguous memory."""
        own = rows + self.size * image if self.mirrored else rows
        return ActorBatch(
            obs=self.obs.index_select(0, own),
            actions=self.actions.index_select(0, own),
            means=self.means.index_select(0, own),
            log_probs=self.log_probs.index_select(0, rows),
            advantages=self.advantages.index_select(0, rows),
        )

    def critic_part(self, rows: Tensor) -> CriticBatch:
        """Samples ``rows [b]`` in contiguous memory."""
        return CriticBatch(
            critic_obs=self.critic_obs.index_select(0, rows),
            targets=self.targets.index_select(0, rows),
            values=self.values.index_select(0, rows),
        )


@dataclass(frozen=True)
class ActorBatch:
    """What the actor learns from; see :class:`Batch`."""

    obs: Tensor
    actions: Tensor
    means: Tensor
    log_probs: Tensor
    advantages: Tensor


@dataclass(frozen=True)
class CriticBatch:
    """What the critic learns from; see :class:`Batch`."""

    critic_obs: Tensor
    targets: Tensor
    values: Tensor


@dataclass(frozen=True)
class Order:
    """In which order the samples are taken: for every epoch and minibatch.

    Attributes:
        rows: ``[b]`` which samples.
        image: ``[b]`` 1 where the mirror image is taken.
    """

    rows: Tensor
    image: Tensor


@dataclass(frozen=True)
class PpoStats:
    """Means over the minibatches of an update; see :mod:`training.metrics` for the meanings."""

    surrogate: float
    value_loss: float
    kl: float
    clip_fraction: float
    grad_norm: float
    critic_grad_norm: float


class NonFiniteUpdateError(ArithmeticError):
    """A loss or gradient was not finite; parameters and optimiser are as before the update."""


def adapted_rate(rate: float, *, kl: float, config: PpoConfig) -> float:
    """The step size after an update that moved the policy by ``kl``.

    A KL of exactly zero or below says that nothing was learned, and one that is not finite that
    something broke; neither is a reason to step further.

    Args:
        rate: present step size.
        kl: KL(policy before the update || policy at its end) [nat].
        config: desired KL and bounds.
    """
    if config.desired_kl is None:
        return rate
    if not math.isfinite(kl) or kl > _KL_BAND * config.desired_kl:
        return max(config.min_learning_rate, rate / _RATE_FACTOR)
    if 0.0 < kl < config.desired_kl / _KL_BAND:
        return min(config.max_learning_rate, rate * _RATE_FACTOR)
    return rate


def braked_rate(rate: float, *, kl: float, config: PpoConfig) -> float:
    """The step size within an update, after minibatches that moved the policy by ``kl``."""
    if config.desired_kl is None or kl <= _KL_BRAKE * config.desired_kl:
        return rate
    return max(config.min_learning_rate, rate / _BRAKE_FACTOR)  # NaN ends here too


def normalized(advantages: Tensor) -> Tensor:
    """Advantages with mean 0 and standard deviation 1 over the whole batch."""
    return (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)


class Ppo:
    """Improves an :class:`ActorCritic` in place.

    Actor and critic share nothing but the samples, so each has its own optimiser and they learn
    side by side in two threads. On two cores that is faster than splitting every small matrix
    product, does not collapse when another process wants a core, and gives the same numbers
    whatever the number of cores.

    Args:
        policy: its parameters are moved into flat vectors; see :class:`FlatAdam`.
        config: settings.
        generator: draws the order of samples.
    """

    def __init__(
        self, policy: ActorCritic, config: PpoConfig, *, generator: torch.Generator
    ) -> None:
        self.policy = policy
        self.config = config
        self.generator = generator
        self.actor_adam = FlatAdam(policy.actor_parameters(), learning_rate=config.learning_rate)
        self.critic_adam = FlatAdam(
            policy.critic_parameters(), learning_rate=config.critic_learning_rate
        )

    def update(self, batch: Batch) -> PpoStats:
        """All epochs over one batch, or nothing at all.

        Raises:
            NonFiniteUpdateError: parameters and optimisers are as they were before the call; an
                adaptive step size is lower.
        """
        saved = self.actor_adam.save(), self.critic_adam.save()
        rate = self.actor_adam.learning_rate
        orders = self._orders(batch)
        try:
            (surrogate, kl, clipped, norm), (value_loss, critic_norm) = side_by_side(
                lambda: self._train_actor(batch, orders), lambda: self._train_critic(batch, orders)
            )
        except NonFiniteUpdateError:
            self.actor_adam.restore(saved[0])
            self.critic_adam.restore(saved[1])
            self.actor_adam.learning_rate = adapted_rate(rate, kl=math.nan, config=self.config)
            raise
        return PpoStats(
            surrogate=surrogate,
            value_loss=value_loss,
            kl=kl,
            clip_fraction=clipped,
            grad_norm=norm,
            critic_grad_norm=critic_norm,
        )

    def _orders(self, batch: Batch) -> list[Order]:
        orders: list[Order] = []
        for _ in range(self.config.epochs):
            # A new order in every epoch, so that minibatches differ between epochs.
            order = torch.randperm(batch.size, generator=self.generator)
            image = torch.zeros_like(order)
            if batch.mirrored:  # a random half, another one in every epoch
                image = torch.randint(2, (batch.size,), generator=self.generator)
            parts = order.tensor_split(self.config.minibatches)
            orders.extend(Order(rows, image[rows]) for rows in parts)
        return orders

    def _train_actor(self, batch: Batch, orders: list[Order]) -> list[float]:
        """Means over the minibatches of surrogate, KL, clipped share and gradient norm."""
        adam, old_log_std = self.actor_adam, self.policy.log_std.detach().clone()
        sums, last_kl = torch.zeros(4), 0.0
        for number, order in enumerate(orders):
            adam.zero_grad()
            part = batch.actor_part(order.rows, order.image)
            loss, stats = self._actor_loss(part, old_log_std)
            loss.backward()
            norm = adam.clip_grad(self.config.max_grad_norm)
            self._require_finite("surrogate", loss, norm=norm, adam=adam, number=number)
            kl = stats[1].item()
            adam.learning_rate = braked_rate(adam.learning_rate, kl=kl, config=self.config)
            adam.step()
            stats[3] = norm
            sums += stats
            if number >= len(orders) - self.config.minibatches:  # the last epoch
                last_kl += kl / self.config.minibatches
        adam.learning_rate = adapted_rate(adam.learning_rate, kl=last_kl, config=self.config)
        return (sums / len(orders)).tolist()

    def _train_critic(self, batch: Batch, orders: list[Order]) -> list[float]:
        """Means over the minibatches of value loss and gradient norm."""
        adam = self.critic_adam
        sums = torch.zeros(2)
        for number, order in enumerate(orders):
            adam.zero_grad()
            loss = self._value_loss(batch.critic_part(order.rows))
            loss.backward()
            norm = adam.clip_grad(self.config.max_grad_norm)
            self._require_finite("value", loss, norm=norm, adam=adam, number=number)
            adam.step()
            sums += torch.stack((loss.detach(), torch.tensor(norm)))
        return (sums / len(orders)).tolist()

    def _actor_loss(self, part: ActorBatch, old_log_std: Tensor) -> tuple[Tensor, Tensor]:
        """The loss ``[]`` and (surrogate, KL, clipped share, room for one more) ``[4]``."""
        config, log_std = self.config, self.policy.log_std
        mean = self.policy.actor(part.obs)
        ratio = (gaussian_log_prob(part.actions, mean, log_std) - part.log_probs).exp()
        # L = -min(r A, clip(r, 1 - e, 1 + e) A)
        bounded = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
        surrogate = -torch.minimum(ratio * part.advantages, bounded * part.advantages).mean()
        loss = surrogate - config.entropy_coef * gaussian_entropy(log_std)
        with torch.no_grad():
            kl = gaussian_kl(part.means, old_log_std, mean, log_std)
            clipped = (bounded != ratio).float().mean()
            return loss, torch.stack((surrogate.detach(), kl, clipped, torch.zeros(())))

    def _value_loss(self, part: CriticBatch) -> Tensor:
        value = self.policy.critic(part.critic_obs).squeeze(-1)
        error = (value - part.targets).square()
        if self.config.value_clip is None:
            return error.mean()
        # The larger of the two errors: a value that already moved far gains nothing by moving on.
        bound = self.config.value_clip
        near = part.values + (value - part.values).clamp(-bound, bound)
        return torch.maximum(error, (near - part.targets).square()).mean()

    def _require_finite(
        self, name: str, loss: Tensor, *, norm: float, adam: FlatAdam, number: int
    ) -> None:
        if math.isfinite(norm) and math.isfinite(loss.item()):
            return
        what = f"the {name} loss"
        if math.isfinite(loss.item()):
            what = f"the gradient of {adam.not_finite() or name}"
        epoch, part = divmod(number, self.config.minibatches)
        raise NonFiniteUpdateError(f"{what} is not finite in minibatch {part} of epoch {epoch}")


def side_by_side(one: Callable[[], S], two: Callable[[], T]) -> tuple[S, T]:
    """Run two functions at the same time and wait for both.

    Torch lets go of Python's lock while it computes. Whatever the threads do, ``two`` has ended
    when this returns or raises.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        later = pool.submit(two)
        first = one()
        return first, later.result()
