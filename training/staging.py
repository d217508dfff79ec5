"""What a learner reads of rollouts, on the device that learns; copied while that still computes.

A rollout is copied when it arrives, not when its update begins: from pinned memory and on a stream
of its own, so the copy runs beside the update before. Values and targets are not made in advance:
they need the critic as it is when its update begins. On CPUs nothing is copied, since joining the
rollouts of an update takes a thousandth of it.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from real.errors import FerryError
from real.rollout import Rollout

DeviceName = Literal["auto", "cpu", "cuda"]


def chosen_device(name: DeviceName, *, rank: int = 0) -> torch.device:
    """Where a learner computes.

    Args:
        name: ``auto`` is CUDA if there is one.
        rank: of the learner: several on one machine take its GPUs in turn.

    Raises:
        FerryError: CUDA is asked for and there is none.
    """
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise FerryError(
            "training.run.device is cuda, but torch finds no CUDA device; expected one, or auto or "
            "cpu (is this a build of torch for CPUs?)"
        )
    if name == "cpu" or not there:
        return torch.device("cpu")
    return torch.device("cuda", rank % torch.cuda.device_count())


@dataclass(frozen=True)
class Staged:
    """Arrays of a :class:`Rollout`, by the same names and in the same shapes, as tensors."""

    obs: Tensor
    critic_obs: Tensor
    actions: Tensor
    log_probs: Tensor
    final_critic_obs: Tensor


class Staging:
    """Brings rollouts to a device; safe to use from several threads.

    Args:
        device: where to.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")
        cuda = self.device.type == "cuda"
        self._side = torch.cuda.Stream(self.device) if cuda else None
        self._lock = threading.Lock()
        # By identity; an entry goes when its rollout does, learned from or dropped.
        self._begun: dict[int, tuple[Any, Staged, torch.cuda.Event]] = {}

    def begin(self, rollout: Rollout) -> None:
        """Start to copy a rollout that will probably be asked for; returns at once."""
        if self._side is None:
            return
        with torch.cuda.stream(self._side):
            # pin_memory() is a copy by this thread, of which only it has to wait.
            parts = {
                name: tensor.pin_memory().to(self.device, non_blocking=True)
                for name, tensor in _tensors(rollout).items()
            }
            done = torch.cuda.Event()
            done.record(self._side)
        key = id(rollout)
        gone = weakref.ref(rollout, lambda _: self._forget(key))
        with self._lock:
            self._begun[key] = (gone, Staged(**parts), done)

    def holds(self, rollout: Rollout) -> bool:
        """Whether a rollout is on the device already, or on its way."""
        with self._lock:
            return id(rollout) in self._begun

    def __call__(self, rollout: Rollout) -> Staged:
        """The rollout on the device, for use on the present stream."""
        if self._side is None:
            return Staged(**_tensors(rollout))
        if not self.holds(rollout):
            self.begin(rollout)
        with self._lock:
            _, staged, done = self._begun[id(rollout)]
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(done)
        for field in fields(Staged):
            # Else its memory would be given away once the copy is done, and the use may not be.
            getattr(staged, field.name).record_stream(stream)
        return staged

    def _forget(self, key: int) -> None:
        with self._lock:
            self._begun.pop(key, None)


def _tensors(rollout: Rollout) -> dict[str, Tensor]:
    names = [field.name for field in fields(Staged)]
    return {name: torch.from_numpy(getattr(rollout, name)) for name in names}
