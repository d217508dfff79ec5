from __future__ import annotations

import math

import numpy as np
import pytest

from deploy.timing import Histogram, Rate, TickGrid, Window

MS = 1_000_000
START = 7_000_000_001


def ticks(stamps, period_s=0.02):
    grid = TickGrid(period_s)
    return [s for s in stamps if grid.due(s)]


def test_four_states_per_tick_are_answered_once_on_the_grid_of_the_first():
    stamps = [START + i * 5 * MS for i in range(41)]
    assert ticks(stamps) == [START + i * 20 * MS for i in range(11)]


def test_a_state_off_the_grid_is_answered_late_and_the_grid_stays():
    stamps = [START + i * 8 * MS for i in range(30)]
    answered = np.array(ticks(stamps)) - START
    # Every tick is the first state at or after its multiple of 20 ms.
    expected = [math.ceil(20 * k / 8) * 8 for k in range(len(answered))]
    np.testing.assert_array_equal(answered / MS, expected)


def test_lost_states_cost_one_tick_and_no_burst_follows():
    stamps = [START + i * 5 * MS for i in range(60) if not 10 <= i < 31]
    answered = np.diff(ticks(stamps)) / MS
    assert answered.max() >= 100
    assert answered.min() >= 20


@pytest.mark.parametrize("jitter_ms", [0.3, 0.9])
def test_jitter_never_skips_every_other_state_where_states_come_at_the_control_rate(jitter_ms):
    rng = np.random.default_rng(0)
    noise = rng.uniform(-jitter_ms, jitter_ms, 200) * MS / 2
    stamps = [START + i * 20 * MS + round(n) for i, n in enumerate(noise)]
    assert len(ticks(stamps)) == 200


def test_a_clock_set_back_starts_a_new_grid_instead_of_waiting_for_the_old_one():
    before = [START + i * 5 * MS for i in range(9)]
    after = [START - 1000 * MS + i * 5 * MS for i in range(9)]
    answered = ticks(before + after)
    assert answered[3] == after[0]
    assert len(answered) == 6


def test_a_frozen_clock_ticks_once():
    assert ticks([START] * 50) == [START]


def test_percentiles_are_of_the_newest_durations():
    window = Window(size=4)
    assert math.isnan(window.percentile(50))
    for value in (100.0, 1.0, 2.0, 3.0, 4.0):
        window.add(value)
    assert window.percentile(50) == 2.5
    assert window.percentile(100) == 4.0
    assert window.count == 5
    assert window.milliseconds("x")["x_p50_ms"] == 2500.0
    rng = np.random.default_rng(0)
    for size, count in ((4, 3), (7, 20), (1, 5)):
        window, values = Window(size), rng.normal(size=count)
        for value in values:
            window.add(value)
        percents = (0.0, 37.0, 50.0, 99.0, 100.0)
        np.testing.assert_allclose(
            window.percentiles(*percents), np.percentile(values[-size:], percents), rtol=1e-12
        )


def test_a_histogram_is_of_all_durations_and_never_too_small():
    rng = np.random.default_rng(1)
    values = rng.permutation(np.exp(rng.normal(-7.0, 2.0, size=5000)))
    histogram = Histogram()
    for value in values:
        histogram.add(float(value))
    for percent in (0.0, 1.0, 50.0, 99.0, 99.9, 100.0):
        true = np.percentile(values, percent, method="inverted_cdf")
        assert true <= histogram.percentile(percent) * (1 + 1e-9)
        assert histogram.percentile(percent) <= 1.01 * true * (1 + 1e-9)
    assert histogram.count == 5000
    assert histogram.milliseconds("x")["x_max_ms"] == 1e3 * values.max()


def test_a_histogram_takes_what_no_bin_was_made_for():
    histogram = Histogram()
    assert math.isnan(histogram.percentile(99))
    for value in (0.0, 1e-9, 5e3):
        histogram.add(value)
    assert histogram.percentile(50) == Histogram.SHORTEST_S
    assert histogram.percentile(100) >= Histogram.LONGEST_S
    assert histogram.longest_s == 5e3


def test_a_rate_is_counted_between_looks_that_are_far_enough_apart():
    now = [10.0]
    rate = Rate(clock=lambda: now[0])
    assert rate.of(0) == 0.0
    now[0] = 12.0
    assert rate.of(30) == 15.0
    now[0] = 12.1
    assert rate.of(31) == 15.0  # too soon: one event in 0.1 s is no rate
    now[0] = 13.0
    assert rate.of(80) == 50.0  # since 12.0
