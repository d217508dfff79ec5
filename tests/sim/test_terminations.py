from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from real.errors import ConfigError
from real.frames import from_rpy, projected_gravity
from real.signals import RobotState
from sim.engine import WorldState
from sim.terminations import (
    BodyContactConfig,
    FallConfig,
    TerminationConfig,
    Terminations,
    all_finite,
    finite_rows,
    tilted,
    too_low,
)

DT = 0.02
NO = np.zeros(3, dtype=bool)
UPRIGHT = np.tile([0.0, 0.0, -1.0], (3, 1))
HIGH = np.full(3, 0.3)
JOINTS, DEFAULT = ("rail", "pole"), np.array([0.5, -0.1])
Q = np.tile(DEFAULT, (3, 1))


def make(config: TerminationConfig | None = None, height: float | None = 0.16) -> Terminations:
    return Terminations(
        config or TerminationConfig(),
        3,
        fall_height_m=height,
        joints=JOINTS,
        q_default=DEFAULT,
        control_dt_s=DT,
    )


def world(num: int = 4) -> WorldState:
    return WorldState(
        robot=RobotState.zeros(num, 5),
        position_w=np.zeros((num, 3)),
        lin_vel_b=np.zeros((num, 3)),
        foot_position_w=np.zeros((num, 2, 3)),
        foot_velocity_w=np.zeros((num, 2, 3)),
        foot_contact=np.zeros((num, 2), dtype=bool),
        body_contact=np.zeros(num, dtype=bool),
        diverged=np.zeros(num, dtype=bool),
    )


def test_tilt_is_measured_from_the_vertical_whatever_the_heading() -> None:
    rpy = [[0.99, 0.0, 2.0], [1.01, 0.0, -1.0], [0.0, -1.01, 3.0], [0.8, 0.8, 0.3], [0.0, 0.0, 2.0]]
    # roll and pitch of 0.8 each: cos(tilt) = cos(0.8)^2 = 0.485, tilt = 1.06 rad
    found = tilted(projected_gravity(from_rpy(rpy)), tilt_rad=1.0)
    np.testing.assert_array_equal(found, [False, True, True, True, False])


def test_upside_down_is_tilted() -> None:
    assert tilted(projected_gravity(from_rpy([[np.pi, 0.0, 0.0]])), tilt_rad=1.0).all()


def test_nan_counts_as_the_bad_case() -> None:
    gravity = UPRIGHT.copy()
    gravity[1] = np.nan
    np.testing.assert_array_equal(tilted(gravity, tilt_rad=1.0), [False, True, False])
    height = np.array([0.3, 0.3, np.nan])
    np.testing.assert_array_equal(too_low(height, fall_height_m=0.16), [False, False, True])


def test_low_is_a_fall_only_after_two_tenths_of_a_second() -> None:
    check = make()
    height = np.array([0.1, 0.3, 0.159])
    fallen = [
        check.check(UPRIGHT, height, q=Q, body_contact=NO, diverged=NO).fallen for _ in range(11)
    ]
    assert not np.array(fallen[:9]).any()  # 0.18 s
    np.testing.assert_array_equal(fallen[9], [True, False, True])  # 0.2 s
    np.testing.assert_array_equal(fallen[10], [True, False, True])


def test_rising_above_the_height_starts_the_count_anew() -> None:
    check = make()
    for step in range(30):
        height = np.array([0.3 if step % 9 == 8 else 0.1, 0.1, 0.3])
        found = check.check(UPRIGHT, height, q=Q, body_contact=NO, diverged=NO)
    np.testing.assert_array_equal(found.fallen, [False, True, False])


def test_reset_starts_the_count_of_its_rows_anew() -> None:
    check = make()
    low = np.full(3, 0.1)
    for _ in range(9):
        check.check(UPRIGHT, low, q=Q, body_contact=NO, diverged=NO)
    check.reset(np.array([1]))
    found = check.check(UPRIGHT, low, q=Q, body_contact=NO, diverged=NO)
    np.testing.assert_array_equal(found.fallen, [True, False, True])


def test_state_carries_the_count() -> None:
    first, second = make(), make()
    low = np.array([0.1, 0.3, 0.1])
    for _ in range(9):
        first.check(UPRIGHT, low, q=Q, body_contact=NO, diverged=NO)
    second.load_state_dict(first.state_dict())
    found = second.check(UPRIGHT, low, q=Q, body_contact=NO, diverged=NO)
    np.testing.assert_array_equal(found.fallen, [True, False, True])


def test_a_robot_without_fall_height_falls_by_tilt_alone() -> None:
    check = make(height=None)
    gravity = UPRIGHT.copy()
    gravity[2] = [0.0, 1.0, 0.0]
    for _ in range(20):
        found = check.check(gravity, np.full(3, -5.0), q=Q, body_contact=NO, diverged=NO)
    np.testing.assert_array_equal(found.fallen, [False, False, True])


