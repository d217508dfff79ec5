"""Time until A1 tracks its commands: actors and learner side by side against in turns."""

from __future__ import annotations

import json
import math
import statistics
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from real.errors import FerryError
from training.progress import ProgressFn, silent
from training.run_config import load_run_config
from training.train import RuntimeName, train

#: Tracking that has to be reached, on the selection seeds.
GOAL = 0.85
#: Iterations between evaluations, of all learners alike: often enough to see when, seldom enough
#: not to be the cost.
EVALUATE_EVERY = 30
_RUNTIMES: tuple[RuntimeName, ...] = ("serial", "ray")


@dataclass(frozen=True)
class Reached:
    """When a run reached the goal.

    Attributes:
        seconds: wall time until the policy was there, evaluations on the way included.
        without_evaluation_s: the same without the pauses that evaluation is in the serial
            runtime; in the other it makes none.
        steps: control steps learned from.
        best: highest score, whether the goal was reached or not.
    """

    seconds: float | None
    without_evaluation_s: float | None
    steps: int | None
    best: float


@dataclass(frozen=True)
class A1Times:
    """Runs of each runtime, by its name."""

    runs: Mapping[str, tuple[Reached, ...]]

    def seconds(self, runtime: str) -> float | None:
        """Median over the seeds; a run that never reached the goal counts as the longest."""
        return median([run.seconds for run in self.runs[runtime]])

    @property
    def ratio(self) -> float | None:
        """Median of the Ray runtime over that of the serial one."""
        ray, serial = self.seconds("ray"), self.seconds("serial")
        return None if ray is None or serial is None else ray / serial

    def as_json(self) -> dict[str, Any]:
        """What JSON holds of it; keys are stable."""
        return {
            "goal": GOAL,
            "seconds": {name: self.seconds(name) for name in self.runs},
            "ratio": self.ratio,
            "runs": {name: [vars(run) for run in runs] for name, runs in self.runs.items()},
        }

    def rows(self) -> dict[str, str]:
        """For a table on the terminal."""
        rows = {}
        for name, runs in self.runs.items():
            each = ", ".join(
                f"not reached, best {run.best:.3f}"
                if run.seconds is None
                else f"{run.seconds:.0f} s ({run.without_evaluation_s:.0f} s without evaluation, "
                f"{run.steps or 0:,} steps)"
                for run in runs
            )
            rows[name] = each
        rows["ray over serial"] = "-" if self.ratio is None else f"{self.ratio:.2f} (goal <= 1.25)"
        return rows


def median(values: Iterable[float | None]) -> float | None:
    """The usual median, None standing for longer than all others."""
    found = statistics.median(math.inf if value is None else value for value in values)
    return found if math.isfinite(found) else None


def bench_a1(
    *, minutes: float = 10.0, seeds: int = 1, progress: ProgressFn | None = None
) -> A1Times:
    """Train A1 in both runtimes, in turns, until :data:`GOAL` is reached.

    Args:
        minutes: after which a run is given up.
        seeds: runs of each.
        progress: told how far it is; by time, so that it ends early as a rule.
    """
    runs: dict[str, list[Reached]] = {name: [] for name in _RUNTIMES}
    total = seeds * len(_RUNTIMES)
    for number in range(total):
        name, seed = _RUNTIMES[number % len(_RUNTIMES)], number // len(_RUNTIMES)
        advance = part_of(progress or silent, number, total)
        runs[name].append(run_until(name, seed, minutes=minutes, progress=advance))
    return A1Times({name: tuple(found) for name, found in runs.items()})


def part_of(whole: ProgressFn, number: int, parts: int) -> ProgressFn:
    """Progress of one of several parts as progress of all."""

    def advance(done: float, total: float, note: str = "") -> None:
        whole(number + done / max(total, 1e-9), float(parts), note)

    return advance


def run_until(
    name: RuntimeName,
    seed: int,
    *,
    minutes: float,
    progress: ProgressFn,
    goal: float = GOAL,
    config: str = "a1_walk",
    out: Path | None = None,
) -> Reached:
    """One run of a task until it scores ``goal``, or ``minutes`` are over.

    Args:
        name: of the runtime.
        seed: root seed of the run.
        minutes: after which it is given up.
        progress: told how far it is.
        goal: score on the selection seeds.
        config: the task, by name or file.
        out: the run folder that is left behind; None for none.
    """
    task = load_run_config(
        config,
        [
            f"training.seed={seed}",
            f"training.run.evaluate_every={EVALUATE_EVERY}",
            f"training.run.stop_score={goal}",
        ],
    )
    with tempfile.TemporaryDirectory(prefix="ferry_") as folder:
        run = out or Path(folder, "run")
        train(task, run, minutes=minutes, runtime=name, progress=progress)
        return reached(
            _lines(run / "evaluations.jsonl"),
            _lines(run / "metrics.jsonl"),
            pauses=name == "serial",
            goal=goal,
        )


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError as error:
        raise FerryError(f"{path} is missing: the run was too short for anything") from error


def reached(
    evaluations: Iterable[Mapping[str, Any]],
    metrics: Iterable[Mapping[str, Any]],
    *,
    pauses: bool,
    goal: float = GOAL,
) -> Reached:
    """When the first policy that scores at least ``goal`` was there.

    Its score may come later, where evaluation runs beside: what counts is the time of the update
    that made it.

    Args:
        evaluations: records with ``step`` and ``score``.
        metrics: records with ``step``, ``time/training_s`` and ``time/evaluation_s``.
        pauses: whether training stood still while policies were scored.
        goal: the score.
    """
    scores = {int(record["step"]): float(record["score"]) for record in evaluations}
    if not scores:
        raise FerryError("no policy was evaluated: the run was too short; give it more minutes")
    best = max(scores.values())
    good = [step for step, score in sorted(scores.items()) if score >= goal]
    times = {int(r["step"]): r for r in metrics if "time/training_s" in r}
    if not good or good[0] not in times:
        return Reached(None, None, None, best)
    record = times[good[0]]
    seconds, evaluating = float(record["time/training_s"]), float(record["time/evaluation_s"])
    return Reached(seconds, seconds - (evaluating if pauses else 0.0), good[0], best)
