"""The update: its step size, its order of samples, and that it happens wholly or not at all."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time

import numpy as np
import pytest
import torch

from tests.training.ppo_case import A, B, batch_of, parameters, policy, ppo
from training.networks import gaussian_kl, gaussian_log_prob
from training.ppo import (
    Batch,
    NonFiniteUpdateError,
    PpoConfig,
    adapted_rate,
    braked_rate,
    side_by_side,
)

# ------------------------------------------------------------------ step size


@pytest.mark.parametrize("rule", [adapted_rate, braked_rate])
def test_the_step_size_stays_within_its_bounds_and_may_be_fixed(rule):
    bounded = PpoConfig(min_learning_rate=9e-4, max_learning_rate=1.1e-3)
    assert rule(1e-3, kl=1.0, config=bounded) == 9e-4
    assert rule(1e-3, kl=1e-6, config=bounded) <= 1.1e-3
    assert rule(1e-3, kl=math.nan, config=PpoConfig(desired_kl=None)) == 1e-3
    assert rule(1e-3, kl=1.0, config=PpoConfig(desired_kl=None)) == 1e-3


@pytest.mark.slow
def test_the_step_size_settles_where_an_update_moves_the_policy_as_far_as_desired():
    for start in (1e-5, 1e-2):
        module = policy()
        learner = ppo(module, learning_rate=start, desired_kl=0.01, epochs=3)
        kls = []
        for seed in range(60):
            batch = batch_of(module, seed=5 * seed)
            before = batch.means, module.log_std.detach().clone()
            learner.update(batch)
            with torch.no_grad():
                kl = gaussian_kl(*before, module.actor(batch.obs), module.log_std)
            kls.append(kl.item())
        assert 0.003 < np.mean(kls[-20:]) < 0.03
        assert max(kls[30:]) < 0.1


def test_a_gradient_of_zero_does_not_raise_the_step_size():
    module = policy()
    learner = ppo(module, entropy_coef=0.0, learning_rate=1e-3)
    still = dataclasses.replace(batch_of(module), advantages=torch.zeros(B))
    stats = learner.update(still)
    assert stats.grad_norm == 0.0
    assert learner.actor_adam.learning_rate == 1e-3


# ------------------------------------------------------------------ the loss


def test_the_surrogate_by_hand_for_a_ratio_inside_and_one_outside_the_bounds():
    module = policy()
    learner = ppo(module, clip=0.2, entropy_coef=0.1)
    rows = torch.tensor([3, 5])
    two = batch_of(module).actor_part(rows, torch.zeros_like(rows))
    # Ratios of 1.5 and 0.9 by shifting the stored density.
    shift = torch.tensor([math.log(1.5), math.log(0.9)])
    two = dataclasses.replace(
        two, log_probs=two.log_probs - shift, advantages=torch.tensor([1.0, -2.0])
    )
    loss, stats = learner._actor_loss(two, module.log_std.detach())
    surrogate = -(1.2 * 1.0 + 0.9 * -2.0) / 2
    entropy = A * 0.5 * (1.0 + math.log(2.0 * math.pi))  # sigma is 1
    assert stats[0].item() == pytest.approx(surrogate, rel=1e-5)
    assert stats[1].item() == pytest.approx(0.0, abs=1e-6)
    assert stats[2].item() == 0.5
    assert loss.item() == pytest.approx(surrogate - 0.1 * entropy, rel=1e-5)


def test_the_two_networks_share_no_parameter_and_leave_none_out():
    module = policy()
    names = [n for n, _ in module.actor_parameters()], [n for n, _ in module.critic_parameters()]
    assert "log_std" in names[0]
    assert sorted(names[0] + names[1]) == sorted(n for n, _ in module.named_parameters())


def test_a_broken_gradient_under_a_finite_loss_is_named():
    module = policy()
    learner = ppo(module)
    learner.actor_adam.grad[3] = math.inf
    with pytest.raises(NonFiniteUpdateError, match=r"gradient of actor.0.weight .* of epoch 1"):
        learner._require_finite(
            "surrogate", torch.zeros(()), norm=math.inf, adam=learner.actor_adam, number=5
        )


def test_good_actions_become_likelier_and_bad_ones_less_likely():
    module = policy()
    batch = batch_of(module)
    ppo(module, entropy_coef=0.0, desired_kl=None, learning_rate=3e-3).update(batch)
    with torch.no_grad():
        change = gaussian_log_prob(batch.actions, module.actor(batch.obs), module.log_std)
        change -= batch.log_probs
    good = batch.advantages > 0
    assert change[good].mean() > 0 > change[~good].mean()


# ------------------------------------------------------------------ samples


def test_every_epoch_has_a_new_order_and_takes_each_sample_once():
    module = policy()
    learner = ppo(module, epochs=3, minibatches=4)
    batch = batch_of(module)
    taken: dict[str, list[torch.Tensor]] = {"actor": [], "critic": []}

    class Watched(Batch):
        def actor_part(self, rows, image):
            taken["actor"].append(rows)
            return super().actor_part(rows, image)

        def critic_part(self, rows):
            taken["critic"].append(rows)
            return super().critic_part(rows)

    learner.update(Watched(**vars(batch)))
    for mine, other in zip(taken["actor"], taken["critic"], strict=True):
        assert torch.equal(mine, other)
    epochs = [torch.cat(taken["actor"][4 * e : 4 * e + 4]) for e in range(3)]
    for order in epochs:
        assert sorted(order.tolist()) == list(range(B))
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(epochs))


def test_a_batch_that_does_not_divide_evenly_is_used_whole():
    module = policy()
    stats = ppo(module, minibatches=7).update(batch_of(module))  # 40 = 7 * 5 + 5
    assert math.isfinite(stats.kl)


# ------------------------------------------------------------------ wholly or not at all


@pytest.mark.parametrize(
    ("field", "culprit"),
    [
        ("advantages", "the surrogate loss"),
        ("obs", "the surrogate loss"),
        ("targets", "the value loss"),
        ("critic_obs", "the value loss"),
    ],
)
def test_an_update_that_breaks_down_half_way_leaves_no_trace(field, culprit):
    module = policy()
    learner = ppo(module, epochs=2, minibatches=4, learning_rate=1e-3)
    learner.update(batch_of(module))  # Adam has a history
    adams = learner.actor_adam, learner.critic_adam
    before, states = parameters(module), [adam.save() for adam in adams]
    rate = learner.actor_adam.learning_rate

    batch = batch_of(module, seed=9)
    getattr(batch, field)[17] = math.nan  # in one minibatch of four
    with pytest.raises(NonFiniteUpdateError, match=f"{culprit} is not finite in minibatch"):
        learner.update(batch)

    assert torch.equal(parameters(module), before)
    for adam, state in zip(adams, states, strict=True):
        for name, tensor in adam.save().items():
            assert torch.equal(tensor, state[name]), name
    assert learner.actor_adam.learning_rate < rate


def test_an_overflowing_loss_is_refused_as_well():
    module = policy()
    before = parameters(module)
    huge = dataclasses.replace(batch_of(module), targets=torch.full((B,), 1e30))
    with pytest.raises(NonFiniteUpdateError, match="the value loss"):
        ppo(module, value_clip=None).update(huge)
    assert torch.equal(parameters(module), before)


def test_two_functions_side_by_side_both_end_before_an_error_comes_out():
    ended = []

    def slow():
        time.sleep(0.05)
        ended.append(True)
        return "slow"

    assert side_by_side(lambda: "quick", slow) == ("quick", "slow")
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda: 1 / 0, slow)
    with pytest.raises(ZeroDivisionError):
        side_by_side(slow, lambda: 1 / 0)
    assert len(ended) == 3
