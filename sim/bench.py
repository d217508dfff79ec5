"""How fast the environment is, against the fastest it could be: its own physics with nothing else.

The raw run replays what the env did: the same targets, from the same states, with the same model
fields of every world, on the same ``mujoco.batch``. Whatever the env changed between two control
steps (resets, pushes, random terms) is written into the raw run while no clock runs, so both do
bit for bit the same physics, and the ratio of the two is the share that the env leaves to it.
Blocks of both alternate, so that a machine that slows down slows both down, and the median block
counts, so that one that was held up by something else does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import mujoco
import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from sim.engine import Array, Ids
from sim.env import VecEnv, make_env
from sim.mujoco_engine import MujocoEngine
from sim.task import load_env_config

PolicyFn = Callable[[NDArray[np.float32]], NDArray[np.floating]]
ProgressFn = Callable[[float, float], None]

_BLOCK = 25  # control steps: short beside what disturbs a machine, long beside a clock's tick
_STAGE_VEL = int(mujoco.mjtStage.mjSTAGE_VEL)  # pyright: ignore[reportAttributeAccessIssue]


@dataclass
class _Recording:
    """What the env did to its engine in one block.

    Attributes:
        start: the engine before it.
        states: ``[N, S]`` integration states before each control step.
        targets: ``[N, A]`` of each control step.
        rows: worlds that were reset before each control step.
        fields: model fields of these worlds, by name.
    """

    start: dict[str, NDArray[np.generic]]
    states: list[Array] = field(default_factory=list)
    targets: list[Array] = field(default_factory=list)
    rows: list[Ids] = field(default_factory=list)
    fields: list[dict[str, Array]] = field(default_factory=list)


class Replay:
    """Runs an env block by block, and its physics again without it.

    Args:
        env: the env, in use by nobody else.
        policy: observations ``[N, D]`` to actions ``[N, A]``; None for random actions.

    Attributes:
        corrected: how many states of single worlds the raw run took over from the env so far:
            one for every reset, one for every push.
    """

    def __init__(self, env: VecEnv, *, policy: PolicyFn | None = None) -> None:
        self._env = env
        self._engine = _mujoco(env)
        self._policy = policy
        self._rng = np.random.default_rng(0)
        self._obs = env.reset()["policy"]
        self._reset: Ids = np.zeros(0, dtype=np.intp)  # by the last step
        self.corrected = 0

    def run_env(self, steps: int) -> tuple[float, float, _Recording]:
        """Step the env.

        Returns:
            Seconds in ``env.step``, seconds in the policy, and what happened.
        """
        recording = _Recording(start=self._engine.state_dict())
        in_env = in_policy = 0.0
        for _ in range(steps):
            before = time.perf_counter()
            action = self._act()
            in_policy += time.perf_counter() - before
            self._record(recording)
            before = time.perf_counter()
            result = self._env.step(action)
            in_env += time.perf_counter() - before
            recording.targets.append(self._env.targets.sent.copy())
            self._obs, self._reset = result.obs["policy"], result.final_ids
        return in_env, in_policy, recording

    def _act(self) -> NDArray[np.floating]:
        if self._policy is not None:
            return self._policy(self._obs)
        shape = (self._env.num_envs, self._env.action_dim)
        return self._rng.normal(0.0, 0.5, shape)

    def _record(self, recording: _Recording) -> None:
        engine, rows = self._engine, self._reset
        recording.states.append(engine.batch.state.copy())
        recording.rows.append(rows)
        recording.fields.append({name: v[rows] for name, v in engine.fields.items()})

    def run_raw(self, recording: _Recording) -> float:
        """Step the physics alone through a recorded block; the env's own continues afterwards.

        Returns:
            Seconds in writing controls and stepping.
        """
        engine = self._engine
        kept = engine.state_dict()
        engine.load_state_dict(recording.start)
        batch, substeps = engine.batch, engine.robot.substeps
        ctrl = batch.bind("ctrl")
        servos = engine.built.actuator_ids
        seconds = 0.0
        for step, targets in enumerate(recording.targets):
            self._follow(recording, step)
            before = time.perf_counter()
            ctrl[:, servos] = targets
            batch.step(nstep=substeps, stage=_STAGE_VEL)
            seconds += time.perf_counter() - before
        engine.load_state_dict(kept)
        return seconds

    def _follow(self, recording: _Recording, step: int) -> None:
        """Take over what the env changed between two control steps."""
        engine, rows = self._engine, recording.rows[step]
        if rows.size:
            for name, values in recording.fields[step].items():
                engine.fields[name][rows] = values
            engine.refresh_constants(rows)
        state = engine.batch.state
        other = np.flatnonzero((state != recording.states[step]).any(axis=1))
        self.corrected += other.size
        if other.size:
            state[other] = recording.states[step][other]
            engine.batch.forward(other, stage=_STAGE_VEL)


def _mujoco(env: VecEnv) -> MujocoEngine:
    if not isinstance(env.engine, MujocoEngine):
        raise FerryError(
            "the benchmark compares an env with mujoco.batch alone; expected sim.engine: mujoco"
        )
    return env.engine


def bench_sim(
    config_path: str,
    *,
    worlds: int = 256,
    threads: int = 0,
    seconds: float = 10.0,
    policy: PolicyFn | None = None,
    overrides: Sequence[str] = (),
    progress: ProgressFn | None = None,
) -> dict[str, float | int | None]:
    """Measure the env of a task against its physics alone.

    Args:
        config_path: the task, by name or file.
        worlds: N.
        threads: physics threads; 0 for all CPUs.
        seconds: how long to measure, about [s].
        policy: observations ``[N, D]`` to actions ``[N, A]``; None for random actions.
        overrides: settings ``"a.b=value"`` of the task.
        progress: called with seconds spent and the total.

    Returns:
        ``env_steps_per_s`` control steps of all worlds per second of the full env,
        ``raw_steps_per_s`` of the physics alone, ``ratio`` of the two, ``with_policy_ratio`` of env
        and policy together to the physics alone (None without a policy), ``worlds``, ``threads``.

    Raises:
        ConfigError: the task cannot be read.
        FerryError: it cannot run.
    """
    config = load_env_config(config_path, list(overrides))
    if config.actuators is not None:
        raise FerryError(
            "the raw physics is stepped under servos, which a task with a learned actuator does "
            "not have; `python -m sim.actuator_bench` measures what that costs"
        )
    env = make_env(config, num=worlds, threads=threads, seed=0)
    try:
        replay = Replay(env, policy=policy)
        replay.run_env(_BLOCK)  # warm caches, and robots that have come off their starts
        blocks: list[tuple[float, float, float]] = []
        begun = time.perf_counter()
        while len(blocks) < 3 or time.perf_counter() - begun < seconds:
            in_env, in_policy, recording = replay.run_env(_BLOCK)
            blocks.append((in_env, in_policy, replay.run_raw(recording)))
            if progress is not None:
                progress(min(time.perf_counter() - begun, seconds), seconds)
        in_env, in_policy, in_raw = np.median(blocks, axis=0).tolist()
        steps = _BLOCK * worlds
        return {
            "env_steps_per_s": steps / in_env,
            "raw_steps_per_s": steps / in_raw,
            "ratio": in_raw / in_env,
            "with_policy_ratio": None if policy is None else in_raw / (in_env + in_policy),
            "worlds": worlds,
            "threads": _mujoco(env).threads,
        }
    finally:
        env.close()
