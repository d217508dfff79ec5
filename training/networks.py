"""Actor and critic: two MLPs with their normalisers, and what the actor's output means."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from real.config import Config
from training.distributions import (
    Gaussian,
    SquashedGaussian,
    gaussian_entropy,
    gaussian_kl,
    gaussian_log_prob,
)
from training.normalizer import Normalizer
from training.popart import ReturnNorm

__all__ = [
    "ActorCritic",
    "NetworkConfig",
    "gaussian_entropy",
    "gaussian_kl",
    "gaussian_log_prob",
]


Width = Annotated[int, Field(ge=1)]


class NetworkConfig(Config):
    """Sizes and initial values of the networks."""

    hidden: tuple[Width, ...] = Field(
        default=(256, 128, 64), min_length=1, description="widths of the actor's hidden layers"
    )
    critic_hidden: tuple[Width, ...] = Field(
        default=(256, 128, 64), min_length=1, description="widths of the critic's hidden layers"
    )
    init_std: float = Field(
        default=1.0, gt=0.0, description="initial standard deviation of the action [1]"
    )
    squash: float | None = Field(
        default=None,
        gt=0.0,
        description="bound of a tanh-squashed action; null = a plain Gaussian, clipped by the env",
    )
    return_norm: Literal["none", "running", "popart"] = Field(
        default="none",
        description="units of the critic's output: the reward's, or standard deviations of the "
        "targets so far; popart keeps the values when those change",
    )
    return_window: float = Field(
        default=1e5, gt=0.0, description="samples after which older targets are forgotten"
    )
    obs_clip: float = Field(
        default=10.0, gt=0.0, description="bound on normalised observations [std]"
    )


class ActorCritic(nn.Module):
    """A Gaussian policy of the observation and a value of the (privileged) critic observation.

    A plain Gaussian's action is unbounded: the env or the action decoder clips it. A squashed one
    is inside its bound. The standard deviation does not depend on the observation.

    Attributes:
        distribution: what the actor's output is the mean of.
        return_norm: units of the critic's output; None for those of the reward.

    Args:
        policy_dim: D, length of the policy observation.
        critic_dim: C, length of the critic observation.
        action_dim: A.
        config: sizes.
        seed: of the initial weights; no global generator is touched.
    """

    def __init__(
        self,
        policy_dim: int,
        critic_dim: int,
        *,
        action_dim: int,
        config: NetworkConfig,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.policy_dim, self.critic_dim, self.action_dim = policy_dim, critic_dim, action_dim
        self.config = config
        generator = torch.Generator().manual_seed(seed)
        self.obs_norm = Normalizer(policy_dim, clip=config.obs_clip)
        self.critic_norm = Normalizer(critic_dim, clip=config.obs_clip)
        # A gain of 0.01 starts the policy at the default pose whatever it sees; Andrychowicz et
        # al., "What matters in on-policy reinforcement learning?", 2020, section 3.2.
        self.actor = _mlp(policy_dim, config.hidden, action_dim, 0.01, generator)
        self.critic = _mlp(critic_dim, config.critic_hidden, 1, 1.0, generator)
        self.log_std = nn.Parameter(torch.full((action_dim,), math.log(config.init_std)))
        self.distribution = Gaussian()
        if config.squash is not None:
            self.distribution = SquashedGaussian(config.squash)
        self.return_norm: ReturnNorm | None = None
        if config.return_norm != "none":
            self.return_norm = ReturnNorm(window=config.return_window)

    def actor_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Names and parameters that the surrogate loss trains."""
        named = self.named_parameters()
        return [(name, p) for name, p in named if not name.startswith("critic.")]

    def critic_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Names and parameters that the value loss trains: all others."""
        named = self.named_parameters()
        return [(name, p) for name, p in named if name.startswith("critic.")]

    def mean(self, obs: Tensor) -> Tensor:
        """Mean of the Gaussian, before any squashing, from raw observations.

        ``[..., D] -> [..., A]``.
        """
        return self.actor(self.obs_norm(obs))

    def value(self, critic_obs: Tensor) -> Tensor:
        """Value of raw critic observations, in units of the reward: ``[..., C] -> [...]``."""
        return self.value_of(self.critic(self.critic_norm(critic_obs)).squeeze(-1))

    def value_of(self, output: Tensor) -> Tensor:
        """The critic's output in units of the reward, any shape."""
        return output if self.return_norm is None else self.return_norm.denormalize(output)

    def output_of(self, value: Tensor) -> Tensor:
        """The inverse of :meth:`value_of`: what the critic should put out, any shape."""
        return value if self.return_norm is None else self.return_norm.normalize(value)

    @property
    def value_head(self) -> nn.Linear:
        """The critic's last layer."""
        head = self.critic[-1]
        assert isinstance(head, nn.Linear)
        return head

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """What the robot runs: ``[N, D]`` raw -> the action without noise, log_std.

        Both are ``[N, A]``. log_std is that of the Gaussian, before squashing.
        """
        mean = self.mean(obs)
        return self.distribution.squash(mean), self.log_std.expand_as(mean)

    def act(self, obs: Tensor, *, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sample actions.

        Args:
            obs: ``[..., D]`` raw.
            noise: ``[..., A]`` standard normal numbers; the caller owns the generator.

        Returns:
            Unclipped action ``[..., A]`` and its log density ``[...]``.
        """
        mean = self.mean(obs)
        action = self.distribution.sample(mean, self.log_std, noise=noise)
        return action, self.distribution.log_prob(action, mean, self.log_std)


def _mlp(
    inputs: int, hidden: Sequence[int], outputs: int, gain: float, generator: torch.Generator
) -> nn.Sequential:
    """Linear layers with ELU between; orthogonal weights, zero biases."""
    layers: list[nn.Module] = []
    sizes = (inputs, *hidden)
    for before, after in itertools.pairwise(sizes):
        # sqrt 2 keeps the scale of signals through a unit that is linear on half its range.
        layers += [_linear(before, after, math.sqrt(2.0), generator), nn.ELU()]
    layers.append(_linear(sizes[-1], outputs, gain, generator))
    return nn.Sequential(*layers)


def _linear(inputs: int, outputs: int, gain: float, generator: torch.Generator) -> nn.Linear:
    # skip_init: the default initialisation would draw from the global generator.
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs)
    assert isinstance(layer, nn.Linear)
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer
