"""Statistics of targets, and that PopArt moves them without moving a value."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from training.networks import ActorCritic, NetworkConfig
from training.normalizer import Moments
from training.popart import ReturnNorm

SIZES = {"hidden": (8,), "critic_hidden": (16, 8)}


def policy(**config) -> ActorCritic:
    return ActorCritic(3, 4, action_dim=2, config=NetworkConfig(**SIZES, **config), seed=1)


def of(*targets: float) -> Moments:
    return Moments.of(torch.tensor(targets)[:, None])


def critic_obs() -> torch.Tensor:
    return torch.randn(20, 4, generator=torch.Generator().manual_seed(0))


def test_the_statistics_by_hand():
    norm = ReturnNorm(window=1e6)
    assert norm.normalize(torch.tensor([3.0])).item() == 3.0  # nothing seen: units of the reward
    norm.update(of(1.0, 2.0, 3.0))
    norm.update(of(6.0))  # 1 2 3 6: mean 3, variance 3.5
    assert norm.normalize(torch.tensor([3.0 + 3.5**0.5])).item() == pytest.approx(1.0)
    assert norm.denormalize(torch.tensor([-2.0])).item() == pytest.approx(3.0 - 2.0 * 3.5**0.5)


def test_normalising_and_back_is_the_identity():
    norm = ReturnNorm(window=100.0)
    norm.update(of(-40.0, 7.0, 900.0))
    values = torch.tensor([[1.0, -3.0], [500.0, 2e4]])
    torch.testing.assert_close(norm.denormalize(norm.normalize(values)), values)


def test_old_targets_are_forgotten_after_the_window():
    norm = ReturnNorm(window=50.0)
    for _ in range(10):
        norm.update(of(*np.linspace(-1.0, 1.0, 50).tolist()))
    for _ in range(12):
        norm.update(of(*np.linspace(99.0, 101.0, 50).tolist()))
    assert norm.mean.item() == pytest.approx(100.0, abs=100.0 * 0.5**12 + 1e-9)
    unbounded = ReturnNorm(window=1e9)
    for shift in [0.0] * 10 + [100.0] * 10:
        unbounded.update(of(shift - 1.0, shift + 1.0))
    assert unbounded.mean.item() == pytest.approx(50.0)


def test_popart_keeps_every_value_while_the_statistics_move():
    module = policy(return_norm="popart")
    assert module.return_norm is not None
    raw = critic_obs()
    before = module.value(raw)
    for targets in ((5.0, 7.0, 40.0), (-300.0, 20.0, 1.0), (0.0, 1e-3)):
        module.return_norm.update(of(*targets), keep=module.value_head)
        torch.testing.assert_close(module.value(raw), before, rtol=1e-4, atol=1e-4)
    assert module.return_norm.mean.abs() > 1.0


def test_without_popart_the_values_move_with_the_statistics():
    module = policy(return_norm="running")
    assert module.return_norm is not None
    raw = critic_obs()
    before = module.value(raw)
    module.return_norm.update(of(10.0, 14.0))
    torch.testing.assert_close(module.value(raw), before * 2.0 + 12.0)


def test_equal_targets_do_not_divide_by_zero():
    norm = ReturnNorm(window=10.0)
    norm.update(of(0.0, 0.0, 0.0))
    assert norm.normalize(torch.tensor([1e-5])).item() == pytest.approx(0.1, rel=1e-4)


def test_the_statistics_travel_with_the_weights_and_only_where_they_are_wanted():
    module = policy(return_norm="popart")
    assert module.return_norm is not None
    module.return_norm.update(of(3.0, 9.0), keep=module.value_head)
    loaded = policy(return_norm="popart")
    loaded.load_state_dict(module.state_dict())
    assert torch.equal(loaded.value(critic_obs()), module.value(critic_obs()))
    assert not any("return_norm" in name for name in policy().state_dict())


def test_output_of_a_value_is_the_inverse_of_value_of_an_output():
    module = policy(return_norm="running")
    assert module.return_norm is not None
    module.return_norm.update(of(3.0, 9.0))
    values = torch.tensor([6.0, 9.0])
    torch.testing.assert_close(module.output_of(values), torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(module.value_of(module.output_of(values)), values)
    assert policy().output_of(values) is values
