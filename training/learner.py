"""The learner: rollouts in, the next version of the policy out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from real.errors import FerryError
from real.rollout import Rollout
from training.flat import FlatAdam
from training.networks import ActorCritic, NetworkConfig, gaussian_entropy, gaussian_log_prob
from training.normalizer import Moments
from training.ppo import Batch, NonFiniteUpdateError, Ppo, PpoConfig, normalized, side_by_side
from training.returns import Ends, gae, vtrace
from training.snapshot import PolicySnapshot, load_snapshot, take_snapshot
from training.symmetry import Mirror

Arrays = dict[str, NDArray[Any]]
Float32 = NDArray[np.float32]

log = logging.getLogger(__name__)

#: So many refused updates in a row end the run: going on would never learn anything.
MAX_REFUSED = 10


class TrainingDiverged(FerryError):
    """Update after update had to be refused."""


@dataclass(frozen=True)
class _Acted:
    """All samples as the actor sees them, see :class:`training.ppo.Batch`; log_ratio ``[B]``."""

    obs: Tensor
    actions: Tensor
    means: Tensor
    log_probs: Tensor
    log_ratio: Tensor


@dataclass(frozen=True)
class _Valued:
    """One rollout as the critic sees it.

    Attributes:
        critic_obs: ``[(T+1)*N, C]`` normalised.
        values: ``[T+1, N]``.
        final_values: ``[T, N]``, 0 where no episode was cut.
    """

    critic_obs: Tensor
    values: Float32
    final_values: Float32


@dataclass(frozen=True)
class _Prepared:
    """Rollouts as one batch, with what is measured on the way.

    Attributes:
        batch: all samples.
        ratio_error: largest difference from 1 of the density ratio before the update; rounding
            where the policy that acted is the policy that learns.
        explained_variance: of the targets by the values, at most 1.
    """

    batch: Batch
    ratio_error: float
    explained_variance: float


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
    ) -> None:
        weights, order = np.random.SeedSequence(seed, spawn_key=(2**32 - 1,) * 4).spawn(2)
        self.policy = ActorCritic(
            policy_dim, critic_dim, action_dim=action_dim, config=network, seed=_int63(weights)
        )
        self.version = 0
        self.config = ppo
        self._generator = torch.Generator().manual_seed(_int63(order))
        self._ppo = Ppo(self.policy, ppo, generator=self._generator)
        self._refused = 0
        self._mirror = mirror

    @property
    def learning_rate(self) -> float:
        """Step size of the next update."""
        return self._ppo.actor_adam.learning_rate

    def snapshot(self) -> PolicySnapshot:
        """A copy of the present version."""
        return take_snapshot(self.policy, self.version)

    def update(self, rollouts: Sequence[Rollout]) -> tuple[PolicySnapshot, dict[str, float]]:
        """Learn from rollouts once: all epochs, then the normalisers, then a new version.

        Rollouts or losses with numbers that are not finite are refused as a whole: a warning
        names the source, and policy, optimiser and version stay as they are.

        Args:
            rollouts: at least one; they may differ in T, N and policy version.

        Returns:
            The newest snapshot and the metrics of this update, see :mod:`training.metrics`.

        Raises:
            TrainingDiverged: the :data:`MAX_REFUSED`-th update in a row was refused.
        """
        lags = [self.version - rollout.policy_version for rollout in rollouts]
        metrics = {"learner/lag": float(np.mean(lags)), "learner/refused": 0.0}
        try:
            _check_finite(rollouts)
            prepared = self._prepare(rollouts)
            stats = self._ppo.update(prepared.batch)
        except NonFiniteUpdateError as error:
            self._refuse(error)
            return self.snapshot(), metrics | {"learner/refused": 1.0}
        self._refused = 0
        self._update_normalizers(rollouts)
        self.version += 1
        metrics |= {f"ppo/{name}": value for name, value in asdict(stats).items()}
        return self.snapshot(), metrics | {
            "ppo/learning_rate": self.learning_rate,
            "ppo/entropy": float(gaussian_entropy(self.policy.log_std.detach())),
            "ppo/std": float(self.policy.log_std.detach().exp().mean()),
            "ppo/ratio_error": prepared.ratio_error,
            "ppo/explained_variance": prepared.explained_variance,
        }

    def _refuse(self, error: NonFiniteUpdateError) -> None:
        self._refused += 1
        log.warning("update of version %d refused: %s", self.version, error)
        if self._refused >= MAX_REFUSED:
            raise TrainingDiverged(
                f"{self._refused} updates in a row were refused, the last because {error}; resume "
                "from an older checkpoint, or lower training.ppo.max_learning_rate"
            ) from error

    def _prepare(self, rollouts: Sequence[Rollout]) -> _Prepared:
        """Everything the epochs need, computed once with the policy as it is."""
        acted, valued = side_by_side(
            lambda: self._asked_actor(rollouts), lambda: [self._asked_critic(r) for r in rollouts]
        )
        # [B] -> one [T, N] per rollout
        ratios = acted.log_ratio.split([r.log_probs.size for r in rollouts])
        returns = [
            self._returns(r, v, x.numpy().reshape(r.log_probs.shape))
            for r, v, x in zip(rollouts, valued, ratios, strict=True)
        ]
        advantages, targets = (_joined(part) for part in zip(*returns, strict=True))
        values = _joined([v.values[:-1] for v in valued])
        batch = Batch(
            obs=acted.obs,
            critic_obs=torch.cat([v.critic_obs[: v.values[:-1].size] for v in valued]),
            actions=acted.actions,
            means=acted.means,
            log_probs=acted.log_probs,
            advantages=normalized(advantages),
            targets=targets,
            values=values,
            mirrored=self._mirror is not None,
        )
        spread = float(targets.var(correction=0))
        error = float((targets - values).var(correction=0))
        return _Prepared(
            batch=batch,
            ratio_error=float(acted.log_ratio.expm1().abs().max()),
            explained_variance=1.0 - error / spread if spread > 0.0 else 0.0,
        )

    @torch.no_grad()
    def _asked_actor(self, rollouts: Sequence[Rollout]) -> _Acted:
        policy = self.policy
        raw = _joined([r.obs[:-1] for r in rollouts])  # [B, D]
        actions = _joined([r.actions for r in rollouts])
        log_probs = _joined([r.log_probs for r in rollouts])
        obs = policy.obs_norm(raw)
        means = policy.actor(obs)
        log_ratio = gaussian_log_prob(actions, means, policy.log_std) - log_probs
        if self._mirror is not None:
            image = policy.obs_norm(self._mirror.obs(raw))
            obs, means = torch.cat((obs, image)), torch.cat((means, policy.actor(image)))
            actions = torch.cat((actions, self._mirror.action(actions)))
        return _Acted(obs, actions, means, log_probs, log_ratio)

    @torch.no_grad()
    def _asked_critic(self, rollout: Rollout) -> _Valued:
        steps, num = rollout.log_probs.shape
        critic_obs = self.policy.critic_norm(_joined([rollout.critic_obs]))  # [(T+1)*N, C]
        values = self.policy.critic(critic_obs).view(steps + 1, num).numpy()
        final_values = np.zeros((steps, num), dtype=np.float32)
        if len(rollout.final_index):
            t, n = rollout.final_index.T
            final = self.policy.value(torch.from_numpy(rollout.final_critic_obs))
            final_values[t, n] = final.numpy()
        return _Valued(critic_obs, values, final_values)

    def _returns(
        self, rollout: Rollout, valued: _Valued, log_ratio: Float32
    ) -> tuple[Float32, Float32]:
        """Advantages and targets, ``[T, N]`` each."""
        ends = Ends(rollout.terminated, rollout.truncated, valued.final_values)
        config = self.config
        if config.returns == "gae":
            found = gae(
                rollout.rewards, valued.values, ends=ends, gamma=config.gamma, lam=config.lam
            )
        else:
            found = vtrace(
                rollout.rewards,
                valued.values,
                log_ratio=log_ratio,
                ends=ends,
                gamma=config.gamma,
                lam=config.lam,
                rho_bar=config.rho_bar,
                c_bar=config.c_bar,
            )
        return found[0].astype(np.float32), found[1].astype(np.float32)

    def _update_normalizers(self, rollouts: Sequence[Rollout]) -> None:
        """After the epochs, so that the statistics of a batch do not change under it."""
        policy = self.policy
        seen, seen_by_critic = side_by_side(
            lambda: Moments.of(_joined([r.obs[:-1] for r in rollouts])),
            lambda: Moments.of(_joined([r.critic_obs[:-1] for r in rollouts])),
        )
        policy.obs_norm.update(seen)
        policy.critic_norm.update(seen_by_critic)

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


def _check_finite(rollouts: Sequence[Rollout]) -> None:
    """Raise :class:`NonFiniteUpdateError` naming the actor and the first bad number."""
    for rollout in rollouts:
        bad = rollout.bad_values()
        if bad:
            raise NonFiniteUpdateError(
                f"the rollout of actor {rollout.actor_id!r} has {', '.join(bad)}"
            )


def _joined(parts: Sequence[Float32]) -> Tensor:
    """Rollout arrays as one tensor: ``[T, N, ...] each -> [sum T*N, ...]``."""
    flat = [torch.from_numpy(np.ascontiguousarray(part)).flatten(0, 1) for part in parts]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


def _int63(seed: np.random.SeedSequence) -> int:
    """A seed for torch, which takes at most 63 bits."""
    return int(seed.generate_state(1, np.uint64)[0] >> np.uint64(1))
