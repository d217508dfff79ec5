"""What tests of processes share: on a busy computer a node may take long to end in order."""

from __future__ import annotations

import pytest

from deploy import processes


@pytest.fixture(autouse=True)
def time_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is killed for being slow, where that is not what is tested."""
    monkeypatch.setattr(processes, "STOP_S", 60.0)
    monkeypatch.setattr(processes, "RECORDER_STOP_S", 60.0)
