"""One task in both engines: the same observations of the same start, and a state that resumes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from real.errors import ConfigError, FerryError
from sim.bench import Replay
from sim.env import VecEnv, make_env
from sim.mujoco_engine import MujocoEngine
from sim.pybullet_engine import PyBulletEngine
from sim.task import load_env_config

N = 4


@pytest.fixture
def make() -> Iterator[Any]:
    """Builds envs and closes them."""
    made: list[VecEnv] = []

    def build(task: str, engine: str, *overrides: str, seed: int = 7, threads: int = 1) -> VecEnv:
        config = load_env_config(task, [f"sim.engine={engine}", f"sim.worlds={N}", *overrides])
        made.append(make_env(config, seed=seed, threads=threads))
        return made[-1]

    yield build
    for env in made:
        env.close()


def actions(env: VecEnv, step: int) -> np.ndarray:
    shape = (env.num_envs, env.action_dim)
    return np.sin(step + np.arange(np.prod(shape))).reshape(shape)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["cartpole_balance", "a1_walk"])
def test_a_first_observation_is_the_same_numbers_in_both_engines(make, task):
    one, two = make(task, "mujoco"), make(task, "pybullet")
    assert isinstance(one.engine, MujocoEngine) and isinstance(two.engine, PyBulletEngine)
    assert len(two.engine.pids) == 1
    assert one.critic_slices == two.critic_slices
    for name in ("policy", "critic"):
        assert one.observation[name].shape == two.observation[name].shape
        np.testing.assert_allclose(
            one.observation[name], two.observation[name], atol=1e-5, err_msg=name
        )
    drawn = two.critic_slices["randomization"]
    np.testing.assert_array_equal(
        one.observation["critic"][:, drawn], two.observation["critic"][:, drawn]
    )
    assert np.ptp(one.observation["critic"], axis=0).max() > 0.1  # worlds differ
    assert [one.randomizer.sample(i) for i in range(N)] == [
        two.randomizer.sample(i) for i in range(N)
    ]


@pytest.mark.slow
def test_rewards_and_observations_stay_close_while_the_robot_moves(make):
    results = []
    for engine in ("mujoco", "pybullet"):
        env = make("cartpole_balance", engine, threads=2)
        results.append([env.step(actions(env, step)) for step in range(10)])
    for one, two in zip(*results, strict=True):
        # A servo of 0.05 s in implicit steps of 10 ms: MuJoCo's cart is a tenth slower to start.
        np.testing.assert_allclose(two.obs["policy"], one.obs["policy"], atol=0.2)
        np.testing.assert_allclose(two.obs["policy"][:, :2], one.obs["policy"][:, :2], atol=0.01)
        np.testing.assert_allclose(two.reward, one.reward, atol=0.01)
        np.testing.assert_array_equal(two.terminated, one.terminated)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "steps"),
    [("cartpole_balance", 12), pytest.param("a1_walk", 20, marks=pytest.mark.slow)],
)
def test_an_env_goes_on_bit_by_bit_in_another_process_with_other_workers(make, task, steps):
    short = "episode_s=0.4"  # resets are part of it
    env = make(task, "pybullet", short, threads=2)
    for step in range(steps):
        env.step(actions(env, step))
    kept = env.state_dict()
    assert all(values.dtype.kind in "fiub" for values in kept.values())
    expected = [env.step(actions(env, step)) for step in range(steps, 2 * steps)]
    assert sum(r.final_ids.size for r in expected) >= N
    other = make(task, "pybullet", short, seed=1, threads=1)
    other.step(actions(other, 0))
    other.load_state_dict(kept)
    for step, before in enumerate(expected, start=steps):
        after = other.step(actions(other, step))
        np.testing.assert_array_equal(after.reward, before.reward)
        for name in ("policy", "critic"):
            np.testing.assert_array_equal(after.obs[name], before.obs[name], err_msg=f"{step}")
            np.testing.assert_array_equal(after.final_obs[name], before.final_obs[name])


@pytest.mark.slow
def test_a_state_of_one_engine_is_refused_by_the_other(make):
    one, two = make("cartpole_balance", "mujoco"), make("cartpole_balance", "pybullet")
    with pytest.raises(FerryError, match="4 PyBullet worlds"):
        two.load_state_dict(one.state_dict())
    with pytest.raises(FerryError, match="of another engine"):
        one.load_state_dict(two.state_dict())


@pytest.mark.slow
def test_what_needs_mujoco_says_so(make):
    with pytest.raises(FerryError, match=r"expected sim\.engine: mujoco"):
        Replay(make("cartpole_balance", "pybullet"))


def test_an_unknown_engine_is_refused_at_its_line():
    with pytest.raises(ConfigError, match=r"sim\.engine.*'mujoco' or 'pybullet'"):
        load_env_config("a1_walk", ["sim.engine=bullet"])
