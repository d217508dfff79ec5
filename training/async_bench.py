"""How well the asynchronous runtime keeps its parts apart: what ``ferry bench async`` measures.

Real processes on Ray, real rollouts, weights and updates; only how long a control step, an update
and an evaluation last is emulated, see :mod:`training.paced`. Two runs: one without a throttle,
for scaling and disturbances, one with it, for idle shares, lag and drops.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from real.errors import FerryError
from training.async_result import SCALE, AsyncResult
from training.async_watch import PacedRun, Window, paced_config, paced_run
from training.plan import plan
from training.process_tree import with_title
from training.progress import ProgressFn, silent
from training.queue import LagStats
from training.rates import Rates
from training.run_config import RunConfig

#: Rollouts of an update in the run without a throttle.
PER_UPDATE = 2
#: Control step of an actor [s]; a rollout has 8 of them.
STEP_S = 0.05
ROLLOUT_S = 8 * STEP_S
#: Actors in the disturbed windows, and their learner's update: busy for 30 % of the time, so that
#: it is the bottleneck when it takes five times as long [s].
DISTURBED = 8
UPDATE_S = 0.3 * PER_UPDATE * ROLLOUT_S / DISTURBED
SLOWER = 5.0
#: Learner that is the bottleneck from 6 actors on: P / U = 6 / ROLLOUT_S [s].
PLANNED_UPDATE_S = PER_UPDATE * ROLLOUT_S / 6
#: Actors of the run with a throttle, and how much more they can make than the learner takes.
THROTTLED = 4
SLOW_SUPPLY, FED_SUPPLY = 2.0, 1.15


@dataclass(frozen=True)
class Lengths:
    """How long to look [s].

    Attributes:
        window: at each number of actors and disturbance.
        settle: after each change, unseen: two rollouts that were begun before it.
        away: how long the store is stopped.
        adapt: how long the throttle gets after a change.
        steady: how long it is looked at then.
    """

    window: float = 6.0
    settle: float = 2.5 * ROLLOUT_S
    away: float = 10.0
    adapt: float = 10.0
    steady: float = 15.0

    def total_s(self, scale: Sequence[int]) -> float:
        """About how long everything takes, with the start of its processes."""
        free = (2 * len(scale) + 4) * (self.window + self.settle) + self.away
        return free + 2 * (self.adapt + self.steady) + _start_s(max(scale)) + _start_s(THROTTLED)


def _start_s(actors: int) -> float:
    """About how long Ray and so many processes take to start on two cores [s]."""
    return 6.0 + 1.5 * actors


#: What ``--quick`` looks at; its numbers are rough.
QUICK = Lengths(window=3.0, adapt=6.0, steady=6.0)


class _Bar:
    """Progress in parts of about known length: none seems done before it is."""

    def __init__(self, progress: ProgressFn, total_s: float) -> None:
        self._progress = progress
        self.total_s = total_s
        self._before_s = self._part_s = 0.0
        self._begun = time.monotonic()
        self._note = ""

    def begin(self, note: str, seconds: float) -> None:
        """The last part is over; the next one is expected to take so long [s]."""
        self._before_s += self._part_s
        self._part_s, self._begun, self._note = seconds, time.monotonic(), note
        self.tick()

    def tick(self) -> None:
        passed = min(time.monotonic() - self._begun, self._part_s)
        self._progress(min(self._before_s + passed, 0.99 * self.total_s), self.total_s, self._note)

    def end(self) -> None:
        self._progress(self.total_s, self.total_s)


def bench_async(
    *,
    lengths: Lengths | None = None,
    scale: Sequence[int] = SCALE,
    progress: ProgressFn | None = None,
) -> AsyncResult:
    """Measure scaling, idle shares, lag, and what a disturbance of one does to the others.

    Args:
        lengths: how long to look.
        scale: numbers of actors, 1 among them; those of the report if not given.
        progress: told how far it is.

    Raises:
        FerryError: Ray cannot be started, or actors cannot.
    """
    lengths = lengths or Lengths()
    bar = _Bar(progress or silent, lengths.total_s(scale))
    most = max(scale)
    config = free_config()
    bar.begin(f"starting {most} actors", _start_s(most))
    with paced_run(config, actors=most, step_s=STEP_S, tick=bar.tick) as run:
        run.start(actors=most)
        # Down and up again: nobody inherits a queue that filled up before a slow learner.
        run.learner.update_s = 0.0
        scaling = _sweep(run, sorted(scale, reverse=True), lengths, bar)
        run.learner.update_s = PLANNED_UPDATE_S
        planned = _sweep(run, sorted(scale), lengths, bar)
        slowdown = _slowdowns(run, min(DISTURBED, most), lengths, bar)
    bar.begin("starting actors and throttle", _start_s(THROTTLED))
    with paced_run(paced_config(), actors=THROTTLED, step_s=STEP_S, tick=bar.tick) as run:
        run.start(actors=THROTTLED)
        slow = _steady(run, SLOW_SUPPLY, lengths, bar)
        fed = _steady(run, FED_SUPPLY, lengths, bar)
    bar.end()
    lags = [lag for window in (slow, fed) for update in window.updates for lag in update.lags]
    return AsyncResult(
        throughput={k: window.throughput() for k, window in scaling.items()},
        actor_idle_share=slow.actor_idle,
        actor_parked_share=slow.actor_parked,
        learner_idle_share=fed.learner_idle,
        lag=LagStats.of(lags),
        used_over_bound=slow.used_over_bound + fed.used_over_bound,
        dropped_share=max(slow.dropped_share, fed.dropped_share),
        slowdown=slowdown,
        planner=compare_with_plan(planned, config),
        rates=measured_rates(planned, config),
    )


def free_config(*overrides: str) -> RunConfig:
    """No throttle, so that nothing holds actors back, and one evaluator that always has work.

    No bound on staleness either: at ten updates a second, any would stop the learner while the
    store is away, as it should.
    """
    return paced_config(
        "training.runtime.throttle.enabled=false",
        "training.runtime.max_staleness=1000000",
        f"training.runtime.fragments_per_update={PER_UPDATE}",
        "training.runtime.queue_capacity=32",  # all actors may deliver at once
        "training.runtime.evaluators=1",
        *overrides,
    )


# ---------------------------------------------------------------------- without a throttle


def _sweep(run: PacedRun, numbers: Sequence[int], lengths: Lengths, bar: _Bar) -> dict[int, Window]:
    """A window at each number of actors."""
    found = {}
    for actors in numbers:
        bar.begin(f"{actors} actors", lengths.settle + lengths.window)
        run.set_active(actors)
        run.run(lengths.settle)
        found[actors] = run.run(lengths.window)
    return found


def _slowdowns(run: PacedRun, actors: int, lengths: Lengths, bar: _Bar) -> dict[str, float]:
    """Throughput of the others while one is disturbed, over what it was before."""
    run.learner.update_s = UPDATE_S
    run.set_active(actors)
    found: dict[str, float] = {}

    def look(note: str) -> Window:
        bar.begin(note, lengths.settle + lengths.window)
        run.run(lengths.settle)
        return run.run(lengths.window)

    free = look("undisturbed")
    run.learner.update_s = SLOWER * UPDATE_S
    found["learner_5x"] = ratio(look("learner slowed").throughput(), free.throughput())
    run.learner.update_s = UPDATE_S
    run.paces.set_step_s(0, SLOWER * STEP_S)
    slow = [name for name in free.rates() if name.split("-restart")[0] == "actor-0"]
    found["actor_5x"] = ratio(
        look("an actor slowed").throughput(without=slow), free.throughput(without=slow)
    )
    run.paces.set_step_s(0, STEP_S)
    run.run(SLOWER * ROLLOUT_S)  # until its last slow rollout is there
    with stopped("ray::_Evaluator"):
        found["evaluator_stopped"] = of_both(look("evaluator stopped"), free)
    with stopped("ray::WeightStore"):
        bar.begin("store stopped", lengths.away)
        found["store_stopped"] = of_both(run.run(lengths.away), free)
    return found


@contextlib.contextmanager
def stopped(title: str) -> Iterator[None]:
    """Stop a process of this run as a whole (SIGSTOP), and let it go on.

    Raises:
        FerryError: there is none whose title begins so.
    """
    pids = with_title(title)
    if not pids:
        raise FerryError(f"no process of this run is called {title}; it ended, or Ray renamed it")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def ratio(value: float, reference: float) -> float:
    """0 where there is nothing to compare with: a measurement that failed is no success."""
    return value / reference if reference > 0.0 else 0.0


def of_both(disturbed: Window, free: Window) -> float:
    """The worse of what is left of the actors' throughput and of the learner's."""
    return min(
        ratio(disturbed.throughput(), free.throughput()),
        ratio(disturbed.updates_per_s, free.updates_per_s),
    )


# ---------------------------------------------------------------------- with the throttle


def _steady(run: PacedRun, supply: float, lengths: Lengths, bar: _Bar) -> Window:
    """A window after the throttle has adapted to a learner of a certain speed."""
    run.learner.update_s = supply * ROLLOUT_S  # an update takes one rollout of each actor
    bar.begin(
        f"actors can make {supply:g} times what the learner takes", lengths.adapt + lengths.steady
    )
    run.run(lengths.adapt)
    return run.run(lengths.steady)


# ---------------------------------------------------------------------- the planner


def measured_rates(windows: dict[int, Window], config: RunConfig) -> Rates:
    """What a plan is made from: the durations of rollouts and updates at the fewest actors."""
    window = windows[min(windows)]
    busy = [delivery.busy_s for delivery in window.deliveries]
    updates = [update.took_s for update in window.updates]
    if len(busy) < 2 or not updates:
        raise FerryError(
            f"{len(busy)} rollouts and {len(updates)} updates in a window are too few for a plan; "
            "the computer is too busy, or the window too short"
        )
    return Rates(
        actor_steps_per_s=config.training.horizon * config.sim.worlds / float(np.mean(busy)),
        update_s_per_sample=1e-12,  # a paced update lasts as long whatever its size
        update_fixed_s=float(np.mean(updates)),
        spread=float(np.std(busy) / np.mean(busy)),
    )


def compare_with_plan(windows: dict[int, Window], config: RunConfig) -> dict[int, float]:
    """Planned throughput over the measured one, by number of actors.

    Both are samples that the learner learned from per second; the plan knows durations at the
    fewest actors alone, and the configuration.
    """
    rates = measured_rates(windows, config)
    fragment = config.training.horizon * config.sim.worlds
    runtime = config.training.runtime
    found = {}
    for actors, window in sorted(windows.items()):
        planned = plan(actors + 2, 0, config=config, rates=rates, actors=actors)
        per_update = runtime.fragments_per_update or actors
        measured = window.updates_per_s * per_update * fragment
        found[actors] = ratio(planned.samples_per_s, measured)
    return found
