"""A rollout refuses parts that do not describe the same steps, and finds broken numbers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from real.errors import FerryError
from real.rollout import Rollout

T, N, D, C, A = 3, 4, 5, 6, 2


def rollout(**changes) -> Rollout:
    rng = np.random.default_rng(0)

    def draw(*shape: int):
        return rng.standard_normal(shape, dtype=np.float32)

    truncated = np.zeros((T, N), dtype=bool)
    truncated[1, 2] = truncated[2, 0] = True
    fields = {
        "obs": draw(T + 1, N, D),
        "critic_obs": draw(T + 1, N, C),
        "actions": draw(T, N, A),
        "log_probs": draw(T, N),
        "rewards": draw(T, N),
        "terminated": np.zeros((T, N), dtype=bool),
        "truncated": truncated,
        "final_index": np.array([[1, 2], [2, 0]]),
        "final_critic_obs": draw(2, C),
        "policy_version": 7,
        "actor_id": "a1",
    }
    return Rollout(**{**fields, **changes})


def test_a_rollout_knows_its_size():
    made = rollout()
    assert (made.num_steps, made.num_envs) == (T, N)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("obs", (T, N, D)),  # the observation after the last step was forgotten
        ("critic_obs", (T + 1, N + 1, C)),
        ("log_probs", (T, N, 1)),
        ("rewards", (T - 1, N)),
        ("terminated", (T, N - 1)),
        ("final_critic_obs", (1, C)),
        ("final_index", (1, 2)),
    ],
)
def test_a_part_of_another_size_is_refused_by_name(name, shape):
    whole = rollout()
    with pytest.raises(FerryError, match=rf"'a1': {name} has shape"):
        dataclasses.replace(whole, **{name: np.zeros(shape, getattr(whole, name).dtype)})


def test_arrays_without_a_world_axis_are_refused():
    with pytest.raises(FerryError, match="3 axes"):
        rollout(actions=np.zeros((T, A), np.float32))


@pytest.mark.parametrize(
    "index",
    [
        [[1, 2], [1, 2]],  # one row twice, the other never
        [[1, 2], [0, 0]],  # a row that was not cut
        [[1, 2], [2, N]],  # outside
        [[1, 2], [-1, 0]],  # the right row, counted from the end
    ],
)
def test_final_observations_must_belong_to_the_truncated_rows(index):
    with pytest.raises(FerryError, match="final_index"):
        rollout(final_index=np.array(index))


def test_a_row_that_terminated_needs_no_final_observation():
    terminated = np.zeros((T, N), dtype=bool)
    terminated[2, 0] = True  # truncated as well: terminated wins
    made = rollout(
        terminated=terminated,
        final_index=np.array([[1, 2]]),
        final_critic_obs=np.zeros((1, C), np.float32),
    )
    assert made.final_index.tolist() == [[1, 2]]


def test_a_rollout_without_ends_has_no_final_observations():
    made = rollout(
        truncated=np.zeros((T, N), dtype=bool),
        final_index=np.empty((0, 2), dtype=np.int64),
        final_critic_obs=np.empty((0, C), dtype=np.float32),
    )
    assert made.bad_values() == []


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("obs", (3, 1, 4)),
        ("critic_obs", (0, 3, 5)),
        ("actions", (2, 3, 1)),
        ("log_probs", (1, 0)),
        ("rewards", (2, 3)),
        ("final_critic_obs", (1, 0)),
    ],
)
def test_the_first_broken_number_is_named_with_its_place(name, place, value):
    made = rollout()
    getattr(made, name)[place] = value
    (found,) = made.bad_values()
    assert found.startswith(f"{name}[{', '.join(map(str, place))}] = ")


def test_opposite_infinities_do_not_hide_each_other():
    made = rollout()
    made.rewards[0, 0], made.rewards[0, 1] = np.inf, -np.inf
    assert made.bad_values() == ["rewards[0, 0] = inf"]


def test_large_but_finite_numbers_are_fine():
    made = rollout()
    made.obs[:] = np.finfo(np.float32).max
    assert made.bad_values() == []
