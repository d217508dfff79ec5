from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import sim.gym
from real.errors import FerryError
from sim.task import load_env_config
from tests.extras import need

NAME = "Ferry/A1Walk-v0"
N = 3


def vector(seconds: float = 4.0, name: str = NAME) -> gymnasium.vector.VectorEnv:
    return gymnasium.make_vec(name, num_envs=N, overrides=[f"episode_s={seconds}"], threads=1)


def test_make_vec_gives_one_array_program_that_declares_its_autoreset() -> None:
    env = vector()
    assert type(env.unwrapped).__module__ == "sim.gym_vector"
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    obs, _ = env.reset(seed=1)
    assert obs in env.observation_space
    assert obs.shape == (N, 45)
    obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
    assert obs in env.observation_space
    assert reward.shape == terminated.shape == truncated.shape == (N,)
    env.close()


@pytest.mark.parametrize("seeds", [5, [7, 5, 11]])
def test_each_world_lives_through_what_a_single_env_of_its_seed_does(seeds) -> None:
    each = [seeds + world for world in range(N)] if isinstance(seeds, int) else seeds
    many = vector()
    moves = np.random.default_rng(2).normal(0.0, 0.5, (6, N, 12)).astype(np.float32)
    together = [many.reset(seed=seeds)[0], *(many.step(move)[0] for move in moves)]
    for world, seed in enumerate(each):
        one = gymnasium.make(NAME, overrides=["episode_s=4.0"])
        alone = [one.reset(seed=seed)[0], *(one.step(move[world])[0] for move in moves)]
        np.testing.assert_array_equal(np.array(together)[:, world], alone)
        one.close()
    many.close()


def test_worlds_that_end_have_their_last_observation_in_the_info_and_a_new_episode_in_obs() -> None:
    env = vector(0.1)
    env.reset(seed=1)
    for _ in range(4):
        _, _, _, truncated, info = env.step(np.ones((N, 12), dtype=np.float32))
        assert not truncated.any()
        assert "final_obs" not in info
    obs, _, terminated, truncated, info = env.step(np.ones((N, 12), dtype=np.float32))
    assert truncated.all()
    assert not terminated.any()
    assert info["_final_obs"].all()
    # The last observation has our previous action, the first of the next episode has none.
    where = env.unwrapped.env.observation_spec.slices()["prev_action"]
    for world in range(N):
        np.testing.assert_array_equal(info["final_obs"][world][where], 1.0)
    np.testing.assert_array_equal(obs[:, where], 0.0)
    np.testing.assert_array_equal(info["final_info"]["episode"]["length"], 5)
    env.close()


def test_wrong_numbers_of_seeds_are_refused() -> None:
    env = vector()
    with pytest.raises(FerryError, match="2 seeds for 3 worlds"):
        env.reset(seed=[1, 2])
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(sim.gym.TASKS))
def test_every_id_passes_the_checker_and_names_its_task(name: str) -> None:
    assert load_env_config(sim.gym.TASKS[name]).name == sim.gym.TASKS[name]
    env = gymnasium.make(name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env.unwrapped, skip_render_check=True)
    # The action is the policy's output, so its range is the action clip and not [-1, 1]; what has
    # no clip has no bound.
    fine = ("normalized space", "infinity")
    assert [str(w.message) for w in caught if not any(f in str(w.message) for f in fine)] == []
    env.close()


def test_stable_baselines3_trains_unchanged() -> None:
    sb3 = need("stable_baselines3")
    env = gymnasium.make(NAME)
    model = sb3.PPO("MlpPolicy", env, n_steps=64, batch_size=32, n_epochs=1, device="cpu", seed=0)
    before = [p.detach().clone() for p in model.policy.parameters()]
    model.learn(256)
    assert model.num_timesteps == 256
    pairs = zip(before, model.policy.parameters(), strict=True)
    assert any((old != new).any() for old, new in pairs)
    env.close()
