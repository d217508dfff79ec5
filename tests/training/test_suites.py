from __future__ import annotations

import itertools

import numpy as np
import pytest

from real.contract import CommandLimits
from real.errors import FerryError
from sim.streams import world_seeds
from training.suites import (
    PURPOSES,
    STREAMS,
    SUITES,
    episode_commands,
    episode_seeds,
    find_suite,
    generators,
)

LIMITS = CommandLimits(
    names=("vx", "vy", "wz"),
    low=(-0.8, -0.4, -1.0),
    high=(1.2, 0.4, 1.0),
    units=("m/s", "m/s", "rad/s"),
)


def states(seeds) -> set[tuple[int, ...]]:
    return {tuple(s.generate_state(4).tolist()) for episode in seeds for s in episode.values()}


def commands(seed=0, episodes=4, *, purpose="report", steps=1000, limits=LIMITS):
    seeds = episode_seeds(seed, episodes, purpose=purpose)
    return episode_commands(limits, generators(seeds, "command"), steps=steps, dt_s=0.02)


def test_the_suites_are_the_documented_ones():
    assert {name: (s.engine, s.randomized, s.terrain) for name, s in SUITES.items()} == {
        "nominal": ("mujoco", False, False),
        "pybullet": ("pybullet", False, False),
        "randomized": ("mujoco", True, False),
        "pybullet_randomized": ("pybullet", True, False),
        "terrain": ("mujoco", False, True),
        "pybullet_terrain": ("pybullet", False, True),
    }
    assert {s.episode_s for s in SUITES.values()} == {20.0}


def test_a_misspelt_suite_gets_the_nearest_name():
    with pytest.raises(FerryError, match=r"'nominl' \(did you mean 'nominal'\?\)"):
        find_suite("nominl")


def test_no_evaluation_seed_is_a_training_seed():
    training = set()
    for seed, stream in itertools.product((0, 1, 2, 12345), ((0, 0), (1, 0), (0, 1), (7, 3))):
        training |= states(world_seeds(seed, 64, stream=stream))
    evaluation = set()
    for seed, purpose in itertools.product((0, 1, 2, 12345), PURPOSES):
        evaluation |= states(episode_seeds(seed, 64, purpose=purpose))
    assert len(evaluation) == 4 * 2 * 64 * len(STREAMS)
    assert not training & evaluation


def test_evaluation_keys_have_the_length_of_training_keys_and_begin_where_no_worker_gets():
    # Keys of different lengths could meet, keys of one length that differ cannot.
    training = world_seeds(0, 1)[0]["start"].spawn_key
    evaluation = episode_seeds(0, 1, purpose="report")[0]["start"].spawn_key
    assert len(training) == len(evaluation)
    assert evaluation[0] > 1_000_000_000


def test_episodes_that_choose_a_checkpoint_are_never_reported():
    chosen = states(episode_seeds(0, 200, purpose="selection"))
    for seed in range(5):
        assert not chosen & states(episode_seeds(seed, 200, purpose="report"))


def test_more_episodes_leave_the_first_ones_as_they_are():
    few, many = commands(episodes=3), commands(episodes=7)
    assert np.array_equal(many[:, :3], few)


def test_the_same_seed_gives_the_same_commands_and_another_seed_others():
    assert np.array_equal(commands(seed=3), commands(seed=3))
    assert not np.array_equal(commands(seed=3), commands(seed=4))
    assert not np.array_equal(commands(), commands(purpose="selection"))


def test_no_two_episodes_get_the_same_commands():
    made = commands(episodes=20)
    for a, b in itertools.combinations(range(20), 2):
        assert not np.array_equal(made[:, a], made[:, b])


def test_commands_fill_their_ranges_change_within_an_episode_and_sometimes_stand():
    made = commands(episodes=200)
    assert (made >= np.array(LIMITS.low)).all()
    assert (made <= np.array(LIMITS.high)).all()
    for axis, (low, high) in enumerate(zip(LIMITS.low, LIMITS.high, strict=True)):
        assert made[..., axis].min() < low + 0.05 * (high - low)
        assert made[..., axis].max() > high - 0.05 * (high - low)
    changes = (np.diff(made, axis=0) != 0.0).any(axis=2).sum(axis=0)
    assert changes.min() >= 1  # held for at most 8 of 20 s; standing may follow on standing
    assert changes.mean() > 2.5
    assert changes.max() <= 5  # and for at least 4
    standing = (made == 0.0).all(axis=2).mean()
    assert 0.05 < standing < 0.2


def test_commands_that_are_no_velocities_are_refused_by_name():
    limits = CommandLimits(("x", "y", "z"), (0.0,) * 3, (1.0,) * 3, ("m",) * 3)
    with pytest.raises(FerryError, match=r"\(x, y, z\)"):
        commands(limits=limits)


@pytest.mark.parametrize(("seed", "episodes"), [(-1, 5), (0, 0), (0, -3)])
def test_seeds_and_counts_out_of_range_are_refused(seed, episodes):
    with pytest.raises(FerryError):
        episode_seeds(seed, episodes, purpose="report")
