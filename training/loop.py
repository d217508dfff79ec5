"""The serial runtime: one actor and one learner take turns in one process, deterministically."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from real.rollout import Rollout
from training.actor import ActorWorker
from training.checkpoint import Checkpoint, checkpoint_name
from training.learner import Learner
from training.metrics import EpisodeTracker
from training.networks import ActorCritic
from training.probe import PROBE_ROWS, make_probe, policy_digest, verify_policy
from training.snapshot import SnapshotStore, load_snapshot

Arrays = dict[str, NDArray[Any]]


@dataclass
class Progress:
    """How far a run is; all of it travels in the checkpoint. The times are kept by the run.

    Attributes:
        iteration: pairs of collecting and updating done.
        steps: control steps taken, summed over worlds.
        training_s: wall time, evaluation included [s].
        evaluation_s: wall time of evaluation [s].
        best_score: highest evaluation score so far.
        best_step: ``steps`` at which it was reached.
        evaluated_step: ``steps`` of the newest evaluation.
    """

    iteration: int = 0
    steps: int = 0
    training_s: float = 0.0
    evaluation_s: float = 0.0
    best_score: float | None = None
    best_step: int | None = None
    evaluated_step: int | None = None


class SerialRuntime:
    """Actor and learner in turns. They share nothing but rollouts and snapshots.

    Args:
        actor: makes rollouts.
        learner: learns from them.
        horizon: T, steps per rollout.
    """

    def __init__(self, actor: ActorWorker, learner: Learner, *, horizon: int) -> None:
        self.actor = actor
        self.learner = learner
        self.horizon = horizon
        self.progress = Progress()
        self.store = SnapshotStore()
        self.store.publish(learner.snapshot())
        self._episodes = EpisodeTracker()

    def iterate(self) -> dict[str, float]:
        """Collect one rollout, learn from it, publish; the metrics of :mod:`training.metrics`.

        Raises:
            FerryError: the policy or the updates broke down.
        """
        start = time.perf_counter()
        rollout = self.actor.collect(self.store.newest(), self.horizon)
        collected = time.perf_counter()
        snapshot, metrics = self.learner.update([rollout])
        self.store.publish(snapshot)
        updated = time.perf_counter()

        self._episodes.add(rollout)
        taken = rollout.num_steps * rollout.num_envs
        self.progress.iteration += 1
        self.progress.steps += taken
        return {
            **metrics,
            **self._episodes.metrics(),
            **_reward_metrics(rollout),
            "learner/version": float(self.learner.version),
            "time/steps_per_s": taken / (updated - start),
            "time/collect_s": collected - start,
            "time/update_s": updated - collected,
        }

    def policy_copy(self) -> ActorCritic:
        """The newest policy in a module of its own: nobody can train or spoil it by accident."""
        source = self.learner.policy
        copy = ActorCritic(
            source.policy_dim,
            source.critic_dim,
            action_dim=source.action_dim,
            config=source.config,
        )
        load_snapshot(copy, self.store.newest().state)
        return copy.eval()

    @property
    def checkpoint_name(self) -> str:
        """Folder name of a checkpoint made now."""
        return checkpoint_name(self.progress.steps)

    def checkpoint(self) -> Checkpoint:
        """Everything that :meth:`restore` needs, copied."""
        policy = self.learner.policy
        seen = self.actor.env.observation
        probe = make_probe(
            policy, seen["policy"][:PROBE_ROWS], critic_obs=seen["critic"][:PROBE_ROWS]
        )
        return Checkpoint(
            step=self.progress.steps,
            policy=self.learner.snapshot().state,
            learner=self.learner.state_dict(),
            actor=self.actor.state_dict(),
            episodes=self._episodes.state_dict(),
            probe=probe,
            counters={
                **asdict(self.progress),
                "version": self.learner.version,
                "policy_dim": policy.policy_dim,
                "critic_dim": policy.critic_dim,
                "action_dim": policy.action_dim,
                "policy_digest": policy_digest(policy),
            },
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on where :meth:`checkpoint` was taken.

        Raises:
            FerryError: it belongs to another network or env, or what was loaded is not what was
                stored.
        """
        counters = checkpoint.counters
        self.learner.load_state_dict(dict(checkpoint.policy), dict(checkpoint.learner))
        verify_policy(
            self.learner.policy,
            digest=counters["policy_digest"],
            probe=checkpoint.probe,
            source=f"checkpoint {checkpoint.name}",
        )
        if counters["version"] != self.learner.version:
            raise FerryError(
                f"checkpoint {checkpoint.name}: policy version {counters['version']}, but the "
                f"learner's is {self.learner.version}"
            )
        self.actor.load_state_dict(dict(checkpoint.actor))
        self._episodes.load_state_dict(checkpoint.episodes)
        self.progress = Progress(**{name: counters[name] for name in asdict(Progress())})
        self.store = SnapshotStore()
        self.store.publish(self.learner.snapshot())


def _reward_metrics(rollout: Rollout) -> dict[str, float]:
    """The mean reward of a step counts every step once, finished episodes or not."""
    parts = {f"reward/{name}": value for name, value in rollout.reward_parts.items()}
    return {"train/reward": float(np.mean(rollout.rewards)), **parts}
