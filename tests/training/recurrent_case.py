"""A policy with a memory, worlds for it, and its own rollouts, for tests."""

from __future__ import annotations

import numpy as np

from real.rollout import Rollout
from tests.training.recall_env import RecallEnv
from training.actor import ActorWorker
from training.learner import Learner
from training.networks import NetworkConfig
from training.ppo import PpoConfig
from training.symmetry import Mirror, SignedPermutation


def network(**changes) -> NetworkConfig:
    sizes = {"hidden": (12,), "critic_hidden": (10,), "init_std": 0.5, "gru": 6, "critic_gru": 5}
    return NetworkConfig.model_validate({**sizes, **changes})


def mirror() -> Mirror:
    """The number changes its sign, and so does the action that is right for it."""
    return Mirror(SignedPermutation((0, 1), (-1.0, 1.0)), SignedPermutation((0,), (-1.0,)))


def learner(*, mirrored: bool = False, config: NetworkConfig | None = None, **ppo) -> Learner:
    return Learner(
        2,
        3,
        action_dim=1,
        network=network() if config is None else config,
        ppo=PpoConfig(**{"epochs": 2, "minibatches": 2, **ppo}),
        seed=0,
        mirror=mirror() if mirrored else None,
    )


def worker(
    num: int = 5,
    *,
    config: NetworkConfig | None = None,
    stream: tuple[int, int] = (0, 0),
    mirrored: bool = False,
) -> ActorWorker:
    return ActorWorker(
        RecallEnv(num, seed=3, stream=stream),
        f"a{stream[0]}",
        network=network() if config is None else config,
        seed=3,
        stream=stream,
        mirror=mirror() if mirrored else None,
    )


def trained(made: Learner, acting: ActorWorker, *, updates: int = 2, steps: int = 8) -> None:
    """Some updates, so that statistics, weights and memories are far from where they start."""
    snapshot = made.snapshot()
    for _ in range(updates):
        snapshot, _ = made.update([acting.collect(snapshot, steps)])


def permuted(rollout: Rollout, order: np.ndarray) -> Rollout:
    """The same worlds in another order: world i of the result is world ``order[i]``."""
    place = np.argsort(order)
    arrays = {
        name: getattr(rollout, name)[:, order]
        for name in ("obs", "critic_obs", "actions", "log_probs", "rewards")
    }
    arrays |= {name: getattr(rollout, name)[:, order] for name in ("terminated", "truncated")}
    for name in ("hidden", "critic_hidden", "mirror_hidden"):
        found = getattr(rollout, name)
        arrays[name] = None if found is None else found[order]
    index = rollout.final_index.copy()
    index[:, 1] = place[index[:, 1]]
    return Rollout(
        **arrays,
        final_index=index,
        final_critic_obs=rollout.final_critic_obs,
        policy_version=rollout.policy_version,
        actor_id=rollout.actor_id,
    )
