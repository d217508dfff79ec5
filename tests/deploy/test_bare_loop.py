from __future__ import annotations

import threading
import time

import pytest

from deploy.bare_loop import BareLoop, keep
from tests.training.toy_run import wait_until


def test_each_deadline_is_kept_or_missed():
    # Asked to stop some time after it was asked to count anew, which it does when it is there.
    stop, anew, begun = threading.Event(), threading.Event(), time.monotonic()
    anew.set()

    def end():
        wait_until(lambda: not anew.is_set())
        threading.Timer(0.3, stop.set).start()

    threading.Thread(target=end).start()
    seen = keep(200, stop, anew)
    lasted = time.monotonic() - begun
    assert 1 <= seen["steps"] + seen["missed"] <= 200 * lasted + 2
    assert 0.0 <= seen["period_error_p50_ms"] <= seen["period_error_p99_ms"]
    assert seen["period_error_p99_ms"] <= seen["period_error_max_ms"]


@pytest.mark.slow
def test_it_forgets_what_it_saw_when_it_counts_anew():
    stop, anew, begun = threading.Event(), threading.Event(), time.monotonic()
    later = threading.Timer(0.25, stop.set)

    def forget():
        anew.set()
        later.start()

    threading.Timer(0.5, forget).start()
    seen = keep(100, stop, anew)
    lasted = time.monotonic() - begun
    assert 1 <= seen["steps"] + seen["missed"] <= (lasted - 0.5) * 100 + 2


def test_in_a_process_of_its_own_it_says_what_it_saw():
    with BareLoop(100) as bare:
        bare.count_anew()
    assert bare.result["missed"] >= 0
    assert "period_error_p99_ms" in bare.result
