"""The policy module: its Gaussian, its initial values, and that everything in it travels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from training.networks import (
    ActorCritic,
    NetworkConfig,
    gaussian_entropy,
    gaussian_kl,
    gaussian_log_prob,
)
from training.normalizer import Moments

D, C, A = 5, 7, 3


def policy(seed: int = 0, **config) -> ActorCritic:
    return ActorCritic(D, C, action_dim=A, config=NetworkConfig(**config), seed=seed)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


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
    theirs = torch.distributions.Normal(other, other_log_std.exp())
    torch.testing.assert_close(
        gaussian_log_prob(action, mean, log_std), ours.log_prob(action).sum(-1)
    )
    torch.testing.assert_close(gaussian_entropy(log_std), ours.entropy()[0].sum())
    kl = torch.distributions.kl_divergence(theirs, ours).sum(-1).mean()
    torch.testing.assert_close(gaussian_kl(other, other_log_std, mean, log_std), kl)


def test_the_kl_of_a_policy_to_itself_is_zero():
    mean, log_std = normal(6, A), normal(A, seed=1)
    assert gaussian_kl(mean, log_std, mean, log_std).item() == pytest.approx(0.0, abs=1e-6)


def test_an_action_is_mean_plus_scaled_noise_and_has_its_own_density():
    module = policy(init_std=0.5)
    obs, noise = normal(4, D), normal(4, A, seed=1)
    action, log_prob = module.act(obs, noise=noise)
    torch.testing.assert_close(action, module.mean(obs) + 0.5 * noise)
    torch.testing.assert_close(
        log_prob, gaussian_log_prob(action, module.mean(obs), module.log_std)
    )


def test_the_first_policy_stays_near_the_default_pose_whatever_it_sees():
    assert policy().mean(100.0 * normal(200, D)).abs().max() < 0.2


def test_weights_are_orthogonal_with_the_gain_that_keeps_signals_alive():
    module = policy()
    first = module.actor[0].weight  # [256, 5]: columns are orthogonal, of length sqrt 2
    torch.testing.assert_close(first.T @ first, 2.0 * torch.eye(D), rtol=1e-4, atol=1e-4)
    last = module.actor[-1].weight  # [3, 64]: rows
    torch.testing.assert_close(last @ last.T, 1e-4 * torch.eye(A), rtol=1e-3, atol=1e-8)


def test_the_seed_alone_decides_the_weights_and_the_global_generator_is_left_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, same, other = policy(1), policy(1), policy(2)
    assert torch.equal(before, torch.get_rng_state())
    for name, value in one.state_dict().items():
        assert torch.equal(value, same.state_dict()[name])
    assert not torch.equal(one.actor[0].weight, other.actor[0].weight)


def test_the_robot_gets_mean_and_log_std_for_every_row():
    module = policy(init_std=0.7)
    mean, log_std = module(normal(6, D))
    assert mean.shape == log_std.shape == (6, A)
    np.testing.assert_allclose(log_std.detach(), math.log(0.7), rtol=1e-6)


def test_the_value_reads_the_critic_observation_and_drops_the_last_axis():
    module = policy()
    assert module.value(normal(4, 6, C)).shape == (4, 6)


def test_raw_observations_go_in_and_the_statistics_travel_with_the_weights():
    module = policy(seed=1)
    raw = 50.0 + 3.0 * normal(300, D)
    plain = module.mean(raw)
    module.obs_norm.update(Moments.of(raw))
    module.critic_norm.update(Moments.of(20.0 * normal(300, C)))
    assert not torch.allclose(module.mean(raw), plain)
    expected = module.actor((raw - raw.mean(0)) / (raw.var(0, correction=0) + 1e-4).sqrt())
    torch.testing.assert_close(module.mean(raw), expected, rtol=1e-4, atol=1e-5)

    loaded = policy(seed=2)
    loaded.load_state_dict(module.state_dict())
    assert torch.equal(loaded.mean(raw), module.mean(raw))
    assert loaded.obs_norm.count == 300
    critic = normal(9, C)
    assert torch.equal(loaded.value(critic), module.value(critic))
