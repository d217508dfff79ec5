"""Every shipped robot learns its task: how long it takes here, and its score in both engines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from real.errors import FerryError
from training.a1_bench import Reached, part_of, run_until
from training.evaluator import evaluate_path
from training.progress import ProgressFn, silent
from training.run_config import load_run_config
from training.scores import Interval
from training.suites import require_engines, suites_on

#: The shipped tasks, one for each robot, and A1 on rough ground.
TASKS = (
    "a1_walk",
    "laikago_walk",
    "mini_cheetah_walk",
    "panda_reach",
    "iiwa_reach",
    "cartpole_balance",
    "a1_terrain",
)

#: Score on the selection seeds at which a run ends, of a task that names none itself.
GOAL = 0.95


@dataclass(frozen=True)
class Learned:
    """What became of one task.

    Attributes:
        measure: what the score is; see :data:`training.evaluator.Measure`.
        goal: score on the selection seeds that ended the run.
        reached: when it scored the goal.
        scores: suite -> score on the report seeds with its 95 % interval, of the best policy.
    """

    measure: str
    goal: float
    reached: Reached
    scores: Mapping[str, Interval]

    def as_json(self) -> dict[str, Any]:
        """What JSON holds of it; keys are stable."""
        scores = {name: [s.mean, s.low, s.high] for name, s in self.scores.items()}
        return {"measure": self.measure, "goal": self.goal, **vars(self.reached), "scores": scores}

    def row(self) -> list[str]:
        """Goal, time and steps to it, and a score for each engine."""
        reached = self.reached
        when = [f"best {reached.best:.3f}", "-"]
        if reached.without_evaluation_s is not None:
            when = [f"{reached.without_evaluation_s:.0f}", f"{1e-6 * (reached.steps or 0):.2f}"]
        scores = [f"{s.mean:.3f} [{s.low:.2f}, {s.high:.2f}]" for s in self.scores.values()]
        return [f"{self.goal:g}", *when, *scores]


@dataclass(frozen=True)
class Failed:
    """A task that could not be trained or scored.

    Attributes:
        reason: the error, as a run of its own would have said it.
    """

    reason: str

    def as_json(self) -> dict[str, Any]:
        """What JSON holds of it; keys are stable."""
        return {"failed": self.reason}

    def row(self) -> list[str]:
        """The reason, in place of numbers."""
        return ["-", f"failed: {self.reason}", "-", "-", "-"]


#: Of the table on the terminal.
HEADER = ("task", "goal", "seconds", "M steps", "MuJoCo", "PyBullet")


def bench_robots(
    out: Path,
    *,
    tasks: Sequence[str] = TASKS,
    minutes: float = 6.0,
    seed: int = 0,
    episodes: int | None = None,
    progress: ProgressFn | None = None,
) -> dict[str, Learned | Failed]:
    """Train each to its goal or until time is over, and score the best policy of each.

    What is known after each task stands in ``results.json`` of the folder, so that neither an
    interruption nor a task that fails loses the others.

    The goal is the task's ``training.run.stop_score``, or :data:`GOAL` where it has none.

    Args:
        out: for the run folders, one of each task's name, and ``results.json``.
        tasks: which, by name or file.
        minutes: the most that a run may take, evaluation included.
        seed: root seed of every run.
        episodes: of each report; None for as many as the suite has.
        progress: told how far it is; by time, so that it ends early as a rule.

    Returns:
        Name -> what became of it.

    Raises:
        FerryError: two tasks have one name, one is wrong, or PyBullet is missing; before the first
            run.
    """
    names = [Path(task).stem for task in tasks]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise FerryError(f"two tasks are named {', '.join(sorted(twice))}; give each once")
    configs = {name: load_run_config(task, []) for name, task in zip(names, tasks, strict=True)}
    for config in configs.values():
        require_engines(suites_on(terrain=config.terrain is not None))
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Learned | Failed] = {}
    for number, (name, task) in enumerate(zip(names, tasks, strict=True)):
        tell = part_of(progress or silent, number, len(tasks))
        run, goal = out / name, configs[name].training.run.stop_score or GOAL
        suites = suites_on(terrain=configs[name].terrain is not None)
        try:
            reached = run_until(
                "serial", seed, goal=goal, config=task, minutes=minutes, progress=tell, out=run
            )
            scored = {s: evaluate_path(run, suite=s, episodes=episodes) for s in suites}
        except FerryError as error:
            found[name] = Failed(str(error))
        else:
            measure = next(iter(scored.values())).measure
            scores = {suite: each.score for suite, each in scored.items()}
            found[name] = Learned(measure, goal, reached, scores)
        result = {name: each.as_json() for name, each in found.items()}
        (out / "results.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return found