@pytest.mark.parametrize("enabled", [True, False])
def test_conditions_do_not_depend_on_the_switches(enabled: bool) -> None:
    config = TerminationConfig(
        fall=FallConfig(enabled=enabled), body_contact=BodyContactConfig(enabled=not enabled)
    )
    gravity = UPRIGHT.copy()
    gravity[0] = [1.0, 0.0, 0.0]
    touching = np.array([False, True, False])
    found = make(config).check(gravity, HIGH, q=Q, body_contact=touching, diverged=NO)
    np.testing.assert_array_equal(found.fallen, [True, False, False])
    np.testing.assert_array_equal(found.body_contact, touching)
    np.testing.assert_array_equal(found.terminated, [enabled, not enabled, False])


def test_divergence_always_terminates() -> None:
    config = TerminationConfig(fall=FallConfig(enabled=False))
    diverged = np.array([False, True, False])
    found = make(config).check(UPRIGHT, HIGH, q=Q, body_contact=NO, diverged=diverged)
    np.testing.assert_array_equal(found.terminated, diverged)
    later = found.with_diverged(np.array([False, False, True]))
    np.testing.assert_array_equal(later.terminated, [False, True, True])
    np.testing.assert_array_equal(later.diverged, [False, True, True])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "part",
    [
        *("q", "dq", "tau", "quat_wb", "gyro_b", "acc_b"),
        *("position_w", "lin_vel_b", "foot_position_w", "foot_velocity_w"),
    ],
)
def test_one_bad_number_anywhere_marks_its_world_alone(part: str, bad: float) -> None:
    true, sensed = world(), RobotState.zeros(4, 5)
    owner = true.robot if hasattr(true.robot, part) else true
    getattr(owner, part)[2, ..., -1] = bad
    np.testing.assert_array_equal(finite_rows(true, sensed), [True, True, False, True])


def test_a_bad_sensor_marks_its_world_too() -> None:
    sensed = RobotState.zeros(4, 5)
    sensed.gyro_b[1, 0] = np.nan
    np.testing.assert_array_equal(finite_rows(world(), sensed), [True, False, True, True])


def test_infinities_that_cancel_are_seen() -> None:
    true = world()
    true.robot.q[3, :2] = [np.inf, -np.inf]
    np.testing.assert_array_equal(finite_rows(true, true.robot), [True, True, True, False])


def test_a_joint_too_far_from_its_default_position_ends_the_episode_on_either_side() -> None:
    check = make(TerminationConfig(joints={"pole": 0.3}))
    # -0.1 -+ 0.3: from -0.4 to 0.2; the rail may go anywhere
    for pole, expected in ([-0.39, 0.19, 0.21], [0, 0, 1]), ([-0.41, np.nan, 0.0], [1, 1, 0]):
        q = np.stack([np.array([0.0, -90.0, 90.0]), np.array(pole)], axis=1)
        found = check.check(UPRIGHT, HIGH, q=q, body_contact=NO, diverged=NO)
        np.testing.assert_array_equal(found.strayed, np.array(expected, dtype=bool))
        np.testing.assert_array_equal(found.terminated, found.strayed)
        np.testing.assert_array_equal(found.failed, found.strayed)
        assert not found.fallen.any()


def test_every_bound_counts_and_without_bounds_nothing_strays() -> None:
    q = DEFAULT + np.array([[0.0, 0.0], [1.1, 0.0], [0.0, -0.6]])
    both = make(TerminationConfig(joints={"pole": 0.5, "rail": 1.0}))
    found = both.check(UPRIGHT, HIGH, q=q, body_contact=NO, diverged=NO)
    np.testing.assert_array_equal(found.strayed, [False, True, True])
    free = make().check(UPRIGHT, HIGH, q=np.full((3, 2), np.nan), body_contact=NO, diverged=NO)
    assert not free.strayed.any() and not free.terminated.any()


def test_a_bound_for_a_joint_that_is_not_there_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no joint 'poel'.*did you mean 'pole'.*rail, pole"):
        make(TerminationConfig(joints={"poel": 0.3}))


def test_one_look_at_all_worlds_finds_what_a_look_at_each_finds() -> None:
    true = world()
    assert all_finite(true, true.robot)
    assert all_finite(true, replace(true.robot, q=true.robot.q.copy()))
    for broken in (np.nan, np.inf, -np.inf):
        # A part of a block of memory, as MuJoCo's states are, and an array of its own.
        block = np.zeros((3, len(true.diverged)))
        block[1, 2] = broken
        seen = replace(world(), lin_vel_b=block.T)
        assert not all_finite(seen, seen.robot)
        np.testing.assert_array_equal(finite_rows(seen, seen.robot), [True, True, False, True])
        assert not all_finite(true, replace(true.robot, tau=np.full((4, 1), broken)))
