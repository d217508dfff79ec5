"""The simulator's benchmark with a policy in the loop, of which the simulator knows nothing."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from deploy.bundle import read_bundle
from deploy.policy import OnnxPolicy
from real.config import config_path
from real.errors import FerryError
from real.spec import load_robot
from sim import bench
from sim.task import action_spec, observation_spec
from training.memory import Memory
from training.networks import ActorCritic
from training.progress import ProgressFn, silent
from training.run_config import RunConfig, load_run_config

#: The policy that acts where it fits the task. A trained one, since a robot that falls all the
#: time measures resets.
BUNDLE = "bundles/a1_walk.onnx"


def bench_sim(
    config: str,
    *,
    worlds: int | None = None,
    threads: int | None = None,
    seconds: float = 20.0,
    progress: ProgressFn | None = None,
) -> dict[str, float | int | None]:
    """Measure the full env, with its policy, against its physics alone.

    Args:
        config: the task, by name or file.
        worlds: N; the task's if None.
        threads: physics threads; the task's if None, 0 for all CPUs.
        seconds: how long to measure, about [s].
        progress: told how far it is.

    Returns:
        See :func:`sim.bench.bench_sim`.

    Raises:
        FerryError: the task cannot be read or run.
    """
    task = load_run_config(config)
    tell = progress or silent
    return bench.bench_sim(
        config,
        worlds=task.sim.worlds if worlds is None else worlds,
        threads=task.sim.threads if threads is None else threads,
        seconds=seconds,
        policy=acting_policy(task),
        progress=lambda done, total: tell(done, total),
    )


def acting_policy(task: RunConfig) -> bench.PolicyFn:
    """The shipped policy if it was trained for these observations, else a new network of the task.

    Args:
        task: what it shall act in.

    Returns:
        A function from observations ``[N, D]`` to mean actions ``[N, A]``.
    """
    robot = load_robot(task.robot)
    wanted = observation_spec(task, robot)
    try:
        shipped = OnnxPolicy(read_bundle(config_path(BUNDLE)))
    except FerryError:
        shipped = None
    known = shipped is not None and shipped.contract.observation == wanted
    if shipped is not None and known and shipped.contract.state is None:
        return lambda obs: shipped.infer(obs)[0]
    network = ActorCritic(
        wanted.dim, 1, action_dim=action_spec(task, robot).dim, config=task.training.network
    ).eval()

    memory: Memory | None = None

    @torch.no_grad()
    def act(obs: NDArray[np.float32]) -> NDArray[np.float32]:
        # Nobody says here when episodes end: to an untrained network, and to its speed, it is one.
        nonlocal memory
        memory = memory or Memory(network, len(obs))
        return memory.mean(torch.from_numpy(obs)).numpy()

    return act
