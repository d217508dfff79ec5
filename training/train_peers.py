"""Other projects' PPO training on a task of ours: same env, worlds and actor network.

Each learns by its own public classes. Batch, epochs, discount, the first policy's noise (A1's 0.4
helps everybody) and no bonus for entropy are the task's; what a project ships as its tuned settings
for walking stays its own: rsl_rl's clip and adaptive step size at a KL of 0.01, and for
Stable-Baselines3, which tunes none for so many worlds, the same idea by hand: a constant step size
with an early stop at a KL. Its critic sees what its policy sees, since it has no other. So ours is
tuned for A1, bold steps included, and theirs for walking in general.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from real.errors import FerryError
from sim.env import VecEnv
from training.learner_peers import PeerMissing
from training.networks import ActorCritic
from training.normalizer import VARIANCE_FLOOR
from training.peer_env import RslEnv, for_stable_baselines3, module
from training.run_config import RunConfig


@dataclass(frozen=True)
class PeerRun:
    """A peer's training, an iteration at a time.

    Attributes:
        iterate: collects and learns from T steps of N worlds.
        policy: its present actor as one of our networks, for our evaluation.
    """

    iterate: Callable[[], Any]
    policy: Callable[[], ActorCritic]


def stable_baselines3(env: VecEnv, config: RunConfig, seed: int) -> PeerRun:
    """Stable-Baselines3's PPO with its running normalisation of observations.

    Raises:
        PeerMissing: see there; so for the others.
    """
    sb3, vec_env = module("stable_baselines3"), module("stable_baselines3.common.vec_env")
    training = config.training
    worlds = vec_env.VecNormalize(for_stable_baselines3(env), norm_reward=False, clip_obs=10.0)
    model = sb3.PPO(
        "MlpPolicy",
        worlds,
        n_steps=training.horizon,
        batch_size=env.num_envs * training.horizon // training.ppo.minibatches,
        n_epochs=training.ppo.epochs,
        gamma=training.ppo.gamma,
        gae_lambda=training.ppo.lam,
        learning_rate=1e-3,
        target_kl=0.02,
        max_grad_norm=1.0,
        policy_kwargs={
            "net_arch": {
                "pi": list(training.network.hidden),
                "vf": list(training.network.critic_hidden),
            },
            "activation_fn": nn.ELU,
            "log_std_init": float(np.log(training.network.init_std)),
        },
        device="cpu",
        seed=seed,
    )
    batch = env.num_envs * training.horizon

    def iterate() -> None:
        model.learn(batch, reset_num_timesteps=False)

    def policy() -> ActorCritic:
        actor = (model.policy.mlp_extractor.policy_net, model.policy.action_net)
        seen = worlds.obs_rms
        return as_ours(
            env, config, _linears(actor), mean=seen.mean, std=np.sqrt(seen.var + worlds.epsilon)
        )

    return PeerRun(iterate, policy)


def rsl_rl(env: VecEnv, config: RunConfig, seed: int) -> PeerRun:
    """rsl_rl's PPO (5.x), with its defaults for all that is not the task's."""
    algorithms, models = module("rsl_rl.algorithms"), module("rsl_rl.models")
    modules, storages = module("rsl_rl.modules"), module("rsl_rl.storage")
    worlds, training = RslEnv(env), config.training
    torch.manual_seed(seed)  # it draws from torch's global generator
    groups = {"actor": ["policy"], "critic": ["critic"]}

    def network(name: str, outputs: int, hidden: Iterable[int], spread: Any) -> Any:
        seen = worlds.get_observations()
        kind = {"hidden_dims": list(hidden), "activation": "elu", "obs_normalization": True}
        return models.MLPModel(seen, groups, name, outputs, distribution_cfg=spread, **kind)

    try:
        gaussian = {
            "class_name": modules.GaussianDistribution,
            "init_std": training.network.init_std,
        }
        ppo = algorithms.PPO(
            network("actor", env.action_dim, training.network.hidden, gaussian),
            network("critic", 1, training.network.critic_hidden, None),
            storages.RolloutStorage(
                "rl",
                env.num_envs,
                training.horizon,
                worlds.get_observations(),
                [env.action_dim],
                "cpu",
            ),
            num_learning_epochs=training.ppo.epochs,
            num_mini_batches=training.ppo.minibatches,
            gamma=training.ppo.gamma,
            lam=training.ppo.lam,
            # Its 0.01 is for rewards of another size; ours explores by its own terms.
            entropy_coef=training.ppo.entropy_coef,
        )
    except (AttributeError, TypeError) as error:
        raise PeerMissing(f"rsl_rl has another interface than 5.x: {error}") from error

    def iterate() -> None:
        obs = worlds.get_observations()
        with torch.inference_mode():
            for _ in range(training.horizon):
                obs, rewards, ended, extras = worlds.step(ppo.act(obs))
                ppo.process_env_step(obs, rewards, ended, extras)
            ppo.compute_returns(obs)
        ppo.update()

    def policy() -> ActorCritic:
        norm = ppo.actor.obs_normalizer
        return as_ours(
            env, config, _linears([ppo.actor.mlp]), mean=norm.mean, std=norm.std + norm.eps
        )

    return PeerRun(iterate, policy)


#: name -> maker, from the env, the task and a seed.
TRAINERS: dict[str, Callable[[VecEnv, RunConfig, int], PeerRun]] = {
    "stable_baselines3": stable_baselines3,
    "rsl_rl": rsl_rl,
}


@torch.no_grad()
def as_ours(
    env: VecEnv, config: RunConfig, layers: Iterable[nn.Linear], *, mean: Any, std: Any
) -> ActorCritic:
    """An actor of the same layers and normalisation, that gives the same actions.

    Args:
        env: whose sizes it has.
        config: with its network.
        layers: linear layers of the actor from input to output, ELU between.
        mean: ``[D]`` subtracted from observations.
        std: ``[D]`` that they are divided by afterwards.

    Raises:
        FerryError: the layers are not those of the task's network.
    """
    ours = ActorCritic(
        env.policy_dim, env.critic_dim, action_dim=env.action_dim, config=config.training.network
    )
    for own, other in itertools.zip_longest(_linears([ours.actor]), layers):
        if own is None or other is None or own.weight.shape != other.weight.shape:
            raise FerryError(f"a peer's actor has the layer {other}, expected {own}")
        own.load_state_dict(copy.deepcopy(other.state_dict()))
    ours.obs_norm.mean.copy_(_vector(mean))
    # Ours divides by sqrt(var + floor).
    ours.obs_norm.var.copy_(_vector(std).square() - VARIANCE_FLOOR)
    return ours.eval()


def _vector(values: Any) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64).flatten()


def _linears(networks: Iterable[nn.Module]) -> Iterator[nn.Linear]:
    for network in networks:
        yield from (layer for layer in network.modules() if isinstance(layer, nn.Linear))
