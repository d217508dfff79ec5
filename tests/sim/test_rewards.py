"""Every reward term against arithmetic by hand, in three worlds that differ."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from real.errors import ConfigError
from sim.reward_terms import TERMS, RewardInput
from sim.rewards import RewardConfig, RewardTable, check_rewards, parameters

DT = 0.02


def measured(**given: Any) -> RewardInput:
    """Three worlds, two joints, two feet; at rest unless a test says otherwise."""
    base: dict[str, Any] = {
        "dt": DT,
        "command": np.zeros((3, 3)),
        "moving": np.array([True, True, True]),
        "lin_vel_b": np.zeros((3, 3)),
        "ang_vel_b": np.zeros((3, 3)),
        "gravity_b": np.tile([0.0, 0.0, -1.0], (3, 1)),
        "height": np.full(3, 0.28),
        "q": np.zeros((3, 2)),
        "q_offset": np.zeros((3, 2)),
        "q_soft": np.array([[-1.0, -2.0], [1.0, 0.5]]),
        "dq": np.zeros((3, 2)),
        "ddq": np.zeros((3, 2)),
        "tau": np.zeros((3, 2)),
        "actuated": np.array([1]),
        "passive_hinges": np.array([0]),
        "action": np.zeros((3, 2)),
        "action_1": np.zeros((3, 2)),
        "action_2": np.zeros((3, 2)),
        "diagonals": np.array([[0, 3], [1, 2]]),
        "foot_position_w": np.zeros((3, 2, 3)),
        "foot_speed": np.zeros((3, 2)),
        "foot_contact": np.ones((3, 2)),
        "foot_landed": np.zeros((3, 2)),
        "foot_air_s": np.zeros((3, 2)),
        "body_contact": np.array([False, False, False]),
        "fallen": np.array([False, False, False]),
        "clamped": np.zeros((3, 2), dtype=bool),
    }
    assert {*base, "reach"} == {f.name for f in dataclasses.fields(RewardInput)}
    return RewardInput(**{**base, **given})


def term(name: str, x: RewardInput, **params: float) -> Any:
    return TERMS[name](x, **params)


#: name -> (input, parameters, value in each of the three worlds)
BY_HAND: dict[str, tuple[dict[str, Any], dict[str, float], list[float]]] = {
    # errors (0.5, 0), (0.3, 0.4), (0, -1): squared 0.25, 0.25, 1; the vertical part is ignored
    "track_lin_vel": (
        {
            "command": np.array([[1.0, 0.2, 0.9], [0.3, 0.4, 0.0], [0.0, 0.0, 0.0]]),
            "lin_vel_b": np.array([[0.5, 0.2, 7.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]),
        },
        {"sigma": 0.5},
        [np.exp(-0.5), np.exp(-0.5), np.exp(-2.0)],
    ),
    # errors 0.5, -1, 0
    "track_ang_vel": (
        {
            "command": np.array([[9.0, 0.0, 1.0], [0.0, 0.0, -1.0], [0.0, 0.0, 0.4]]),
            "ang_vel_b": np.array([[3.0, 0.0, 0.5], [0.0, 0.0, 0.0], [0.0, 5.0, 0.4]]),
        },
        {},
        [np.exp(-1.0), np.exp(-4.0), 1.0],
    ),
    "lin_vel_z": (
        {"lin_vel_b": np.array([[9.0, 9.0, 0.5], [0.0, 0.0, -2.0], [1.0, 0.0, 0.0]])},
        {},
        [0.25, 4.0, 0.0],
    ),
    "ang_vel_xy": (
        {"ang_vel_b": np.array([[3.0, 4.0, 9.0], [-1.0, 0.0, 0.0], [0.0, 0.5, 0.0]])},
        {},
        [25.0, 1.0, 0.25],
    ),
    "orientation": (
        {"gravity_b": np.array([[0.6, 0.0, -0.8], [0.0, -1.0, 0.0], [0.0, 0.0, 1.0]])},
        {},
        [0.36, 1.0, 0.0],
    ),
    "base_height": (
        {"height": np.array([0.30, 0.25, 0.10])},
        {"target_m": 0.25},
        [0.0025, 0.0, 0.0225],
    ),
    "torque": ({"tau": np.array([[3.0, -4.0], [1.0, 0.0], [0.0, 0.5]])}, {}, [25.0, 1.0, 0.25]),
    # |3 * -2| + |-4 * 1| = 10: braking counts like driving
    "power": (
        {
            "tau": np.array([[3.0, -4.0], [1.0, 5.0], [0.0, 0.5]]),
            "dq": np.array([[-2.0, 1.0], [2.0, 0.0], [9.0, 4.0]]),
        },
        {},
        [10.0, 2.0, 2.0],
    ),
    "joint_vel": ({"dq": np.array([[3.0, -4.0], [1.0, 0.0], [0.0, 0.5]])}, {}, [25.0, 1.0, 0.25]),
    "joint_acc": ({"ddq": np.array([[1.0, -2.0], [0.0, 3.0], [4.0, 0.0]])}, {}, [5.0, 9.0, 16.0]),
    # soft limits [-1, 1] and [-2, 0.5]: 0.5 above the first, 1 above and 0.25 below, inside
    "joint_limits": (
        {"q": np.array([[1.5, 0.0], [-1.25, 1.5], [1.0, -2.0]])},
        {},
        [0.5, 1.25, 0.0],
    ),
    "default_pose": (
        {"q_offset": np.array([[3.0, -4.0], [1.0, 0.0], [0.0, 0.5]])},
        {},
        [25.0, 1.0, 0.25],
    ),
    "stand_still": (
        {
            "q_offset": np.array([[0.1, -0.3], [0.1, -0.3], [0.0, -0.2]]),
            "moving": np.array([False, True, False]),
        },
        {},
        [0.4, 0.0, 0.2],
    ),
    # joint 0 turns without a motor: 60 degrees, a full turn and 0.1 rad. chord^2 = 2 - 2 cos
    "upright": (
        {"q_offset": np.array([[np.pi / 3, 9.0], [-2.0 * np.pi, 9.0], [0.1, 9.0]])},
        {"sigma": 0.5},
        [np.exp(-1.0 / 0.5), 1.0, np.exp((2.0 * np.cos(0.1) - 2.0) / 0.5)],
    ),
    "passive_vel": ({"dq": np.array([[3.0, 9.0], [-1.0, 9.0], [0.0, 9.0]])}, {}, [9.0, 1.0, 0.0]),
    "actuated_pos": (
        {"q_offset": np.array([[9.0, 3.0], [9.0, -1.0], [9.0, 0.5]])},
        {},
        [9.0, 1.0, 0.25],
    ),
    "actuated_vel": ({"dq": np.array([[9.0, -3.0], [9.0, 1.0], [9.0, 0.0]])}, {}, [9.0, 1.0, 0.0]),
    "action_rate": (
        {
            "action": np.array([[1.0, 2.0], [0.0, 0.0], [3.0, 1.0]]),
            "action_1": np.array([[0.0, 0.0], [2.0, 0.0], [3.0, -1.0]]),
        },
        {},
        [5.0, 4.0, 4.0],
    ),
    # differences 1 - 0 + 0, 2 - 0 + 0 | 0 - 4 + 1, 0 | a ramp 3, 2, 1 has no second difference
    "action_smoothness": (
        {
            "action": np.array([[1.0, 2.0], [0.0, 0.0], [3.0, 0.0]]),
            "action_1": np.array([[0.0, 0.0], [2.0, 0.0], [2.0, 0.0]]),
            "action_2": np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]]),
        },
        {},
        [5.0, 9.0, 0.0],
    ),
    # none of two, one, both
    "clamped": (
        {"clamped": np.array([[False, False], [False, True], [True, True]])},
        {},
        [0.0, 0.5, 1.0],
    ),
    # landed after 0.3 and 0.9 (counts 0.4): 0.2 + 0.3; in the air only; landed early, standing
    "feet_air_time": (
        {
            "foot_air_s": np.array([[0.3, 0.9], [0.3, 0.3], [0.04, 0.04]]),
            "foot_landed": np.array([[1.0, 1.0], [0.0, 0.0], [1.0, 0.0]]),
            "moving": np.array([True, True, False]),
        },
        {"threshold_s": 0.1, "longest_s": 0.4},
        [0.5, 0.0, 0.0],
    ),
    "foot_slip": (
        {
            "foot_speed": np.array([[2.0, 3.0], [2.0, 3.0], [0.0, 0.5]]),
            "foot_contact": np.array([[1.0, 1.0], [0.0, 1.0], [1.0, 1.0]]),
        },
        {},
        [13.0, 9.0, 0.25],
    ),
    # heights 0.02, 0.1 against 0.1: 0.08^2 * 2; contact does not count; standing does not count
    "foot_clearance": (
        {
            "foot_position_w": np.array([[[5.0, 5.0, 0.02], [5.0, 5.0, 0.1]]] * 3),
            "foot_speed": np.array([[2.0, 3.0], [2.0, 3.0], [2.0, 3.0]]),
            "foot_contact": np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]),
            "moving": np.array([True, True, False]),
        },
        {"target_m": 0.1},
        [0.0128, 0.0, 0.0],
    ),
    # a diagonal pair in each of the first two worlds, the second standing by command; a pace
    "trot": (
        {
            "foot_contact": np.array(
                [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0]]
            ),
            "moving": np.array([True, False, True]),
        },
        {},
        [1.0, 0.0, 0.0],
    ),
    "standing_contact": (
        {
            "foot_contact": np.array([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]),
            "moving": np.array([False, False, True]),
        },
        {},
        [1.0, 2.0, 0.0],
    ),
    "undesired_contact": ({"body_contact": np.array([False, True, False])}, {}, [0.0, 1.0, 0.0]),
    "alive": ({"fallen": np.array([False, True, False])}, {}, [1.0, 0.0, 1.0]),
    "termination": ({"fallen": np.array([False, True, False])}, {}, [0.0, 1.0, 0.0]),
}


def test_every_term_has_arithmetic_by_hand() -> None:
    assert set(BY_HAND) == set(TERMS)


@pytest.mark.parametrize("name", TERMS)
def test_term_equals_its_arithmetic_by_hand(name: str) -> None:
    given, params, expected = BY_HAND[name]
    value = term(name, measured(**given), **params)
    assert value.shape == (3,)
    assert value.dtype == np.float64
    np.testing.assert_allclose(value, expected, atol=1e-12)


@pytest.mark.parametrize("name", TERMS)
def test_worlds_do_not_mix(name: str) -> None:
    given, params, _ = BY_HAND[name]
    order = np.array([2, 0, 1])
    shuffled = {k: v[order] for k, v in given.items()}
    np.testing.assert_array_equal(
        term(name, measured(**given), **params)[order], term(name, measured(**shuffled), **params)
    )


@pytest.mark.parametrize("name", TERMS)
def test_terms_write_nothing_into_what_they_read(name: str) -> None:
    given, params, _ = BY_HAND[name]
    x = measured(**given)
    before = {f.name: np.copy(getattr(x, f.name)) for f in dataclasses.fields(x)}
    term(name, x, **params)
    for key, value in before.items():
        np.testing.assert_array_equal(getattr(x, key), value)


@pytest.mark.parametrize("name", TERMS)
def test_every_term_states_its_unit(name: str) -> None:
    text = TERMS[name].__doc__ or ""
    assert "[" in text or "1 " in text


def test_table_weighs_the_terms_per_second() -> None:
    table = RewardTable(
        {
            "lin_vel_z": RewardConfig(weight=-2.0),
            "power": RewardConfig(weight=0.0),
            "track_lin_vel": RewardConfig(weight=3.0, params={"sigma": 0.5}),
        },
        control_dt_s=DT,
    )
    velocity = np.array([[0.5, 0.0, 0.5], [0.0, 0.0, -1.0], [0.0, 0.0, 2.0]])
    parts = table.compute(measured(lin_vel_b=velocity), np.zeros(3, dtype=bool))
    assert table.names == ("lin_vel_z", "track_lin_vel")
    np.testing.assert_allclose(parts[0], DT * -2.0 * np.array([0.25, 1.0, 4.0]))
    np.testing.assert_allclose(parts[1], DT * 3.0 * np.array([np.exp(-0.5), 1.0, 1.0]))


def test_a_diverged_world_gets_the_termination_part_and_nothing_else() -> None:
    table = RewardTable(
        {
            "lin_vel_z": RewardConfig(weight=-2.0),
            "termination": RewardConfig(weight=-50.0),
            "alive": RewardConfig(weight=1.0),
        },
        control_dt_s=DT,
    )
    velocity = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, np.nan], [0.0, 0.0, 2.0]])
    fallen = np.array([False, True, True])
    parts = table.compute(
        measured(lin_vel_b=velocity, fallen=fallen), np.array([False, True, False])
    )
    np.testing.assert_allclose(parts[:, 0], [-0.04, 0.0, 0.02])
    np.testing.assert_allclose(parts[:, 1], [0.0, -1.0, 0.0])
    np.testing.assert_allclose(parts[:, 2], [-0.16, -1.0, 0.0])


def test_parameters_are_the_keyword_arguments_of_the_term() -> None:
    assert parameters("feet_air_time") == {"threshold_s": 0.2, "longest_s": 0.5}
    assert parameters("torque") == {}


def test_unknown_term_names_the_nearest_and_all_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"'foot_slp'.*did you mean 'foot_slip'") as error:
        check_rewards({"foot_slp": RewardConfig(weight=1.0)})
    assert all(name in str(error.value) for name in TERMS)


def test_unknown_parameter_names_the_nearest_and_all_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"'track_lin_vel' has no parameter 'sgma'.*'sigma'"):
        check_rewards({"track_lin_vel": RewardConfig(weight=1.0, params={"sgma": 1.0})})
    with pytest.raises(ConfigError, match="it has: none"):
        check_rewards({"torque": RewardConfig(weight=1.0, params={"sigma": 1.0})})


def test_a_robot_without_a_passive_hinge_has_nothing_to_keep_upright():
    with pytest.raises(ConfigError, match="hinge without a motor"):
        term("upright", measured(passive_hinges=np.array([], dtype=np.intp)))


@pytest.mark.parametrize("feet", [2, 6])
def test_a_robot_without_four_feet_cannot_trot(feet):
    trot = {"trot": RewardConfig(weight=0.5)}
    with pytest.raises(
        ConfigError, match=f"'trot' needs a robot on four feet; this one has {feet}"
    ):
        RewardTable(trot, control_dt_s=DT, feet=feet)
    unused = {"trot": RewardConfig(weight=0.0), "alive": RewardConfig(weight=1.0)}
    assert RewardTable(unused, control_dt_s=DT, feet=feet).names == ("alive",)


def test_a_trot_is_one_in_any_order_of_the_feet():
    contact = np.array([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    order = [2, 0, 1, 3]  # rear right, front right, front left, rear left
    found = term(
        "trot", measured(foot_contact=contact[:, order], diagonals=np.array([[1, 3], [2, 0]]))
    )
    np.testing.assert_array_equal(found, [1.0, 1.0, 0.0])
