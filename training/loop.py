"""What every runtime does, and the serial one: actor and learner take turns in one process."""

from __future__ import annotations

import abc
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from real.rollout import Rollout
from sim.shared import Shared
from training.actor import ActorWorker
from training.adaptation import Adaptation
from training.checkpoint import Checkpoint, checkpoint_name
from training.learner import Learner
from training.metrics import EpisodeTracker
from training.probe import PROBE_ROWS, make_probe, policy_digest, verify_policy
from training.queue import RolloutQueue
from training.roles import ScoreRequest
from training.snapshot import PolicySnapshot, SnapshotStore

Arrays = dict[str, NDArray[Any]]


@dataclass
class Progress:
    """How far a run is; all of it travels in the checkpoint. The times are kept by the run.

    Attributes:
        iteration: updates done.
        steps: control steps learned from, summed over worlds.
        training_s: wall time, evaluation included [s].
        evaluation_s: wall time of evaluation [s].
        best_score: highest evaluation score so far.
        best_step: ``steps`` at which it was reached.
        evaluated_step: ``steps`` of the newest evaluation.
        evaluations_since_best: evaluations after the best one.
    """

    iteration: int = 0
    steps: int = 0
    training_s: float = 0.0
    evaluation_s: float = 0.0
    best_score: float | None = None
    best_step: int | None = None
    evaluated_step: int | None = None
    evaluations_since_best: int = 0


