"""Being on time with Python on a general kernel: timers, the interpreter's lock, its collector.

None of this needs a privilege, and none of it makes Python hard real-time. What it is worth was
measured with ``ferry bench deploy``; what each thing costs is said where it is done.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import time

#: The last part of a wait is spent looking at the clock: at most so long [s], and no more than this
#: share of the wait. A thread that sleeps wakes some 50 us late even with a sharp timer, and later
#: where a core has to be woken, too. It costs 1 % of one core at 50 Hz, and never more than 4 %.
SPIN_S, SPIN_SHARE = 2e-4, 0.04
#: How long a thread of a node may keep the interpreter's lock once another wants it [s]. Python's
#: own 5 ms are a whole period at 200 Hz.
SWITCH_S = 2e-4
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
