"""The learner: first ratio 1, statistics once per update, refusals, resuming, learning."""

from __future__ import annotations

import dataclasses
import logging

import numpy as np
import pytest
import torch

from real.errors import FerryError
from real.rollout import Rollout
from tests.training.learner_case import (
    NETWORK,
    actor,
    assert_same,
    learner,
    state_of,
    train,
)
from training.learner import MAX_REFUSED, Learner, TrainingDiverged
from training.networks import ActorCritic, NetworkConfig, gaussian_log_prob
from training.ppo import PpoConfig
from training.returns import Ends, gae
from training.snapshot import take_snapshot


@pytest.mark.slow
def test_ppo_solves_the_toy_task_in_seconds():
    made, acting = learner(), actor()
    rollouts = train(made, acting, 60)
    assert rollouts[0].rewards.mean() < 0.2
    # Always at the target would be 1; the way there costs about 0.07 and the noise as much.
    assert rollouts[-1].rewards.mean() > 0.8
    last = [e for r in rollouts[-5:] for e in r.episodes]
    assert not any(e.terminated for e in last)


def test_the_first_ratio_is_one_for_every_row_with_the_normaliser_on():
    made, acting = learner(), actor(limit=7)
    train(made, acting, 3)  # the statistics have moved
    assert made.policy.obs_norm.count > 0
    rollout = acting.collect(made.snapshot(), 16)
    log_prob = gaussian_log_prob(
        torch.from_numpy(rollout.actions),
        made.policy.mean(torch.from_numpy(rollout.obs[:-1])),
        made.policy.log_std,
    )
    ratio = np.exp(log_prob.detach().numpy() - rollout.log_probs)
    assert np.abs(ratio - 1.0).max() < 1e-5
    _, metrics = made.update([rollout])
    assert metrics["ppo/ratio_error"] < 1e-5


def test_the_ratio_is_one_where_the_mean_is_outside_the_bound_of_the_action():
    made, acting = learner(), actor()
    with torch.no_grad():
        made.policy.actor[-1].bias.fill_(3.0)
    _, metrics = made.update([acting.collect(made.snapshot(), 16)])
    assert metrics["ppo/ratio_error"] < 1e-5


def test_a_rollout_of_an_older_version_shows_its_lag_and_its_ratio():
    made, acting = learner(), actor()
    old = acting.collect(made.snapshot(), 16)
    train(made, acting, 2)
    _, metrics = made.update([old])
    assert metrics["learner/lag"] == 2.0
    assert metrics["ppo/ratio_error"] > 0.01


def test_the_statistics_are_merged_once_per_update_after_the_epochs_and_published():
    made, acting = learner(epochs=3), actor(num=10)
    seen: list[float] = []
    made.policy.obs_norm.register_forward_pre_hook(
        lambda module, _: seen.append(float(module.count))
    )
    first = acting.collect(made.snapshot(), 8)
    snapshot, _ = made.update([first])
    assert set(seen) == {0.0}  # whatever looked at them during the update saw the old ones
    assert snapshot.state["obs_norm.count"] == snapshot.state["critic_norm.count"] == 80
    raw = first.obs[:-1].reshape(-1, 4).astype(np.float64)
    np.testing.assert_allclose(snapshot.state["obs_norm.mean"], raw.mean(0))
    np.testing.assert_allclose(snapshot.state["obs_norm.var"], raw.var(0))
    critic = first.critic_obs[:-1].reshape(-1, 5).astype(np.float64)
    np.testing.assert_allclose(snapshot.state["critic_norm.mean"], critic.mean(0))


def test_a_version_is_one_update_over_all_epochs():
    made, acting = learner(epochs=4), actor()
    assert made.snapshot().version == 0
    snapshot, metrics = made.update([acting.collect(made.snapshot(), 4)])
    assert snapshot.version == made.version == 1
    assert metrics["learner/lag"] == 0.0


def test_rollouts_of_two_actors_equal_one_rollout_of_all_their_worlds():
    a = actor(6, limit=5).collect(learner().snapshot(), 8)
    b = actor(4, limit=5, stream=(1, 0)).collect(learner().snapshot(), 8)
    joined = {
        name: np.concatenate([getattr(a, name), getattr(b, name)], axis=1)
        for name in (
            "obs",
            "critic_obs",
            "actions",
            "log_probs",
            "rewards",
            "terminated",
            "truncated",
        )
    }
    index = np.concatenate([a.final_index, b.final_index + np.array([0, 6])])
    final = np.concatenate([a.final_critic_obs, b.final_critic_obs])
    whole = Rollout(
        **joined, final_index=index, final_critic_obs=final, policy_version=0, actor_id="c"
    )
    apart, together = learner()._prepare([a, b]).batch, learner()._prepare([whole]).batch
    # The order of samples differs: [T, 6] then [T, 4] against [T, 10].
    order = np.arange(80).reshape(8, 10)
    order = np.concatenate([order[:, :6].ravel(), order[:, 6:].ravel()])
    for name in ("obs", "critic_obs", "actions", "log_probs", "advantages", "targets", "values"):
        torch.testing.assert_close(
            getattr(apart, name), getattr(together, name)[order], rtol=1e-4, atol=1e-5, msg=name
        )


