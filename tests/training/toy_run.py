"""A run on the toy env whose worlds, scores and faults other processes can make: by name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import numpy as np
import torch

from real.rollout import Rollout
from training.networks import ActorCritic
from training.process_tree import descendants, with_title
from training.roles import Stream
from training.run_config import RunConfig, load_run_config
from training.toy_env import PointEnv

WORLDS, HORIZON = 16, 8
#: Control steps of a rollout.
FRAGMENT = WORLDS * HORIZON
#: How long anything may take on a busy machine [s]; nobody waits so long where all is well.
PATIENCE_S = 200.0

SMALL = (
    "training.network.hidden=[16, 16]",
    "training.network.critic_hidden=[16]",
    f"training.horizon={HORIZON}",
    "training.seed=4",
    "training.run.threads=1",
    "training.run.checkpoint_every=50",
    "training.run.evaluate_every=0",
    "training.symmetry.enabled=false",  # the toy has no left and right
    "training.runtime.actors=1",
    "training.runtime.evaluators=1",
)


def toy_config(*overrides: str) -> RunConfig:
    return load_run_config("a1_walk", [*SMALL, *overrides])


def toy_env(config: RunConfig, stream: Stream) -> PointEnv:
    return PointEnv(WORLDS, seed=config.training.seed, limit=11, stream=stream)


class SlowEnv(PointEnv):
    """Each step takes some time, and uses no CPU in it."""

    step_s = 0.002

    def step(self, actions):
        time.sleep(self.step_s)
        return super().step(actions)


def slow_env(config: RunConfig, stream: Stream) -> SlowEnv:
    return SlowEnv(WORLDS, seed=config.training.seed, limit=11, stream=stream)


class CountedEnv(SlowEnv):
    """A file grows by one byte with each step."""

    step_s = 0.0005
    count: Path

    def step(self, actions):
        with self.count.open("ab") as file:
            file.write(b".")
        return super().step(actions)


def counted_env(config: RunConfig, stream: Stream, *, count: Path) -> CountedEnv:
    env = CountedEnv(WORLDS, seed=config.training.seed, limit=11, stream=stream)
    env.count = count
    return env


class FaultyEnv(SlowEnv):
    """Does something once, in the middle of an episode: what a file in a folder says.

    Not before its actor has delivered a rollout, which it has when it makes the third: until then
    it counts as one that starts, which may take long.
    """

    faults: Path
    steps = 0

    def step(self, actions):
        self.steps += 1
        for path in self.faults.glob("*") if self.steps > 2 * HORIZON else ():
            what = path.name
            try:
                path.unlink()  # whoever removes it does it
            except FileNotFoundError:
                continue
            if what == "raise":
                raise RuntimeError("the gears are full of sand")
            if what == "hang":
                time.sleep(3600.0)
            if what == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(actions)


def faulty_env(config: RunConfig, stream: Stream, *, faults: Path) -> FaultyEnv:
    env = FaultyEnv(WORLDS, seed=config.training.seed, limit=11, stream=stream)
    env.faults = faults
    return env


class BrokenEnv(PointEnv):
    def step(self, actions):
        raise RuntimeError("the gears are full of sand")


def broken_env(config: RunConfig, stream: Stream) -> BrokenEnv:
    return BrokenEnv(WORLDS, seed=config.training.seed, limit=11, stream=stream)


def score(policy: ActorCritic) -> dict[str, float]:
    """Depends on every weight and statistic, and on nothing else."""
    with torch.no_grad():
        obs = torch.from_numpy(np.linspace(-20.0, 20.0, 40, dtype=np.float32).reshape(10, 4))
        mean, _ = policy.advance(obs, torch.full((10, policy.hidden_size), 0.5))
        return {"score": float(mean.abs().mean())}


def rollout(version: int, *, num: int = 3, actor: str = "a") -> Rollout:
    """Zeros, made by a version of the policy."""
    return Rollout(
        obs=np.zeros((3, num, 1), np.float32),
        critic_obs=np.zeros((3, num, 1), np.float32),
        actions=np.zeros((2, num, 1), np.float32),
        log_probs=np.zeros((2, num), np.float32),
        rewards=np.zeros((2, num), np.float32),
        terminated=np.zeros((2, num), bool),
        truncated=np.zeros((2, num), bool),
        final_index=np.empty((0, 2), np.int64),
        final_critic_obs=np.empty((0, 1), np.float32),
        policy_version=version,
        actor_id=actor,
    )


#: Processes that several tests share, see the fixture ``cluster``; no run leaves them behind.
KEPT: set[int] = set()


def left_behind() -> list[int]:
    """Processes below this one that somebody should have ended."""
    kept = {pid for root in KEPT for pid in (root, *descendants(root))}
    # Python's own, started by whatever test first needed them, end with the interpreter.
    kept |= {forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid}
    return [pid for pid in descendants() if pid not in kept]


def workers(role: str, below: int | None = None) -> list[int]:
    """Processes below one that Ray has named after a role, such as ``_Actor``."""
    return with_title(f"ray::{role}", below)


def alive(pids: Iterable[int]) -> list[int]:
    """Those of the processes that still do something: zombies do not."""

    def state(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return "gone"

    return [pid for pid in pids if state(pid) not in ("gone", "Z", "X")]


def wait_until(condition: Callable[[], object], what: str = "it") -> None:
    """Wait for a condition, however busy the machine is.

    Raises:
        AssertionError: it does not come true.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S:g} s"
        time.sleep(0.05)
