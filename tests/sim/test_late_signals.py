"""What is measured arrives as late as a world's draw says, and not at all late if that is zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from real.errors import ConfigError, FerryError
from real.frames import from_rpy
from real.signals import RobotState
from sim.env import VecEnv, make_env
from sim.late_signals import FIELDS, LateSignals
from sim.task import load_env_config

DT, J = 0.02, 3
AGES = np.array([0.0, 0.02, 0.05, 0.055])


def at(step: int, num: int = 4) -> RobotState:
    """Joints turn at 1 rad/s, each from a place of its own; the base yaws at 0.5 rad/s."""
    ramp = step * DT + np.arange(num * J).reshape(num, J)
    turn = np.zeros((num, 3))
    turn[:, 0], turn[:, 2] = 0.3, 0.5 * step * DT
    return RobotState(
        stamp_ns=np.full(num, step), q=ramp, dq=10 * ramp, tau=-ramp,
        quat_wb=(-1.0) ** step * from_rpy(turn), gyro_b=ramp.copy(), acc_b=2 * ramp,
    )  # fmt: skip


def test_measurements_are_as_old_as_they_should_be_also_between_two_steps():
    late = LateSignals(4, J, longest_s=0.055, control_dt_s=DT)
    late.begin(np.arange(4))
    seen = [late.report(at(step), AGES) for step in range(9)]
    for step in (4, 8):
        found, true = seen[step], at(step)
        age = np.broadcast_to(AGES[:, None], (4, J))  # at 1 rad/s
        np.testing.assert_allclose(true.q - found.q, age, atol=1e-12)
        np.testing.assert_allclose(true.dq - found.dq, 10 * age, atol=1e-11)
        np.testing.assert_allclose(found.tau, -found.q)
        np.testing.assert_allclose(true.acc_b - found.acc_b, 2 * age, atol=1e-11)
        turn = np.zeros((4, 3))
        turn[:, 0], turn[:, 2] = 0.3, 0.5 * (step * DT - AGES)
        same = np.abs((found.quat_wb * from_rpy(turn)).sum(axis=1))  # q and -q are one attitude
        np.testing.assert_allclose(same, 1.0, atol=1e-9)
        np.testing.assert_array_equal(found.stamp_ns, true.stamp_ns)
        for name in FIELDS:  # a whole number of steps is that measurement, bit by bit
            np.testing.assert_array_equal(getattr(found, name)[0], getattr(true, name)[0])
            before = getattr(at(step - 1), name)[1]
            np.testing.assert_array_equal(getattr(found, name)[1], before)
    np.testing.assert_array_equal(seen[0].q, at(0).q)  # there is nothing older
    np.testing.assert_allclose(seen[1].q[3], at(0).q[3])


def test_a_world_that_begins_again_does_not_move_the_others_on():
    late, alone = (LateSignals(4, J, longest_s=0.06, control_dt_s=DT) for _ in range(2))
    for made in (late, alone):
        made.begin(np.arange(4))
        for step in range(5):
            made.report(at(step), AGES)
    late.begin(np.array([2]))
    first = late.report(at(50), AGES)
    np.testing.assert_array_equal(first.q[2], at(50).q[2])
    one, two = late.report(at(5), AGES), alone.report(at(5), AGES)
    others = [0, 1, 3]
    np.testing.assert_array_equal(one.q[others], two.q[others])
    copy = LateSignals(4, J, longest_s=0.06, control_dt_s=DT)
    copy.load_state_dict(late.state_dict())
    np.testing.assert_array_equal(copy.report(at(6), AGES).q, late.report(at(6), AGES).q)
    with pytest.raises(FerryError, match="was observation_delay changed"):
        LateSignals(4, J, longest_s=0.2, control_dt_s=DT).load_state_dict(late.state_dict())


# ------------------------------------------------------------------ in a task


def make(randomize: str, *overrides: str, num: int = 8, seed: int = 3) -> VecEnv:
    config = load_env_config("a1_walk", [f"randomize={randomize}", "episode_s=0.3", *overrides])
    return make_env(config, num=num, threads=1, seed=seed)


def play(env: VecEnv, steps: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    seen = [env.observation["policy"]]
    actions = 0.3 * rng.normal(size=(steps, env.num_envs, 12))
    return [*seen, *(env.step(action).obs["policy"] for action in actions)]


def test_worlds_that_draw_zero_see_what_worlds_without_the_term_see_bit_by_bit():
    """Late ones see it two steps later; the noise of sensors comes on top."""
    law = "{observation_delay: '=choice(0.0, 0.04)'}"
    calm = "randomize_episode_phase=false"
    late, plain = make(law, calm), make("{}", calm)
    delay = late.drawn().draws[:, 0]
    assert set(delay) == {0.0, 0.04}
    prompt = delay == 0.0
    for one, two in zip(play(late, 14), play(plain, 14), strict=True):
        np.testing.assert_array_equal(one[prompt], two[prompt])
    late, plain = make(law, calm, "sensors=null"), make("{}", calm, "sensors=null")
    joints = late.observation_spec.slices()["joint_pos"]
    given, true = play(late, 14), play(plain, 14)
    for step in range(14):
        expected = true[max(step - 2, 0)][:, joints]
        np.testing.assert_array_equal(given[step][~prompt][:, joints], expected[~prompt])


JITTER = "{observation_delay: '=U(0.0, 0.03)', observation_jitter: '=U(0.02, 0.04)'}"


@pytest.mark.slow
def test_jitter_is_another_age_in_every_step_and_is_replayed_and_resumed_exactly():
    env = make(JITTER, "sensors=null")
    delay, jitter = env.drawn().draws.T
    ages: list[Any] = []
    for _ in range(12):
        env.randomizer.before_step()
        errors = env.randomizer.errors
        assert errors is not None
        ages.append(errors._age[:, 0] + errors._older)
    more = np.array(ages) - delay
    assert (more >= 0.0).all() and (more <= jitter + 1e-9).all()
    assert (np.ptp(more, axis=0) > 0.5 * jitter).all()

    env = make(JITTER, num=6)
    play(env, 21)
    sample, kept = env.drawn().sample(5), env.state_dict()
    other = make(JITTER, num=6, seed=9)
    other.load_state_dict(kept)
    for one, two in zip(play(env, 20), play(other, 20), strict=True):
        np.testing.assert_array_equal(two, one)
    first, second = make(JITTER, num=3, seed=1), make(JITTER, num=2, seed=2)
    first.reset(domain={2: sample})
    second.reset(domain={0: sample})
    for _ in range(10):
        action = np.sin(np.arange(12.0))
        one = first.step(np.tile(action, (3, 1))).obs["policy"][2]
        np.testing.assert_array_equal(second.step(np.tile(action, (2, 1))).obs["policy"][0], one)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("{observation_delay: '=U(0, 0.6)'}", "observation_delay reach 0.6 s; .*kept for 0.5 s"),
        (
            "{observation_delay: '=U(0, 0.3)', observation_jitter: '=U(0, 0.3)'}",
            "observation_delay and observation_jitter reach 0.6 s",
        ),
        ("{observation_delay: '=U(0, 0)'}", "changes nothing"),
        ("{observation_delay: '*U(0, 1)'}", "expected one of =, +"),
    ],
)
def test_a_delay_beyond_the_buffer_or_of_nothing_is_an_error(table: str, message: str):
    with pytest.raises((ConfigError, FerryError), match=message):
        make(table, num=1)


def test_a_negative_delay_is_an_error():
    with pytest.raises(FerryError, match=r"'observation_delay'.*-0.01 to 0.02 s; expected 0 to"):
        make("{observation_delay: '=U(-0.01, 0.02)'}", num=1)
