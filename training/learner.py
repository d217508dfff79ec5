"""The learner: rollouts in, the next version of the policy out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from real.errors import FerryError
from real.rollout import Rollout
from training.flat import FlatAdam
from training.networks import ActorCritic, NetworkConfig
from training.normalizer import Moments
from training.parallel import ALONE, Learners
from training.ppo import NonFiniteUpdateError, Ppo, PpoConfig, side_by_side
from training.prepare import Preparation, Prepared, joined
from training.recurrent import RecurrentPpo, sizes_of
from training.snapshot import PolicySnapshot, load_snapshot, take_snapshot
from training.staging import Staging
from training.symmetry import Mirror

Arrays = dict[str, NDArray[Any]]

log = logging.getLogger(__name__)

#: So many refused updates in a row end the run: going on would never learn anything.
MAX_REFUSED = 10


class TrainingDiverged(FerryError):
    """Update after update had to be refused."""


class Learner:
    """Owns the policy, its optimiser and its version.

    Args:
        policy_dim: D.
        critic_dim: C.
        action_dim: A.
        network: sizes of the policy.
        ppo: settings of the updates.
        seed: root seed of the run: initial weights and order of samples.
        mirror: adds each sample's mirror image for the actor; None for none.
        device: where to compute; the CPU if None. What it gives and takes is on the CPU.
        learners: with whom samples and steps are shared. All have the same seed, call
            :meth:`update` the same number of times and hold the same policy after each.
    """

    def __init__(
        self,
        policy_dim: int,
        critic_dim: int,
        *,
        action_dim: int,
        network: NetworkConfig,
        ppo: PpoConfig,
        seed: int,
        mirror: Mirror | None = None,
        learners: Learners = ALONE,
        device: torch.device | None = None,
    ) -> None:
        weights, order = np.random.SeedSequence(seed, spawn_key=(2**32 - 1,) * 4).spawn(2)
        self.policy = ActorCritic(
            policy_dim, critic_dim, action_dim=action_dim, config=network, seed=_int63(weights)
        )
        self._staging = Staging(device)
        self.policy.to(self._staging.device)
        self.version = 0
        self.config = ppo
        self._generator = torch.Generator().manual_seed(_int63(order))
        self._learners = learners
        kind = RecurrentPpo if any(sizes_of(self.policy).values()) else Ppo
        self._ppo = kind(self.policy, ppo, generator=self._generator, learners=learners)
        self._refused = 0
        self._mirror = mirror

    @property
    def learning_rate(self) -> float:
        """Step size of the next update."""
        return self._ppo.actor_adam.learning_rate

    def join(self, learners: Learners) -> None:
        """Share samples and steps with other learners from now on."""
        self._learners = self._ppo.learners = learners

    def heed(self, stop: threading.Event | None) -> None:
        """Know what is set once the run shall stop; alone, an update needs nobody to end."""

    def ready(self, timeout_s: float) -> bool:
        """Whether :meth:`update` may be called, after waiting for others so long at most."""
        return True

    def expect(self, rollout: Rollout) -> None:
        """Bring a rollout near that will probably be learned from; returns at once."""
        self._staging.begin(rollout)

    def snapshot(self) -> PolicySnapshot:
        """A copy of the present version."""
        return take_snapshot(self.policy, self.version)

    def update(
        self, rollouts: Sequence[Rollout], *, weights: Sequence[float] | None = None
    ) -> tuple[PolicySnapshot, dict[str, float]]:
        """Learn from rollouts once: all epochs, then the normalisers, then a new version.

        Rollouts or losses with numbers that are not finite are refused as a whole: a warning
        names the source, and policy, optimiser and version stay as they are.

        Args:
            rollouts: at least one; they may differ in T, N and policy version.
            weights: how much each rollout counts in both losses, for those that are too old; all
                in full if None. Normalisers count every sample once.

        Returns:
            The newest snapshot and the metrics of this update, see :mod:`training.metrics`.

        Raises:
            TrainingDiverged: the :data:`MAX_REFUSED`-th update in a row was refused.
            LearnerLostError: another learner ended; policy, optimiser and version are as before.
            FerryError: weights that do not fit the rollouts.
        """
        _weights_checked(weights, rollouts=len(rollouts))
        lags = [self.version - rollout.policy_version for rollout in rollouts]
        metrics = {"learner/lag": float(np.mean(lags)), "learner/refused": 0.0}
        try:
            self._require_finite(rollouts)
            prepared = self._prepare(rollouts, weights)
            seen = self._moments(rollouts)
            stats = self._ppo.update(prepared.batch, number=self.version)
        except NonFiniteUpdateError as error:
            self._refuse(error)
            return self.snapshot(), metrics | {"learner/refused": 1.0}
        self._refused = 0
        self._update_statistics(seen, prepared.targets)
        self.version += 1
        metrics |= {f"ppo/{name}": value for name, value in asdict(stats).items()}
        return self.snapshot(), metrics | {
            "ppo/learning_rate": self.learning_rate,
            "ppo/entropy": float(self._entropy(prepared.batch.means)),
            "ppo/std": float(self.policy.log_std.detach().exp().mean()),
            **prepared.metrics,
        }

    def _entropy(self, means: Tensor) -> Tensor:
        policy = self.policy
        return policy.distribution.latent_entropy(means, policy.log_std.detach())

    def _refuse(self, error: NonFiniteUpdateError) -> None:
        self._refused += 1
        log.warning("update of version %d refused: %s", self.version, error)
        if self._refused >= MAX_REFUSED:
            tries, self._refused = self._refused, 0  # whoever goes on from here has as many again
            raise TrainingDiverged(
                f"{tries} updates in a row were refused, the last because {error}; resume "
                "from an older checkpoint, or lower training.ppo.max_learning_rate"
            ) from error

    def _prepare(
        self, rollouts: Sequence[Rollout], weights: Sequence[float] | None = None
    ) -> Prepared:
        prepare = Preparation(self.policy, self.config, self._mirror, self._learners, self._staging)
        return prepare(rollouts, weights=weights)

    def _require_finite(self, rollouts: Sequence[Rollout]) -> None:
        """Raise in all learners if the rollouts of any are not finite."""
        found = _not_finite(rollouts)
        if self._learners.actor.max(float(found is not None)) > 0.0:
            raise NonFiniteUpdateError(found or "another learner's rollouts are not finite")

    def _moments(self, rollouts: Sequence[Rollout]) -> tuple[Moments, Moments]:
        """Of what policy and critic saw in all learners' rollouts."""
        line = self._learners.actor
        seen, seen_by_critic = side_by_side(
            lambda: Moments.of(joined([r.obs[:-1] for r in rollouts])),
            lambda: Moments.of(joined([r.critic_obs[:-1] for r in rollouts])),
        )
        return line.moments(seen), line.moments(seen_by_critic)

    def _update_statistics(self, seen: tuple[Moments, Moments], targets: Moments) -> None:
        """After the epochs, so that the statistics of a batch do not change under it.

        Nothing here asks another learner, which may have ended since: parameters have changed.
        """
        policy = self.policy
        policy.obs_norm.update(seen[0])
        policy.critic_norm.update(seen[1])
        if policy.return_norm is not None:
            popart = policy.config.return_norm == "popart"
            policy.return_norm.update(targets, keep=policy.value_head if popart else None)

    def state_dict(self) -> Arrays:
        """Everything but the policy itself, as flat arrays; see :meth:`load_state_dict`."""
        return {
            "version": np.array(self.version, dtype=np.int64),
            "refused": np.array(self._refused, dtype=np.int64),
            "learning_rate": np.array(self.learning_rate, dtype=np.float64),
            "generator": self._generator.get_state().numpy().copy(),
            **{
                f"adam.{network}.{name}": value
                for network, adam in self._adams().items()
                for name, value in adam.state_dict().items()
            },
        }

    def _adams(self) -> dict[str, FlatAdam]:
        return {"actor": self._ppo.actor_adam, "critic": self._ppo.critic_adam}

    def load_state_dict(self, policy: Arrays, state: Arrays) -> None:
        """Continue with ``policy`` (as in a snapshot) and what :meth:`state_dict` gave.

        Raises:
            FerryError: a part is missing, or they belong to another network.
        """
        missing = sorted(set(self.state_dict()) - set(state))
        if missing:
            raise FerryError(f"learner state lacks {', '.join(missing)}")
        load_snapshot(self.policy, policy)
        for network, adam in self._adams().items():
            prefix = f"adam.{network}."
            adam.load_state_dict(
                {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            )
        self._ppo.actor_adam.learning_rate = float(state["learning_rate"])
        self._generator.set_state(torch.from_numpy(np.array(state["generator"])))
        self.version = int(state["version"])
        self._refused = int(state["refused"])


def _not_finite(rollouts: Sequence[Rollout]) -> str | None:
    """The actor and the first numbers of it that are not finite, or None."""
    for rollout in rollouts:
        bad = rollout.bad_values()
        if bad:
            return f"the rollout of actor {rollout.actor_id!r} has {', '.join(bad)}"
    return None


def _weights_checked(weights: Sequence[float] | None, *, rollouts: int) -> None:
    if weights is None:
        return
    if len(weights) != rollouts or not all(0.0 <= w < np.inf for w in weights):
        raise FerryError(
            f"weights of rollouts {list(weights)}; expected {rollouts} numbers, 0 or larger"
        )


def _int63(seed: np.random.SeedSequence) -> int:
    """A seed for torch, which takes at most 63 bits."""
    return int(seed.generate_state(1, np.uint64)[0] >> np.uint64(1))
