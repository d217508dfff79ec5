"""A training run from its configuration to its last checkpoint."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from real.errors import FerryError
from sim.env import make_env
from training.actor import ActorWorker, Adapting, VectorEnv
from training.async_loop import AsyncRuntime
from training.cluster_door import import_ray_engine
from training.gym_run import gym_run, gym_scorer, load_any_run_config, make_worlds
from training.interrupt import stop_on_signal
from training.learner import Learner
from training.learner_group import LeadLearner
from training.learner_member import LearnerSpec
from training.loop import Runtime, SerialRuntime
from training.metrics import MetricsWriter
from training.progress import ProgressFn, silent
from training.roles import (
    Evaluate,
    MakeEnv,
    RestartBudget,
    Stream,
    Task,
    actor_id,
)
from training.run_config import (
    RunConfig,
    load_run_config,
    require_minibatches,
    require_updates,
    side_by_side_config,
    with_absolute_files,
    with_limits,
)
from training.run_folder import (
    LoadedPolicy,
    begin_run,
    diverged_of,
    load_policy,
    new_run_dir,
    resume_run,
)
from training.scoring import EvaluatorCrew, InlineScorers, Scorers
from training.session import Session
from training.symmetry import Mirror

if TYPE_CHECKING:  # Ray is an extra
    from training.ray_processes import Processes

__all__ = [
    "LoadedPolicy",
    "RunConfig",
    "TrainResult",
    "load_any_run_config",
    "load_policy",
    "load_run_config",
    "new_run_dir",
    "train",
]

log = logging.getLogger(__name__)

RuntimeName = Literal["serial", "ray"]


@dataclass(frozen=True)
class TrainResult:
    """How a run ended.

    Attributes:
        run_dir: where everything is.
        training_s: wall time of all sessions of the run, evaluation included [s].
        evaluation_s: of that, evaluation [s].
        steps: control steps of all worlds.
        best_score: of the best checkpoint, None if nothing was evaluated.
        interrupted: whether a signal ended it.
    """

    run_dir: Path
    training_s: float
    evaluation_s: float
    steps: int
    best_score: float | None
    interrupted: bool

    def rows(self) -> dict[str, str]:
        """Names and values for people."""
        return {
            "run folder": str(self.run_dir),
            "time": f"{self.training_s:.0f} s",
            "env steps": f"{self.steps:,}",
            "best score": "-" if self.best_score is None else f"{self.best_score:.3f}",
        }


def train(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    minutes: float | None = None,
    steps: int | None = None,
    evaluate: Evaluate | None = None,
    progress: ProgressFn | None = None,
    env_factory: MakeEnv | None = None,
    runtime: RuntimeName = "serial",
    address: str | None = None,
) -> TrainResult:
    """Train, or go on training, until a limit is reached or a signal comes.

    On SIGINT or SIGTERM the present iteration is finished and a checkpoint written; a second
    signal ends the process at once. Either way no checkpoint is ever half written.

    Args:
        config: the run.
        out: its folder.
        resume: go on with the run in ``out``.
        minutes: total wall time of the run, earlier sessions included; the config's if None.
        steps: total control steps of all worlds; the config's if None.
        evaluate: scores the policy; :func:`training.evaluator.selection_scorer` if None, or
            nobody if ``env_factory`` is given.
        progress: told how far the run is.
        env_factory: makes the worlds of an actor; the task's own if None. With ``ray`` it is called
            in other processes, and here once for the sizes.
        runtime: ``serial`` is deterministic, in this process; ``ray`` has actors, evaluators and
            the store of weights in processes of their own and learns here.
        address: ``HOST:PORT`` of a Ray cluster; None starts Ray on this machine.

    Raises:
        FerryError: the folder or configuration does not allow it, the disk is full, or training
            broke down. The last good checkpoint stays.
    """
    config = with_limits(config, minutes=minutes, steps=steps)
    run = config.training.run
    if address is not None and runtime != "ray":
        raise FerryError(f"address {address} is of a Ray cluster; it needs the runtime ray")
    if evaluate is None and env_factory is None:
        evaluate = _selection(with_absolute_files(config))  # other processes may stand elsewhere
    with _threads(run.threads), contextlib.ExitStack() as stack:
        # The worlds come first: a task that cannot run leaves no folder behind.
        env = (env_factory or functools.partial(_task_env, run=out))(config, (0, 0))
        stack.callback(env.close)
        if runtime == "serial":
            made = _serial(config, env, evaluate)
        else:
            # Each of many actors has one core.
            own = functools.partial(_task_env, run=out.absolute(), threads=1)
            # The run folder keeps the configuration that both runtimes read.
            task = Task(side_by_side_config(config), env_factory or own, evaluate)
            made = _asynchronous(env, task, address)
        trainer, scorers = stack.enter_context(made)
        if resume:
            resume_run(out, config, trainer)
        else:
            begin_run(out, config)
        writer = MetricsWriter(out, first_step=trainer.progress.steps)
        stack.callback(writer.close)
        stop = stack.enter_context(stop_on_signal())
        session = Session(out, config, runtime=trainer, writer=writer, scorers=scorers, stop=stop)
        session.run(progress or silent, resumed=resume)
    done = trainer.progress
    return TrainResult(
        run_dir=out,
        training_s=done.training_s,
        evaluation_s=done.evaluation_s,
        steps=done.steps,
        best_score=done.best_score,
        interrupted=stop.is_set(),
    )


def _task_env(
    config: RunConfig, stream: Stream, *, run: Path, threads: int | None = None
) -> VectorEnv:
    """The task's own worlds; what diverges is left in the run folder, also by other processes."""
    if gym_run(config) is not None:
        return make_worlds(config, stream)
    return make_env(
        config,
        seed=config.training.seed,
        stream=stream,
        threads=threads,
        diverged=diverged_of(run) / actor_id(stream),
    )


