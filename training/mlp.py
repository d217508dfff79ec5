"""An MLP's forward and backward pass by hand: the arithmetic of autograd, and less around it.

On networks of this size a third of an update is not matrix products: it is ELU, whose ``expm1``
torch computes slowly on CPUs, and the handling of many small tensors. Here ELU is three passes
over memory, its derivative is a by-product, gradients go where the optimiser reads them, and no
buffer is made twice. Autograd remains the reference, and does whatever is not here.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

#: Rows that pass through all layers together where no gradient is wanted: larger arrays between
#: the layers would be handed back to the system, and cost as much to get as to fill.
_CHUNK = 1024


def is_plain(network: nn.Module) -> bool:
    """Whether a network is linear layers with biases, and ELU between."""
    if not isinstance(network, nn.Sequential) or len(network) % 2 == 0:
        return False
    linear, between = list(network)[::2], list(network)[1::2]
    return all(isinstance(m, nn.Linear) and m.bias is not None for m in linear) and all(
        isinstance(m, nn.ELU) and m.alpha == 1.0 for m in between
    )


class MlpPasses:
    """The passes of one network, in buffers of their own: for one thread.

    Args:
        network: for which :func:`is_plain` holds. Its parameters are read and written in place,
            so they may be loaded or moved into other memory at any time.
    """

    def __init__(self, network: nn.Module) -> None:
        assert isinstance(network, nn.Sequential)
        assert is_plain(network)
        self._layers = [m for m in network if isinstance(m, nn.Linear)]
        self._rows = 0
        self._inputs: list[Tensor] = []  # of each layer, ``[b, in]``
        self._slopes: list[Tensor] = []  # ELU' - 1 behind each layer but the last, ``[b, out]``
        self._buffers: list[tuple[Tensor, Tensor]] = []  # output and slope of each layer

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """``[b, in] -> [b, out]``; the next call overwrites it."""
        buffers = self._sized(x)
        self._inputs, self._slopes = [x], []
        for layer, (out, slope) in zip(self._layers[:-1], buffers[:-1], strict=True):
            _elu_(torch.addmm(layer.bias, self._inputs[-1], layer.weight.t(), out=out), slope)
            self._inputs.append(out)
            self._slopes.append(slope)
        last = self._layers[-1]
        return torch.addmm(last.bias, self._inputs[-1], last.weight.t(), out=buffers[-1][0])

    @torch.no_grad()
    def backward(self, grad: Tensor) -> None:
        """Write the gradient of every parameter, given the loss's by the last output ``[b, out]``.

        Once for each forward pass. Parameters must have a ``grad``; what was in it is replaced,
        not added to.
        """
        for number in reversed(range(len(self._layers))):
            layer = self._layers[number]
            assert layer.weight.grad is not None
            assert layer.bias.grad is not None
            # dL/dW = g^T x,  dL/db = sum g,  dL/dx = g W
            torch.mm(grad.t(), self._inputs[number], out=layer.weight.grad)
            torch.sum(grad, 0, out=layer.bias.grad)
            if number:
                # Into the memory of x, which has served: less that falls out of the cache.
                grad = torch.mm(grad, layer.weight, out=self._inputs[number])
                grad.addcmul_(grad, self._slopes[number - 1])  # g ELU'

    def _sized(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The buffers, of as many rows as ``x``."""
        rows = len(x)
        if rows > self._rows or self._buffers[0][0].device != x.device:
            self._rows = rows
            self._buffers = [
                (x.new_empty(rows, layer.out_features), x.new_empty(rows, layer.out_features))
                for layer in self._layers
            ]
        if rows == self._rows:
            return self._buffers
        return [(out[:rows], slope[:rows]) for out, slope in self._buffers]


@torch.no_grad()
def outputs(network: nn.Module, x: Tensor) -> Tensor:
    """What a network makes of ``x [B, in]``, without gradient: ``[B, out]``.

    The same numbers as :class:`MlpPasses`, so that a policy and its copy before the update agree.
    Any other network is simply called.
    """
    if not is_plain(network):
        return network(x)
    assert isinstance(network, nn.Sequential)
    layers = [m for m in network if isinstance(m, nn.Linear)]
    parts = x.split(_CHUNK) if x.device.type == "cpu" else (x,)
    found = [_outputs(layers, part) for part in parts]
    return found[0] if len(found) == 1 else torch.cat(found)


def _outputs(layers: Sequence[nn.Linear], x: Tensor) -> Tensor:
    for layer in layers[:-1]:
        x = torch.addmm(layer.bias, x, layer.weight.t())
        _elu_(x, torch.empty_like(x))
    return torch.addmm(layers[-1].bias, x, layers[-1].weight.t())


def _elu_(x: Tensor, slope: Tensor) -> None:
    """Replace ``x`` by ELU(x), and ``slope`` by the derivative less 1."""
    # e = exp(min(x, 0)) - 1:  ELU = max(x, e),  ELU' = 1 + e
    torch.clamp_max(x, 0.0, out=slope)
    if x.device.type == "cpu" and _numpy_is_faster():
        array = slope.numpy()
        np.expm1(array, out=array)
    else:
        torch.expm1(slope, out=slope)
    torch.maximum(x, slope, out=x)


@functools.cache
def _numpy_is_faster() -> bool:
    """Whether NumPy has a vectorised ``expm1`` for this CPU.

    Where it has (AVX-512), it takes a quarter of the time of torch's, within 2 units in the last
    place as well. It follows from the CPU alone: the same run on it gives the same bits.
    """
    found = np.lib.introspect.opt_func_info(func_name="^expm1$", signature="float32")
    kernels = found.get("expm1", {}).values()
    names = [str(kernel.get("current", "")) for kernel in kernels]
    return bool(names) and all(name and "baseline" not in name for name in names)
