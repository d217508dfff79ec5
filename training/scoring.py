"""Who scores policies: the caller in its own time, or evaluators beside it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from training.roles import (
    Engine,
    Evaluate,
    RestartBudget,
    RestartBudgetExceeded,
    RoleFailed,
    ScoreRequest,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scored:
    """What became of a request.

    Attributes:
        request: as it was submitted.
        record: with ``score`` and more; None if a newer policy took its place or it failed.
        took_s: time of the evaluation [s].
    """

    request: ScoreRequest
    record: Mapping[str, Any] | None
    took_s: float = 0.0


class Scorers(Protocol):
    """Whoever scores policies."""

    def submit(self, request: ScoreRequest) -> None:
        """Hand in a policy."""
        ...

    def poll(self) -> list[Scored]:
        """What became of earlier requests, each told once; never waits."""
        ...


class InlineScorers:
    """Scores at once, in the caller's process and time.

    Args:
        evaluate: scores a policy.
    """

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self._done: list[Scored] = []

    def submit(self, request: ScoreRequest) -> None:
        """Score it now."""
        start = time.perf_counter()
        record = dict(self._evaluate(request.policy()))
        self._done.append(Scored(request, record, time.perf_counter() - start))

    def poll(self) -> list[Scored]:
        """See :class:`Scorers`."""
        done, self._done = self._done, []
        return done


@dataclass
class _Desk:
    """The place of one evaluator."""

    handle: Any
    request: ScoreRequest | None = None
    ticket: Any = None
    since: float = 0.0
    started: bool = False


class EvaluatorCrew:
    """M evaluators. Policies wait for a free one; of those that wait the newest M are kept.

    An evaluator that dies, raises or takes too long is replaced and its policy goes without a
    score. When too many had to be, nobody scores any more and training goes on.

    Args:
        engine: runs them.
        number: M.
        timeout_s: for one evaluation.
        budget: of restarts.
        clock: monotonic time [s].
        start_s: for the start of a process, besides its first evaluation.
    """

    def __init__(
        self,
        engine: Engine,
        number: int,
        *,
        timeout_s: float,
        budget: RestartBudget,
        clock: Callable[[], float],
        start_s: float = 0.0,
    ) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._start_s = start_s
        self._budget = budget
        self._clock = clock
        self._waiting: deque[ScoreRequest] = deque()
        self._done: list[Scored] = []
        self._start = clock()
        self._busy_s = 0.0
        self._desks = [_Desk(engine.start_evaluator()) for _ in range(number)]
        self._number = number

    @property
    def idle_share(self) -> float:
        """Share of the time since construction in which evaluators had no policy."""
        now = self._clock()
        busy = self._busy_s + sum(now - d.since for d in self._desks if d.request is not None)
        total = max(1e-9, (now - self._start) * self._number)
        return min(1.0, max(0.0, 1.0 - busy / total))

    def submit(self, request: ScoreRequest) -> None:
        """See :class:`Scorers`; never waits."""
        self._waiting.append(request)
        self._assign()
        while len(self._waiting) > max(1, len(self._desks)):
            self._done.append(Scored(self._waiting.popleft(), None))

    def poll(self) -> list[Scored]:
        """See :class:`Scorers`."""
        self._look()
        done, self._done = self._done, []
        return done

    def _assign(self) -> None:
        for desk in self._desks:
            if desk.request is None and self._waiting:
                desk.request = self._waiting.popleft()
                desk.since = self._clock()
                desk.ticket = self._engine.score(desk.handle, desk.request)
        if not self._desks:
            self._done += [Scored(request, None) for request in self._waiting]
            self._waiting.clear()

    def _look(self) -> None:
        busy = [desk for desk in self._desks if desk.request is not None]
        ready = self._engine.wait([desk.ticket for desk in busy], 0.0)
        for desk in busy:
            limit = self._timeout_s + (0.0 if desk.started else self._start_s)
            if desk.ticket in ready:
                self._receive(desk)
            elif self._clock() - desk.since > limit:
                self._replace(desk, f"no score within {limit:g} s")
        self._assign()

    def _receive(self, desk: _Desk) -> None:
        try:
            record, took_s = self._engine.fetch(desk.ticket)
        except RoleFailed as failure:
            self._replace(desk, str(failure))
            return
        desk.started = True
        self._budget.note_work()
        if desk.request is not None:
            self._finish(desk, Scored(desk.request, record, took_s))

    def _finish(self, desk: _Desk, scored: Scored) -> None:
        self._busy_s += self._clock() - desk.since
        self._done.append(scored)
        desk.request = desk.ticket = None

    def _replace(self, desk: _Desk, cause: str) -> None:
        if desk.request is not None:
            self._finish(desk, Scored(desk.request, None))
        self._engine.kill(desk.handle)
        try:
            self._budget.spend("an evaluator", cause)
        except RestartBudgetExceeded as error:
            log.error("%s", error)
            with contextlib.suppress(ValueError):
                self._desks.remove(desk)
            return
        log.warning("an evaluator is replaced: %s", cause)
        desk.handle, desk.started = self._engine.start_evaluator(), False
