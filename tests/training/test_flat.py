"""One vector for all parameters: the steps of torch's Adam, and where the weights are."""

from __future__ import annotations

import pytest
import torch

from tests.training.ppo_case import C, D, normal, parameters, policy
from training.flat import FlatAdam


@pytest.mark.slow
def test_the_flat_optimiser_takes_the_steps_of_torch_adam():
    ours, theirs = policy(3), policy(3)
    flat = FlatAdam(ours.named_parameters(), learning_rate=1e-2)
    adam = torch.optim.Adam(theirs.parameters(), lr=1e-2)
    for step in range(5):
        obs, critic_obs = 5.0 * normal(8, D, seed=step), 5.0 * normal(8, C, seed=step)
        for module, zero in ((ours, flat.zero_grad), (theirs, adam.zero_grad)):
            zero()
            loss = module.mean(obs).square().sum() + (module.value(critic_obs) - 9).square().sum()
            (loss + module.log_std.sum()).backward()
        norm = flat.clip_grad(1.0)
        expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        assert norm == pytest.approx(expected.item(), rel=1e-5)
        assert norm > 1.0  # the bound was in force
        flat.step()
        adam.step()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=name)


def test_a_gradient_within_the_bound_is_left_alone():
    module = policy()
    flat = FlatAdam(module.named_parameters(), learning_rate=1e-3)
    flat.grad[5] = 0.5
    assert flat.clip_grad(1.0) == 0.5
    assert flat.grad[5] == 0.5


def test_loading_weights_into_the_module_reaches_the_optimiser():
    module = policy(1)
    flat = FlatAdam(module.named_parameters(), learning_rate=1e-3)
    module.load_state_dict(policy(2).state_dict())
    torch.testing.assert_close(flat.values.detach(), parameters(policy(2)))
