"""Ant-v5 with observations: our engine against EnvPool and Gymnasium's processes.

All take the same actions in their turns, so that a machine that slows down slows all down, and the
median turn counts. The peers are optional: of one that is not there it is said why, and null.

Beside wall time stands CPU time, which says who does less work, whoever else the machine is busy
with. And since all compute the same physics, including the contact forces of the new state as
Gymnasium defines the task, our physics calls alone say how far ahead any program around them could
be: that is the bound.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import math
import os
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from sim.ant import ACTION_DIM, AntWorlds
from training.learner_peers import PeerMissing
from training.progress import ProgressFn, silent

Actions = NDArray[np.float64]

_ID = "Ant-v5"
#: Gymnasium steps each world in a process of its own: so many per thread keep the cores busy, and
#: many more only fill the memory.
_PROCESSES = 4
#: A turn lasts at least so long [s].
_TURN_S = 0.4


@dataclass(frozen=True)
class Contender:
    """Somebody's vector environment.

    Attributes:
        worlds: N.
        step: takes actions ``[N, 8]`` and gives observations.
        close: releases it.
        mujoco: version of the MuJoCo in it.
        cpu_s: CPU time that it and this process have used so far [s].
        physics: the calls of its physics, where they can be told from the rest.
    """

    worlds: int
    step: Callable[[Actions], Any]
    close: Callable[[], Any]
    mujoco: str
    cpu_s: Callable[[], float] = time.process_time
    physics: TimedBatch | None = None


class TimedBatch:
    """Stands before a MuJoCo batch and adds up the time of its steps.

    Attributes:
        wall_s: by the clock [s].
        cpu_s: of all threads [s].
    """

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self.wall_s = self.cpu_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def step(self, **given: Any) -> None:
        """See ``mujoco.batch``."""
        wall, cpu = time.perf_counter(), time.process_time()
        self._batch.step(**given)
        self.cpu_s += time.process_time() - cpu
        self.wall_s += time.perf_counter() - wall


@dataclass(frozen=True)
class Rates:
    """Control steps of all worlds per second; of the physics alone infinite where unknown."""

    wall: float
    cpu: float
    physics_wall: float
    physics_cpu: float


def _ours(worlds: int, threads: int) -> Contender:
    ants = AntWorlds(worlds, threads=threads)
    ants.batch = physics = TimedBatch(ants.batch)
    return Contender(worlds, ants.step, lambda: None, mujoco.mj_versionString(), physics=physics)


def _envpool(worlds: int, threads: int) -> Contender:
    pool = _module("envpool")
    env = pool.make_gymnasium(_ID, num_envs=worlds, num_threads=threads)
    env.reset()
    return Contender(worlds, env.step, env.close, _mujoco_of_envpool(pool))


def _gymnasium_async(worlds: int, threads: int) -> Contender:
    _module("imageio")  # what Gymnasium's MuJoCo tasks import
    gym = _module("gymnasium")
    count = min(worlds, _PROCESSES * threads)
    env = gym.make_vec(_ID, num_envs=count, vectorization_mode="async")
    env.reset(seed=0)
    pids: list[int] = [process.pid for process in env.processes]
    cpu_s = functools.partial(_cpu_with, pids)
    return Contender(count, env.step, env.close, mujoco.mj_versionString(), cpu_s)


#: name -> maker, from N and threads.
CONTENDERS: dict[str, Callable[[int, int], Contender]] = {
    "ours": _ours,
    "envpool": _envpool,
    "gymnasium_async": _gymnasium_async,
}


def bench_ant(
    *,
    worlds: int = 256,
    threads: int | None = None,
    seconds: float = 20.0,
    progress: ProgressFn | None = None,
) -> dict[str, Any]:
    """Control steps per second of all worlds, observations included.

    Args:
        worlds: N; Gymnasium has 4 per thread.
        threads: of physics; None for the CPUs this process may use.
        seconds: about how long to measure.
        progress: told how far it is.

    Returns:
        ``ant`` {name: steps per second, None for who is not there}, ``ant_ratio`` {name: ours over
        theirs}, ``ant_bound`` {name: what that would be if ours were its physics alone},
        ``ant_cpu`` {name: steps per second of CPU time}, ``ant_cpu_ratio`` and ``ant_cpu_bound``
        as above, ``ant_mujoco`` {name: version}, ``ant_missing`` {name: why}.
    """
    number = threads or len(os.sched_getaffinity(0))
    tell = progress or silent
    missing: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        found: dict[str, Contender] = {}
        for name, make in CONTENDERS.items():
            try:
                found[name] = make(worlds, number)
            except PeerMissing as error:
                missing[name] = str(error)
                continue
            except OSError as error:  # processes or memory: a peer's must not cost what is known
                if name == "ours":
                    raise
                missing[name] = f"{name} cannot be started: {error}"
                continue
            stack.callback(found[name].close)
        rates = _take_turns(found, seconds, tell)
    ours = rates["ours"]
    wall = {n: rates[n].wall if n in rates else None for n in CONTENDERS}
    cpu = {n: rates[n].cpu if n in rates else None for n in CONTENDERS}
    return {
        "ant": wall,
        "ant_ratio": _over(ours.wall, wall),
        "ant_bound": _over(ours.physics_wall, wall),
        "ant_cpu": cpu,
        "ant_cpu_ratio": _over(ours.cpu, cpu),
        "ant_cpu_bound": _over(ours.physics_cpu, cpu),
        "ant_mujoco": {name: each.mujoco for name, each in found.items()},
        "ant_missing": missing,
    }


def _over(ours: float, theirs: dict[str, float | None]) -> dict[str, float | None]:
    """Our rate over that of each peer; None for who is not there, or where ours is not known."""
    known = math.isfinite(ours)
    return {n: ours / r if r and known else None for n, r in theirs.items() if n != "ours"}


def _take_turns(
    contenders: dict[str, Contender], seconds: float, tell: ProgressFn
) -> dict[str, Rates]:
    """Median rates of each."""
    rng = np.random.default_rng(0)
    for contender in contenders.values():
        _turn(contender, rng, steps=3)  # the first steps make threads, pages and caches
    rates: dict[str, list[Rates]] = {name: [] for name in contenders}
    begun = time.perf_counter()
    while len(rates["ours"]) < 3 or time.perf_counter() - begun < seconds:
        for name, contender in contenders.items():
            rates[name].append(_turn(contender, rng))
        tell(min(time.perf_counter() - begun, seconds), seconds)
    return {
        name: Rates(*np.median([astuple(turn) for turn in each], axis=0).tolist())
        for name, each in rates.items()
    }


def _turn(contender: Contender, rng: np.random.Generator, *, steps: int = 1) -> Rates:
    """Rates over at least ``steps`` steps."""
    taken, spent, cpu = 0, 0.0, contender.cpu_s()
    physics = contender.physics
    wall_s, cpu_s = (physics.wall_s, physics.cpu_s) if physics else (0.0, 0.0)
    while taken < steps or spent < _TURN_S:
        actions = rng.uniform(-1.0, 1.0, (contender.worlds, ACTION_DIM))
        before = time.perf_counter()
        contender.step(actions)
        spent += time.perf_counter() - before
        taken += 1
    done = contender.worlds * taken
    return Rates(
        wall=done / spent,
        cpu=_per(done, contender.cpu_s() - cpu),
        physics_wall=_per(done, physics.wall_s - wall_s if physics else 0.0),
        physics_cpu=_per(done, physics.cpu_s - cpu_s if physics else 0.0),
    )


def _per(steps: int, seconds: float) -> float:
    return steps / seconds if seconds > 0.0 else math.inf


def _cpu_with(pids: list[int]) -> float:
    """CPU time of this process and of others [s] (Linux; ``proc(5)``, ``stat``)."""
    ticks = 0
    for pid in pids:
        # The name of the program stands in brackets and may have any character in it.
        after = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks += int(after[11]) + int(after[12])  # user and system
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def _mujoco_of_envpool(pool: Any) -> str:
    """EnvPool links its own MuJoCo into its library, and says nowhere in Python which."""
    try:
        files = Path(pool.__file__).parent.glob("mujoco/mujoco_gym_envpool*")
        library = ctypes.CDLL(str(next(f for f in files if f.suffix in {".so", ".pyd"})))
        library.mj_versionString.restype = ctypes.c_char_p
        return library.mj_versionString().decode()
    except (OSError, AttributeError, StopIteration):
        return "unknown"


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PeerMissing(f"{name} cannot be imported ({error}); pip install 'ferry[peers]'") from (
            error
        )
