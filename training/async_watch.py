"""A run of the asynchronous runtime whose costs are emulated, looked at window by window."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from real.errors import FerryError
from real.rollout import Rollout
from training.async_loop import AsyncRuntime
from training.cluster_door import import_ray_engine
from training.crew import ActorTimes
from training.load import Totals
from training.paced import MakePacedEnv, PacedEvaluate, PacedLearner, Paces, Update
from training.queue import LagStats
from training.roles import Engine, RestartBudget, ScoreRequest, Task
from training.run_config import RunConfig, load_run_config, side_by_side_config
from training.scoring import EvaluatorCrew
from training.snapshot import PolicySnapshot

#: How long all actors together may take to deliver their first rollouts [s].
START_S = 300.0


@dataclass(frozen=True)
class Delivery:
    """One rollout that came from an actor.

    Attributes:
        at_s: when, on the monotonic clock [s].
        actor: who made it.
        busy_s: how long that took [s].
    """

    at_s: float
    actor: str
    busy_s: float


class WatchedEngine:
    """See :class:`training.roles.Engine`: another engine, whose deliveries are written down.

    Args:
        engine: the other one.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.deliveries: list[Delivery] = []

    def start_actor(self, worker: int, restart: int, snapshot: PolicySnapshot) -> Any:
        """See :class:`training.roles.Engine`."""
        return self._engine.start_actor(worker, restart, snapshot)

    def collect(self, actor: Any) -> Any:
        """See :class:`training.roles.Engine`."""
        return self._engine.collect(actor)

    def start_evaluator(self) -> Any:
        """See :class:`training.roles.Engine`."""
        return self._engine.start_evaluator()

    def score(self, evaluator: Any, request: ScoreRequest) -> Any:
        """See :class:`training.roles.Engine`."""
        return self._engine.score(evaluator, request)

    def wait(self, tickets: Sequence[Any], timeout_s: float) -> list[Any]:
        """See :class:`training.roles.Engine`."""
        return self._engine.wait(tickets, timeout_s)

    def fetch(self, ticket: Any) -> Any:
        """See :class:`training.roles.Engine`."""
        first, seconds = self._engine.fetch(ticket)
        if isinstance(first, Rollout):
            self.deliveries.append(Delivery(time.monotonic(), first.actor_id, seconds))
        return first, seconds

    def kill(self, handle: Any) -> None:
        """See :class:`training.roles.Engine`."""
        self._engine.kill(handle)

    def publish(self, snapshot: PolicySnapshot) -> None:
        """See :class:`training.roles.Engine`."""
        self._engine.publish(snapshot)

    def tend_store(self) -> None:
        """See :class:`training.roles.Engine`."""
        self._engine.tend_store()


def event_rate(times_s: Sequence[float]) -> float:
    """Events per second from the first to the last: (n - 1) / (t_n - t_1); 0 for fewer than two.

    Where in the window the first one falls does not matter, as it would for n / window.
    """
    if len(times_s) < 2 or times_s[-1] <= times_s[0]:
        return 0.0
    return (len(times_s) - 1) / (times_s[-1] - times_s[0])


@dataclass(frozen=True)
class Window:
    """What happened between two moments of a run.

    Attributes:
        deliveries: rollouts that came from actors.
        updates: of the learner.
        first: totals at the beginning.
        last: totals at the end.
    """

    deliveries: tuple[Delivery, ...]
    updates: tuple[Update, ...]
    first: Totals
    last: Totals

    def rates(self) -> dict[str, float]:
        """Rollouts per second of each actor."""
        times: dict[str, list[float]] = {}
        for delivery in self.deliveries:
            times.setdefault(delivery.actor, []).append(delivery.at_s)
        return {actor: event_rate(values) for actor, values in times.items()}

    def throughput(self, *, without: Sequence[str] = ()) -> float:
        """Rollouts per second of all actors but some."""
        return sum(rate for actor, rate in self.rates().items() if actor not in without)

    @property
    def updates_per_s(self) -> float:
        """Updates per second."""
        return event_rate([update.done_s for update in self.updates])

    @property
    def times(self) -> ActorTimes:
        """Where the actors' time went."""
        return self.last.times.since(self.first.times)

    @property
    def actor_idle(self) -> float:
        """Share of all actors' time in which they had work and were not at it."""
        return self.times.idle_share

    @property
    def actor_parked(self) -> float:
        """Share of all actors' time in which they were kept back."""
        return self.times.parked / max(1e-9, self.times.total)

    @property
    def learner_idle(self) -> float:
        """Share of time in which the learner waited for rollouts."""
        passed = max(1e-9, self.last.at_s - self.first.at_s)
        return min(1.0, (self.last.waited_s - self.first.waited_s) / passed)

    @property
    def dropped_share(self) -> float:
        """Of the rollouts whose fate became known."""
        before, after = self.first.counts, self.last.counts
        dropped = after.dropped - before.dropped
        return dropped / max(1, dropped + after.taken - before.taken)

    @property
    def used_over_bound(self) -> int:
        """Rollouts that were learned from although they were too old."""
        return self.last.counts.over_bound - self.first.counts.over_bound

    @property
    def lag(self) -> LagStats:
        """Of the rollouts learned from."""
        return LagStats.of([lag for update in self.updates for lag in update.lags])


