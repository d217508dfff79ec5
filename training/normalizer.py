"""Normalises observations inside the policy: the statistics travel with the weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

#: Added to the variance: a signal that hardly moves is divided by no less than 0.01, so that a
#: small change of it on the robot cannot become a huge input.
VARIANCE_FLOOR = 1e-4


@dataclass(frozen=True)
class Moments:
    """Mean and variance of a set of samples, in float64.

    Attributes:
        mean: ``[D]``.
        var: ``[D]`` population variance (divided by the count).
        count: ``[]`` number of samples; with 0 the others mean nothing.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def to(self, device: torch.device | str) -> Moments:
        """The same on another device."""
        return Moments(self.mean.to(device), self.var.to(device), self.count.to(device))

    @staticmethod
    def of(samples: Tensor) -> Moments:
        """Moments of ``samples [..., D]``; any leading axes, also of length zero."""
        flat = samples.reshape(-1, samples.shape[-1]).to(torch.float64)
        count = flat.new_tensor(float(flat.shape[0]))
        if flat.shape[0] == 0:
            zero = flat.new_zeros(samples.shape[-1])
            return Moments(zero, zero.clone(), count)
        var, mean = torch.var_mean(flat, dim=0, correction=0)
        return Moments(mean, var, count)


def merge(a: Moments, b: Moments) -> Moments:
    """Moments of the union of two disjoint sets of samples, exact up to rounding.

    ``merge(a, b)`` and ``merge(b, a)`` are the same bits, and the order in which more than two are
    merged matters for rounding only. What is merged must be disjoint: merge batches into a
    history, never two histories that share samples.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing
    sample variances", 1979, equation 2.1.
    """
    if float(a.count) == 0.0:
        return b
    if float(b.count) == 0.0:
        return a
    count = a.count + b.count
    mean = (a.count * a.mean + b.count * b.mean) / count
    # n var = na va + nb vb + (mb - ma)^2 na nb / n
    between = (b.mean - a.mean) ** 2 * (a.count * b.count) / count
    return Moments(mean, (a.count * a.var + b.count * b.var + between) / count, count)


class Normalizer(nn.Module):
    """``clip((x - mean) / sqrt(var + VARIANCE_FLOOR))`` with statistics as buffers.

    The forward pass never changes the statistics, in training mode neither. They are replaced by
    :meth:`update` alone, once per learner update after the last epoch, so that the log-probs of
    a batch are recomputed under the very statistics it was collected with.

    Args:
        dim: D.
        clip: bound on the normalised values [standard deviations].
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, dim: int, *, clip: float) -> None:
        super().__init__()
        self.clip = clip
        # float64: with float32 the count stops growing at 2^24 samples.
        self.register_buffer("mean", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("var", torch.ones(dim, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def shift_and_scale(self) -> tuple[Tensor, Tensor]:
        """``(mean, 1 / sqrt(var + floor))``, each ``[D]`` float32."""
        scale = torch.rsqrt(self.var + VARIANCE_FLOOR)
        return self.mean.to(torch.float32), scale.to(torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``[..., D]`` float32. The identity (but for clipping) before any update."""
        shift, scale = self.shift_and_scale()
        return ((x - shift) * scale).clamp(-self.clip, self.clip)

    @property
    def moments(self) -> Moments:
        """Copies of the statistics."""
        return Moments(self.mean.clone(), self.var.clone(), self.count.clone())

    @torch.no_grad()
    def update(self, batch: Moments) -> None:
        """Merge the moments of samples that have not been merged before."""
        merged = merge(self.moments, batch.to(self.mean.device))
        self.mean.copy_(merged.mean)
        self.var.copy_(merged.var)
        self.count.copy_(merged.count)