def _selection(config: RunConfig) -> Evaluate:
    if gym_run(config) is not None:
        return gym_scorer(config)
    # Imported here, since it brings the robot's side: controller, filter and ONNX Runtime.
    from training.evaluator import selection_scorer

    return selection_scorer(config)


def _learner(config: RunConfig, env: VectorEnv) -> LearnerSpec:
    training = config.training
    return LearnerSpec(
        env.policy_dim,
        env.critic_dim,
        action_dim=env.action_dim,
        network=training.network,
        ppo=training.ppo,
        seed=training.seed,
        mirror=Mirror.of_env(training.symmetry, env),
        threads=training.run.threads,
        device=training.run.device,
    )


@contextlib.contextmanager
def _serial(
    config: RunConfig, env: VectorEnv, evaluate: Evaluate | None
) -> Iterator[tuple[Runtime, Scorers | None]]:
    training = config.training
    require_minibatches(training, env.num_envs, "sim.worlds")
    actor = ActorWorker(
        env,
        actor_id((0, 0)),
        network=training.network,
        seed=training.seed,
        mirror=Mirror.of_env(training.symmetry, env),
    )
    learner = _learner(config, env).make()
    runtime = SerialRuntime(actor, learner, horizon=training.horizon)
    yield runtime, None if evaluate is None else InlineScorers(evaluate)


@contextlib.contextmanager
def _asynchronous(
    env: VectorEnv, task: Task, address: str | None
) -> Iterator[tuple[Runtime, Scorers | None]]:
    ray_engine = import_ray_engine()
    config, training = task.config, task.config.training
    runtime_config = training.runtime
    actors = runtime_config.actors or max(1, (os.cpu_count() or 2) - 1)
    require_updates(config, actors=actors)
    evaluators = 0 if task.evaluate is None else runtime_config.evaluators
    numbers = env.num_envs * (training.horizon + 1) * (env.policy_dim + env.critic_dim)
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(
            ray_engine(
                task,
                processes=actors + evaluators + runtime_config.learners - 1,
                rollout_bytes=8 * numbers,  # four for each, and as much for all that is smaller
                rollouts=4 * actors,
                address=address,
            )
        )
        runtime = AsyncRuntime(
            stack.enter_context(_lead(config, env, engine.processes, local=address is None)),
            engine,
            config=runtime_config,
            actors=actors,
            horizon=training.horizon,
            # Nobody steps these worlds: what all actors' worlds share is decided in them.
            shared=env.shared if isinstance(env, Adapting) else None,
        )
        stack.callback(runtime.rest)
        if evaluators == 0:
            yield runtime, None
            return
        crew = EvaluatorCrew(
            engine,
            evaluators,
            timeout_s=runtime_config.evaluation_timeout_s,
            start_s=runtime_config.start_timeout_s,
            budget=RestartBudget(
                runtime_config.max_restarts, runtime_config.restart_window_s, clock=time.monotonic
            ),
            clock=time.monotonic,
        )
        runtime.idle_evaluators = lambda: crew.idle_share
        yield runtime, crew


@contextlib.contextmanager
def _lead(
    config: RunConfig, env: VectorEnv, processes: Processes, *, local: bool
) -> Iterator[Learner]:
    """The learner of this process, and with it those of others if there are any."""
    spec, runtime = _learner(config, env), config.training.runtime
    if runtime.learners == 1:
        yield spec.make()
        return
    from training.cluster_learners import RayLearnerHost

    budget = RestartBudget(runtime.max_restarts, runtime.restart_window_s, clock=time.monotonic)
    host = RayLearnerHost(spec, processes, local=local)
    lead = LeadLearner(spec, host, config=runtime, budget=budget, clock=time.monotonic)
    try:
        yield lead
    finally:
        lead.close()


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    """Let torch split an operation over so many threads.

    One is best for networks of a usual size: with more, threads wait for each other after every
    layer, and spin for milliseconds where another process has taken a core.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
