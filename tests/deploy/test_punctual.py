"""Being on time: never early, timers that end when they should, a collector with little to do."""

from __future__ import annotations

import ctypes
import os
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


def tried(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


PERMITTED = "import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))"


def test_a_priority_is_of_all_threads_and_of_those_that_they_start():
    if tried(PERMITTED).returncode:
        pytest.skip("this user may take no real-time priority")
    done = tried(
        "import os, threading\n"
        "from deploy.punctual import take_priority\n"
        "def kind(): return os.sched_getscheduler(0), os.sched_getparam(0).sched_priority\n"
        "seen, go, told = {}, threading.Event(), threading.Event()\n"
        "def before(): go.wait(); seen['before'] = kind(); told.set()\n"
        "threading.Thread(target=before).start()\n"
        "take_priority(0)\n"
        "assert kind() == (os.SCHED_OTHER, 0)\n"
        "take_priority(7)\n"
        "go.set(); told.wait()\n"
        "after = threading.Thread(target=lambda: seen.update(after=kind()))\n"
        "after.start(); after.join()\n"
        "seen['main'] = kind()\n"
        "assert seen == dict.fromkeys(('before', 'after', 'main'), (os.SCHED_FIFO, 7)), seen\n"
    )
    assert done.returncode == 0, done.stderr


def test_a_nodes_priority_is_not_that_of_the_process_which_tries_a_bundle(tmp_path):
    if tried(PERMITTED).returncode:
        pytest.skip("this user may take no real-time priority")
    (tmp_path / "trial.py").write_text(
        "import json, os\nprint(json.dumps({'problem': str(os.sched_getscheduler(0))}))\n"
    )
    done = tried(
        "import os\n"
        "from deploy import golden_run, reproduction\n"
        "from deploy.punctual import take_priority\n"
        f"golden_run.__file__ = {str(tmp_path / 'trial.py')!r}\n"
        "take_priority(7)\n"
        "assert reproduction.problem_apart(b'', {}, {}, [], [], 0.0) == str(os.SCHED_OTHER)\n"
        "assert os.sched_getscheduler(0) == os.SCHED_FIFO\n"
    )
    assert done.returncode == 0, done.stderr


def test_a_priority_that_is_not_permitted_is_refused_with_what_to_do():
    if not tried(PERMITTED).returncode and os.getuid() != 0:
        pytest.skip("this user may take any priority")
    done = tried(
        "import os\n"
        "from deploy.punctual import take_priority\n"
        "if os.getuid() == 0: os.setuid(65534)\n"  # nobody, who may not
        "try: take_priority(20)\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    assert done.stdout.startswith("FerryError realtime_priority is 20"), done.stderr
    assert "/etc/security/limits.d/realtime.conf" in done.stdout


def test_trying_a_priority_leaves_the_process_as_it_is():
    if tried(PERMITTED).returncode:
        pytest.skip("this user may take no real-time priority")
    done = tried(
        "import os\n"
        "from deploy.punctual import try_priority\n"
        "try_priority(7)\n"
        "for thread in os.listdir('/proc/self/task'):\n"
        "    assert os.sched_getscheduler(int(thread)) == os.SCHED_OTHER\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_bench_with_a_priority_that_is_not_permitted_starts_nothing():
    if not tried(PERMITTED).returncode and os.getuid() != 0:
        pytest.skip("this user may take any priority")
    done = tried(
        "import os\n"
        "from deploy.bench import bench_deploy\n"
        "if os.getuid() == 0: os.setuid(65534)\n"  # nobody, who may not
        "def say(*what): print('began', *what)\n"
        "try: bench_deploy(seconds=1.0, priority=20, progress=say)\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    assert done.stdout.startswith("FerryError realtime_priority is 20"), done
