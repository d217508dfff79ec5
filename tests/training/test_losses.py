"""Each term of the loss by hand and against a slow reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from training.losses import (
    clipped_surrogate,
    decoupled_surrogate,
    normalized,
    value_loss,
    weighted_mean,
)
from training.normalizer import Moments


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def logs(*ratios: float) -> torch.Tensor:
    return torch.tensor([math.log(r) for r in ratios])


def normal(seed: int, size: int = 60) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def slow_decoupled(log_prob, proximal, behaviour, advantages, *, clip, bar, weights=None):
    """Hilton et al., equation 3, sample by sample, in the form in which it is printed."""
    total = 0.0
    for i in range(len(advantages)):
        old = math.exp(behaviour[i])
        scale = 1.0
        importance = math.exp(proximal[i]) / old
        if bar is not None and importance > bar:
            scale = bar / importance
        free = math.exp(log_prob[i]) / old * advantages[i]
        ratio = math.exp(log_prob[i]) / math.exp(proximal[i])
        bounded = min(max(ratio, 1.0 - clip), 1.0 + clip)
        held = bounded * math.exp(proximal[i]) / old * advantages[i]
        total += scale * min(free, held) * (1.0 if weights is None else weights[i])
    return -total / len(advantages)


def test_the_surrogate_by_hand():
    # 1.5 is bounded to 1.2 for a gain; 0.9 is free; 0.5 with a loss counts bounded, as 0.8
    loss, share = clipped_surrogate(logs(1.5, 0.9, 0.5), t(1.0, -2.0, -1.0), clip=0.2)
    assert loss.item() == pytest.approx(-(1.2 * 1.0 + 0.9 * -2.0 + 0.8 * -1.0) / 3, rel=1e-6)
    assert share.item() == pytest.approx(2 / 3)


def test_a_sample_half_as_heavy_counts_half_and_not_against_the_rest():
    loss, _ = clipped_surrogate(logs(1.0, 1.0), t(4.0, 2.0), clip=0.2, weights=t(0.5, 1.0))
    assert loss.item() == pytest.approx(-(0.5 * 4.0 + 2.0) / 2)
    assert weighted_mean(t(4.0, 2.0), t(0.5, 0.5)).item() == 1.5  # all stale: half in all


def test_decoupled_ppo_by_hand():
    # pi_prox / pi_behav = 1.5; pi / pi_prox = 1.4, bounded to 1.2: -1.5 * 1.2 * 2
    one = {"proximal": logs(0.3), "behaviour": logs(0.2), "clip": 0.2}
    loss, share = decoupled_surrogate(logs(0.42), t(2.0), weight_bar=None, **one)
    assert loss.item() == pytest.approx(-1.5 * 1.2 * 2.0, rel=1e-5)
    assert share.item() == 1.0
    # the same with the weight bounded to 1.1
    loss, _ = decoupled_surrogate(logs(0.42), t(2.0), weight_bar=1.1, **one)
    assert loss.item() == pytest.approx(-1.1 * 1.2 * 2.0, rel=1e-5)


@pytest.mark.parametrize("bar", [None, 1.3])
@pytest.mark.parametrize("weighted", [False, True])
def test_decoupled_ppo_equals_its_slow_reference(bar, weighted):
    log_prob, proximal, behaviour = 0.4 * normal(0) - 2, 0.4 * normal(1) - 2, 0.4 * normal(2) - 2
    advantages, weights = normal(3), normal(4).abs() if weighted else None
    found, _ = decoupled_surrogate(
        log_prob,
        advantages,
        proximal=proximal,
        behaviour=behaviour,
        clip=0.2,
        weight_bar=bar,
        weights=weights,
    )
    expected = slow_decoupled(
        log_prob.tolist(),
        proximal.tolist(),
        behaviour.tolist(),
        advantages.tolist(),
        clip=0.2,
        bar=bar,
        weights=None if weights is None else weights.tolist(),
    )
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_decoupled_ppo_is_ppo_where_the_policy_that_acted_is_the_one_before_the_update():
    log_prob, old, advantages = 0.3 * normal(0), 0.3 * normal(1), normal(2)
    plain = clipped_surrogate(log_prob - old, advantages, clip=0.2)
    apart = decoupled_surrogate(
        log_prob, advantages, proximal=old, behaviour=old, clip=0.2, weight_bar=1.0
    )
    for a, b in zip(plain, apart, strict=True):
        torch.testing.assert_close(a, b)


def test_the_gradient_of_stale_samples_survives_where_ppo_would_bound_all_of_it_away():
    # The learner moved far from the actor: every ratio to it is out of bounds before any step.
    log_prob = logs(0.9, 0.9).requires_grad_()
    behaviour, advantages = logs(0.3, 0.3), t(1.0, 1.0)
    clipped_surrogate(log_prob - behaviour, advantages, clip=0.2)[0].backward()
    assert log_prob.grad is not None
    assert torch.equal(log_prob.grad, torch.zeros(2))
    log_prob.grad = None
    decoupled_surrogate(
        log_prob,
        advantages,
        proximal=log_prob.detach(),
        behaviour=behaviour,
        clip=0.2,
        weight_bar=2.0,
    )[0].backward()
    torch.testing.assert_close(log_prob.grad, t(-1.0, -1.0))


def test_a_huge_importance_weight_does_not_overflow():
    loss, _ = decoupled_surrogate(
        t(0.0), t(1.0), proximal=t(0.0), behaviour=t(-1e4), clip=0.2, weight_bar=None
    )
    assert loss.isfinite()


def test_a_value_that_left_the_bound_is_charged_for_the_bounded_one():
    # It moved from 2 to 3, where the target is: bounded, it stands at 2.2, 0.8 off.
    assert value_loss(t(3.0), t(3.0), old=t(2.0), clip=0.2).item() == pytest.approx(0.64, rel=1e-5)
    assert value_loss(t(3.0), t(3.0), old=t(2.0), clip=None).item() == 0.0
    # The bounded value may be nearer; then the free one counts.
    assert value_loss(t(3.0), t(2.0), old=t(2.0), clip=0.2).item() == 1.0
    weighted = value_loss(t(3.0, 5.0), t(2.0, 2.0), old=t(3.0, 5.0), clip=0.2, weights=t(1.0, 0.5))
    assert weighted.item() == pytest.approx((1.0 + 0.5 * 9.0) / 2)


def test_advantages_are_normalised_over_themselves_or_over_given_samples():
    out = normalized(t(1.0, 2.0, 3.0, 10.0))
    np.testing.assert_allclose([out.mean(), out.std(correction=0)], [0.0, 1.0], atol=1e-6)
    assert torch.equal(normalized(torch.full((5,), 2.0)), torch.zeros(5))
    every = Moments.of(t(1.0, 2.0, 3.0, 10.0)[:, None])
    torch.testing.assert_close(normalized(t(3.0, 10.0), every), out[2:])
