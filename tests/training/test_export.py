from __future__ import annotations

import copy
import dataclasses

import numpy as np
import onnx
import pytest
import torch

from deploy.bundle import BundleError, read_bundle
from deploy.onnx_file import read_onnx
from deploy.policy import OnnxPolicy
from real.contract import PolicyContract
from real.errors import FerryError
from real.observation import ObservationBuilder
from real.spec import load_robot
from sim.env import make_env
from sim.task import action_spec, observation_spec
from tests.training.short_run import short_config, short_run
from training.export import (
    GOLDEN_ROWS,
    MIN_OBSERVATIONS,
    export_policy,
    export_run,
    record_observations,
)
from training.networks import ActorCritic, NetworkConfig
from training.normalizer import Moments
from training.run_folder import load_policy

CONFIG = short_config()
ROBOT = load_robot("a1")
SPEC = observation_spec(CONFIG, ROBOT)


def contract(**changes) -> PolicyContract:
    made = PolicyContract.of_robot(
        ROBOT,
        observation=SPEC,
        action=action_spec(CONFIG, ROBOT),
        command=CONFIG.command.limits(),
    )
    return dataclasses.replace(made, **changes)


def recorded(rows=MIN_OBSERVATIONS, seed=0) -> np.ndarray:
    """Observations whose terms differ in mean and size by orders, as sensors' do."""
    rng = np.random.default_rng(seed)
    scale, shift = 10.0 ** rng.uniform(-2, 1, SPEC.dim), rng.normal(0.0, 3.0, SPEC.dim)
    return (rng.normal(size=(rows, SPEC.dim)) * scale + shift).astype(np.float32)


def policy(*, statistics=True, seed=1) -> ActorCritic:
    module = ActorCritic(
        SPEC.dim, SPEC.dim, action_dim=12, config=NetworkConfig(hidden=(32, 16)), seed=seed
    )
    with torch.no_grad():
        module.actor[-1].weight.mul_(100.0)  # a fresh policy hardly moves
        module.log_std.copy_(torch.linspace(-2.0, 0.5, 12))
    if statistics:
        module.obs_norm.update(Moments.of(torch.from_numpy(recorded(seed=5))))
    return module


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "p.onnx"
    report = export_policy(policy(), contract(), observations=recorded(), path=path)
    return report, read_bundle(path)


def test_the_bundle_gives_what_torch_gives_on_raw_observations(exported):
    report, bundle = exported
    assert 0.0 <= report.max_error <= 1e-5
    assert report.observations == MIN_OBSERVATIONS
    obs = recorded(seed=9)  # others than those that were compared at the export
    mean, log_std = OnnxPolicy(bundle).infer(obs)
    with torch.no_grad():
        expected, spread = policy()(torch.from_numpy(obs))
    assert np.abs(mean - expected.numpy()).max() <= 1e-5
    assert np.abs(log_std - spread.detach().numpy()).max() <= 1e-6
    assert np.abs(mean).max() > 0.5  # and it is not silent


def test_the_normaliser_is_inside_and_matters(exported):
    _, bundle = exported
    obs = recorded(seed=9)
    without = policy(statistics=False)
    with torch.no_grad():
        raw, _ = without(torch.from_numpy(obs))
    assert np.abs(OnnxPolicy(bundle).infer(obs)[0] - raw.numpy()).max() > 0.1


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_any_batch_runs(exported, rows):
    _, bundle = exported
    obs = recorded(seed=2)[:rows]
    mean, log_std = OnnxPolicy(bundle).infer(obs)
    assert mean.shape == log_std.shape == (rows, 12)
    with torch.no_grad():
        assert np.allclose(mean, policy()(torch.from_numpy(obs))[0].numpy(), atol=1e-5)


def test_the_graph_is_deterministic(exported):
    _, bundle = exported
    runs, obs = OnnxPolicy(bundle), recorded(seed=3)[:5]
    first = runs.infer(obs)[0]
    for _ in range(200):
        assert np.array_equal(runs.infer(obs)[0], first)
    assert set(read_onnx(bundle.model_bytes).operators) <= {
        "Clip",
        "Concat",
        "Elu",
        "Expand",
        "Gemm",
        "Mul",
        "Shape",
        "Sub",
    }


