"""Learning with a memory: whole sequences at once against a slow loop, step by step."""

from __future__ import annotations

import dataclasses
import logging

import numpy as np
import pytest
import torch

from real.errors import ConfigError, FerryError
from real.rollout import Rollout
from tests.training.recurrent_case import (
    learner,
    mirror,
    network,
    permuted,
    trained,
    worker,
)
from training.distributions import gaussian_kl
from training.learner import Learner
from training.losses import clipped_surrogate, decoupled_surrogate, value_loss
from training.networks import GruConfig, NetworkConfig
from training.recurrent import RecurrentPpo, SequenceBatch
from training.returns import Ends, gae
from training.run_config import load_run_config

STEPS = 11  # episodes last 3 to 9, so every sequence has a reset in it


@pytest.fixture(scope="module", params=["gae", "vtrace", "decoupled"])
def case(request) -> tuple[Learner, list[Rollout]]:
    """Rollouts of two actors that differ in length and number, of a policy one version old."""
    made = learner(mirrored=True, returns=request.param, entropy_coef=0.01)
    acting, other = worker(mirrored=True), worker(3, stream=(1, 0), mirrored=True)
    trained(made, acting)
    snapshot = made.snapshot()
    rollouts = [acting.collect(snapshot, STEPS), other.collect(snapshot, STEPS - 4)]
    made.update([worker(4, stream=(2, 0), mirrored=True).collect(snapshot, STEPS)])
    assert all((r.terminated | r.truncated).any(axis=0).any() for r in rollouts)
    assert rollouts[0].hidden is not None
    assert np.abs(rollouts[0].hidden).max() > 0.1  # a fragment that begins within episodes
    return made, rollouts


def alone(gru, features, hidden, ended) -> list[torch.Tensor]:
    """What one world remembers after each step, one step after another."""
    h, out = hidden, []
    for x, over in zip(features, ended, strict=True):
        h = gru(x.unsqueeze(0), h)
        out.append(h)
        if over:
            h = torch.zeros_like(h)
    return out


def slow_means(made: Learner, rollout: Rollout, world: int, *, image: bool) -> torch.Tensor:
    """``[T, A]`` of one world, from what is in the rollout and nothing else."""
    policy, hidden = made.policy, rollout.mirror_hidden if image else rollout.hidden
    obs = torch.from_numpy(rollout.obs[:-1, world])
    obs = policy.obs_norm(mirror().obs(obs) if image else obs)
    ended = (rollout.terminated | rollout.truncated)[:, world]
    assert policy.gru is not None
    assert hidden is not None
    out = alone(policy.gru, obs, torch.from_numpy(hidden[world : world + 1]), ended)
    return torch.cat([policy.actor(h) for h in out])


#: Sequences of a minibatch: (rollout, world, mirrored); in the batch they have numbers 0 to 7.
CHOSEN = [(0, 3, False), (1, 2, True), (0, 0, True), (1, 0, False), (0, 4, False)]
NUMBERS = torch.tensor([3, 7, 0, 5, 4])
IMAGES = torch.tensor([0, 1, 1, 0, 0])


def samples(rollouts: list[Rollout]) -> list[int]:
    """Rows in a batch of the samples of CHOSEN, longest sequences last."""
    starts = [0, rollouts[0].log_probs.size]
    return [
        starts[r] + t * rollouts[r].num_envs + n
        for r, n, _ in sorted(CHOSEN, key=lambda c: rollouts[c[0]].num_steps)
        for t in range(rollouts[r].num_steps)
    ]


def test_the_actors_loss_and_gradient_are_those_of_a_loop_over_worlds_and_steps(case):
    made, rollouts = case
    ppo, policy, config = made._ppo, made.policy, made.config
    batch = made._prepare(rollouts, [1.0, 0.5]).batch
    assert isinstance(ppo, RecurrentPpo)
    old_log_std = policy.log_std.detach() + 0.1
    ppo.actor_adam.zero_grad()
    loss, stats = ppo._actor_loss(batch.actor_part(NUMBERS, IMAGES), old_log_std)
    loss.backward()
    found = {name: p.grad.clone() for name, p in policy.actor_parameters()}

    ppo.actor_adam.zero_grad()
    slow = sorted(CHOSEN, key=lambda c: rollouts[c[0]].num_steps)
    mean = torch.cat([slow_means(made, rollouts[r], n, image=i) for r, n, i in slow])
    rows = torch.tensor(samples(rollouts))
    actions, weights = [], []
    for r, n, image in slow:
        action = torch.from_numpy(rollouts[r].actions[:, n])
        actions.append(mirror().action(action) if image else action)
        weights += [1.0 if r == 0 else 0.5] * len(action)
    log_prob = policy.distribution.log_prob(torch.cat(actions), mean, policy.log_std)
    behaviour = torch.cat([torch.from_numpy(rollouts[r].log_probs[:, n]) for r, n, _ in slow])
    advantages, weight = batch.advantages[rows], torch.tensor(weights)
    with torch.no_grad():
        before = torch.cat([slow_means(made, rollouts[r], n, image=i) for r, n, i in slow])
        proximal = policy.distribution.log_prob(torch.cat(actions), before, policy.log_std)
    if config.returns == "decoupled":
        surrogate, clipped = decoupled_surrogate(
            log_prob,
            advantages,
            proximal=proximal,
            behaviour=behaviour,
            clip=config.clip,
            weight_bar=config.proximal_bar,
            weights=weight,
        )
    else:
        surrogate, clipped = clipped_surrogate(
            log_prob - behaviour, advantages, clip=config.clip, weights=weight
        )
    expected = surrogate - config.entropy_coef * policy.distribution.entropy(mean, policy.log_std)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert stats[1].item() == pytest.approx(
        gaussian_kl(before, old_log_std, mean, policy.log_std).item(), rel=1e-4
    )
    assert stats[2].item() == clipped.item()
    for name, p in policy.actor_parameters():
        torch.testing.assert_close(found[name], p.grad, rtol=1e-4, atol=1e-6, msg=name)
        assert found[name].abs().max() > 0.0


