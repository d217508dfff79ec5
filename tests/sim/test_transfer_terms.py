"""By hand: contacts, slopes, motors at speed, encoders, play, losses, and when terms are drawn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from real.errors import FerryError
from real.frames import projected_gravity, rotate_inverse
from real.spec import RobotSpec, load_robot
from sim.distributions import Sampler, parse_distribution
from sim.engine import GRAVITY, InitialState
from sim.mujoco_engine import MujocoEngine
from sim.randomize import Randomizer, delay_max_s
from sim.streams import make_streams

N, DT = 3, 0.02


@pytest.fixture(scope="module")
def a1() -> RobotSpec:
    return load_robot("a1")


def drawn(robot: RobotSpec, terms: dict[str, Any], num: int = N) -> tuple[MujocoEngine, Randomizer]:
    engine = MujocoEngine(robot, num, threads=1, delay_max_s=delay_max_s(terms))
    randomizer = Randomizer(terms, engine, control_dt_s=DT, rngs=make_streams(0, num)["domain"])
    randomizer.draw(np.arange(num))
    engine.reset(np.arange(num), InitialState.default(robot, num))
    return engine, randomizer


def values(randomizer: Randomizer, name: str) -> np.ndarray:
    return np.array([randomizer.sample(row).values[name] for row in range(N)])


def test_contacts_and_their_friction_are_in_the_fields_of_the_floor(a1: RobotSpec):
    terms = {
        "friction_spin": "=U(0.1, 0.2)", "friction_roll": "=U(0.01, 0.02)",
        "contact_stiffness": "*U(0.3, 0.6)", "contact_damping": "=U(20, 40)",
    }  # fmt: skip
    engine, randomizer = drawn(a1, terms)
    floor = engine.built.floor_geom_id
    seen = engine.field("geom_friction")[:, floor]
    np.testing.assert_array_equal(seen[:, 1], values(randomizer, "friction_spin")[:, 0])
    np.testing.assert_array_equal(seen[:, 2], values(randomizer, "friction_roll")[:, 0])
    assert (engine.field("geom_condim")[:, floor] == 6).all()
    # A time constant of 0.02 s and a ratio of 1 are 2500 / s^2 and 100 / s.
    expected = [-2500 * values(randomizer, "contact_stiffness")[:, 0]]
    expected.append(-values(randomizer, "contact_damping")[:, 0])
    np.testing.assert_allclose(engine.field("geom_solref")[:, floor].T, expected, rtol=1e-12)
    # Two steps of 5 ms are the shortest time constant that MuJoCo would not cap: 10^4 / s^2.
    with pytest.raises(FerryError, match=r"to 10001 1/s\^2; expected 1e-09 to 10000"):
        drawn(a1, {"contact_stiffness": "=U(100, 10001)"})
    with pytest.raises(FerryError, match=r"'panda' with its fixed base.*would change nothing"):
        drawn(load_robot("panda"), {"contact_damping": "*U(0.5, 1)"})


@pytest.mark.slow
def test_a_softer_floor_lets_the_robot_sink_in(a1: RobotSpec):
    heights = []
    for law in ("*U(0.05, 0.051)", "*U(0.999, 1)"):
        engine, _ = drawn(a1, {"contact_stiffness": law})
        for _ in range(60):
            engine.step(np.tile(a1.q_default, (N, 1)))
        heights.append(engine.state().foot_position_w[:, :, 2].mean())
    assert heights[0] < heights[1] - 0.001


def test_on_a_slope_things_fall_sideways_and_the_imu_knows(a1: RobotSpec):
    engine, randomizer = drawn(a1, {"gravity_tilt": "=U(0.1, 0.3)"})
    roll, pitch = values(randomizer, "gravity_tilt").T
    start = InitialState.default(a1, N)
    start.position_w[:, 2] += 2.0
    engine.reset(np.arange(N), start)
    for _ in range(10):
        engine.step(np.tile(a1.q_default, (N, 1)))
    true = engine.state().robot
    down = np.stack([np.sin(pitch) * np.cos(roll), -np.sin(roll), -np.cos(pitch) * np.cos(roll)], 1)
    np.testing.assert_allclose(
        engine.state().position_w - start.position_w, 0.5 * GRAVITY * 0.2**2 * down, atol=0.01
    )
    sensed = randomizer.reported(true)
    # Gravity as the reported attitude has it is gravity as it acts.
    np.testing.assert_allclose(
        projected_gravity(sensed.quat_wb), rotate_inverse(true.quat_wb, down), atol=1e-12
    )


def test_a_motor_at_speed_has_the_torque_that_its_curve_leaves(a1: RobotSpec):
    """Between -T - c w and T - c w with c = T / w0; free of it where nothing is at its limit."""
    engine, randomizer = drawn(a1, {"no_load_speed": "=U(20, 40)"})
    limit, free = a1.actuated_array("tau_max"), values(randomizer, "no_load_speed")
    start = InitialState.default(a1, N)
    start.position_w[:, 2] += 2.0
    speed = np.linspace(-8.0, 8.0, 12) * np.ones((N, 1))
    for ask, side in ((5.0, 1.0), (-5.0, -1.0)):
        engine.reset(np.arange(N), replace(start, dq=speed.copy()))
        engine.step(start.q + ask, substeps=1)
        # What the joints felt in the step, at the speed that they then had, to first order.
        now = engine.state().robot
        np.testing.assert_allclose(now.tau, side * limit - limit / free * now.dq, rtol=1e-9)
    plain = MujocoEngine(a1, N, threads=1)
    for one in (engine, plain):
        one.reset(np.arange(N), replace(start, dq=0.1 * speed))
        one.step(start.q + 0.05)
    np.testing.assert_allclose(engine.state().robot.q, plain.state().robot.q, atol=1e-12)


def test_an_encoder_with_a_wrong_zero_is_wrong_in_what_is_seen_and_what_is_tracked(a1: RobotSpec):
    engine, randomizer = drawn(a1, {"joint_offset": "+U(0.05, 0.1)"})
    offset = values(randomizer, "joint_offset")
    target = np.tile(a1.q_default, (N, 1))
    np.testing.assert_allclose(randomizer.to_motors(target), target - offset)
    state = engine.state().robot
    np.testing.assert_allclose(randomizer.reported(state).q, state.q + offset)
    assert randomizer.reported(state).dq is state.dq


def test_play_is_crossed_before_anything_moves(a1: RobotSpec):
    _, randomizer = drawn(a1, {"backlash": {"value": "=U(0.1, 0.1)", "per": "world"}})
    told = [
        float(randomizer.to_motors(np.full((N, 12), target))[1, 5])
        for target in (0.0, 0.04, 0.08, 0.2, 0.16, 0.11, 0.0)
    ]
    np.testing.assert_allclose(told, [0.0, 0.0, 0.03, 0.15, 0.15, 0.15, 0.05], atol=1e-12)


def test_a_lost_target_leaves_the_last_one_and_jitter_moves_the_delay(a1: RobotSpec):
    terms = {"dropout": "=U(0.3, 0.3)", "delay": "=U(0, 0.01)", "delay_jitter": "=U(0.02, 0.02)"}
    engine, randomizer = drawn(a1, terms)
    told, late = [], []
    for step in range(300):
        randomizer.before_step()
        told.append(randomizer.to_motors(np.full((N, 12), float(step)))[:, 0])
        late.append(engine.servos.delay_s.copy())
    lost = (np.diff(told, axis=0) == 0.0).mean(axis=0)
    assert (np.abs(lost - 0.3) < 0.09).all() and (np.array(told[0]) == 0.0).all()
    more = np.array(late) - values(randomizer, "delay")[:, 0]
    assert (more >= 0.0).all() and (more <= 0.02).all() and np.ptp(more, axis=0).min() > 0.018
    np.testing.assert_array_equal(engine.field("actuator_delay")[:, 3], late[-1])
    again, copy = drawn(a1, terms)
    copy.before_step()
    np.testing.assert_array_equal(again.servos.delay_s, late[0])


# ------------------------------------------------------------------ when


def test_a_term_may_change_within_the_episode_and_its_sample_keeps_the_first(a1: RobotSpec):
    terms = {"kp": {"value": "*U(0.8, 1.2)", "per": "world", "interval_s": [0.1, 0.2]}}
    engine, randomizer = drawn(a1, terms)
    first = randomizer.sample(1)
    gains, critic = [], []
    for _ in range(50):
        randomizer.before_step()
        gains.append(engine.field("actuator_gainprm")[1, 0, 0] / 40.0)
        critic.append(float(randomizer.values()[1, 0]))
    assert gains[0] == first.values["kp"][0]
    assert 5 <= np.count_nonzero(np.diff(gains)) <= 10  # every 0.1 to 0.2 s of a second
    np.testing.assert_allclose((np.array(gains) - 1.0) / 0.2, critic, atol=1e-12)
    assert randomizer.sample(1) == first and min(gains) >= 0.8 and max(gains) <= 1.2


def test_what_is_drawn_once_stays_until_a_new_seed(a1: RobotSpec):
    terms = {"joint_offset": {"value": "+U(-1, 1)", "when": "once"}, "kp": "*U(0.5, 1)"}
    _, randomizer = drawn(a1, terms)
    offset, kp = values(randomizer, "joint_offset"), values(randomizer, "kp")
    randomizer.draw(np.array([2, 0]))
    np.testing.assert_array_equal(values(randomizer, "joint_offset"), offset)
    assert (values(randomizer, "kp")[[0, 2]] != kp[[0, 2]]).all()
    randomizer.forget()
    randomizer.draw(np.array([1]))
    assert (values(randomizer, "joint_offset")[1] != offset[1]).all()


def test_a_choice_is_one_of_its_numbers_each_as_often():
    law = parse_distribution("=choice(0.4, 1.2, 0.8)")
    assert str(law) == "=choice(0.4, 1.2, 0.8)" and (law.low, law.high) == (0.4, 1.2)
    sampler = Sampler([(law, 2000)])
    found = sampler.draw(np.random.default_rng(0))
    for option in (0.4, 0.8, 1.2):
        assert abs((found == option).mean() - 1 / 3) < 0.05
    assert set(np.unique(sampler.normalize(found)).round(9)) == {-1.0, 0.0, 1.0}
