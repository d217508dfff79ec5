"""What every test shares: an isolated ROS graph, quiet threads, repeatable examples, skips."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

import pytest
from hypothesis import HealthCheck, settings

from tests.extras import reason

# Fast DDS computes its ports from the domain id; above 101 they run into the ephemeral ports of
# Linux, as the ROS 2 documentation of ROS_DOMAIN_ID explains.
_DOMAINS = range(1, 102)
_held_domains: list[IO[str]] = []


def _claim_ros_domain() -> int:
    """Take a domain id no other test process on this machine holds, until this process ends.

    Two graphs on one domain hear each other's joint commands. A lock on a file names the owner; it
    is released by the system however the process ends. The search begins half-way round from where
    graphs of this process look for a free one, which so stay clear of those of the next process.
    """
    start = os.getpid() + len(_DOMAINS) // 2
    for offset in range(len(_DOMAINS)):
        domain = _DOMAINS[(start + offset) % len(_DOMAINS)]
        path = Path(tempfile.gettempdir(), f"ferry-test-domain-{os.getuid()}-{domain}.lock")
        lock = path.open("w")
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _held_domains.append(lock)
            return domain
        lock.close()
    raise RuntimeError("every ROS domain id from 1 to 101 is held by another test process")


# All of this must be in the environment before rclpy, numpy or torch is first imported, here or in
# a child process, and it overrides what the shell says: a test must never reach a real robot.
os.environ["ROS_DOMAIN_ID"] = str(_claim_ros_domain())
os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
os.environ.pop("ROS_STATIC_PEERS", None)
os.environ.pop("ROS_DISCOVERY_SERVER", None)
os.environ["ROS_LOG_DIR"] = tempfile.mkdtemp(prefix="ferry-test-ros-")
atexit.register(shutil.rmtree, os.environ["ROS_LOG_DIR"], ignore_errors=True)
# One test process uses one thread per array library; a waiting thread sleeps and does not spin,
# since worlds, nodes and the test share few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# No window and no display in tests.
os.environ.setdefault("MPLBACKEND", "Agg")

# The same examples in every run, so that a failure on one machine is a failure on all;
# `pytest --hypothesis-profile=explore` looks for new ones.
settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile("repeatable")

#: By marker, what its tests cannot do without.
_NEEDS = {"ros": "rclpy", "ray": "ray"}


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this machine cannot run; say which tests one process runs."""
    for item in items:
        if config.pluginmanager.hasplugin("xdist"):
            item.add_marker(pytest.mark.xdist_group(_group(item)))
        for marker, package in _NEEDS.items():
            if item.get_closest_marker(marker) and importlib.util.find_spec(package) is None:
                item.add_marker(pytest.mark.skip(reason=reason(package)))
        if item.get_closest_marker("gpu") and not _has_cuda():
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))


def _group(item: pytest.Item) -> str:
    """Whose tests follow each other in one process where `make test` deals them out by group.

    Those of clusters, which share one; else a file's, which share fixtures.
    """
    is_ray = item.get_closest_marker("ray") is not None
    return "ray" if is_ray else str(item.path.relative_to(Path(__file__).parent))


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()
