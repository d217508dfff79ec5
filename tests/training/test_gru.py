"""The cell against torch's own, and sequences with resets against one step after another."""

from __future__ import annotations

import math

import pytest
import torch

from training.gru import Gru

D, H, T, B = 3, 4, 9, 5


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def cell(seed: int = 0) -> Gru:
    """With biases that are not zero, or nothing would tell them apart."""
    made = Gru(D, H, generator=generator(seed)).double()
    with torch.no_grad():
        made.bias_ih.copy_(normal(3 * H, seed=21))
        made.bias_hh.copy_(normal(3 * H, seed=22))
    return made


def resets(seed: int = 7) -> torch.Tensor:
    """``[T, B]``: none, one in the middle, several, at the first and the last step, at all."""
    ended = torch.zeros(T, B, dtype=torch.bool)
    ended[4, 1] = True
    ended[[2, 3, 6], 2] = True
    ended[[0, T - 1], 3] = True
    ended[:, 4] = True
    return ended


def one_by_one(made: Gru, x: torch.Tensor, hidden: torch.Tensor, ended: torch.Tensor):
    """Each sequence alone, step after step."""
    columns = []
    for b in range(x.shape[1]):
        h, out = hidden[b : b + 1], []
        for t in range(x.shape[0]):
            h = made(x[t, b : b + 1], h)
            out.append(h)
            if ended[t, b]:
                h = made.initial(1)
        columns.append(torch.cat(out))
    return torch.stack(columns, dim=1)


def test_a_step_by_hand():
    made = Gru(1, 1, generator=generator()).double()
    with torch.no_grad():
        made.weight_ih.copy_(torch.tensor([[0.5], [-1.0], [2.0]]))
        made.weight_hh.copy_(torch.tensor([[1.0], [0.5], [-1.0]]))
        made.bias_ih.copy_(torch.tensor([0.1, 0.2, 0.3]))
        made.bias_hh.copy_(torch.tensor([-0.2, 0.0, 0.5]))
    x, h = torch.tensor([[0.4]]).double(), torch.tensor([[0.8]]).double()
    # r = s(.2 + .1 + .8 - .2), z = s(-.4 + .2 + .4), n = tanh(.8 + .3 + r (-.8 + .5))
    r, z = 1 / (1 + math.exp(-0.9)), 1 / (1 + math.exp(-0.2))
    n = math.tanh(1.1 - 0.3 * r)
    assert made(x, h).item() == pytest.approx((1 - z) * n + z * 0.8, rel=1e-6)


def test_a_step_is_torchs_own():
    made, theirs = cell(), torch.nn.GRUCell(D, H, dtype=torch.float64)
    with torch.no_grad():
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(theirs, name).copy_(getattr(made, name))
    x, h = normal(B, D, seed=1), normal(B, H, seed=2)
    torch.testing.assert_close(made(x, h), theirs(x, h), rtol=1e-12, atol=1e-12)


def test_a_sequence_with_resets_is_one_step_after_another_and_so_is_its_gradient():
    ended, weight = resets(), normal(T, B, H, seed=5)
    grads = []
    for run in (
        lambda made, x, h: made.sequence(x, h, ended=ended),
        lambda made, x, h: one_by_one(made, x, h, ended),
    ):
        made = cell()
        x, h = normal(T, B, D, seed=3).requires_grad_(), normal(B, H, seed=4).requires_grad_()
        out = run(made, x, h)
        (out * weight).sum().backward()
        grads.append([out.detach(), x.grad, h.grad, *(p.grad for p in made.parameters())])
    for found, expected in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert all(g.abs().max() > 1e-3 for g in grads[0])


def test_without_gradients_the_numbers_are_the_same():
    made, x, h = cell(), normal(T, B, D, seed=3), normal(B, H, seed=4)
    with torch.no_grad():
        plain = made.sequence(x, h, ended=resets())
    assert torch.equal(plain, made.sequence(x, h, ended=resets()))


def test_the_gradient_is_that_of_finite_differences():
    made = cell()
    x, h = normal(4, 2, D, seed=3).requires_grad_(), normal(2, H, seed=4).requires_grad_()
    ended = torch.tensor([[False, False], [True, False], [False, True], [False, True]])

    def run(x, h, *_):
        return made.sequence(x, h, ended=ended)

    assert torch.autograd.gradcheck(run, (x, h, *made.parameters()))


def test_nothing_comes_through_a_reset():
    made, x, h = cell(), normal(T, B, D, seed=3).requires_grad_(), normal(B, H, seed=4)
    ended = torch.zeros(T, B, dtype=torch.bool)
    ended[3] = True
    made.sequence(x, h, ended=ended)[4:].sum().backward()
    assert x.grad is not None
    assert not x.grad[:4].any()
    assert x.grad[4:].abs().min() > 0.0


def test_two_parts_are_the_whole_if_the_second_begins_with_what_the_first_left():
    made, x, h = cell(), normal(T, B, D, seed=3), normal(B, H, seed=4)
    for cut in range(1, T):
        whole = made.sequence(x, h, ended=resets())
        first = made.sequence(x[:cut], h, ended=resets()[:cut])
        left = torch.where(resets()[cut - 1].unsqueeze(1), made.initial(B), first[-1])
        second = made.sequence(x[cut:], left, ended=resets()[cut:])
        torch.testing.assert_close(torch.cat((first, second)), whole, rtol=1e-12, atol=1e-12)


def test_what_is_remembered_stays_within_one():
    made = cell()
    out = made.sequence(
        1e6 * normal(T, B, D, seed=3), made.initial(B), ended=torch.zeros(T, B, dtype=torch.bool)
    )
    assert out.abs().max() <= 1.0


def test_initial_weights_are_orthogonal_per_gate_and_draw_from_no_global_generator():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    made = Gru(D, H, generator=generator(5))
    assert torch.equal(torch.get_rng_state(), before)
    for gate in made.weight_hh.detach().split(H):
        torch.testing.assert_close(gate @ gate.T, torch.eye(H))
    again = Gru(D, H, generator=generator(5))
    assert torch.equal(made.weight_ih, again.weight_ih)
    assert not torch.equal(made.weight_ih, Gru(D, H, generator=generator(6)).weight_ih)
