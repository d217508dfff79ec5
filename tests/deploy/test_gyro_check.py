from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from deploy.checks import Check
from deploy.gyro_check import GyroCheck
from deploy.safety import Verdict
from real.frames import from_rpy, multiply
from real.signals import RobotState
from tests.deploy.safety_bench import DT, POSE, Bench

PERIOD = DT * 1e-9


def turn_until_stopped(bench: Bench, rate, *, reported, ticks: int = 250) -> float:
    """Turn about body axes with ``rate`` [rad/s]; how far [rad] until the filter stops, or inf."""
    rate = np.asarray(rate, dtype=float)
    angle = np.linalg.norm(rate) * PERIOD
    half = 0.5 * angle
    step = np.array([np.cos(half), *(np.sin(half) * rate / np.linalg.norm(rate))])
    for tick in range(ticks):
        bench.quat = multiply(bench.quat, step)
        bench.gyro = np.tile(reported(rate), (bench.num, 1))
        result = bench.send(POSE)
        if result.stop.any():
            assert {v.kind for v in result.violations} == {Check.GYRO}
            assert result.verdict.tolist() == [Verdict.DAMP] * bench.num
            return float((tick + 1) * angle)
    return np.inf


# Axes that differ, from a start that is not upright; no rate tilts the base into a fall.
@pytest.mark.parametrize("rate", [(0.0, 0.0, 0.9), (0.02, -0.03, -1.4), (0.0, 0.05, 0.2)])
def test_degrees_per_second_are_caught_before_the_base_has_turned_a_fifth_of_a_radian(rate):
    bench = Bench(2)
    bench.quat[:] = from_rpy([0.2, -0.1, 0.7])
    # Far before: two states make a turn, and 0.011 rad are enough.
    assert turn_until_stopped(bench, rate, reported=np.rad2deg) < 0.1


@pytest.mark.parametrize(
    ("reported", "limit"),
    [(lambda w: -w, 0.3), (lambda w: 0.0 * w, 0.8), (lambda w: w[[2, 0, 1]], 0.5)],
    ids=["turned round", "stuck at zero", "axes exchanged"],
)
def test_a_gyroscope_that_is_wrong_in_other_ways_is_caught(reported, limit):
    bench = Bench()
    assert turn_until_stopped(bench, (0.05, 0.0, 1.0), reported=reported) < limit


@pytest.mark.slow
def test_a_right_gyroscope_is_believed_through_whole_turns_noise_bias_and_both_signs():
    rng = np.random.default_rng(4)
    bench = Bench(20)
    truth = bench.quat.copy()
    for tick in range(1000):  # 20 s
        rate = np.zeros((20, 3))
        rate[:, 2] = 2.0 * np.sin(0.01 * tick + np.arange(20))
        rate[:, 0] = 0.5 * np.cos(0.4 * tick)
        half = 0.5 * rate * PERIOD
        truth = multiply(truth, np.concatenate([np.ones((20, 1)), half], axis=1))
        truth /= np.linalg.norm(truth, axis=1, keepdims=True)
        error = 0.5 * rng.normal(0.0, 0.03, (20, 3))
        bench.quat = multiply(truth, np.concatenate([np.ones((20, 1)), error], axis=1))
        bench.quat *= rng.choice([-1.0, 1.0], (20, 1))
        bench.gyro = rate + rng.normal(0.0, 0.3, (20, 3)) + 0.05
        assert not bench.send(POSE).stop.any()


def test_one_robot_is_judged_as_the_same_robot_among_others():
    rng = np.random.default_rng(5)
    one, two = (GyroCheck(n, share=0.5, slack=0.3, gap_ns=round(2.5 * DT)) for n in (1, 2))
    quat, told = np.array([1.0, 0.0, 0.0, 0.0]), []
    for tick in range(120):
        rate = np.array([0.7, -0.4, 1.1]) * np.sin(0.05 * tick)
        quat = multiply(quat, from_rpy(rate * PERIOD)) * rng.choice([-1.0, 1.0])
        # From the 60th on an axis the wrong way round; one state in between is not a number.
        said = rate * ([1.0, 1.0, -1.0] if tick >= 60 else 1.0) * (np.nan if tick == 30 else 1.0)
        found = []
        for check, num in ((one, 1), (two, 2)):
            state = dataclasses.replace(
                RobotState.zeros(num, 1),
                quat_wb=np.tile(quat, (num, 1)),
                gyro_b=np.tile(said, (num, 1)),
            )
            gap = 6 * DT if tick == 45 else DT
            found.append(check.update(state, np.full(num, gap, dtype=np.int64)) is not None)
        np.testing.assert_allclose(one.turned[0], two.turned[0], rtol=1e-12, atol=1e-15)
        assert found[0] == found[1]
        told.append(found[0])
    assert not any(told[:60])
    assert any(told[60:])


def test_a_gap_and_a_reset_start_the_comparison_anew():
    bench = Bench()
    bench.send(POSE)
    # Turned by hand while nobody looked: the gyroscope's word on that was never heard.
    bench.quat[:] = from_rpy([0.0, 0.0, 2.0])
    bench.filter.reset(now_ns=bench.now)
    assert not bench.send(POSE).stop.any()
    bench.quat[:] = from_rpy([0.0, 0.0, -1.0])
    result = bench.send(POSE, advance=6 * DT)
    assert Check.GYRO not in {v.kind for v in result.violations}


def test_one_bad_gyroscope_among_many_stops_its_robot_alone():
    bench = Bench(3)
    for _ in range(20):
        bench.quat = multiply(bench.quat, from_rpy([0.0, 0.0, 0.02]))
        bench.gyro[:] = [0.0, 0.0, 1.0]
        bench.gyro[1] *= 57.3
        result = bench.send(POSE)
        if result.stop.any():
            break
    assert result.stop.tolist() == [False, True, False]


def test_a_base_that_cannot_move_and_a_disabled_check_ask_nobody():
    bench = Bench(gyro_slack=None)
    assert turn_until_stopped(bench, (0.0, 0.0, 1.0), reported=np.rad2deg) == np.inf


def test_a_state_that_is_not_finite_is_another_fault():
    bench = Bench(2)
    bench.gyro[1] = np.nan
    kinds = {v.kind for v in bench.send(POSE).violations}
    assert kinds == {Check.STATE_NOT_FINITE}
    assert RobotState.zeros(1, 12).finite().all()
