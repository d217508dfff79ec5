from __future__ import annotations

import dataclasses
import json
import logging
import shutil

import numpy as np
import pytest
import torch

from deploy.bundle import read_bundle
from deploy.policy import OnnxPolicy
from deploy.safety import Verdict
from real.errors import ContractMismatch, FerryError
from real.spec import load_robot
from tests.extras import need
from tests.training.short_run import short_config, short_run
from training.checkpoint import checkpoint_folders, set_pointer
from training.contract import run_contract
from training.evaluator import TorchPolicy, evaluate, evaluate_path, selection_scorer
from training.export import export_run
from training.networks import ActorCritic, NetworkConfig
from training.progress import silent
from training.run_folder import load_policy
from training.scores import NEVER, fall_steps, tracking
from training.suites import SUITES, episode_seeds
from training.trial import Worlds, run_trial

CONFIG = short_config()
CONTRACT = run_contract(CONFIG, {})
ROBOT = load_robot("a1")


class Standing:
    """Asks for the default pose whatever it sees."""

    contract = CONTRACT

    def infer(self, observation):
        mean = np.zeros((observation.shape[0], 12), dtype=np.float32)
        return mean, mean - 1.0


class Toppling(Standing):
    """Stretches the legs of one side and folds the others: falls over soon."""

    def infer(self, observation):
        mean, log_std = super().infer(observation)
        left = np.array([n.startswith(("FL", "RL")) for n in ROBOT.joint_names])
        lower = np.array(["lower" in n for n in ROBOT.joint_names])
        mean[:] = np.where(lower, np.where(left, 5.0, -5.0), 0.0)
        return mean, log_std


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluated") / "run"
    return short_run(folder, "training.run.checkpoint_every=1", "training.run.keep=9")


@pytest.fixture(scope="module")
def standing():
    return evaluate(Standing(), CONFIG, episodes=4, seed=1)


# ------------------------------------------------------------------ what is scored


@pytest.mark.slow
def test_a_standing_robot_scores_what_the_definition_gives_for_its_commands(standing):
    found = standing
    # A robot that stands still has no velocity, so the score follows from the commands alone.
    seeds = episode_seeds(1, 4, purpose="report")
    worlds = Worlds(SUITES["nominal"], ROBOT, config=None, seeds=seeds)
    command = run_trial(Standing(), worlds, progress=silent).command
    worlds.close()
    still = np.zeros_like(command)
    expected = tracking(command, still, still, fallen_at=np.full(4, NEVER), dt_s=0.02)
    assert [e.tracking for e in found.each] == pytest.approx(expected.tolist(), abs=2e-3)
    assert found.tracking.mean == pytest.approx(expected.mean(), abs=2e-3)
    assert found.tracking.low < found.tracking.mean < found.tracking.high
    assert found.falls_per_minute.mean == 0.0
    assert found.clamped_share == 0.0
    assert [e.fallen_s for e in found.each] == [None] * 4


@pytest.mark.slow
def test_a_robot_that_falls_scores_next_to_nothing_and_is_counted_once(caplog):
    found = evaluate(Toppling(), CONFIG, episodes=3)
    # Falls are in the result; the filter's warning of each is for a robot.
    assert not [r for r in caplog.records if r.name.startswith("deploy")]
    assert logging.getLogger("deploy.safety_pipeline").level == logging.NOTSET
    assert all(e.fallen_s is not None and e.fallen_s < 5.0 for e in found.each)
    up = sum(e.fallen_s - 0.02 for e in found.each if e.fallen_s is not None) / 60.0
    assert found.falls_per_minute.mean == pytest.approx(3 / up)
    assert found.tracking.mean < 0.25
    assert found.clamped_share > 0.0


@pytest.mark.slow
def test_a_fallen_robot_is_damped_by_the_filter_for_the_rest_of_its_episode():
    seeds = episode_seeds(0, 2, purpose="report")
    worlds = Worlds(SUITES["nominal"], ROBOT, config=None, seeds=seeds)
    run_ = run_trial(Toppling(), worlds, progress=silent)
    worlds.close()
    tilted = (run_.tilt_rad > 1.0).argmax(axis=0)
    for world, step in enumerate(tilted.tolist()):
        assert step > 0
        assert (run_.verdict[step + 1 :, world] == Verdict.DAMP).all()
        assert (run_.verdict[:step, world] != Verdict.DAMP).all()
    fallen = fall_steps(run_.tilt_rad, run_.height_m, fall_height_m=0.16, dt_s=0.02)
    assert (fallen <= tilted).all()


@pytest.mark.slow
def test_the_same_seed_gives_the_same_scores_whichever_other_episodes_run_beside(standing):
    again = evaluate(Standing(), CONFIG, episodes=2, seed=1)
    assert again.each == standing.each[:2]


@pytest.mark.slow
def test_another_seed_gives_other_scores(standing):
    other = evaluate(Standing(), CONFIG, episodes=1, seed=6)
    assert other.each[0].tracking not in [e.tracking for e in standing.each]


def test_the_json_has_the_documented_keys_and_plain_numbers(standing):
    found = json.loads(json.dumps(standing.as_json()))
    assert {"suite", "episodes", "seed", "tracking", "falls_per_minute"} <= set(found)
    assert set(found["tracking"]) == {"mean", "low", "high"}
    falls = standing.falls_per_minute
    assert found["falls_per_minute"] == falls.mean == 0.0
    assert found["falls_per_minute_95"] == {"low": falls.low, "high": falls.high}
    assert falls.high > falls.low
    assert (found["suite"], found["episodes"], found["seed"]) == ("nominal", 4, 1)
    assert len(found["each"]) == 4


