"""A gated recurrent unit: one step for acting, whole sequences with resets inside for learning."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Gru(nn.Module):
    """A layer that remembers: ``x [N, D], h [N, H] -> h' [N, H]``, and h' is its output, too.

    Gates r (reset), z (update) and candidate n, in the order of the rows of the weights::

        r  = sigmoid(W_r x + b_r + U_r h + c_r)
        z  = sigmoid(W_z x + b_z + U_z h + c_z)
        n  = tanh(W_n x + b_n + r (U_n h + c_n))
        h' = n + z (h - n)

    Source: Cho et al., "Learning phrase representations using RNN encoder-decoder for statistical
    machine translation", 2014, in the variant of cuDNN and :class:`torch.nn.GRU`, whose names and
    layout the parameters have. What it remembers is within -1 and 1 if it starts there.

    Args:
        inputs: D.
        size: H.
        generator: draws the initial weights.
    """

    def __init__(self, inputs: int, size: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.inputs, self.size = inputs, size
        self.weight_ih = nn.Parameter(torch.empty(3 * size, inputs))
        self.weight_hh = nn.Parameter(torch.empty(3 * size, size))
        self.bias_ih = nn.Parameter(torch.zeros(3 * size))
        self.bias_hh = nn.Parameter(torch.zeros(3 * size))
        # Each gate's own matrix is orthogonal: what is remembered neither grows nor fades through
        # it. Saxe et al., "Exact solutions to the nonlinear dynamics of learning", 2014.
        for weight in (self.weight_ih, self.weight_hh):
            for gate in weight.data.split(size):
                nn.init.orthogonal_(gate, generator=generator)

    def initial(self, num: int) -> Tensor:
        """``[N, H]`` what is remembered when an episode begins: zeros."""
        return self.bias_hh.new_zeros(num, self.size)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        """One step: ``[N, D], [N, H] -> [N, H]``."""
        from_x = nn.functional.linear(x, self.weight_ih, self.bias_ih)
        from_h = nn.functional.linear(hidden, self.weight_hh, self.bias_hh)
        x_r, x_z, x_n = from_x.chunk(3, dim=-1)
        h_r, h_z, h_n = from_h.chunk(3, dim=-1)
        r, z = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
        n = torch.tanh(x_n + r * h_n)
        return n + z * (hidden - n)

    def sequence(self, x: Tensor, hidden: Tensor, *, ended: Tensor) -> Tensor:
        """T steps of B sequences, each of which may begin anew any number of times.

        Args:
            x: ``[T, B, D]``.
            hidden: ``[B, H]`` what is remembered before the first step.
            ended: ``[T, B]`` bool; whether an episode ended with step t, so that step t + 1
                remembers nothing. What it says of the last step changes nothing.

        Returns:
            ``[T, B, H]`` outputs, with gradients for ``x``, ``hidden`` and the weights.
        """
        keep = (~ended).to(x.dtype).unsqueeze(-1)  # [T, B, 1]
        weights = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        if torch.is_grad_enabled():
            return _Sequence.apply(x, hidden, keep, *weights)  # pyright: ignore[reportReturnType]
        return _run(x, hidden, keep, weights)[0]

    def extra_repr(self) -> str:
        """Sizes, for people."""
        return f"{self.inputs}, {self.size}"


_Weights = tuple[Tensor, Tensor, Tensor, Tensor]


def _run(
    x: Tensor, hidden: Tensor, keep: Tensor, weights: _Weights
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Outputs, states before each step, r and z, n, ``U_n h + c_n``: ``[T, B, .]`` each."""
    steps, num, _ = x.shape
    size = hidden.shape[1]
    weight_ih, weight_hh, bias_ih, bias_hh = weights
    flat = x.reshape(steps * num, -1)
    # What x contributes is the same whatever is remembered: one product for all steps.
    bias = bias_ih[: 2 * size] + bias_hh[: 2 * size]
    rz = torch.addmm(bias, flat, weight_ih[: 2 * size].t()).view(steps, num, 2 * size)
    n = torch.addmm(bias_ih[2 * size :], flat, weight_ih[2 * size :].t()).view(steps, num, size)
    before, out, h_n = torch.empty_like(n), torch.empty_like(n), torch.empty_like(n)
    gates, candidate = weight_hh[: 2 * size].t(), weight_hh[2 * size :].t()
    before[0] = hidden
    for t in range(steps):
        h, rz_t, n_t = before[t], rz[t], n[t]
        rz_t.addmm_(h, gates).sigmoid_()
        torch.addmm(bias_hh[2 * size :], h, candidate, out=h_n[t])
        n_t.addcmul_(rz_t[:, :size], h_n[t]).tanh_()
        torch.lerp(n_t, h, rz_t[:, size:], out=out[t])
        if t + 1 < steps:
            torch.mul(out[t], keep[t], out=before[t + 1])
    return out, before, rz, n, h_n


class _Sequence(torch.autograd.Function):
    """:func:`_run` with its gradient by hand: a quarter of the operations that recording makes.

    All factors that do not depend on the gradient are computed for all steps at once, and so are
    the weights' gradients; what remains in the loop is the way of the gradient back in time.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, hidden: Tensor, keep: Tensor, *weights: Tensor) -> Tensor:
        weight_ih, weight_hh, bias_ih, bias_hh = weights
        out, *kept = _run(x, hidden, keep, (weight_ih, weight_hh, bias_ih, bias_hh))
        ctx.save_for_backward(x, keep, weight_ih, weight_hh, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, keep, weight_ih, weight_hh, before, rz, n, h_n = ctx.saved_tensors
        steps, num, size = n.shape
        (d_out,) = grads
        r, z = rz[..., :size], rz[..., size:]
        # Gradients before the gates per gradient of h': of U_n h + c_n, r, z, n. In this order the
        # first three are those of what h contributes, the last three those of what x does.
        factor = n.new_empty(steps, num, 4, size)
        d_n = (1.0 - z) * (1.0 - n * n)
        factor[:, :, 0] = d_n * r
        factor[:, :, 1] = d_n * h_n * r * (1.0 - r)
        factor[:, :, 2] = (before - n) * z * (1.0 - z)
        factor[:, :, 3] = d_n
        weight = torch.cat((weight_hh[2 * size :], weight_hh[: 2 * size]))  # rows n, r, z
        d_hidden = torch.zeros_like(before[0])
        for t in range(steps - 1, -1, -1):
            d = torch.addcmul(d_out[t], d_hidden, keep[t])
            factor[t] *= d.unsqueeze(1)
            d_hidden = torch.addmm(d * z[t], factor[t].view(num, 4 * size)[:, : 3 * size], weight)
        flat = factor.view(steps * num, 4 * size)
        of_h, of_x = flat[:, : 3 * size], flat[:, size:]
        d_x = (of_x @ weight_ih).view_as(x) if ctx.needs_input_grad[0] else None
        d_weight_hh = _rolled(of_h.t() @ before.reshape(steps * num, size), size)
        d_weight_ih = of_x.t() @ x.reshape(steps * num, -1)
        d_bias_hh, d_bias_ih = _rolled(of_h.sum(0), size), of_x.sum(0)
        return d_x, d_hidden, None, d_weight_ih, d_weight_hh, d_bias_ih, d_bias_hh


def _rolled(rows: Tensor, size: int) -> Tensor:
    """Rows n, r, z in the order r, z, n."""
    return torch.roll(rows, -size, dims=0)
