"""Two learners do what one does with the samples of both; a lost one is noticed, not awaited."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import socket
from pathlib import Path

import numpy as np
import pytest
import torch

from real.errors import FerryError
from real.rollout import Rollout
from training.learner import Learner
from training.networks import NetworkConfig, gaussian_log_prob
from training.normalizer import Moments
from training.parallel import (
    ALONE,
    LearnerLostError,
    Learners,
    join_learners,
    leave_learners,
)
from training.ppo import PpoConfig
from training.symmetry import Mirror, SignedPermutation

UPDATES = 3
WORLDS = (10, 6)  # of the two learners: their shares of a minibatch differ

#: What is trained, by name: settings of PPO, of the network, and whether with mirror images.
CASES = {
    "default": ({}, {}, False),
    "mirrored": ({"returns": "vtrace"}, {}, True),
    "minibatch": ({"advantage_norm": "minibatch", "returns": "decoupled"}, {}, False),
    # It stops by KL at this step size. At a larger one so is what Adam makes of rounding, where a
    # gradient is almost zero.
    "popart": ({"stop_kl": 0.003, "learning_rate": 1e-3}, {"return_norm": "popart"}, False),
    "recurrent": ({"returns": "vtrace"}, {"gru": 6, "critic_gru": 5}, True),
    "tiny": ({"minibatches": 40, "desired_kl": None}, {"squash": 2.0}, False),
}


def made(case: str, learners: Learners = ALONE) -> Learner:
    ppo, network, mirrored = CASES[case]
    mirror = Mirror(
        SignedPermutation((1, 0, 2, 3), (1.0, 1.0, -1.0, 1.0)),
        SignedPermutation((1, 0), (1.0, 1.0)),
    )
    return Learner(
        4,
        5,
        action_dim=2,
        network=NetworkConfig.model_validate({"hidden": (16,), "critic_hidden": (16,), **network}),
        ppo=PpoConfig(**{"entropy_coef": 0.01, **ppo}),
        seed=0,
        mirror=mirror if mirrored else None,
        learners=learners,
    )


def rollout(rank: int, update: int, *, steps: int = 5) -> Rollout:
    """Data of one learner; the two differ in size and in every mean."""
    rng = np.random.default_rng((rank, update))
    num = WORLDS[rank]

    def draw(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) + rank).astype(np.float32)

    actions = 0.5 * draw(steps, num, 2)
    density = gaussian_log_prob(torch.from_numpy(actions), torch.zeros(2), torch.zeros(2))
    ended = rng.random((steps, num))
    index = np.argwhere(ended < 0.1)
    return Rollout(
        obs=draw(steps + 1, num, 4),
        critic_obs=draw(steps + 1, num, 5),
        actions=actions,
        log_probs=density.numpy(),
        rewards=draw(steps, num),
        terminated=ended > 0.9,
        truncated=ended < 0.1,
        final_index=index,
        final_critic_obs=draw(len(index), 5),
        policy_version=0,
        actor_id=f"actor-{rank}",
        # Read by a policy with a memory alone.
        hidden=np.tanh(draw(num, 6)),
        critic_hidden=np.tanh(draw(num, 5)),
        mirror_hidden=np.tanh(draw(num, 6)),
    )


def everything(learner: Learner) -> dict[str, np.ndarray]:
    return {**learner.snapshot().state, **learner.state_dict()}


def learn(rank: int, address: str, folder: Path) -> None:
    """One of two learners; at the end the second dies in the middle of things."""
    torch.set_num_threads(1)
    group = join_learners(address, rank=rank, size=2, timeout_s=60.0)
    for case in CASES:
        learner = made(case, group)
        for update in range(UPDATES):
            _, metrics = learner.update([rollout(rank, update)])
        state = everything(learner)
        names = {f"metric {name}": np.array(value) for name, value in metrics.items()}
        np.savez(folder / f"{case}_{rank}.npz", **state, **names)

    learner = made("default", group)
    learner.update([rollout(rank, 0)])
    bad = rollout(rank, 1)
    if rank == 1:
        bad = dataclasses.replace(bad, rewards=np.full_like(bad.rewards, np.nan))
    before = everything(learner)
    _, metrics = learner.update([bad])
    after = everything(learner)
    after.pop("refused"), before.pop("refused")
    same = all(np.array_equal(before[name], after[name]) for name in before)
    np.savez(folder / f"refused_{rank}.npz", refused=metrics["learner/refused"], same=same)

    if rank == 1:
        os._exit(9)
    try:
        learner.update([rollout(rank, 2)])
    except LearnerLostError as error:
        same = all(np.array_equal(before[n], everything(learner)[n]) for n in before)
        np.savez(folder / "lost.npz", message=str(error), same=same)
    leave_learners()


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("learners")
    context = multiprocessing.get_context("spawn")
    address = f"127.0.0.1:{free_port()}"
    both = [context.Process(target=learn, args=(rank, address, folder)) for rank in (0, 1)]
    for process in both:
        process.start()
    for process in both:
        process.join(timeout=240.0)
        process.kill()
    assert [process.exitcode for process in both] == [0, 9]
    return folder


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_learners_equal_one_with_the_samples_of_both(results, case):
    alone = made(case)
    metrics: dict[str, float] = {}
    for update in range(UPDATES):
        _, metrics = alone.update([rollout(0, update), rollout(1, update)])
    expected = everything(alone)
    for rank in (0, 1):
        found = np.load(results / f"{case}_{rank}.npz")
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-6, atol=1e-6, err_msg=name)
        for name, value in metrics.items():
            np.testing.assert_allclose(
                found[f"metric {name}"], value, rtol=1e-4, atol=1e-5, err_msg=name
            )


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_both_end_with_the_same_bits_and_statistics_of_every_sample(results, case):
    one, two = (dict(np.load(results / f"{case}_{rank}.npz")) for rank in (0, 1))
    for name, array in one.items():
        np.testing.assert_array_equal(array, two[name], err_msg=name)
    raw = [rollout(rank, u).obs[:-1].reshape(-1, 4) for rank in (0, 1) for u in range(UPDATES)]
    pooled = np.concatenate(raw).astype(np.float64)
    assert one["obs_norm.count"] == len(pooled) == 5 * sum(WORLDS) * UPDATES
    np.testing.assert_allclose(one["obs_norm.mean"], pooled.mean(0), rtol=1e-12)
    np.testing.assert_allclose(one["obs_norm.var"], pooled.var(0), rtol=1e-12)


@pytest.mark.slow
def test_what_one_learner_refuses_both_refuse(results):
    for rank in (0, 1):
        found = np.load(results / f"refused_{rank}.npz")
        assert found["refused"] == 1.0
        assert found["same"]


@pytest.mark.slow
def test_a_learner_that_dies_is_noticed_and_the_other_keeps_what_it_had(results):
    found = np.load(results / "lost.npz")
    assert "another learner ended or hangs" in str(found["message"])
    assert found["same"]


def test_a_learner_alone_holds_everything_and_sends_nothing():
    place = ALONE.place(7)
    assert (place.start, place.own, place.total) == (0, 7, 7)
    numbers = torch.tensor([1.0, 2.0])
    ALONE.actor.sum_(numbers)
    assert numbers.tolist() == [1.0, 2.0]
    own = Moments.of(torch.randn(5, 3))
    assert ALONE.critic.moments(own) is own
    assert ALONE.actor.max(-4.0) == -4.0


@pytest.mark.slow
def test_learners_that_do_not_come_are_not_awaited_for_ever():
    with pytest.raises(LearnerLostError, match="learner 0 of 2 met not all others"):
        join_learners(f"127.0.0.1:{free_port()}", rank=0, size=2, timeout_s=1.0)
    leave_learners()


def meet(rank: int, address: str) -> None:
    group = join_learners(address, rank=rank, size=2, timeout_s=60.0)
    numbers = torch.tensor([1.0 + rank])
    group.critic.sum_(numbers)
    leave_learners()
    assert numbers.item() == 3.0


@pytest.mark.slow
def test_after_a_meeting_that_failed_the_next_one_with_a_new_process_does_not():
    with pytest.raises(LearnerLostError):
        join_learners(f"127.0.0.1:{free_port()}", rank=0, size=2, timeout_s=1.0)
    address = f"127.0.0.1:{free_port()}"
    other = multiprocessing.get_context("spawn").Process(target=meet, args=(1, address))
    other.start()
    try:
        meet(0, address)
        other.join(timeout=60.0)
        assert other.exitcode == 0
    finally:
        other.kill()


def test_an_impossible_rank_is_refused():
    with pytest.raises(FerryError, match="learner rank 2 of 2; expected 0 to 1"):
        join_learners("127.0.0.1:1", rank=2, size=2)
