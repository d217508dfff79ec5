"""An actor: an environment and a copy of the policy, which together make rollouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from real.domain import DomainDraws
from real.errors import FerryError
from real.rollout import EpisodeStats, Rollout
from sim.result import StepResult
from sim.shared import Shared
from sim.streams import pack_streams, unpack_streams
from training.memory import Memory
from training.networks import ActorCritic, NetworkConfig
from training.snapshot import PolicySnapshot, load_snapshot
from training.symmetry import Mirror

Arrays = dict[str, NDArray[Any]]

#: Last but one number of the spawn key of an actor's noise. Worlds use their index there, see
#: :func:`sim.streams.world_seeds`, and no env has this many.
_NOISE_KEY = 2**32 - 1


class VectorEnv(Protocol):
    """What an actor needs of an environment; :class:`sim.env.VecEnv` is one."""

    num_envs: int
    policy_dim: int
    critic_dim: int
    action_dim: int

    @property
    def observation(self) -> Mapping[str, NDArray[np.float32]]:
        """What the last reset or step returned: ``policy [N, D]`` and ``critic [N, C]``."""
        ...

    def step(self, actions: NDArray[np.floating], /) -> StepResult:
        """Advance all worlds with ``actions [N, A]``; those that end are reset within the step."""
        ...

    def state_dict(self) -> Arrays:
        """Everything a bit-exact continuation needs, as flat arrays."""
        ...

    def load_state_dict(self, state: Arrays, /) -> None:
        """Continue where :meth:`state_dict` was taken."""
        ...

    def close(self) -> None:
        """Release what the env holds."""
        ...


@runtime_checkable
class Randomized(Protocol):
    """An environment that knows what its worlds drew; :class:`sim.env.VecEnv` is one."""

    def drawn(self, rows: NDArray[np.intp] | None = None, /) -> DomainDraws:
        """What worlds ``rows`` (all if None) drew for their present episodes."""
        ...


@dataclass(frozen=True)
class Refresh:
    """Newer weights within a rollout.

    Attributes:
        newest: the newest that can be had without waiting.
        every: steps between two looks.
    """

    newest: Callable[[], PolicySnapshot]
    every: int


@runtime_checkable
class Adapting(Protocol):
    """An environment that changes by what happens in its worlds; :class:`sim.env.VecEnv` is one."""

    shared: Shared

    def reset(self) -> object:
        """Begin a new episode in every world."""
        ...


class ActorWorker:
    """Acts in one environment; owns it and the noise of the actions.

    Args:
        env: the worlds, already reset.
        actor_id: name of this actor in its rollouts.
        network: sizes of the policy that snapshots hold.
        seed: root seed of the run.
        stream: (worker, restart); what tells actors of one run apart, as for the env.
        mirror: as the learner's; only a policy with a memory needs it here.

    Attributes:
        shared: what its worlds have in common with other actors' worlds.
    """

    def __init__(
        self,
        env: VectorEnv,
        actor_id: str,
        *,
        network: NetworkConfig,
        seed: int,
        stream: tuple[int, int] = (0, 0),
        mirror: Mirror | None = None,
    ) -> None:
        self.env = env
        self.actor_id = actor_id
        self.policy = ActorCritic(
            env.policy_dim, env.critic_dim, action_dim=env.action_dim, config=network
        )
        self._version: int | None = None
        self._fresh = True  # its worlds have begun nothing that counts
        self.shared: Shared = env.shared if isinstance(env, Adapting) else Shared({})
        self._memory = Memory(self.policy, env.num_envs, mirror=mirror)
        key = np.random.SeedSequence(seed, spawn_key=(*stream, _NOISE_KEY, 0))
        self._rng = np.random.Generator(np.random.PCG64(key))

    @torch.no_grad()
    def collect(
        self, snapshot: PolicySnapshot, horizon: int, *, refresh: Refresh | None = None
    ) -> Rollout:
        """Act for ``horizon`` steps with one version of the policy, or with newer ones on the way.

        Args:
            snapshot: whose weights and statistics to begin with. The rollout is stamped with its
                version, the oldest of all its steps.
            horizon: T.
            refresh: where newer weights come from within the rollout; None for none. Each step's
                log-prob is of the weights that acted, so corrections for stale data hold.

        Raises:
            FerryError: the snapshot is of another network, or the policy's output is not finite.
        """
        self._adopt(snapshot)
        env = self.env
        shape = (horizon, env.num_envs)
        obs = np.empty((horizon + 1, env.num_envs, env.policy_dim), dtype=np.float32)
        critic_obs = np.empty((horizon + 1, env.num_envs, env.critic_dim), dtype=np.float32)
        means = np.empty((*shape, env.action_dim), dtype=np.float32)
        noise = self._rng.standard_normal((*shape, env.action_dim), dtype=np.float32)
        distribution = self.policy.distribution
        log_std = np.empty((horizon, env.action_dim), dtype=np.float32)
        actions = np.empty_like(means)
        steps: list[StepResult] = []
        drawn = [(0, env.drawn())] if isinstance(env, Randomized) else []
        remembered = self._memory.arrays()

        seen = env.observation
        obs[0], critic_obs[0] = seen["policy"], seen["critic"]
        for t in range(horizon):
            if refresh is not None and t and t % refresh.every == 0:
                self._adopt(refresh.newest())
            log_std_t = self.policy.log_std.detach()
            log_std[t] = log_std_t.numpy()
            seen_t = torch.from_numpy(obs[t]), torch.from_numpy(critic_obs[t])
            means[t] = self._memory.mean(*seen_t).numpy()
            actions[t] = distribution.sample(
                torch.from_numpy(means[t]), log_std_t, noise=torch.from_numpy(noise[t])
            ).numpy()
            self._require_finite(actions[t])
            # The env clips; the rollout keeps the action that the log-prob belongs to.
            step = env.step(actions[t])
            obs[t + 1], critic_obs[t + 1] = step.obs["policy"], step.obs["critic"]
            steps.append(step)
            if len(step.final_ids) and t + 1 < horizon and isinstance(env, Randomized):
                drawn.append((t + 1, env.drawn(step.final_ids)))
            self._memory.forget(step.terminated | step.truncated)

        log_probs = distribution.log_prob(
            torch.from_numpy(actions), torch.from_numpy(means), torch.from_numpy(log_std)[:, None]
        )
        return Rollout(
            obs=obs,
            critic_obs=critic_obs,
            actions=actions,
            log_probs=log_probs.numpy(),
            policy_version=snapshot.version,
            actor_id=self.actor_id,
            domain=DomainDraws.join(drawn) if drawn else None,
            outcomes=self.shared.report(),
            hidden=remembered.get("hidden"),
            critic_hidden=remembered.get("critic_hidden"),
            mirror_hidden=remembered.get("mirror_hidden"),
            **_of_steps(steps, env.critic_dim),
        )

    def _adopt(self, snapshot: PolicySnapshot) -> None:
        if snapshot.version == self._version:
            return
        load_snapshot(self.policy, snapshot.state)
        self._version = snapshot.version
        # What holds in all worlds is as much of the run's state as the weights: whoever replaces
        # an actor begins with it. Its worlds were drawn before it was told.
        news = bool(snapshot.shared) and self.shared.load_state_dict(dict(snapshot.shared))
        if news and self._fresh and isinstance(self.env, Adapting):
            self.env.reset()
        self._fresh = False

    def _require_finite(self, actions: NDArray[np.float32]) -> None:
        if not np.isfinite(actions).all():
            raise FerryError(
                f"actor {self.actor_id!r}: policy version {self._version} gives actions that are "
                "not finite; resume from an older checkpoint"
            )

    def state_dict(self) -> Arrays:
        """Generator, env and memory, flat: with them the next rollout is the same, bit by bit."""
        out = {f"env.{name}": value for name, value in self.env.state_dict().items()}
        out |= {f"memory.{name}": value for name, value in self._memory.arrays().items()}
        out["noise"] = pack_streams([self._rng])
        return out

    def load_state_dict(self, state: Arrays) -> None:
        """Continue where :meth:`state_dict` was taken.

        Raises:
            FerryError: a part is missing or of another size.
        """
        if "noise" not in state:
            raise FerryError("actor state lacks 'noise', the state of its generator")
        unpack_streams([self._rng], state["noise"].astype(np.uint64))
        # Another run may have given the same number to another policy.
        self._version, self._fresh = None, False
        self._memory.load(_part(state, "memory."))
        self.env.load_state_dict(_part(state, "env."))


def _part(state: Arrays, prefix: str) -> Arrays:
    """The entries whose names begin with ``prefix``, without it."""
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def _of_steps(steps: list[StepResult], critic_dim: int) -> dict[str, Any]:
    """What a rollout has from its env, by its fields."""
    final_index, final_critic_obs = _final_rows(steps, critic_dim)
    return {
        "rewards": np.stack([s.reward for s in steps]),
        "terminated": np.stack([s.terminated for s in steps]),
        "truncated": np.stack([s.truncated for s in steps]),
        "final_index": final_index,
        "final_critic_obs": final_critic_obs,
        "episodes": tuple(e for s in steps for e in _episodes(s)),
        "reward_parts": _mean_parts(steps),
        "clamped": _clamped_shares(steps),
    }


def _final_rows(
    steps: list[StepResult], critic_dim: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """(t, n) ``[K, 2]`` of cut episodes and the critic observations ``[K, C]`` they ended in."""
    index = [np.empty((0, 2), dtype=np.int64)]
    final = [np.empty((0, critic_dim), dtype=np.float32)]
    for t, step in enumerate(steps):
        if not len(step.final_ids):
            continue
        cut = (step.truncated & ~step.terminated)[step.final_ids]
        ids = step.final_ids[cut]
        index.append(np.stack([np.full_like(ids, t), ids], axis=1).astype(np.int64))
        final.append(step.final_obs["critic"][cut])
    return np.concatenate(index), np.concatenate(final)


def _episodes(step: StepResult) -> list[EpisodeStats]:
    others = [name for name in step.episode if name not in {"return", "length"}]
    return [
        EpisodeStats(
            env=int(world),
            total_reward=float(step.episode["return"][row]),
            length=int(step.episode["length"][row]),
            terminated=bool(step.terminated[world]),
            values={name: float(step.episode[name][row]) for name in others},
        )
        for row, world in enumerate(step.final_ids)
    ]


def _mean_parts(steps: list[StepResult]) -> dict[str, float]:
    names = steps[0].reward_parts
    return {
        name: float(np.mean([step.reward_parts[name].mean() for step in steps])) for name in names
    }


def _clamped_shares(steps: list[StepResult]) -> dict[str, float]:
    """Joint -> share of its targets that the limits moved, over all steps and worlds."""
    names = steps[0].clamped
    if not names:
        return {}
    moved = np.array([list(step.clamped.values()) for step in steps])  # [T, A, N]
    return dict(zip(names, moved.mean(axis=(0, 2)).tolist(), strict=True))
