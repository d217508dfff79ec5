"""All parameters of a network in one tensor: one Adam call and one norm instead of dozens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from real.errors import FerryError

# As in the paper, and what everybody uses.
_BETA1, _BETA2 = 0.9, 0.999
_EPSILON = 1e-8


class FlatAdam:
    """Adam on one flat vector of which all parameters of a network are views.

    On networks of this size much of an optimiser step is the overhead of handling many small
    tensors one by one. The gradients are views of one vector too, so never set them to
    None: call :meth:`zero_grad` of this class.

    Args:
        named: names and parameters; moved, in place, into the flat vector; float32,
            all on one device.
        learning_rate: initial step size.

    Attributes:
        learning_rate: of the next :meth:`step`.
        values: all parameters, ``[P]``.
        grad: all gradients, ``[P]``.
    """

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], *, learning_rate: float) -> None:
        self._named = tuple(named)
        self.learning_rate = learning_rate
        parameters = [parameter for _, parameter in self._named]
        size = sum(p.numel() for p in parameters)
        device = parameters[0].device
        self.values = nn.Parameter(torch.empty(size, device=device))
        self.grad = torch.zeros(size, device=device)
        self.values.grad = self.grad
        start = 0
        for parameter in parameters:
            view = self.values.data.narrow(0, start, parameter.numel()).view_as(parameter)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = self.grad.narrow(0, start, parameter.numel()).view_as(parameter)
            start += parameter.numel()
        self._mean = torch.zeros(size, device=device)
        self._square = torch.zeros(size, device=device)
        self._scratch = torch.zeros(size, device=device)
        self._count = torch.zeros(())

    def not_finite(self) -> str | None:
        """Name of the first parameter whose gradient is not finite, or None."""
        for name, parameter in self._named:
            if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
                return name
        return None

    def zero_grad(self) -> None:
        """Set all gradients to zero."""
        self.grad.zero_()

    def clip_grad(self, max_norm: float) -> float:
        """Scale the gradient to at most ``max_norm``; return its norm before, maybe not finite."""
        norm = float(torch.linalg.vector_norm(self.grad))
        if norm > max_norm:
            self.grad.mul_(max_norm / norm)
        return norm

    def step(self) -> None:
        """One step of Adam along the present gradient.

        Source: Kingma and Ba, "Adam: a method for stochastic optimization", 2015, algorithm 1.
        Written out, since handling its single tensor costs torch's Adam more than the arithmetic.
        """
        self._count += 1.0
        count = float(self._count)
        self._mean.lerp_(self.grad, 1.0 - _BETA1)
        self._square.mul_(_BETA2).addcmul_(self.grad, self.grad, value=1.0 - _BETA2)
        # p -= rate m' / (sqrt(v') + eps),  m' = m / (1 - beta1^t),  v' = v / (1 - beta2^t)
        scale = math.sqrt(1.0 - _BETA2**count)
        torch.sqrt(self._square, out=self._scratch).div_(scale).add_(_EPSILON)
        rate = self.learning_rate / (1.0 - _BETA1**count)
        self.values.data.addcdiv_(self._mean, self._scratch, value=-rate)

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield "values", self.values.data
        yield "exp_avg", self._mean
        yield "exp_avg_sq", self._square
        yield "step", self._count

    def save(self) -> dict[str, Tensor]:
        """Copies of the parameters and of Adam's state."""
        return {name: tensor.clone() for name, tensor in self._tensors()}

    def restore(self, saved: dict[str, Tensor]) -> None:
        """Go back to what :meth:`save` gave, parameters included."""
        for name, tensor in self._tensors():
            tensor.copy_(saved[name])

    def state_dict(self) -> dict[str, NDArray[np.float32]]:
        """Adam's state without the parameters; the step size is not part of it."""
        return {n: t.cpu().numpy().copy() for n, t in self._tensors() if n != "values"}

    def load_state_dict(self, state: dict[str, NDArray[np.float32]]) -> None:
        """Restore what :meth:`state_dict` gave.

        Raises:
            FerryError: it belongs to a network of another size.
        """
        for name, tensor in self._tensors():
            if name == "values":
                continue
            found = state.get(name)
            if found is None or found.shape != tuple(tensor.shape):
                raise FerryError(
                    f"optimiser state {name!r} has shape {None if found is None else found.shape},"
                    f" expected {tuple(tensor.shape)}: it belongs to another network"
                )
            tensor.copy_(torch.from_numpy(np.array(found)))
