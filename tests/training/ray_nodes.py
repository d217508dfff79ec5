"""Nodes of a Ray cluster on the loopback, started as the README starts them on two machines."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ray._raylet import GcsClient
from ray.core.generated.gcs_pb2 import GcsNodeInfo
from ray.exceptions import RpcError

from tests.training.toy_run import alive, wait_until
from training.process_tree import descendants

ROOT = Path(__file__).resolve().parents[2]
START = "from ray.scripts.scripts import main; main()"
FIXED = ("start", "--block", "--disable-usage-stats", "--object-store-memory=100000000")
#: The head asks its nodes so often whether they live [ms]; five refusals are a loss. One that is
#: only busy has ten seconds for each answer.
CHECK_MS = 300


@contextlib.contextmanager
def node(*options: str) -> Iterator[subprocess.Popen[bytes]]:
    """What ``ray start`` does on one machine; all its processes end with the context."""
    process = subprocess.Popen(
        [sys.executable, "-c", START, *FIXED, *options],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "RAY_health_check_period_ms": str(CHECK_MS),
        },
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        kill_all(process)


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill a node and everything below it, as when its machine loses power."""
    family = [process.pid, *descendants(process.pid)]
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not alive(family), "the end of a node")


@contextlib.contextmanager
def head(cpus: int) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The head of a cluster, with no other node yet: its process, and the address to join."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ("--head", f"--port={port}", "--include-dashboard=false", f"--num-cpus={cpus}")
    with node(*options) as process:
        address = f"127.0.0.1:{port}"
        wait_until(lambda: _listens(port), "the head of a cluster")
        yield process, address


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        return True
    return False


def await_nodes(address: str, number: int) -> None:
    """Wait until a cluster has so many nodes; asked of its head, without joining it."""
    head = GcsClient(address=address)

    def living() -> int:
        with contextlib.suppress(RpcError):
            states = [node.state for node in head.get_all_node_info(timeout=10.0).values()]
            return states.count(GcsNodeInfo.GcsNodeState.ALIVE)
        return 0

    wait_until(lambda: living() == number, f"{number} nodes")
