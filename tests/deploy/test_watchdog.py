"""Whose silence it is, by the times at which things came; all in milliseconds."""

from __future__ import annotations

import pytest

from deploy.watchdog import Watchdog

MS = 1_000_000
PERIOD = 20


class Watch:
    """States every 5 ms, answers every 20 ms, a look every 20 ms, until something stops."""

    def __init__(self, *, state=60, command=60) -> None:
        self.now = 1000
        self._dog = Watchdog(
            state * MS,
            command * MS,
            period_ns=PERIOD * MS,
            who="safety_node",
            clock=lambda: self.now * MS,
        )

    def until_stop(self, *, states_end=10**9, answers_end=10**9, jitter=0) -> tuple[int, str]:
        """When it stops, and why; the last states arrive late by ``jitter``."""
        while True:
            state = min(self.now, states_end) // 5 * 5
            command = min(self.now, states_end, answers_end) // PERIOD * PERIOD
            late = jitter if self.now > states_end else 0
            why = self._dog.look((state + late) * MS, command * MS)
            if why or self.now > 5000:
                return self.now, why
            self.now += PERIOD

    def look(self, now: int, *, state: int, command: int) -> str:
        self.now = now
        return self._dog.look(state * MS, command * MS)


def test_nothing_is_wrong_while_both_come():
    assert Watch().until_stop()[1] == ""


@pytest.mark.parametrize("end", range(2000, 2020))
@pytest.mark.parametrize("jitter", [0, 5])
def test_states_that_stop_are_named_whichever_limit_is_reached_first(end, jitter):
    # The last answer is up to 15 ms older than the last state: the policy is late first.
    now, why = Watch().until_stop(states_end=end, jitter=jitter)
    assert why.startswith("no new state for")
    # Not later than the older of the two allows, at the next look.
    assert now - end // PERIOD * PERIOD <= 60 + PERIOD


@pytest.mark.parametrize("end", range(2000, 2020))
def test_a_policy_that_stops_while_states_come_is_named(end):
    now, why = Watch().until_stop(answers_end=end)
    assert why == f"no policy command for {now - 2000} ms"
    assert now == 2080  # 60 ms after the last answer is not yet too late


def test_a_policy_that_falls_silent_long_before_the_states_do_is_named():
    assert Watch().until_stop(answers_end=2000, states_end=2050)[1].startswith("no policy command")


@pytest.mark.parametrize("state", [500, 20])
def test_limits_of_one_period_and_of_many_name_the_states_that_stop(state):
    watch = Watch(state=state, command=state)
    assert watch.until_stop(states_end=2010)[1].startswith("no new state")
    watch = Watch(state=state, command=state)
    assert watch.until_stop(answers_end=2010)[1].startswith("no policy command")


def test_a_watcher_that_did_not_run_itself_says_so():
    watch = Watch()
    assert watch.look(2000, state=1995, command=1980) == ""
    # It was paused, and looks before it has heard what has come meanwhile; or has heard a part.
    assert watch.look(2300, state=1995, command=1980) == "safety_node itself did not run for 300 ms"
    watch.look(2000, state=1995, command=1980)
    assert watch.look(2300, state=2299, command=1980) == "safety_node itself did not run for 300 ms"


def test_a_pause_of_the_watcher_excuses_nobody_who_was_silent_before():
    watch = Watch()
    assert watch.look(2000, state=1995, command=1945) == ""
    assert watch.look(2050, state=2049, command=1945) == "no policy command for 105 ms"
    watch = Watch()
    assert watch.look(2000, state=1950, command=1945) == ""
    assert watch.look(2050, state=1950, command=1945) == "no new state for 100 ms"


def test_somebody_who_never_spoke_is_silent_from_the_first_look():
    assert Watch().look(1000, state=0, command=0) == "no new state for 1000 ms"
    assert Watch().look(1000, state=999, command=0) == "no policy command for 1000 ms"
