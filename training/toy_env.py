"""An environment so small that PPO reaches a threshold on it within seconds.

Nothing in Ferry itself uses it. It is the shortest complete example of what
:func:`training.train.train` needs of an ``env_factory``, and serves the tests of everything that
trains, in place of a robot: same interface, same same-step autoreset, both ways an episode can end,
state that must survive a checkpoint.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.result import StepResult
from sim.streams import make_streams, pack_streams, unpack_streams

Arrays = dict[str, NDArray[Any]]

#: Half-width of the square that targets are drawn from, and of the one that may not be left [m].
TARGET_RANGE = 1.0
ARENA = 2.0
#: Distance covered in a step by an action of 1 along each axis [m].
STRIDE = (0.2, 0.1)


class PointEnv:
    """N points in the plane, each chasing its own target; the action is a velocity.

    The policy sees offset to the target and position, on scales far from 1, so that it needs its
    normaliser; the critic sees the time left too. An episode is terminated when the point leaves
    the arena and truncated after ``limit`` steps. The reward of a step is 1 minus the distance
    to the target.

    Args:
        num: N.
        seed: root seed.
        limit: steps per episode.
        stream: (worker, restart), which share a seed without sharing random numbers.
    """

    policy_dim = 4
    critic_dim = 5
    action_dim = 2

    def __init__(
        self, num: int, *, seed: int, limit: int = 40, stream: tuple[int, int] = (0, 0)
    ) -> None:
        self.num_envs = num
        self.limit = limit
        self._rngs = make_streams(seed, num, stream=stream)["start"]
        self._position = np.zeros((num, 2))
        self._target = np.zeros((num, 2))
        self._clock = np.zeros(num, dtype=np.int64)
        self._return = np.zeros(num)
        self._reset_rows(np.arange(num))

    @property
    def observation(self) -> dict[str, NDArray[np.float32]]:
        """``policy [N, 4]`` and ``critic [N, 5]``."""
        offset = self._target - self._position
        policy = np.concatenate([30.0 * offset + 7.0, 0.05 * self._position - 2.0], axis=1)
        left = 1.0 - self._clock / self.limit
        critic = np.concatenate([policy, left[:, None]], axis=1)
        return {"policy": policy.astype(np.float32), "critic": critic.astype(np.float32)}

    def step(self, actions: NDArray[np.floating], /) -> StepResult:
        """Move with ``actions [N, 2]``, clipped to +-1."""
        self._position = self._position + np.clip(actions, -1.0, 1.0) * STRIDE
        self._clock += 1
        distance = np.linalg.norm(self._target - self._position, axis=1)
        reward = 1.0 - distance
        self._return += reward
        terminated = np.abs(self._position).max(axis=1) > ARENA
        truncated = (self._clock >= self.limit) & ~terminated
        ended = np.flatnonzero(terminated | truncated)
        final_obs = {name: values[ended] for name, values in self.observation.items()}
        episode = {
            "return": self._return[ended],
            "length": self._clock[ended],
            "last_distance": distance[ended],
        }
        self._reset_rows(ended)
        parts = {"near": np.ones_like(distance), "distance": -distance}
        return StepResult(
            obs=self.observation,
            reward=reward.astype(np.float32),
            terminated=terminated,
            truncated=truncated,
            final_ids=ended,
            final_obs=final_obs,
            reward_parts={name: values.astype(np.float32) for name, values in parts.items()},
            episode=episode,
        )

    def _reset_rows(self, rows: NDArray[np.intp]) -> None:
        for row in rows.tolist():
            draw = self._rngs[row].uniform(-TARGET_RANGE, TARGET_RANGE, 4)
            self._position[row], self._target[row] = draw[:2], draw[2:]
        self._clock[rows] = 0
        self._return[rows] = 0.0

    def state_dict(self) -> Arrays:
        """Everything a bit-exact continuation needs."""
        return {
            "position": self._position.copy(),
            "target": self._target.copy(),
            "clock": self._clock.copy(),
            "return": self._return.copy(),
            "rng": pack_streams(self._rngs),
        }

    def load_state_dict(self, state: Arrays, /) -> None:
        """Continue where :meth:`state_dict` was taken."""
        self._position = state["position"].copy()
        self._target = state["target"].copy()
        self._clock = state["clock"].copy()
        self._return = state["return"].copy()
        unpack_streams(self._rngs, state["rng"].astype(np.uint64))

    def close(self) -> None:
        """There is nothing to release."""
