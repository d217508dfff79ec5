"""PPO: the minibatches and the step size. The only place with gradients.

Source: Schulman et al., "Proximal policy optimization algorithms", 2017. The idea of a step size
that follows the KL is from there too (section 4), its use for walking from Rudin et al., "Learning
to walk in minutes", 2022. They adapt after every minibatch; since the KL grows within an update,
the step size then swings by orders of magnitude in each. Here it changes once per update.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from training.batch import ActorBatch, Batch, CriticBatch, Order
from training.by_hand import ByHand
from training.flat import FlatAdam
from training.losses import clipped_surrogate, decoupled_surrogate, normalized, value_loss
from training.networks import ActorCritic
from training.normalizer import Moments
from training.parallel import ALONE, LearnerLostError, Learners
from training.ppo_config import PpoConfig
from training.schedules import kl_adapted, kl_braked, scheduled

__all__ = [
    "Batch",
    "NonFiniteUpdateError",
    "Ppo",
    "PpoConfig",
    "PpoStats",
    "adapted_rate",
    "braked_rate",
    "normalized",
    "side_by_side",
]

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class PpoStats:
    """Means over the minibatches of an update; see :mod:`training.metrics` for the meanings."""

    surrogate: float
    value_loss: float
    kl: float
    clip_fraction: float
    grad_norm: float
    critic_grad_norm: float
    step_share: float


class NonFiniteUpdateError(ArithmeticError):
    """A loss or gradient was not finite; parameters and optimiser are as before the update."""


def adapted_rate(rate: float, *, kl: float, config: PpoConfig) -> float:
    """The actor's step size after an update that moved the policy by ``kl``."""
    if config.desired_kl is None:
        return rate
    bounds = {"low": config.min_learning_rate, "high": config.max_learning_rate}
    return kl_adapted(rate, kl=kl, desired=config.desired_kl, **bounds)


def braked_rate(rate: float, *, kl: float, config: PpoConfig) -> float:
    """The step size within an update, after minibatches that moved the policy by ``kl``."""
    if config.desired_kl is None:
        return rate
    return kl_braked(rate, kl=kl, desired=config.desired_kl, low=config.min_learning_rate)


