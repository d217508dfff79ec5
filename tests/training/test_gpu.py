"""The same learning on a GPU, and copies that hide behind it. What runs on CPUs too, runs there."""

from __future__ import annotations

import dataclasses
import gc

import numpy as np
import pytest
import torch

from real.rollout import Rollout
from tests.training import recurrent_case
from tests.training.learner_case import made_up, state_of
from tests.training.toy_run import FRAGMENT, toy_config, toy_env
from training.checkpoint import newest_checkpoint
from training.learner import Learner
from training.networks import NetworkConfig
from training.ppo import Batch, Ppo, PpoConfig
from training.prepare import Preparation
from training.staging import Staging, chosen_device
from training.train import train

DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]

#: float32 sums in another order: relative to losses of about 1.
FLOAT32 = 1e-4
#: bfloat16 has 8 bits: each of four layers rounds by 2^-9, and errors of many samples cancel.
BF16 = 2e-2


def learner(device: str, **ppo) -> Learner:
    return Learner(
        4,
        5,
        action_dim=2,
        network=NetworkConfig(hidden=(64, 64), critic_hidden=(64, 64)),
        ppo=PpoConfig(**ppo),
        seed=0,
        device=chosen_device(device),
    )


def rollouts() -> list[Rollout]:
    return [made_up(learner("cpu"), seed, num=40) for seed in range(2)]


def losses(device: str, **ppo) -> tuple[dict[str, float], torch.Tensor, torch.Tensor]:
    """Losses of a fixed batch, without a step before them, and their gradients."""
    made = learner(device, epochs=1, minibatches=1, desired_kl=None, max_grad_norm=1e9, **ppo)
    _, metrics = made.update(rollouts())
    names = ("ppo/surrogate", "ppo/value_loss", "ppo/kl", "ppo/grad_norm", "ppo/critic_grad_norm")
    adams = made._ppo.actor_adam, made._ppo.critic_adam
    return {name: metrics[name] for name in names}, *(adam.grad.cpu() for adam in adams)


@pytest.mark.gpu
@pytest.mark.parametrize("autograd", [False, True])
def test_losses_and_gradients_of_a_fixed_batch_are_those_of_the_cpu(autograd):
    here, there = losses("cpu", autograd=autograd), losses("cuda", autograd=autograd)
    for name, value in here[0].items():
        assert there[0][name] == pytest.approx(value, rel=FLOAT32, abs=FLOAT32), name
    for one, other in zip(here[1:], there[1:], strict=True):
        assert (one - other).norm() <= FLOAT32 * one.norm()


@pytest.mark.parametrize("device", DEVICES)
def test_bfloat16_stays_within_its_bound(device):
    exact, rounded = losses(device, autograd=True), losses(device, bf16=True)
    assert rounded[0] != exact[0]  # it was in use
    for name, value in exact[0].items():
        assert rounded[0][name] == pytest.approx(value, rel=BF16, abs=BF16), name
    for one, other in zip(exact[1:], rounded[1:], strict=True):
        assert (one - other).norm() <= 2.0 * BF16 * one.norm()


