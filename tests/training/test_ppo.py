"""The update: its step size, its order of samples, and that it happens wholly or not at all."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time

import numpy as np
import pytest
import torch

from training.flat import FlatAdam
from training.networks import ActorCritic, NetworkConfig, gaussian_kl, gaussian_log_prob
from training.ppo import (
    Batch,
    NonFiniteUpdateError,
    Ppo,
    PpoConfig,
    adapted_rate,
    braked_rate,
    normalized,
    side_by_side,
)

D, C, A, B = 4, 6, 3, 40
SMALL = NetworkConfig(hidden=(16, 8), critic_hidden=(12,))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def policy(seed: int = 0) -> ActorCritic:
    return ActorCritic(D, C, action_dim=A, config=SMALL, seed=seed)


def batch_of(module: ActorCritic, *, seed: int = 0) -> Batch:
    obs, critic_obs = normal(B, D, seed=seed), normal(B, C, seed=seed + 1)
    with torch.no_grad():
        means = module.actor(obs)
        actions = means + module.log_std.exp() * normal(B, A, seed=seed + 2)
        return Batch(
            obs=obs,
            critic_obs=critic_obs,
            actions=actions,
            means=means,
            log_probs=gaussian_log_prob(actions, means, module.log_std),
            advantages=normalized(normal(B, seed=seed + 3)),
            targets=normal(B, seed=seed + 4),
            values=module.critic(critic_obs).squeeze(-1),
        )


def ppo(module: ActorCritic, **config) -> Ppo:
    return Ppo(module, PpoConfig(**config), generator=torch.Generator().manual_seed(0))


def parameters(module: ActorCritic) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()]).clone()


# ------------------------------------------------------------------ step size


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        (0.0129, 1.0),
        (0.0131, 1 / 1.2),
        (0.0078, 1.0),
        (0.0076, 1.2),
        (1e-9, 1.2),
        (0.0, 1.0),
        (-1e-8, 1.0),
        (math.nan, 1 / 1.2),
        (math.inf, 1 / 1.2),
        (-math.inf, 1 / 1.2),
    ],
)
def test_the_step_size_follows_the_kl_and_never_rises_on_none_or_a_broken_one(kl, factor):
    rate = adapted_rate(1e-3, kl=kl, config=PpoConfig(desired_kl=0.01))
    assert rate == pytest.approx(1e-3 * factor)


@pytest.mark.parametrize(
    ("kl", "factor"), [(0.0, 1.0), (0.039, 1.0), (0.041, 1 / 1.5), (math.nan, 1 / 1.5)]
)
def test_a_minibatch_that_went_much_too_far_slows_the_next(kl, factor):
    rate = braked_rate(1e-3, kl=kl, config=PpoConfig(desired_kl=0.01))
    assert rate == pytest.approx(1e-3 * factor)


@pytest.mark.parametrize("rule", [adapted_rate, braked_rate])
def test_the_step_size_stays_within_its_bounds_and_may_be_fixed(rule):
    bounded = PpoConfig(min_learning_rate=9e-4, max_learning_rate=1.1e-3)
    assert rule(1e-3, kl=1.0, config=bounded) == 9e-4
    assert rule(1e-3, kl=1e-6, config=bounded) <= 1.1e-3
    assert rule(1e-3, kl=math.nan, config=PpoConfig(desired_kl=None)) == 1e-3
    assert rule(1e-3, kl=1.0, config=PpoConfig(desired_kl=None)) == 1e-3


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


def test_a_value_that_left_the_bound_is_charged_for_the_bounded_one():
    module = policy()
    one = batch_of(module).critic_part(torch.tensor([0]))
    # The value moved from value - 1 to value, where the target is: bounded, it is 0.8 off.
    moved = dataclasses.replace(one, values=one.values - 1.0, targets=one.values)
    assert ppo(module, value_clip=0.2)._value_loss(moved).item() == pytest.approx(0.64, rel=1e-4)
    assert ppo(module, value_clip=None)._value_loss(moved).item() == pytest.approx(0.0, abs=1e-9)


def test_advantages_are_normalised_over_the_whole_batch():
    out = normalized(torch.tensor([1.0, 2.0, 3.0, 10.0]))
    np.testing.assert_allclose([out.mean(), out.std(correction=0)], [0.0, 1.0], atol=1e-6)
    assert torch.equal(normalized(torch.full((5,), 2.0)), torch.zeros(5))


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


# ------------------------------------------------------------------ the flat optimiser


def test_the_flat_optimiser_takes_the_steps_of_torch_adam():
    ours, theirs = policy(3), policy(3)
    flat = FlatAdam(ours.named_parameters(), learning_rate=1e-2)
    adam = torch.optim.Adam(theirs.parameters(), lr=1e-2)
    for step in range(5):
        obs, critic_obs = 5.0 * normal(8, D, seed=step), 5.0 * normal(8, C, seed=step)
        for module, zero in ((ours, flat.zero_grad), (theirs, adam.zero_grad)):
            zero()
            loss = module.mean(obs).square().sum() + (module.value(critic_obs) - 9).square().sum()
            (loss + module.log_std.sum()).backward()
        norm = flat.clip_grad(1.0)
        expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        assert norm == pytest.approx(expected.item(), rel=1e-5)
        assert norm > 1.0  # the bound was in force
        flat.step()
        adam.step()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=name)


def test_a_gradient_within_the_bound_is_left_alone():
    module = policy()
    flat = FlatAdam(module.named_parameters(), learning_rate=1e-3)
    flat.grad[5] = 0.5
    assert flat.clip_grad(1.0) == 0.5
    assert flat.grad[5] == 0.5


def test_loading_weights_into_the_module_reaches_the_optimiser():
    module = policy(1)
    flat = FlatAdam(module.named_parameters(), learning_rate=1e-3)
    module.load_state_dict(policy(2).state_dict())
    torch.testing.assert_close(flat.values.detach(), parameters(policy(2)))


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