@pytest.mark.parametrize("returns", ["gae", "vtrace"])
def test_targets_use_the_value_of_the_observation_a_cut_episode_ended_in(returns):
    made, acting = learner(returns=returns, gamma=0.9, lam=0.7), actor(5, limit=6)
    train(made, acting, 2)
    rollout = acting.collect(made.snapshot(), 15)
    assert rollout.truncated.any()
    value = made.policy.value
    with torch.no_grad():
        values = value(torch.from_numpy(rollout.critic_obs)).numpy()
        final = np.full(rollout.rewards.shape, np.nan, dtype=np.float32)
        for (t, n), obs in zip(rollout.final_index, rollout.final_critic_obs, strict=True):
            final[t, n] = value(torch.from_numpy(obs)).item()
    ends = Ends(rollout.terminated, rollout.truncated, final)
    _, targets = gae(rollout.rewards, values, ends=ends, gamma=0.9, lam=0.7)
    batch = made._prepare([rollout]).batch
    np.testing.assert_allclose(batch.targets, targets.ravel(), rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize("part", ["obs", "critic_obs", "rewards", "log_probs", "actions"])
def test_a_rollout_with_a_broken_number_is_refused_and_its_source_named(part, caplog):
    made, acting = learner(), actor(limit=9)
    train(made, acting, 2)
    good = acting.collect(made.snapshot(), 10)
    bad = dataclasses.replace(good, actor_id="b7", **{part: getattr(good, part).copy()})
    getattr(bad, part)[3, 1] = np.nan
    before = state_of(made)
    with caplog.at_level(logging.WARNING):
        snapshot, metrics = made.update([good, bad])
    assert f"actor 'b7' has {part}[3, 1" in caplog.text
    assert metrics["learner/refused"] == 1.0
    assert snapshot.version == made.version == 2
    after = state_of(made)
    assert after.pop("refused") == 1
    before.pop("refused")
    assert_same(before, after)


def test_an_update_that_overflows_leaves_policy_statistics_and_version(caplog):
    made, acting = learner(value_clip=None), actor()
    train(made, acting, 1)
    rollout = acting.collect(made.snapshot(), 8)
    huge = dataclasses.replace(rollout, rewards=np.full_like(rollout.rewards, 1e30))
    before = made.snapshot()
    _, metrics = made.update([huge])
    assert metrics["learner/refused"] == 1.0
    assert "is not finite in minibatch" in caplog.text
    assert made.version == before.version
    assert_same(dict(before.state), dict(made.snapshot().state))


def test_refusals_in_a_row_end_the_run_and_a_good_update_starts_the_count_anew():
    made, acting = learner(), actor()
    good = acting.collect(made.snapshot(), 4)
    bad = dataclasses.replace(good, rewards=np.full_like(good.rewards, np.inf))
    for _ in range(MAX_REFUSED - 1):
        made.update([bad])
    made.update([good])
    for _ in range(MAX_REFUSED - 1):
        made.update([bad])
    with pytest.raises(TrainingDiverged, match=f"{MAX_REFUSED} updates in a row"):
        made.update([bad])


def test_observations_that_grow_without_bound_do_not_raise_the_step_size():
    made, acting = learner(learning_rate=1e-3), actor()
    rollout = acting.collect(made.snapshot(), 8)
    scale = np.float32(10.0) ** np.arange(9, dtype=np.float32)[:, None, None]
    grown = {name: getattr(rollout, name) * scale**3 for name in ("obs", "critic_obs")}
    made.update([dataclasses.replace(rollout, **grown)])
    assert made.learning_rate <= 1e-3
    assert all(np.isfinite(value).all() for value in made.snapshot().state.values())


# ------------------------------------------------------------------ going on


def test_a_restored_learner_makes_the_same_next_updates():
    made, acting = learner(), actor(limit=9)
    train(made, acting, 4)
    policy, state = dict(made.snapshot().state), made.state_dict()
    rollout = acting.collect(made.snapshot(), 16)
    _, expected = made.update([rollout])

    other = Learner(4, 5, action_dim=2, network=NETWORK, ppo=PpoConfig(), seed=99)
    other.load_state_dict(policy, state)
    _, found = other.update([rollout])
    assert found == expected
    assert_same(state_of(other), state_of(made))


def test_a_learner_state_of_another_network_or_with_a_part_missing_is_refused():
    made = learner()
    policy, state = dict(made.snapshot().state), made.state_dict()
    wide = Learner(4, 5, action_dim=2, network=NetworkConfig(hidden=(8,)), ppo=PpoConfig(), seed=0)
    with pytest.raises(FerryError, match="another network"):
        wide.load_state_dict(policy, state)
    with pytest.raises(FerryError, match=r"adam.actor.exp_avg"):
        made.load_state_dict(policy, {k: v for k, v in state.items() if k != "adam.actor.exp_avg"})
    short = state | {"adam.actor.exp_avg": state["adam.actor.exp_avg"][:-1]}
    with pytest.raises(FerryError, match="exp_avg"):
        made.load_state_dict(policy, short)


def test_the_seed_decides_weights_and_the_order_of_samples():
    same = [learner(), learner()]
    rollout = actor().collect(same[0].snapshot(), 8)
    for made in same:
        made.update([rollout])
    assert_same(state_of(same[0]), state_of(same[1]))
    other = Learner(4, 5, action_dim=2, network=NETWORK, ppo=PpoConfig(), seed=1)
    weights = ActorCritic(4, 5, action_dim=2, config=NETWORK, seed=0)
    assert not np.array_equal(
        other.snapshot().state["actor.0.weight"], same[0].snapshot().state["actor.0.weight"]
    )
    assert take_snapshot(weights, 0).state.keys() == other.snapshot().state.keys()
