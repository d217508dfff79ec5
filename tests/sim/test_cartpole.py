"""A second kind of robot and task: fixed base, a slide, a passive hinge, nothing to command."""

from __future__ import annotations

import numpy as np
import pytest

from real.errors import ConfigError
from real.observation import ObservationBuilder
from real.spec import load_robot
from sim.engine import InitialState
from sim.env import VecEnv, make_env
from sim.measure import passive_hinges
from sim.mujoco_engine import MujocoEngine
from sim.pybullet_engine import PyBulletEngine
from sim.task import load_env_config, observation_spec

ROBOT = load_robot("cartpole")
NUM = 5


def make(*overrides: str, num: int = NUM, **options) -> VecEnv:
    config = load_env_config("cartpole_balance", ["randomize_episode_phase=false", *overrides])
    return make_env(config, num=num, threads=1, **options)


def test_the_robot_is_a_motor_on_a_rail_and_a_hinge_without_one():
    cart, pole = ROBOT.joints
    assert (cart.kind, cart.actuated, pole.kind, pole.actuated) == ("slide", True, "hinge", False)
    assert (cart.q_min, cart.q_max, cart.dq_max, cart.tau_max) == (-15.0, 15.0, 5.0, 1000.0)
    assert (pole.q_min, pole.q_max) == (-np.inf, np.inf)
    assert passive_hinges(ROBOT).tolist() == [1]
    assert passive_hinges(load_robot("a1")).tolist() == []


@pytest.mark.parametrize("engine_class", [MujocoEngine, PyBulletEngine])
def test_a_pole_let_go_falls_at_the_rate_of_the_file_s_masses(engine_class):
    engine = engine_class(ROBOT, 1)
    start = InitialState.default(ROBOT, 1)
    start.q[:] = [[0.0, 0.02]]
    engine.reset(np.arange(1), start)
    for _ in range(25):  # 1 s
        engine.step(np.zeros((1, 1)))
    # m g l / (I + m l^2) = 0.1 * 9.81 * 0.5 / (1 + 0.025); theta = theta_0 cosh(w t)
    rate = np.sqrt(0.4905 / 1.025)
    state = engine.state()
    assert state.robot.q[0, 1] == pytest.approx(0.02 * np.cosh(rate), rel=0.01)
    assert abs(state.robot.q[0, 0]) < 1e-3  # the servo holds the cart
    assert not state.body_contact.any()
    engine.close()


def test_a_hanging_pole_does_not_touch_the_floor():
    for engine in (MujocoEngine(ROBOT, 1), PyBulletEngine(ROBOT, 1)):
        start = InitialState.default(ROBOT, 1)
        start.q[:] = [[0.0, np.pi]]
        engine.reset(np.arange(1), start)
        engine.step(np.zeros((1, 1)))
        assert not engine.state().body_contact.any()
        engine.close()


def test_the_policy_sees_both_joints_and_its_last_action_and_no_command():
    env = make("sensors=null")
    assert (env.policy_dim, env.action_dim, env.command_limits.dim) == (5, 1, 0)
    assert env.command.shape == (NUM, 0)
    obs = env.step(np.full((NUM, 1), 0.3)).obs["policy"]
    state = env.engine.state().robot
    expected = np.concatenate([state.q, state.dq, np.full((NUM, 1), 0.3)], axis=1)
    np.testing.assert_allclose(obs, expected, atol=1e-6)
    # The builder of the robot's side gives the same numbers.
    spec = observation_spec(env.config, ROBOT)
    builder = ObservationBuilder(spec, ROBOT.q_default, NUM)
    again = builder.build(state, np.zeros((NUM, 0)), np.full((NUM, 1), 0.3))
    np.testing.assert_array_equal(again, obs)
    env.close()


@pytest.mark.parametrize(("joint", "bound"), [("cart_to_pole", 0.6), ("slider_to_cart", 10.0)])
def test_a_pole_beyond_its_angle_or_a_cart_beyond_its_rail_terminates(joint, bound):
    env = make(randomize=False, seed=3)
    column = ROBOT.joint_names.index(joint)
    start = InitialState.default(ROBOT, NUM)
    start.q[:, column] = [0.0, bound - 0.02, 1.02 * bound, -1.02 * bound, 0.9 * bound]
    env.engine.reset(np.arange(NUM), start)
    # The carts hold where they are: targets in metres, one unit of action each.
    result = env.step(start.q[:, :1] / ROBOT.joints[0].action_scale)
    np.testing.assert_array_equal(result.terminated, [False, False, True, True, False])
    assert result.final_ids.tolist() == [2, 3]
    assert result.episode["strayed"].all()
    assert not result.episode["fallen"].any()
    paid = result.reward_parts["termination"]
    np.testing.assert_allclose(paid, [0.0, 0.0, -2.0, -2.0, 0.0])  # 50 per second, 0.04 s
    np.testing.assert_array_equal(result.reward_parts["alive"] > 0.0, ~result.terminated)
    env.close()


def test_bounds_that_nobody_reaches_change_nothing_bit_for_bit():
    plain = load_env_config("a1_walk")
    bounded = load_env_config("a1_walk", ["terminations.joints={FR_hip_joint: 50.0}"])
    envs = [make_env(config, num=3, threads=1, seed=4) for config in (plain, bounded)]
    rng = np.random.default_rng(0)
    for _ in range(40):
        action = 2.0 * rng.normal(size=(3, 12))
        one, two = (env.step(action) for env in envs)
        np.testing.assert_array_equal(one.reward, two.reward)
        np.testing.assert_array_equal(one.obs["critic"], two.obs["critic"])
        np.testing.assert_array_equal(one.terminated, two.terminated)
    for env in envs:
        env.close()


def test_a_continuation_is_bit_exact_without_a_command_too():
    first, second = make(seed=1), make(seed=2)
    rng = np.random.default_rng(5)
    for _ in range(30):
        first.step(rng.normal(size=(NUM, 1)))
    second.load_state_dict(first.state_dict())
    for _ in range(60):
        action = rng.normal(size=(NUM, 1))
        one, two = first.step(action), second.step(action)
        np.testing.assert_array_equal(one.obs["policy"], two.obs["policy"])
        np.testing.assert_array_equal(one.obs["critic"], two.obs["critic"])
        np.testing.assert_array_equal(one.reward, two.reward)
    first.close()
    second.close()


def test_a_bound_on_a_joint_of_another_robot_is_refused_when_the_worlds_are_made():
    with pytest.raises(ConfigError, match=r"no joint 'FR_hip_joint'.*slider_to_cart, cart_to_pole"):
        make("terminations.joints={FR_hip_joint: 1.0}")
