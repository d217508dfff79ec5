"""A process with some PyBullet worlds; ``python -m sim.pybullet_worker FD SECONDS``.

Started by :mod:`sim.pybullet_pool`, which it answers over the socket FD. It lives as long as the
other end of that socket: however its owner ends, it ends. A call that takes longer than SECONDS
ends it, too, also when the call never returns to Python and there is no owner left to see it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from real.errors import FerryError
from sim.array_messages import receive, send
from sim.pybullet_plan import Blueprint

if TYPE_CHECKING:
    from sim.pybullet_block import Block


def _load() -> type[Block]:
    """Import PyBullet, which says when it was built to whoever reads the errors."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        from sim.pybullet_block import Block
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
    return Block


def serve(line: Connection, limit_s: float) -> None:
    """Build worlds as the first message says, then answer calls until the line closes."""
    block: Block | None = None
    try:
        while True:
            word, arrays, text = receive(line)
            signal.setitimer(signal.ITIMER_REAL, limit_s)
            try:
                if block is None:
                    block = _load()(Blueprint(**json.loads(text)), arrays)
                    answer = {}
                else:
                    answer = block.call(word, arrays)
                send(line, "done", answer)
            except FerryError as error:
                send(line, "refused", {}, str(error))
            except Exception:  # whatever it is, the owner shall know
                send(line, "failed", {}, traceback.format_exc())
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    except (EOFError, OSError):
        return  # the owner is gone, or wants nothing more
    finally:
        if block is not None:
            block.close()


def main(arguments: list[str]) -> None:
    """Serve on a socket that the starter passed on; see the module's description."""
    # Interrupts go to the whole group of processes; what to make of them is the owner's to say.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    socket, limit_s = arguments
    with Connection(int(socket)) as line:
        serve(line, float(limit_s))


if __name__ == "__main__":
    main(sys.argv[1:])
