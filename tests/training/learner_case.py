"""A learner, an actor in a small env, and rollouts that nobody collected, for tests."""

from __future__ import annotations

import numpy as np
import torch

from real.rollout import Rollout
from training.actor import ActorWorker
from training.learner import Learner
from training.networks import NetworkConfig, gaussian_log_prob
from training.ppo import PpoConfig
from training.toy_env import PointEnv

NETWORK = NetworkConfig(hidden=(32, 32), critic_hidden=(32, 32))


def learner(**ppo) -> Learner:
    return Learner(4, 5, action_dim=2, network=NETWORK, ppo=PpoConfig(**ppo), seed=0)


def actor(num: int = 64, *, limit: int = 40, stream: tuple[int, int] = (0, 0)) -> ActorWorker:
    env = PointEnv(num, seed=0, limit=limit)
    return ActorWorker(env, f"a{stream[0]}", network=NETWORK, seed=0, stream=stream)


def train(made: Learner, acting: ActorWorker, updates: int, horizon: int = 16) -> list[Rollout]:
    snapshot, rollouts = made.snapshot(), []
    for _ in range(updates):
        rollouts.append(acting.collect(snapshot, horizon))
        snapshot, _ = made.update(rollouts[-1:])
    return rollouts


def state_of(made: Learner) -> dict[str, np.ndarray]:
    return {**made.snapshot().state, **made.state_dict()}


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def made_up(made: Learner, seed: int, *, steps: int = 8, num: int = 16) -> Rollout:
    """A rollout of random observations; with its true log-probs, for a policy that is no older."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    obs, critic = draw(steps + 1, num, 4), draw(steps + 1, num, 5)
    mean = made.policy.mean(torch.from_numpy(obs[:-1])).detach()
    log_std = made.policy.log_std.detach()
    actions = mean + log_std.exp() * torch.from_numpy(draw(steps, num, 2))
    log_probs = gaussian_log_prob(actions, mean, log_std).numpy()
    missed = actions.numpy() - obs[:-1, :, :2]
    ended = rng.random((steps, num))
    truncated = (ended > 0.1) & (ended < 0.2)
    index = np.argwhere(truncated)
    return Rollout(
        obs=obs,
        critic_obs=critic,
        actions=actions.numpy(),
        log_probs=log_probs,
        rewards=(1.0 - np.square(missed).sum(-1)).astype(np.float32),
        terminated=ended < 0.1,
        truncated=truncated,
        final_index=index,
        final_critic_obs=draw(len(index), 5),
        policy_version=made.version,
        actor_id="a",
    )
