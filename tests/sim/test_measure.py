from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from real.signals import RobotState
from real.spec import load_robot
from sim.engine import WorldState
from sim.measure import Measure, diagonal_pairs, soft_limits
from sim.mujoco_engine import MujocoEngine
from sim.reward_terms import RewardInput

ROBOT = load_robot("a1")
DT = ROBOT.control_dt_s
NUM = 3


def world(contact: np.ndarray | None = None, dq: np.ndarray | None = None) -> WorldState:
    robot = RobotState.zeros(NUM, 12)
    if dq is not None:
        robot = dataclasses.replace(robot, dq=dq)
    return WorldState(
        robot=robot,
        position_w=np.zeros((NUM, 3)),
        lin_vel_b=np.zeros((NUM, 3)),
        foot_position_w=np.zeros((NUM, 4, 3)),
        foot_velocity_w=np.tile([3.0, -4.0, 7.0], (NUM, 4, 1)),
        foot_contact=np.ones((NUM, 4), dtype=bool) if contact is None else contact,
        body_contact=np.zeros(NUM, dtype=bool),
        diverged=np.zeros(NUM, dtype=bool),
    )


def step(
    measure: Measure,
    *,
    contact: np.ndarray | None = None,
    dq: np.ndarray | None = None,
    action: np.ndarray | None = None,
    command: np.ndarray | None = None,
) -> RewardInput:
    return measure.step(
        world(contact, dq),
        np.zeros((NUM, 12)) if action is None else action,
        command=np.zeros((NUM, 3)) if command is None else command,
        gravity_b=np.tile([0.0, 0.0, -1.0], (NUM, 1)),
        fallen=np.zeros(NUM, dtype=bool),
    )


def swing(measure: Measure, feet: list[str]) -> list[RewardInput]:
    """Drive foot 1 of world 2 through contacts, "x" on the ground and "." in the air."""
    out = []
    for mark in feet:
        contact = np.ones((NUM, 4), dtype=bool)
        contact[2, 1] = mark == "x"
        out.append(step(measure, contact=contact))
    return out


def test_a_foot_lands_once_per_swing_and_reports_its_whole_duration() -> None:
    measured = swing(Measure(ROBOT, NUM), list("x...xx.x"))
    landed = [m.foot_landed[2, 1] for m in measured]
    assert landed == [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    # In the air after steps 2, 3, 4, on the ground after step 5: seen airborne for four periods.
    assert np.isclose(measured[4].foot_air_s[2, 1], 4 * DT)
    assert np.isclose(measured[7].foot_air_s[2, 1], 2 * DT)
    assert measured[5].foot_air_s[2, 1] == 0.0
    others = np.delete(np.array([m.foot_landed.ravel() for m in measured]), 2 * 4 + 1, axis=1)
    assert not others.any()


def test_a_foot_that_starts_on_the_ground_has_not_landed() -> None:
    measure = Measure(ROBOT, NUM)
    swing(measure, list("..."))
    measure.reset(np.array([2]), np.zeros((1, 12)))
    assert not swing(measure, ["x"])[0].foot_landed.any()


def test_foot_speed_is_horizontal() -> None:
    np.testing.assert_allclose(step(Measure(ROBOT, NUM)).foot_speed, 5.0)


def test_accelerations_are_differences_over_the_step() -> None:
    measure = Measure(ROBOT, NUM)
    first, second = np.random.default_rng(0).normal(size=(2, NUM, 12))
    measure.reset(np.array([0, 1, 2]), first)
    np.testing.assert_allclose(step(measure, dq=second).ddq, (second - first) / DT)
    np.testing.assert_allclose(step(measure, dq=second).ddq, 0.0)


def test_actions_move_back_in_time_and_start_at_zero() -> None:
    measure = Measure(ROBOT, NUM)
    a, b, c = np.random.default_rng(1).normal(size=(3, NUM, 12))
    one, two, three = (step(measure, action=x) for x in (a, b, c))
    assert not one.action_1.any()
    np.testing.assert_array_equal(two.action_1, a)
    assert not two.action_2.any()
    np.testing.assert_array_equal(three.action_1, b)
    np.testing.assert_array_equal(three.action_2, a)


def test_reset_forgets_the_past_of_its_rows_alone() -> None:
    measure = Measure(ROBOT, NUM)
    a, b = np.random.default_rng(2).normal(size=(2, NUM, 12))
    air = np.zeros((NUM, 4), dtype=bool)
    step(measure, action=a.copy(), contact=air)
    step(measure, action=b.copy(), contact=air)
    measure.reset(np.array([1]), np.zeros((1, 12)))
    x = step(measure, contact=air)
    for row in (0, 2):
        np.testing.assert_array_equal(x.action_1[row], b[row])
        np.testing.assert_array_equal(x.action_2[row], a[row])
        np.testing.assert_allclose(x.foot_air_s[row], 3 * DT)
    assert not x.action_1[1].any()
    assert not x.action_2[1].any()
    np.testing.assert_allclose(x.foot_air_s[1], DT)


def test_a_robot_moves_when_any_part_of_the_command_is_not_zero() -> None:
    command = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, -0.3], [0.0, 0.2, 0.0]])
    np.testing.assert_array_equal(
        step(Measure(ROBOT, NUM), command=command).moving, [False, True, True]
    )


