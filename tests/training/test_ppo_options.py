"""What can be switched on and off: weights, ratios, schedules, stopping, precision."""

from __future__ import annotations

import dataclasses
import shutil

import pytest
import torch

from tests.training.ppo_case import SMALL, A, B, C, D, batch_of, normal, parameters, policy, ppo
from training.networks import ActorCritic
from training.ppo import (
    normalized,
)


def test_the_weight_of_the_value_loss_scales_its_gradient_and_not_the_metric():
    plain, half = (ppo(policy(), value_coef=c, epochs=1, minibatches=1) for c in (1.0, 0.5))
    a, b = plain.update(batch_of(plain.policy)), half.update(batch_of(half.policy))
    assert b.value_loss == a.value_loss
    assert b.critic_grad_norm == pytest.approx(0.5 * a.critic_grad_norm, rel=1e-6)


def test_samples_of_weight_zero_teach_nothing():
    module, other = policy(), policy()
    weights = torch.ones(B)
    weights[::2] = 0.0
    batch = dataclasses.replace(batch_of(module), weights=weights)
    spoilt = dataclasses.replace(
        batch,
        advantages=torch.where(weights > 0, batch.advantages, torch.full((B,), 50.0)),
        targets=torch.where(weights > 0, batch.targets, torch.full((B,), 50.0)),
    )
    ppo(module, desired_kl=None).update(batch)
    ppo(other, desired_kl=None).update(spoilt)
    assert torch.equal(parameters(module), parameters(other))
    assert not torch.equal(parameters(module), parameters(policy()))


@pytest.mark.parametrize("bar", [None, 1.5])
def test_decoupled_ppo_goes_through_the_update(bar):
    module, same = policy(), policy()
    batch = batch_of(module)
    fresh = dataclasses.replace(batch, proximal=batch.log_probs.clone())
    ppo(module, proximal_bar=bar).update(fresh)
    ppo(same).update(batch)
    # Rounding only: the policy that acted is the one before the update.
    torch.testing.assert_close(parameters(module), parameters(same), rtol=1e-3, atol=1e-5)
    stale = dataclasses.replace(batch, proximal=batch.log_probs + 0.3 * normal(B, seed=8))
    ppo(module, proximal_bar=bar).update(stale)
    assert not torch.allclose(parameters(module), parameters(same), rtol=1e-3, atol=1e-5)


def test_advantages_can_be_normalised_in_each_minibatch_or_never():
    module = policy()
    rows = torch.arange(6)
    shifted = dataclasses.replace(batch_of(module), advantages=7.0 + 3.0 * normal(B))
    part = shifted.actor_part(rows, torch.zeros_like(rows))
    for kind, expected in (
        ("minibatch", normalized(part.advantages)),
        ("batch", part.advantages),  # done before, over the whole batch
        ("none", part.advantages),
    ):
        found = ppo(module, advantage_norm=kind)._with_advantages(part)
        torch.testing.assert_close(found.advantages, expected)
        assert torch.equal(found.obs, part.obs)


def test_a_squashed_policy_learns_with_its_own_density():
    config = SMALL.model_copy(update={"squash": 1.5})
    module = ActorCritic(D, C, action_dim=A, config=config, seed=0)
    obs = normal(B, D)
    with torch.no_grad():
        actions, log_probs = module.act(obs, noise=normal(B, A, seed=2))
        batch = dataclasses.replace(
            batch_of(module),
            obs=obs,
            actions=actions,
            means=module.actor(obs),
            log_probs=log_probs,
        )
    learner = ppo(module, entropy_coef=0.02, desired_kl=None, epochs=1, minibatches=1)
    rows = torch.arange(B)
    part = batch.actor_part(rows, torch.zeros_like(rows))
    loss, stats = learner._actor_loss(part, module.log_std.detach())
    assert stats[0].item() == pytest.approx(-batch.advantages.mean().item(), abs=1e-4)  # ratio 1
    entropy = module.distribution.entropy(module.actor(obs), module.log_std)
    torch.testing.assert_close(loss, stats[0] - 0.02 * entropy)


# ------------------------------------------------------------------ schedules and stopping


def test_settings_follow_their_schedules_from_update_to_update():
    linear = {"kind": "linear", "end": 0.0, "updates": 10}
    learner = ppo(
        policy(),
        desired_kl=None,
        learning_rate=1e-3,
        critic_learning_rate=2e-3,
        entropy_coef=0.1,
        clip=0.4,
        schedules={
            "learning_rate": linear,
            "critic_learning_rate": linear,
            "entropy_coef": {"kind": "cosine", "end": 0.02, "updates": 10},
            "clip": {**linear, "end": 0.2},
        },
    )
    learner.update(batch_of(learner.policy), number=5)
    assert learner.actor_adam.learning_rate == pytest.approx(5e-4)
    assert learner.critic_adam.learning_rate == pytest.approx(1e-3)
    assert (learner.entropy_coef, learner.clip) == pytest.approx((0.06, 0.3))
    before = parameters(learner.policy)
    learner.update(batch_of(learner.policy, seed=1), number=10)  # both rates are zero now
    assert torch.equal(parameters(learner.policy), before)


def test_the_actor_stops_once_it_went_too_far_and_the_critic_goes_on():
    module, free = policy(), policy()
    common = {"learning_rate": 0.02, "desired_kl": None, "epochs": 4, "minibatches": 4}
    stopped = ppo(module, stop_kl=0.02, **common)
    stats = stopped.update(batch_of(module))
    whole = ppo(free, **common).update(batch_of(free))
    assert whole.step_share == 1.0
    assert 0.0 < stats.step_share < 1.0
    assert stats.step_share * 16 == int(stats.step_share * 16)
    assert stats.kl < whole.kl
    critics = [torch.cat([p.flatten() for p in m.critic.parameters()]) for m in (module, free)]
    assert torch.equal(*critics)
    assert float(stopped.actor_adam._count) == stats.step_share * 16


# ------------------------------------------------------------------ switches


def test_bfloat16_changes_losses_by_less_than_two_percent():
    module = policy()
    batch = batch_of(module)
    rows = torch.arange(B)
    one, half = ppo(module), ppo(module, bf16=True)
    part = dataclasses.replace(
        batch.actor_part(rows, torch.zeros_like(rows)), advantages=torch.ones(B)
    )
    # The mean is near zero and sigma is 1, so a relative error of 2^-8 moves the ratio by as much.
    exact, near = (p._actor_loss(part, module.log_std.detach())[0].item() for p in (one, half))
    assert near != exact
    assert near == pytest.approx(exact, rel=0.02)
    values = [p._value_loss(batch.critic_part(rows)).item() for p in (one, half)]
    assert values[1] == pytest.approx(values[0], rel=0.02)
    assert half.update(batch).kl > 0.0
    assert all(p.dtype == torch.float32 for p in module.parameters())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_networks_learn_the_same():
    module, compiled = policy(), policy()
    ppo(module, epochs=2).update(batch_of(module))
    ppo(compiled, epochs=2, compile=True).update(batch_of(compiled))
    torch.testing.assert_close(parameters(module), parameters(compiled), rtol=1e-3, atol=1e-5)
