from __future__ import annotations

import numpy as np
import pytest

from real.fall import FALL_LOW_S, FALL_TILT_RAD, low_steps
from sim.terminations import FallConfig, TerminationConfig, Terminations
from training.scores import NEVER, fall_steps


@pytest.mark.parametrize(
    ("dt", "steps"),
    [
        (0.02, 10),  # 0.2 / 0.02 is 10 exactly
        (0.015, 14),  # 13 steps last 0.195 s, which is too short
        (0.004, 50),
        (0.03, 7),  # 6 steps last 0.18 s
        (0.5, 1),
    ],
)
def test_a_base_must_be_low_for_a_fifth_of_a_second_whatever_the_rate(dt, steps):
    assert low_steps(dt) == steps


def test_a_task_may_ask_for_another_time_and_one_step_is_the_least():
    assert low_steps(0.02, low_s=0.1) == 5
    assert low_steps(0.02, low_s=0.3) == 15  # the quotient is 14.999999999999998
    assert low_steps(0.02, low_s=0.0) == 1


def test_the_task_file_starts_from_the_same_numbers():
    assert FallConfig().tilt_rad == FALL_TILT_RAD == 1.0
    assert FallConfig().low_s == FALL_LOW_S == 0.2


@pytest.mark.parametrize("dt", [0.02, 0.015, 0.03])
def test_training_and_scoring_find_a_fall_in_the_same_step(dt):
    rng = np.random.default_rng(0)
    height = np.where(rng.random((80, 5)) < 0.95, 0.1, 0.3)  # low in long stretches
    tilt = np.where(rng.random((80, 5)) < 0.01, 1.2, 0.5)
    scored = fall_steps(tilt, height, fall_height_m=0.16, dt_s=dt)
    check = Terminations(
        TerminationConfig(),
        5,
        fall_height_m=0.16,
        joints=(),
        q_default=np.zeros(0),
        control_dt_s=dt,
    )
    no = np.zeros(5, dtype=bool)
    found = np.full(5, NEVER)
    for step in range(80):
        gravity = np.stack([np.sin(tilt[step]), np.zeros(5), -np.cos(tilt[step])], axis=1)
        fallen = check.check(
            gravity, height[step], q=np.zeros((5, 0)), body_contact=no, diverged=no
        ).fallen
        found = np.where(fallen & (found == NEVER), step, found)
    np.testing.assert_array_equal(found, scored)
    assert len(set(found.tolist())) > 1
