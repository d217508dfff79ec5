"""Actor and critic: two MLPs with their normalisers, and what the actor's output means.

Either may have a memory, a GRU between its normaliser and its MLP.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from real.config import Config
from real.errors import FerryError
from training.distributions import (
    Categorical,
    Gaussian,
    SquashedGaussian,
    gaussian_entropy,
    gaussian_kl,
    gaussian_log_prob,
)
from training.gru import Gru
from training.normalizer import Normalizer
from training.popart import ReturnNorm

__all__ = [
    "ActorCritic",
    "GruConfig",
    "NetworkConfig",
    "gaussian_entropy",
    "gaussian_kl",
    "gaussian_log_prob",
]


Width = Annotated[int, Field(ge=1)]


class GruConfig(Config):
    """A memory; ``gru: 64`` is short for ``gru: {hidden: 64}``."""

    hidden: Width = Field(description="numbers that are remembered from step to step")

    @model_validator(mode="before")
    @classmethod
    def _number_alone(cls, given: Any) -> Any:
        if given is False or given == 0:
            raise ValueError(f"{given!r} is no size of a memory; null is off, which is the default")
        if isinstance(given, int) and not isinstance(given, bool):
            return {"hidden": given}
        return given


class NetworkConfig(Config):
    """Sizes and initial values of the networks."""

    hidden: tuple[Width, ...] = Field(
        default=(256, 128, 64), min_length=1, description="widths of the actor's hidden layers"
    )
    critic_hidden: tuple[Width, ...] = Field(
        default=(256, 128, 64), min_length=1, description="widths of the critic's hidden layers"
    )
    gru: GruConfig | None = Field(
        default=None,
        description="memory of the policy, between its normaliser and its layers; null for none",
    )
    # The critic is thrown away after training and may see what the policy has to remember, so
    # it needs a memory only where its own observation lacks something.
    critic_gru: GruConfig | None = Field(
        default=None, description="memory of the critic; null for none, whatever the policy has"
    )
    init_std: float = Field(
        default=1.0, gt=0.0, description="initial standard deviation of the action [1]"
    )
    squash: float | None = Field(
        default=None,
        gt=0.0,
        description="bound of a tanh-squashed action; null = a plain Gaussian, clipped by the env",
    )
    discrete: bool = Field(
        default=False, description="choose one action of several; the env of a Gymnasium run says"
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

    A policy with a memory is asked by :meth:`advance`, which takes and gives what it remembers; the
    caller keeps that, per world, and sets it to :meth:`initial_hidden` when an episode begins.

    Attributes:
        gru: memory of the policy; None for none.
        critic_gru: memory of the critic; None for none.
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
        remembered, by_critic = (
            0 if g is None else g.hidden for g in (config.gru, config.critic_gru)
        )
        self.actor = _mlp(remembered or policy_dim, config.hidden, action_dim, 0.01, generator)
        self.critic = _mlp(by_critic or critic_dim, config.critic_hidden, 1, 1.0, generator)
        self.gru = Gru(policy_dim, remembered, generator=generator) if remembered else None
        self.critic_gru = Gru(critic_dim, by_critic, generator=generator) if by_critic else None
        self.log_std = nn.Parameter(torch.full((action_dim,), math.log(config.init_std)))
        self.distribution = Gaussian()
        if config.squash is not None:
            self.distribution = SquashedGaussian(config.squash)
        if config.discrete:
            self.distribution = Categorical()
        self.return_norm: ReturnNorm | None = None
        if config.return_norm != "none":
            self.return_norm = ReturnNorm(window=config.return_window)

    def actor_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Names and parameters that the surrogate loss trains."""
        named = self.named_parameters()
        return [(name, p) for name, p in named if not name.startswith(_OF_CRITIC)]

    def critic_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Names and parameters that the value loss trains: all others."""
        named = self.named_parameters()
        return [(name, p) for name, p in named if name.startswith(_OF_CRITIC)]

    @property
    def hidden_size(self) -> int:
        """H, how many numbers the policy remembers; 0 for none."""
        return 0 if self.gru is None else self.gru.size

    def initial_hidden(self, num: int) -> Tensor:
        """``[N, H]`` what the policy remembers at the beginning of an episode: zeros."""
        return self.log_std.new_zeros(num, self.hidden_size)

    def advance(self, obs: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the policy, whether it has a memory or not.

        Args:
            obs: ``[N, D]`` raw.
            hidden: ``[N, H]`` what it remembers; H is 0 without a memory.

        Returns:
            Mean ``[N, A]`` as :meth:`mean`'s, and what it remembers next ``[N, H]``.
        """
        features = self.obs_norm(obs)
        if self.gru is not None:
            features = hidden = self.gru(features, hidden)
        return self.actor(features), hidden

    def mean(self, obs: Tensor) -> Tensor:
        """Mean of the Gaussian, before any squashing, from raw observations.

        ``[..., D] -> [..., A]``.

        Raises:
            FerryError: the policy has a memory, so an observation alone has no answer.
        """
        _require_no_memory(self.gru, "policy", "advance()")
        return self.actor(self.obs_norm(obs))

    def value(self, critic_obs: Tensor) -> Tensor:
        """Value of raw critic observations, in units of the reward: ``[..., C] -> [...]``.

        Raises:
            FerryError: the critic has a memory, so an observation alone has no value.
        """
        _require_no_memory(self.critic_gru, "critic", "advance_critic()")
        return self.value_of(self.critic(self.critic_norm(critic_obs)).squeeze(-1))

    @property
    def critic_hidden_size(self) -> int:
        """How many numbers the critic remembers; 0 for none."""
        return 0 if self.critic_gru is None else self.critic_gru.size

    def advance_critic(self, critic_obs: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the critic, as :meth:`advance`: values ``[N]`` and what it remembers next."""
        features = self.critic_norm(critic_obs)
        if self.critic_gru is not None:
            features = hidden = self.critic_gru(features, hidden)
        return self.value_of(self.critic(features).squeeze(-1)), hidden

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

    def forward(self, obs: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, ...]:
        """What the robot runs: ``[N, D]`` raw -> the action without noise, log_std.

        Both are ``[N, A]``. log_std is that of the Gaussian, before squashing. A policy with a
        memory also takes and gives what it remembers, ``[N, H]``.
        """
        if self.gru is None or hidden is None:
            mean = self.mean(obs)
            return self.distribution.squash(mean), self.log_std.expand_as(mean)
        mean, hidden = self.advance(obs, hidden)
        return self.distribution.squash(mean), self.log_std.expand_as(mean), hidden

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


#: How the names of parameters begin that the value loss trains.
_OF_CRITIC = ("critic.", "critic_gru.")


def _require_no_memory(gru: Gru | None, who: str, instead: str) -> None:
    if gru is not None:
        raise FerryError(f"this {who} has a memory of {gru.size} numbers; ask it by {instead}")


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
