"""What tests of processes share: on a busy computer a node may take long to end in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy import golden_run, processes, reproduction


@pytest.fixture(autouse=True)
def time_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is killed for being slow, where that is not what is tested."""
    monkeypatch.setattr(processes, "STOP_S", 60.0)
    monkeypatch.setattr(processes, "RECORDER_STOP_S", 60.0)


@pytest.fixture(scope="module")
def same_process() -> Iterator[None]:
    """Bundles are tried in the tests' own process: thousands are read, and none may crash it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduction, "problem_apart", golden_run.problem_of)
        yield
