"""A policy with a memory as a bundle: its state is in graph and contract, and lives are equal."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import torch

from deploy.bundle import read_bundle
from deploy.onnx_file import read_onnx
from deploy.policy import OnnxPolicy
from real.contract import PolicyContract
from real.errors import FerryError
from real.memory import HiddenState
from real.spec import load_robot
from sim.task import action_spec, observation_spec
from tests.training.short_run import short_config
from training.export import GOLDEN_ROWS, ExportError, export_policy
from training.networks import ActorCritic, NetworkConfig
from training.normalizer import Moments
from training.parity import Recording

pytestmark = pytest.mark.slow  # torch's exporter takes seconds to import and to run

CONFIG = short_config()
ROBOT = load_robot("a1")
SPEC = observation_spec(CONFIG, ROBOT)
STEPS, WORLDS, H = 64, 16, 24


def contract(size: int = H) -> PolicyContract:
    return PolicyContract.of_robot(
        ROBOT,
        observation=SPEC,
        action=action_spec(CONFIG, ROBOT),
        command=CONFIG.command.limits(),
        state=HiddenState.zeros(size),
    )


@functools.cache
def recording(seed: int = 0) -> Recording:
    """Observations that drift like a walk, so that what is remembered matters."""
    rng = np.random.default_rng(seed)
    walk = np.cumsum(rng.normal(size=(STEPS, WORLDS, SPEC.dim)), axis=0)
    return Recording(walk.astype(np.float32), rng.random((STEPS, WORLDS)) < 0.03)


@functools.cache
def policy() -> ActorCritic:
    config = NetworkConfig.model_validate({"hidden": (32, 16), "gru": H})
    module = ActorCritic(SPEC.dim, SPEC.dim, action_dim=12, config=config, seed=1)
    with torch.no_grad():
        module.actor[-1].weight.mul_(100.0)  # a fresh policy hardly moves
        module.log_std.copy_(torch.linspace(-2.0, 0.5, 12))
    module.obs_norm.update(Moments.of(torch.from_numpy(recording(5).rows)))
    return module.eval()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "p.onnx"
    report = export_policy(policy(), contract(), observations=recording(), path=path)
    return report, read_bundle(path)


def test_the_state_is_in_graph_and_contract_and_people_are_told(exported):
    _, bundle = exported
    assert bundle.contract == contract()
    assert bundle.contract.hidden_size == H
    assert bundle.contract.state == HiddenState("hidden", "hidden_next", (0.0,) * H)
    assert bundle.rows()["remembers"] == "hidden[24] -> hidden_next[24], begins with 0"
    assert {"Sigmoid", "Tanh"} <= set(read_onnx(bundle.model_bytes).operators)


def test_a_life_with_resets_is_the_same_as_in_torch(exported):
    """By hand, on others than the recording that was compared at the export."""
    report, bundle = exported
    assert 0.0 <= report.max_error <= 1e-5
    assert report.observations == STEPS * WORLDS
    runs, lived = OnnxPolicy(bundle), recording(9)
    hidden, kept = torch.zeros(WORLDS, H), np.zeros((WORLDS, H), dtype=np.float32)
    for obs, ended in zip(lived.observations, lived.ended, strict=True):
        with torch.no_grad():
            mean, log_std, hidden = policy()(torch.from_numpy(obs), hidden)
        found, spread, kept = runs.advance(obs, kept)
        np.testing.assert_allclose(found, mean, atol=1e-5, rtol=0)
        np.testing.assert_allclose(spread, log_std.detach(), atol=1e-6, rtol=0)
        np.testing.assert_allclose(kept, hidden, atol=1e-5, rtol=0)
        hidden[torch.from_numpy(ended)] = 0.0
        kept[ended] = 0.0
    assert lived.ended.any()


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_any_number_of_robots_gets_what_each_alone_would_get(exported, rows):
    _, bundle = exported
    obs = recording(2).observations[40][:rows]
    hidden = np.random.default_rng(1).uniform(-1, 1, (rows, H)).astype(np.float32)
    runs = OnnxPolicy(bundle)
    together = runs.advance(obs, hidden)
    assert [x.shape for x in together] == [(rows, 12), (rows, 12), (rows, H)]
    for row in range(rows):
        alone = runs.advance(obs[row : row + 1], hidden[row : row + 1])
        for x, y in zip(alone, together, strict=True):
            np.testing.assert_allclose(x[0], y[row], atol=1e-5)


def test_golden_vectors_hold_states_of_the_middle_of_a_life(exported):
    _, bundle = exported
    golden = bundle.golden
    assert golden.hidden.shape == golden.hidden_next.shape == (GOLDEN_ROWS, H)
    assert np.abs(golden.hidden[1:]).max() > 0.1
    with torch.no_grad():
        given = torch.from_numpy(golden.observation), torch.from_numpy(golden.hidden)
        mean, _, following = policy()(*given)
    np.testing.assert_allclose(golden.mean, mean, atol=1e-5)
    np.testing.assert_allclose(golden.hidden_next, following, atol=1e-5)


def test_asking_without_the_state_or_with_one_of_another_size_is_refused(exported):
    runs = OnnxPolicy(exported[1])
    obs = recording().observations[0]
    with pytest.raises(FerryError, match="remembers 24 numbers"):
        runs.infer(obs)
    with pytest.raises(FerryError, match=r"hidden state of shape \(16, 23\)"):
        runs.advance(obs, np.zeros((WORLDS, H - 1), dtype=np.float32))


# ------------------------------------------------------------------ what must not leave


def refused(tmp_path, **changes) -> str:
    given = {"module": policy(), "contract": contract(), "observations": recording(), **changes}
    with pytest.raises(FerryError) as error:
        export_policy(
            given["module"],
            given["contract"],
            observations=given["observations"],
            path=tmp_path / "p.onnx",
        )
    assert list(tmp_path.iterdir()) == []
    return str(error.value)


@pytest.mark.parametrize("size", [0, 23])
def test_a_memory_that_the_contract_does_not_know_is_refused(tmp_path, size):
    words = f"remembers 24 numbers, its contract says {size}"
    assert words in refused(tmp_path, contract=contract(size))


def test_a_memory_that_the_network_does_not_have_is_refused(tmp_path):
    plain = ActorCritic(SPEC.dim, SPEC.dim, action_dim=12, config=NetworkConfig(hidden=(8,)))
    plain.obs_norm.update(Moments.of(torch.from_numpy(recording().rows)))
    words = "remembers 0 numbers, its contract says 24"
    assert words in refused(tmp_path, module=plain)


def test_observations_without_their_order_or_of_too_few_worlds_are_refused(tmp_path):
    assert "over lives" in refused(tmp_path, observations=recording().rows)
    long = recording().rows.reshape(-1, 2, SPEC.dim)
    two = Recording(long, np.zeros(long.shape[:2], dtype=bool))
    assert "at least 3" in refused(tmp_path, observations=two)


def test_a_state_that_does_not_begin_with_zeros_is_begun_with_in_the_comparison(tmp_path):
    state = HiddenState("hidden", "hidden_next", tuple(np.linspace(-0.5, 0.5, H).tolist()))
    other = dataclasses.replace(contract(), state=state)
    report = export_policy(policy(), other, observations=recording(), path=tmp_path / "p.onnx")
    assert read_bundle(report.path).contract.state == state
    first = read_bundle(report.path).golden.hidden
    np.testing.assert_allclose(first[0], state.initial, atol=1e-7)


def test_export_error_is_a_user_error():
    assert issubclass(ExportError, FerryError)
