"""What an actor records: the action its density belongs to, ends, statistics, and its state."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from real.errors import FerryError
from training.actor import ActorWorker
from training.networks import ActorCritic, NetworkConfig, gaussian_log_prob
from training.normalizer import Moments
from training.snapshot import PolicySnapshot, SnapshotStore, load_snapshot, take_snapshot
from training.toy_env import ARENA, PointEnv

NETWORK = NetworkConfig(hidden=(16,), critic_hidden=(16,))


def policy(*, seed: int = 0, bias: float = 0.0) -> ActorCritic:
    module = ActorCritic(4, 5, action_dim=2, config=NETWORK, seed=seed)
    torch.nn.init.constant_(module.actor[-1].bias, bias)
    module.obs_norm.update(Moments.of(torch.tensor([[0.0, 9.0, -2.0, 1.0], [20, 1, 3, 4]])))
    return module


def worker(num: int = 3, *, limit: int = 40, stream: tuple[int, int] = (0, 0)) -> ActorWorker:
    env = PointEnv(num, seed=5, limit=limit)
    return ActorWorker(env, "a", network=NETWORK, seed=5, stream=stream)


def test_the_stored_action_is_the_one_its_density_belongs_to_and_the_env_gets_it_clipped():
    module = policy(bias=3.0)  # far outside the bound of 1
    actor = worker()
    before = actor.env.observation["policy"].copy()
    rollout = actor.collect(take_snapshot(module, 0), 1)
    assert (rollout.actions > 1.0).any()
    expected = gaussian_log_prob(
        torch.from_numpy(rollout.actions), module.mean(torch.from_numpy(before)), module.log_std
    )
    np.testing.assert_allclose(rollout.log_probs, expected.detach(), rtol=1e-5, atol=1e-5)
    # A step of 1 moves the point by the stride, and offset is target minus position, times 30.
    moved = (before - rollout.obs[1])[:, :2] / 30.0
    clipped = np.clip(rollout.actions[0], -1.0, 1.0) * np.array([0.2, 0.1])
    np.testing.assert_allclose(moved, clipped, atol=1e-4)


def test_two_rollouts_join_without_a_gap_and_equal_one_long_one():
    snapshot = take_snapshot(policy(), 0)
    long = worker(limit=5).collect(snapshot, 12)
    actor = worker(limit=5)
    first, second = actor.collect(snapshot, 7), actor.collect(snapshot, 5)
    np.testing.assert_array_equal(first.obs[-1], second.obs[0])
    np.testing.assert_allclose(np.concatenate([first.obs, second.obs[1:]]), long.obs, rtol=1e-6)
    assert first.episodes + second.episodes == pytest.approx(long.episodes)


def test_a_cut_episode_leaves_the_critic_observation_it_ended_in():
    rollout = worker(limit=4).collect(take_snapshot(policy(), 0), 6)
    assert rollout.final_index.tolist() == [[3, 0], [3, 1], [3, 2]]
    # The critic sees the time left: none at the end of the old episode, all in the new one.
    np.testing.assert_array_equal(rollout.final_critic_obs[:, 4], 0.0)
    np.testing.assert_array_equal(rollout.critic_obs[4, :, 4], 1.0)
    assert rollout.truncated.sum(axis=1).tolist() == [0, 0, 0, 3, 0, 0]
    assert [(e.env, e.length, e.terminated) for e in rollout.episodes] == [
        (0, 4, False),
        (1, 4, False),
        (2, 4, False),
    ]


def test_a_terminated_episode_leaves_none():
    rollout = worker(limit=1000).collect(take_snapshot(policy(bias=50.0), 0), 40)
    assert rollout.terminated.any()
    assert len(rollout.final_index) == 0
    ended = [e for e in rollout.episodes if e.terminated]
    assert ended
    assert all(e.length <= (ARENA + 1.0) / 0.1 + 1 for e in ended)


def test_episode_statistics_are_sums_over_the_episode_and_parts_are_means_per_step():
    rollout = worker(limit=4).collect(take_snapshot(policy(), 0), 4)
    for episode in rollout.episodes:
        total = float(rollout.rewards[:, episode.env].sum())
        assert episode.total_reward == pytest.approx(total, rel=1e-5)
        assert episode.values["last_distance"] == pytest.approx(
            1.0 - float(rollout.rewards[3, episode.env]), rel=1e-5
        )
    assert rollout.reward_parts["near"] == 1.0
    assert sum(rollout.reward_parts.values()) == pytest.approx(float(rollout.rewards.mean()))


def test_actors_of_one_run_and_a_restarted_one_draw_different_noise():
    snapshot = take_snapshot(policy(), 0)
    streams = [(0, 0), (1, 0), (0, 1), (1, 1)]
    actions = [worker(stream=s).collect(snapshot, 2).actions for s in streams]
    for i in range(4):
        for j in range(i):
            assert not np.isclose(actions[i], actions[j]).any()
    np.testing.assert_array_equal(worker().collect(snapshot, 2).actions, actions[0])


def test_a_restored_actor_goes_on_bit_by_bit():
    snapshot = take_snapshot(policy(), 0)
    actor = worker(limit=5)
    actor.collect(snapshot, 3)
    state = {name: value.copy() for name, value in actor.state_dict().items()}
    expected = actor.collect(snapshot, 9)
    other = worker(limit=5, stream=(7, 7))
    other.load_state_dict(state)
    found = other.collect(snapshot, 9)
    for name in ("obs", "actions", "log_probs", "rewards", "final_critic_obs"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    with pytest.raises(FerryError, match="noise"):
        other.load_state_dict({"env.x": np.zeros(1)})


def test_a_new_version_is_acted_with_and_the_rollout_says_which():
    actor = worker()
    first = actor.collect(take_snapshot(policy(bias=0.0), 3), 1)
    second = actor.collect(take_snapshot(policy(bias=9.0), 4), 1)
    assert (first.policy_version, second.policy_version) == (3, 4)
    assert second.actions.mean() > first.actions.mean() + 5.0


def test_a_broken_policy_is_named_before_it_acts():
    with pytest.raises(FerryError, match="version 6 gives actions that are not finite"):
        worker().collect(take_snapshot(policy(bias=float("nan")), 6), 2)


def test_a_snapshot_holds_the_statistics_and_is_not_changed_by_training_on():
    module = policy()
    snapshot = take_snapshot(module, 1)
    kept = {name: value.copy() for name, value in snapshot.state.items()}
    assert kept["obs_norm.count"] == 2.0
    with torch.no_grad():
        for tensor in module.state_dict().values():
            tensor.add_(1.0)
    for name, value in snapshot.state.items():
        np.testing.assert_array_equal(value, kept[name])


def test_a_snapshot_of_another_network_is_refused_by_name_and_changes_nothing():
    module = policy()
    before = take_snapshot(module, 0)
    state = dict(before.state)
    del state["obs_norm.mean"]
    state["log_std"] = np.zeros(3, np.float32)
    state["extra"] = np.zeros(1)
    with pytest.raises(FerryError, match=r"obs_norm.mean: missing") as error:
        load_snapshot(module, state)
    assert "extra: unknown" in str(error.value)
    assert "log_std: shape (3,), expected (2,)" in str(error.value)
    for name, value in take_snapshot(module, 0).state.items():
        np.testing.assert_array_equal(value, before.state[name])


def test_the_store_never_goes_back_to_an_older_version():
    store = SnapshotStore()
    with pytest.raises(LookupError):
        store.newest()
    versions = [PolicySnapshot(version, {}, 0) for version in (2, 1, 3)]
    for snapshot in versions:
        store.publish(snapshot)
    assert store.newest() is versions[2]
