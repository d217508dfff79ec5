"""A run on the cart-pole whose ranges grow from its first episodes on: all are good enough."""

from __future__ import annotations

import numpy as np

from sim.env import VecEnv, make_env
from training.roles import Stream
from training.run_config import RunConfig, load_run_config

WORLDS, HORIZON = 6, 8

SMALL = (
    "curriculum={measure: reward/alive, widen_at: 0.1, narrow_at: -1.0, step: 0.1, episodes: 3}",
    "episode_s=0.2",
    f"sim.worlds={WORLDS}",
    "sim.threads=1",
    "training.network.hidden=[8]",
    "training.network.critic_hidden=[8]",
    f"training.horizon={HORIZON}",
    "training.ppo.epochs=1",
    "training.run.evaluate_every=0",
    "training.runtime.evaluators=0",
)


def growing_config(*overrides: str) -> RunConfig:
    return load_run_config("cartpole_balance", [*SMALL, *overrides])


def run_env(config: RunConfig, stream: Stream) -> VecEnv:
    return make_env(config, seed=config.training.seed, stream=stream, threads=1)


def shares(env: VecEnv) -> np.ndarray:
    """``[K, 2]`` how far the ends have come."""
    curriculum = env.randomizer.curriculum
    assert curriculum is not None
    return curriculum.shares.copy()
