"""Where a learner computes: which device is taken, and that no tensor is left on another one."""

from __future__ import annotations

import gc

import pytest
import torch

import training.learner
import training.ppo
import training.prepare
from real.errors import FerryError
from tests.training.learner_case import assert_same, learner, made_up, state_of
from tests.training.ppo_case import D, policy
from training.learner import Learner
from training.networks import NetworkConfig
from training.normalizer import Moments
from training.popart import ReturnNorm
from training.ppo import PpoConfig
from training.staging import Staging, chosen_device
from training.symmetry import Mirror, SignedPermutation


def test_the_device_is_cuda_where_there_is_one_unless_told_otherwise(monkeypatch):
    assert chosen_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert chosen_device("auto") == torch.device("cpu")
    with pytest.raises(FerryError, match=r"training\.run\.device is cuda, but torch finds no"):
        chosen_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert chosen_device("cpu") == torch.device("cpu")
    assert [chosen_device(name, rank=3) for name in ("auto", "cuda")] == [
        torch.device("cuda:1")
    ] * 2
    assert chosen_device("cuda", rank=0) == torch.device("cuda:0")


def test_on_the_cpu_a_rollout_is_read_where_it_lies():
    rollout = made_up(learner(), 0)
    staging = Staging()
    staging.begin(rollout)
    staged = staging(rollout)
    for name in ("obs", "critic_obs", "actions", "log_probs", "final_critic_obs"):
        array = getattr(rollout, name)
        assert getattr(staged, name).data_ptr() == array.ctypes.data
        assert getattr(staged, name).shape == array.shape
    staging._begun[1] = None
    staging._forget(1)
    staging._forget(1)  # a rollout may go while it is asked for
    gc.collect()
    assert staging._begun == {}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"autograd": True, "returns": "decoupled", "advantage_norm": "minibatch"},
        {"bf16": True, "returns": "vtrace", "value_clip": None},
    ],
)
@pytest.mark.parametrize("network", [{}, {"squash": 2.0, "return_norm": "popart"}])
def test_everything_in_an_update_is_made_on_the_device_of_what_it_is_made_of(
    monkeypatch, options, network
):
    """What does not say where, is made on a device whose tensors have no numbers, and fails."""
    for module in (training.learner, training.ppo, training.prepare):
        # The default device is that of a thread.
        monkeypatch.setattr(module, "side_by_side", lambda one, two: (one(), two()))
    mirror = Mirror(
        SignedPermutation((1, 0, 2, 3), (1.0, 1.0, -1.0, 1.0)),
        SignedPermutation((1, 0), (1.0, 1.0)),
    )
    sizes = {"network": NetworkConfig(hidden=(8,), critic_hidden=(8,), **network)}
    learners = [
        Learner(4, 5, action_dim=2, ppo=PpoConfig(**options), seed=0, mirror=mirror, **sizes)
        for _ in range(2)
    ]
    given = [made_up(learners[0], seed, num=9) for seed in range(3)]
    weights = [1.0, 0.5, 1.0]
    expected = learners[0].update(given, weights=weights)[1]
    with torch.device("meta"):
        found = learners[1].update(given, weights=weights)[1]
    assert found == expected
    assert_same(state_of(learners[1]), state_of(learners[0]))


def test_statistics_that_were_counted_elsewhere_come_to_the_device_of_their_owner():
    """A stand-in for a device: moments remember where they were asked to go."""
    asked = []

    class Far(Moments):
        def to(self, device):
            asked.append(torch.device(device))
            return Moments(self.mean, self.var, self.count)

    seen = Moments.of(torch.randn(5, D))
    policy().obs_norm.update(Far(seen.mean, seen.var, seen.count))
    seen = Moments.of(torch.randn(5, 1))
    ReturnNorm(window=10.0).update(Far(seen.mean, seen.var, seen.count))
    assert asked == [torch.device("cpu")] * 2
