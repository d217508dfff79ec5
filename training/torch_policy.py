"""A policy in torch where others expect one of a bundle."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from real.contract import PolicyContract

Float32 = NDArray[np.float32]


class TorchPolicy:
    """A policy in torch behind the same interface as a bundle, for runs that are not exported.

    Args:
        module: maps ``[N, D]`` raw observations to mean and log_std; with a memory also
            ``[N, H]`` what it remembers to what it remembers next.
        contract: what it is trained for.
    """

    def __init__(self, module: torch.nn.Module, contract: PolicyContract) -> None:
        self.contract: PolicyContract = contract
        self._module = module.eval()

    @torch.no_grad()
    def infer(self, observation: Float32) -> tuple[Float32, Float32]:
        """See :class:`deploy.policy.Policy`."""
        mean, log_std = self._module(torch.from_numpy(observation))
        return mean.numpy(), log_std.numpy()

    @torch.no_grad()
    def advance(self, observation: Float32, hidden: Float32) -> tuple[Float32, Float32, Float32]:
        """See :class:`deploy.policy.RecurrentPolicy`."""
        given = torch.from_numpy(observation), torch.from_numpy(hidden)
        mean, log_std, following = self._module(*given)
        return mean.numpy(), log_std.numpy(), following.numpy()
