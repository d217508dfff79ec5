"""Ranges grow where the policy copes, and a replay, a resume and an evaluation know of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from real.errors import ConfigError, FerryError
from sim.curriculum import Curriculum, CurriculumConfig, Range
from sim.distributions import parse_distribution
from sim.env import make_env
from sim.task import load_env_config

N = 40


def curriculum(**changes: Any) -> Curriculum:
    config = CurriculumConfig(widen_at=1.0, narrow_at=0.2, step=0.25, episodes=5, **changes)
    ranges = [
        Range("kp", parse_distribution("*U(0.5, 1.2)"), slice(0, 2), np.array([40.0, 40.0])),
        Range("friction", parse_distribution("=U(0.4, 1.2)"), slice(2, 3), np.array([0.8])),
    ]
    return Curriculum(config, ranges, N)


def episodes(made: Curriculum, measure: Any, rounds: int = 30) -> np.ndarray:
    """Draws of many episodes of N worlds, whose performance is ``measure(draws)``."""
    rng, rows, seen = np.random.default_rng(0), np.arange(N), []
    generators = [np.random.default_rng(i) for i in range(N)]
    for _ in range(rounds):
        draws = np.concatenate([rng.uniform(0.5, 1.2, (N, 2)), rng.uniform(0.4, 1.2, (N, 1))], 1)
        made.narrow(rows, draws, generators)
        made.note(rows, measure(draws))
        seen.append(draws)
    return np.array(seen)


def test_ranges_begin_nominal_and_each_end_grows_while_it_is_coped_with():
    made = curriculum()
    assert made.reached() == {"kp": (1.0, 1.0), "friction": (0.8, 0.8)}
    # Slippery floors below 0.6 are too hard: that end stays about there, all others arrive.
    seen = episodes(made, lambda d: np.where(d[:, 2] < 0.6 - 1e-9, 0.0, 2.0))
    np.testing.assert_array_equal(seen[0], np.tile([1.0, 1.0, 0.8], (N, 1)))
    reached = made.reached()
    assert reached["kp"] == (0.5, 1.2) and reached["friction"][1] == pytest.approx(1.2)
    assert reached["friction"][0] in (pytest.approx(0.6), pytest.approx(0.5))
    assert seen[..., :2].min() == 0.5 and seen[..., :2].max() == pytest.approx(1.2)
    # Half the episodes have a term at an end, all its joints together.
    last = seen[-5:].reshape(-1, 3)
    together = (last[:, 0] == last[:, 1]).mean()
    assert 0.12 < together < 0.4  # a quarter: one of the two terms


def test_ends_come_back_when_performance_is_lost_and_broken_episodes_count_as_lost():
    made = curriculum(start=0.5)
    episodes(made, lambda d: np.full(N, 0.6), rounds=10)  # neither good nor bad
    assert (made.shares == 0.5).all()
    episodes(made, lambda d: np.full(N, np.nan), rounds=10)
    assert (made.shares == 0.0).all()


def test_reports_of_three_actors_make_of_the_ranges_what_one_with_all_their_worlds_makes():
    def good(draws: np.ndarray) -> np.ndarray:  # too slippery, and it fails; sometimes it breaks
        value = np.where(draws[:, 2] < 0.6, 0.0, 2.0)
        return np.where(draws[:, 1] > 1.15, np.nan, value)

    pooled, decider = curriculum(), curriculum()
    actors = [curriculum() for _ in range(3)]
    for actor in actors:
        actor.follow()
    rng, parts = np.random.default_rng(1), (slice(0, 7), slice(7, 21), slice(21, N))
    ours, theirs = ([np.random.default_rng(i) for i in range(N)] for _ in range(2))
    for number in range(25):
        table = np.concatenate([rng.uniform(0.5, 1.2, (N, 2)), rng.uniform(0.4, 1.2, (N, 1))], 1)
        draws = table.copy()
        pooled.narrow(np.arange(N), draws, ours)
        pooled.note(np.arange(N), good(draws))
        held = decider.shared_state()
        reports = []
        for actor, part in zip(actors, parts, strict=True):
            actor.load_shared_state(held)
            own = table[part].copy()
            rows = np.arange(len(own))
            actor.narrow(rows, own, theirs[part])
            np.testing.assert_array_equal(own, draws[part])
            actor.note(rows, good(own))
            np.testing.assert_array_equal(actor.shares, held["shares"])  # it decides nothing
            reports.append(actor.report())
            assert not actor.report()  # once
        if number % 2:  # A, then B, then C
            for report in reports:
                decider.absorb(report)
        else:  # all at once
            decider.absorb({k: np.concatenate([r[k] for r in reports]) for k in reports[0]})
        for name, value in pooled.shared_state().items():
            np.testing.assert_array_equal(decider.shared_state()[name], value)
    assert 0.0 < decider.shares.min() < decider.shares.max() == 1.0
    assert "end" not in decider.shared_state()  # who is tried where is of single worlds


def task(*overrides: str) -> Any:
    small = [
        "randomize={friction: '=U(0.4, 1.2)', kp: '*U(0.8, 1.2)'}",
        "episode_s=0.2",
        "randomize_episode_phase=false",
    ]
    return load_env_config("a1_walk", [*small, *overrides])


CURRICULUM = "curriculum={measure: reward/alive, widen_at: 0.1, narrow_at: 0.0, episodes: 2}"


@pytest.mark.slow
def test_an_env_widens_its_ranges_and_its_state_continues_them():
    def act(env: Any, steps: int) -> np.ndarray:
        return np.array([env.step(np.zeros((6, 12))).obs["critic"] for _ in range(steps)])

    env = make_env(task(CURRICULUM), num=6, threads=1)
    assert env.randomizer.curriculum is not None
    assert (env.randomizer.curriculum.shares == 0.0).all()
    act(env, 60)
    shares = env.randomizer.curriculum.shares.copy()
    assert shares.max() > 0.0
    other = make_env(task(CURRICULUM), num=6, threads=1, seed=9)
    other.load_state_dict(env.state_dict())
    np.testing.assert_array_equal(act(env, 25), act(other, 25))
    np.testing.assert_array_equal(
        env.randomizer.curriculum.shares,
        other.randomizer.curriculum.shares,  # pyright: ignore[reportOptionalMemberAccess]
    )
    with pytest.raises(FerryError, match="no curriculum"):
        env.load_state_dict(make_env(task(), num=6, threads=1).state_dict())


def test_an_episode_under_a_curriculum_is_replayed_exactly():
    env = make_env(task(CURRICULUM), num=6, threads=1)
    for _ in range(35):
        env.step(np.zeros((6, 12)))
    env.reset()
    sample = env.drawn().sample(4)
    before = [env.step(np.zeros((6, 12))).obs["policy"][4] for _ in range(8)]
    env.reset(domain={1: sample})
    again = [env.step(np.zeros((6, 12))).obs["policy"][1] for _ in range(8)]
    np.testing.assert_array_equal(again, before)


def test_a_curriculum_that_cannot_work_is_refused():
    with pytest.raises(ConfigError, match=r"narrow_at is 0\.5; expected less than widen_at, 0\.1"):
        task("curriculum={widen_at: 0.1, narrow_at: 0.5}")
    with pytest.raises(FerryError, match="no random term"):
        make_env(task(CURRICULUM, "randomize={}"), num=1, threads=1)
    with pytest.raises(FerryError, match="'friction' is a choice"):
        make_env(task(CURRICULUM, "randomize.friction='=choice(0.4, 1.0)'"), num=1, threads=1)
    env = make_env(task(CURRICULUM.replace("alive", "alife")), num=2, threads=1)
    with pytest.raises(FerryError, match=r"'reward/alife' is not known \(did you mean 'reward/ali"):
        for _ in range(12):
            env.step(np.zeros((2, 12)))
