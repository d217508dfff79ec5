"""Our vector env as other learners want one. Their packages are optional."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sim.env import VecEnv
from sim.result import StepResult
from training.learner_peers import PeerMissing


def for_stable_baselines3(env: VecEnv) -> Any:
    """A ``stable_baselines3`` VecEnv over ``env``; the policy's observation alone.

    Raises:
        PeerMissing: it is not installed.
    """
    vec_env, gym = module("stable_baselines3.common.vec_env"), module("gymnasium")
    box, clip = gym.spaces.Box, env.action_spec.clip

    class Worlds(vec_env.VecEnv):
        def __init__(self) -> None:
            super().__init__(
                env.num_envs,
                box(-np.inf, np.inf, (env.policy_dim,), np.float32),
                box(-clip, clip, (env.action_dim,), np.float32),
            )
            self._actions: NDArray[Any] = np.zeros((env.num_envs, env.action_dim))

        def reset(self) -> Any:
            return env.reset()["policy"]

        def step_async(self, actions: NDArray[Any]) -> None:
            self._actions = actions

        def step_wait(self) -> Any:
            result = env.step(self._actions)
            ended = result.terminated | result.truncated
            return result.obs["policy"], result.reward, ended, _infos(result)

        def close(self) -> None:
            env.close()

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * env.num_envs

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            raise AttributeError(attr_name)

        def env_method(self, method_name: str, *args: Any, **kwargs: Any) -> list[Any]:
            raise AttributeError(method_name)

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * env.num_envs

    return Worlds()


def _infos(result: StepResult) -> list[dict[str, Any]]:
    infos: list[dict[str, Any]] = [{} for _ in range(len(result.reward))]
    for row, world in enumerate(result.final_ids.tolist()):
        infos[world]["terminal_observation"] = result.final_obs["policy"][row]
        infos[world]["TimeLimit.truncated"] = bool(result.truncated[world])
    return infos


class RslEnv:
    """What ``rsl_rl`` asks of an env: groups ``policy`` and ``critic`` in a TensorDict.

    Raises:
        PeerMissing: it is not installed.
    """

    device = "cpu"

    def __init__(self, env: VecEnv) -> None:
        self._env = env
        self._dict = module("tensordict").TensorDict
        self.num_envs, self.num_actions = env.num_envs, env.action_dim
        self.cfg: dict[str, Any] = {}

    def get_observations(self) -> Any:
        """What the last step or reset gave."""
        return self._tensors(self._env.observation)

    def step(self, actions: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Advance all worlds; time-outs are in the extras, as it expects."""
        result = self._env.step(actions.numpy())
        ended = torch.from_numpy(result.terminated | result.truncated)
        extras = {"time_outs": torch.from_numpy(result.truncated.astype(np.float32))}
        return self._tensors(result.obs), torch.from_numpy(result.reward), ended, extras

    def _tensors(self, obs: Any) -> Any:
        tensors = {name: torch.from_numpy(np.array(each)) for name, each in obs.items()}
        return self._dict(tensors, batch_size=[self.num_envs])


def module(name: str) -> Any:
    """An optional package.

    Raises:
        PeerMissing: it cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.split(".")[0]
        raise PeerMissing(
            f"{package} cannot be imported ({error}); pip install 'ferry[peers]'"
        ) from error
