"""Several learners that learn as one: each has its share of the samples, all make the same step.

Every minibatch is drawn over the samples of all learners, from generators in the same state, and
each computes the part it holds. Gradients and statistics are summed, so L learners do what one
would do with all samples; all of them end every update with the same policy, and any one may
publish it or write the checkpoint.

Source of the transport: torch.distributed with gloo, for tensors of GPUs by way of the host: they
are a quarter of a megabyte, and a learner that ends is an error that can be mended, where NCCL
would end this process too. Between machines it uses the interface
that the host's name resolves to; `GLOO_SOCKET_IFNAME` names another.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - in its manual

from real.errors import FerryError
from training.normalizer import Moments, merge

#: How long to wait in compiled code, where Python hears no signal, before looking up [s].
_SLICE = datetime.timedelta(seconds=0.2)
#: How often the first learner looks whether the others have come [s].
_LOOK_S = 0.02


class LearnerLostError(FerryError):
    """Another learner ended or hangs; this one's policy and optimisers are as before the update."""


def _never() -> bool:
    return False


class Channel:
    """A line between all learners on which one thread of each speaks, in the same order.

    Args:
        group: of torch.distributed; None for a learner that is alone: then nothing is sent.
        given_up: whether to wait no longer for the others.
    """

    def __init__(
        self, group: dist.ProcessGroup | None = None, *, given_up: Callable[[], bool] = _never
    ) -> None:
        self._group = group
        self._given_up = given_up

    def sum_(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over learners, the same bits in all of them.

        Raises:
            LearnerLostError: a learner does not answer; so for the other methods.
        """
        self._reduce(tensor, dist.ReduceOp.SUM)

    def max(self, number: float) -> float:
        """Largest of the learners' numbers."""
        if self._group is None:
            return number
        tensor = torch.tensor(number, dtype=torch.float64, device="cpu")
        self._reduce(tensor, dist.ReduceOp.MAX)
        return float(tensor)

    def moments(self, own: Moments) -> Moments:
        """Moments of all learners' samples; merged in the order of ranks, so all agree exactly."""
        if self._group is None:
            return own
        own = own.to("cpu")
        parts = self.gathered(torch.cat([own.count.reshape(1), own.mean, own.var]))
        size = own.mean.numel()
        total = Moments(own.mean, own.var, torch.zeros((), dtype=torch.float64))
        for part in parts:
            total = merge(total, Moments(part[1 : 1 + size], part[1 + size :], part[0]))
        return total

    def gathered(self, own: Tensor) -> list[Tensor]:
        """The tensors of all learners, of the same shape, by rank."""
        if self._group is None:
            return [own]
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size(self._group))]
        self._send(lambda: dist.all_gather(parts, own, group=self._group, async_op=True))
        return parts

    def _reduce(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType) -> None:
        if self._group is None:
            return
        sent = tensor.cpu()  # itself, unless it is on a GPU
        self._send(lambda: dist.all_reduce(sent, operation, group=self._group, async_op=True))
        if sent is not tensor:
            tensor.copy_(sent)

    def _send(self, begin: Callable[[], dist.Work | None]) -> None:
        """Do something together and wait until all have; a signal is heard while that takes."""
        try:
            work = begin()
            assert work is not None  # this learner is a member
            while not work.is_completed():
                if self._given_up():
                    raise LearnerLostError(
                        "another learner does not answer and is not awaited any longer; nothing "
                        "was changed by this update"
                    )
                # That it takes longer than this is no error, and a real one is raised below.
                with contextlib.suppress(RuntimeError):
                    work.wait(_SLICE)
            work.wait()
        except RuntimeError as error:
            raise _lost(error) from error


@dataclass(frozen=True)
class Place:
    """Which rows of the samples of all learners are this learner's.

    Attributes:
        start: first row.
        own: number of rows.
        total: of all learners.
    """

    start: int
    own: int
    total: int


