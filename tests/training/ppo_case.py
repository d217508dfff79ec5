"""A small policy and a batch of its own samples, for the tests of the update."""

from __future__ import annotations

import torch

from training.networks import ActorCritic, NetworkConfig, gaussian_log_prob
from training.ppo import (
    Batch,
    Ppo,
    PpoConfig,
    normalized,
)

D, C, A, B = 4, 6, 3, 40
SMALL = NetworkConfig(hidden=(16, 8), critic_hidden=(12,))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def policy(seed: int = 0) -> ActorCritic:
    return ActorCritic(D, C, action_dim=A, config=SMALL, seed=seed)


def batch_of(module: ActorCritic, *, seed: int = 0) -> Batch:
    obs, critic_obs = normal(B, D, seed=seed), normal(B, C, seed=seed + 1)
    with torch.no_grad():
        means = module.actor(obs)
        actions = means + module.log_std.exp() * normal(B, A, seed=seed + 2)
        return Batch(
            obs=obs,
            critic_obs=critic_obs,
            actions=actions,
            means=means,
            log_probs=gaussian_log_prob(actions, means, module.log_std),
            advantages=normalized(normal(B, seed=seed + 3)),
            targets=normal(B, seed=seed + 4),
            values=module.critic(critic_obs).squeeze(-1),
        )


def ppo(module: ActorCritic, **config) -> Ppo:
    return Ppo(module, PpoConfig(**config), generator=torch.Generator().manual_seed(0))


def parameters(module: ActorCritic) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()]).clone()
