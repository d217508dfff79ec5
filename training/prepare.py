"""From rollouts to the batch of an update: values, targets, advantages and what is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from real.rollout import Rollout
from training.batch import Batch
from training.losses import normalized
from training.networks import ActorCritic
from training.normalizer import Moments
from training.parallel import ALONE, Learners
from training.ppo import side_by_side
from training.ppo_config import PpoConfig
from training.recurrent import SequenceBatch, actor_means, critic_outputs, sizes_of
from training.returns import Ends, RatioSums, gae, vtrace
from training.staging import Staging
from training.symmetry import Mirror

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Prepared:
    """Rollouts as one batch.

    Attributes:
        batch: this learner's samples.
        targets: moments ``[1]`` of all learners' value targets, in units of the reward.
        metrics: of the samples of all learners; see :mod:`training.metrics`.
    """

    batch: Batch
    targets: Moments
    metrics: dict[str, float]


@dataclass(frozen=True)
class _Acted:
    """All samples as the actor sees them, see :class:`training.batch.Batch`; log_ratio ``[B]``."""

    obs: Tensor
    actions: Tensor
    means: Tensor
    log_probs: Tensor
    log_ratio: Tensor
    proximal: Tensor | None


@dataclass(frozen=True)
class _Valued:
    """One rollout as the critic sees it.

    Attributes:
        critic_obs: ``[(T+1)*N, C]`` normalised.
        outputs: ``[T+1, N]`` of the critic.
        values: ``[T+1, N]`` the same in units of the reward.
        final_values: ``[T, N]`` in units of the reward, 0 where no episode was cut.
    """

    critic_obs: Tensor
    outputs: Tensor
    values: Float32
    final_values: Float32


@dataclass(frozen=True)
class Preparation:
    """Computes, once per update and with the policy as it is, everything that the epochs need.

    Attributes:
        policy: that learns.
        config: settings.
        mirror: adds each sample's mirror image for the actor; None for none.
        learners: over whose samples advantages are normalised and numbers measured.
        staging: brings rollouts to the policy's device.
    """

    policy: ActorCritic
    config: PpoConfig
    mirror: Mirror | None = None
    learners: Learners = ALONE
    staging: Staging = field(default_factory=Staging)

    def __call__(
        self, rollouts: Sequence[Rollout], *, weights: Sequence[float] | None = None
    ) -> Prepared:
        """One batch from rollouts, which may differ in T and N, and their weights."""
        acted, valued = side_by_side(
            lambda: self._asked_actor(rollouts), lambda: [self._asked_critic(r) for r in rollouts]
        )
        # [B] -> one [T, N] per rollout
        ratios = acted.log_ratio.split([r.log_probs.size for r in rollouts])
        returns = [
            self._returns(r, v, x.cpu().numpy().reshape(r.log_probs.shape))
            for r, v, x in zip(rollouts, valued, ratios, strict=True)
        ]
        advantages, targets = (joined(part) for part in zip(*returns, strict=True))
        device, weighted = self.staging.device, _per_sample(weights, rollouts)
        batch = Batch(
            obs=acted.obs,
            critic_obs=torch.cat([v.critic_obs[: v.values[:-1].size] for v in valued]),
            actions=acted.actions,
            means=acted.means,
            log_probs=acted.log_probs,
            advantages=advantages.to(device),
            targets=self.policy.output_of(targets.to(device)),
            values=torch.cat([v.outputs[:-1].flatten() for v in valued]),
            mirrored=self.mirror is not None,
            proximal=acted.proximal,
            weights=None if weighted is None else weighted.to(device),
        )
        if any(sizes_of(self.policy).values()):
            batch = SequenceBatch.of(batch, rollouts, self.policy)
        values = joined([v.values[:-1] for v in valued])
        line = self.learners.actor
        of_targets = line.moments(Moments.of(targets.unsqueeze(-1)))
        of_errors = line.moments(Moments.of((targets - values).unsqueeze(-1)))
        spread = float(of_targets.var)
        explained = 1.0 - float(of_errors.var) / spread if spread > 0.0 else 0.0
        metrics = self._ratio_metrics(acted.log_ratio)
        metrics["ppo/explained_variance"] = explained
        return Prepared(self._with_normalized_advantages(batch), of_targets, metrics)

    def _with_normalized_advantages(self, batch: Batch) -> Batch:
        if self.config.advantage_norm != "batch":
            return batch  # per minibatch, later, or never
        moments = None
        if self.learners.size > 1:
            moments = self.learners.actor.moments(Moments.of(batch.advantages.unsqueeze(-1)))
        return replace(batch, advantages=normalized(batch.advantages, moments))

    def _ratio_metrics(self, log_ratio: Tensor) -> dict[str, float]:
        """How far the policies that acted are from the one that learns."""
        config, line = self.config, self.learners.actor
        sums = torch.from_numpy(
            RatioSums.of(log_ratio.cpu().numpy(), rho_bar=config.rho_bar, c_bar=config.c_bar).vector
        )
        line.sum_(sums)
        total = RatioSums(sums.numpy())
        return {
            "ppo/ratio_error": line.max(float(log_ratio.expm1().abs().max())),
            "ppo/rho_clip_share": total.rho_clip_share,
            "ppo/c_clip_share": total.c_clip_share,
            "ppo/effective_sample_size": total.effective_sample_size,
        }

    @torch.no_grad()
    def _asked_actor(self, rollouts: Sequence[Rollout]) -> _Acted:
        policy = self.policy
        density, log_std = policy.distribution.log_prob, policy.log_std
        staged = [self.staging(r) for r in rollouts]
        raw = _in_a_row([s.obs[:-1] for s in staged])  # [B, D]
        actions = _in_a_row([s.actions for s in staged])
        log_probs = _in_a_row([s.log_probs for s in staged])
        obs = policy.obs_norm(raw)
        means = actor_means(policy, obs, rollouts)
        log_ratio = density(actions, means, log_std) - log_probs
        if self.mirror is not None:
            image = policy.obs_norm(self.mirror.obs(raw))
            seen = actor_means(policy, image, rollouts, name="mirror_hidden")
            obs, means = torch.cat((obs, image)), torch.cat((means, seen))
            actions = torch.cat((actions, self.mirror.action(actions)))
        proximal = None
        if self.config.returns == "decoupled":
            proximal = density(actions, means, log_std)
        return _Acted(obs, actions, means, log_probs, log_ratio, proximal)

    @torch.no_grad()
    def _asked_critic(self, rollout: Rollout) -> _Valued:
        policy = self.policy
        steps, num = rollout.log_probs.shape
        staged = self.staging(rollout)
        critic_obs = policy.critic_norm(staged.critic_obs.flatten(0, 1))  # [(T+1)*N, C]
        found, final = critic_outputs(policy, critic_obs, rollout, final=staged.final_critic_obs)
        final_values = np.zeros((steps, num), dtype=np.float32)
        t, n = rollout.final_index.T
        final_values[t, n] = policy.value_of(final).cpu().numpy()
        return _Valued(critic_obs, found, policy.value_of(found).cpu().numpy(), final_values)

    def _returns(
        self, rollout: Rollout, valued: _Valued, log_ratio: Float32
    ) -> tuple[Float32, Float32]:
        """Advantages and targets in units of the reward, ``[T, N]`` each."""
        ends = Ends(rollout.terminated, rollout.truncated, valued.final_values)
        config = self.config
        if config.returns != "vtrace":
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


def joined(parts: Sequence[Float32]) -> Tensor:
    """Rollout arrays as one tensor: ``[T, N, ...] each -> [sum T*N, ...]``."""
    return _in_a_row([torch.from_numpy(np.ascontiguousarray(part)) for part in parts])


def _in_a_row(parts: Sequence[Tensor]) -> Tensor:
    """``[T, N, ...] each -> [sum T*N, ...]``."""
    flat = [part.flatten(0, 1) for part in parts]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


def _per_sample(weights: Sequence[float] | None, rollouts: Sequence[Rollout]) -> Tensor | None:
    """One weight per rollout -> ``[B]``."""
    if weights is None:
        return None
    sizes = [rollout.log_probs.size for rollout in rollouts]
    return torch.from_numpy(np.repeat(np.asarray(weights, dtype=np.float32), sizes))
