"""The loop around a runtime: limits, metrics, evaluations, checkpoints. The same for each."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from training.checkpoint import (
    CheckpointError,
    checkpoint_name,
    pointed,
    prune_checkpoints,
    save_checkpoint,
    set_pointer,
)
from training.learner import TrainingDiverged
from training.loop import Runtime
from training.metrics import MetricsWriter
from training.progress import ProgressFn
from training.roles import RestartBudgetExceeded
from training.run_config import RunConfig
from training.run_folder import checkpoints_of, record_evaluation
from training.scoring import Scored, Scorers

log = logging.getLogger(__name__)

#: Errors that come between two updates: policy, optimiser and statistics are those of the last one.
#: After any other, half of an update may be in them.
_BETWEEN_UPDATES = (RestartBudgetExceeded, TrainingDiverged)


class Session:
    """Trains until a limit is reached, an evaluation says so, or a signal comes.

    Args:
        out: the run folder.
        config: the run.
        runtime: what is iterated.
        writer: of metrics.
        scorers: whoever scores policies, None for nobody.
        stop: set from outside to end after the present iteration.
    """

    def __init__(
        self,
        out: Path,
        config: RunConfig,
        *,
        runtime: Runtime,
        writer: MetricsWriter,
        scorers: Scorers | None,
        stop: threading.Event,
    ) -> None:
        self._out = out
        self._root = checkpoints_of(out)
        self._run = config.training.run
        waits = config.training.runtime
        self._patience_s = waits.start_timeout_s + waits.evaluation_timeout_s
        self._runtime = runtime
        self._writer = writer
        self._scorers = scorers
        self._stop = stop
        self._enough = False
        self._awaited: set[str] = set()
        self._submitted_step: int | None = None
        self._saved_step: int | None = None
        self._earlier_s = runtime.progress.training_s
        self._start = time.perf_counter()

    def run(self, progress: ProgressFn, *, resumed: bool) -> None:
        """Train; a last checkpoint is written at the end, and scored unless a signal made it.

        A spent restart budget and updates that are refused again and again leave a checkpoint of
        the last good state, too; any other error the one that was written before it.
        """
        try:
            self._train(progress, resumed=resumed)
        except _BETWEEN_UPDATES:
            self._keep_what_was_learned()
            raise

    def _train(self, progress: ProgressFn, *, resumed: bool) -> None:
        done = self._runtime.progress
        if resumed:
            self._saved_step = done.steps
            self._point_at_best()
            if done.evaluated_step != done.steps:
                # What was loaded is scored before it is changed: a policy that was spoilt on
                # the way shows here.
                self._score()
        while self._share() < 1.0 and not self._enough and not self._stop.is_set():
            metrics = self._runtime.iterate(self._stop)
            if metrics is None:
                break
            share = self._share()
            times = {
                "time/training_s": done.training_s,
                "time/evaluation_s": done.evaluation_s,
            }
            self._writer.write(done.steps, {**metrics, **times})
            if self._due(self._run.evaluate_every):
                self._score()
            else:
                if self._due(self._run.checkpoint_every):
                    self._save()
                self._judge()
            progress(share, 1.0, self._note(metrics))
        self._finish()
        progress(self._share(), 1.0)

    def _keep_what_was_learned(self) -> None:
        """A last checkpoint before an error leaves; what is wrong with that must not hide it."""
        try:
            self._runtime.rest()
            self._save()
        except CheckpointError as error:
            log.error("what was learned since the last checkpoint is lost: %s", error)

    def _finish(self) -> None:
        self._runtime.rest()
        self._save(again=True)  # also with the time by which it ended, which a resumed run reads
        if self._scorers is None or self._stop.is_set():
            return
        done = self._runtime.progress
        if done.steps not in (done.evaluated_step, self._submitted_step):
            self._score()
        deadline = time.monotonic() + self._patience_s
        self._judge()
        while self._awaited and time.monotonic() < deadline and not self._stop.wait(0.1):
            self._judge()
        if self._awaited:
            log.warning("no score came for %s", ", ".join(sorted(self._awaited)))

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
        """Save, and hand the policy to whoever scores."""
        self._save()
        if self._scorers is None:
            return
        request = self._runtime.score_request()
        self._awaited.add(request.checkpoint)
        self._submitted_step = request.step
        self._scorers.submit(request)
        self._judge()

    def _judge(self) -> None:
        if self._scorers is not None:
            for scored in self._scorers.poll():
                self._take(scored)

    def _take(self, scored: Scored) -> None:
        """Note a score, and point ``best`` at its checkpoint if it is."""
        request, record = scored.request, scored.record
        if record is None:
            self._awaited.discard(request.checkpoint)
            return
        done = self._runtime.progress
        done.evaluation_s += scored.took_s
        self._tick()
        score = float(record["score"])
        done.evaluated_step = max(request.step, done.evaluated_step or 0)
        better = _better(score, done.best_score)
        if not math.isfinite(score):
            log.warning(
                "%d steps: the score is %g, which no policy is chosen by", request.step, score
            )
        done.evaluations_since_best = 0 if better else done.evaluations_since_best + 1
        if better:
            done.best_score, done.best_step = score, request.step
        self._save(again=True)  # with the score in it; a kill from here on costs no best
        if better:
            set_pointer(self._root, "best", request.checkpoint)
        # Only now may it be removed: it is the best, or nobody wants it.
        self._awaited.discard(request.checkpoint)
        about = {
            "step": request.step,
            "iteration": request.iteration,
            "version": request.snapshot.version,
            "training_s": done.training_s,
            "evaluation_s": done.evaluation_s,
        }
        record_evaluation(self._out, {**about, **record})
        self._writer.write(request.step, {"evaluation/score": score})
        best = "none" if done.best_score is None else f"{done.best_score:.3f}"
        log.info("%d steps: score %.3f, best %s", request.step, score, best)
        self._enough = self._enough or self._good_enough(score)

    def _good_enough(self, score: float) -> bool:
        run, since = self._run, self._runtime.progress.evaluations_since_best
        if run.stop_score is not None and math.isfinite(score) and score >= run.stop_score:
            log.info("stopping early: score %.3f reached %.3f", score, run.stop_score)
            return True
        if run.patience and since >= run.patience:
            log.info("stopping early: %d evaluations without a new best", since)
            return True
        return False

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
            prune_checkpoints(self._root, keep=self._run.keep, spare=self._awaited)

    def _note(self, metrics: Mapping[str, float]) -> str:
        done = self._runtime.progress
        parts = [f"{done.steps / 1e6:.2f}M steps", f"{metrics['time/steps_per_s']:,.0f}/s"]
        if "train/return" in metrics:
            parts.append(f"return {metrics['train/return']:.1f}")
        if done.best_score is not None:
            parts.append(f"best {done.best_score:.3f}")
        return ", ".join(parts)


def _better(score: float, best: float | None) -> bool:
    """Whether a score is the best so far; one that is not finite never is, nor stays it."""
    return math.isfinite(score) and (best is None or not best >= score)
