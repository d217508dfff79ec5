"""Every metric of a run: its name, unit and meaning, and where it is written."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError, nearest
from real.rollout import Rollout


@dataclass(frozen=True)
class Metric:
    """What a number means.

    Attributes:
        unit: of the number; ``1`` for a plain number.
        meaning: in one sentence.
    """

    unit: str
    meaning: str


#: name -> unit and meaning. A name that ends in ``/*`` stands for one metric per term of the task.
METRICS: dict[str, Metric] = {
    "train/return": Metric(
        "1",
        "sum of rewards of the newest finished episode of each world, averaged over the worlds "
        "that finished one; each world counts once, so that short episodes do not count more",
    ),
    "train/length": Metric("steps", "length of the same episodes"),
    "train/terminated": Metric("1", "share of the same episodes that ended in a terminal state"),
    "train/worlds_finished": Metric(
        "1",
        "share of worlds that finished an episode so far; below 1 the numbers above favour short "
        "episodes",
    ),
    "train/episodes": Metric("1", "episodes finished since the run began"),
    "train/reward": Metric("1", "mean reward per control step of this iteration"),
    "reward/*": Metric("1", "mean of one reward term per control step, weight included"),
    "filter/clamped_share": Metric(
        "1",
        "share of joint targets that the robot's limits moved (`filter: on`), over all steps, "
        "worlds and joints; on the robot the safety filter says CLAMPED to those",
    ),
    "filter/*": Metric("1", "the same for one joint"),
    "curriculum/mean": Metric(
        "1", "share of the way to the table's ends that ranges have come, mean over all ends"
    ),
    "curriculum/*": Metric("1", "the same of one random term, mean of its two ends"),
    "terrain/mean": Metric(
        "1", "level that the run's worlds meet next on a tile, mean over worlds and tiles"
    ),
    "terrain/*": Metric("1", "the same of one tile; the number of levels where all passed it"),
    "episode/*": Metric("1", "one number of the env's, of the episodes of train/return"),
    "learner/version": Metric("1", "updates of the policy so far"),
    "learner/lag": Metric("versions", "version of the learner minus that of the rollouts, mean"),
    "learner/refused": Metric("1", "1 if this update was refused because of numbers not finite"),
    "learner/idle_share": Metric("1", "share of the session in which the learner had no rollouts"),
    "learner/versions_per_minute": Metric("1/min", "updates of this session over its time"),
    "learner/restarts": Metric("learners", "replaced since they died or hung, this session"),
    "learner/realigned": Metric(
        "learners", "given the first one's weights, since their CPUs round otherwise"
    ),
    "lag/mean": Metric("versions", "lag of the newest 1000 rollouts learned from, mean"),
    "lag/p95": Metric("versions", "lag that 95 % of the same rollouts do not exceed"),
    "lag/max": Metric("versions", "largest lag of the same rollouts"),
    "queue/depth": Metric("rollouts", "rollouts that waited after this update's were taken"),
    "queue/dropped_share": Metric("1", "share of the session's rollouts that nobody learned from"),
    "queue/overflowed": Metric("rollouts", "dropped because the queue was full, this session"),
    "queue/stale": Metric("rollouts", "dropped because they were over the bound, this session"),
    "queue/used_over_bound": Metric(
        "rollouts", "used although over the bound, with less weight; 0 where those are dropped"
    ),
    "actors/idle_share": Metric(
        "1", "share of the session in which actors that were not parked had nothing to do"
    ),
    "actors/parked_share": Metric(
        "1", "share of the session in which actors were kept back so that no sample is wasted"
    ),
    "actors/restarts": Metric("actors", "actors replaced since they died or hung, this session"),
    "evaluators/idle_share": Metric("1", "share of the session in which evaluators had no policy"),
    "throttle/active_actors": Metric("actors", "actors that are given work"),
    "throttle/in_flight": Metric("rollouts", "rollouts that may be under way or wait"),
    "throttle/publish_every": Metric("versions", "from one publication of weights to the next"),
    "throttle/decisions": Metric("1", "changes of the three settings above, this session"),
    "ppo/surrogate": Metric("1", "clipped surrogate loss, mean over minibatches"),
    "ppo/value_loss": Metric("1", "squared error of the value, clipped, mean over minibatches"),
    "ppo/kl": Metric("nat", "KL(policy before the update || policy), mean over minibatches"),
    "ppo/clip_fraction": Metric("1", "share of samples whose density ratio was clipped"),
    "ppo/grad_norm": Metric("1", "norm of the actor's gradient before it is bounded, mean"),
    "ppo/critic_grad_norm": Metric("1", "norm of the critic's gradient before it is bounded, mean"),
    "ppo/learning_rate": Metric("1", "step size of the actor's Adam after the update"),
    "ppo/entropy": Metric("nat", "entropy of the action distribution"),
    "ppo/std": Metric("1", "standard deviation of the action, mean over its dimensions"),
    "ppo/ratio_error": Metric(
        "1",
        "largest |density ratio - 1| before the update: rounding if the policy that acted is the "
        "one that learns, staleness otherwise",
    ),
    "ppo/rho_clip_share": Metric(
        "1", "share of samples whose density ratio before the update is above V-trace's rho_bar"
    ),
    "ppo/c_clip_share": Metric("1", "the same for c_bar, which bounds how far rewards look ahead"),
    "ppo/effective_sample_size": Metric(
        "1",
        "share of the batch that is left after weighting samples by their ratio before the update, "
        "(sum w)^2 / (n sum w^2): 1 for fresh data, 1/n if one sample rules",
    ),
    "ppo/step_share": Metric("1", "share of the actor's steps taken; below 1 if stop_kl ended it"),
    "ppo/explained_variance": Metric("1", "share of the value targets' variance explained"),
    "time/steps_per_s": Metric("1/s", "control steps of this iteration over its wall time"),
    "time/collect_s": Metric(
        "s",
        "wall time of collecting this iteration's rollout; of waiting for some, where actors make "
        "them beside the learner",
    ),
    "time/update_s": Metric("s", "wall time of this iteration's update"),
    "time/training_s": Metric("s", "wall time of training so far, evaluation included"),
    "time/evaluation_s": Metric("s", "wall time of evaluation so far"),
    "evaluation/score": Metric("1", "score of the policy on the selection seeds"),
}


def check_names(names: Mapping[str, Any]) -> None:
    """Refuse a metric that is written down nowhere.

    Raises:
        FerryError: naming it and the nearest known one.
    """
    for name in names:
        if name not in METRICS and f"{name.split('/')[0]}/*" not in METRICS:
            raise FerryError(
                f"metric {name!r} is not in training.metrics.METRICS{nearest(name, METRICS)}; "
                "write its unit and meaning there"
            )


class EpisodeTracker:
    """Statistics of finished episodes without a bias to short ones.

    Of every world of every actor only the newest finished episode counts. The mean over the first
    n finished episodes would be one over worlds that fall early.
    """

    def __init__(self) -> None:
        self._newest: dict[str, dict[str, NDArray[np.float64]]] = {}
        self._total = 0

    def add(self, rollout: Rollout) -> None:
        """Take the episodes that ended in a rollout; the later of two in a world counts."""
        self._total += len(rollout.episodes)
        known = self._newest.setdefault(rollout.actor_id, {})
        for episode in rollout.episodes:
            values = {
                "train/return": episode.total_reward,
                "train/length": float(episode.length),
                "train/terminated": float(episode.terminated),
                **{f"episode/{name}": value for name, value in episode.values.items()},
            }
            for name, value in values.items():
                if name not in known:
                    known[name] = np.full(rollout.num_envs, np.nan)
                known[name][episode.env] = value
        known.setdefault("train/return", np.full(rollout.num_envs, np.nan))

    @property
    def actors(self) -> list[str]:
        """Whose episodes count."""
        return list(self._newest)

    def forget(self, actor_id: str) -> None:
        """Leave out an actor that is gone: its worlds will finish no more episodes."""
        self._newest.pop(actor_id, None)

    def metrics(self) -> dict[str, float]:
        """Means over worlds; those of episodes are absent until the first one ended."""
        returns = [known["train/return"] for known in self._newest.values()]
        finished = np.concatenate([~np.isnan(r) for r in returns]) if returns else np.zeros(1)
        out = {
            "train/episodes": float(self._total),
            "train/worlds_finished": float(finished.mean()),
        }
        for name in sorted({name for known in self._newest.values() for name in known}):
            pooled = np.concatenate([k[name] for k in self._newest.values() if name in k])
            if not np.isnan(pooled).all():
                out[name] = float(np.nanmean(pooled))
        return out

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Flat arrays, keyed ``<actor>.<metric>``."""
        out: dict[str, NDArray[Any]] = {"total": np.array(self._total, dtype=np.int64)}
        for actor, known in self._newest.items():
            out.update({f"{actor}.{name}": values.copy() for name, values in known.items()})
        return out

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue where :meth:`state_dict` was taken."""
        self._total = int(state["total"])
        self._newest = {}
        for key, values in state.items():
            if key != "total":
                actor, _, name = key.partition(".")
                self._newest.setdefault(actor, {})[name] = np.array(values)


class MetricsWriter:
    """Writes metrics to ``metrics.jsonl`` and to TensorBoard, by env steps.

    Args:
        folder: the run folder.
        first_step: env steps at the start; records after it, of a run that was killed and is now
            resumed from an earlier checkpoint, are dropped.

    Raises:
        FerryError: the folder cannot be written to.
    """

    def __init__(self, folder: Path, *, first_step: int = 0) -> None:
        # TensorBoard is slow to import, and only training writes it.
        from torch.utils.tensorboard import SummaryWriter

        path = folder / "metrics.jsonl"
        purge = first_step + 1 if first_step else None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            drop_records_after(path, first_step)
            self._file = path.open("a", encoding="utf-8")
            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)
        except OSError as error:
            raise FerryError(f"cannot write metrics in run folder {folder}: {error}") from error

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one record.

        Args:
            step: env steps so far.
            metrics: by name; numbers that are not finite become null in the file.

        Raises:
            FerryError: a name that is not in :data:`METRICS`, or the disk is full.
        """
        check_names(metrics)
        finite = {k: v if math.isfinite(v) else None for k, v in metrics.items()}
        try:
            self._file.write(json.dumps({"step": step, **finite}) + "\n")
            self._file.flush()
            for name, value in metrics.items():
                self._board.add_scalar(name, value, step)
        except OSError as error:
            raise FerryError(f"cannot write metrics to {self._file.name}: {error}") from error

    def close(self) -> None:
        """Flush and close both."""
        self._file.close()
        self._board.close()


def drop_records_after(path: Path, step: int) -> None:
    """Keep the JSON lines of ``path`` up to ``step``; a broken last line is dropped as well."""
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if _step_of(line) <= step]
    if len(kept) == len(lines):
        return
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
    os.replace(temporary, path)


def _step_of(line: str) -> float:
    """Env steps of a record; infinite for a line that a crash cut short."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
