"""A training run from its configuration to its last checkpoint."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from sim.env import make_env
from training.actor import ActorWorker, VectorEnv
from training.checkpoint import (
    checkpoint_name,
    pointed,
    prune_checkpoints,
    save_checkpoint,
    set_pointer,
)
from training.learner import Learner
from training.loop import SerialRuntime
from training.metrics import MetricsWriter, drop_records_after
from training.networks import ActorCritic
from training.progress import ProgressFn, silent
from training.run_config import RunConfig, load_run_config, with_limits
from training.run_folder import (
    LoadedPolicy,
    begin_run,
    checkpoints_of,
    load_policy,
    new_run_dir,
    record_evaluation,
    resume_run,
)
from training.symmetry import Mirror

__all__ = [
    "LoadedPolicy",
    "RunConfig",
    "TrainResult",
    "load_policy",
    "load_run_config",
    "new_run_dir",
    "train",
]

log = logging.getLogger(__name__)

#: Scores a policy on seeds kept for selection: a mapping for ``evaluations.jsonl`` that has at
#: least ``score`` in it, higher is better.
Evaluate = Callable[[ActorCritic], Mapping[str, Any]]
#: Makes the worlds of a run.
MakeEnv = Callable[[RunConfig], VectorEnv]


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
        env_factory: makes the worlds; the task's own if None.

    Raises:
        FerryError: the folder or configuration does not allow it, the disk is full, or training
            broke down. The last good checkpoint stays.
    """
    config = with_limits(config, minutes=minutes, steps=steps)
    run = config.training.run
    if evaluate is None and env_factory is None:
        evaluate = _selection(config)
    with _threads(run.threads), contextlib.ExitStack() as stack:
        # The worlds come first: a task that cannot run leaves no folder behind.
        env = (env_factory or _task_env)(config)
        stack.callback(env.close)
        runtime = _runtime(config, env)
        if resume:
            runtime.restore(resume_run(out, config))
            drop_records_after(out / "evaluations.jsonl", runtime.progress.steps)
        else:
            begin_run(out, config)
        writer = MetricsWriter(out, first_step=runtime.progress.steps)
        stack.callback(writer.close)
        stop = stack.enter_context(_stop_on_signal())
        session = _Session(
            out, config, runtime=runtime, writer=writer, evaluate=evaluate, stop=stop
        )
        session.run(progress or silent, resumed=resume)
    done = runtime.progress
    return TrainResult(
        run_dir=out,
        training_s=done.training_s,
        evaluation_s=done.evaluation_s,
        steps=done.steps,
        best_score=done.best_score,
        interrupted=stop.is_set(),
    )


