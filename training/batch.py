"""The samples of one update, and in which order they are taken."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """B samples. Observations are already normalised, under the statistics that collected them.

    Attributes:
        obs: ``[B, D]`` normalised; ``[2 B, D]`` if ``mirrored``: each sample's mirror image
            stands B rows below it, in ``obs``, ``actions``, ``means`` and ``proximal``.
        critic_obs: ``[B, C]`` normalised.
        actions: ``[B or 2 B, A]`` unclipped.
        means: ``[B or 2 B, A]`` of the Gaussian before the update.
        log_probs: ``[B]`` of the policy that acted.
        advantages: ``[B]``.
        targets: ``[B]`` of the value, in units of the critic's output.
        values: ``[B]`` before the update, in units of the critic's output.
        mirrored: whether mirror images are there.
        proximal: ``[B or 2 B]`` log-probs under the policy before the update; None if they are
            not needed.
        weights: ``[B]`` of the samples in both losses; None for all ones.
    """

    obs: Tensor
    critic_obs: Tensor
    actions: Tensor
    means: Tensor
    log_probs: Tensor
    advantages: Tensor
    targets: Tensor
    values: Tensor
    mirrored: bool = False
    proximal: Tensor | None = None
    weights: Tensor | None = None

    @property
    def size(self) -> int:
        """B."""
        return self.log_probs.shape[0]

    def actor_part(self, rows: Tensor, image: Tensor) -> ActorBatch:
        """Samples ``rows [b]``, mirrored where ``image [b]`` is 1, in contiguous memory."""
        own = rows + self.size * image if self.mirrored else rows
        return ActorBatch(
            obs=self.obs.index_select(0, own),
            actions=self.actions.index_select(0, own),
            means=self.means.index_select(0, own),
            log_probs=self.log_probs.index_select(0, rows),
            advantages=self.advantages.index_select(0, rows),
            proximal=_chosen(self.proximal, own),
            weights=_chosen(self.weights, rows),
        )

    def critic_part(self, rows: Tensor) -> CriticBatch:
        """Samples ``rows [b]`` in contiguous memory."""
        return CriticBatch(
            critic_obs=self.critic_obs.index_select(0, rows),
            targets=self.targets.index_select(0, rows),
            values=self.values.index_select(0, rows),
            weights=_chosen(self.weights, rows),
        )


@dataclass(frozen=True)
class ActorBatch:
    """What the actor learns from; see :class:`Batch`."""

    obs: Tensor
    actions: Tensor
    means: Tensor
    log_probs: Tensor
    advantages: Tensor
    proximal: Tensor | None = None
    weights: Tensor | None = None


@dataclass(frozen=True)
class CriticBatch:
    """What the critic learns from; see :class:`Batch`."""

    critic_obs: Tensor
    targets: Tensor
    values: Tensor
    weights: Tensor | None = None


@dataclass(frozen=True)
class Order:
    """One minibatch.

    Attributes:
        rows: ``[b]`` which samples of this learner.
        image: ``[b]`` 1 where the mirror image is taken.
        share: b over the samples that all learners have in this minibatch.
    """

    rows: Tensor
    image: Tensor
    share: float = 1.0


def _chosen(samples: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if samples is None else samples.index_select(0, rows)
