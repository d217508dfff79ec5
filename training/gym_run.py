"""Runs of our trainer on any Gymnasium id: their configuration, worlds and scores.

Example: ``ferry train gym --set env=gymnasium:Ant-v5``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import gymnasium
import numpy as np
import torch
from pydantic import Field

from real.config import Config, config_path, load_config
from real.config_base import read_extended
from real.errors import FerryError
from training.gym_worlds import GymWorlds, make_single
from training.memory import Memory
from training.networks import ActorCritic
from training.roles import Evaluate, Stream
from training.run_config import RunConfig, TrainingConfig

#: Root seed of the episodes that choose the best checkpoint; runs have seeds of their own.
SELECTION_SEED = 1_000_003


class GymSimConfig(Config):
    """How many worlds."""

    worlds: int = Field(default=16, ge=1, description="N single envs, stepped in turns")


class GymScoring(Config):
    """How a policy is scored."""

    episodes: int = Field(default=20, ge=1, description="on held-out seeds, without exploration")


class GymRunConfig(Config):
    """A file with ``env`` in place of a robot and a task."""

    schema_version: Literal[1]
    name: str = Field(min_length=1)
    env: str = Field(description="gymnasium:ID")
    sim: GymSimConfig = GymSimConfig()
    scoring: GymScoring = GymScoring()
    training: TrainingConfig = TrainingConfig()

    #: The trainer asks every run; only one with a robot has them.
    curriculum: ClassVar[None] = None
    actuators: ClassVar[None] = None
    terrain: ClassVar[None] = None


def load_any_run_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a task file, or one that names an ``env`` of Gymnasium.

    Returns:
        For Gymnasium a :class:`GymRunConfig`: of a run's configuration the trainer reads ``name``,
        ``sim.worlds``, ``curriculum``, ``actuators``, ``terrain`` and ``training``, which both
        have. Whoever needs a robot asks :func:`require_robot` first.

    Raises:
        ConfigError: one line per mistake, with file and line.
        FerryError: there is no such env.
    """
    file = config_path(path)
    data, _ = read_extended(file, find=lambda name, _: config_path(name))
    if not isinstance(data, dict) or "env" not in data:
        return load_config(RunConfig, path, overrides=overrides)
    config = load_config(GymRunConfig, path, overrides=overrides)
    if config.training.symmetry.enabled:
        raise FerryError(f"{file}: training.symmetry mirrors a robot; a Gymnasium env has none")
    return cast("RunConfig", _with_actions_of_env(config))


def _with_actions_of_env(config: GymRunConfig) -> GymRunConfig:
    """The configuration with the distribution that the env's actions need."""
    env = make_single(config.env)
    discrete = isinstance(env.action_space, gymnasium.spaces.Discrete)
    env.close()
    network = config.training.network
    if discrete and (network.squash is not None):
        raise FerryError(
            f"training.network.squash bounds continuous actions; {config.env} has none"
        )
    network = network.model_copy(update={"discrete": discrete})
    training = config.training.model_copy(update={"network": network})
    return config.model_copy(update={"training": training})


def gym_run(config: RunConfig) -> GymRunConfig | None:
    """The configuration as what it is if it is one of Gymnasium, else None."""
    found: object = config
    return found if isinstance(found, GymRunConfig) else None


def require_robot(config: RunConfig) -> None:
    """Refuse a run on a Gymnasium env where a robot is needed.

    Raises:
        FerryError: it is one.
    """
    gym = gym_run(config)
    if gym is not None:
        raise FerryError(
            f"the run is of {gym.env}, which has no robot to score or export a policy for; its "
            "scores are in the run folder's evaluations.jsonl"
        )


def make_worlds(config: RunConfig, stream: Stream) -> GymWorlds:
    """The worlds of an actor of such a run."""
    gym = gym_run(config)
    assert gym is not None
    return GymWorlds(gym.env, config.sim.worlds, seed=config.training.seed, stream=stream)


def gym_scorer(config: RunConfig) -> Evaluate:
    """Scores a policy by its mean return on seeds that training never uses."""
    gym = gym_run(config)
    assert gym is not None
    return functools.partial(mean_return, env=gym.env, episodes=gym.scoring.episodes)


@torch.no_grad()
def mean_return(module: ActorCritic, *, env: str, episodes: int) -> Mapping[str, Any]:
    """Act without exploration for one episode in each of so many worlds.

    Returns:
        ``score``, the mean return, with ``score_std``, ``length`` [steps] and ``episodes``.
    """
    worlds = GymWorlds(env, episodes, seed=SELECTION_SEED)
    memory = Memory(module, episodes)
    returns, lengths = np.full(episodes, np.nan), np.zeros(episodes)
    try:
        while np.isnan(returns).any():
            obs = torch.from_numpy(worlds.observation["policy"])
            action = module.distribution.squash(memory.mean(obs)).numpy()
            result = worlds.step(action)
            memory.forget(result.terminated | result.truncated)
            for row, world in enumerate(result.final_ids.tolist()):
                if np.isnan(returns[world]):
                    returns[world] = result.episode["return"][row]
                    lengths[world] = result.episode["length"][row]
    finally:
        worlds.close()
    return {
        "score": float(returns.mean()),
        "score_std": float(returns.std()),
        "length": float(lengths.mean()),
        "episodes": episodes,
    }
