from __future__ import annotations

import math

import pytest
import torch

from training.by_hand import ByHand
from training.distributions import Categorical
from training.networks import ActorCritic, NetworkConfig
from training.ppo_config import PpoConfig

UNUSED = torch.zeros(3)
#: Probabilities 0.2, 0.3, 0.5 and 0.1, 0.6, 0.3, up to constants that a softmax does not see.
LOGITS = torch.tensor([[0.2, 0.3, 0.5], [0.1, 0.6, 0.3]]).log() + torch.tensor([[4.0], [-7.0]])
CHOICE = Categorical()


def test_log_prob_is_that_of_the_chosen_one() -> None:
    chosen = torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    expected = [math.log(0.5), math.log(0.1)]
    torch.testing.assert_close(CHOICE.log_prob(chosen, LOGITS, UNUSED), torch.tensor(expected))


def test_entropy_and_kl_by_hand() -> None:
    first = -(0.2 * math.log(0.2) + 0.3 * math.log(0.3) + 0.5 * math.log(0.5))
    second = -(0.1 * math.log(0.1) + 0.6 * math.log(0.6) + 0.3 * math.log(0.3))
    assert CHOICE.entropy(LOGITS, UNUSED).item() == pytest.approx((first + second) / 2, abs=1e-6)
    there = 0.2 * math.log(2.0) + 0.3 * math.log(0.5) + 0.5 * math.log(5 / 3)
    kl = CHOICE.kl(LOGITS[:1], UNUSED, LOGITS[1:], UNUSED)
    assert kl.item() == pytest.approx(there, abs=1e-6)
    assert CHOICE.kl(LOGITS, UNUSED, LOGITS, UNUSED).item() == pytest.approx(0.0, abs=1e-7)


def test_samples_are_as_frequent_as_their_probabilities() -> None:
    noise = torch.randn(40_000, 3, generator=torch.Generator().manual_seed(0))
    drawn = CHOICE.sample(LOGITS[0].expand(40_000, 3), UNUSED, noise=noise)
    assert (drawn.sum(-1) == 1.0).all()
    # Four standard errors of a share of 0.5 are 0.01.
    torch.testing.assert_close(drawn.mean(0), torch.tensor([0.2, 0.3, 0.5]), atol=0.01, rtol=0.0)


def test_extreme_noise_stays_finite() -> None:
    far = torch.tensor([[-30.0, 0.0, 30.0]])
    assert CHOICE.sample(torch.zeros(1, 3), UNUSED, noise=far).tolist() == [[0.0, 0.0, 1.0]]


def test_the_likeliest_is_what_acts_without_exploration() -> None:
    assert CHOICE.squash(LOGITS).tolist() == [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]


def test_the_closed_form_leaves_it_to_autograd() -> None:
    network = NetworkConfig(hidden=(4,), critic_hidden=(4,))
    for discrete in (False, True):
        config = network.model_copy(update={"discrete": discrete})
        policy = ActorCritic(2, 2, action_dim=3, config=config)
        assert ByHand.suits(policy, PpoConfig()) is not discrete
