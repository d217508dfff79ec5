"""Learners 1 to L-1 on Ray, beside what :mod:`training.cluster` runs there."""

# Ray is an extra; without it nothing here is imported.
# pyright: reportMissingImports=false

from __future__ import annotations

import socket
from typing import Any

import ray
import torch

from real.rollout import Rollout
from training.learner_group import Learned, LearnerSpec, Meeting
from training.parallel import ALONE, LearnerLostError, join_learners, leave_learners
from training.probe import policy_digest
from training.ray_processes import Processes, fetch, where
from training.shares import of_worlds


class _Learner:
    """One :class:`training.learner.Learner` in a process of its own."""

    def __init__(self, spec: LearnerSpec, rank: int) -> None:
        torch.set_num_threads(spec.threads)
        self._learner = spec.make(rank=rank)

    def where(self) -> tuple[str, int]:
        return where()

    def meet(self, meeting: Meeting) -> None:
        leave_learners()
        self._learner.load_state_dict(dict(meeting.policy), dict(meeting.state))
        self._learner.join(
            join_learners(
                meeting.address,
                rank=meeting.rank,
                size=meeting.size,
                timeout_s=meeting.timeout_s,
            )
        )

    def learn(self, rollouts: list[Rollout], weights: list[float]) -> Learned:
        # What Ray hands over is read-only.
        own = [of_worlds(rollout, 0, rollout.num_envs) for rollout in rollouts]
        lost = None
        try:
            self._learner.update(own, weights=weights)
        except BaseException as error:
            # Whoever waits for this one on a line hears that it will not come.
            self._learner.join(ALONE)
            leave_learners()
            if not isinstance(error, LearnerLostError):
                raise
            lost = str(error)
        return Learned(self._learner.version, policy_digest(self._learner.policy), lost)


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

    def learn(self, handle: Any, rollouts: list[Rollout], weights: list[float]) -> Any:
        """See :meth:`start`."""
        return handle.learn.remote(rollouts, weights)

    def ready(self, ticket: Any, timeout_s: float) -> bool:
        """See :meth:`start`."""
        return bool(ray.wait([ticket], timeout=timeout_s)[0])

    def fetch(self, ticket: Any) -> Any:
        """See :meth:`start`."""
        return fetch(ticket)

    def kill(self, handle: Any) -> None:
        """See :meth:`start`."""
        self._processes.kill(handle)
