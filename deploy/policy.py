"""Runs a policy network: observations in, mean and spread of actions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from deploy.bundle import Bundle
from deploy.golden_run import open_session
from deploy.ports import INPUT, inputs_of, outputs_of
from real.contract import PolicyContract
from real.errors import FerryError

Float32 = NDArray[np.float32]


class Policy(Protocol):
    """A network with its contract; knows nothing of robots, clocks or clipping.

    Attributes:
        contract: what it was trained for.
    """

    contract: PolicyContract

    def infer(self, observation: Float32) -> tuple[Float32, Float32]:
        """``[N, D]`` raw observations -> mean ``[N, A]`` and log_std ``[N, A]`` of the action."""
        ...


class RecurrentPolicy(Policy, Protocol):
    """A network that remembers: one whose contract has a state. Its caller keeps the state."""

    def advance(self, observation: Float32, hidden: Float32) -> tuple[Float32, Float32, Float32]:
        """``[N, D]``, state ``[N, H]`` -> mean and log_std ``[N, A]``, next state ``[N, H]``."""
        ...


class _OneRow:
    """A session whose inputs and outputs for one robot stand in the same place in every run.

    ONNX Runtime then neither looks at arrays nor makes any, which is a quarter of the time that a
    small network takes.
    """

    def __init__(self, session: Any, takes: Mapping[str, int], gives: Mapping[str, int]) -> None:
        self._session: Any = session
        self._binding: Any = session.io_binding()
        self._given = [np.zeros((1, size), dtype=np.float32) for size in takes.values()]
        self._found = [np.zeros((1, size), dtype=np.float32) for size in gives.values()]
        # On the CPU an OrtValue is a view of the array that it is made from.
        view = onnxruntime.OrtValue.ortvalue_from_numpy
        for name, array in zip(takes, self._given, strict=True):
            self._binding.bind_ortvalue_input(name, view(array))
        for name, array in zip(gives, self._found, strict=True):
            self._binding.bind_ortvalue_output(name, view(array))

    def run(self, given: Sequence[Float32]) -> list[Float32]:
        """Arrays ``[1, size]`` in, new arrays out."""
        for place, array in zip(self._given, given, strict=True):
            place[...] = array
        self._session.run_with_iobinding(self._binding)
        return [array.copy() for array in self._found]


class OnnxPolicy:
    """A bundle under ONNX Runtime, on one thread, and for the use of one thread at a time.

    Args:
        bundle: a verified bundle; its verified bytes are what runs.

    Attributes:
        contract: of the bundle.
        bundle: the bundle itself.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.contract: PolicyContract = bundle.contract
        self.bundle = bundle
        self._session: Any = open_session(bundle.model_bytes)
        self._sizes = inputs_of(bundle.contract)
        self._names = list(outputs_of(bundle.contract))
        self._one = _OneRow(self._session, self._sizes, outputs_of(bundle.contract))
        # The first run allocates and picks kernels, which can take a hundred times as long.
        sizes = self._sizes.values()
        self._run(*(np.zeros((1, size), dtype=np.float32) for size in sizes))

    def infer(self, observation: Float32) -> tuple[Float32, Float32]:
        """Mean and log standard deviation of the action.

        Args:
            observation: ``[N, D]`` float32, any N >= 1.

        Returns:
            ``[N, A]`` each, new arrays.

        Raises:
            FerryError: another shape; ONNX Runtime would say so less plainly. Or the policy has a
                memory, and an observation alone has no answer.
        """
        if len(self._sizes) > 1:
            raise FerryError(
                f"this policy remembers {self.contract.hidden_size} numbers; ask it by advance()"
            )
        mean, log_std = self._run(observation)
        return mean, log_std

    def advance(self, observation: Float32, hidden: Float32) -> tuple[Float32, Float32, Float32]:
        """One step of a policy with a memory, see :class:`RecurrentPolicy`.

        Raises:
            FerryError: another shape, or a policy without a memory.
        """
        if len(self._sizes) == 1:
            raise FerryError("this policy has no memory; ask it by infer()")
        mean, log_std, following = self._run(observation, hidden)
        return mean, log_std, following

    def _run(self, *given: Float32) -> list[Float32]:
        for (name, size), array in zip(self._sizes.items(), given, strict=True):
            if array.ndim != 2 or array.shape[1] != size:
                what = "an observation" if name == INPUT else "a hidden state"
                raise FerryError(
                    f"the policy got {what} of shape {array.shape}; expected (N, {size})"
                )
        if all(array.shape[0] == 1 and array.dtype == np.float32 for array in given):
            return self._one.run(given)
        return self._session.run(self._names, dict(zip(self._sizes, given, strict=True)))
