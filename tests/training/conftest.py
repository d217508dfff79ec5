"""Small networks are slower on several threads than on one, and tests run side by side."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.training.toy_run import KEPT, wait_until, workers

torch.set_num_threads(1)

# Ray reads these when it is imported. Nobody else on this machine joins the tests' clusters.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(16)

#: Whoever a run on Ray starts, by the names that Ray gives them.
ROLES = ("_Actor", "_Evaluator", "_Learner", "WeightStore")


@pytest.fixture(scope="session")
def cluster() -> Iterator[tuple[Any, str]]:
    """A node that runs of all files join, one after the other: (its process, address).

    A cluster takes longer to start than most of those runs.
    """
    from tests.training.ray_nodes import head

    with head(cpus=3) as found:
        KEPT.add(found[0].pid)
        yield found
    KEPT.discard(found[0].pid)


@pytest.fixture
def address(cluster: tuple[Any, str]) -> Iterator[str]:
    """Where to join it; whoever a run started there is gone before the next one begins."""
    yield cluster[1]
    wait_until(lambda: not any(map(workers, ROLES)), "the end of all processes of the run")
