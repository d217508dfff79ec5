"""The asynchronous runtime's processes, on Ray; other learners: :mod:`training.cluster_learners`.

Actors, evaluators and the store of weights are Ray actors, on this machine or on a cluster:

* the learner is the process that calls :func:`ray_engine`; the store of weights is beside it;
* everybody else has a CPU to itself, on the machine that :mod:`training.placement` says;
* whoever replaces one of them, on a machine that is lost say, is placed anew among the living.

What they exchange is NumPy. Every wait has a deadline.
"""

# Ray is an extra; without it nothing here is imported.
# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayError

from real.errors import FerryError
from real.rollout import Rollout
from training.actor import ActorWorker, Refresh
from training.ray_processes import FETCH_S, UNRECORDED, Processes, fetch, on, where
from training.reminder import Reminder
from training.roles import ScoreRequest, Task, actor_id
from training.snapshot import PolicySnapshot
from training.symmetry import Mirror
from training.weight_store import WeightStore

log = logging.getLogger(__name__)

#: How long an actor waits for the store's answer before it goes on with the weights it has [s].
_ANSWER_S = 0.05
#: How long a cluster's head may take to accept a connection [s].
_REACH_S = 10.0
#: Smallest shared memory that Ray starts with [bytes].
_MIN_STORE = 100 * 2**20


class _Feed:
    """An actor's side of the store: the newest weights that can be had without waiting for them.

    At most one question is on its way, and a look waits for its answer for 50 ms at most. While the
    store is away, the actor goes on with what it has; the queue's bound on lag says for how long
    that is of use.
    """

    def __init__(self, store: Any, snapshot: PolicySnapshot) -> None:
        self._store = store
        self._snapshot = snapshot
        self._question: Any = None  # on its way, if there is one
        self._missed = False

    def newest(self) -> PolicySnapshot:
        if self._question is None:
            self._question = self._store.newer_than.remote(self._snapshot.version)
        # A store that did not answer in time is not waited for again until it does.
        patience = 0.0 if self._missed else _ANSWER_S
        ready, _ = ray.wait([self._question], timeout=patience)
        self._missed = not ready
        if ready:
            try:
                refs: Any = ray.get(ready[0], timeout=_ANSWER_S)
                if refs:
                    newer: PolicySnapshot = ray.get(refs[0], timeout=FETCH_S)
                    if newer.version > self._snapshot.version:
                        self._snapshot = newer
            except RayError:  # the store died; it is started again, the next question finds it
                self._missed = True
            self._question = None
        return self._snapshot


class _Actor:
    """One :class:`ActorWorker` in a process of its own, on one core."""

    def __init__(
        self, task: Task, stream: tuple[int, int], snapshot: PolicySnapshot, store: Any
    ) -> None:
        torch.set_num_threads(1)
        training = task.config.training
        self._horizon = training.horizon
        self._feed = _Feed(store, snapshot)
        every = training.runtime.refresh_every
        self._refresh = None if every is None else Refresh(self._feed.newest, every)
        env = task.make_env(task.config, stream)
        self._worker = ActorWorker(
            env,
            actor_id(stream),
            network=training.network,
            seed=training.seed,
            stream=stream,
            mirror=Mirror.of_env(training.symmetry, env),
        )
        self._worker.shared.follow()  # there are others

    def collect(self) -> tuple[Rollout, float]:
        start = time.perf_counter()
        begin = self._feed.newest()
        rollout = self._worker.collect(begin, self._horizon, refresh=self._refresh)
        return rollout, time.perf_counter() - start

    def where(self) -> tuple[str, int]:
        return where()


class _Evaluator:
    """Scores policies in a process of its own, on one core."""

    def __init__(self, task: Task) -> None:
        torch.set_num_threads(1)
        assert task.evaluate is not None
        self._evaluate = task.evaluate

    def score(self, request: ScoreRequest) -> tuple[dict[str, Any], float]:
        start = time.perf_counter()
        record = dict(self._evaluate(request.policy()))
        return record, time.perf_counter() - start

    def where(self) -> tuple[str, int]:
        return where()


