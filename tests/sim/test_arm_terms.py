"""Every reward term of arms against arithmetic by hand, in three worlds that differ."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from real.errors import ConfigError
from real.kinematics import Chain, ChainJoint, Kinematics
from real.reach import reached
from sim.arm_terms import ARM_TERMS, ReachInput, ReachMeasure
from sim.reward_terms import TERMS as COMMON
from sim.rewards import TERMS, RewardConfig, RewardTable, parameters

DT = 0.02

# Distances 0.05, 0.5 and 0.01 m; angles 0.2, 0.05 and 0.13 rad.
ERROR = np.array(
    [
        [0.03, 0.04, 0.0, 0.2, 0.0, 0.0],
        [0.0, -0.3, 0.4, 0.0, 0.03, 0.04],
        [0.0, 0.0, 0.01, 0.05, 0.0, 0.12],
    ]
)
# A step earlier 0.13, 0.4 and 0.01 m; 0.25, 0.05 and 0.05 rad.
BEFORE = np.array(
    [
        [0.0, 0.05, 0.12, 0.15, 0.2, 0.0],
        [0.4, 0.0, 0.0, 0.0, 0.05, 0.0],
        [0.01, 0.0, 0.0, 0.03, 0.04, 0.0],
    ]
)
VELOCITY = np.array([[0.0, 3.0, 4.0], [0.0, 0.0, 0.0], [0.6, 0.0, 0.8]])
ACCELERATION = np.array([[1.0, 2.0, 2.0], [0.0, 0.0, 5.0], [0.0, 0.0, 0.0]])

#: name -> (parameters, value in each of the three worlds)
BY_HAND: dict[str, tuple[dict[str, float], list[float]]] = {
    "reach_distance": ({}, [0.05, 0.5, 0.01]),
    "reach_angle": ({}, [0.2, 0.05, 0.13]),
    "reach_position": ({"sigma": 0.0025}, [math.exp(-1), math.exp(-100), math.exp(-0.04)]),
    "reach_orientation": ({"sigma": 0.04}, [math.exp(-1), math.exp(-0.0625), math.exp(-0.4225)]),
    # 0.0025 + (0.5 * 0.2)^2 = 0.0125; 0.25 + 0.000625; 0.0001 + 0.004225
    "reach_pose": (
        {"sigma": 0.0125, "lever_m": 0.5},
        [math.exp(-1), math.exp(-20.05), math.exp(-0.346)],
    ),
    "reach_done": ({}, [0.0, 0.0, 0.0]),
    "reach_progress": ({}, [0.08 / DT, -0.1 / DT, 0.0]),
    "reach_turning": ({}, [0.05 / DT, 0.0, -0.08 / DT]),
    "tip_speed": ({}, [25.0, 0.0, 1.0]),
    "tip_acceleration": ({}, [9.0, 25.0, 0.0]),
    "rest_at_pose": ({"near_m": 0.05}, [25.0 * math.exp(-1), 0.0, math.exp(-0.04)]),
}


def measured(**given: Any) -> Any:
    """Of what terms of arms read; anything else is an AttributeError."""
    return SimpleNamespace(dt=DT, height=np.zeros(3), **{"reach": None, **given})


def case(order: list[int] | None = None) -> Any:
    rows = [0, 1, 2] if order is None else order
    return measured(reach=ReachInput(ERROR[rows], BEFORE[rows], VELOCITY[rows], ACCELERATION[rows]))


def test_there_are_terms_enough_and_every_one_has_arithmetic_by_hand():
    assert set(BY_HAND) == set(ARM_TERMS)
    assert len(ARM_TERMS) >= 8
    assert len(COMMON) >= 20
    assert set(TERMS) == {*COMMON, *ARM_TERMS}


@pytest.mark.parametrize("name", ARM_TERMS)
def test_term_equals_its_arithmetic_by_hand(name):
    params, expected = BY_HAND[name]
    value = ARM_TERMS[name](case(), **params)
    assert value.shape == (3,)
    assert value.dtype == np.float64
    np.testing.assert_allclose(value, expected, atol=1e-9)
    np.testing.assert_array_equal(ARM_TERMS[name](case([2, 0, 1]), **params), value[[2, 0, 1]])


@pytest.mark.parametrize("name", ARM_TERMS)
def test_every_term_states_its_unit_and_needs_a_pose(name):
    text = ARM_TERMS[name].__doc__ or ""
    assert "[" in text or "1 " in text
    with pytest.raises(ConfigError, match="needs a commanded pose"):
        ARM_TERMS[name](measured())
    assert set(parameters(name)) <= {"sigma", "lever_m", "near_m"}


def test_a_pose_is_reached_within_both_tolerances_and_never_at_nan():
    rows = np.array(
        [
            [0.019, 0.0, 0.0, 0.0, 0.0, 0.099],
            [0.021, 0.0, 0.0, 0.0, 0.0, 0.0],
            [0.0, 0.0, 0.0, 0.0, 0.101, 0.0],
            [np.nan, 0.0, 0.0, 0.0, 0.0, 0.0],
        ]
    )
    assert reached(rows).tolist() == [True, False, False, False]


def slider() -> Kinematics:
    """An end effector at (1, 0, q)."""
    joint = ChainJoint("lift", "slide", (1.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    return Kinematics(Chain("tip", (joint,), (0.0,) * 3, (1.0, 0.0, 0.0, 0.0)), ["lift"])


def test_speeds_and_approach_are_differences_of_successive_steps_and_begin_anew():
    measure = ReachMeasure(slider(), 3, dt=DT)
    goal = np.tile([1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0], (3, 1))
    q = np.array([[0.1], [0.2], [0.3]])
    first = measure.step(q, goal)
    np.testing.assert_array_equal(first.before, first.error)  # nothing is known of before
    np.testing.assert_array_equal(first.velocity, 0.0)
    measure.step(q + np.array([[0.01], [0.02], [0.0]]), goal)
    measure.reset(np.array([1]))
    third = measure.step(q + np.array([[0.03], [0.5], [-0.01]]), goal)
    np.testing.assert_allclose(third.before[:, 2], [0.89, 0.3, 0.7])
    np.testing.assert_allclose(third.error[:, 2], [0.87, 0.3, 0.71])
    np.testing.assert_allclose(third.velocity[:, 2], [0.02 / DT, 0.0, -0.01 / DT])
    # 0.5 m/s became 1 m/s in a step; world 2 went from 0 to -0.5 m/s.
    np.testing.assert_allclose(third.acceleration[:, 2], [0.5 / DT, 0.0, -0.5 / DT])


def test_what_is_asked_for_now_is_compared_with_where_the_tip_was_before():
    measure = ReachMeasure(slider(), 1, dt=DT)
    near = np.array([[1.0, 0.0, 0.2, 1.0, 0.0, 0.0, 0.0]])
    far = np.array([[1.0, 0.0, 2.0, 1.0, 0.0, 0.0, 0.0]])
    measure.step(np.array([[0.2]]), near)
    step = measure.step(np.array([[0.3]]), far)  # a new command is no step away
    np.testing.assert_allclose(step.before[0, 2], 1.8)
    np.testing.assert_allclose(step.error[0, 2], 1.7)


def test_a_restored_measure_goes_on_as_if_nothing_had_happened():
    one, two = (ReachMeasure(slider(), 2, dt=DT) for _ in range(2))
    goal = np.tile([1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0], (2, 1))
    for q in (0.1, 0.15):
        one.step(np.array([[q], [-q]]), goal)
    two.load_state_dict(one.state_dict())
    after = [m.step(np.array([[0.3], [0.4]]), goal) for m in (one, two)]
    np.testing.assert_array_equal(after[0].acceleration, after[1].acceleration)
    np.testing.assert_array_equal(after[0].before, after[1].before)


def test_parts_that_others_fill_in_stand_last_and_begin_at_zero():
    rewards = {"reach_distance": RewardConfig(weight=-1.0)}
    table = RewardTable(rewards, control_dt_s=DT, extra=("shaping",))
    assert table.names == ("reach_distance", "shaping")
    parts = table.compute(case(), np.array([False, True, False]))
    np.testing.assert_allclose(parts, [[-0.05 * DT, 0.0, -0.01 * DT], [0.0, 0.0, 0.0]])
