"""The asynchronous runtime: actors, learner and evaluators side by side, none waiting for another.

The learner runs in the caller's thread. A second thread tends the actors: it receives rollouts,
replaces who died, and moves the throttle. They meet in the queue.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real.rollout import Rollout
from sim.shared import Shared
from training.checkpoint import Checkpoint
from training.crew import ActorCrew
from training.learner import Learner
from training.load import Totals, load_between
from training.loop import Runtime, reward_metrics
from training.parallel import LearnerLostError
from training.queue import Admitted, LagStats, QueueClosed, RolloutQueue
from training.roles import Engine, RestartBudget
from training.run_config import RuntimeConfig
from training.snapshot import PolicySnapshot
from training.throttle import Load, Throttle

Arrays = dict[str, NDArray[Any]]

log = logging.getLogger(__name__)

#: How long the tending thread waits for a rollout before it looks after the rest [s].
_TEND_S = 0.05
#: How long the learner waits for rollouts before it looks for a stop or a failure [s].
_LOOK_S = 0.1
#: How long the tending thread may take to end: it may wait for what comes from afar [s].
_REST_S = 3.0
#: Prefix of the throttle's part of a checkpoint.
_THROTTLE = "throttle."
#: Rollouts over which lag is reported.
_LAGS = 1000


class AsyncRuntime(Runtime):
    """A learner, and actors that an engine runs.

    Args:
        learner: learns from their rollouts.
        engine: runs them.
        config: queue, time-outs, throttle.
        actors: K.
        horizon: T, steps per rollout.
        shared: of worlds that nobody steps, where it is decided for those of all actors; None for
            a task without, see :class:`training.adaptation.Adaptation`.
        clock: monotonic time [s].
    """

    def __init__(
        self,
        learner: Learner,
        engine: Engine,
        *,
        config: RuntimeConfig,
        actors: int,
        horizon: int,
        shared: Shared | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(learner, horizon=horizon, shared=shared)
        self._engine = engine
        self._config = config
        self._clock = clock
        self._per_update = config.fragments_per_update or actors
        capacity = config.queue_capacity or 2 * self._per_update
        self.queue = RolloutQueue(
            capacity, max_staleness=config.max_staleness, over_bound=config.over_bound
        )
        self.throttle = Throttle(
            config.throttle,
            actors=actors,
            per_update=self._per_update,
            capacity=capacity,
            max_staleness=config.max_staleness,
            clock=clock,
        )
        self._budget = RestartBudget(config.max_restarts, config.restart_window_s, clock=clock)
        self._starts = [0] * actors
        self._unused_starts: list[int] = []  # of more actors that a run before this one had
        self._lock = threading.Lock()  # of all that both threads touch
        self._crew: ActorCrew | None = None
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._failure: BaseException | None = None
        self._lags: deque[int] = deque(maxlen=_LAGS)
        self._waited_s = 0.0
        self._lag_count = self._lag_sum = 0
        self._published: deque[int] = deque(maxlen=_LAGS)
        self._acted: deque[int] = deque(maxlen=_LAGS)
        self._publications = 0
        self._last: Rollout | None = None
        self._kept: list[Admitted] = []
        self._first_version = 0
        self._newest = learner.snapshot()
        self.idle_evaluators: Callable[[], float] | None = None

    # -------------------------------------------------------------- beginning and end

    def start(self) -> None:
        """Publish the policy, start the actors and the thread that tends them."""
        self._first_version = self.learner.version
        self._publish(self.learner.snapshot())
        self._crew = ActorCrew(
            self._engine,
            self.queue,
            config=self._config,
            starts=self._starts,
            throttle=self.throttle,
            budget=self._budget,
            newest=lambda: self.adaptation.stamped(self._newest),
            on_rollout=self._note_rollout,
            on_gone=self._note_gone,
            clock=self._clock,
        )
        self._begin()
        self._thread = threading.Thread(target=self._tend, name="ferry-tend", daemon=True)
        self._thread.start()

    def _begin(self) -> None:
        self._begun = self._clock()
        self._mark = self.totals()

    def rest(self) -> None:
        """Give out no more work; what the engine runs is the engine's to end."""
        self._closing.set()
        self.queue.close()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(timeout=_REST_S)

    def _tend(self) -> None:
        assert self._crew is not None
        try:
            while not self._closing.is_set():
                self._crew.tend(_TEND_S)
                self._engine.tend_store()
                if self.throttle.due() and self._last is not None:
                    self.throttle.decide(self._load())
        except BaseException as error:  # the learner's thread raises it, see `_await`
            if not self._closing.is_set():
                self._failure = error
                self.queue.close()

    # -------------------------------------------------------------- learning

    def iterate(self, stop: threading.Event | None = None) -> dict[str, float] | None:
        """See :class:`training.loop.Runtime`."""
        if self._crew is None:
            self.start()
        self.learner.heed(stop)
        while True:
            begun = time.perf_counter()
            admitted = self._await(stop)
            if admitted is None:
                return None
            ready = time.perf_counter()
            if self._last is None:
                self._begin()  # until now processes were starting, which is nobody's idle time
            else:
                self._waited_s += ready - begun
            rollouts = [a.rollout for a in admitted]
            try:
                snapshot, metrics = self.learner.update(
                    rollouts, weights=[a.weight for a in admitted]
                )
                break
            except LearnerLostError:
                self._kept = admitted  # nothing was learned from them: again, with all learners
        if snapshot.version - self._newest.version >= self.throttle.settings.publish_every:
            self._publish(snapshot)
        done = time.perf_counter()

        self._last = rollouts[-1]
        self._note_used(admitted)
        self._account(rollouts)
        taken = sum(r.num_steps * r.num_envs for r in rollouts)
        return {
            **metrics,
            **self._episode_metrics(),
            **reward_metrics(rollouts),
            **self.metrics(),
            **self.adaptation.measures(),
            "learner/version": float(self.learner.version),
            "time/steps_per_s": taken / (done - begun),
            "time/collect_s": ready - begun,
            "time/update_s": done - ready,
        }

    def _note_used(self, admitted: list[Admitted]) -> None:
        with self._lock:
            self._lags.extend(a.lag for a in admitted)
            self._acted.extend(a.rollout.policy_version for a in admitted)
            self._lag_sum += sum(a.lag for a in admitted)
            self._lag_count += len(admitted)

    def _await(self, stop: threading.Event | None) -> list[Admitted] | None:
        assert self._crew is not None
        while True:
            if self._failure is not None:
                raise self._failure
            if stop is not None and stop.is_set():
                return None
            if not self.learner.ready(_LOOK_S):
                continue
            if self._kept:
                kept, self._kept = self._kept, []
                return kept
            try:
                found = self.queue.take(self._per_update, self.learner.version, timeout_s=_LOOK_S)
            except QueueClosed:
                if self._failure is None:
                    raise
                continue
            # Places in the queue are free: actors go on without waiting for this update.
            self._crew.dispatch()
            if found:
                return found

    def _publish(self, snapshot: PolicySnapshot) -> None:
        with self._lock:
            self._newest = snapshot
            self._published.append(snapshot.version)
            self._publications += 1
        self._engine.publish(self.adaptation.stamped(snapshot))

    # -------------------------------------------------------------- measuring

    def metrics(self) -> dict[str, float]:
        """Lag, queue, idle shares and throttle, see :mod:`training.metrics`."""
        assert self._crew is not None
        counts, times, settings = self.queue.counts, self._crew.times, self.throttle.settings
        session_s = max(1e-9, self._clock() - self._begun)
        lag = LagStats.of(self._lags)
        versions = self.learner.version - self._first_version
        out = {
            "lag/mean": lag.mean,
            "lag/p95": lag.p95,
            "lag/max": lag.largest,
            "queue/depth": float(len(self.queue)),
            "queue/dropped_share": counts.dropped / max(1, counts.dropped + counts.taken),
            "queue/overflowed": float(counts.overflowed),
            "queue/stale": float(counts.stale),
            "queue/used_over_bound": float(counts.over_bound),
            "learner/idle_share": min(1.0, self._waited_s / session_s),
            "learner/versions_per_minute": 60.0 * versions / session_s,
            "actors/idle_share": times.idle_share if times.total else 0.0,
            "actors/parked_share": times.parked / max(times.total, 1e-9),
            "actors/restarts": float(self._budget.spent),
            "throttle/active_actors": float(settings.active_actors),
            "throttle/in_flight": float(settings.in_flight),
            "throttle/publish_every": float(settings.publish_every),
            "throttle/decisions": float(self.throttle.decisions),
        }
        if self.idle_evaluators is not None:
            out["evaluators/idle_share"] = self.idle_evaluators()
        return out

    # Episodes of every rollout that arrives count, learned from or not.

    def _note_rollout(self, rollout: Rollout) -> None:
        self.learner.expect(rollout)
        self.adaptation.absorb(rollout)
        with self._lock:
            self._episodes.add(rollout)

    def _note_gone(self, name: str) -> None:
        with self._lock:
            self._episodes.forget(name)

    def _episode_metrics(self) -> dict[str, float]:
        with self._lock:
            return self._episodes.metrics()

    def _episode_state(self) -> Arrays:
        with self._lock:
            return self._episodes.state_dict()

    def totals(self) -> Totals:
        """What happened so far."""
        assert self._crew is not None
        counts, times, now = self.queue.counts, self._crew.times, self._clock()
        with self._lock:
            lags = self._lag_count, self._lag_sum
            return Totals(counts, times, self._waited_s, now, self._publications, *lags)

    def _load(self) -> Load:
        """What happened since the throttle's last decision."""
        last, now = self._mark, self.totals()
        self._mark = now
        with self._lock:
            acted, published = set(self._acted), list(self._published)
        depth = len(self.queue)
        load = load_between(last, now, published=published, acted=acted, queue_depth=depth)
        # Within rollouts newer versions act, too, and their stamp is the oldest: nobody knows.
        return load if self._config.refresh_every is None else replace(load, unread_share=0.0)

    # -------------------------------------------------------------- keeping

    def _actor_state(self) -> Arrays:
        starts = self._starts if self._crew is None else self._crew.starts
        counts = [n + 1 for n in starts] + self._unused_starts
        state = {f"{_THROTTLE}{k}": v for k, v in self.throttle.state_dict().items()}
        return {"starts": np.array(counts), **state, **self.adaptation.state_dict()}

    def restore(self, checkpoint: Checkpoint) -> None:
        """See :class:`training.loop.Runtime`. All worlds begin anew: none has an episode yet."""
        super().restore(checkpoint)
        for name in self._episodes.actors:
            self._episodes.forget(name)

    def _restore_actors(self, state: Arrays, *, source: str) -> None:
        """Actors begin new episodes with random numbers that nobody drew before."""
        before = [int(n) for n in state["starts"]] if "starts" in state else [1]
        actors = len(self._starts)
        kept = before + [0] * (actors - len(before))
        self._starts, self._unused_starts = kept[:actors], kept[actors:]
        known = {k.removeprefix(_THROTTLE): v for k, v in state.items() if k.startswith(_THROTTLE)}
        if known:  # a run that was serial so far has none
            self.throttle.load_state_dict(known)
        self.adaptation.load_state_dict(state, source=source)
        self._newest = self.learner.snapshot()

    def _seen(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        if self._last is not None:
            return self._last.obs[-1], self._last.critic_obs[-1]
        rng = np.random.default_rng(0)  # before the first rollout any observations do
        policy = self.learner.policy
        return (
            rng.standard_normal((8, policy.policy_dim), dtype=np.float32),
            rng.standard_normal((8, policy.critic_dim), dtype=np.float32),
        )
