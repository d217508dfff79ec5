"""What an actor records: the action its density belongs to, ends, statistics, and its state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from real.errors import FerryError
from sim.env import VecEnv, make_env
from sim.result import StepResult
from sim.task import load_env_config
from training.actor import ActorWorker, Refresh
from training.loop import reward_metrics
from training.metrics import check_names
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


def test_a_rollout_with_newer_weights_on_the_way_equals_one_rollout_of_each():
    weights = [take_snapshot(policy(seed=n, bias=0.3 * n), 3 * n) for n in range(3)]
    for snapshot in weights:  # another spread of the actions in each
        snapshot.state["log_std"][...] = -0.2 * snapshot.version
    asked = iter([weights[1], weights[1], weights[2]])
    refresh = Refresh(lambda: next(asked), every=3)
    mixed = worker(limit=5).collect(weights[0], 12, refresh=refresh)
    assert mixed.policy_version == 0, "the oldest"
    assert next(asked, None) is None, "asked before steps 3, 6 and 9"
    actor = worker(limit=5)
    parts = [actor.collect(s, n) for s, n in zip(weights, (3, 6, 3), strict=True)]
    for name in ("actions", "log_probs", "rewards"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_allclose(getattr(mixed, name), joined, rtol=1e-5, atol=1e-5)


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


def walker(num: int = 4, *overrides: str, seed: int = 5) -> ActorWorker:
    quick = ["episode_s=0.3", "randomize.push.interval_s=[0.04, 0.2]", "filter.enabled=true"]
    config = load_env_config("a1_walk", [*quick, *overrides])
    env = make_env(config, num=num, threads=1, seed=seed)
    return ActorWorker(env, "a", network=NETWORK, seed=seed)


def test_every_draw_is_kept_with_the_rollout_and_replays_it() -> None:
    actor = walker()
    module = ActorCritic(45, actor.env.critic_dim, action_dim=12, config=NETWORK, seed=1)
    snapshot = take_snapshot(module, 0)
    actor.collect(snapshot, 7)
    rollout = actor.collect(snapshot, 40)
    draws = rollout.domain
    assert draws is not None
    ends = np.argwhere(rollout.terminated | rollout.truncated)
    # Those under way, and one for each that ended, unless nothing of it is in the rollout.
    assert draws.num == 4 + np.count_nonzero(ends[:, 0] < 39) > 6
    assert {(int(t) + 1, int(n)) for t, n in ends if t < 39} == {
        (int(t), int(n)) for t, n in zip(draws.step[4:], draws.world[4:], strict=True)
    }
    assert (draws.age[4:] == 0).all() and (draws.age[:4] > 0).any()

    index = int(np.flatnonzero(draws.step > 0)[0])
    start, world = int(draws.step[index]), int(draws.world[index])
    assert draws.find(start, world) == index
    env = walker(2, seed=77).env
    assert isinstance(env, VecEnv)
    obs = env.reset(domain={1: draws.sample(index)})
    np.testing.assert_array_equal(obs["policy"][1], rollout.obs[start, world])
    for t in range(start, 40):
        actions = np.zeros((2, 12), dtype=np.float32)
        actions[1] = rollout.actions[t, world]
        step = env.step(actions)
        assert step.reward[1] == rollout.rewards[t, world]
        assert step.terminated[1] == rollout.terminated[t, world]
        if 1 in step.final_ids:
            break
        np.testing.assert_array_equal(step.obs["policy"][1], rollout.obs[t + 1, world])
        np.testing.assert_array_equal(step.obs["critic"][1], rollout.critic_obs[t + 1, world])
    assert t > start + 3


def test_the_clamped_share_of_a_rollout_is_a_mean_over_steps_and_worlds() -> None:
    actor = walker(3, "filter.limits.target_rate=4.0")  # 0.08 rad in a step
    module = ActorCritic(45, actor.env.critic_dim, action_dim=12, config=NETWORK, seed=1)
    shares: list[dict[str, NDArray[np.bool_]]] = []
    env = actor.env
    step = env.step

    def watched(actions: NDArray[np.floating]) -> StepResult:
        result = step(actions)
        shares.append(result.clamped)
        return result

    env.step = watched  # type: ignore[method-assign]
    rollout = actor.collect(take_snapshot(module, 0), 6)
    assert len(rollout.clamped) == 12
    for joint, share in rollout.clamped.items():
        assert share == pytest.approx(np.mean([s[joint] for s in shares]))
    assert 0.0 < np.mean(list(rollout.clamped.values())) < 1.0
    metrics = reward_metrics([rollout])
    check_names(metrics)
    assert metrics["filter/clamped_share"] == pytest.approx(np.mean(list(rollout.clamped.values())))
    assert metrics["filter/FR_hip_joint"] == rollout.clamped["FR_hip_joint"]


def test_an_env_that_draws_and_limits_nothing_leaves_no_draws_and_no_shares() -> None:
    rollout = worker().collect(take_snapshot(policy(), 0), 2)
    assert rollout.domain is None and rollout.clamped == {}
    assert not [name for name in reward_metrics([rollout]) if name.startswith("filter/")]
