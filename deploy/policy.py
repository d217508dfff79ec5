"""Runs a policy network: observations in, mean and spread of actions out."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from deploy.bundle import INPUT, OUTPUTS, Bundle, open_session
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


class OnnxPolicy:
    """A bundle under ONNX Runtime, on one thread.

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
        self._names = list(OUTPUTS)
        self._dim = bundle.contract.observation.dim
        # The first run allocates and picks kernels, which can take a hundred times as long.
        self.infer(np.zeros((1, self._dim), dtype=np.float32))

    def infer(self, observation: Float32) -> tuple[Float32, Float32]:
        """Mean and log standard deviation of the action.

        Args:
            observation: ``[N, D]`` float32, any N >= 1.

        Returns:
            ``[N, A]`` each, new arrays.

        Raises:
            FerryError: another shape; ONNX Runtime would say so less plainly.
        """
        if observation.ndim != 2 or observation.shape[1] != self._dim:
            raise FerryError(
                f"the policy got an observation of shape {observation.shape}; "
                f"expected (N, {self._dim})"
            )
        mean, log_std = self._session.run(self._names, {INPUT: observation})
        return mean, log_std
