from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from real.errors import FerryError
from training.scores import (
    NEVER,
    balance,
    fall_steps,
    falls_per_minute,
    lean,
    mean_interval,
    rate_interval,
    step_scores,
    tracking,
)

DT = 0.02


def never(count: int) -> np.ndarray:
    return np.full(count, NEVER)


# ------------------------------------------------------------------ one step


def test_following_exactly_scores_one():
    command = np.array([0.5, -0.2, 0.7])
    assert step_scores(command, np.array([0.5, -0.2, 9.0]), np.array(0.7)) == pytest.approx(1.0)


def test_a_step_by_hand():
    # ex = 0.3, ey = -0.4: lin = exp(-(0.09 + 0.16) / 0.25) = exp(-1)
    # ewz = 0.5: yaw = exp(-0.25 / 0.25) = exp(-1); (2 lin + yaw) / 3 = exp(-1)
    score = step_scores(np.array([0.5, 0.0, 0.2]), np.array([0.2, 0.4, 0.0]), np.array(-0.3))
    assert score == pytest.approx(math.exp(-1.0))
    # Only the yaw rate is off: (2 + exp(-1)) / 3. Only the velocity: (2 exp(-1) + 1) / 3.
    command = np.array([0.5, 0.0, 0.2])
    assert step_scores(command, command, np.array(-0.3)) == pytest.approx((2 + math.exp(-1)) / 3)
    assert step_scores(command, np.array([0.0, 0.0, 0.0]), np.array(0.2)) == pytest.approx(
        (2 * math.exp(-1) + 1) / 3
    )


def test_the_direction_of_an_error_counts():
    command = np.array([0.5, 0.3, 0.0])
    right = step_scores(command, np.array([0.5, 0.3, 0.0]), np.array(0.0))
    swapped = step_scores(command, np.array([0.3, 0.5, 0.0]), np.array(0.0))
    mirrored = step_scores(command, np.array([0.5, -0.3, 0.0]), np.array(0.0))
    assert right > swapped > mirrored


def test_a_velocity_that_is_no_number_scores_zero():
    command = np.array([0.5, 0.0, 0.2])
    assert step_scores(command, np.array([np.nan, 0.0, 0.0]), np.array(0.2)) == 0.0
    assert step_scores(command, command, np.array(np.nan)) == 0.0


@given(st.lists(st.floats(-3.0, 3.0), min_size=6, max_size=6))
def test_scores_lie_between_zero_and_one(numbers):
    command, velocity = np.array(numbers[:3]), np.array(numbers[3:])
    assert 0.0 <= step_scores(command, velocity, velocity[2]) <= 1.0


# ------------------------------------------------------------------ one episode


def episode(seconds=4.0, num=1, *, command=(0.5, 0.0, 0.0)):
    steps = round(seconds / DT)
    wanted = np.broadcast_to(np.array(command), (steps, num, 3)).copy()
    return wanted, wanted.copy(), np.zeros((steps, num, 3))


def test_the_first_second_does_not_count():
    command, lin, ang = episode()
    lin[:50] = 9.0  # steps that end at 0.02 ... 1.00 s
    assert tracking(command, lin, ang, fallen_at=never(1), dt_s=DT) == pytest.approx([1.0])
    lin[50] = 9.0  # the step that ends at 1.02 s: one of 150 that count, of which yaw is right
    expected = (149 + 1 / 3) / 150
    assert tracking(command, lin, ang, fallen_at=never(1), dt_s=DT) == pytest.approx([expected])


def test_a_fallen_robot_scores_zero_until_its_episode_would_have_ended():
    command, lin, ang = episode(num=3)
    fallen_at = np.array([NEVER, 125, 10])  # never, after half of what counts, before any of it
    scores = tracking(command, lin, ang, fallen_at=fallen_at, dt_s=DT)
    assert scores == pytest.approx([1.0, 75 / 150, 0.0])