class Ppo:
    """Improves an :class:`ActorCritic` in place.

    Actor and critic share nothing but the samples, so each has its own optimiser and they learn
    side by side in two threads. On two cores that is faster than splitting every small matrix
    product, does not collapse when another process wants a core, and gives the same numbers
    whatever the number of cores.

    Args:
        policy: its parameters are moved into flat vectors; see :class:`FlatAdam`.
        config: settings.
        generator: draws the order of samples; in the same state in all learners.
        learners: with whom samples and steps are shared.
    """

    def __init__(
        self,
        policy: ActorCritic,
        config: PpoConfig,
        *,
        generator: torch.Generator,
        learners: Learners = ALONE,
    ) -> None:
        self.policy = policy
        self.config = config
        self.generator = generator
        self.learners = learners
        self.actor_adam = FlatAdam(policy.actor_parameters(), learning_rate=config.learning_rate)
        self.critic_adam = FlatAdam(
            policy.critic_parameters(), learning_rate=config.critic_learning_rate
        )
        self._actor: Callable[[Tensor], Tensor] = policy.actor
        self._critic: Callable[[Tensor], Tensor] = policy.critic
        if config.compile:
            self._actor = torch.compile(policy.actor, dynamic=True)
            self._critic = torch.compile(policy.critic, dynamic=True)
        self._by_hand = ByHand(policy, config) if ByHand.suits(policy, config) else None
        self._set_scheduled(0)

    def update(self, batch: Batch, *, number: int = 0) -> PpoStats:
        """All epochs over one batch, or nothing at all.

        Args:
            batch: this learner's samples.
            number: updates done before, for the schedules.

        Raises:
            NonFiniteUpdateError: parameters and optimisers are as they were before the call; an
                adaptive step size is lower.
            LearnerLostError: the same, with the step size as it was.
        """
        saved = self.actor_adam.save(), self.critic_adam.save()
        self._set_scheduled(number)
        rate = self.actor_adam.learning_rate
        orders = self._orders(batch)
        try:
            actor, critic = side_by_side(
                lambda: self._train_actor(batch, orders), lambda: self._train_critic(batch, orders)
            )
        except (NonFiniteUpdateError, LearnerLostError) as error:
            self.actor_adam.restore(saved[0])
            self.critic_adam.restore(saved[1])
            if isinstance(error, NonFiniteUpdateError):
                rate = adapted_rate(rate, kl=math.nan, config=self.config)
            self.actor_adam.learning_rate = rate
            raise
        surrogate, kl, clipped, _, norm, step_share = actor
        return PpoStats(
            surrogate=surrogate,
            value_loss=critic[0],
            kl=kl,
            clip_fraction=clipped,
            grad_norm=norm,
            critic_grad_norm=critic[1],
            step_share=step_share,
        )

    def _set_scheduled(self, number: int) -> None:
        config, schedules = self.config, self.config.schedules
        self.clip = scheduled(schedules.clip, config.clip, update=number)
        self.entropy_coef = scheduled(schedules.entropy_coef, config.entropy_coef, update=number)
        self.critic_adam.learning_rate = scheduled(
            schedules.critic_learning_rate, config.critic_learning_rate, update=number
        )
        if schedules.learning_rate is not None:
            self.actor_adam.learning_rate = schedules.learning_rate.value(
                config.learning_rate, update=number
            )

    def _orders(self, batch: Batch) -> list[Order]:
        orders: list[Order] = []
        device = batch.obs.device
        place = self.learners.place(batch.size)
        for _ in range(self.config.epochs):
            # A new order in every epoch, so that minibatches differ between epochs.
            order = torch.randperm(place.total, generator=self.generator, device="cpu")
            image = torch.zeros_like(order)
            if batch.mirrored:  # a random half, another one in every epoch
                image = torch.randint(2, order.shape, generator=self.generator, device="cpu")
            for rows in order.tensor_split(self.config.minibatches):
                if self.learners.size == 1:
                    orders.append(Order(rows.to(device), image[rows].to(device)))
                    continue
                mine = rows[(rows >= place.start) & (rows < place.start + place.own)]
                share = len(mine) / max(len(rows), 1)
                own = (mine - place.start).to(device)
                orders.append(Order(own, image[mine].to(device), share))
        return orders

    def _train_actor(self, batch: Batch, orders: list[Order]) -> list[float]:
        """Means over minibatches of surrogate, KL, clip share, loss, gradient norm; step share."""
        adam, line, config = self.actor_adam, self.learners.actor, self.config
        old_log_std = self.policy.log_std.detach().clone()
        sums, kls, steps = adam.grad.new_zeros(5), [], 0
        for number, order in enumerate(orders):
            adam.zero_grad()
            part = self._with_advantages(batch.actor_part(order.rows, order.image))
            stats = torch.zeros_like(sums)
            if len(order.rows):  # nobody's share may be empty, but one learner's can
                stats = self._actor_gradient(part, old_log_std, order.share) * order.share
            line.sum_(stats)
            line.sum_(adam.grad)
            norm = adam.clip_grad(config.max_grad_norm)
            self._require_finite("surrogate", stats[3], norm=norm, adam=adam, number=number)
            kls.append(stats[1].item())
            stats[4] = norm
            sums += stats
            if config.stop_kl is not None and kls[-1] > config.stop_kl:
                break
            adam.learning_rate = braked_rate(adam.learning_rate, kl=kls[-1], config=config)
            adam.step()
            steps += 1
        # That of the last epoch: the way of the whole update. If it was cut short, the last one.
        last = kls[-config.minibatches :] if steps == len(orders) else kls[-1:]
        last_kl = sum(kl / len(last) for kl in last)
        adam.learning_rate = adapted_rate(adam.learning_rate, kl=last_kl, config=config)
        return [*(sums / len(kls)).tolist(), steps / len(orders)]

    def _train_critic(self, batch: Batch, orders: list[Order]) -> list[float]:
        """Means over the minibatches of value loss and gradient norm."""
        adam, line = self.critic_adam, self.learners.critic
        sums = adam.grad.new_zeros(2)
        for number, order in enumerate(orders):
            adam.zero_grad()
            stats = torch.zeros_like(sums)
            if len(order.rows):
                part = batch.critic_part(order.rows)
                stats[0] = self._critic_gradient(part, order.share) * order.share
            line.sum_(stats)
            line.sum_(adam.grad)
            norm = adam.clip_grad(self.config.max_grad_norm)
            self._require_finite("value", stats[0], norm=norm, adam=adam, number=number)
            adam.step()
            stats[1] = norm
            sums += stats
        return (sums / len(orders)).tolist()

    def _with_advantages(self, part: ActorBatch) -> ActorBatch:
        """The samples with advantages as the loss wants them."""
        if self.config.advantage_norm != "minibatch":
            return part  # normalised over the batch before, or not at all
        moments = None
        if self.learners.size > 1:
            moments = self.learners.actor.moments(Moments.of(part.advantages.unsqueeze(-1)))
        values = vars(part) | {"advantages": normalized(part.advantages, moments)}
        return ActorBatch(**values)

    def _actor_gradient(self, part: ActorBatch, old_log_std: Tensor, share: float) -> Tensor:
        """Set the gradients of the actor's loss times ``share``; the statistics ``[5]``."""
        if self._by_hand is not None:
            at = {"clip": self.clip, "entropy_coef": self.entropy_coef}
            return self._by_hand.actor(part, old_log_std, share=share, **at)
        loss, stats = self._actor_loss(part, old_log_std)
        (loss * share).backward()
        return stats

    def _critic_gradient(self, part: CriticBatch, share: float) -> Tensor:
        """Set the gradients of the weighted value loss times ``share``; the loss ``[]``."""
        if self._by_hand is not None:
            return self._by_hand.critic(part, share=share)
        loss = self._value_loss(part)
        (self.config.value_coef * loss * share).backward()
        return loss.detach()

    def _actor_loss(self, part: ActorBatch, old_log_std: Tensor) -> tuple[Tensor, Tensor]:
        """The loss ``[]`` and (surrogate, KL, clip share, loss, room for one more) ``[5]``."""
        policy, log_std = self.policy, self.policy.log_std
        with self._precision():
            mean = self._actor(part.obs)
        mean = mean.float()
        log_prob = policy.distribution.log_prob(part.actions, mean, log_std)
        if part.proximal is None:
            surrogate, clipped = clipped_surrogate(
                log_prob - part.log_probs, part.advantages, clip=self.clip, weights=part.weights
            )
        else:
            surrogate, clipped = decoupled_surrogate(
                log_prob,
                part.advantages,
                proximal=part.proximal,
                behaviour=part.log_probs,
                clip=self.clip,
                weight_bar=self.config.proximal_bar,
                weights=part.weights,
            )
        loss = surrogate - self.entropy_coef * policy.distribution.entropy(mean, log_std)
        with torch.no_grad():
            kl = policy.distribution.kl(part.means, old_log_std, mean, log_std)
            numbers = (surrogate.detach(), kl, clipped, loss.detach(), torch.zeros_like(kl))
            return loss, torch.stack(numbers)

    def _value_loss(self, part: CriticBatch) -> Tensor:
        with self._precision():
            value = self._critic(part.critic_obs).squeeze(-1)
        return value_loss(
            value.float(),
            part.targets,
            old=part.values,
            clip=self.config.value_clip,
            weights=part.weights,
        )

    def _precision(self) -> contextlib.AbstractContextManager[object]:
        if not self.config.bf16:
            return contextlib.nullcontext()
        return torch.autocast(self.actor_adam.grad.device.type, dtype=torch.bfloat16)

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
