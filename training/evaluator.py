"""Scores policies on seeds that training never saw, through the controller that runs on the robot.

N episodes are N worlds of one engine and N robots of one :class:`~deploy.controller.Controller`,
safety filter included: what is scored is what would have moved the robot.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from deploy.bundle import read_bundle
from deploy.policy import OnnxPolicy, Policy
from deploy.safety import Verdict
from real.contract import RobotContract
from real.errors import FerryError
from real.reach import ReachSpace, poses_reached
from real.spec import RobotSpec, load_robot
from sim.measure import passive_hinges
from sim.task import EnvConfig
from sim.world_config import WorldConfig
from training.bundle_world import bundle_world, require_bundle
from training.checkpoint import Pointer
from training.contract import run_contract
from training.networks import ActorCritic
from training.progress import ProgressFn, silent
from training.run_config import RunConfig
from training.run_folder import load_policy
from training.scores import (
    NEVER,
    Interval,
    Steps,
    balance,
    fall_steps,
    falls_per_minute,
    mean_interval,
    tracking,
)
from training.suites import (
    Purpose,
    episode_seeds,
    find_suite,
    selection_suite,
)
from training.torch_policy import TorchPolicy
from training.trial import Trajectory, Worlds, contract_space, run_trial

Array = NDArray[np.float64]

#: What a score is: ``tracking`` of a velocity command (:func:`training.scores.tracking`), or the
#: share of time ``upright`` (:func:`training.scores.balance`) where there is nothing to command, or
#: the share of commanded poses that were ``reached`` (:func:`real.reach.poses_reached`).
Measure = Literal["tracking", "upright", "reached"]

#: Episodes that choose the best checkpoint: more would cost training time, fewer would choose by
#: luck. Every checkpoint meets the same ones.
SELECTION_EPISODES = 16


@dataclass(frozen=True)
class Episode:
    """One episode of an evaluation.

    Attributes:
        index: which; with the evaluation's seed it says everything the episode drew.
        score: see :data:`Measure`, in [0, 1].
        fallen_s: when the robot fell [s], or None.
        clamped_share: commands that the filter changed, of those while upright.
    """

    index: int
    score: float
    fallen_s: float | None
    clamped_share: float

    @property
    def tracking(self) -> float:
        """The score, where it is that."""
        return self.score


@dataclass(frozen=True)
class Evaluation:
    """Scores of a policy on a suite.

    Attributes:
        suite: its name.
        episodes: how many.
        seed: which set of episodes.
        purpose: whether the episodes were for selection or for a report.
        score: mean over episodes with its 95 % interval.
        falls_per_minute: with its 95 % interval.
        clamped_share: commands that the safety filter changed, of those while upright.
        each: every episode.
        measure: what the score is.
    """

    suite: str
    episodes: int
    seed: int
    purpose: Purpose
    score: Interval
    falls_per_minute: Interval
    clamped_share: float
    each: tuple[Episode, ...]
    measure: Measure = "tracking"

    @property
    def tracking(self) -> Interval:
        """The score, where it is that.

        Raises:
            FerryError: the task has no velocity command to track.
        """
        if self.measure != "tracking":
            raise FerryError(f"this evaluation measured {self.measure!r} and no tracking")
        return self.score

    def rows(self) -> dict[str, str]:
        """Names and values for people."""
        score, falls = self.score, self.falls_per_minute
        return {
            "episodes": str(self.episodes),
            "seed": str(self.seed),
            f"{self.measure} (95 %)": f"{score.mean:.3f} [{score.low:.3f}, {score.high:.3f}]",
            "falls per minute (95 %)": f"{falls.mean:.2f} [{falls.low:.2f}, {falls.high:.2f}]",
            "commands clamped": f"{100.0 * self.clamped_share:.1f} %",
        }

    def as_json(self) -> dict[str, Any]:
        """What JSON holds of it, scores under the name of the measure; keys are stable.

        ``falls_per_minute`` is a number and its interval stands beside it.
        """
        out = dataclasses.asdict(self)
        for part in (out, *out["each"]):
            part[self.measure] = part.pop("score")
        falls = out["falls_per_minute"]
        out["falls_per_minute"] = falls["mean"]
        out["falls_per_minute_95"] = {"low": falls["low"], "high": falls["high"]}
        return out


def evaluate(
    policy: Policy,
    config: EnvConfig | WorldConfig | None,
    *,
    suite: str = "nominal",
    episodes: int | None = None,
    seed: int = 0,
    purpose: Purpose = "report",
    progress: ProgressFn | None = None,
) -> Evaluation:
    """Score a policy.

    Args:
        policy: from a bundle or a run.
        config: its task, or what a bundle keeps of it; needed for suites with the task's own
            randomisation or terrain, and for robots that are not among the shipped ones.
        suite: key of :data:`training.suites.SUITES`.
        episodes: how many; the suite's default if None.
        seed: which set of episodes, >= 0.
        purpose: selection and report never share an episode.
        progress: told how far it is.

    Raises:
        FerryError: unknown suite, a number out of range, a robot that does not fit the policy.
    """
    chosen = find_suite(suite)
    count = chosen.episodes if episodes is None else episodes
    seeds = episode_seeds(seed, count, purpose=purpose)
    robot = load_robot(policy.contract.robot if config is None else config.robot)
    policy.contract.require_match(RobotContract.from_spec(robot))
    made = Worlds(chosen, robot, config=config, seeds=seeds)
    with contextlib.closing(made) as worlds, _falls_are_results():
        run = run_trial(policy, worlds, progress=progress or silent)
    dt, steps, counted = robot.control_dt_s, run.command.shape[0], run.counted
    measure: Measure = "tracking" if policy.contract.command.dim else "upright"
    space = contract_space(policy.contract)
    if space is not None:
        measure = "reached"
    scores, fallen = _scored(run, robot, measure, space)
    upright = np.arange(steps)[:, None] < np.where(fallen == NEVER, counted, fallen)
    clamped = (run.verdict == Verdict.CLAMPED) & upright
    shares = clamped.sum(axis=0) / np.maximum(upright.sum(axis=0), 1)
    return Evaluation(
        suite=chosen.name,
        episodes=len(seeds),
        seed=seed,
        purpose=purpose,
        measure=measure,
        score=mean_interval(scores),
        falls_per_minute=falls_per_minute(fallen, steps=counted, dt_s=dt),
        clamped_share=float(clamped.sum() / max(int(upright.sum()), 1)),
        each=tuple(
            Episode(
                index=i,
                score=float(scores[i]),
                fallen_s=None if fallen[i] == NEVER else float((fallen[i] + 1) * dt),
                clamped_share=float(shares[i]),
            )
            for i in range(len(seeds))
        ),
    )


def _scored(
    run: Trajectory, robot: RobotSpec, measure: Measure, space: ReachSpace | None
) -> tuple[Array, Steps]:
    """Score and step of the fall of every episode, ``[N]`` each."""
    dt, low = robot.control_dt_s, robot.fall_height_m
    if space is not None:
        fallen = fall_steps(run.tilt_rad, run.height_m, fall_height_m=low, dt_s=dt)
        return poses_reached(run.command, run.q, space.kinematics, dt_s=dt), fallen
    if measure == "tracking":
        fallen = fall_steps(run.tilt_rad, run.height_m, fall_height_m=low, dt_s=dt)
        fallen = np.where(fallen < run.counted, fallen, NEVER)
        given = {"fallen_at": fallen, "dt_s": dt, "counted": run.counted}
        return tracking(run.command, run.lin_vel_b, run.ang_vel_b, **given), fallen
    if not passive_hinges(robot).size:
        raise FerryError(
            f"robot {robot.name!r} has no hinge without a motor to keep upright, and its policy no "
            "command to track: there is nothing to score"
        )
    # What leans like a base that fell has fallen, too.
    tilted = np.maximum(run.tilt_rad, run.lean_rad)
    fallen = fall_steps(tilted, run.height_m, fall_height_m=low, dt_s=dt)
    return balance(run.lean_rad, fallen_at=fallen), fallen


@contextlib.contextmanager
def _falls_are_results() -> Iterator[None]:
    """Keep the filter from warning of each robot it stops: here a fall is a number of the result.

    On a robot the same line is worth a warning, and with ``--verbose`` it is shown here too.
    """
    logger = logging.getLogger("deploy.safety_pipeline")
    before = logger.level
    if logger.getEffectiveLevel() >= logging.WARNING:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def evaluate_path(
    path: str | Path,
    *,
    which: Pointer = "best",
    suite: str = "nominal",
    episodes: int | None = None,
    seed: int = 0,
    progress: ProgressFn | None = None,
    task: str | Path | None = None,
    actuator: Path | None = None,
) -> Evaluation:
    """Score a run folder's policy, or a bundle, on the report seeds.

    Args:
        path: of the run folder or bundle.
        which: of a run, the ``best`` checkpoint by its selection score, or the ``latest``.
        suite: see :func:`evaluate`, as all that follows.
        episodes: how many.
        seed: which set of episodes.
        progress: told how far it is.
        task: of a bundle, as all that follows: the task whose world it is evaluated in, in place of
            its own; see :func:`training.bundle_world.bundle_world`.
        actuator: its learned actuator.

    Raises:
        FerryError: neither of the two, a bundle's ``latest``, or see :func:`evaluate`.
    """
    path = Path(path)
    chosen: dict[str, Any] = {"suite": suite, "episodes": episodes, "seed": seed}
    if path.is_dir():
        require_bundle(path, task=task, actuator=actuator)
        loaded = load_policy(path, which)
        policy = TorchPolicy(loaded.module, run_contract(loaded.config, loaded.meta))
        return evaluate(policy, loaded.config, **chosen, progress=progress)
    if not path.is_file():
        raise FerryError(f"there is no run folder or bundle {path}")
    if which != "best":
        raise FerryError(
            f"{path} is a bundle, which holds one policy; {which!r} chooses a checkpoint of a "
            "run folder"
        )
    bundle = read_bundle(path)
    with bundle_world(bundle, task=task, actuator=actuator) as world:
        return evaluate(OnnxPolicy(bundle), world, **chosen, progress=progress)


def selection_scorer(
    config: RunConfig, *, episodes: int = SELECTION_EPISODES
) -> Callable[[ActorCritic], Mapping[str, Any]]:
    """What a training run calls to choose its best checkpoint.

    Always the same nominal episodes, in the engine and on the ground of the task; none of them is
    ever reported.

    Returns:
        A function from a policy to a record with ``score`` and the evaluation's own keys.
    """
    contract = run_contract(config, {})
    suite = selection_suite(config.sim.engine, terrain=config.terrain is not None)

    def score(module: ActorCritic) -> dict[str, Any]:
        found = evaluate(
            TorchPolicy(module, contract),
            config,
            suite=suite,
            episodes=episodes,
            purpose="selection",
        )
        record = found.as_json()
        del record["each"]
        return {"score": found.score.mean, **record}

    return score
