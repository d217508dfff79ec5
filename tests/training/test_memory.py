"""What is remembered while acting: per world, across fragments and versions, within episodes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from real.errors import FerryError
from tests.training.recall_env import RecallEnv
from tests.training.recurrent_case import learner, mirror, network, trained, worker
from training.actor import ActorWorker
from training.learner import Learner
from training.memory import Memory
from training.networks import NetworkConfig
from training.ppo import PpoConfig
from training.probe import make_probe, policy_digest, verify_policy
from training.snapshot import take_snapshot

FIELDS = ("obs", "actions", "log_probs", "rewards", "final_critic_obs")


def remembering(num: int = 3, *, mirrored: bool = False) -> Memory:
    memory = Memory(learner().policy, num, mirror=mirror() if mirrored else None)
    memory.load({name: np.full_like(a, 0.5) for name, a in memory.arrays().items()})
    return memory


@pytest.mark.parametrize("kind", [bool, int, np.int64, np.float32])
def test_only_worlds_that_ended_forget_whatever_the_type_of_the_mask(kind):
    memory = remembering(mirrored=True)
    memory.forget(np.array([0, 1, 0], dtype=kind))
    assert set(memory.arrays()) == {"hidden", "mirror_hidden", "critic_hidden"}
    for array in memory.arrays().values():
        assert array.any(axis=1).tolist() == [True, False, True]


@pytest.mark.parametrize("kind", [bool, int])
def test_a_single_world_forgets_when_it_ended_and_not_otherwise(kind):
    memory = remembering(1)
    memory.forget(np.array([0], dtype=kind))
    assert all(a.all() for a in memory.arrays().values())
    memory.forget(np.array([1], dtype=kind))
    assert not any(a.any() for a in memory.arrays().values())


def test_a_policy_without_a_memory_has_nothing_to_carry():
    config = network(gru=None, critic_gru=None)
    memory = Memory(learner(config=config).policy, 3, mirror=mirror())
    assert memory.arrays() == {}
    acting = worker(config=config)
    assert not [name for name in acting.state_dict() if name.startswith("memory")]
    assert acting.collect(learner(config=config).snapshot(), 2).hidden is None


def test_a_rollout_says_what_was_remembered_at_its_beginning_and_its_means_follow_from_it():
    made, acting = learner(mirrored=True), worker(mirrored=True)
    trained(made, acting)
    snapshot = made.snapshot()
    acting.collect(snapshot, 6)
    rollout = acting.collect(snapshot, 12)
    over = rollout.terminated | rollout.truncated
    policy = made.policy
    hidden, image = torch.from_numpy(rollout.hidden), torch.from_numpy(rollout.mirror_hidden)
    assert hidden.any()
    with torch.no_grad():
        for t in range(12):
            obs = torch.from_numpy(rollout.obs[t])
            mean, hidden = policy.advance(obs, hidden)
            _, image = policy.advance(mirror().obs(obs), image)
            action = torch.from_numpy(rollout.actions[t])
            density = policy.distribution.log_prob(action, mean, policy.log_std)
            np.testing.assert_allclose(density, rollout.log_probs[t], rtol=1e-5, atol=1e-5)
            begins = torch.from_numpy(over[t]).unsqueeze(1)
            hidden, image = hidden.masked_fill(begins, 0.0), image.masked_fill(begins, 0.0)
    after = acting.collect(snapshot, 1)  # a world that ended at the last step begins with zeros
    assert over[-1].any() or over.any()
    np.testing.assert_allclose(after.hidden, hidden, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after.mirror_hidden, image, rtol=1e-5, atol=1e-6)
    assert not after.hidden[over[-1]].any()


def test_two_fragments_equal_a_long_one():
    snapshot = learner().snapshot()
    long = worker().collect(snapshot, 15)
    acting = worker()
    parts = [acting.collect(snapshot, n) for n in (4, 1, 10)]
    for name in ("actions", "log_probs", "rewards"):
        joined = np.concatenate([getattr(p, name) for p in parts])
        np.testing.assert_allclose(joined, getattr(long, name), rtol=1e-5, atol=1e-6)


def test_a_new_version_goes_on_with_what_the_old_one_remembered():
    made, acting = learner(), worker()
    acting.collect(made.snapshot(), 1)  # episodes last 3 steps at least: nobody has ended
    before = acting.state_dict()["memory.hidden"]
    assert before.any(axis=1).all()
    rollout = acting.collect(take_snapshot(made.policy, 9), 1)
    np.testing.assert_array_equal(rollout.hidden, before)


def test_a_restored_actor_goes_on_bit_by_bit_in_the_middle_of_episodes():
    snapshot = learner(mirrored=True).snapshot()
    acting = worker(mirrored=True)
    acting.collect(snapshot, 5)
    state = {name: value.copy() for name, value in acting.state_dict().items()}
    expected = acting.collect(snapshot, 9)
    other = worker(stream=(7, 7), mirrored=True)
    other.load_state_dict(state)
    found = other.collect(snapshot, 9)
    for name in (*FIELDS, "hidden", "critic_hidden", "mirror_hidden"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    del state["memory.critic_hidden"]
    with pytest.raises(FerryError, match="critic_hidden of shape None"):
        other.load_state_dict(state)
    with pytest.raises(FerryError, match=r"hidden of shape \(5, 6\), expected \(4, 6\)"):
        worker(4).load_state_dict(acting.state_dict())


@pytest.mark.parametrize("name", ["mean", "value", "next_hidden"])
def test_a_loaded_policy_must_answer_and_remember_as_the_stored_one(name):
    policy, rng = learner().policy, np.random.default_rng(0)
    obs, critic_obs = (rng.normal(size=(8, n)).astype(np.float32) for n in (2, 3))
    probe = make_probe(policy, obs, critic_obs=critic_obs)
    assert probe["next_hidden"].shape == probe["hidden"].shape == (8, 6)
    digest = policy_digest(policy)
    verify_policy(policy, digest=digest, probe=probe, source="run")
    probe[name] = probe[name] + 0.01
    with pytest.raises(FerryError, match=f"policy's {name} is not what it was"):
        verify_policy(policy, digest=digest, probe=probe, source="run")


def mean_recall(returns: str, **memory: int | None) -> float:
    """Reward of the mean action at the steps that need a memory, after learning."""
    sizes = {"hidden": (16,), "critic_hidden": (16,), "init_std": 0.5, **memory}
    config = NetworkConfig.model_validate(sizes)
    ppo = PpoConfig.model_validate(
        {"gamma": 0.9, "entropy_coef": 0.0, "returns": returns, "learning_rate": 3e-3}
        | {"critic_learning_rate": 3e-3, "desired_kl": 0.02}
    )
    made = Learner(2, 3, action_dim=1, network=config, ppo=ppo, seed=0)
    acting = ActorWorker(RecallEnv(64, seed=0), "a", network=config, seed=0)
    snapshot = made.snapshot()
    for _ in range(40):
        snapshot, _ = made.update([acting.collect(snapshot, 8)])
    env, remembered = RecallEnv(64, seed=1), Memory(made.policy, 64)
    rewards: list[np.ndarray] = []
    for _ in range(40):
        later = env.clock > 0
        step = env.step(remembered.mean(torch.from_numpy(env.observation["policy"])).numpy())
        remembered.forget(step.terminated | step.truncated)
        rewards.append(step.reward[later])
    return float(np.concatenate(rewards).mean())


@pytest.mark.slow
@pytest.mark.parametrize("returns", ["gae", "vtrace", "decoupled"])
def test_a_memory_recalls_what_was_shown_at_the_first_step(returns):
    assert mean_recall(returns, gru=8) > 0.8


@pytest.mark.slow
def test_without_a_memory_nobody_does_better_than_by_chance():
    # Expected at most 0, see the env; a sampling error of about 3000 rewards in [-8, 1].
    assert mean_recall("gae") < 0.05
    assert mean_recall("gae", critic_gru=8) < 0.05  # nor does the critic's memory help the actor