def test_joint_offsets_are_from_the_default_pose() -> None:
    np.testing.assert_allclose(
        step(Measure(ROBOT, NUM)).q_offset, np.tile(-ROBOT.q_default, (NUM, 1))
    )


def test_soft_limits_shrink_the_range_about_its_middle() -> None:
    joints = list(ROBOT.joints)
    joints[0] = dataclasses.replace(joints[0], q_min=-1.0, q_max=3.0)
    joints[1] = dataclasses.replace(joints[1], q_min=float("nan"), q_max=float("nan"))
    joints[2] = dataclasses.replace(joints[2], q_min=-float("inf"), q_max=float("inf"))
    low, high = soft_limits(dataclasses.replace(ROBOT, joints=tuple(joints)), 0.5)
    assert (low[0], high[0]) == (0.0, 2.0)
    assert (low[1], high[1]) == (low[2], high[2]) == (-np.inf, np.inf)


def test_state_restores_the_memory() -> None:
    first, second = Measure(ROBOT, NUM), Measure(ROBOT, NUM)
    rng = np.random.default_rng(4)
    for _ in range(3):
        step(
            first,
            action=rng.normal(size=(NUM, 12)),
            dq=rng.normal(size=(NUM, 12)),
            contact=rng.random((NUM, 4)) < 0.3,
        )
    second.load_state_dict(first.state_dict())
    a, b = step(first), step(second)
    for field in dataclasses.fields(RewardInput):
        np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name))


def test_diagonals_follow_from_where_the_feet_are_in_whichever_order_they_are_named() -> None:
    feet = ROBOT.feet
    assert [f[:2] for f in feet] == ["FR", "FL", "RR", "RL"]
    expected = {frozenset({feet[0], feet[3]}), frozenset({feet[1], feet[2]})}
    for order in itertools.permutations(feet):
        # The feet of A1, of which the front ones stand closer together, turned by 0.4 rad.
        x = np.array([0.2 if f[0] == "F" else -0.25 for f in order])
        y = np.array([(0.1 if f[0] == "F" else 0.15) * (1 if f[1] == "L" else -1) for f in order])
        turned = np.stack([0.92 * x - 0.39 * y + 3.0, 0.39 * x + 0.92 * y - 1.0, 0 * x], axis=1)
        pairs = diagonal_pairs(turned)
        assert {frozenset(order[i] for i in pair) for pair in pairs.tolist()} == expected


def test_other_than_four_feet_have_no_diagonals() -> None:
    assert diagonal_pairs(np.ones((2, 3))).shape == (0, 2)


def test_diagonals_of_the_robot_itself_follow_the_order_of_its_file() -> None:
    for order in ([0, 1, 2, 3], [2, 0, 1, 3]):
        robot = dataclasses.replace(ROBOT, feet=tuple(ROBOT.feet[i] for i in order))
        engine = MujocoEngine(robot, 2, threads=1)
        feet = engine.state().foot_position_w[0]
        engine.close()
        pairs = diagonal_pairs(feet).tolist()
        named = {frozenset(robot.feet[i] for i in pair) for pair in pairs}
        assert named == {frozenset({"FR_toe", "RL_toe"}), frozenset({"FL_toe", "RR_toe"})}