def test_the_critics_loss_and_gradient_are_those_of_a_loop_over_worlds_and_steps(case):
    made, rollouts = case
    ppo, policy = made._ppo, made.policy
    batch = made._prepare(rollouts).batch
    ppo.critic_adam.zero_grad()
    loss = ppo._value_loss(batch.critic_part(NUMBERS))
    loss.backward()
    found = {name: p.grad.clone() for name, p in policy.critic_parameters()}
    assert "critic_gru.weight_hh" in found

    ppo.critic_adam.zero_grad()
    values = []
    for r, n, _ in sorted(CHOSEN, key=lambda c: rollouts[c[0]].num_steps):
        rollout = rollouts[r]
        seen = policy.critic_norm(torch.from_numpy(rollout.critic_obs[:-1, n]))
        ended = (rollout.terminated | rollout.truncated)[:, n]
        hidden = torch.from_numpy(rollout.critic_hidden[n : n + 1])
        values += [policy.critic(h) for h in alone(policy.critic_gru, seen, hidden, ended)]
    rows = torch.tensor(samples(rollouts))
    expected = value_loss(
        torch.cat(values).squeeze(-1),
        batch.targets[rows],
        old=batch.values[rows],
        clip=made.config.value_clip,
    )
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, p in policy.critic_parameters():
        torch.testing.assert_close(found[name], p.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_values_meet_a_cut_episodes_last_observation_with_what_is_remembered_of_it():
    made, acting = learner(), worker()
    trained(made, acting)
    rollout = acting.collect(made.snapshot(), STEPS)
    assert len(rollout.final_index) > 2
    batch, policy = made._prepare([rollout]).batch, made.policy
    values = np.empty((STEPS + 1, 5), dtype=np.float32)
    final = np.zeros((STEPS, 5), dtype=np.float32)
    index = [tuple(i) for i in rollout.final_index.tolist()]
    with torch.no_grad():
        for n in range(5):
            hidden = torch.from_numpy(rollout.critic_hidden[n : n + 1])
            for t in range(STEPS + 1):
                seen = torch.from_numpy(rollout.critic_obs[t, n : n + 1])
                value, hidden = policy.advance_critic(seen, hidden)
                values[t, n] = value.item()
                if (t, n) in index:
                    last = torch.from_numpy(rollout.final_critic_obs[index.index((t, n))])
                    final[t, n] = policy.advance_critic(last.unsqueeze(0), hidden)[0].item()
                if t < STEPS and (rollout.terminated | rollout.truncated)[t, n]:
                    hidden = torch.zeros_like(hidden)
    np.testing.assert_allclose(batch.values.reshape(STEPS, 5), values[:-1], rtol=1e-4, atol=1e-5)
    ends = Ends(rollout.terminated, rollout.truncated, final)
    _, targets = gae(rollout.rewards, values, ends=ends, gamma=0.99, lam=0.95)
    np.testing.assert_allclose(batch.targets.reshape(STEPS, 5), targets, rtol=1e-4, atol=1e-5)


def test_the_first_ratio_is_one_in_the_middle_of_episodes_too():
    made, acting = learner(), worker()
    trained(made, acting)
    for _ in range(3):
        _, metrics = made.update([acting.collect(made.snapshot(), 4)])
        assert metrics["ppo/ratio_error"] < 1e-5
    # It is the stored state that makes it so: without it the ratio is another.
    rollout = acting.collect(made.snapshot(), 4)
    assert rollout.hidden is not None
    forgotten = dataclasses.replace(rollout, hidden=np.zeros_like(rollout.hidden))
    _, metrics = made.update([forgotten])
    assert metrics["ppo/ratio_error"] > 1e-3


def test_worlds_in_another_order_give_the_same_samples():
    made, acting = learner(mirrored=True), worker(mirrored=True)
    trained(made, acting)
    rollout = acting.collect(made.snapshot(), STEPS)
    order = np.array([3, 0, 4, 1, 2])
    one, two = (made._prepare([r]).batch for r in (rollout, permuted(rollout, order)))
    for name in ("means", "values", "advantages", "targets", "log_probs", "actions"):
        a, b = getattr(one, name), getattr(two, name)
        a = a.reshape(-1, 5, *a.shape[1:])[:, order].flatten(0, 1)
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)
    parts = [
        batch.actor_part(torch.tensor(rows), torch.tensor([0, 1]))
        for batch, rows in ((one, [3, 1]), (two, [0, 3]))
    ]
    losses = [made._ppo._actor_loss(part, made.policy.log_std.detach())[0] for part in parts]
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-6)


