"""What a learner publishes and actors act with: one version of the whole policy."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from real.errors import FerryError

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class PolicySnapshot:
    """One version of a policy, as arrays: nothing in it is code.

    Attributes:
        version: learner updates behind it; 0 is the initial policy.
        state: name -> array of every parameter and buffer, the normalisers' statistics and
            their counts included.
        created_ns: wall clock at which it was made [ns].
        shared: what holds in the worlds of all actors beside the weights, such as a curriculum's
            ranges or levels of terrain; see :mod:`training.adaptation`. Empty where there is
            nothing.
    """

    version: int
    state: Arrays
    created_ns: int
    shared: Arrays = field(default_factory=dict[str, NDArray[Any]])


def take_snapshot(policy: nn.Module, version: int) -> PolicySnapshot:
    """Copy a policy: later changes of it do not reach the snapshot."""
    state = {name: t.detach().cpu().numpy().copy() for name, t in policy.state_dict().items()}
    return PolicySnapshot(version=version, state=state, created_ns=time.time_ns())


def load_snapshot(policy: nn.Module, state: Arrays) -> None:
    """Copy arrays into a policy in place, every parameter and buffer of it.

    Raises:
        FerryError: a name is missing or unknown, or a shape differs.
    """
    own = policy.state_dict()
    wrong = [f"{name}: missing" for name in own if name not in state]
    wrong += [f"{name}: unknown" for name in state if name not in own]
    for name, tensor in own.items():
        if name in state and state[name].shape != tuple(tensor.shape):
            wrong.append(f"{name}: shape {state[name].shape}, expected {tuple(tensor.shape)}")
    if wrong:
        raise FerryError("the policy state belongs to another network:\n  " + "\n  ".join(wrong))
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(torch.from_numpy(np.array(state[name])))


class SnapshotStore:
    """Holds the newest snapshot; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: PolicySnapshot | None = None

    def publish(self, snapshot: PolicySnapshot) -> None:
        """Make ``snapshot`` the newest, unless a newer one is there: versions never go back."""
        with self._lock:
            if self._newest is None or snapshot.version >= self._newest.version:
                self._newest = snapshot

    def newest(self) -> PolicySnapshot:
        """The newest snapshot.

        Raises:
            LookupError: none was published yet.
        """
        with self._lock:
            if self._newest is None:
                raise LookupError("no policy snapshot was published yet")
            return self._newest
