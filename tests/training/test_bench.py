"""The policy that acts in the benchmark of the simulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import training.bench
from deploy.bundle import read_bundle
from deploy.policy import OnnxPolicy
from training.bench import acting_policy
from training.run_config import load_run_config

BUNDLE = Path(training.bench.__file__).parents[1] / "configs" / "bundles" / "a1_walk.onnx"


def observations(dim: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(5, dim)).astype(np.float32)


def test_the_shipped_policy_acts_in_its_own_task():
    act = acting_policy(load_run_config("a1_walk"))
    policy = OnnxPolicy(read_bundle(BUNDLE))
    obs = observations(policy.contract.observation.dim)
    np.testing.assert_array_equal(act(obs), policy.infer(obs)[0])


@pytest.mark.slow
def test_a_task_with_other_observations_gets_a_network_that_fits():
    config = load_run_config("a1_walk", ["observation.joint_pos.history=3"])
    shipped = read_bundle(BUNDLE).contract.observation.dim
    action = acting_policy(config)(observations(shipped + 2 * 12))
    assert action.shape == (5, 12)
    assert np.isfinite(action).all()


def test_without_the_shipped_bundle_a_network_of_the_task_acts(monkeypatch, tmp_path):
    monkeypatch.setattr(training.bench, "BUNDLE", str(tmp_path / "gone.onnx"))
    act = acting_policy(load_run_config("a1_walk"))
    dim = read_bundle(BUNDLE).contract.observation.dim
    # A new network starts near the default pose: small actions whatever it sees.
    assert np.abs(act(observations(dim))).max() < 0.2


@pytest.mark.slow
def test_both_ratios_are_of_the_same_run():
    found = training.bench.bench_sim("a1_walk", worlds=8, threads=1, seconds=0.5)
    env, raw = found["env_steps_per_s"], found["raw_steps_per_s"]
    assert found["ratio"] == pytest.approx(env / raw)
    # Acting costs time on top of the env's.
    assert 0.0 < found["with_policy_ratio"] < found["ratio"]
    assert (found["worlds"], found["threads"]) == (8, 1)