@pytest.mark.parametrize("device", DEVICES)
def test_updates_on_one_device_go_on_on_another_from_arrays_of_numpy(device):
    made = learner(device)
    given = rollouts()
    for _ in range(2):
        made.update(given)
    state = state_of(made)
    assert all(isinstance(array, np.ndarray) for array in state.values())
    assert {p.device.type for p in made.policy.parameters()} == {device}
    other = learner("cpu")
    other.load_state_dict(dict(made.snapshot().state), made.state_dict())
    for name, array in state_of(other).items():
        np.testing.assert_array_equal(array, state[name], err_msg=name)
    one, two = (m.update(given)[1] for m in (made, other))
    assert one["ppo/ratio_error"] == pytest.approx(two["ppo/ratio_error"], rel=1e-3, abs=1e-4)
    assert one["ppo/value_loss"] == pytest.approx(two["ppo/value_loss"], rel=1e-2, abs=1e-3)
    back = learner(device)
    back.load_state_dict(dict(other.snapshot().state), other.state_dict())
    assert back.version == 3


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_a_run_on_one_device_is_resumed_on_another(tmp_path, device):
    config = toy_config(f"training.run.device={device}")
    train(config, tmp_path, steps=3 * FRAGMENT, env_factory=toy_env)
    on_cpu = toy_config("training.run.device=cpu")
    # What was loaded is asked questions whose answers are stored, and refused if they differ.
    result = train(on_cpu, tmp_path, steps=5 * FRAGMENT, env_factory=toy_env, resume=True)
    assert result.steps == 5 * FRAGMENT
    assert newest_checkpoint(tmp_path / "checkpoints").counters["version"] == 5


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_rollouts_that_were_expected_and_those_that_were_not_are_learned_from_alike(device):
    one, two = learner(device), learner(device)
    given = rollouts()
    for rollout in given:
        one.expect(rollout)
    expected, _ = two.update(given)
    found, _ = one.update(given)
    for name, array in expected.state.items():
        np.testing.assert_allclose(found.state[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
    # Memory is given back with the rollouts.
    assert len(one._staging._begun) == (2 if device == "cuda" else 0)
    given.clear()
    del rollout
    gc.collect()
    assert one._staging._begun == {}


@pytest.mark.gpu
def test_copies_overlap_with_computing_in_the_profile():
    device = chosen_device("cuda")
    staging = Staging(device)
    small = rollouts()[0]
    big = dataclasses.replace(
        small,
        **{
            name: np.repeat(getattr(small, name), 200, axis=1)
            for name in (
                *("obs", "critic_obs", "actions", "log_probs"),
                *("rewards", "terminated", "truncated"),
            )
        },
        final_index=repeated_index(small, 200),
        final_critic_obs=np.repeat(small.final_critic_obs, 200, axis=0),
    )
    other = dataclasses.replace(big, actor_id="b")
    matrix = torch.randn(4096, 4096, device=device)

    def compute() -> None:
        for _ in range(100):
            torch.mm(matrix, matrix)

    staging.begin(big)  # pinned memory is made now: that would wait for the GPU
    staging(big)
    compute()
    torch.cuda.synchronize(device)
    staging._begun.clear()
    del big
    gc.collect()
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        compute()
        staging.begin(other)
        torch.cuda.synchronize(device)
    events = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    copies = [e.time_range for e in events if "HtoD" in e.name]
    kernels = [e.time_range for e in events if "Mem" not in e.name]
    assert len(copies) >= 5
    assert any(c.start < k.end and k.start < c.end for c in copies for k in kernels)


def repeated_index(rollout: Rollout, times: int) -> np.ndarray:
    """(t, n) of final observations once every world stands there so many times in a row."""
    t, n = np.repeat(rollout.final_index, times, axis=0).T
    return np.stack([t, n * times + np.tile(np.arange(times), len(rollout.final_index))], axis=1)


@pytest.mark.gpu
def test_a_minibatch_stays_on_the_gpu():
    made = learner("cuda")
    batch = Preparation(made.policy, made.config, staging=made._staging)(rollouts()).batch
    assert isinstance(batch, Batch)
    tensors = [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]
    assert {tensor.device.type for tensor in tensors} == {"cuda"}
    ppo = Ppo(made.policy, made.config, generator=torch.Generator().manual_seed(0))
    assert {order.rows.device.type for order in ppo._orders(batch)} == {"cuda"}


@pytest.mark.parametrize("device", DEVICES)
def test_a_policy_with_a_memory_learns_as_on_the_cpu_and_goes_on_there(device):
    """Sequences, their memories and mirror images of them, from arrays of a CPU."""

    def made(where: str) -> Learner:
        return Learner(
            2,
            3,
            action_dim=1,
            network=recurrent_case.network(),
            ppo=PpoConfig(epochs=2, minibatches=2, returns="vtrace"),
            seed=0,
            mirror=recurrent_case.mirror(),
            device=chosen_device(where),
        )

    here, there = made("cpu"), made(device)
    acting = recurrent_case.worker(mirrored=True)
    given = [acting.collect(here.snapshot(), 8) for _ in range(2)]
    names = ("ppo/surrogate", "ppo/value_loss", "ppo/kl", "ppo/grad_norm", "ppo/critic_grad_norm")
    found = {}
    for learner in (here, there):
        learner.expect(given[0])  # the other is brought there when it is asked for
        _, found[learner] = learner.update(given)
        assert found[learner]["learner/refused"] == 0.0
        assert (
            found[learner]["ppo/ratio_error"] < 1e-4
        )  # what was remembered is the right beginning
    for name in names:
        expected = pytest.approx(found[here][name], rel=100 * FLOAT32, abs=100 * FLOAT32)
        assert found[there][name] == expected, name
    back = made("cpu")
    back.load_state_dict(dict(there.snapshot().state), there.state_dict())
    for name, array in state_of(back).items():
        np.testing.assert_array_equal(array, state_of(there)[name], err_msg=name)
    assert back.update(given)[1]["learner/refused"] == 0.0
