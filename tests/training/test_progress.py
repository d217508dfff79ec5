"""Progress displays: silent until something happens, honest about time, away from stdout."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from training import progress
from training.progress import bar, ticking


def plain() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=False, width=200), out


def test_work_that_is_refused_at_once_shows_nothing():
    console, out = plain()
    with pytest.raises(ValueError, match="refused"), bar("training", console=console):
        raise ValueError("refused")
    assert out.getvalue() == ""


def test_a_log_file_gets_a_line_at_the_start_now_and_then_and_at_the_end(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    console, out = plain()
    with bar("training", console=console) as tell:
        for step in range(1, 101):
            now[0] += 1.0
            tell(step, 100, f"{step} steps")
    lines = out.getvalue().splitlines()
    assert lines == [
        "training ...",
        # 30 of 100 in 30 s, so 70 s are left.
        "training: 30% after 30 s, 70 s left (30 steps)",
        "training: 60% after 60 s, 40 s left (60 steps)",
        "training: 90% after 90 s, 10 s left (90 steps)",
        "training: 100% after 100 s (100 steps)",
    ]


def test_an_unknown_total_is_no_division_by_zero(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    console, out = plain()
    with bar("running", console=console) as tell:
        now[0] = 31.0
        tell(0.0, 0.0, "RUN")
    assert out.getvalue().splitlines() == ["running ...", "running: 0% after 31 s (RUN)"]


def test_a_terminal_gets_a_bar_with_time_left_and_note():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=160)
    with bar("training", console=console) as tell:
        tell(25, 100, "return 3.1")
        tell(50, 100, "return 4.2")
    text = out.getvalue()
    assert "training" in text
    assert "left" in text
    assert "100%" in text


@pytest.mark.slow
def test_ticking_advances_by_the_clock_and_ends_complete():
    seen = []
    with ticking(lambda done, total, note="": seen.append((done, total)), 100.0):
        deadline = time.monotonic() + 10.0
        while len(seen) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert len(seen) >= 3
    assert seen[0][0] < seen[1][0] < 99.0
    assert seen[-1] == (100.0, 100.0)


@pytest.mark.slow
def test_ticking_stops_when_the_work_fails():
    seen = []
    with pytest.raises(ValueError, match="x"), ticking(lambda *given: seen.append(given), 1.0):
        raise ValueError("x")
    count = len(seen)
    time.sleep(0.7)
    assert len(seen) == count


def test_bars_go_to_stderr():
    assert progress.TERMINAL.stderr
