"""A task that only a memory solves: what an episode's first step shows counts at the others."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.result import StepResult
from sim.streams import make_streams, pack_streams, unpack_streams

Arrays = dict[str, NDArray[Any]]


class RecallEnv:
    """N worlds, each with a number, -1 or 1, that is seen at the first step of an episode alone.

    The policy sees (number, 1) at the first step and (0, 0) at all others, the critic the number
    always. The reward is 0 at the first step and 1 - (action - number)^2 at each later one. So
    whoever acts on the observation alone does the same at all later steps whatever the number is:
    its expected reward is 1 - E[(a - n)^2] = 1 - (a^2 + 1) <= 0. Who remembers may get 1.

    Episodes last 3 to 9 steps; half of them are terminated, the others truncated.
    """

    policy_dim = 2
    critic_dim = 3
    action_dim = 1

    def __init__(self, num: int, *, seed: int, stream: tuple[int, int] = (0, 0)) -> None:
        self.num_envs = num
        self._rngs = make_streams(seed, num, stream=stream)["start"]
        self.number = np.zeros(num)
        self._length = np.zeros(num, dtype=np.int64)
        self._cut = np.zeros(num, dtype=bool)
        self.clock = np.zeros(num, dtype=np.int64)
        self._return = np.zeros(num)
        self._reset_rows(np.arange(num))

    @property
    def observation(self) -> dict[str, NDArray[np.float32]]:
        first = (self.clock == 0).astype(np.float32)
        policy = np.stack([self.number * first, first], axis=1)
        critic = np.stack([self.number, first, self.clock / 9.0], axis=1)
        return {"policy": policy.astype(np.float32), "critic": critic.astype(np.float32)}

    def step(self, actions: NDArray[np.floating], /) -> StepResult:
        off = np.clip(actions[:, 0], -3.0, 3.0) - self.number
        reward = np.where(self.clock > 0, 1.0 - off**2, 0.0)
        self.clock += 1
        self._return += reward
        over = self.clock >= self._length
        ended = np.flatnonzero(over)
        final_obs = {name: values[ended] for name, values in self.observation.items()}
        episode = {"return": self._return[ended], "length": self.clock[ended]}
        terminated, truncated = over & ~self._cut, over & self._cut
        self._reset_rows(ended)
        return StepResult(
            obs=self.observation,
            reward=reward.astype(np.float32),
            terminated=terminated,
            truncated=truncated,
            final_ids=ended,
            final_obs=final_obs,
            reward_parts={"recall": reward.astype(np.float32)},
            episode=episode,
        )

    def _reset_rows(self, rows: NDArray[np.intp]) -> None:
        for row in rows.tolist():
            rng = self._rngs[row]
            self.number[row] = rng.choice([-1.0, 1.0])
            self._length[row] = rng.integers(3, 10)
            self._cut[row] = rng.random() < 0.5
        self.clock[rows] = 0
        self._return[rows] = 0.0

    def state_dict(self) -> Arrays:
        return {
            "number": self.number.copy(),
            "length": self._length.copy(),
            "cut": self._cut.copy(),
            "clock": self.clock.copy(),
            "return": self._return.copy(),
            "rng": pack_streams(self._rngs),
        }

    def load_state_dict(self, state: Arrays, /) -> None:
        self.number = state["number"].copy()
        self._length = state["length"].copy()
        self._cut = state["cut"].astype(bool)
        self.clock = state["clock"].copy()
        self._return = state["return"].copy()
        unpack_streams(self._rngs, state["rng"].astype(np.uint64))

    def close(self) -> None:
        pass
