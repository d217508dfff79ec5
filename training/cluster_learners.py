"""Learners 1 to L-1 on Ray, beside what :mod:`training.cluster` runs there."""

# Ray is an extra; without it nothing here is imported.
# pyright: reportMissingImports=false

from __future__ import annotations

import socket
from typing import Any

import ray

from real.rollout import Rollout
from training.learner_member import LearnerMember, LearnerSpec, LearnerState, Meeting
from training.ray_processes import Processes, fetch, where


class _Learner(LearnerMember):
    """One :class:`LearnerMember` in a process of its own."""

    def where(self) -> tuple[str, int]:
        return where()


class RayLearnerHost:
    """See :class:`training.learner_group.LearnerHost`.

    Args:
        spec: of every learner.
        processes: of the run.
        local: whether all of them are on this machine.
    """

    def __init__(self, spec: LearnerSpec, processes: Processes, *, local: bool) -> None:
        self._spec = ray.put(spec)
        self._processes = processes
        self._local = local
        self._remote: Any = ray.remote(_Learner)

    def start(self, rank: int) -> tuple[Any, Any]:
        """See :class:`training.learner_group.LearnerHost`; so for the other methods."""
        handle = self._processes.start(self._remote, self._spec, rank)
        return handle, self._processes.started(handle)

    def free_address(self) -> str:
        """A port that is free now: whoever takes it in between makes the meeting fail, once."""
        host = "127.0.0.1" if self._local else ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return f"{host}:{probe.getsockname()[1]}"

    def meet(self, handle: Any, meeting: Meeting) -> Any:
        """See :meth:`start`."""
        return handle.meet.remote(meeting)

    def learn(
        self,
        handle: Any,
        rollouts: list[Rollout],
        weights: list[float],
        *,
        anew: LearnerState | None,
    ) -> Any:
        """See :meth:`start`."""
        return handle.learn.remote(rollouts, weights, anew)

    def ready(self, ticket: Any, timeout_s: float) -> bool:
        """See :meth:`start`."""
        return bool(ray.wait([ticket], timeout=timeout_s)[0])

    def fetch(self, ticket: Any) -> Any:
        """See :meth:`start`."""
        return fetch(ticket)

    def kill(self, handle: Any) -> None:
        """See :meth:`start`."""
        self._processes.kill(handle)
