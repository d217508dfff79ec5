from __future__ import annotations

import numpy as np
import pytest

from deploy.bundle import read_bundle
from deploy.policy import OnnxPolicy
from real.errors import FerryError
from tests.deploy.stand_bundle import stand_contract, write_bundle


@pytest.fixture
def policy(tmp_path) -> OnnxPolicy:
    return OnnxPolicy(read_bundle(write_bundle(tmp_path / "p.onnx", gain=0.5)))


@pytest.mark.parametrize("rows", [1, 2, 7, 300])
def test_any_number_of_robots_gets_the_answers_that_each_alone_would_get(policy, rows):
    dim = policy.contract.observation.dim
    observation = np.random.default_rng(rows).normal(size=(rows, dim)).astype(np.float32)
    mean, log_std = policy.infer(observation)
    # mean = 0.5 * the first A numbers; log_std = -1 everywhere: see the bundle.
    assert np.allclose(mean, 0.5 * observation[:, :12], atol=1e-6)
    assert np.array_equal(log_std, np.full((rows, 12), -1.0, dtype=np.float32))
    for row in range(0, rows, 50):
        alone, _ = policy.infer(observation[row : row + 1])
        assert np.allclose(alone[0], mean[row], atol=1e-6)


def test_the_same_observation_always_gets_the_same_answer(policy):
    observation = np.ones((3, policy.contract.observation.dim), dtype=np.float32)
    first, _ = policy.infer(observation)
    for _ in range(100):
        again, _ = policy.infer(observation)
        assert np.array_equal(again, first)


def test_answers_are_new_arrays(policy):
    observation = np.ones((1, policy.contract.observation.dim), dtype=np.float32)
    first, _ = policy.infer(observation)
    kept = first.copy()
    policy.infer(2.0 * observation)
    assert np.array_equal(first, kept)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (1, 2, 3)])
def test_an_observation_of_another_shape_is_refused_with_both_shapes(policy, shape):
    dim = policy.contract.observation.dim
    with pytest.raises(FerryError) as error:
        policy.infer(np.zeros(shape, dtype=np.float32))
    assert str(shape) in str(error.value)
    assert f"(N, {dim})" in str(error.value)


def test_the_policy_carries_the_contract_of_its_bundle(policy):
    assert policy.contract == stand_contract()
    assert policy.contract is policy.bundle.contract
