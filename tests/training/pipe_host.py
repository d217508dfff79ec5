"""Other learners as processes at the end of a pipe: a group without Ray, for tests."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import traceback
from dataclasses import dataclass, field
from typing import Any

import torch

from real.rollout import Rollout
from training.learner_member import Learned, LearnerMember, LearnerSpec, LearnerState, Meeting
from training.roles import RoleFailed


class Member(LearnerMember):
    """A learner that ends every update off by a factor, as on a CPU that rounds otherwise."""

    off_by = 1.0

    def round_otherwise(self, off_by: float) -> None:
        self.off_by = off_by

    def learn(
        self, rollouts: list[Rollout], weights: list[float], anew: LearnerState | None
    ) -> Learned:
        learned = super().learn(rollouts, weights, anew)
        if self.off_by == 1.0:
            return learned
        with torch.no_grad():
            for parameter in self._learner.policy.parameters():
                parameter.mul_(self.off_by)
        return Learned.of(self._learner)


def serve(pipe: Any, spec: LearnerSpec, rank: int) -> None:
    """Answer every call in turn: (True, result) or (False, traceback)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    member = Member(spec, rank)
    pipe.send((True, None))
    while True:
        method, arguments = pipe.recv()
        try:
            pipe.send((True, getattr(member, method)(*arguments)))
        except Exception:
            pipe.send((False, traceback.format_exc()))


@dataclass
class Handle:
    process: Any
    pipe: Any
    asked: int = 0
    answers: list[Any] = field(default_factory=list)


class PipeHost:
    """See :class:`training.learner_group.LearnerHost`."""

    def __init__(self, spec: LearnerSpec) -> None:
        self._spec = spec
        # One process imports torch, and every learner is a fork of it.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.training.pipe_host"])
        self.handles: list[Handle] = []

    def start(self, rank: int) -> tuple[Handle, Any]:
        here, there = self._context.Pipe()
        process = self._context.Process(target=serve, args=(there, self._spec, rank), daemon=True)
        process.start()
        there.close()
        self.handles.append(Handle(process, here, asked=1))
        return self.handles[-1], (self.handles[-1], 0)

    def ask(self, handle: Handle, method: str, *arguments: Any) -> Any:
        with contextlib.suppress(OSError):  # it is gone: the answer is that it is
            handle.pipe.send((method, arguments))
        handle.asked += 1
        return handle, handle.asked - 1

    def free_address(self) -> str:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return f"127.0.0.1:{probe.getsockname()[1]}"

    def meet(self, handle: Handle, meeting: Meeting) -> Any:
        return self.ask(handle, "meet", meeting)

    def learn(
        self,
        handle: Handle,
        rollouts: list[Rollout],
        weights: list[float],
        *,
        anew: LearnerState | None,
    ) -> Any:
        return self.ask(handle, "learn", rollouts, weights, anew)

    def ready(self, ticket: Any, timeout_s: float) -> bool:
        handle, number = ticket
        while len(handle.answers) <= number and handle.pipe.poll(timeout_s):
            try:
                handle.answers.append(handle.pipe.recv())
            except (EOFError, OSError):
                handle.answers += [(False, "the process died")] * (number + 1)
        return len(handle.answers) > number

    def fetch(self, ticket: Any) -> Any:
        handle, number = ticket
        done, answer = handle.answers[number]
        if not done:
            raise RoleFailed(answer)
        return answer

    def kill(self, handle: Handle) -> None:
        if handle.process.is_alive():
            os.kill(handle.process.pid, signal.SIGKILL)
        handle.process.join()