def test_the_contract_and_golden_vectors_travel_with_it(exported):
    report, bundle = exported
    assert bundle.contract == contract()
    assert bundle.golden.observation.shape == (GOLDEN_ROWS, SPEC.dim)
    # They are recorded observations, the first and last among them.
    assert np.array_equal(bundle.golden.observation[[0, -1]], recorded()[[0, -1]])
    assert report.sha256 == bundle.sha256
    assert report.size_bytes == len(bundle.model_bytes) < 1_000_000


def test_it_is_one_file_that_the_onnx_package_accepts_without_notes_of_this_computer(exported):
    report, bundle = exported
    assert [p.name for p in report.path.parent.iterdir()] == ["p.onnx"]
    model = onnx.load_from_string(bundle.model_bytes)
    onnx.checker.check_model(model, full_check=True)
    text = bundle.model_bytes.replace(b"\\", b"/")
    assert b"site-packages" not in text
    assert b".py" not in text
    assert not any(node.metadata_props or node.doc_string for node in model.graph.node)


@pytest.mark.slow
def test_exporting_leaves_the_module_as_it_was(tmp_path):
    module = policy().train()
    before = copy.deepcopy(module.state_dict())
    export_policy(module, contract(), observations=recorded(), path=tmp_path / "p.onnx")
    assert module.training
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.slow
def test_the_same_policy_gives_the_same_bytes(tmp_path, exported):
    again = export_policy(
        policy(), contract(), observations=recorded(), path=tmp_path / "again.onnx"
    )
    assert again.sha256 == exported[0].sha256


# ------------------------------------------------------------------ what must not leave


def refused(tmp_path, *, module=None, observations=None, **changes) -> str:
    path = tmp_path / "p.onnx"
    with pytest.raises(FerryError) as error:
        export_policy(
            policy() if module is None else module,
            contract(**changes),
            observations=recorded() if observations is None else observations,
            path=path,
        )
    assert list(tmp_path.iterdir()) == []  # not even half a file
    return str(error.value)


def test_a_normaliser_that_has_seen_nothing_is_refused(tmp_path):
    assert "has seen no samples" in refused(tmp_path, module=policy(statistics=False))


def test_a_normaliser_under_another_name_is_refused_and_not_left_out(tmp_path):
    module = policy()
    module.normalizer = module.obs_norm
    del module.obs_norm
    assert "`obs_norm`" in refused(tmp_path, module=module)


def test_too_few_or_broken_observations_are_refused(tmp_path):
    assert "at least 1000" in refused(tmp_path, observations=recorded(999))
    assert "expected" in refused(tmp_path, observations=recorded()[:, :-1])
    broken = recorded()
    broken[500, 3] = np.nan
    assert "not finite" in refused(tmp_path, observations=broken)


@pytest.mark.slow
def test_a_policy_that_differs_in_onnx_is_refused(tmp_path):
    class Drifting(ActorCritic):
        """Adds what it was asked before: torch repeats it, a file cannot."""

        calls = 0

        def forward(self, obs):
            mean, log_std = super().forward(obs)
            Drifting.calls += 1
            return mean + 1e-4 * Drifting.calls, log_std

    module = Drifting(SPEC.dim, SPEC.dim, action_dim=12, config=NetworkConfig(hidden=(8,)), seed=0)
    module.obs_norm.update(Moments.of(torch.from_numpy(recorded())))
    assert "golden vectors" in refused(tmp_path, module=module)


@pytest.mark.slow
def test_a_policy_of_another_size_than_its_contract_is_refused(tmp_path):
    small = ActorCritic(
        SPEC.dim, SPEC.dim, action_dim=11, config=NetworkConfig(hidden=(8,)), seed=0
    )
    small.obs_norm.update(Moments.of(torch.from_numpy(recorded())))
    assert "(16, 11)" in refused(tmp_path, module=small)


