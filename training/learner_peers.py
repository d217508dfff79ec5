"""Other projects' PPO updates under the same conditions, for comparison; both are optional.

Each is built by its own public classes with its own defaults, but for the sizes that all share.
Only its update is timed; what our learner does besides (values, advantages, statistics of returns,
the snapshot) is not asked of it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from real.errors import FerryError

#: Makes one update of a peer, to be called again and again.
Update = Callable[[], Any]


class PeerMissing(FerryError):
    """A package to compare with is not installed, or is of a version with other interfaces."""


@dataclass(frozen=True)
class Sizes:
    """What all learners share.

    Attributes:
        worlds: N.
        steps: T; a batch has N * T samples.
        obs_dim: D, for actor and critic alike, since not every peer can tell them apart.
        action_dim: A.
        hidden: widths of the hidden layers of actor and critic, ELU between.
        epochs: passes over a batch.
        minibatches: per pass.
    """

    worlds: int = 256
    steps: int = 24
    obs_dim: int = 48
    action_dim: int = 12
    hidden: tuple[int, ...] = (256, 128, 64)
    epochs: int = 5
    minibatches: int = 4

    @property
    def samples(self) -> int:
        """Samples of a batch."""
        return self.worlds * self.steps


def stable_baselines3(sizes: Sizes) -> Update:
    """One update of Stable-Baselines3's PPO.

    Raises:
        PeerMissing: see there; so for the others.
    """
    sb3, gym = _module("stable_baselines3"), _module("gymnasium")
    vec_env = _module("stable_baselines3.common.vec_env")
    logger = _module("stable_baselines3.common.logger")
    box = gym.spaces.Box

    class Silence(gym.Env):
        """Says what it would show and take; it is never stepped."""

        observation_space = box(-10.0, 10.0, (sizes.obs_dim,), np.float32)
        action_space = box(-10.0, 10.0, (sizes.action_dim,), np.float32)

    model = sb3.PPO(
        "MlpPolicy",
        vec_env.DummyVecEnv([Silence] * sizes.worlds),
        n_steps=sizes.steps,
        batch_size=sizes.samples // sizes.minibatches,
        n_epochs=sizes.epochs,
        policy_kwargs={"net_arch": list(sizes.hidden), "activation_fn": torch.nn.ELU},
        device="cpu",
        seed=0,
    )
    model.set_logger(logger.configure(None, []))
    rng = np.random.default_rng(0)
    obs = torch.zeros(sizes.worlds, sizes.obs_dim)
    values = torch.zeros(sizes.worlds, 1)
    for _ in range(sizes.steps):
        obs = torch.from_numpy(rng.normal(size=obs.shape).astype(np.float32))
        with torch.no_grad():
            actions, values, log_probs = model.policy(obs)
        rewards, starts = rng.normal(size=sizes.worlds), rng.random(sizes.worlds) < 0.01
        model.rollout_buffer.add(obs.numpy(), actions.numpy(), rewards, starts, values, log_probs)
    model.rollout_buffer.compute_returns_and_advantage(values, np.zeros(sizes.worlds))
    return model.train


def rsl_rl(sizes: Sizes) -> Update:
    """One update of rsl_rl's PPO (5.x)."""
    algorithms, models = _module("rsl_rl.algorithms"), _module("rsl_rl.models")
    modules, storages = _module("rsl_rl.modules"), _module("rsl_rl.storage")
    tensordict = _module("tensordict")
    rng = np.random.default_rng(0)

    def seen() -> Any:
        obs = rng.normal(size=(sizes.worlds, sizes.obs_dim)).astype(np.float32)
        return tensordict.TensorDict({"policy": torch.from_numpy(obs)}, batch_size=[sizes.worlds])

    def network(name: str, outputs: int, distribution: dict[str, Any] | None) -> Any:
        return models.MLPModel(
            seen(),
            {"actor": ["policy"], "critic": ["policy"]},
            name,
            outputs,
            hidden_dims=list(sizes.hidden),
            activation="elu",
            obs_normalization=True,
            distribution_cfg=distribution,
        )

    try:
        gaussian = {"class_name": modules.GaussianDistribution}
        ppo = algorithms.PPO(
            network("actor", sizes.action_dim, gaussian),
            network("critic", 1, None),
            storages.RolloutStorage(
                "rl", sizes.worlds, sizes.steps, seen(), [sizes.action_dim], "cpu"
            ),
            num_learning_epochs=sizes.epochs,
            num_mini_batches=sizes.minibatches,
        )
        with torch.no_grad():
            for _ in range(sizes.steps):
                ppo.act(seen())
                rewards = torch.from_numpy(rng.normal(size=sizes.worlds).astype(np.float32))
                dones = torch.from_numpy(rng.random(sizes.worlds) < 0.01)
                ppo.process_env_step(seen(), rewards, dones, {})
            ppo.compute_returns(seen())
    except (AttributeError, TypeError) as error:
        raise PeerMissing(f"rsl_rl has another interface than 5.x: {error}") from error
    return ppo.update


#: name -> maker of its update.
PEERS: dict[str, Callable[[Sizes], Update]] = {
    "stable_baselines3": stable_baselines3,
    "rsl_rl": rsl_rl,
}


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PeerMissing(
            f"{name.split('.')[0]} cannot be imported ({error}); pip install 'ferry[peers]'"
        ) from error
