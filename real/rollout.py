"""Rollouts: what actors hand to a learner, whoever the actor is (simulator or robot)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from real.domain import DomainDraws
from real.errors import FerryError

Float32 = NDArray[np.float32]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class EpisodeStats:
    """One finished episode.

    Attributes:
        env: which of the actor's N worlds it ran in.
        total_reward: sum of its rewards, undiscounted.
        length: control steps.
        terminated: True if it ended in a terminal state, False if the time limit cut it.
        values: other numbers of the whole episode, by name, such as ``tracking``.
    """

    env: int
    total_reward: float
    length: int
    terminated: bool
    values: Mapping[str, float] = field(default_factory=dict[str, float])


#: Fields that must be finite, and among them those that only a policy with a memory has.
_NUMBERS = ("obs", "critic_obs", "actions", "log_probs", "rewards", "final_critic_obs")
_MEMORIES = ("hidden", "critic_hidden", "mirror_hidden")


@dataclass(frozen=True)
class Rollout:
    """T control steps of N worlds under one version of the policy.

    Row ``t`` holds ``obs[t] -> actions[t] -> rewards[t], terminated[t], truncated[t]``.
    ``obs[t + 1]`` is what the policy sees next: the first observation of the next episode where
    an episode ended at ``t``. What such an episode ended with is in ``final_critic_obs``.

    Attributes:
        obs: ``[T+1, N, D]`` policy observations, raw (not normalised).
        critic_obs: ``[T+1, N, C]`` critic observations, raw.
        actions: ``[T, N, A]`` as sampled, before any clipping: ``log_probs`` belongs to these.
        log_probs: ``[T, N]`` log density of ``actions`` under the acting policy.
        rewards: ``[T, N]``.
        terminated: ``[T, N]`` the episode ended in a terminal state: its value is zero.
        truncated: ``[T, N]`` the episode was cut, e.g. by the time limit: it would have gone on.
        final_index: ``[K, 2]`` (t, n) of every row that was truncated and not terminated.
        final_critic_obs: ``[K, C]`` critic observation in which those episodes ended.
        policy_version: version of the :class:`PolicySnapshot` that acted.
        actor_id: who acted.
        episodes: those that ended within these steps.
        reward_parts: name of a reward term -> its mean over the T*N steps, weight included.
        domain: what was drawn for each episode that has a step here, where known.
        clamped: joint -> share of its T*N targets that the robot's limits moved; empty without.
        outcomes: what happened in its episodes to what all actors' worlds have in common, as
            :mod:`sim.shared` reports it; empty where there is nothing, or the worlds decide alone.
        hidden: ``[N, H]`` what the policy remembered before the first step, where it has a memory.
            Later ones follow: zeros after the end of an episode, else what the policy makes of it.
        critic_hidden: ``[N, .]`` the same of the critic.
        mirror_hidden: ``[N, H]`` what the policy would remember had it seen mirror images.
    """

    obs: Float32
    critic_obs: Float32
    actions: Float32
    log_probs: Float32
    rewards: Float32
    terminated: Bools
    truncated: Bools
    final_index: NDArray[np.int64]
    final_critic_obs: Float32
    policy_version: int
    actor_id: str
    episodes: tuple[EpisodeStats, ...] = ()
    reward_parts: Mapping[str, float] = field(default_factory=dict[str, float])
    domain: DomainDraws | None = None
    clamped: Mapping[str, float] = field(default_factory=dict[str, float])
    outcomes: Mapping[str, NDArray[np.generic]] = field(
        default_factory=dict[str, NDArray[np.generic]]
    )
    hidden: Float32 | None = None
    critic_hidden: Float32 | None = None
    mirror_hidden: Float32 | None = None

    def __post_init__(self) -> None:
        """Check that all parts describe the same steps.

        Raises:
            FerryError: a shape does not fit, or a truncated row has no final observation.
        """
        if self.obs.ndim != 3 or self.critic_obs.ndim != 3 or self.actions.ndim != 3:
            raise FerryError(
                f"rollout of {self.actor_id!r}: obs, critic_obs and actions must have 3 axes "
                f"[T(+1), N, .]; got shapes {self.obs.shape}, {self.critic_obs.shape} and "
                f"{self.actions.shape}"
            )
        steps, num = self.actions.shape[:2]
        self._require("terminated", (steps, num))
        self._require("truncated", (steps, num))
        cut = self.truncated & ~self.terminated
        ends = int(np.count_nonzero(cut))
        self._require("obs", (steps + 1, num, self.obs.shape[2]))
        self._require("critic_obs", (steps + 1, num, self.critic_obs.shape[2]))
        self._require("log_probs", (steps, num))
        self._require("rewards", (steps, num))
        self._require("final_index", (ends, 2))
        self._require("final_critic_obs", (ends, self.critic_obs.shape[2]))
        for name in _MEMORIES:
            memory: Float32 | None = getattr(self, name)
            if memory is not None:
                self._require(name, (num, memory.shape[-1]))
        t, n = self.final_index[:, 0], self.final_index[:, 1]
        inside = bool(np.all((t >= 0) & (t < steps) & (n >= 0) & (n < num)))
        right = inside and bool(np.all(cut[t, n]))
        if not right or np.unique(t * num + n).size != ends:
            raise FerryError(
                f"rollout of {self.actor_id!r}: final_index must name each truncated row once "
                "and no other"
            )

    def _require(self, name: str, shape: tuple[int, ...]) -> None:
        found = getattr(self, name).shape
        if found != shape:
            raise FerryError(
                f"rollout of {self.actor_id!r}: {name} has shape {found}, expected {shape}: there "
                f"are {self.actions.shape[0]} steps of {self.actions.shape[1]} worlds, and every "
                "truncated row has one final observation"
            )

    @property
    def num_steps(self) -> int:
        """Control steps, T."""
        return self.actions.shape[0]

    @property
    def num_envs(self) -> int:
        """Worlds, N."""
        return self.actions.shape[1]

    def bad_values(self) -> list[str]:
        """Parts that hold NaN or infinity, each with the first place, e.g. ``rewards[3, 17]``."""
        found: list[str] = []
        for name in (*_NUMBERS, *_MEMORIES):
            array: Float32 | None = getattr(self, name)
            if array is None:
                continue
            # One reduction first: a finite sum is the normal case and needs no mask in memory.
            with np.errstate(invalid="ignore"):  # inf - inf
                total = array.sum(dtype=np.float64)
            if not np.isfinite(total):
                bad = np.argwhere(~np.isfinite(array))
                if len(bad):
                    where = ", ".join(str(int(i)) for i in bad[0])
                    found.append(f"{name}[{where}] = {array[tuple(bad[0])]}")
        return found
