"""Gymnasium: N worlds of a task as a ``gymnasium.vector.VectorEnv``.

``gymnasium.make_vec("sim.gym:Ferry/A1Walk-v0", num_envs=256)`` makes one. Unlike Gymnasium's own
vector envs, which copy a single env, all worlds are one array program.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from real.errors import FerryError
from sim.env import StepResult, make_env
from sim.gym import new_seed, observation_bounds
from sim.task import EnvConfig, load_env_config

Float32 = NDArray[np.float32]
Mask = NDArray[np.bool_]


class TaskVectorEnv(gymnasium.vector.VectorEnv[Float32, Float32, NDArray[Any]]):
    """N worlds of a task; same-step autoreset.

    World i, seeded with s, lives through what a single env seeded with s does. Of worlds that end,
    the returned observation begins the next episode, and ``info`` has, as Gymnasium's own vector
    envs with that mode do, ``final_obs`` (``[N]`` objects: a vector, or None) and ``final_info``
    with ``episode``; each with its mask, whose name begins with an underscore. ``critic`` and
    ``reward_parts`` are as of the single env, ``[N, .]``.

    Args:
        num_envs: N.
        task: name or file of a task, or its configuration.
        randomize: False gives the nominal task.
        overrides: ``"a.b.c=value"`` applied to the task file.
        threads: physics threads; 0 for all CPUs.
        render_mode: None; there is nothing to look at.

    Raises:
        FerryError: the task cannot be read or run.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(
        self,
        num_envs: int = 1,
        task: str | Path | EnvConfig = "a1_walk",
        *,
        randomize: bool = True,
        overrides: Sequence[str] = (),
        threads: int = 0,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = render_mode
        self.num_envs = num_envs
        config = task if isinstance(task, EnvConfig) else load_env_config(task, overrides)
        # As for a single env, the first episodes start at their beginning.
        config = config.model_copy(update={"randomize_episode_phase": False})
        self.env = make_env(
            config, num=num_envs, threads=threads, seed=new_seed(), randomize=randomize
        )
        low, high = observation_bounds(self.env.observation_spec)
        clip = self.env.action_spec.clip
        box = gymnasium.spaces.Box
        self.single_observation_space = box(low, high, dtype=np.float32)
        self.single_action_space = box(-clip, clip, (self.env.action_dim,), dtype=np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Float32, dict[str, Any]]:
        """Start an episode in every world.

        Args:
            seed: of the first world, the others count on from it; or one for each.
            options: none exist.

        Raises:
            FerryError: a list of seeds of another length, or with gaps.
        """
        obs = self.env.reset(self._seeds(seed))
        return obs["policy"], {"critic": obs["critic"], "_critic": self._everywhere()}

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int] | None:
        if seed is None:
            return None
        if isinstance(seed, int | np.integer):
            return [int(seed) + world for world in range(self.num_envs)]
        found = [each for each in seed if each is not None]
        if not found and len(seed) == self.num_envs:
            return None
        if len(found) != self.num_envs:
            raise FerryError(
                f"{len(found)} seeds for {self.num_envs} worlds; expected one for each, or one "
                "number for all"
            )
        return found

    def step(
        self, actions: Float32
    ) -> tuple[Float32, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Advance all worlds by one control period with ``actions [N, A]``."""
        result = self.env.step(np.asarray(actions, dtype=np.float64))
        return (
            result.obs["policy"],
            result.reward,
            result.terminated,
            result.truncated,
            self._info(result),
        )

    def _info(self, result: StepResult) -> dict[str, Any]:
        everywhere, ended = self._everywhere(), result.final_ids
        parts: dict[str, Any] = dict(result.reward_parts)
        parts |= {f"_{name}": everywhere for name in result.reward_parts}
        info: dict[str, Any] = {
            "critic": result.obs["critic"],
            "_critic": everywhere,
            "reward_parts": parts,
            "_reward_parts": everywhere,
        }
        if not ended.size:
            return info
        mask = np.zeros(self.num_envs, dtype=np.bool_)
        mask[ended] = True
        final_obs = np.full(self.num_envs, None, dtype=object)
        episode: dict[str, Any] = {}
        for row, world in enumerate(ended.tolist()):
            final_obs[world] = result.final_obs["policy"][row]
        for name, values in result.episode.items():
            episode[name] = np.zeros(self.num_envs, dtype=values.dtype)
            episode[name][ended] = values
            episode[f"_{name}"] = mask
        final_info = {"episode": episode, "_episode": mask}
        return info | {
            "final_obs": final_obs,
            "_final_obs": mask,
            "final_info": final_info,
            "_final_info": mask,
        }

    def _everywhere(self) -> Mask:
        return np.ones(self.num_envs, dtype=np.bool_)

    def close_extras(self, **kwargs: Any) -> None:
        """Release the engine."""
        self.env.close()
