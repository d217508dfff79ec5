"""The throttle: how many actors act, how much data is under way, how often weights are published.

A pure controller: it is told what was measured and answers with settings and reasons; the clock is
injected. Every decision moves one setting by a little, so that its effect shows in the next
measurement before the next decision.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from real.config import Config

log = logging.getLogger(__name__)

#: For how many decisions a number of fragments under way counts as needed, after the learner had
#: waited with less. Then it is tried again, which costs one period of waiting.
_REMEMBERED = 30


class ThrottleConfig(Config):
    """Ranges and thresholds of the throttle."""

    enabled: bool = Field(default=True, description="off: every setting stays where it starts")
    period_s: float = Field(default=2.0, gt=0.0, description="time between two decisions [s]")
    min_actors: int = Field(default=1, ge=1, description="actors that are never parked")
    max_in_flight: int | None = Field(
        default=None,
        ge=1,
        description="fragments under way at most; null for two per actor and a full queue",
    )
    max_publish_every: int = Field(default=4, ge=1, description="versions between publications")
    target_lag: float = Field(
        default=2.0,
        ge=0.0,
        description="mean lag that is aimed at, as far as the learner need not wait for it",
    )
    drop_share: float = Field(
        default=0.05, ge=0.0, lt=1.0, description="share of dropped rollouts that is put up with"
    )
    idle_share: float = Field(
        default=0.05, ge=0.0, lt=1.0, description="share of idle time that is put up with"
    )


@dataclass(frozen=True)
class Settings:
    """What the throttle sets.

    Attributes:
        active_actors: actors that are given work; the others are parked.
        in_flight: fragments that may be with actors or in the queue.
        publish_every: versions from one publication of weights to the next.
    """

    active_actors: int
    in_flight: int
    publish_every: int


@dataclass(frozen=True)
class Load:
    """What was measured since the last decision.

    Attributes:
        arrived: rollouts that actors delivered.
        dropped: rollouts that nobody learned from.
        used: rollouts that the learner took.
        lag_mean: mean lag of those [versions].
        learner_idle: share of time in which the learner waited for rollouts.
        actor_idle: share of time in which actors that were not parked had no work.
        unread_share: share of published versions that no rollout was made with.
        queue_depth: rollouts that wait.
    """

    arrived: int
    dropped: int
    used: int
    lag_mean: float
    learner_idle: float
    actor_idle: float
    unread_share: float
    queue_depth: int

    @property
    def drop_share(self) -> float:
        """Of all rollouts whose fate is known."""
        return self.dropped / max(1, self.dropped + self.used)


@dataclass(frozen=True)
class Decision:
    """One change.

    Attributes:
        setting: field of :class:`Settings`.
        before: its value so far.
        after: its value from now on.
        reason: in words, with the number that caused it.
    """

    setting: str
    before: int
    after: int
    reason: str

    def __str__(self) -> str:
        return f"{self.setting} {self.before} -> {self.after}: {self.reason}"


class Throttle:
    """Adapts :class:`Settings` inside configured ranges.

    Args:
        config: ranges and thresholds.
        actors: K, actors there are.
        per_update: rollouts that one update takes; fewer in flight would starve the learner.
        capacity: of the queue.
        max_staleness: of the queue; weights are published at least so often.
        clock: monotonic time [s].
    """

    def __init__(
        self,
        config: ThrottleConfig,
        *,
        actors: int,
        per_update: int,
        capacity: int,
        max_staleness: int,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._clock = clock
        self._actors = actors
        self._capacity = capacity
        self._min_actors = min(config.min_actors, actors)
        self._min_in_flight = per_update
        ceiling = 2 * actors + capacity if config.max_in_flight is None else config.max_in_flight
        self._max_in_flight = max(ceiling, per_update)
        self._max_publish_every = max(1, min(config.max_publish_every, max_staleness))
        # Switched off, every actor always has work and the queue alone says what is lost. Else the
        # start is one batch under way, and one fragment for every actor, while one is learned from.
        first = max(per_update, actors) if config.enabled else self._max_in_flight
        self.settings = Settings(
            active_actors=actors, in_flight=min(first, self._max_in_flight), publish_every=1
        )
        self.decisions = 0
        self._needed = 0  # with fewer in flight the learner waited, not long ago
        self._forget_in = 0
        self._next_s = clock() + config.period_s

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """What was found out about this run so far: settings, and what the learner needed."""
        found = {
            **asdict(self.settings),
            "needed": self._needed,
            "forget_in": self._forget_in,
            "actors": self._actors,
            "per_update": self._min_in_flight,
        }
        return {name: np.array(value, dtype=np.int64) for name, value in found.items()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on with what :meth:`state_dict` gave, inside the ranges of now, which may be others.

        What was found out with another number of actors, or updates of another size, says nothing
        about these; and switched off, settings stay where they start.
        """
        found = {name: int(value) for name, value in state.items()}
        same = (found["actors"], found["per_update"]) == (self._actors, self._min_in_flight)
        if not self._config.enabled or not same:
            return
        actors, in_flight = found["active_actors"], found["in_flight"]
        self.settings = Settings(
            active_actors=min(max(actors, self._min_actors), self._actors),
            in_flight=min(max(in_flight, self._min_in_flight), self._max_in_flight),
            publish_every=min(max(found["publish_every"], 1), self._max_publish_every),
        )
        self._needed, self._forget_in = found["needed"], found["forget_in"]

    def due(self) -> bool:
        """Whether it is time for a decision."""
        return self._config.enabled and self._clock() >= self._next_s

    def decide(self, load: Load) -> list[Decision]:
        """Change what the measurement asks for; each change is logged with its reason.

        Args:
            load: since the last call. Without a single rollout used there is nothing to judge.
        """
        self._next_s = self._clock() + self._config.period_s
        if not self._config.enabled or load.used + load.dropped == 0:
            return []
        made = self._chosen(load)
        for decision in made:
            self.settings = replace(self.settings, **{decision.setting: decision.after})
            log.info("throttle: %s", decision)
        self.decisions += len(made)
        return made

    def _chosen(self, load: Load) -> list[Decision]:
        config = self._config
        self._forget_in -= 1
        if load.drop_share > config.drop_share:
            return self._less(f"{load.drop_share:.0%} of rollouts were dropped")
        late = load.lag_mean > config.target_lag
        reason = f"mean lag {load.lag_mean:.1f} is over {config.target_lag:g}"
        # Fresher weights cost less than fewer samples.
        if late and (sooner := self._publish(-1, reason)):
            return sooner
        if load.learner_idle > config.idle_share:
            # Also where lag is high: nothing waits, so it is that of rollouts being made. It would
            # fall with fewer of them only since the learner would wait longer.
            return self._more(load)
        if load.queue_depth >= self._capacity:
            return self._less(f"{load.queue_depth} rollouts wait and the learner is never idle")
        if late:
            return self._less(reason, needed=self._needed if self._forget_in > 0 else 0)
        if load.unread_share > 0.5 and load.lag_mean + 1.0 <= config.target_lag:
            return self._publish(
                1, f"{load.unread_share:.0%} of published versions were never acted with"
            )
        return []

    def _less(self, reason: str, *, needed: int = 0) -> list[Decision]:
        """A quarter less in flight; actors for whom nothing is left are parked."""
        now = self.settings
        after = max(self._min_in_flight, now.in_flight - max(1, now.in_flight // 4))
        after = max(after, min(needed, now.in_flight))
        made = self._set("in_flight", after, reason)
        active = max(self._min_actors, min(now.active_actors, after))
        return made + self._set("active_actors", active, reason)

    def _more(self, load: Load) -> list[Decision]:
        """One fragment more, and one actor more, unless those at work have too little to do."""
        now = self.settings
        reason = f"the learner was idle for {load.learner_idle:.0%} of the time"
        after = min(self._max_in_flight, now.in_flight + max(1, now.in_flight // 8))
        self._needed, self._forget_in = after, _REMEMBERED
        if load.actor_idle > self._config.idle_share:
            reason += f" and actors for {load.actor_idle:.0%}"
            return self._set("in_flight", after, reason)
        active = min(self._actors, now.active_actors + 1)
        return self._set("in_flight", after, reason) + self._set("active_actors", active, reason)

    def _publish(self, change: int, reason: str) -> list[Decision]:
        after = self.settings.publish_every + change
        return self._set("publish_every", min(max(after, 1), self._max_publish_every), reason)

    def _set(self, setting: str, after: int, reason: str) -> list[Decision]:
        before = getattr(self.settings, setting)
        return [] if after == before else [Decision(setting, before, after, reason)]
