"""Losses and gradients in closed form are those of autograd."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from tests.training.ppo_case import A, B, C, D, batch_of, normal, parameters, policy, ppo
from training import mlp
from training.batch import ActorBatch, CriticBatch
from training.by_hand import ByHand, surrogate_gradient, value_gradient
from training.distributions import gaussian_entropy, gaussian_kl, gaussian_log_prob
from training.losses import clipped_surrogate, decoupled_surrogate, value_loss
from training.mlp import MlpPasses, is_plain, outputs
from training.networks import ActorCritic, NetworkConfig
from training.ppo import PpoConfig

# ------------------------------------------------------------------ passes


def network(seed: int = 0) -> nn.Sequential:
    """Three layers, none of which is square, with biases that are not zero."""
    made = ActorCritic(5, 3, action_dim=2, config=NetworkConfig(hidden=(16, 7)), seed=seed).actor
    assert isinstance(made, nn.Sequential)
    for number, parameter in enumerate(made.parameters()):
        parameter.data = normal(*parameter.shape, seed=number)
        parameter.grad = torch.full_like(parameter, torch.nan)  # replaced, not added to
    return made


def by_autograd(net: nn.Sequential, x: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(net(x), list(net.parameters()), grad))


@pytest.mark.slow
@pytest.mark.parametrize("numpy_is_faster", [True, False])
def test_the_passes_are_those_of_autograd_whatever_the_number_of_rows(monkeypatch, numpy_is_faster):
    monkeypatch.setattr(mlp, "_numpy_is_faster", lambda: numpy_is_faster)
    net = network()
    passes = MlpPasses(net)
    for rows in (6, 3, 11, 1):  # buffers shrink, grow, and are used again
        x, grad = 3.0 * normal(rows, 5, seed=rows), normal(rows, 2, seed=rows + 1)
        torch.testing.assert_close(passes.forward(x), net(x), rtol=1e-5, atol=1e-6)
        passes.backward(grad)
        for own, expected in zip(net.parameters(), by_autograd(net, x, grad), strict=True):
            torch.testing.assert_close(own.grad, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("numpy_is_faster", [True, False])
def test_elu_and_its_slope_at_zero_at_extremes_and_where_it_is_not_a_number(
    monkeypatch, numpy_is_faster
):
    monkeypatch.setattr(mlp, "_numpy_is_faster", lambda: numpy_is_faster)
    x = torch.tensor([0.0, -1e-7, 1e-7, -3.0, 3.0, -200.0, 200.0, torch.inf, -torch.inf])
    found, slope = x.clone(), torch.empty_like(x)
    mlp._elu_(found, slope)
    wide = x.double().numpy()
    exact = np.where(wide > 0, wide, np.expm1(np.minimum(wide, 0.0)))
    np.testing.assert_allclose(found, exact, rtol=3e-7)
    slopes = np.where(wide > 0, 1.0, np.exp(np.minimum(wide, 0.0)))
    np.testing.assert_allclose(1.0 + slope, slopes, rtol=1e-6, atol=1e-7)
    broken = torch.tensor([torch.nan, 1.0])
    mlp._elu_(broken, torch.empty(2))
    assert broken.isnan().tolist() == [True, False]


def test_outputs_without_gradient_are_the_same_bits(monkeypatch):
    net, x = network(), normal(50, 5)
    whole = MlpPasses(net).forward(x)
    assert torch.equal(outputs(net, x), whole)
    monkeypatch.setattr(mlp, "_CHUNK", 7)
    torch.testing.assert_close(outputs(net, x), whole, rtol=1e-5, atol=1e-6)
    other = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    torch.testing.assert_close(outputs(other, x), other(x).detach())


def test_only_linear_layers_with_elu_between_are_done_by_hand():
    linear = [nn.Linear(3, 4), nn.Linear(4, 2)]
    assert is_plain(nn.Sequential(linear[0], nn.ELU(), linear[1]))
    for between in (nn.Tanh(), nn.ELU(0.5), nn.LayerNorm(4)):
        assert not is_plain(nn.Sequential(linear[0], between, linear[1]))
    assert not is_plain(nn.Sequential(linear[0], nn.ELU()))
    assert not is_plain(nn.Sequential(nn.Linear(3, 4, bias=False), nn.ELU(), linear[1]))
    assert not is_plain(linear[0])


@pytest.mark.parametrize("switch", ["bf16", "compile", "autograd"])
def test_what_is_not_known_in_closed_form_is_left_to_autograd(switch):
    assert ByHand.suits(policy(), PpoConfig())
    assert not ByHand.suits(policy(), PpoConfig(**{switch: True}))
    squashed = ActorCritic(D, C, action_dim=A, config=NetworkConfig(squash=1.0))
    assert not ByHand.suits(squashed, PpoConfig())


# ------------------------------------------------------------------ losses

BAR = 1.3


def actor_part(case: str) -> ActorBatch:
    """Ratios below, inside and above the bounds, for advantages of either sign and of zero."""
    actions, means = normal(B, A, seed=1), normal(B, A, seed=2)
    log_probs = gaussian_log_prob(actions, means, torch.full((A,), -0.3))
    advantages = normal(B, seed=3)
    advantages[5] = 0.0
    part = ActorBatch(
        obs=normal(B, D),
        actions=actions,
        means=means + 0.2 * normal(B, A, seed=4),
        log_probs=log_probs + 0.3 * normal(B, seed=5),
        advantages=advantages,
    )
    weights = normal(B, seed=6).abs() if "weighted" in case else None
    proximal = log_probs + 0.2 * normal(B, seed=7) if "decoupled" in case else None
    return dataclasses.replace(part, weights=weights, proximal=proximal)


@pytest.mark.parametrize("case", ["plain", "weighted", "decoupled", "decoupled weighted"])
def test_the_gradient_of_the_surrogate_is_that_of_autograd(case):
    part = actor_part(case)
    mean = normal(B, A, seed=2).requires_grad_()
    log_std = (0.05 * normal(A, seed=8) - 0.3).requires_grad_()
    old_log_std = torch.full((A,), -0.2)
    log_prob = gaussian_log_prob(part.actions, mean, log_std)
    if part.proximal is None:
        surrogate, clipped = clipped_surrogate(
            log_prob - part.log_probs, part.advantages, clip=0.2, weights=part.weights
        )
    else:
        surrogate, clipped = decoupled_surrogate(
            log_prob,
            part.advantages,
            proximal=part.proximal,
            behaviour=part.log_probs,
            clip=0.2,
            weight_bar=BAR,
            weights=part.weights,
        )
    loss = surrogate - 0.07 * gaussian_entropy(log_std)
    loss.backward()
    with torch.no_grad():
        found = surrogate_gradient(
            part,
            mean,
            log_std,
            old_log_std=old_log_std,
            clip=0.2,
            entropy_coef=0.07,
            weight_bar=BAR,
        )
    torch.testing.assert_close(found.mean, mean.grad, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(found.log_std, log_std.grad, rtol=1e-4, atol=1e-6)
    kl = gaussian_kl(part.means, old_log_std, mean, log_std)
    expected = torch.stack((surrogate, kl, clipped, loss)).detach()
    torch.testing.assert_close(found.stats[:4], expected, rtol=1e-5, atol=1e-6)
    assert 0.2 < clipped < 0.8  # both sides of the bounds are there
    held = (found.mean == 0.0).all(-1)
    assert 0 < int(held.sum()) < B


@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_of_the_value_loss_is_that_of_autograd(clip, weighted):
    part = CriticBatch(
        critic_obs=normal(B, C),
        targets=normal(B, seed=1),
        values=normal(B, seed=2),
        weights=normal(B, seed=3).abs() if weighted else None,
    )
    value = (part.values + 0.4 * normal(B, seed=4)).requires_grad_()
    expected = value_loss(value, part.targets, old=part.values, clip=clip, weights=part.weights)
    expected.backward()
    loss, slope = value_gradient(part, value.detach(), clip=clip)
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(slope, value.grad, rtol=1e-5, atol=1e-7)
    if clip is not None:
        assert 0 < int((slope == 0.0).sum()) < B


@pytest.mark.parametrize("options", [{}, {"value_clip": None, "advantage_norm": "minibatch"}])
def test_whole_updates_by_hand_and_by_autograd_end_at_the_same_parameters(options):
    modules = policy(4), policy(4)
    for module, autograd in zip(modules, (False, True), strict=True):
        learner = ppo(module, autograd=autograd, **options)
        assert (learner._by_hand is None) == autograd
        for update in range(3):
            learner.update(batch_of(module, seed=10 * update), number=update)
    by_hand, by_autograd = (parameters(module) for module in modules)
    assert (by_hand - parameters(policy(4))).abs().max() > 1e-2  # they did move
    torch.testing.assert_close(by_hand, by_autograd, rtol=1e-4, atol=2e-6)
