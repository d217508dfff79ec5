"""Gymnasium: one world of a task as a ``gymnasium.Env``; many are in :mod:`sim.gym_vector`.

``import sim.gym`` registers every task below; ``gymnasium.make("sim.gym:Ferry/A1Walk-v0")`` does
the import itself. Gymnasium 1.0 dropped the entry points that once let packages register without.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import register, registry
from numpy.typing import NDArray

from real.observation import ObservationSpec
from sim.env import StepResult, make_env
from sim.task import EnvConfig, load_env_config

Float32 = NDArray[np.float32]

#: Gymnasium id -> task in ``configs``.
TASKS: dict[str, str] = {
    "Ferry/A1Walk-v0": "a1_walk",
    "Ferry/CartpoleBalance-v0": "cartpole_balance",
    "Ferry/LaikagoWalk-v0": "laikago_walk",
    "Ferry/MiniCheetahWalk-v0": "mini_cheetah_walk",
    "Ferry/PandaReach-v0": "panda_reach",
    "Ferry/IiwaReach-v0": "iiwa_reach",
}

_SEEDS = 2**31


class TaskEnv(gymnasium.Env[Float32, Float32]):
    """One world of a task.

    Observation: the policy's vector. Action: as the policy's output, within the action clip.
    ``info`` holds ``reward_parts`` (weighted, they add up to the reward), ``critic`` (the critic's
    observation), for a task with ``filter: on`` the ``filter/clamped_share`` (of the joints, whose
    target the robot's limits moved) and, at the end of an episode, ``episode`` (return, length, why
    it ended).
    A time-out is ``truncated``; a fall is ``terminated``.

    Args:
        task: name or file of a task, or its configuration.
        randomize: False gives the nominal task.
        overrides: ``"a.b.c=value"`` applied to the task file.
        render_mode: None; there is nothing to look at.

    Raises:
        FerryError: the task cannot be read or run.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(
        self,
        task: str | Path | EnvConfig = "a1_walk",
        *,
        randomize: bool = True,
        overrides: Sequence[str] = (),
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = render_mode
        config = task if isinstance(task, EnvConfig) else load_env_config(task, overrides)
        # Every episode of a single env starts at its beginning.
        config = config.model_copy(update={"randomize_episode_phase": False})
        self.env = make_env(config, num=1, threads=1, seed=new_seed(), randomize=randomize)
        low, high = observation_bounds(self.env.observation_spec)
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        clip = self.env.action_spec.clip
        self.action_space = gymnasium.spaces.Box(
            -clip, clip, (self.env.action_dim,), dtype=np.float32
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float32, dict[str, Any]]:
        """Start an episode; a seed makes all that follows repeatable."""
        super().reset(seed=seed)
        obs = self.env.reset(seed)
        return obs["policy"][0], {"critic": obs["critic"][0]}

    def step(self, action: Float32) -> tuple[Float32, float, bool, bool, dict[str, Any]]:
        """Advance one control period."""
        result = self.env.step(np.asarray(action, dtype=np.float64)[None])
        ended = result.final_ids.size > 0
        # The vector env has begun the next episode; Gymnasium's users call reset for that.
        obs = result.final_obs if ended else result.obs
        return (
            obs["policy"][0],
            float(result.reward[0]),
            bool(result.terminated[0]),
            bool(result.truncated[0]),
            _info(result, obs["critic"][0]),
        )

    def close(self) -> None:
        """Release the engine."""
        self.env.close()


def observation_bounds(spec: ObservationSpec) -> tuple[Float32, Float32]:
    """Lowest and highest values ``[D]`` of an observation: its clips, or infinity."""
    bounds = [np.full(t.size, np.inf if t.clip is None else t.clip) for t in spec.terms]
    high = np.concatenate(bounds).astype(np.float32)
    return -high, high


def _info(result: StepResult, critic: Float32) -> dict[str, Any]:
    info: dict[str, Any] = {
        "critic": critic,
        "reward_parts": {name: float(part[0]) for name, part in result.reward_parts.items()},
    }
    if result.clamped:
        info["filter/clamped_share"] = float(np.mean(list(result.clamped.values())))
    if result.final_ids.size:
        info["episode"] = {name: values[0].item() for name, values in result.episode.items()}
    return info


def new_seed() -> int:
    """A root seed for an env that nobody seeded."""
    return int(np.random.default_rng().integers(_SEEDS))


def register_envs() -> None:
    """Register every task with Gymnasium; done on import, and harmless when repeated."""
    for name, task in TASKS.items():
        if name not in registry:
            register(
                id=name,
                entry_point="sim.gym:TaskEnv",
                vector_entry_point="sim.gym_vector:TaskVectorEnv",
                kwargs={"task": task},
            )


register_envs()