def test_a_fall_before_the_first_second_is_not_forgiven_by_standing_up():
    command, lin, ang = episode()
    assert tracking(command, lin, ang, fallen_at=np.array([0]), dt_s=DT) == [0.0]


def test_episodes_are_scored_each_on_its_own():
    rng = np.random.default_rng(0)
    command, lin, ang = (rng.normal(size=(200, 5, 3)) for _ in range(3))
    fallen_at = np.array([NEVER, 60, 199, 0, 120])
    together = tracking(command, lin, ang, fallen_at=fallen_at, dt_s=DT)
    for i in range(5):
        one = slice(i, i + 1)
        alone = tracking(
            command[:, one], lin[:, one], ang[:, one], fallen_at=fallen_at[one], dt_s=DT
        )
        assert alone[0] == pytest.approx(together[i])
    assert len(set(together.tolist())) == 5


def test_a_run_of_one_second_cannot_be_scored():
    command, lin, ang = episode(seconds=1.0)
    with pytest.raises(FerryError, match="nothing is left"):
        tracking(command, lin, ang, fallen_at=never(1), dt_s=DT)


@pytest.mark.parametrize("dt", [0.02, 0.005, 0.01, 1.0 / 30.0])
def test_the_first_second_is_a_second_at_every_rate(dt):
    steps = round(3.0 / dt)
    command = np.zeros((steps, 1, 3))
    lin = np.zeros((steps, 1, 3))
    ends = (np.arange(steps) + 1) * dt
    lin[ends < 1.0 + 1e-9] = 9.0
    assert tracking(command, lin, np.zeros_like(lin), fallen_at=never(1), dt_s=dt) == [1.0]


# ------------------------------------------------------------------ falls


def upright(steps=100, num=1):
    return np.zeros((steps, num)), np.full((steps, num), 0.28)


def falls(tilt, height, limit=0.16):
    return fall_steps(tilt, height, fall_height_m=limit, dt_s=DT).tolist()


def test_a_robot_that_stays_up_never_falls():
    assert falls(*upright(num=3)) == [NEVER] * 3


def test_a_tilt_above_one_radian_is_a_fall_at_once():
    tilt, height = upright(num=3)
    tilt[40:, 0] = 1.0
    tilt[40:45, 1] = 1.01
    tilt[7, 2] = 1.5
    assert falls(tilt, height) == [NEVER, 40, 7]


def test_a_low_base_is_a_fall_after_two_tenths_of_a_second_in_a_row():
    tilt, height = upright(num=4)
    height[30:39, 0] = 0.1  # 9 steps: 0.18 s
    height[30:40, 1] = 0.1  # 10 steps: 0.20 s, complete at step 39
    height[30:39, 2] = height[40:49, 2] = 0.1  # twice 9 with a high step between
    height[:, 3] = 0.1  # from the start
    assert falls(tilt, height) == [NEVER, 39, NEVER, 9]


def test_where_height_means_nothing_only_the_tilt_counts():
    tilt, height = upright()
    height[:] = 0.0
    assert falls(tilt, height, limit=None) == [NEVER]
    assert falls(tilt, None) == [NEVER]


def test_a_robot_whose_place_is_unknown_has_fallen():
    tilt, height = upright(num=2)
    tilt[20:, 0] = np.nan
    height[20:, 1] = np.nan
    assert falls(tilt, height) == [20, 29]


# ------------------------------------------------------------------ intervals


def test_every_episode_counts_once_however_long_it_was():
    # One robot falls after 10 steps again and again in the time in which the other does 1000: the
    # mean of one episode each is 505, not that of the many short ones.
    returns = np.array([10.0, 1000.0])
    assert mean_interval(returns, high=2000.0).mean == 505.0


def test_the_number_of_episodes_is_what_was_given_and_not_a_window():
    assert falls_per_minute(never(37), steps=3000, dt_s=DT).high == pytest.approx(
        stats.chi2.ppf(0.975, 2) / 2 / 37.0
    )


