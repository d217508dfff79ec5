"""Being on time with Python on a general kernel: timers, the interpreter's lock, its collector.

Only :func:`take_priority` needs a privilege, and none of it makes Python hard real-time. What it is
worth was measured with ``ferry bench deploy``; what each thing costs is said where it is done.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from real.errors import FerryError

_Result = TypeVar("_Result")

#: The last part of a wait is spent looking at the clock: at most so long [s], and no more than this
#: share of the wait. A thread that sleeps wakes some 50 us late even with a sharp timer, and later
#: where a core has to be woken, too. It costs 1 % of one core at 50 Hz, and never more than 4 %.
SPIN_S, SPIN_SHARE = 2e-4, 0.04
#: How long a thread of a node may keep the interpreter's lock once another wants it [s]. Python's
#: own 5 ms are a whole period at 200 Hz.
SWITCH_S = 2e-4
#: What the nodes' parameter ``realtime_priority`` is. 99 is left to the kernel's own threads.
PRIORITY = "SCHED_FIFO priority of the process, 1 to 98; 0: none"
#: ``PR_SET_TIMERSLACK`` of prctl(2).
_TIMER_SLACK = 29


def sharpen_timers() -> bool:
    """Let the calling thread's sleeps end on time, and not up to 50 us later; see prctl(2).

    The kernel would gather wake-ups that are near each other, to save power.

    Returns:
        Whether the kernel does so; it is Linux' own call.
    """
    try:
        return ctypes.CDLL(None).prctl(_TIMER_SLACK, ctypes.c_ulong(1), 0, 0, 0) == 0
    except (OSError, AttributeError):
        return False


def wait(seconds: float) -> None:
    """Sleep, but for the end (:data:`SPIN_S`), in which the clock is looked at until it is time.

    Other threads of the process do not get the interpreter's lock in it, and so nobody else has it
    when the time has come.
    """
    end_ns = time.monotonic_ns() + round(seconds * 1e9)
    if seconds > 0.0:
        time.sleep(seconds - min(SPIN_S, SPIN_SHARE * seconds))
    while time.monotonic_ns() < end_ns:
        pass


def share_the_interpreter() -> None:
    """Let the threads of this process take turns within :data:`SWITCH_S`."""
    sys.setswitchinterval(SWITCH_S)


def settle_memory() -> None:
    """Keep what is there now out of the cyclic garbage collector's way.

    A full collection looks at every container that was ever made, of modules and messages too:
    nearly 30 ms, in which no thread of a node does anything. So it is done once, when the node is
    made and before it starts. What comes later is collected as before, and there is little of it.
    """
    gc.collect()
    gc.freeze()


def take_priority(priority: float) -> None:
    """Run this process ahead of all ordinary ones: SCHED_FIFO of sched(7), for all its threads.

    Threads that are there get it, DDS' among them, and hand it on to those that they start. A
    node then waits for no other process once its message is there. One that never sleeps again
    would keep a core, but for the 5 % that Linux leaves to others by default.

    Args:
        priority: 1 to 98; 0 changes nothing. Nodes read it as a number of any kind.

    Raises:
        FerryError: not a whole number, the system does not permit it, or has no such priorities.
    """
    if priority == 0:
        return
    done = set[int]()
    # Until there is no new one: a thread that had none yet may have started another meanwhile.
    while new := set(_threads()) - done:
        for thread in new:
            _set(thread, priority)
        done |= new


def try_priority(priority: float) -> None:
    """Have a thread that ends at once take it: what processes started from here will be permitted.

    Raises:
        FerryError: as :func:`take_priority`.
    """
    if priority != 0:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(_set, 0, priority).result()


def ordinarily(action: Callable[[], _Result]) -> _Result:
    """Do something in a thread that has no priority; processes that it starts have none either."""
    if not hasattr(os, "sched_getscheduler") or os.sched_getscheduler(0) == os.SCHED_OTHER:
        return action()  # without a thread, so that Ctrl-C ends it
    with ThreadPoolExecutor(1, initializer=_be_ordinary) as pool:
        return pool.submit(action).result()


def _be_ordinary() -> None:
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _threads() -> list[int]:
    """Those of this process; on other systems than Linux the one that calls, as 0."""
    try:
        return [int(name) for name in os.listdir("/proc/self/task")]
    except OSError:
        return [0]


def _set(thread: int, priority: float) -> None:
    if priority != int(priority):
        raise FerryError(f"realtime_priority is {priority}; expected a whole number, 0 to 98")
    try:
        os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(int(priority)))
    except PermissionError as error:
        raise FerryError(
            f"realtime_priority is {priority}, which this user may not have: put the line "
            "`@realtime - rtprio 98` into /etc/security/limits.d/realtime.conf and the user into "
            "that group, and log in again (in a container: --cap-add=SYS_NICE); or leave it at 0"
        ) from error
    except ProcessLookupError:
        pass  # that thread has ended since
    except (OSError, AttributeError) as error:
        raise FerryError(
            f"realtime_priority is {priority}, but this system has no such priorities "
            f"({error}); it is Linux' own: leave it at 0"
        ) from error
