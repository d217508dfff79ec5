"""Actor and critic: two MLPs with their normalisers, and the Gaussian the actor samples from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from real.config import Config
from training.normalizer import Normalizer

_LOG_2PI = math.log(2.0 * math.pi)


class NetworkConfig(Config):
    """Sizes and initial values of the networks."""

    hidden: tuple[int, ...] = Field(
        default=(256, 128, 64), min_length=1, description="widths of the actor's hidden layers"
    )
    critic_hidden: tuple[int, ...] = Field(
        default=(256, 128, 64), min_length=1, description="widths of the critic's hidden layers"
    )
    init_std: float = Field(
        default=1.0, gt=0.0, description="initial standard deviation of the action [1]"
    )
    obs_clip: float = Field(
        default=10.0, gt=0.0, description="bound on normalised observations [std]"
    )


class ActorCritic(nn.Module):
    """A Gaussian policy of the observation and a value of the (privileged) critic observation.

    The action is unbounded; the env or the action decoder clips it. The standard deviation does
    not depend on the observation.

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

    def actor_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Names and parameters that the surrogate loss trains."""
        named = self.named_parameters()
        return [(name, p) for name, p in named if not name.startswith("critic.")]

    def critic_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Names and parameters that the value loss trains: all others."""
        named = self.named_parameters()
        return [(name, p) for name, p in named if name.startswith("critic.")]

    def mean(self, obs: Tensor) -> Tensor:
        """Mean action of raw observations: ``[..., D] -> [..., A]``."""
        return self.actor(self.obs_norm(obs))

    def value(self, critic_obs: Tensor) -> Tensor:
        """Value of raw critic observations: ``[..., C] -> [...]``."""
        return self.critic(self.critic_norm(critic_obs)).squeeze(-1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """What the robot runs: ``[N, D]`` raw -> mean ``[N, A]``, log_std ``[N, A]``."""
        mean = self.mean(obs)
        return mean, self.log_std.expand_as(mean)

    def act(self, obs: Tensor, *, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sample actions.

        Args:
            obs: ``[..., D]`` raw.
            noise: ``[..., A]`` standard normal numbers; the caller owns the generator.

        Returns:
            Unclipped action ``[..., A]`` and its log density ``[...]``.
        """
        mean = self.mean(obs)
        action = mean + self.log_std.exp() * noise
        return action, gaussian_log_prob(action, mean, self.log_std)


def gaussian_log_prob(action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log density of a diagonal Gaussian: ``[..., A], [..., A], [A] -> [...]``."""
    # -1/2 sum ((a - mu) / sigma)^2 - sum log sigma - A/2 log 2 pi
    z = (action - mean) * torch.exp(-log_std)
    constant = log_std.sum() + 0.5 * action.shape[-1] * _LOG_2PI
    return -0.5 * (z * z).sum(-1) - constant


def gaussian_entropy(log_std: Tensor) -> Tensor:
    """Differential entropy of a diagonal Gaussian [nat]: ``[A] -> []``."""
    return log_std.sum() + 0.5 * log_std.shape[-1] * (1.0 + _LOG_2PI)


def gaussian_kl(old_mean: Tensor, old_log_std: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """KL(old || new) of diagonal Gaussians [nat], averaged over leading axes: ``-> []``."""
    # sum log(s/s0) + (s0^2 + (m0 - m)^2) / (2 s^2) - 1/2
    squares = (old_mean - mean).square().reshape(-1, mean.shape[-1]).mean(0)  # [A]
    precision = torch.exp(-2.0 * log_std)
    per_dim = log_std - old_log_std + 0.5 * precision * (torch.exp(2.0 * old_log_std) + squares)
    return (per_dim - 0.5).sum()


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
