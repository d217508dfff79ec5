from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from sim.ant import ACTION_DIM, OBS_DIM, AntWorlds
from tests.extras import need


def test_worlds_take_gymnasiums_steps() -> None:
    """State, observation and reward are those of Ant-v5 from the same state on."""
    need("imageio")
    ants = AntWorlds(3, seed=5)
    rng = np.random.default_rng(0)
    for _ in range(12):  # until feet are on the ground
        ants.step(rng.uniform(-1.0, 1.0, (3, ACTION_DIM)))
    single = gymnasium.make("Ant-v5").unwrapped
    single.reset(seed=0)
    single.set_state(ants.batch.qpos[1].copy(), ants.batch.qvel[1].copy())
    single.data.qacc_warmstart[:] = ants.batch.qacc_warmstart[1]
    for _ in range(5):
        actions = rng.uniform(-1.0, 1.0, (3, ACTION_DIM))
        obs, reward, *_ = single.step(actions[1])
        step = ants.step(actions)
        # Up to the contact forces: Gymnasium has those of the last stage of its integrator.
        np.testing.assert_allclose(step.obs[1, :27], obs[:27], atol=1e-6)
        assert step.reward[1] == pytest.approx(reward, abs=0.05)


def test_an_ant_off_its_heights_ends_and_begins_anew_within_the_step() -> None:
    ants = AntWorlds(3, seed=1)
    ants.batch.qpos[2, 2] = 3.0
    step = ants.step(np.zeros((3, ACTION_DIM)))
    assert step.obs.shape == (3, OBS_DIM)
    assert step.terminated.tolist() == [False, False, True]
    assert step.final_ids.tolist() == [2]
    assert step.final_obs[0, 0] > 2.0
    assert 0.6 < step.obs[2, 0] < 0.9
    assert not step.truncated.any()


def test_forces_are_there_once_it_stands() -> None:
    ants = AntWorlds(2, seed=0)
    seen = np.zeros(2)
    for _ in range(30):
        seen = np.maximum(seen, np.abs(ants.step(np.zeros((2, ACTION_DIM))).obs[:, 27:]).max(1))
    assert (seen == 1.0).all()  # clipped: a quarter of its weight is more
