"""Tells the weight store what is newest, again and again, with one message under way at most."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

#: How often the store is told the newest weights again, in case it came back empty [s].
REMIND_S = 0.5


class Reminder:
    """One message to the store at a time; what is newest waits here and not in its mailbox.

    A store that is stopped answers nothing. Were it told regardless, messages would pile up until
    it goes on, each keeping a version of the weights in memory. Safe to use from several threads.

    Args:
        send: hands the store a version and where its weights are; a ticket. Never waits.
        answered: whether the store has answered a ticket, or never will since it died; never waits.
        clock: monotonic time [s].
    """

    def __init__(
        self,
        send: Callable[[int, Any], Any],
        *,
        answered: Callable[[Any], bool],
        clock: Callable[[], float],
    ) -> None:
        self._send = send
        self._answered = answered
        self._clock = clock
        self._lock = threading.Lock()
        self._newest: tuple[int, Any] | None = None
        self._told = -1
        self._told_s = 0.0
        self._ticket: Any = None

    def publish(self, version: int, where: Any) -> None:
        """Tell of new weights: now, or once the last message is answered."""
        with self._lock:
            self._newest = (version, where)
            self._tell()

    def tend(self) -> None:
        """Tell what could not be told yet; from time to time what was told. Call it often."""
        with self._lock:
            if self._newest is None:
                return
            again = self._clock() - self._told_s > REMIND_S
            if again or self._told != self._newest[0]:
                self._tell()

    def _tell(self) -> None:
        if self._ticket is not None and not self._answered(self._ticket):
            return
        assert self._newest is not None
        self._ticket = self._send(*self._newest)
        self._told, self._told_s = self._newest[0], self._clock()
