from __future__ import annotations

import pytest

from sim.sweep import sweep


def test_every_size_has_a_time_and_the_largest_its_memory() -> None:
    told: list[float] = []
    found = sweep(
        "cartpole_balance",
        threads=1,
        seconds=0.01,
        sizes=(8, 2),
        turn=32,
        progress=lambda done, _: told.append(done),
    )
    times = found["per_world_step_us"]
    assert list(times) == ["2", "8"]
    assert all(0.0 < value < 1e6 for value in times.values())
    spread = max(times.values()) / min(times.values())
    assert found["per_world_step_spread"] == pytest.approx(spread)
    assert 0.0 <= found["mib_per_world"] < 50.0
    assert told
