from __future__ import annotations

import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import sim.gym
from real.errors import FerryError
from sim.task import load_env_config

NAME = "Ferry/A1Walk-v0"


def short(seconds: float = 0.1) -> gymnasium.Env:
    """An episode of a few steps."""
    return gymnasium.make(NAME, overrides=[f"episode_s={seconds}"], randomize=False)


def test_check_env_has_no_complaint_that_matters() -> None:
    env = gymnasium.make(NAME)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env.unwrapped, skip_render_check=True)
    # The action is the policy's output, so its range is the action clip and not [-1, 1].
    serious = [str(w.message) for w in caught if "normalized space" not in str(w.message)]
    assert serious == []
    env.close()


@pytest.mark.slow
def test_a_fresh_process_makes_the_env_by_its_full_name() -> None:
    code = f"import gymnasium; print(gymnasium.make('sim.gym:{NAME}').reset(seed=1)[0].shape)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "(45,)"


def test_spaces_are_finite_and_hold_what_the_env_gives() -> None:
    env = gymnasium.make(NAME)
    assert env.observation_space.dtype == np.float32
    assert np.isfinite(env.observation_space.low).all()
    assert np.isfinite(env.observation_space.high).all()
    obs, _ = env.reset(seed=2)
    for _ in range(40):
        assert obs in env.observation_space
        obs, _, ended, cut, _ = env.step(env.action_space.sample())
        if ended or cut:
            obs, _ = env.reset()
    env.close()


def test_a_term_without_clip_has_an_infinite_bound() -> None:
    env = gymnasium.make(NAME, overrides=["observation.joint_pos={}"], randomize=False)
    high = env.observation_space.high
    where = env.unwrapped.env.observation_spec.slices()
    assert np.isinf(high[where["joint_pos"]]).all()
    assert np.isfinite(np.delete(high, where["joint_pos"])).all()
    env.close()


def test_same_seed_same_episode_and_another_seed_another() -> None:
    def episode(seed: int) -> list[np.ndarray]:
        env = gymnasium.make(NAME)
        obs, _ = env.reset(seed=seed)
        moves = [np.full(12, 0.1 * np.sin(step), dtype=np.float32) for step in range(10)]
        out = [obs, *(env.step(move)[0] for move in moves)]
        env.close()
        return out

    first, same, other = episode(5), episode(5), episode(6)
    np.testing.assert_array_equal(first, same)
    assert all((a != b).any() for a, b in zip(first, other, strict=True))


def test_seeding_again_repeats_the_episode_in_the_same_env() -> None:
    env = gymnasium.make(NAME)
    first, _ = env.reset(seed=5)
    for _ in range(7):
        env.step(env.action_space.sample())
    again, _ = env.reset(seed=5)
    np.testing.assert_array_equal(first, again)
    unseeded, _ = env.reset()
    assert (unseeded != first).any()
    env.close()


def test_the_time_limit_truncates_and_returns_the_last_observation_of_the_episode() -> None:
    env = short(0.1)
    env.reset(seed=1)
    for _ in range(4):
        *_, terminated, truncated, info = env.step(np.ones(12, dtype=np.float32))
        assert not terminated
        assert not truncated
        assert "episode" not in info
    obs, _, terminated, truncated, info = env.step(np.ones(12, dtype=np.float32))
    assert truncated
    assert not terminated
    assert info["episode"]["length"] == 5
    # The first observation of an episode has a previous action of zero; the last has ours.
    where = env.unwrapped.env.observation_spec.slices()["prev_action"]
    np.testing.assert_array_equal(obs[where], 1.0)
    fresh, _ = env.reset()
    np.testing.assert_array_equal(fresh[where], 0.0)
    env.close()


def test_reset_in_the_middle_of_an_episode_starts_a_whole_one() -> None:
    env = short(0.1)
    env.reset(seed=1)
    for _ in range(3):
        env.step(np.zeros(12, dtype=np.float32))
    env.reset()
    cut = [env.step(np.zeros(12, dtype=np.float32))[3] for _ in range(5)]
    assert cut == [False, False, False, False, True]
    env.close()


def test_reward_parts_add_up_to_the_reward() -> None:
    env = gymnasium.make(NAME)
    env.reset(seed=3)
    for _ in range(5):
        _, reward, _, _, info = env.step(env.action_space.sample())
        assert sum(info["reward_parts"].values()) == pytest.approx(reward, abs=1e-5)
    env.close()


def test_the_clamped_share_is_in_the_info_of_a_filtered_task_alone() -> None:
    wild = np.full(12, 5.0, dtype=np.float32)
    for enabled in (True, False):
        env = gymnasium.make(NAME, overrides=[f"filter={'on' if enabled else 'off'}"])
        env.reset(seed=3)
        info = env.step(wild)[4]
        assert ("filter/clamped_share" in info) is enabled
        assert not enabled or info["filter/clamped_share"] > 0.5
        env.close()


def test_every_shipped_task_of_the_table_loads() -> None:
    for task in sim.gym.TASKS.values():
        assert load_env_config(task).name == task


def test_a_wrong_action_shape_is_refused() -> None:
    env = gymnasium.make(NAME, disable_env_checker=True)
    env.reset(seed=0)
    with pytest.raises(FerryError, match=r"shape \(1, 11\); expected \(1, 12\)"):
        env.step(np.zeros(11, dtype=np.float32))
    env.close()
