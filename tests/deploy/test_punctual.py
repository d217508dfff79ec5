"""Being on time: never early, timers that end when they should, a collector with little to do."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time

import pytest

from deploy import punctual
from deploy.punctual import sharpen_timers, wait


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.5 * punctual.SPIN_S, 0.003, 0.007])
def test_a_wait_is_never_over_early(seconds):
    for _ in range(20):
        before = time.monotonic_ns()
        wait(seconds)
        assert time.monotonic_ns() - before >= round(seconds * 1e9)


def slack_ns():
    """Of the calling thread: PR_GET_TIMERSLACK of prctl(2)."""
    return ctypes.CDLL(None).prctl(30, 0, 0, 0, 0)


def test_timers_are_sharp_in_the_thread_that_asked_and_in_no_other():
    if sys.platform != "linux":
        pytest.skip("timer slack is Linux' own")
    before, seen = slack_ns(), []

    def ask():
        seen.extend([sharpen_timers(), slack_ns()])

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert seen == [True, 1]
    assert slack_ns() == before


def test_what_is_there_is_out_of_the_collectors_way_and_what_comes_is_collected():
    code = (
        "import gc, weakref\n"
        "from deploy.punctual import settle_memory\n"
        "class Ring: pass\n"
        "def ring():\n"
        "    made = Ring(); made.own = made\n"
        "    return weakref.ref(made)\n"
        "before = ring()\n"
        "settle_memory()\n"
        "after = ring()\n"
        "gc.collect()\n"
        "assert gc.get_freeze_count() > 1000\n"
        "assert before() is None and after() is None\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
