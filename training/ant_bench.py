"""Ant-v5 with observations: our engine against EnvPool and Gymnasium's processes.

All take the same actions in their turns, so that a machine that slows down slows all down, and the
median turn counts. The peers are optional: of one that is not there it is said why, and null.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
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
    """

    worlds: int
    step: Callable[[Actions], Any]
    close: Callable[[], Any]
    mujoco: str


def _ours(worlds: int, threads: int) -> Contender:
    ants = AntWorlds(worlds, threads=threads)
    return Contender(worlds, ants.step, lambda: None, mujoco.mj_versionString())


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
    return Contender(count, env.step, env.close, mujoco.mj_versionString())


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
        theirs}, ``ant_mujoco`` {name: version}, ``ant_missing`` {name: why}.
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
            stack.callback(found[name].close)
        rates = _take_turns(found, seconds, tell)
    speed = {name: rates.get(name) for name in CONTENDERS}
    ours = rates["ours"]
    return {
        "ant": speed,
        "ant_ratio": {n: None if r is None else ours / r for n, r in speed.items() if n != "ours"},
        "ant_mujoco": {name: each.mujoco for name, each in found.items()},
        "ant_missing": missing,
    }


def _take_turns(
    contenders: dict[str, Contender], seconds: float, tell: ProgressFn
) -> dict[str, float]:
    """Median steps per second of each."""
    rng = np.random.default_rng(0)
    for contender in contenders.values():
        _turn(contender, rng, steps=3)  # the first steps make threads, pages and caches
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    begun = time.perf_counter()
    while len(rates["ours"]) < 3 or time.perf_counter() - begun < seconds:
        for name, contender in contenders.items():
            rates[name].append(_turn(contender, rng))
        tell(min(time.perf_counter() - begun, seconds), seconds)
    return {name: float(np.median(each)) for name, each in rates.items()}


def _turn(contender: Contender, rng: np.random.Generator, *, steps: int = 1) -> float:
    """Steps per second of all worlds, over at least ``steps`` steps."""
    taken, spent = 0, 0.0
    while taken < steps or spent < _TURN_S:
        actions = rng.uniform(-1.0, 1.0, (contender.worlds, ACTION_DIM))
        before = time.perf_counter()
        contender.step(actions)
        spent += time.perf_counter() - before
        taken += 1
    return contender.worlds * taken / spent


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
