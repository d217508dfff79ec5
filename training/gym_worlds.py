"""Any Gymnasium task as worlds for our actors: N single envs, stepped one after the other.

A continuous action of 1 is the end of the action's range and 0 its middle, where it has a range. A
discrete action comes as a one-hot vector. Observations of any space are flattened. Worlds that end
are reset within the step, as :class:`sim.env.VecEnv` does it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from sim.result import StepResult
from sim.streams import world_seeds

Arrays = dict[str, NDArray[Any]]
Float32 = NDArray[np.float32]

PREFIX = "gymnasium:"


class GymWorlds:
    """N worlds of a Gymnasium id; see :class:`training.actor.VectorEnv`.

    Gymnasium envs cannot be asked for their state. What :meth:`state_dict` keeps is how often they
    were seeded, so that a resumed run goes on with new episodes and repeats none.

    Args:
        name: ``gymnasium:ID``; ``module:ID`` after that imports what registers the id.
        num: N.
        seed: root seed.
        stream: (worker, restart), which share a seed without sharing random numbers.

    Raises:
        FerryError: no such id, something it needs is not installed, or its spaces are not ours.
    """

    def __init__(
        self, name: str, num: int, *, seed: int = 0, stream: tuple[int, int] = (0, 0)
    ) -> None:
        self.num_envs = num
        self._envs = [make_single(name) for _ in range(num)]
        first = self._envs[0]
        self.discrete = isinstance(first.action_space, gymnasium.spaces.Discrete)
        self._space = first.observation_space
        self.policy_dim = self.critic_dim = flat_size(self._space, name)
        self.action_dim = action_size(first.action_space, name)
        self._middle, self._half = _range_of(first.action_space)
        self._roots = [world["start"] for world in world_seeds(seed, num, stream=stream)]
        self._seeded = 0
        self._obs: Float32 = np.zeros((num, self.policy_dim), dtype=np.float32)
        self._clock = np.zeros(num, dtype=np.int64)
        self._return = np.zeros(num)
        self._begin()

    def _begin(self) -> None:
        """Seed every world anew, each with seeds of its own."""
        for world, (env, root) in enumerate(zip(self._envs, self._roots, strict=True)):
            seeds = root.generate_state(self._seeded + 1)
            obs, _ = env.reset(seed=int(seeds[-1] >> 1))
            env.action_space.seed(int(seeds[-1] >> 1))
            self._obs[world] = self._flat(obs)
        self._seeded += 1
        self._clock[:] = 0
        self._return[:] = 0.0

    def _flat(self, obs: Any) -> NDArray[Any]:
        return np.asarray(gymnasium.spaces.flatten(self._space, obs))

    @property
    def observation(self) -> Mapping[str, Float32]:
        """``policy`` and ``critic``, both ``[N, D]`` and the same."""
        return {"policy": self._obs.copy(), "critic": self._obs.copy()}

    def step(self, actions: NDArray[np.floating], /) -> StepResult:
        """Advance every world with ``actions [N, A]``."""
        num = self.num_envs
        reward = np.zeros(num, dtype=np.float32)
        terminated, truncated = np.zeros(num, dtype=bool), np.zeros(num, dtype=bool)
        final: list[NDArray[Any]] = []
        ended: list[int] = []
        totals: list[tuple[float, int]] = []
        for world, env in enumerate(self._envs):
            obs, gained, over, cut, _ = env.step(self.decode(actions[world]))
            reward[world], terminated[world], truncated[world] = gained, over, cut and not over
            self._clock[world] += 1
            self._return[world] += float(gained)
            if over or cut:
                ended.append(world)
                final.append(self._flat(obs))
                totals.append((self._return[world], self._clock[world]))
                obs, _ = env.reset()
                self._clock[world], self._return[world] = 0, 0.0
            self._obs[world] = self._flat(obs)
        last = np.asarray(final, dtype=np.float32).reshape(len(ended), self.policy_dim)
        returns, lengths = np.asarray(totals, dtype=np.float64).reshape(len(ended), 2).T
        return StepResult(
            obs=dict(self.observation),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            final_ids=np.asarray(ended, dtype=np.intp),
            final_obs={"policy": last, "critic": last.copy()},
            reward_parts={},
            episode={"return": returns, "length": lengths.astype(np.int64)},
        )

    def decode(self, action: NDArray[np.floating]) -> Any:
        """What the env takes, from the policy's ``[A]``."""
        space = self._envs[0].action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            return int(np.argmax(action)) + int(space.start)
        scaled = self._middle + self._half * action
        assert isinstance(space, gymnasium.spaces.Box)
        return np.clip(scaled.reshape(space.shape), space.low, space.high).astype(space.dtype)

    def state_dict(self) -> Arrays:
        """How often the worlds were seeded."""
        return {"seeded": np.array(self._seeded, dtype=np.int64)}

    def load_state_dict(self, state: Arrays, /) -> None:
        """Begin episodes that no earlier session of the run has seen begin."""
        self._seeded = int(state["seeded"])
        self._begin()

    def close(self) -> None:
        """Close every env."""
        for env in self._envs:
            env.close()


def make_single(name: str) -> gymnasium.Env[Any, Any]:
    """One env of ``gymnasium:ID``.

    Raises:
        FerryError: see :class:`GymWorlds`.
    """
    if not name.startswith(PREFIX) or name == PREFIX:
        raise FerryError(f"env is {name!r}; expected {PREFIX}ID, as in {PREFIX}Ant-v5")
    name = name.removeprefix(PREFIX)
    if name.startswith("Ferry/"):
        importlib.import_module("sim.gym")  # which registers them
    try:
        return gymnasium.make(name, disable_env_checker=True)
    except (gymnasium.error.Error, ImportError) as error:
        raise FerryError(f"env {PREFIX}{name} cannot be made: {error}") from error


def flat_size(space: gymnasium.spaces.Space[Any], name: str) -> int:
    """D of a flattened observation.

    Raises:
        FerryError: it has no fixed size.
    """
    try:
        return gymnasium.spaces.flatdim(space)
    except (ValueError, NotImplementedError) as error:
        raise FerryError(
            f"{name} observes {space}, which has no fixed size; expected one that can be flattened"
        ) from error


def action_size(space: gymnasium.spaces.Space[Any], name: str) -> int:
    """A: numbers of a continuous action, or how many discrete ones there are.

    Raises:
        FerryError: it is neither.
    """
    if isinstance(space, gymnasium.spaces.Discrete):
        return int(space.n)
    if isinstance(space, gymnasium.spaces.Box):
        return int(np.prod(space.shape))
    raise FerryError(f"{name} takes {space}; expected a Box (continuous) or Discrete actions")


def _range_of(space: gymnasium.spaces.Space[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Middle and half width ``[A]`` of a bounded action, else 0 and 1."""
    if not isinstance(space, gymnasium.spaces.Box):
        return np.zeros(1), np.ones(1)
    low, high = space.low.ravel().astype(np.float64), space.high.ravel().astype(np.float64)
    bounded = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
    return 0.5 * (low + high), 0.5 * (high - low)
