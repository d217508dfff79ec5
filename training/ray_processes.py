"""Actors, evaluators and other learners as processes on Ray: where they start, how they end."""

# Ray is an extra; without it nothing here is imported.
# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from training.placement import Machine, Placement
from training.roles import RoleFailed

#: How long to wait for what should be there [s].
FETCH_S = 30.0
#: Ray's head keeps a record of the last hundred thousand calls, for a dashboard that nobody
#: starts here: a run's memory would grow for hours.
UNRECORDED = {"enable_task_events": False}


def where() -> tuple[str, int]:
    """Ray's name of the machine that this process runs on, and its process id there."""
    return ray.get_runtime_context().get_node_id(), os.getpid()


def on(machine: str) -> Any:
    """There, or elsewhere if that machine is lost."""
    return NodeAffinitySchedulingStrategy(machine, soft=True)


def fetch(ticket: Any) -> Any:
    """What a ready ticket stands for.

    Raises:
        RoleFailed: the process died or raised, or the answer does not come.
    """
    try:
        return ray.get(ticket, timeout=FETCH_S)
    except RayTaskError as error:
        raise RoleFailed(str(error)) from error
    except GetTimeoutError as error:
        raise RoleFailed(f"its result did not arrive within {FETCH_S:g} s") from error
    except RayError as error:
        raise RoleFailed(f"{type(error).__name__}: {error}") from error


class Processes:
    """Processes of a run, each with a CPU to itself on the machine that the placement says.

    Safe to use from several threads. What runs in them has a method ``where`` that returns what
    :func:`where` does.
    """

    def __init__(self) -> None:
        self.here, _ = where()
        self._lock = threading.Lock()
        self._placement = Placement(self.here)
        self._wheres: dict[Any, Any] = {}  # handle -> where its machine and process id will be

    def start(self, role: Any, *arguments: Any) -> Any:
        """Begin to start a process; its handle.

        Args:
            role: a class that Ray knows.
            arguments: of its construction.
        """
        with self._lock:
            machine = self._placement.choose(_machines())
            strategy = "SPREAD" if machine is None else on(machine)
            place: dict[str, Any] = {"num_cpus": 1, "scheduling_strategy": strategy, **UNRECORDED}
            handle = role.options(max_restarts=0, **place).remote(*arguments)
            self._placement.put(handle, machine)
            self._wheres[handle] = handle.where.remote()
        return handle

    def started(self, handle: Any) -> Any:
        """A ticket that is ready once the process is there."""
        return self._wheres[handle]

    def kill(self, handle: Any) -> None:
        """End a process now, whatever it does."""
        with contextlib.suppress(RayError, ValueError):
            ray.kill(handle, no_restart=True)
        with self._lock:
            known = self._wheres.pop(handle, None)
            if known is None:
                return
            came = bool(ray.wait([known], timeout=0.0)[0])
            self._placement.remove(handle, came=came)
        if not came:
            return
        # A process that hangs in compiled code or is stopped does not hear Ray.
        with contextlib.suppress(RayError, OSError):
            machine, pid = ray.get(known, timeout=FETCH_S)
            if machine == self.here:
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End all of them."""
        for handle in list(self._wheres):
            self.kill(handle)


def _machines() -> list[Machine]:
    """The living machines of the cluster."""
    return [
        Machine(node["NodeID"], node["Resources"].get("CPU", 0.0))
        for node in ray.nodes()
        if node["Alive"]
    ]
