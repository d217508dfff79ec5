"""The policy module: its Gaussian, its initial values, and that everything in it travels."""

from __future__ import annotations

import math

import numpy as np
import torch

from training.distributions import gaussian_log_prob
from training.networks import ActorCritic, NetworkConfig
from training.normalizer import Moments

D, C, A = 5, 7, 3


def policy(seed: int = 0, **config) -> ActorCritic:
    return ActorCritic(D, C, action_dim=A, config=NetworkConfig(**config), seed=seed)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


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


def test_a_squashed_policy_hands_the_robot_its_squashed_mean_and_stays_in_bounds():
    module = policy(squash=2.0, init_std=0.5)
    with torch.no_grad():
        module.actor[-1].bias.copy_(torch.tensor([0.5, -4.0, 30.0]))
    obs = normal(6, D)
    mean, log_std = module(obs)
    torch.testing.assert_close(mean, 2.0 * torch.tanh(module.mean(obs) / 2.0))
    assert module.mean(obs).abs().max() > 2.0 >= mean.abs().max()
    np.testing.assert_allclose(log_std.detach(), math.log(0.5), rtol=1e-6)
    action, log_prob = module.act(obs, noise=normal(6, A, seed=1))
    assert action.abs().max() <= 2.0
    again = module.distribution.log_prob(action, module.mean(obs), module.log_std)
    torch.testing.assert_close(log_prob, again)


def test_the_critic_may_see_what_the_actor_cannot():
    module = policy()
    critic = normal(5, C)
    assert module.critic[0].weight.shape[1] == C != module.actor[0].weight.shape[1] == D
    moved = critic.clone()
    moved[:, -1] += 1.0  # a number that only the critic has
    assert not torch.allclose(module.value(moved), module.value(critic))
