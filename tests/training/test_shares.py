"""Rollouts are shared out among learners: every world once, in order, with all that is its."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from real.errors import FerryError
from real.rollout import Rollout
from tests.training.learner_case import learner, made_up
from training.shares import of_worlds, shares


def rollouts(*sizes: int) -> list[Rollout]:
    made = learner()
    return [made_up(made, number, num=num, steps=5) for number, num in enumerate(sizes)]


def as_worlds(rollout: Rollout) -> list[tuple[np.ndarray, ...]]:
    """All that is known of each world by itself, final observations looked up by step."""
    out = []
    for n in range(rollout.num_envs):
        of_this = rollout.final_index[:, 1] == n
        names = ("obs", "critic_obs", "actions", "log_probs", "rewards", "terminated", "truncated")
        fields = [getattr(rollout, name)[:, n] for name in names]
        cut, final = rollout.final_index[of_this, 0], rollout.final_critic_obs[of_this]
        out.append((*fields, cut, final))
    return out


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("sizes", [(16,), (8, 8), (7, 2, 11)])
def test_every_world_is_learned_from_once_and_shares_differ_by_one_world_at_most(size, sizes):
    given = rollouts(*sizes)
    weights = [1.0, 0.5, 0.25][: len(given)]
    parts = shares(given, weights, size=size)
    assert len(parts) == size
    counts = [sum(r.num_envs for r in part) for part, _ in parts]
    assert sum(counts) == sum(sizes)
    assert max(counts) - min(counts) <= 1
    before = [world for rollout in given for world in as_worlds(rollout)]
    after = [world for part, _ in parts for rollout in part for world in as_worlds(rollout)]
    assert any(len(world[-1]) for world in before)  # there are final observations to mix up
    for one, two in zip(before, after, strict=True):
        for a, b in zip(one, two, strict=True):
            np.testing.assert_array_equal(a, b)
    per_world = [w for w, n in zip(weights, sizes, strict=True) for _ in range(n)]
    found = [
        w for part, own in parts for w, r in zip(own, part, strict=True) for _ in r.terminated[0]
    ]
    assert found == per_world


def test_a_rollout_that_need_not_be_cut_is_handed_on_as_it_is():
    one, two = rollouts(4, 4)
    (first, _), (second, _) = shares([one, two], [1.0, 1.0], size=2)
    assert first[0] is one
    assert second[0] is two


def test_a_part_has_memory_of_its_own_and_keeps_who_acted_and_when():
    (whole,) = rollouts(6)
    whole = dataclasses.replace(whole, policy_version=7, actor_id="b")
    part = of_worlds(whole, 2, 5)
    assert (part.policy_version, part.actor_id, part.num_envs) == (7, "b", 3)
    part.obs[:] = 9.0
    part.final_critic_obs[:] = 9.0
    assert not (whole.obs == 9.0).any()
    assert not (whole.final_critic_obs == 9.0).any()


def test_more_learners_than_worlds_are_refused():
    with pytest.raises(FerryError, match="rollouts of 2 worlds, for 3 learners"):
        shares(rollouts(2), [1.0], size=3)
