"""Notices, on a steady clock, what stops coming, and says whose silence it is."""

from __future__ import annotations

import time
from collections.abc import Callable


class Watchdog:
    """Watches the states of the robot and the commands of the policy, which answer them.

    Whether to stop depends on ages alone. The reason is found by what explains them:

    * the watcher's own process did not run, so that nothing could come;
    * no states came, and a policy without states has nothing to answer;
    * states came, and were not answered.

    Args:
        state_ns: oldest acceptable state, by its reception [ns].
        command_ns: oldest acceptable command, by its reception [ns].
        period_ns: control period: between two answers, and about between two looks [ns].
        who: what the watcher is called in its reasons.
        clock: nanoseconds of a clock that never goes back.
    """

    def __init__(
        self,
        state_ns: int,
        command_ns: int,
        *,
        period_ns: int,
        who: str,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._state_ns, self._command_ns = state_ns, command_ns
        self._period_ns = period_ns
        self._who = who
        self._clock = clock
        self._looked_ns: int | None = None

    def look(self, state_ns: int, command_ns: int) -> str:
        """Look once in every control period, whether or not anything must come.

        Args:
            state_ns: when the newest state came [ns].
            command_ns: when the newest policy command came [ns].

        Returns:
            Why the robot must stop now, or nothing.
        """
        now = self._clock()
        away = 0 if self._looked_ns is None else now - self._looked_ns
        self._looked_ns = now
        state_age, command_age = now - state_ns, now - command_ns
        if state_age <= self._state_ns and command_age <= self._command_ns:
            return ""
        if away > 2 * self._period_ns and max(state_age, command_age) - away <= self._period_ns:
            return f"{self._who} itself did not run for {away * 1e-6:.0f} ms"
        # For so long states came without an answer. Some always do: a robot sends several in a
        # control period, and on a busy computer the answer to the last one is late.
        unanswered = state_ns - command_ns
        if state_age > self._state_ns or unanswered <= max(self._period_ns, self._command_ns // 2):
            return f"no new state for {state_age * 1e-6:.0f} ms"
        return f"no policy command for {command_age * 1e-6:.0f} ms"
