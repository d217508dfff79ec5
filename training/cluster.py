"""The asynchronous runtime's processes, on Ray: the only file that knows it.

Actors, evaluators and the store of weights are Ray actors, on this machine or on a cluster. What
they exchange is NumPy. Every wait has a deadline.
"""

# Ray is an extra; without it nothing here is imported.
# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from real.errors import FerryError
from real.rollout import Rollout
from training.actor import ActorWorker
from training.roles import RoleFailed, ScoreRequest, Task, actor_id
from training.snapshot import PolicySnapshot

log = logging.getLogger(__name__)

#: How long to wait for what should be there [s].
_FETCH_S = 30.0
#: How long an actor waits for the store's answer before it goes on with the weights it has [s].
_ANSWER_S = 0.05
#: How long a cluster's head may take to accept a connection [s].
_REACH_S = 10.0
#: How often the store is told the newest weights again, in case it came back empty [s].
_REMIND_S = 0.5
#: Smallest shared memory that Ray starts with [bytes].
_MIN_STORE = 100 * 2**20
#: Ray's head keeps a record of the last hundred thousand calls, for a dashboard that nobody
#: starts here: a run's memory would grow for hours.
_UNRECORDED = {"enable_task_events": False}


class _Store:
    """The weight store: newest version wins. It holds references, the bytes lie beside it."""

    def __init__(self) -> None:
        self._version = -1
        self._refs: list[Any] = []

    def publish(self, version: int, refs: list[Any]) -> None:
        if version >= self._version:
            self._version, self._refs = version, refs

    def newer_than(self, version: int) -> list[Any]:
        return self._refs if self._version > version else []

    def pid(self) -> int:
        return os.getpid()


class _Feed:
    """An actor's side of the store: the newest weights that can be had without waiting for them.

    One question is always on its way. While the store is away, the actor goes on with what it has;
    the queue's bound on lag says for how long that is of use.
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
                    newer: PolicySnapshot = ray.get(refs[0], timeout=_FETCH_S)
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
        self._worker = ActorWorker(
            task.make_env(task.config, stream),
            actor_id(stream),
            network=training.network,
            seed=training.seed,
            stream=stream,
        )

    def collect(self) -> tuple[Rollout, float]:
        start = time.perf_counter()
        rollout = self._worker.collect(self._feed.newest(), self._horizon)
        return rollout, time.perf_counter() - start

    def pid(self) -> int:
        return os.getpid()


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

    def pid(self) -> int:
        return os.getpid()


class RayEngine:
    """See :class:`training.roles.Engine`. Made by :func:`ray_engine`.

    Args:
        task: what the processes need to know.
        local: whether all of them are on this machine.
    """

    def __init__(self, task: Task, *, local: bool) -> None:
        self._task = ray.put(task)
        self._local = local
        self._pids: dict[Any, Any] = {}  # handle -> where its process id will be
        # The engine itself starts the store again, wherever there is room, under the same name.
        self.store: Any = (
            ray.remote(_Store).options(num_cpus=0, max_restarts=-1, **_UNRECORDED).remote()
        )
        self._published: tuple[int, list[Any]] = (-1, [])
        self._reminded = 0.0
        # One core each, over all machines evenly: none has more than its share of the work.
        place: dict[str, Any] = {"num_cpus": 1, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        place |= _UNRECORDED
        self._actor = ray.remote(_Actor).options(**place)
        self._evaluator = ray.remote(_Evaluator).options(**place)

    def start_actor(self, worker: int, restart: int, snapshot: PolicySnapshot) -> Any:
        """See :class:`training.roles.Engine`."""
        return self._known(
            self._actor.remote(self._task, (worker, restart), ray.put(snapshot), self.store)
        )

    def start_evaluator(self) -> Any:
        """See :class:`training.roles.Engine`."""
        return self._known(self._evaluator.remote(self._task))

    def _known(self, handle: Any) -> Any:
        self._pids[handle] = handle.pid.remote()
        return handle

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
        try:
            result = ray.get(ticket, timeout=_FETCH_S)
        except RayTaskError as error:
            raise RoleFailed(str(error)) from error
        except GetTimeoutError as error:
            raise RoleFailed(f"its result did not arrive within {_FETCH_S:g} s") from error
        except RayError as error:
            raise RoleFailed(f"{type(error).__name__}: {error}") from error
        first, second = result
        # Memory of our own: the shared one is read-only, and small.
        return (_own(first) if isinstance(first, Rollout) else first), second

    def kill(self, handle: Any) -> None:
        """See :class:`training.roles.Engine`."""
        with contextlib.suppress(RayError, ValueError):
            ray.kill(handle, no_restart=True)
        # A process that hangs in compiled code or is stopped does not hear that.
        known = self._pids.pop(handle, None)
        if self._local and known is not None and ray.wait([known], timeout=0.0)[0]:
            with contextlib.suppress(RayError, OSError):
                os.kill(ray.get(known, timeout=_FETCH_S), signal.SIGKILL)

    def publish(self, snapshot: PolicySnapshot) -> None:
        """See :class:`training.roles.Engine`."""
        self._published = (snapshot.version, [ray.put(snapshot)])
        self._remind()

    def tend_store(self) -> None:
        """See :class:`training.roles.Engine`."""
        if time.monotonic() - self._reminded > _REMIND_S:
            self._remind()

    def _remind(self) -> None:
        self._reminded = time.monotonic()
        version, refs = self._published
        with contextlib.suppress(RayError):
            self.store.publish.remote(version, refs)

    def close(self) -> None:
        """End every process of the run."""
        for handle in list(self._pids):
            self.kill(handle)
        with contextlib.suppress(RayError, ValueError):
            ray.kill(self.store, no_restart=True)


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
    except (RayError, RuntimeError, ValueError, ConnectionError, OSError) as error:
        where = f"join the Ray cluster at {address}" if address else "start Ray on this machine"
        raise FerryError(f"cannot {where}: {error}") from error
    try:
        engine = RayEngine(task, local=address is None)
        try:
            yield engine
        finally:
            engine.close()
    finally:
        ray.shutdown()