@dataclass(frozen=True)
class Learners:
    """A learner's place among all, and its lines to them.

    Attributes:
        rank: this learner's number, 0 to size - 1.
        size: L.
        actor: for what concerns the actor network, and for everything outside the epochs.
        critic: for what concerns the critic network, which learns in a thread of its own.
    """

    rank: int = 0
    size: int = 1
    actor: Channel = field(default_factory=Channel)
    critic: Channel = field(default_factory=Channel)

    def place(self, own: int) -> Place:
        """Where ``own`` samples stand among those of all learners, which go by rank."""
        sizes = [int(s) for s in self.actor.gathered(torch.tensor(own, device="cpu"))]
        return Place(sum(sizes[: self.rank]), own, sum(sizes))


#: A learner without others.
ALONE = Learners()


def join_learners(
    address: str,
    *,
    rank: int,
    size: int,
    timeout_s: float = 60.0,
    given_up: Callable[[], bool] = _never,
) -> Learners:
    """Meet the other learners; returns when all are there.

    Args:
        address: ``HOST:PORT`` on which rank 0 listens, the same for all.
        rank: this learner's number.
        size: L.
        timeout_s: how long to wait for another learner, here and in every exchange [s]. A slow
            update of another learner must fit in.
        given_up: asked many times a second, by the threads of an update: whether to wait no
            longer for the others.

    Raises:
        LearnerLostError: they did not all come in time, or were given up.
        FerryError: this process has already joined, or the rank is impossible.
    """
    if not 0 <= rank < size:
        raise FerryError(f"learner rank {rank} of {size}; expected 0 to {size - 1}")
    if dist.is_initialized():
        raise FerryError("this process has joined learners before; call leave_learners() first")
    limit = datetime.timedelta(seconds=timeout_s)
    missed = f"learner {rank} of {size} met not all others at {address}"
    try:
        store = _meeting_place(address, rank=rank, size=size, limit=limit)
        if rank == 0 and not _all_came(store, size, timeout_s=timeout_s, given_up=given_up):
            raise LearnerLostError(f"{missed} in {timeout_s:g} s, or gave them up")
    except (RuntimeError, ValueError) as error:
        raise LearnerLostError(f"{missed} in {timeout_s:g} s: {error}") from error
    try:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
        lines = [_new_line(limit, given_up) for _ in range(2)]
    except (RuntimeError, ValueError) as error:
        _forget_names()
        raise LearnerLostError(f"{missed} in {timeout_s:g} s: {error}") from error
    return Learners(rank, size, lines[0], lines[1])


def _meeting_place(address: str, *, rank: int, size: int, limit: datetime.timedelta) -> TCPStore:
    """Where learners leave word for each other; rank 0 holds it and does not wait for anybody."""
    host, _, port = address.rpartition(":")
    store = TCPStore(
        host, int(port), size, is_master=rank == 0, timeout=limit, wait_for_workers=False
    )
    store.set(f"here/{rank}", "")
    return store


def _all_came(
    store: TCPStore, size: int, *, timeout_s: float, given_up: Callable[[], bool]
) -> bool:
    """Wait until all learners have left word; torch would wait where no signal is heard."""
    deadline = time.monotonic() + timeout_s
    names = [f"here/{rank}" for rank in range(size)]
    while not store.check(names):
        if time.monotonic() > deadline or given_up():
            return False
        time.sleep(_LOOK_S)
    return True


def _forget_names() -> None:
    """Make the next meeting's groups have the names that a process which never met gives them.

    torch names groups by a counter that is reset when the first of them is destroyed, and counts
    one that never came about: the next meeting, with a replacement, would wait under other names.
    """
    if not dist.is_initialized():
        alone = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage] - it is documented
        dist.init_process_group("gloo", store=alone, rank=0, world_size=1)
    dist.destroy_process_group()


def leave_learners() -> None:
    """Close the lines; no error where none are open or another learner is gone."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _new_line(limit: datetime.timedelta, given_up: Callable[[], bool]) -> Channel:
    group = dist.new_group(timeout=limit, backend="gloo")
    assert isinstance(group, dist.ProcessGroup)  # every learner is a member
    return Channel(group, given_up=given_up)


def _lost(error: RuntimeError) -> LearnerLostError:
    return LearnerLostError(
        f"another learner ended or hangs ({str(error).splitlines()[0]}); nothing was changed by "
        "this update. Start all learners again from the last checkpoint"
    )
