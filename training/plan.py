"""How far a cluster carries: throughput and lag of a training run, and what limits it.

Every duration is a rate that was measured; :mod:`training.plan_model` plays them through, which
takes seconds for thousands of actors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from real.errors import FerryError
from training.plan_model import Cluster, Simulation, mean
from training.queue import LagStats
from training.rates import Rates
from training.run_config import RunConfig, require_updates, side_by_side_config

#: A learner that waits for less of its time is as busy as it gets, and less than this is lost in
#: every run.
_BUSY = 0.05

#: What may keep a run from learning from more samples, and what would help.
LIMITS: Mapping[str, str] = {
    "actors": "the learner waits for rollouts; more cores would help",
    "learner": "it is always busy; more or faster GPUs would help",
    "staleness": "the learner waits though more is made or could be: rollouts get too old while "
    "they are made; a shorter horizon or larger updates (runtime.fragments_per_update) would help",
}


@dataclass(frozen=True)
class Plan:
    """What a cluster would do, after its start.

    Attributes:
        cluster: what was simulated.
        samples_per_s: control steps that the learner learns from.
        made_per_s: control steps that actors make; the difference is dropped.
        versions_per_min: updates.
        lag: ``mean``, ``p95`` and ``max`` of the rollouts used, by their first steps [versions].
        step_lag: mean over the steps of the same rollouts; less where weights that come within
            rollouts are used in them (``runtime.refresh_every``) [versions].
        dropped_share: of the rollouts whose fate is known.
        queue_depth: rollouts that wait, mean at the start of an update.
        active_actors: those that the throttle leaves at work at the end.
        actor_idle: share of actors' time in which they had work and were not at it.
        actor_parked: share of actors' time in which they were given none.
        learner_idle: share of time in which the learner waited.
        limit: what keeps samples_per_s from being higher, a key of :data:`LIMITS`.
        saturation_actors: actors from which on the learner is the limit, if nothing is too old.
    """

    cluster: Cluster
    samples_per_s: float
    made_per_s: float
    versions_per_min: float
    lag: Mapping[str, float]
    step_lag: float
    dropped_share: float
    queue_depth: float
    active_actors: int
    actor_idle: float
    actor_parked: float
    learner_idle: float
    limit: str
    saturation_actors: int

    def as_json(self) -> dict[str, Any]:
        """What JSON holds of it; keys are stable."""
        return asdict(self)

    def rows(self) -> dict[str, str]:
        """For a table on the terminal."""
        made = self.cluster
        return {
            "cluster": f"{made.actors:,} actors, {self.active_actors:,} at work; "
            f"learners: {made.learners}, {made.per_update * made.fragment:,} samples an update",
            "throughput": f"{self.samples_per_s:,.0f} samples/s learned from",
            "made by actors": f"{self.made_per_s:,.0f} steps/s",
            "dropped": f"{100.0 * self.dropped_share:.1f} % of rollouts",
            "versions": f"{self.versions_per_min:,.1f} per minute",
            "lag": f"mean {self.lag['mean']:.2f}, p95 {self.lag['p95']:.0f}, "
            f"max {self.lag['max']:.0f} versions; of a mean step {self.step_lag:.2f}",
            "actors": f"{100.0 * self.actor_idle:.1f} % idle, "
            f"{100.0 * self.actor_parked:.1f} % parked",
            "learner": f"{100.0 * self.learner_idle:.1f} % idle",
            "saturates at": f"{self.saturation_actors:,} actors",
            "limit": f"{self.limit}: {LIMITS[self.limit]}",
        }


def plan(
    cores: int,
    gpus: int,
    *,
    config: RunConfig,
    rates: Rates,
    actors: int | None = None,
    seed: int = 0,
    updates: int = 200,
) -> Plan:
    """Simulate a training run on a cluster.

    One core feeds each learner, one each evaluator; all others act. Without a GPU there is one
    learner, on a core.

    Args:
        cores: CPU cores in all.
        gpus: L, or 0.
        config: task and runtime section: worlds per actor, horizon, queue, throttle.
        rates: as measured on such cores and GPUs.
        actors: instead of all remaining cores.
        seed: of the durations.
        updates: how many are looked at, after half as many at the start that are not.

    Raises:
        FerryError: a number is out of range, no core is left to act, or no update could be made.
    """
    config = side_by_side_config(config)
    runtime = config.training.runtime
    learners = max(1, gpus)
    left = cores - learners - runtime.evaluators if actors is None else actors
    if cores < 1 or gpus < 0 or updates < 1 or left < 1:
        raise FerryError(
            f"{cores} cores with {learners} learners and {runtime.evaluators} evaluators leave "
            f"{left} actors, {updates} updates; expected at least one of each"
        )
    require_updates(config, actors=left)
    per_update = runtime.fragments_per_update or left
    cluster = Cluster(
        actors=left,
        learners=learners,
        horizon=config.training.horizon,
        fragment=config.training.horizon * config.sim.worlds,
        per_update=per_update,
        capacity=runtime.queue_capacity or 2 * per_update,
    )
    model = Simulation(cluster, runtime, rates, seed=seed)
    seen, elapsed = model.run(updates)
    learner_idle, active = seen.waited_s / elapsed, model.active_actors
    lag = LagStats.of(seen.lags)
    limit = "learner"
    if learner_idle > _BUSY:
        limit = "staleness" if seen.drop_share > _BUSY or active < left else "actors"
    return Plan(
        cluster=cluster,
        samples_per_s=updates * per_update * cluster.fragment / elapsed,
        made_per_s=seen.arrived * cluster.fragment / elapsed,
        versions_per_min=60.0 * updates / elapsed,
        lag={"mean": lag.mean, "p95": lag.p95, "max": lag.largest},
        step_lag=mean(seen.step_lags),
        dropped_share=seen.drop_share,
        queue_depth=mean(seen.depths),
        active_actors=active,
        actor_idle=seen.actor_idle,
        actor_parked=seen.actor_parked,
        learner_idle=learner_idle,
        limit=limit,
        saturation_actors=saturation(cluster, rates, per_update=runtime.fragments_per_update),
    )


def saturation(cluster: Cluster, rates: Rates, *, per_update: int | None) -> int:
    """Fewest actors that keep the learner busy.

    K actors make per_update rollouts in rollout_s per_update / K; the learner is the limit from
    where an update takes as long. With an update per K rollouts (``per_update`` None) both sides
    grow with K: rollout_s = fixed + K per_rollout.
    """
    rollout = cluster.rollout_s(rates)
    if per_update is not None:
        return max(1, math.ceil(per_update * rollout / cluster.update_s(rates) - 1e-9))
    each = rates.update_s_per_sample * cluster.fragment / cluster.learners
    fixed = cluster.update_s(rates) - cluster.per_update * each
    return max(1, math.ceil((rollout - fixed) / each - 1e-9))
