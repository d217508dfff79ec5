"""How the cost of a world depends on how many there are: time per step and memory.

Envs of all sizes are held at once and take turns, so that a machine that slows down slows all of
them down; the median turn counts. The largest is made first, while nothing of ours has freed
memory that it could be given without growing.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sim.env import VecEnv, make_env
from sim.task import load_env_config

SIZES = (64, 256, 1024, 4096)
_MIB = 2**20
#: World-steps of a turn, alike for all sizes: half a second for a walking robot on one core.
TURN = 8192


def sweep(
    config_path: str,
    *,
    threads: int = 0,
    seconds: float = 20.0,
    sizes: Sequence[int] = SIZES,
    turn: int = TURN,
    overrides: Sequence[str] = (),
    progress: Callable[[float, float], None] | None = None,
) -> dict[str, Any]:
    """Measure envs of several sizes with random actions.

    Args:
        config_path: the task, by name or file.
        threads: physics threads; 0 for all CPUs.
        seconds: how long to measure, about [s]; every size has three turns at least.
        sizes: numbers of worlds.
        turn: world-steps of a turn.
        overrides: settings ``"a.b=value"`` of the task.
        progress: called with seconds spent and the total.

    Returns:
        ``per_world_step_us`` {worlds: time of one control step of one world [us]},
        ``mib_per_world`` by which the process grew for the largest env, over its worlds,
        ``per_world_step_spread``, the longest over the shortest of the times.

    Raises:
        ConfigError: the task cannot be read.
        FerryError: it cannot run.
    """
    config = load_env_config(config_path, list(overrides))
    rng = np.random.default_rng(0)
    with contextlib.ExitStack() as stack:
        envs: dict[int, VecEnv] = {}
        grown = 0.0
        for number in sorted(sizes, reverse=True):
            before = resident_bytes()
            env = make_env(config, num=number, threads=threads, seed=0)
            stack.callback(env.close)
            _turn(env, rng, steps=2)  # buffers that only a step makes
            if not envs:
                grown = (resident_bytes() - before) / number
            envs[number] = env
        times: dict[int, list[float]] = {number: [] for number in sorted(sizes)}
        begun = time.perf_counter()
        while min(map(len, times.values())) < 3 or time.perf_counter() - begun < seconds:
            for number, each in times.items():
                each.append(_turn(envs[number], rng, steps=max(2, turn // number)))
            if progress is not None:
                progress(min(time.perf_counter() - begun, seconds), seconds)
    found = {number: 1e6 * float(np.median(each)) for number, each in times.items()}
    return {
        "per_world_step_us": {str(number): value for number, value in found.items()},
        "per_world_step_spread": max(found.values()) / min(found.values()),
        "mib_per_world": grown / _MIB,
    }


def _turn(env: VecEnv, rng: np.random.Generator, *, steps: int) -> float:
    """Seconds of one control step of one world."""
    spent = 0.0
    for _ in range(steps):
        actions = rng.normal(0.0, 0.5, (env.num_envs, env.action_dim))
        before = time.perf_counter()
        env.step(actions)
        spent += time.perf_counter() - before
    return spent / (steps * env.num_envs)


def resident_bytes() -> int:
    """Memory of this process that is in RAM (Linux; ``proc(5)``, ``statm``)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