class PacedRun:
    """A run with emulated costs. Made by :func:`paced_run`.

    Args:
        runtime: what runs.
        learner: its learner.
        engine: its engine.
        paces: of actors and evaluators.
        scorers: evaluators, which always have a policy to score; None for none.
        tick: told of every second that passes.
    """

    def __init__(
        self,
        runtime: AsyncRuntime,
        *,
        learner: PacedLearner,
        engine: WatchedEngine,
        paces: Paces,
        scorers: EvaluatorCrew | None,
        tick: Callable[[], None],
    ) -> None:
        self.runtime = runtime
        self.learner = learner
        self.paces = paces
        self._engine = engine
        self._scorers = scorers
        self._tick = tick

    def start(self, *, actors: int) -> None:
        """Learn until every actor has delivered two rollouts: processes take long to start.

        Raises:
            FerryError: they did not within :data:`START_S`.
        """
        deadline = time.monotonic() + START_S
        while not self._all_deliver(actors):
            if time.monotonic() > deadline:
                raise FerryError(f"{actors} actors did not all deliver within {START_S:g} s")
            self.run(0.5)

    def _all_deliver(self, actors: int) -> bool:
        rollouts = [delivery.actor for delivery in self._engine.deliveries]
        return len(set(rollouts)) >= actors and all(rollouts.count(a) > 1 for a in set(rollouts))

    def set_active(self, actors: int) -> None:
        """Give work to so many only. The throttle, which is off, would do it the same way."""
        self.runtime.throttle.settings = replace(
            self.runtime.throttle.settings, active_actors=actors
        )

    def run(self, seconds: float) -> Window:
        """Learn for about so long [s]; what happened meanwhile."""
        first = self.runtime.totals()
        deliveries, updates = len(self._engine.deliveries), len(self.learner.updates)
        stop = threading.Event()
        timer = threading.Timer(seconds, stop.set)
        timer.daemon = True
        timer.start()
        while not stop.is_set():
            self.runtime.iterate(stop)
            self._score()
            self._tick()
        return Window(
            tuple(self._engine.deliveries[deliveries:]),
            tuple(self.learner.updates[updates:]),
            first,
            self.runtime.totals(),
        )

    def _score(self) -> None:
        if self._scorers is not None:
            self._scorers.poll()
            self._scorers.submit(self.runtime.score_request())


def paced_config(*overrides: str) -> RunConfig:
    """A task whose networks and batches are so small that learning costs next to nothing."""
    small = (
        "sim.worlds=16",
        "training.horizon=8",
        "training.network.hidden=[16]",
        "training.network.critic_hidden=[16]",
        "training.ppo.epochs=1",
        "training.ppo.minibatches=1",
        "training.runtime.evaluators=0",
        f"training.runtime.start_timeout_s={START_S}",  # many processes start at once
    )
    return side_by_side_config(load_run_config("cartpole_balance", [*small, *overrides]))


@contextlib.contextmanager
def paced_run(
    config: RunConfig,
    *,
    actors: int,
    step_s: float,
    evaluation_s: float = 0.5,
    tick: Callable[[], None] = lambda: None,
) -> Iterator[PacedRun]:
    """Start a run with emulated costs, and end all its processes.

    Args:
        config: see :func:`paced_config`.
        actors: K.
        step_s: duration of a control step [s].
        evaluation_s: duration of an evaluation [s].
        tick: called after every update.
    """
    ray_engine = import_ray_engine()
    training = config.training
    threads = torch.get_num_threads()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ferry_"))
        path = Path(folder, "paces")
        paces = Paces.create(path, actors=actors, step_s=step_s, evaluation_s=evaluation_s)
        stack.callback(torch.set_num_threads, threads)
        torch.set_num_threads(1)
        evaluators = training.runtime.evaluators
        task = Task(config, MakePacedEnv(path), PacedEvaluate(path) if evaluators else None)
        engine = WatchedEngine(
            stack.enter_context(
                ray_engine(
                    task,
                    processes=actors + evaluators,
                    rollout_bytes=1024 * config.sim.worlds,
                    rollouts=4 * actors,
                    address=None,
                )
            )
        )
        learner = PacedLearner(network=training.network, ppo=training.ppo, seed=training.seed)
        runtime = AsyncRuntime(
            learner,
            engine,
            config=training.runtime,
            actors=actors,
            horizon=training.horizon,
        )
        stack.callback(runtime.rest)
        budget = RestartBudget(1, 600.0, clock=time.monotonic)
        scorers = None
        if evaluators:
            scorers = EvaluatorCrew(
                engine, evaluators, timeout_s=600.0, budget=budget, clock=time.monotonic
            )
        runtime.start()
        yield PacedRun(
            runtime, learner=learner, engine=engine, paces=paces, scorers=scorers, tick=tick
        )
