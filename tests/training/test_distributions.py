"""The Gaussian and its squashed form against hand arithmetic, torch and brute integration."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from training.distributions import (
    Gaussian,
    SquashedGaussian,
    gaussian_entropy,
    gaussian_kl,
    gaussian_log_prob,
)

A = 3


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def theirs(mean: torch.Tensor, log_std: torch.Tensor, bound: float):
    """The same distribution, built of torch's parts."""
    base = torch.distributions.Normal(mean / bound, log_std.exp() / bound)
    parts = [
        torch.distributions.TanhTransform(),
        torch.distributions.AffineTransform(0.0, bound),
    ]
    return torch.distributions.TransformedDistribution(base, parts)


def test_the_log_density_by_hand():
    # one dimension, sigma 2, one sigma off: -1/2 - log 2 - log(2 pi) / 2
    found = gaussian_log_prob(
        torch.tensor([[5.0]]), torch.tensor([[3.0]]), torch.tensor([math.log(2.0)])
    )
    expected = -0.5 - math.log(2.0) - 0.5 * math.log(2.0 * math.pi)
    assert found.shape == (1,)
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_density_entropy_and_kl_equal_those_of_torch():
    mean, other, action = normal(6, A), normal(6, A, seed=1), normal(6, A, seed=2)
    log_std, other_log_std = 0.3 * normal(A, seed=3), 0.3 * normal(A, seed=4)
    ours = torch.distributions.Normal(mean, log_std.exp())
    old = torch.distributions.Normal(other, other_log_std.exp())
    torch.testing.assert_close(
        gaussian_log_prob(action, mean, log_std), ours.log_prob(action).sum(-1)
    )
    torch.testing.assert_close(gaussian_entropy(log_std), ours.entropy()[0].sum())
    kl = torch.distributions.kl_divergence(old, ours).sum(-1).mean()
    torch.testing.assert_close(gaussian_kl(other, other_log_std, mean, log_std), kl)


def test_the_kl_of_a_policy_to_itself_is_zero():
    mean, log_std = normal(6, A), normal(A, seed=1)
    assert gaussian_kl(mean, log_std, mean, log_std).item() == pytest.approx(0.0, abs=1e-6)


def test_the_squashed_log_density_by_hand():
    # bound 2, a = 1: x = 1/2, u = 2 atanh(1/2) = log 3; with mean 0 and sigma 1
    # log p = -log(3)^2 / 2 - log(2 pi) / 2 - log(1 - 1/4)
    found = SquashedGaussian(2.0).log_prob(torch.tensor([1.0]), torch.zeros(1), torch.zeros(1))
    expected = -0.5 * math.log(3.0) ** 2 - 0.5 * math.log(2.0 * math.pi) - math.log(0.75)
    assert found.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("bound", [0.7, 1.0, 5.0])
def test_the_squashed_density_equals_that_of_torch(bound):
    mean, noise, log_std = normal(50, A), normal(50, A, seed=1), 0.3 * normal(A, seed=2) - 0.5
    ours = SquashedGaussian(bound)
    action = ours.sample(0.5 * bound * mean, log_std, noise=noise * min(bound, 1.0))
    expected = theirs(0.5 * bound * mean, log_std, bound).log_prob(action).sum(-1)
    found = ours.log_prob(action, 0.5 * bound * mean, log_std)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_the_squashed_density_integrates_to_one_within_the_bound():
    bound = 1.5
    action = torch.linspace(-bound, bound, 40001, dtype=torch.float64)[1:-1, None]
    density = SquashedGaussian(bound).log_prob(
        action, torch.full((1,), 0.8, dtype=torch.float64), torch.full((1,), -0.4)
    )
    assert np.trapezoid(density.exp(), action[:, 0]) == pytest.approx(1.0, abs=1e-3)


def test_squashed_actions_are_inside_the_bound_and_their_densities_finite_at_its_edge():
    ours = SquashedGaussian(2.0)
    mean = torch.tensor([[100.0, -100.0, 0.1]])
    action = ours.sample(mean, torch.zeros(A), noise=torch.zeros(1, A))
    assert (action.abs() <= 2.0).all()
    assert ours.log_prob(action, mean, torch.zeros(A)).isfinite().all()


def test_squashing_is_the_identity_near_zero_so_deviations_keep_their_meaning():
    small = 1e-3 * normal(9, A)
    torch.testing.assert_close(SquashedGaussian(2.0).squash(small), small, rtol=1e-5, atol=1e-9)
    assert torch.equal(Gaussian().squash(small), small)


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (1.2, -0.7), (-3.0, 0.3)])
def test_the_squashed_entropy_equals_brute_integration(mean, log_std):
    bound = 2.0
    ours = SquashedGaussian(bound)
    center = torch.full((1, 1), mean, dtype=torch.float64)
    spread = torch.full((1,), log_std, dtype=torch.float64)
    x = torch.linspace(-1.0, 1.0, 400001, dtype=torch.float64)[1:-1, None]
    log_p = ours.log_prob(bound * x, center, spread)
    expected = np.trapezoid(-(log_p * log_p.exp()).numpy(), bound * x[:, 0].numpy())
    assert ours.entropy(center, spread).item() == pytest.approx(expected, abs=0.01)


def test_entropies_are_means_over_rows_and_sums_over_dimensions():
    ours, log_std = SquashedGaussian(1.0), 0.2 * normal(A)
    mean = normal(5, A, seed=1)
    single = [
        ours.entropy(mean[i : i + 1, j : j + 1], log_std[j : j + 1])
        for i in range(5)
        for j in range(A)
    ]
    assert ours.entropy(mean, log_std).item() == pytest.approx(sum(single).item() / 5, rel=1e-5)
    assert torch.equal(Gaussian().entropy(mean, log_std), gaussian_entropy(log_std))


def test_the_ratio_of_two_squashed_policies_is_that_of_their_gaussians():
    ours, log_std = SquashedGaussian(3.0), 0.1 * normal(A)
    one, other = normal(20, A, seed=1), normal(20, A, seed=2)
    latent = one + log_std.exp() * normal(20, A, seed=3)
    action = ours.squash(latent)
    found = ours.log_prob(action, other, log_std) - ours.log_prob(action, one, log_std)
    expected = gaussian_log_prob(latent, other, log_std) - gaussian_log_prob(latent, one, log_std)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