class _Session:
    """The loop around the runtime: limits, metrics, evaluations, checkpoints."""

    def __init__(
        self,
        out: Path,
        config: RunConfig,
        *,
        runtime: SerialRuntime,
        writer: MetricsWriter,
        evaluate: Evaluate | None,
        stop: threading.Event,
    ) -> None:
        self._out = out
        self._root = checkpoints_of(out)
        self._run = config.training.run
        self._runtime = runtime
        self._writer = writer
        self._evaluate = evaluate
        self._stop = stop
        self._saved_step: int | None = None
        self._earlier_s = runtime.progress.training_s
        self._start = time.perf_counter()

    def run(self, progress: ProgressFn, *, resumed: bool) -> None:
        done = self._runtime.progress
        if resumed:
            self._saved_step = done.steps
            self._point_at_best()
            if done.evaluated_step != done.steps:
                # What was loaded is scored before it is changed: a policy that was spoilt on
                # the way shows here.
                self._score()
        while self._share() < 1.0 and not self._stop.is_set():
            metrics = self._runtime.iterate()
            share = self._share()
            times = {
                "time/training_s": done.training_s,
                "time/evaluation_s": done.evaluation_s,
            }
            self._writer.write(done.steps, {**metrics, **times})
            if self._due(self._run.evaluate_every):
                self._score()
            elif self._due(self._run.checkpoint_every):
                self._save()
            progress(share, 1.0, self._note(metrics))
        self._save()
        if done.evaluated_step != done.steps and not self._stop.is_set():
            self._score()
        progress(self._share(), 1.0)

    def _share(self) -> float:
        """How much of the run is done, 1 when a limit is reached."""
        done, run = self._runtime.progress, self._run
        self._tick()
        shares = [done.steps / run.steps]
        if run.minutes is not None:
            shares.append(done.training_s / (60.0 * run.minutes))
        return min(1.0, max(shares))

    def _tick(self) -> None:
        """Bring the training time up to date."""
        elapsed = time.perf_counter() - self._start
        self._runtime.progress.training_s = self._earlier_s + elapsed

    def _due(self, every: int) -> bool:
        return every > 0 and self._runtime.progress.iteration % every == 0

    def _score(self) -> None:
        """Save, evaluate, and point ``best`` here if it is."""
        self._save()
        if self._evaluate is None:
            return
        done = self._runtime.progress
        start = time.perf_counter()
        record = dict(self._evaluate(self._runtime.policy_copy()))
        done.evaluation_s += time.perf_counter() - start
        self._tick()
        score = float(record["score"])
        done.evaluated_step = done.steps
        better = done.best_score is None or score > done.best_score
        if better:
            done.best_score, done.best_step = score, done.steps
        self._save(again=True)  # with the score in it
        if better:
            set_pointer(self._root, "best", self._runtime.checkpoint_name)
        about = {
            "step": done.steps,
            "iteration": done.iteration,
            "version": self._runtime.learner.version,
            "training_s": done.training_s,
            "evaluation_s": done.evaluation_s,
        }
        record_evaluation(self._out, {**about, **record})
        self._writer.write(done.steps, {"evaluation/score": score})
        log.info("%d steps: score %.3f, best %.3f", done.steps, score, done.best_score)

    def _point_at_best(self) -> None:
        """Finish what a kill between saving a best score and pointing at it left undone."""
        step = self._runtime.progress.best_step
        if step is None:
            return
        best = self._root / checkpoint_name(step)
        if best.is_dir() and pointed(self._root, "best") != best:
            set_pointer(self._root, "best", best.name)

    def _save(self, *, again: bool = False) -> None:
        if again or self._saved_step != self._runtime.progress.steps:
            save_checkpoint(self._root, self._runtime.checkpoint())
            self._saved_step = self._runtime.progress.steps
            prune_checkpoints(self._root, keep=self._run.keep)

    def _note(self, metrics: Mapping[str, float]) -> str:
        done = self._runtime.progress
        parts = [f"{done.steps / 1e6:.2f}M steps", f"{metrics['time/steps_per_s']:,.0f}/s"]
        if "train/return" in metrics:
            parts.append(f"return {metrics['train/return']:.1f}")
        if done.best_score is not None:
            parts.append(f"best {done.best_score:.3f}")
        return ", ".join(parts)


def _task_env(config: RunConfig) -> VectorEnv:
    return make_env(config, seed=config.training.seed)


def _selection(config: RunConfig) -> Evaluate:
    # Imported here, since it brings the robot's side: controller, filter and ONNX Runtime.
    from training.evaluator import selection_scorer

    return selection_scorer(config)


def _runtime(config: RunConfig, env: VectorEnv) -> SerialRuntime:
    training = config.training
    actor = ActorWorker(env, "actor-0", network=training.network, seed=training.seed)
    learner = Learner(
        env.policy_dim,
        env.critic_dim,
        action_dim=env.action_dim,
        network=training.network,
        ppo=training.ppo,
        seed=training.seed,
        mirror=_mirror(config, env),
    )
    return SerialRuntime(actor, learner, horizon=training.horizon)


def _mirror(config: RunConfig, env: VectorEnv) -> Mirror | None:
    if not config.training.symmetry.enabled:
        return None
    task: Any = env  # only a robot's env has the specs below
    return Mirror.of(
        config.training.symmetry,
        task.robot,
        observation=task.observation_spec,
        action=task.action_spec,
    )


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


@contextlib.contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """Set an event on the first SIGINT or SIGTERM; the second has its usual effect."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may handle signals
        return
    # None stands for a handler that was not set from Python.
    before = {
        number: signal.getsignal(number) or signal.SIG_DFL
        for number in (signal.SIGINT, signal.SIGTERM)
    }

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])
        log.warning("stopping after this iteration; again to stop at once")

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
