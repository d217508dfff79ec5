"""What ``ferry bench async`` found, beside its goals: as JSON and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from training.queue import LagStats
from training.rates import Rates

#: Numbers of actors at which throughput is reported.
SCALE = (1, 2, 4, 8, 16)

Row = tuple[str, str, str, str]
HEADER = ("what", "measured", "goal", "")


@dataclass(frozen=True)
class AsyncResult:
    """Scaling, idle shares, lag and disturbances of the asynchronous runtime.

    Attributes:
        throughput: rollouts per second that actors delivered, by their number.
        actor_idle_share: share of actors' time in which they had work and were not at it, while
            the learner was slower than they.
        actor_parked_share: share in which the throttle kept them back meanwhile.
        learner_idle_share: share of time in which the learner waited, while actors sufficed.
        lag: of the rollouts used, the throttle at work [versions].
        used_over_bound: of these, those older than ``max_staleness``.
        dropped_share: share of rollouts that nobody learned from, the throttle at work.
        slowdown: what was disturbed -> throughput of the others over what it was before.
        planner: planned over measured throughput, by number of actors.
        rates: what those plans were made from, at the fewest actors.
    """

    throughput: Mapping[int, float]
    actor_idle_share: float
    actor_parked_share: float
    learner_idle_share: float
    lag: LagStats
    used_over_bound: int
    dropped_share: float
    slowdown: Mapping[str, float]
    planner: Mapping[int, float]
    rates: Rates

    @property
    def scaling(self) -> dict[int, float]:
        """Throughput over that of one actor; 0 where nothing was delivered."""
        one = self.throughput.get(1, 0.0)
        return {k: self.throughput[k] / one if one else 0.0 for k in sorted(self.throughput)}

    @property
    def efficiency(self) -> tuple[int, float]:
        """Most actors, and their scaling over their number."""
        most = max(self.throughput)
        return most, self.scaling[most] / most

    @property
    def planner_deviation(self) -> float:
        """Largest ``|planned / measured - 1|``."""
        return max((abs(value - 1.0) for value in self.planner.values()), default=0.0)

    def as_json(self) -> dict[str, Any]:
        """What JSON holds of it; keys are stable."""
        most, efficiency = self.efficiency
        return {
            "scaling": {str(k): value for k, value in self.scaling.items()},
            f"efficiency_{most}": efficiency,
            "actor_idle_share": self.actor_idle_share,
            "actor_parked_share": self.actor_parked_share,
            "learner_idle_share": self.learner_idle_share,
            "lag": {"mean": self.lag.mean, "p95": self.lag.p95, "max": self.lag.largest},
            "used_over_bound": self.used_over_bound,
            "dropped_share": self.dropped_share,
            "slowdown": dict(self.slowdown),
            "planner": {str(k): value for k, value in sorted(self.planner.items())},
            "planner_deviation": self.planner_deviation,
            "rates": self.rates.model_dump(),
            "throughput_per_s": {str(k): v for k, v in sorted(self.throughput.items())},
        }

    def table_rows(self) -> list[Row]:
        """Every value, its goal, and whether it is met."""
        most, efficiency = self.efficiency
        idle = self.actor_idle_share, self.learner_idle_share
        steps = " ".join(f"{k}: {value:.2f}" for k, value in self.scaling.items())
        rows = [
            ("throughput over that of 1 actor", steps, "", ""),
            _row(f"of linear at {most} actors", efficiency, ">= 0.90", efficiency >= 0.9),
            _row("actors idle, learner slower", idle[0], "<= 5 %", idle[0] <= 0.05),
            _row("learner idle, actors suffice", idle[1], "<= 5 %", idle[1] <= 0.05),
            (
                "lag, mean",
                f"{self.lag.mean:.2f} (p95 {self.lag.p95:.0f}, max {self.lag.largest:.0f})",
                "<= 2",
                _said(self.lag.mean <= 2.0),
            ),
            (
                "rollouts used over the bound",
                str(self.used_over_bound),
                "0",
                _said(self.used_over_bound == 0),
            ),
            _row("rollouts dropped", self.dropped_share, "< 5 %", self.dropped_share < 0.05),
        ]
        for name, value in self.slowdown.items():
            rows.append(
                _row(f"others while {_WORDS[name]}", value, "1 +- 0.10", abs(value - 1) <= 0.1)
            )
        planned = " ".join(f"{k}: {value:.2f}" for k, value in sorted(self.planner.items()))
        worst = self.planner_deviation
        rows += [
            ("planned over measured throughput", planned, "", ""),
            _row("of these the worst is off by", worst, "<= 15 %", worst <= 0.15),
        ]
        return rows


_WORDS = {
    "learner_5x": "the learner is 5x slower",
    "actor_5x": "an actor is 5x slower",
    "evaluator_stopped": "the evaluator is stopped",
    "store_stopped": "the store is stopped",
}


def _row(name: str, value: float, goal: str, met: bool) -> Row:
    """A number, shown as a share where its goal is one."""
    return name, f"{100.0 * value:.1f} %" if "%" in goal else f"{value:.2f}", goal, _said(met)


def _said(met: bool) -> str:
    return "met" if met else "MISSED"