class RayEngine:
    """See :class:`training.roles.Engine`. Made by :func:`ray_engine`.

    Args:
        task: what the processes need to know.

    Attributes:
        processes: actors, evaluators and whoever else takes a CPU of the run.
    """

    def __init__(self, task: Task) -> None:
        self._task = ray.put(task)
        self.processes = Processes()
        # The engine itself starts the store again under the same name.
        beside: dict[str, Any] = {
            "num_cpus": 0,
            **UNRECORDED,
            "scheduling_strategy": on(self.processes.here),
        }
        self.store: Any = ray.remote(WeightStore).options(max_restarts=-1, **beside).remote()
        self._reminder = Reminder(self._tell, answered=_answered, clock=time.monotonic)
        self._actor, self._evaluator = ray.remote(_Actor), ray.remote(_Evaluator)

    def start_actor(self, worker: int, restart: int, snapshot: PolicySnapshot) -> Any:
        """See :class:`training.roles.Engine`."""
        stream = (worker, restart)
        return self.processes.start(self._actor, self._task, stream, ray.put(snapshot), self.store)

    def start_evaluator(self) -> Any:
        """See :class:`training.roles.Engine`."""
        return self.processes.start(self._evaluator, self._task)

    def collect(self, actor: Any) -> Any:
        """See :class:`training.roles.Engine`."""
        return actor.collect.remote()

    def score(self, evaluator: Any, request: ScoreRequest) -> Any:
        """See :class:`training.roles.Engine`."""
        return evaluator.score.remote(request)

    def wait(self, tickets: Sequence[Any], timeout_s: float) -> list[Any]:
        """See :class:`training.roles.Engine`."""
        if not tickets:
            time.sleep(timeout_s)
            return []
        ready, left = ray.wait(list(tickets), num_returns=1, timeout=timeout_s)
        if left:
            more, _ = ray.wait(left, num_returns=len(left), timeout=0.0)
            ready = [*ready, *more]
        return ready

    def fetch(self, ticket: Any) -> Any:
        """See :class:`training.roles.Engine`."""
        first, second = fetch(ticket)
        # Memory of our own: the shared one is read-only, and small.
        return (_own(first) if isinstance(first, Rollout) else first), second

    def kill(self, handle: Any) -> None:
        """See :class:`training.roles.Engine`."""
        self.processes.kill(handle)

    def publish(self, snapshot: PolicySnapshot) -> None:
        """See :class:`training.roles.Engine`."""
        self._reminder.publish(snapshot.version, [ray.put(snapshot)])

    def tend_store(self) -> None:
        """See :class:`training.roles.Engine`."""
        self._reminder.tend()

    def _tell(self, version: int, refs: list[Any]) -> Any:
        """A ticket for the store's answer; None if there is none to wait for."""
        with contextlib.suppress(RayError):
            return self.store.publish.remote(version, refs)
        return None

    def close(self) -> None:
        """End every process of the run."""
        self.processes.close()
        with contextlib.suppress(RayError, ValueError):
            ray.kill(self.store, no_restart=True)


def _answered(ticket: Any) -> bool:
    """Whether the store has answered, or died."""
    return bool(ray.wait([ticket], timeout=0.0)[0])


def _own(rollout: Rollout) -> Rollout:
    """The same rollout in memory of this process."""
    arrays = {
        field.name: value.copy()
        for field in dataclasses.fields(rollout)
        if isinstance(value := getattr(rollout, field.name), np.ndarray)
    }
    return dataclasses.replace(rollout, **arrays)


def _require_listener(address: str) -> None:
    """Find out in seconds what Ray would find out in minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise FerryError(f"address {address!r} of the Ray cluster; expected HOST:PORT")
    try:
        socket.create_connection((host, int(port)), timeout=_REACH_S).close()
    except (OSError, OverflowError) as error:
        raise FerryError(
            f"no Ray cluster listens at {address}: {error}; start its head with "
            f"`RAY_AUTH_MODE=token ray start --head --port {port}`"
        ) from error


@contextlib.contextmanager
def ray_engine(
    task: Task, *, processes: int, rollout_bytes: int, rollouts: int, address: str | None
) -> Iterator[RayEngine]:
    """Start Ray on this machine, or join a cluster, and end what was started.

    Args:
        task: what the processes need to know.
        processes: actors and evaluators, for each of which the local engine offers a CPU.
        rollout_bytes: size of a rollout.
        rollouts: how many may be under way.
        address: ``HOST:PORT`` of a cluster's head; None starts Ray here.

    Raises:
        FerryError: Ray cannot be started, or the cluster cannot be reached.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is not None:
        _require_listener(address)
    here: dict[str, Any] = {
        "num_cpus": processes + 1,
        "num_gpus": 0,
        "include_dashboard": False,
        "object_store_memory": max(_MIN_STORE, 4 * rollouts * rollout_bytes),
    }
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
            **({} if address else here),
        )
    except Exception as error:  # of this very class where its daemon takes too long to start
        what = f"join the Ray cluster at {address}" if address else "start Ray on this machine"
        raise FerryError(f"cannot {what}: {error}") from error
    try:
        engine = RayEngine(task)
        try:
            yield engine
        finally:
            engine.close()
    finally:
        ray.shutdown()