@pytest.mark.slow
def test_progress_is_told_and_reaches_its_end():
    told = []
    evaluate(Standing(), CONFIG, episodes=1, progress=lambda d, t, note="": told.append((d, t)))
    assert told[0] == (1, 1000)
    assert told[-1] == (1000, 1000)


@pytest.mark.slow
def test_pybullet_gives_the_same_commands_and_a_standing_robot_the_same_score(standing):
    need("pybullet")
    theirs = evaluate(Standing(), CONFIG, suite="pybullet", episodes=2, seed=1)
    assert theirs.suite == "pybullet"
    for a, b in zip(standing.each[:2], theirs.each, strict=True):
        assert a.tracking == pytest.approx(b.tracking, abs=5e-3)


@pytest.mark.slow
def test_the_randomised_suite_uses_the_tasks_own_noise_and_repeats_it(standing):
    found, again = (
        evaluate(Standing(), CONFIG, suite="randomized", episodes=2, seed=1) for _ in range(2)
    )
    assert found == again
    for a, b in zip(found.each, standing.each[:2], strict=True):
        assert a.tracking != b.tracking


# ------------------------------------------------------------------ runs, bundles, torch


@pytest.mark.slow
def test_a_run_and_its_bundle_score_the_same(run, tmp_path):
    bundle = tmp_path / "p.onnx"
    export_run(run, bundle)
    from_run = evaluate_path(run, episodes=1)
    from_bundle = evaluate_path(bundle, episodes=1)
    assert from_run.suite == "nominal"
    for a, b in zip(from_run.each, from_bundle.each, strict=True):
        assert a.tracking == pytest.approx(b.tracking, abs=1e-3)
    again, other = (evaluate_path(p, suite="randomized", episodes=1) for p in (run, bundle))
    assert again.each[0].tracking == pytest.approx(other.each[0].tracking, abs=1e-3)
    observation = np.ones((3, CONTRACT.observation.dim), dtype=np.float32)
    assert OnnxPolicy(read_bundle(bundle)).infer(observation)[0].shape == (3, 12)


@pytest.mark.slow
def test_best_and_latest_of_a_run_are_scored_on_their_own(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    root = copy / "checkpoints"
    first, last = checkpoint_folders(root)[0], checkpoint_folders(root)[-1]
    assert first != last
    set_pointer(root, "best", first.name)
    set_pointer(root, "latest", last.name)
    best, latest = (evaluate_path(copy, which=w, episodes=1) for w in ("best", "latest"))
    assert best.each != latest.each
    assert latest == evaluate(
        TorchPolicy(load_policy(copy, "latest").module, CONTRACT), CONFIG, episodes=1
    )


def test_a_path_that_is_neither_is_refused(tmp_path):
    with pytest.raises(FerryError, match="no run folder or bundle"):
        evaluate_path(tmp_path / "nothing")
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(FerryError, match="not a usable bundle"):
        evaluate_path(tmp_path / "text.onnx")
    with pytest.raises(FerryError, match="'latest' chooses a checkpoint of a run folder"):
        evaluate_path(tmp_path / "text.onnx", which="latest")


def test_a_misspelt_suite_and_numbers_out_of_range_are_refused():
    with pytest.raises(FerryError, match="did you mean 'pybullet'"):
        evaluate(Standing(), CONFIG, suite="pybulet")
    with pytest.raises(FerryError, match="0 episodes"):
        evaluate(Standing(), CONFIG, episodes=0)
    with pytest.raises(FerryError, match="seed is -1"):
        evaluate(Standing(), CONFIG, seed=-1)


def test_a_policy_for_other_gains_than_the_robots_is_refused_by_name():
    policy = Standing()
    joints = tuple(dataclasses.replace(j, kp=j.kp + 1.0) for j in CONTRACT.joints)
    policy.contract = dataclasses.replace(CONTRACT, joints=joints)
    with pytest.raises(ContractMismatch, match="'FR_hip_joint' kp"):
        evaluate(policy, CONFIG, episodes=1)


def test_a_policy_in_torch_answers_raw_observations_and_keeps_no_graph():
    dim = CONTRACT.observation.dim
    module = ActorCritic(dim, dim, action_dim=12, config=NetworkConfig(hidden=(8,)), seed=0)
    observation = np.random.default_rng(0).normal(size=(4, dim)).astype(np.float32)
    mean, log_std = TorchPolicy(module, CONTRACT).infer(observation)
    with torch.no_grad():
        expected = module.mean(torch.from_numpy(observation)).numpy()
    assert np.array_equal(mean, expected)
    assert log_std.shape == (4, 12)


@pytest.mark.slow
def test_the_score_that_chooses_a_checkpoint_is_the_tracking_on_the_selection_episodes():
    dim = CONTRACT.observation.dim
    module = ActorCritic(dim, dim, action_dim=12, config=NetworkConfig(hidden=(8,)), seed=0)
    record = selection_scorer(CONFIG, episodes=2)(module)
    expected = evaluate(TorchPolicy(module, CONTRACT), CONFIG, episodes=2, purpose="selection")
    assert record["score"] == record["tracking"]["mean"] == expected.tracking.mean
    assert (record["purpose"], record["suite"]) == ("selection", "nominal")
    json.dumps(record)
