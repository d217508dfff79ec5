"""How a run is asked to stop from outside."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from types import FrameType

log = logging.getLogger(__name__)


@contextlib.contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """Set an event on the first SIGINT or SIGTERM; the second has its usual effect."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may handle signals
        return
    # None stands for a handler that was not set from Python.
    before = {
        number: signal.getsignal(number) or signal.SIG_DFL
        for number in (signal.SIGINT, signal.SIGTERM)
    }

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])
        log.warning("stopping after this iteration; again to stop at once")

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
