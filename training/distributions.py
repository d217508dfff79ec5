"""What actions are drawn from: a diagonal Gaussian, plain or squashed into a bounded interval, or
a choice among so many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

_LOG_2 = math.log(2.0)
_LOG_2PI = math.log(2.0 * math.pi)

#: A squashed action is kept this far inside its bound, relative to it: what a float32 can tell
#: from the bound itself, so that the way back stays finite.
_EDGE = 1e-6
#: Nodes of the quadrature behind the squashed entropy; exact for polynomials of degree 31.
_NODES = 16


def gaussian_log_prob(action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log density of a diagonal Gaussian: ``[..., A], [..., A], [A] -> [...]``.

    ``log_std`` may have axes before the last, that fit the others.
    """
    # -1/2 sum ((a - mu) / sigma)^2 - sum log sigma - A/2 log 2 pi
    z = (action - mean) * torch.exp(-log_std)
    constant = log_std.sum(-1) + 0.5 * action.shape[-1] * _LOG_2PI
    return -0.5 * (z * z).sum(-1) - constant


def gaussian_entropy(log_std: Tensor) -> Tensor:
    """Differential entropy of a diagonal Gaussian [nat]: ``[A] -> []``."""
    return log_std.sum() + 0.5 * log_std.shape[-1] * (1.0 + _LOG_2PI)


def gaussian_kl(old_mean: Tensor, old_log_std: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """KL(old || new) of diagonal Gaussians [nat], averaged over leading axes: ``-> []``."""
    # sum log(s/s0) + (s0^2 + (m0 - m)^2) / (2 s^2) - 1/2
    squares = (old_mean - mean).square().reshape(-1, mean.shape[-1]).mean(0)  # [A]
    precision = torch.exp(-2.0 * log_std)
    per_dim = log_std - old_log_std + 0.5 * precision * (torch.exp(2.0 * old_log_std) + squares)
    return (per_dim - 0.5).sum()


class Gaussian:
    """A diagonal Gaussian; its actions are unbounded, whoever executes them clips them.

    Parameters of every method: ``mean [..., A]`` and ``log_std [A]`` of the Gaussian.
    """

    def squash(self, latent: Tensor) -> Tensor:
        """What a sample of the Gaussian becomes, elementwise; here itself."""
        return latent

    def sample(self, mean: Tensor, log_std: Tensor, *, noise: Tensor) -> Tensor:
        """Actions from standard normal ``noise [..., A]``."""
        return self.squash(mean + log_std.exp() * noise)

    def log_prob(self, action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        """Log density of ``action [..., A]``: ``[...]``."""
        return gaussian_log_prob(action, mean, log_std)

    def entropy(self, mean: Tensor, log_std: Tensor) -> Tensor:
        """Differential entropy [nat], averaged over leading axes: ``[]``."""
        return gaussian_entropy(log_std)

    def latent_entropy(self, mean: Tensor, log_std: Tensor) -> Tensor:
        """Entropy [nat] before any squashing, as metrics show it: ``[]``."""
        return gaussian_entropy(log_std)

    def kl(self, old_mean: Tensor, old_log_std: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        """KL(old || new) [nat], averaged over leading axes: ``[]``."""
        return gaussian_kl(old_mean, old_log_std, mean, log_std)


class Categorical(Gaussian):
    """A choice among A, as one-hot vectors; the actor's output are logits ``[..., A]``.

    It has the methods of the Gaussian, so that all else may treat both alike, and no standard
    deviation: ``log_std`` is not read.
    """

    def squash(self, latent: Tensor) -> Tensor:
        """The largest of the logits: ``[..., A]`` one-hot, the likeliest choice."""
        return functional.one_hot(latent.argmax(-1), latent.shape[-1]).to(latent.dtype)

    def sample(self, mean: Tensor, log_std: Tensor, *, noise: Tensor) -> Tensor:
        """One-hot choices from standard normal ``noise [..., A]``.

        The largest of logit + Gumbel noise is drawn from the softmax (Gumbel, "Statistical theory
        of extreme values", 1954). With the normal's distribution function Phi and a normal z,
        -log(-log Phi(z)) is such noise.
        """
        below = torch.special.log_ndtr(noise.double())  # log Phi, below zero far out, too
        return self.squash(mean - torch.log(-below).to(mean.dtype))

    def log_prob(self, action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        """Log probability of one-hot ``action [..., A]``: ``[...]``."""
        return (action * torch.log_softmax(mean, -1)).sum(-1)

    def entropy(self, mean: Tensor, log_std: Tensor) -> Tensor:
        """Entropy [nat], averaged over leading axes: ``[]``."""
        log_p = torch.log_softmax(mean, -1)
        return -(log_p.exp() * log_p).sum(-1).mean()

    def latent_entropy(self, mean: Tensor, log_std: Tensor) -> Tensor:
        """The entropy; nothing is squashed."""
        return self.entropy(mean, log_std)

    def kl(self, old_mean: Tensor, old_log_std: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        """KL(old || new) [nat], averaged over leading axes: ``[]``."""
        old, new = torch.log_softmax(old_mean, -1), torch.log_softmax(mean, -1)
        return (old.exp() * (old - new)).sum(-1).mean()


@dataclass(frozen=True)
class SquashedGaussian(Gaussian):
    """``a = bound tanh(u / bound)`` with Gaussian ``u``: every action is inside the bound.

    Near zero it is the identity, so standard deviations mean the same as without. The KL of two
    such policies is that of their Gaussians, since the map is invertible: use :func:`gaussian_kl`.

    Source of the change of variables: Haarnoja et al., "Soft actor-critic", 2018, appendix C.

    Attributes:
        bound: of every action.
    """

    bound: float

    def squash(self, latent: Tensor) -> Tensor:
        """``bound tanh(u / bound)``, elementwise; of the mean it is the median action."""
        return self.bound * torch.tanh(latent / self.bound)

    def log_prob(self, action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        """Log density of squashed ``action [..., A]``: ``[...]``.

        It is a function of the action alone, never of the sample before squashing: who recomputes
        it later has the action only, and must find the same number.
        """
        x = (action / self.bound).clamp(-1.0 + _EDGE, 1.0 - _EDGE)
        # log p(a) = log N(u) - sum log da/du,  u = bound atanh(x),  da/du = 1 - x^2
        slope = torch.log1p(-x * x).sum(-1)
        return gaussian_log_prob(self.bound * torch.atanh(x), mean, log_std) - slope

    def entropy(self, mean: Tensor, log_std: Tensor) -> Tensor:
        """Differential entropy [nat], averaged over leading axes: ``[]``.

        ``H = H_gauss + sum E[log da/du]``; the expectation, one per dimension, by Gauss-Hermite
        quadrature, so that it needs no random numbers.
        """
        nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
        z = torch.from_numpy(nodes).to(mean)  # [K]
        weight = torch.from_numpy(weights / math.sqrt(2.0 * math.pi)).to(mean)
        u = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * z  # [..., A, K]
        y = u / self.bound
        # log(1 - tanh(y)^2) without the cancellation
        slope = 2.0 * (_LOG_2 - y - functional.softplus(-2.0 * y))
        return gaussian_entropy(log_std) + (slope @ weight).sum(-1).mean()
