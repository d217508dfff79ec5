"""Running scale of the value targets, and PopArt, which keeps the critic's values when it moves."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.normalizer import Moments, merge

#: Lower bound of the standard deviation: without rewards all targets are equal.
_STD_FLOOR = 1e-4


class ReturnNorm(nn.Module):
    """Mean and standard deviation of value targets; the critic's output is in units of them.

    Returns grow while a policy learns, so old targets must be forgotten: the count of the past is
    bounded by ``window``. Until then the statistics are those of all targets seen, from then on
    an exponential average, which is also how it needs no correction of an initial bias.

    Source: van Hasselt et al., "Learning values across many orders of magnitude", 2016 (PopArt).

    Args:
        window: samples after which the past weighs no more than a batch of as many.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, *, window: float) -> None:
        super().__init__()
        self.window = window
        self.register_buffer("mean", torch.zeros(1, dtype=torch.float64))
        self.register_buffer("var", torch.ones(1, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @property
    def std(self) -> Tensor:
        """``[1]`` float64, bounded below."""
        return self.var.sqrt().clamp(min=_STD_FLOOR)

    def normalize(self, value: Tensor) -> Tensor:
        """``(value - mean) / std``, any shape."""
        return (value - self.mean.to(value.dtype)) / self.std.to(value.dtype)

    def denormalize(self, output: Tensor) -> Tensor:
        """``output * std + mean``, any shape."""
        return output * self.std.to(output.dtype) + self.mean.to(output.dtype)

    @torch.no_grad()
    def update(self, batch: Moments, *, keep: nn.Linear | None = None) -> None:
        """Take in the moments of a batch of targets.

        Args:
            batch: moments ``[1]`` of targets in units of the reward.
            keep: the critic's last layer; it is changed in place so that ``denormalize(output)``
                is what it was (the "Art" in PopArt). None leaves it: then all values move along.
        """
        old_mean, old_std = self.mean.clone(), self.std
        past = Moments(old_mean, self.var.clone(), self.count.clamp(max=self.window))
        merged = merge(past, batch.to(old_mean.device))
        self.mean.copy_(merged.mean)
        self.var.copy_(merged.var)
        self.count.copy_(merged.count)
        if keep is None:
            return
        # w' = w s / s',  b' = (s b + m - m') / s'
        ratio = old_std / self.std
        keep.weight.mul_(ratio.to(keep.weight.dtype))
        bias = (old_std * keep.bias + old_mean - self.mean) / self.std
        keep.bias.copy_(bias)
