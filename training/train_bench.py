"""Wall time until A1 tracks its commands: our learner against others' on the same env.

All run in this process, one after the other, with torch on as many threads as the task says. What
counts is the time of collecting and learning; scoring, which is ours for all, is not in it. The
policies of ours are then scored in both engines, on seeds that chose none of them.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sim.env import make_env
from training.a1_bench import EVALUATE_EVERY, Reached, median, part_of, run_until
from training.learner_peers import PeerMissing
from training.progress import ProgressFn, silent
from training.roles import Evaluate
from training.run_config import RunConfig, load_run_config
from training.suites import find_suite, require_engines, suites_on
from training.train_peers import TRAINERS, PeerRun

GOAL = 0.9


@dataclass(frozen=True)
class TrainTimes:
    """Runs of each learner by name, why others have none, and our policies' scores.

    Attributes:
        runs: name -> one of each seed.
        missing: name -> why it was not run.
        scores: suite -> our score of each seed.
    """

    runs: dict[str, tuple[Reached, ...]]
    missing: dict[str, str]
    scores: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])

    def seconds(self, name: str) -> float | None:
        """Median over the seeds without evaluation; a run that never got there is the longest."""
        runs = self.runs.get(name)
        return median(run.without_evaluation_s for run in runs) if runs else None

    @property
    def ratio(self) -> float | None:
        """Ours over the better peer's; None if either is not known."""
        ours = self.seconds("ours")
        peers = [s for name in TRAINERS if (s := self.seconds(name)) is not None]
        return None if ours is None or not peers else ours / min(peers)

    @property
    def transfer(self) -> float | None:
        """Our score in PyBullet over that in MuJoCo, the median of the seeds."""
        of = {find_suite(name).engine: each for name, each in self.scores.items()}
        pairs = zip(of.get("pybullet", ()), of.get("mujoco", ()), strict=True)
        ratios = [there / here for there, here in pairs if here > 0.0]
        return statistics.median(ratios) if ratios else None

    def as_json(self) -> dict[str, Any]:
        """What JSON holds of it; keys are stable."""
        names = ("ours", *TRAINERS)
        return {
            f"seconds_to_{GOAL:g}": {name: self.seconds(name) for name in names},
            "ratio": self.ratio,
            "runs": {name: [vars(run) for run in runs] for name, runs in self.runs.items()},
            "missing": self.missing,
            "scores": {suite: list(each) for suite, each in self.scores.items()},
            "pybullet_over_mujoco": self.transfer,
        }

    def rows(self) -> dict[str, str]:
        """For a table on the terminal."""
        rows = dict(self.missing)
        for name, runs in self.runs.items():
            rows[name] = ", ".join(
                f"not reached, best {run.best:.3f}"
                if run.without_evaluation_s is None
                else f"{run.without_evaluation_s:.0f} s, {run.steps or 0:,} steps"
                for run in runs
            )
        rows["ours over the better"] = "-" if self.ratio is None else f"{self.ratio:.2f}"
        for suite, each in self.scores.items():
            rows[f"ours, {suite}"] = ", ".join(f"{score:.3f}" for score in each)
        return rows


def bench_train(
    *,
    peers: bool = False,
    seeds: int = 3,
    minutes: float = 15.0,
    config: str = "a1_walk",
    progress: ProgressFn | None = None,
) -> TrainTimes:
    """Train until :data:`GOAL` is reached on the selection seeds, or time is over.

    Args:
        peers: also Stable-Baselines3 and rsl_rl, where they are installed.
        seeds: runs of each.
        minutes: after which a run is given up.
        config: the task, by name or file.
        progress: told how far it is; by time, so that it ends early as a rule.

    Raises:
        FerryError: the task is wrong, or PyBullet missing; before the first run.
    """
    suites = suites_on(terrain=load_run_config(config, []).terrain is not None)
    require_engines(suites)
    names = ["ours", *(TRAINERS if peers else ())]
    runs: dict[str, list[Reached]] = {}
    missing: dict[str, str] = {}
    scores: dict[str, list[float]] = {}
    for number in range(seeds * len(names)):
        seed, name = number // len(names), names[number % len(names)]
        tell = part_of(progress or silent, number, seeds * len(names))
        if name in missing:
            continue
        try:
            if name == "ours":
                found, scored = _ours(
                    seed, config=config, minutes=minutes, progress=tell, suites=suites
                )
                for suite, score in scored.items():
                    scores.setdefault(suite, []).append(score)
            else:
                found = peer_until(name, seed, minutes=minutes, config=config, progress=tell)
        except PeerMissing as error:
            missing[name] = str(error)
            continue
        runs.setdefault(name, []).append(found)
    return TrainTimes(
        {name: tuple(each) for name, each in runs.items()},
        missing,
        {suite: tuple(each) for suite, each in scores.items()},
    )


def _ours(
    seed: int, *, config: str, minutes: float, progress: ProgressFn, suites: Iterable[str]
) -> tuple[Reached, dict[str, float]]:
    """One run of ours, and what its policy is worth in both engines."""
    from training.evaluator import evaluate_path

    with tempfile.TemporaryDirectory(prefix="ferry_") as folder:
        run = Path(folder, "run")
        found = run_until(
            "serial", seed, goal=GOAL, config=config, minutes=minutes, progress=progress, out=run
        )
        scored = {suite: evaluate_path(run, suite=suite).score.mean for suite in suites}
    return found, scored


def peer_until(
    name: str,
    seed: int,
    *,
    minutes: float,
    config: str = "a1_walk",
    progress: ProgressFn | None = None,
    goal: float = GOAL,
) -> Reached:
    """One run of a peer; see :func:`bench_train`.

    Raises:
        PeerMissing: it is not installed.
    """
    from training.evaluator import selection_scorer

    task = load_run_config(config, [f"training.seed={seed}"])
    env = make_env(task, seed=seed)
    before = torch.get_num_threads()
    torch.set_num_threads(task.training.run.threads)
    try:
        run = TRAINERS[name](env, task, seed)
        return _until(run, task, selection_scorer(task), goal, minutes * 60.0, progress or silent)
    finally:
        torch.set_num_threads(before)
        env.close()


def _until(
    run: PeerRun,
    task: RunConfig,
    evaluate: Evaluate,
    goal: float,
    limit_s: float,
    tell: ProgressFn,
    clock: Callable[[], float] = time.monotonic,
) -> Reached:
    batch = task.sim.worlds * task.training.horizon
    begun, evaluating, best, iteration = clock(), 0.0, 0.0, 0
    while (elapsed := clock() - begun) < limit_s:
        run.iterate()
        iteration += 1
        if iteration % EVALUATE_EVERY:
            continue
        asked = clock()
        score = float(evaluate(run.policy())["score"])
        learned = asked - begun - evaluating
        evaluating += clock() - asked
        best = max(best, score)
        tell(elapsed, limit_s, f"score {score:.3f}")
        if score >= goal:
            return Reached(clock() - begun, learned, iteration * batch, best)
    return Reached(None, None, None, best)