def test_a_mean_interval_by_hand():
    # mean 0.8, s = 0.1, n = 3: t(0.975, 2) = 4.303; half = 4.303 * 0.1 / sqrt(3) = 0.2484
    found = mean_interval(np.array([0.7, 0.8, 0.9]))
    assert found.mean == pytest.approx(0.8)
    assert found.low == pytest.approx(0.8 - 0.2484, abs=1e-4)
    assert found.high == 1.0  # 1.048 is impossible


def test_mean_intervals_equal_those_of_scipy():
    values = np.random.default_rng(1).uniform(0.3, 0.6, 17)
    found = mean_interval(values)
    low, high = stats.t.interval(0.95, 16, loc=values.mean(), scale=stats.sem(values))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_one_episode_says_nothing_about_spread():
    found = mean_interval(np.array([0.9]))
    assert (found.mean, found.low, found.high) == (0.9, 0.0, 1.0)


def test_no_episode_is_an_error():
    with pytest.raises(FerryError, match="no episodes"):
        mean_interval(np.array([]))


@pytest.mark.parametrize("count", [0, 1, 3, 20])
def test_rate_intervals_are_the_exact_ones_of_the_poisson_distribution(count):
    found = rate_interval(count, 4.0)
    assert found.mean == count / 4.0
    # At the lower end so many events or more have probability 2.5 %, at the upper so many or fewer.
    if count:
        assert stats.poisson.sf(count - 1, 4.0 * found.low) == pytest.approx(0.025)
    else:
        assert found.low == 0.0
    assert stats.poisson.cdf(count, 4.0 * found.high) == pytest.approx(0.025)


def test_falls_are_counted_per_minute_on_the_feet():
    # 20 s each: one never falls, one falls after 5 s, one after 15 s: 2 falls in 40 s.
    fallen_at = np.array([NEVER, 250, 750])
    found = falls_per_minute(fallen_at, steps=1000, dt_s=DT)
    assert found.mean == pytest.approx(2 / (40.0 / 60.0))


def test_falling_sooner_is_falling_more_often():
    soon, late = (
        falls_per_minute(np.array([step]), steps=1000, dt_s=DT).mean for step in (50, 900)
    )
    assert soon > late


def test_a_robot_that_falls_in_its_first_step_has_a_finite_rate():
    assert falls_per_minute(np.array([0, 0]), steps=100, dt_s=DT).mean == pytest.approx(6000.0)


# ------------------------------------------------------------------ balance


def test_lean_is_the_largest_angle_to_the_default_pose_and_ignores_full_turns():
    off = np.array([[0.1, -0.3], [2.0 * np.pi - 0.2, 0.1], [-4.0 * np.pi, 0.0], [np.pi + 0.5, 0.0]])
    # pi + 0.5 is nearer from the other side: pi - 0.5
    assert lean(off) == pytest.approx([0.3, 0.2, 0.0, np.pi - 0.5])
    assert np.isnan(lean(np.array([[np.nan, 0.0], [np.inf, 0.0]]))).all()
    assert lean(np.empty((3, 0))) == pytest.approx(0.0)


def test_balance_is_the_share_of_time_within_a_fifth_of_a_radian():
    lean_rad = np.array([[0.0, 0.3, 0.0], [0.19, 0.0, 0.0], [0.21, 0.0, np.nan], [0.0, 0.0, 0.0]])
    assert balance(lean_rad, fallen_at=never(3)) == pytest.approx([0.75, 0.75, 0.75])


def test_after_a_fall_a_pole_that_swings_through_the_upright_does_not_count():
    lean_rad = np.zeros((4, 3))
    found = balance(lean_rad, fallen_at=np.array([NEVER, 1, 0]))
    assert found == pytest.approx([1.0, 0.25, 0.0])
