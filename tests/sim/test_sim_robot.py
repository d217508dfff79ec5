"""A simulated robot behind the border of a real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from real.domain import DomainSample
from real.errors import FerryError
from real.frames import tilt
from real.robot_io import RobotIO, drawn_world, load_plugin
from real.signals import JointCommand, RobotState
from real.spec import RobotSpec, load_robot
from sim.mujoco_engine import MujocoEngine
from sim.pybullet_engine import PyBulletEngine
from sim.sim_robot import SimRobot

PLUGINS = pytest.mark.parametrize("plugin", ["MujocoRobot", "PyBulletRobot"])
Load = Callable[..., SimRobot]


@pytest.fixture(scope="module")
def spec() -> RobotSpec:
    return load_robot("a1")


@pytest.fixture
def load(spec: RobotSpec) -> Iterator[Load]:
    made: list[RobotIO] = []

    def build(plugin: str, **options: object) -> RobotIO:
        made.append(load_plugin(f"sim.sim_robot:{plugin}", spec, options=options))
        return made[-1]

    yield build
    for robot in made:
        robot.close()


def damping(spec: RobotSpec, state: RobotState) -> JointCommand:
    return JointCommand.damping(state.stamp_ns, len(spec.actuated), damping_kd=spec.damping_kd)


def position(spec: RobotSpec, state: RobotState, q_des: np.ndarray) -> JointCommand:
    kp, kd = spec.actuated_array("kp"), spec.actuated_array("kd")
    return JointCommand.position(state.stamp_ns, q_des[None], kp=kp, kd=kd)


@PLUGINS
def test_it_is_a_robot_io_whose_clock_is_the_physics_step(load, spec, plugin):
    robot = load(plugin)
    assert isinstance(robot, RobotIO)
    assert robot.simulated
    assert robot.period_s == spec.physics_dt_s
    state = robot.start()
    np.testing.assert_allclose(state.q[0], spec.q_default, atol=1e-12)
    stamps = [int(state.stamp_ns[0])]
    for _ in range(4):
        state = robot.exchange(damping(spec, state))
        stamps.append(int(state.stamp_ns[0]))
    assert np.diff(stamps).tolist() == [5_000_000] * 4


def test_stamps_count_from_the_clock_at_start(spec):
    robot = SimRobot(MujocoEngine(spec, 1, threads=1), clock=lambda: 7_000_000_123)
    assert robot.start().stamp_ns.tolist() == [7_000_000_123]
    state = robot.exchange(damping(spec, RobotState.zeros(1, 12)))
    assert state.stamp_ns.tolist() == [7_005_000_123]
    truth = robot.ground_truth()
    assert truth is not None
    assert truth.stamp_ns == 7_005_000_123
    robot.close()


@pytest.mark.slow
@PLUGINS
def test_it_stands_on_its_gantry_until_the_first_command_that_is_not_damping(load, spec, plugin):
    robot = load(plugin)
    state = robot.start()
    for _ in range(200):
        state = robot.exchange(damping(spec, state))
    assert robot.held
    assert robot.ground_truth().position_w[2] > 0.27
    state = robot.exchange(position(spec, state, spec.actuated_array("q_default")))
    assert not robot.held
    for _ in range(300):  # released once and for all: damping now lets it down
        state = robot.exchange(damping(spec, state))
    assert robot.ground_truth().position_w[2] < 0.15
    assert tilt(state.quat_wb)[0] < 0.3


@pytest.mark.slow
@PLUGINS
def test_without_the_gantry_it_sinks_under_damping(load, spec, plugin):
    robot = load(plugin, hold_until_commanded=False)
    state = robot.start()
    for _ in range(300):
        state = robot.exchange(damping(spec, state))
    assert robot.ground_truth().position_w[2] < 0.15


@PLUGINS
def test_it_follows_position_commands_and_tells_where_it_is(load, spec, plugin):
    robot = load(plugin)
    assert robot.ground_truth() is None
    state = robot.start()
    target = spec.actuated_array("q_default") + np.tile([0.0, 0.2, -0.4], 4)  # crouch
    for _ in range(200):
        state = robot.exchange(position(spec, state, target))
    np.testing.assert_allclose(state.q[0], target, atol=0.2)
    truth = robot.ground_truth()
    assert 0.2 < truth.position_w[2] < 0.27
    np.testing.assert_array_equal(truth.quat_wb, state.quat_wb[0])
    np.testing.assert_array_equal(truth.ang_vel_b, state.gyro_b[0])
    assert truth.stamp_ns == state.stamp_ns[0]


@PLUGINS
def test_starting_again_puts_it_back_on_its_feet(load, spec, plugin):
    robot = load(plugin, hold_until_commanded=False)
    state = robot.start()
    for _ in range(100):
        state = robot.exchange(damping(spec, state))
    np.testing.assert_allclose(robot.start().q[0], spec.q_default, atol=1e-12)
    assert robot.ground_truth().position_w[2] == pytest.approx(spec.base_height_m)


@PLUGINS
def test_the_floor_is_as_slippery_as_asked(load, spec, plugin):
    slid = []
    for friction in (0.05, 1.0):
        robot = load(plugin, friction=friction)
        state = robot.start()
        # Legs pushed sideways against the floor slip apart on ice and hold on rubber.
        apart = spec.actuated_array("q_default") + np.tile([-0.5, 0, 0, 0.5, 0, 0], 2)
        for _ in range(60):
            state = robot.exchange(position(spec, state, apart))
        slid.append(abs(state.q[0, 0]))
    assert slid[0] > slid[1] + 0.05


@PLUGINS
def test_it_tells_what_its_world_is_like_unless_its_truth_is_hidden(load: Load, plugin: str):
    robot = load(plugin, friction=0.4)
    sample = drawn_world(robot)
    assert sample is not None
    assert sample.values == {"friction": [0.4]}
    assert DomainSample.from_json(sample.to_json()) == sample
    robot.start()
    assert robot.ground_truth() is not None
    stand_in = load(plugin, friction=0.4, hide_truth=True)
    stand_in.start()
    assert drawn_world(stand_in) is None
    assert stand_in.ground_truth() is None
    robot.simulated = False  # what calls itself hardware is asked nothing
    assert drawn_world(robot) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"seed": 0, "values": 3, "streams": []}'])
def test_what_is_no_sample_is_refused(text: str) -> None:
    with pytest.raises(FerryError, match="no DomainSample"):
        DomainSample.from_json(text)


@PLUGINS
def test_misuse_says_what_is_wrong(load, spec, plugin):
    robot = load(plugin)
    command = damping(spec, RobotState.zeros(1, 12))
    with pytest.raises(FerryError, match=r"exchange\(\) before start\(\)"):
        robot.exchange(command)
    robot.start()
    robot.close()
    robot.close()
    with pytest.raises(FerryError, match=r"used after close\(\)"):
        robot.exchange(command)
    with pytest.raises(FerryError, match="options"):
        load(plugin, fricton=0.5)


def test_a_diverged_simulation_is_an_error_and_not_a_state(spec):
    robot = SimRobot(PyBulletEngine(spec), hold_until_commanded=False)
    state = robot.start()
    command = position(spec, state, np.full(12, np.nan))
    with pytest.raises(FerryError, match="the simulation diverged"):
        robot.exchange(command)
    robot.close()


def test_an_engine_of_many_worlds_is_no_robot(spec):
    engine = PyBulletEngine(spec, 2)
    with pytest.raises(FerryError, match="one world; the engine has 2"):
        SimRobot(engine)
    engine.close()