class Runtime(abc.ABC):
    """A learner, and rollouts from somewhere.

    Args:
        learner: learns from them.
        horizon: T, steps per rollout.
        shared: what the worlds have in common, see :class:`training.adaptation.Adaptation`.
    """

    def __init__(self, learner: Learner, *, horizon: int, shared: Shared | None = None) -> None:
        self.learner = learner
        self.horizon = horizon
        self.adaptation = Adaptation(shared)
        self.progress = Progress()
        self._episodes = EpisodeTracker()

    @abc.abstractmethod
    def iterate(self, stop: threading.Event | None = None) -> dict[str, float] | None:
        """Learn once from new rollouts and publish; the metrics of :mod:`training.metrics`.

        Args:
            stop: ends a wait for rollouts.

        Returns:
            The metrics, or None if ``stop`` was set before there was anything to learn from.

        Raises:
            FerryError: the policy, the updates or the actors broke down.
        """

    def rest(self) -> None:  # noqa: B027 - in one process nobody acts unasked
        """No more rollouts are wanted: whoever makes them stops."""

    @abc.abstractmethod
    def _actor_state(self) -> Arrays:
        """What a checkpoint keeps of whoever acts."""

    @abc.abstractmethod
    def _restore_actors(self, state: Arrays, *, source: str) -> None:
        """Go on with what :meth:`_actor_state` gave."""

    @abc.abstractmethod
    def _seen(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Some observations of policy ``[K, D]`` and critic ``[K, C]``."""

    def _episode_state(self) -> Arrays:
        return self._episodes.state_dict()

    def _account(self, rollouts: list[Rollout]) -> None:
        """Count what was learned from."""
        self.progress.iteration += 1
        self.progress.steps += sum(r.num_steps * r.num_envs for r in rollouts)

    def score_request(self) -> ScoreRequest:
        """The newest policy, to be scored."""
        policy = self.learner.policy
        return ScoreRequest(
            snapshot=self.learner.snapshot(),
            sizes=(policy.policy_dim, policy.critic_dim, policy.action_dim),
            network=policy.config,
            checkpoint=self.checkpoint_name,
            step=self.progress.steps,
            iteration=self.progress.iteration,
        )

    @property
    def checkpoint_name(self) -> str:
        """Folder name of a checkpoint made now."""
        return checkpoint_name(self.progress.steps)

    def checkpoint(self) -> Checkpoint:
        """Everything that :meth:`restore` needs, copied."""
        policy = self.learner.policy
        obs, critic_obs = self._seen()
        return Checkpoint(
            step=self.progress.steps,
            policy=self.learner.snapshot().state,
            learner=self.learner.state_dict(),
            actor=self._actor_state(),
            episodes=self._episode_state(),
            probe=make_probe(policy, obs[:PROBE_ROWS], critic_obs=critic_obs[:PROBE_ROWS]),
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
        self._restore_actors(dict(checkpoint.actor), source=f"checkpoint {checkpoint.name}")
        self._episodes.load_state_dict(checkpoint.episodes)
        fresh = asdict(Progress())
        self.progress = Progress(**{name: counters.get(name, fresh[name]) for name in fresh})


class SerialRuntime(Runtime):
    """Actor and learner in turns, deterministically: the synchronous baseline.

    They share nothing but rollouts and snapshots, through the same queue and store as anywhere
    else. No rollout is ever older than the policy.

    Args:
        actor: makes rollouts.
        learner: learns from them.
        horizon: T, steps per rollout.
    """

    def __init__(self, actor: ActorWorker, learner: Learner, *, horizon: int) -> None:
        # The worlds decide for themselves, within a rollout too: there are no others.
        super().__init__(learner, horizon=horizon, shared=actor.shared)
        self.actor = actor
        self.queue = RolloutQueue(1, max_staleness=0)
        self.store = SnapshotStore()
        self._publish(learner.snapshot())

    def iterate(self, stop: threading.Event | None = None) -> dict[str, float]:
        """Collect one rollout, learn from it, publish; see :class:`Runtime`. Never waits."""
        start = time.perf_counter()
        self.queue.put(self.actor.collect(self.store.newest(), self.horizon))
        collected = time.perf_counter()
        (admitted,) = self.queue.take(1, self.learner.version)
        rollout = admitted.rollout
        snapshot, metrics = self.learner.update([rollout])
        self._publish(snapshot)
        updated = time.perf_counter()

        self._episodes.add(rollout)
        self._account([rollout])
        return {
            **metrics,
            **self._episodes.metrics(),
            **reward_metrics([rollout]),
            **self.adaptation.measures(),
            "learner/version": float(self.learner.version),
            "time/steps_per_s": rollout.num_steps * rollout.num_envs / (updated - start),
            "time/collect_s": collected - start,
            "time/update_s": updated - collected,
        }

    def _publish(self, snapshot: PolicySnapshot) -> None:
        self.store.publish(self.adaptation.stamped(snapshot))

    def _actor_state(self) -> Arrays:
        # In its worlds' state too; here the asynchronous runtime finds it.
        return self.actor.state_dict() | self.adaptation.state_dict()

    def _restore_actors(self, state: Arrays, *, source: str) -> None:
        if "starts" in state:
            raise FerryError(
                f"{source} is of the asynchronous runtime, whose worlds are not in it; resume with "
                "--runtime ray"
            )
        self.actor.load_state_dict(state)
        self.store = SnapshotStore()
        self._publish(self.learner.snapshot())

    def _seen(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        seen = self.actor.env.observation
        return seen["policy"], seen["critic"]


def reward_metrics(rollouts: list[Rollout]) -> dict[str, float]:
    """Means per step, which count every step once, finished episodes or not.

    The reward, its parts and, where the env limits targets, the share of them that it moved.
    """
    names = sorted({name for rollout in rollouts for name in rollout.reward_parts})
    parts = {
        f"reward/{name}": float(np.mean([r.reward_parts[name] for r in rollouts])) for name in names
    }
    joints = sorted({joint for rollout in rollouts for joint in rollout.clamped})
    moved = {f"filter/{n}": float(np.mean([r.clamped[n] for r in rollouts])) for n in joints}
    if moved:
        moved["filter/clamped_share"] = float(np.mean(list(moved.values())))
    reward = float(np.mean([np.mean(r.rewards) for r in rollouts]))
    return {"train/reward": reward, **parts, **moved}
