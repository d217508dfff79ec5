"""Stale data, weights, units of returns, squashed actions, and the settings that ship."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from real.errors import FerryError
from tests.training.learner_case import (
    NETWORK,
    actor,
    learner,
    made_up,
    state_of,
    train,
)
from training.actor import ActorWorker
from training.learner import Learner
from training.networks import NetworkConfig, gaussian_log_prob
from training.ppo import PpoConfig
from training.run_config import load_run_config
from training.symmetry import Mirror, SignedPermutation
from training.toy_env import PointEnv

#: kl, value_loss, surrogate and learning_rate of three updates with the settings of A1, as they
#: were when those settings were tuned.
TUNED = [
    (0.02321302, 19.84133, -0.0294618, 0.0012),
    (0.03816143, 11.85469, -0.02991878, 0.0012),
    (0.1307383, 14.05322, -0.04230853, 8.77915e-05),
]


def tuned_learner() -> Learner:
    training = load_run_config("a1_walk").training
    swap = SignedPermutation((1, 0, 2, 3), (1.0, 1.0, -1.0, 1.0))
    mirror = Mirror(swap, SignedPermutation((1, 0), (1.0, 1.0)))
    return Learner(
        4, 5, action_dim=2, network=training.network, ppo=training.ppo, seed=0, mirror=mirror
    )


def test_the_settings_that_ship_for_a1_do_what_they_did_when_they_were_tuned():
    made = tuned_learner()
    for seed, expected in enumerate(TUNED):
        _, metrics = made.update([made_up(made, seed)])
        found = [metrics[f"ppo/{n}"] for n in ("kl", "value_loss", "surrogate", "learning_rate")]
        assert found == pytest.approx(expected, rel=2e-3)


def test_stale_rollouts_show_in_clip_shares_and_effective_sample_size():
    made, acting = learner(learning_rate=3e-3, desired_kl=None), actor()
    old = acting.collect(made.snapshot(), 16)
    _, fresh = made.update([old])
    assert fresh["ppo/rho_clip_share"] == fresh["ppo/c_clip_share"] == 0.0
    assert fresh["ppo/effective_sample_size"] == pytest.approx(1.0, abs=1e-6)
    train(made, acting, 3)
    _, stale = made.update([old])
    assert 0.1 < stale["ppo/rho_clip_share"] < 0.9
    assert 0.0 < stale["ppo/effective_sample_size"] < 0.99


def test_ratios_in_the_batch_are_to_the_policy_that_acted_and_the_one_before_the_update():
    made, acting = learner(returns="decoupled"), actor()
    old = acting.collect(made.snapshot(), 16)
    train(made, acting, 2)
    batch = made._prepare([old]).batch
    assert batch.proximal is not None
    with torch.no_grad():
        now = gaussian_log_prob(batch.actions, made.policy.actor(batch.obs), made.policy.log_std)
    torch.testing.assert_close(batch.proximal, now)
    torch.testing.assert_close(batch.log_probs, torch.from_numpy(old.log_probs.ravel()))
    assert (batch.proximal - batch.log_probs).abs().max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("returns", ["gae", "vtrace", "decoupled"])
def test_the_toy_task_is_learned_from_rollouts_four_versions_old(returns):
    made, acting = learner(returns=returns), actor()
    snapshots, rewards = [made.snapshot()] * 5, []
    for _ in range(70):
        rollout = acting.collect(snapshots[-5], 16)
        snapshot, metrics = made.update([rollout])
        snapshots.append(snapshot)
        rewards.append(rollout.rewards.mean())
    assert metrics["learner/lag"] == 4.0
    assert rewards[0] < 0.2
    assert np.mean(rewards[-5:]) > 0.7


def test_a_rollout_of_weight_zero_changes_statistics_only_and_weights_go_to_their_rollouts():
    made, acting = learner(), actor(6)
    a, b = acting.collect(made.snapshot(), 4), acting.collect(made.snapshot(), 8)
    weights = made._prepare([a, b], [0.25, 1.0]).batch.weights
    assert weights is not None
    np.testing.assert_array_equal(weights, [0.25] * 24 + [1.0] * 48)
    before = made.policy.actor[0].weight.detach().clone()
    _, metrics = made.update([a, b], weights=[0.0, 0.0])
    assert metrics["ppo/grad_norm"] == pytest.approx(0.005 * 2**0.5, rel=1e-3)  # entropy alone
    assert torch.equal(made.policy.actor[0].weight, before)
    assert made.policy.obs_norm.count == 72


@pytest.mark.parametrize("weights", [[1.0], [1.0, -0.5], [1.0, np.nan], [1.0, np.inf]])
def test_weights_that_fit_no_rollouts_are_refused(weights):
    made, acting = learner(), actor(3)
    with pytest.raises(FerryError, match=r"weights of rollouts .* expected 2 numbers"):
        made.update([acting.collect(made.snapshot(), 2)] * 2, weights=weights)


@pytest.mark.slow
@pytest.mark.parametrize("return_norm", ["running", "popart"])
def test_the_critic_learns_large_returns_in_its_own_units(return_norm):
    def explained(network: NetworkConfig) -> float:
        ppo = PpoConfig(epochs=5)
        made = Learner(4, 5, action_dim=2, network=network, ppo=ppo, seed=0)
        acting = ActorWorker(PointEnv(64, seed=0), "a", network=network, seed=0)
        for _ in range(15):
            rollout = acting.collect(made.snapshot(), 16)
            large = dataclasses.replace(rollout, rewards=500.0 * rollout.rewards)
            _, metrics = made.update([large])
        if made.policy.return_norm is not None:
            assert made.policy.return_norm.count == min(15 * 1024, 1e5)
            assert metrics["ppo/value_loss"] < 2.0  # in variances
        return metrics["ppo/explained_variance"]

    normed = explained(NETWORK.model_copy(update={"return_norm": return_norm}))
    assert normed > explained(NETWORK) + 0.1


def test_popart_moves_the_statistics_after_the_epochs_and_keeps_the_values():
    network = NETWORK.model_copy(update={"return_norm": "popart"})
    made = Learner(4, 5, action_dim=2, network=network, ppo=PpoConfig(), seed=0)
    rollout = made_up(made, 0)
    targets = made.policy.value_of(made._prepare([rollout]).batch.targets)
    made.update([rollout])
    norm = made.policy.return_norm
    assert norm is not None
    assert norm.mean.item() == pytest.approx(targets.double().mean().item(), rel=1e-5)
    assert norm.std.item() == pytest.approx(targets.double().std(correction=0).item(), rel=1e-5)


def test_a_refused_update_leaves_the_statistics_of_returns_alone():
    network = NETWORK.model_copy(update={"return_norm": "popart"})
    made = Learner(4, 5, action_dim=2, network=network, ppo=PpoConfig(), seed=0)
    made.update([made_up(made, 0)])
    before = state_of(made)
    bad = made_up(made, 1)
    made.update([dataclasses.replace(bad, rewards=np.full_like(bad.rewards, 1e30))])
    after = state_of(made)
    for name in ("return_norm.mean", "return_norm.count", "critic.4.weight", "version"):
        np.testing.assert_array_equal(after[name], before[name])
    assert after["refused"] == 1


@pytest.mark.slow
def test_the_first_ratio_of_a_squashed_policy_is_one_and_it_learns():
    network = NETWORK.model_copy(update={"squash": 1.5, "init_std": 0.7})
    made = Learner(4, 5, action_dim=2, network=network, ppo=PpoConfig(), seed=0)
    acting = ActorWorker(PointEnv(64, seed=0), "a", network=network, seed=0)
    rewards = []
    for _ in range(60):
        rollout = acting.collect(made.snapshot(), 16)
        assert np.abs(rollout.actions).max() <= 1.5
        _, metrics = made.update([rollout])
        assert metrics["ppo/ratio_error"] < 1e-4
        rewards.append(rollout.rewards.mean())
    assert np.mean(rewards[-5:]) > 0.6 > 0.3 > rewards[0]
