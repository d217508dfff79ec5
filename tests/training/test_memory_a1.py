"""The whole road with a memory: A1 trains, is scored, leaves as a bundle, runs its controller."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from deploy.bundle import read_bundle
from deploy.controller import Controller
from deploy.modes import Mode
from deploy.policy import OnnxPolicy
from deploy.safety import SafetySettings, Verdict
from real.memory import HiddenState
from real.spec import load_robot
from sim.engine import InitialState
from sim.mujoco_engine import MujocoEngine
from tests.training.short_run import short_run
from training.contract import run_contract
from training.evaluator import TorchPolicy, evaluate, evaluate_path, selection_scorer
from training.export import export_run
from training.run_folder import LoadedPolicy, load_policy

ROBOT = load_robot("a1")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """With the task's own mirror images: they have a memory, too."""
    return short_run(tmp_path_factory.mktemp("run") / "run", "training.network.gru=64")


@pytest.fixture(scope="module")
def loaded(run) -> LoadedPolicy:
    return load_policy(run)


@pytest.fixture(scope="module")
def bundle_path(run) -> Path:
    path = run.parent / "p.onnx"
    assert export_run(run, path).max_error <= 1e-5
    return path


def test_the_run_is_symmetric_and_its_policy_remembers(loaded):
    assert loaded.config.training.symmetry.enabled
    assert loaded.module.hidden_size == 64
    assert loaded.meta["version"] == 3


def test_the_bundle_says_what_it_remembers(bundle_path):
    bundle = read_bundle(bundle_path)
    assert bundle.contract.state == HiddenState("hidden", "hidden_next", (0.0,) * 64)
    assert np.abs(bundle.golden.hidden).max() > 0.1


def test_bundle_run_and_selection_are_scored_alike(run, loaded, bundle_path):
    bundled = evaluate_path(bundle_path, episodes=2)
    assert evaluate_path(run, episodes=2).score.mean == pytest.approx(bundled.score.mean, abs=0.02)
    contract = run_contract(loaded.config, loaded.meta)
    chosen = evaluate(
        TorchPolicy(loaded.module, contract), loaded.config, episodes=2, purpose="selection"
    )
    assert selection_scorer(loaded.config, episodes=2)(loaded.module)["score"] == chosen.score.mean


def test_an_episode_of_an_evaluation_does_not_depend_on_the_others(loaded):
    policy = TorchPolicy(loaded.module, run_contract(loaded.config, loaded.meta))
    alone, among = (evaluate(policy, loaded.config, episodes=n).each[0] for n in (1, 3))
    assert alone.score == pytest.approx(among.score, abs=1e-6)


def test_the_controller_walks_three_robots_each_with_its_own_memory(loaded, bundle_path):
    engine = MujocoEngine(ROBOT, 3, threads=1)
    engine.reset(np.arange(3), InitialState.default(ROBOT, 3))
    controller = Controller(
        OnnxPolicy(read_bundle(bundle_path)), 3, settings=SafetySettings(ramp_s=0.0)
    )
    command = np.array([[0.3, 0.0, 0.0], [0.0, 0.1, 0.2], [-0.2, 0.0, -0.4]])
    state = engine.state().robot
    assert controller.arm(int(state.stamp_ns.max()), state) == []
    hidden = torch.zeros(3, 64)
    for _ in range(25):
        tick = controller.tick(int(state.stamp_ns.max()), state, command)
        assert tick.errors == ()
        with torch.no_grad():
            mean, _, hidden = loaded.module(torch.from_numpy(tick.policy.observation), hidden)
        np.testing.assert_allclose(tick.policy.mean, mean, atol=2e-5)
        np.testing.assert_allclose(controller.policy.hidden, hidden, atol=2e-5)
        engine.apply(tick.command)
        state = engine.state().robot
    assert (tick.verdict != Verdict.DAMP).all()
    assert (controller.safety.modes.mode == Mode.RUN).all()
    assert (hidden[0] - hidden[2]).abs().max() > 1e-3
    engine.close()