@pytest.mark.slow
def test_a_policy_that_answers_nan_is_refused(tmp_path):
    module = policy()
    with torch.no_grad():
        module.actor[0].weight[0, 0] = float("nan")
    assert "not finite" in refused(tmp_path, module=module)


@pytest.mark.slow
def test_a_file_that_cannot_be_written_is_an_error_and_not_a_trace(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(FerryError, match="cannot write"):
        export_policy(
            policy(), contract(), observations=recorded(), path=tmp_path / "taken" / "p.onnx"
        )


@pytest.mark.slow
def test_an_invalid_bundle_never_replaces_a_good_one(tmp_path):
    path = tmp_path / "p.onnx"
    path.write_bytes(b"the good one")
    with pytest.raises(BundleError):
        export_policy(policy(), contract(control_dt_s=0.0), observations=recorded(), path=path)
    assert path.read_bytes() == b"the good one"


# ------------------------------------------------------------------ from a run


@pytest.fixture(scope="module")
def run_bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    run = short_run(folder / "run")
    report = export_run(run, folder / "out" / "p.onnx")
    return run, report, read_bundle(report.path)


@pytest.mark.slow
def test_the_policy_of_a_run_folder_leaves_as_a_bundle_that_says_where_it_is_from(run_bundle):
    run, report, bundle = run_bundle
    loaded = load_policy(run)
    assert report.max_error <= 1e-5
    made = bundle.contract
    assert made.robot == "a1"
    assert made.joints == ROBOT.joints
    assert made.observation == observation_spec(loaded.config, ROBOT)
    assert made.action.clip == loaded.config.action.clip
    assert made.command == loaded.config.command.limits()
    assert made.config_hash == loaded.meta["config_hash"]
    assert made.git_sha == loaded.meta["git_sha"]
    assert made.policy_version == loaded.meta["version"] == 3
    assert made.provenance["seed"] == "3"
    assert made.provenance["step"] == "384"
    assert made.provenance["command"]


@pytest.mark.slow
def test_bundle_and_decoding_give_what_the_env_executes(run_bundle):
    run, _, bundle = run_bundle
    loaded = load_policy(run)
    env = make_env(loaded.config.nominal(), num=4, threads=1, seed=8)
    obs = env.reset()["policy"]
    mean, _ = OnnxPolicy(bundle).infer(obs)
    contract_ = bundle.contract
    # A saturating action too: the clip is part of the decoding, not of the graph.
    action = mean * np.array([1.0, 10.0, 1e3, -1e3])[:, None]
    clipped = np.clip(action, -contract_.action.clip, contract_.action.clip)
    target = np.array(contract_.action.offset) + np.array(contract_.action.scale) * clipped
    env.step(action.astype(np.float32))
    assert np.allclose(env.engine.servos._ctrl[:, env.engine.built.actuator_ids], target, atol=1e-6)
    env.close()


def test_the_robots_observation_builder_builds_what_the_env_shows(exported):
    _, bundle = exported
    env = make_env(CONFIG.nominal(), num=3, threads=1, seed=2)
    obs = env.reset()["policy"]
    q_default = [j.q_default for j in bundle.contract.joints]
    builder = ObservationBuilder(bundle.contract.observation, q_default, 3)
    rng = np.random.default_rng(0)
    prev = np.zeros((3, 12))
    for _ in range(5):
        state = env.engine.state().robot
        assert np.array_equal(builder.build(state, env.command, prev), obs)
        action = rng.normal(0.0, 0.3, (3, 12)).astype(np.float32)
        obs = env.step(action).obs["policy"]
        prev = np.clip(action.astype(np.float64), -5.0, 5.0)
    env.close()


def test_recorded_observations_are_many_and_differ():
    module = policy()
    seen = record_observations(CONFIG, module, rows=100)
    assert seen.shape[0] >= 100
    assert seen.shape[1] == SPEC.dim
    assert np.unique(seen, axis=0).shape[0] == seen.shape[0]


def test_a_folder_without_checkpoints_is_refused(tmp_path):
    with pytest.raises(FerryError, match="checkpoints"):
        export_run(tmp_path, tmp_path / "p.onnx")
