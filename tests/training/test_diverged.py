"""What diverges in training is left in the run folder, under the name of the actor that had it."""

from __future__ import annotations

import functools

import numpy as np

from sim.env import VecEnv
from sim.replay import replay
from training.actor import ActorWorker
from training.learner import Learner
from training.networks import NetworkConfig
from training.ppo import PpoConfig
from training.roles import actor_id
from training.run_config import load_run_config
from training.run_folder import diverged_of
from training.train import _task_env


def test_each_actor_leaves_files_of_its_own_name_and_its_rollouts_are_finite(tmp_path):
    config = load_run_config("a1_walk", ["sim.worlds=3", "sim.threads=1"])
    # As it travels to other processes.
    make = functools.partial(_task_env, run=tmp_path, threads=1)
    for stream in ((0, 0), (1, 2)):
        env = make(config, stream)
        assert isinstance(env, VecEnv)
        network = NetworkConfig(hidden=(8,), critic_hidden=(8,))
        sizes = (env.policy_dim, env.critic_dim)
        learner = Learner(
            *sizes, action_dim=env.action_dim, network=network, ppo=PpoConfig(), seed=0
        )
        worker = ActorWorker(env, actor_id(stream), network=network, seed=0, stream=stream)
        before = env.engine.recorder.note

        def poison(state, note=before, env=env):
            note(state)
            if env.counters["steps"] == 3 * 4:  # the fifth step of three worlds
                state[2, 3] = np.nan

        env.engine.recorder.note = poison
        rollout = worker.collect(learner.snapshot(), 8)
        assert rollout.terminated.sum(axis=0).tolist() == [0, 0, 1]
        assert all(np.isfinite(a).all() for a in (rollout.obs, rollout.critic_obs, rollout.rewards))
        assert [e.values["diverged"] for e in rollout.episodes] == [1.0]
    found = sorted(path.name for path in diverged_of(tmp_path).glob("*.npz"))
    assert found == ["actor-0-00.npz", "actor-1-restart-2-00.npz"]
    for name, actor in zip(found, ("actor-0", "actor-1-restart-2"), strict=True):
        record = replay(diverged_of(tmp_path) / name).record
        assert (record.actor, record.world, len(record.states)) == (actor, 2, 5)