def test_every_epoch_takes_each_sequence_once_and_whole():
    made, acting = learner(epochs=3, minibatches=3), worker(7)
    rollout = acting.collect(made.snapshot(), STEPS)
    batch = made._prepare([rollout]).batch
    assert isinstance(batch, SequenceBatch)
    assert batch.size == 7
    orders = made._ppo._orders(batch)
    assert [len(o.rows) for o in orders] == 3 * [3, 2, 2]
    for epoch in range(3):
        parts = [
            batch.actor_part(o.rows, o.image).actions for o in orders[3 * epoch : 3 * epoch + 3]
        ]
        assert torch.equal(torch.cat(parts).sort(0)[0], batch.actions.sort(0)[0])
    assert not torch.equal(orders[0].rows, orders[3].rows)


@pytest.mark.parametrize("memories", [{"gru": None}, {"critic_gru": None}])
def test_actor_and_critic_may_remember_without_each_other(memories):
    config = network(**memories)
    made, acting = learner(config=config), worker(config=config)
    trained(made, acting)
    assert made.version == 2
    rollout = acting.collect(made.snapshot(), 4)
    assert (rollout.hidden is None) == (config.gru is None)
    assert (rollout.critic_hidden is None) == (config.critic_gru is None)
    _, metrics = made.update([rollout])
    assert metrics["ppo/ratio_error"] < 1e-5


def test_without_a_memory_nothing_of_this_is_in_the_policy():
    made = learner(config=network(gru=None, critic_gru=None))
    assert not isinstance(made._ppo, RecurrentPpo)
    assert not [name for name in made.policy.state_dict() if "gru" in name]


def test_bfloat16_leaves_the_memory_in_full_precision_and_learns():
    made, acting = learner(bf16=True), worker()
    trained(made, acting)
    assert made.version == 2


# ------------------------------------------------------------------ what is refused


def test_a_rollout_of_someone_without_a_memory_is_refused_by_name():
    made, acting = learner(), worker()
    rollout = dataclasses.replace(acting.collect(made.snapshot(), 4), critic_hidden=None)
    with pytest.raises(FerryError, match="actor 'a0' has no critic_hidden"):
        made.update([rollout])


def test_a_memory_that_is_not_finite_is_refused_and_named(caplog):
    made, acting = learner(), worker()
    rollout = acting.collect(made.snapshot(), 4)
    assert rollout.hidden is not None
    rollout.hidden[2, 1] = np.nan
    with caplog.at_level(logging.WARNING):
        _, metrics = made.update([rollout])
    assert (metrics["learner/refused"], made.version) == (1.0, 0)
    assert "hidden[2, 1] = nan" in caplog.text


def test_asking_a_policy_with_a_memory_for_one_observation_is_refused():
    policy = learner().policy
    with pytest.raises(FerryError, match="memory of 6 numbers"):
        policy.mean(torch.zeros(1, 2))
    with pytest.raises(FerryError, match="memory of 5 numbers"):
        policy.value(torch.zeros(1, 3))


def test_a_number_stands_for_the_size_of_the_memory():
    short = load_run_config("a1_walk", ["training.network.gru=64"]).training.network
    long = load_run_config("a1_walk", ["training.network.gru={hidden: 64}"]).training.network
    assert short == long
    assert short.gru == GruConfig(hidden=64)
    assert load_run_config("a1_walk").training.network.gru is None
    assert NetworkConfig.model_validate(short.model_dump(mode="json")) == short


@pytest.mark.parametrize("value", ["0", "true", "big", "{hiden: 64}", "{}", "64.5"])
def test_a_memory_of_no_size_is_refused_with_the_key(value):
    with pytest.raises(ConfigError, match=r"training\.network\.gru"):
        load_run_config("a1_walk", [f"training.network.gru={value}"])


def test_more_minibatches_than_worlds_are_refused():
    few = ["sim.worlds=3", "training.network.critic_gru=8"]
    with pytest.raises(ConfigError, match=r"there are 3 \(sim\.worlds\)"):
        load_run_config("a1_walk", few)
    assert load_run_config("a1_walk", [*few, "training.ppo.minibatches=3"])
