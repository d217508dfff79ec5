"""How fast actors and learner are: the numbers that a plan of a cluster is made from."""

from __future__ import annotations

import json
import logging
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from real.config import Config, parse_config
from real.errors import FerryError
from sim.env import make_env
from training.actor import VectorEnv
from training.progress import ProgressFn
from training.roles import Stream
from training.run_config import RunConfig, side_by_side_config
from training.train import train

log = logging.getLogger(__name__)

#: Iterations that are not looked at: memory and caches are still cold.
_WARM_UP = 2


class Rates(Config):
    """What was measured of actors and learner, by :func:`measure_rates` or from a benchmark."""

    actor_steps_per_s: float = Field(gt=0.0, description="control steps/s of an actor on one core")
    update_s_per_sample: float = Field(
        gt=0.0, description="learner time per sample of a batch, all epochs, on one learner [s]"
    )
    update_fixed_s: float = Field(default=0.0, ge=0.0, description="learner time per update [s]")
    sync_s: float = Field(
        default=0.0, ge=0.0, description="time per update to add up gradients of many learners [s]"
    )
    deliver_s: float = Field(
        default=0.0, ge=0.0, description="from a rollout's end to the queue [s]"
    )
    publish_s: float = Field(default=0.0, ge=0.0, description="from an update's end to actors [s]")
    spread: float = Field(
        default=0.1, ge=0.0, description="standard deviation of a rollout's duration over its mean"
    )


#: Without these there is no plan.
_COMPLETE = {"actor_steps_per_s": 1.0, "update_s_per_sample": 1.0}


def read_rates(path: str | Path) -> dict[str, float]:
    """Rates from a JSON file: an object of them, or what a benchmark prints, with it under `rates`.

    Returns:
        Those that are in it, by the keys of :class:`Rates`.

    Raises:
        FerryError: no such file, no JSON, or a key or number that does not belong there.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FerryError(f"{path}: no rates can be read from it: {error}") from error
    if isinstance(data, dict) and "rates" in data:
        data = data["rates"]
    if not isinstance(data, dict):
        raise FerryError(f"{path}: expected an object of rates by name, found {data!r:.40}")
    # What is required is completed with numbers that are in order, so that the rest is checked.
    parse_config(Rates, {**_COMPLETE, **data}, source=str(path))
    return {str(name): float(value) for name, value in data.items()}


def gather_rates(
    paths: Sequence[str | Path], config: RunConfig, *, progress: ProgressFn | None = None
) -> Rates:
    """Rates from files, a later one over an earlier; what none of them has is measured here.

    Args:
        paths: for instance of the learner, from a machine with a GPU, and of everything else.
        config: the task.
        progress: told how far a measurement is.

    Raises:
        FerryError: see :func:`read_rates`.
    """
    given: dict[str, float] = {}
    for path in paths:
        given |= read_rates(path)
    if given.keys() >= _COMPLETE.keys():
        return Rates(**given)
    here = measure_rates(config, progress=progress).model_dump()
    if given:
        names = ", ".join(sorted(_COMPLETE.keys() - given.keys()))
        log.warning("%s of a task is in none of the files of rates; measured here", names)
    return Rates(**{**here, **given})


def measure_rates(
    config: RunConfig, *, updates: int = 12, progress: ProgressFn | None = None
) -> Rates:
    """Measure a task on this computer, with one thread for the physics, as an actor has it.

    Times of delivery and publication between computers cannot be seen here and stay 0.

    Args:
        config: the task.
        updates: how many rollouts and updates are timed.
        progress: told how far it is.
    """
    config = side_by_side_config(config)
    samples = config.training.horizon * config.sim.worlds
    with tempfile.TemporaryDirectory(prefix="ferry_") as folder:
        train(
            config,
            Path(folder, "run"),
            steps=samples * (updates + _WARM_UP),
            env_factory=_one_thread,
            progress=progress,
        )
        lines = Path(folder, "run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [record for line in lines if "time/update_s" in (record := json.loads(line))]
    collect = [float(record["time/collect_s"]) for record in records[_WARM_UP:]]
    update = [float(record["time/update_s"]) for record in records[_WARM_UP:]]
    collected = statistics.median(collect)
    return Rates(
        actor_steps_per_s=samples / collected,
        update_s_per_sample=statistics.median(update) / samples,
        spread=statistics.pstdev(collect) / statistics.fmean(collect),
    )


def _one_thread(config: RunConfig, stream: Stream) -> VectorEnv:
    return make_env(config, seed=config.training.seed, stream=stream, threads=1)
