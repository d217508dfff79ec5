from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from real.errors import FerryError
from real.loopback import LoopbackRobot
from real.robot_io import RobotIO, load_plugin
from real.signals import JointCommand
from real.spec import load_robot


class Clock:
    def __init__(self):
        self.ns = 5_000_000_000

    def __call__(self):
        return self.ns

    def advance(self, seconds):
        self.ns += round(seconds * 1e9)


@pytest.fixture(scope="module")
def spec():
    """A1 with a gain of its own for every joint, since equal gains hide a wrong map."""
    robot = load_robot("a1")
    joints = tuple(replace(j, kp=20.0 + i, kd=0.5 + 0.1 * i) for i, j in enumerate(robot.joints))
    return replace(robot, joints=joints)


@pytest.fixture
def clock():
    return Clock()


def command(spec, q_des, **fields):
    base = JointCommand.position(
        np.zeros(1, dtype=np.int64),
        np.asarray(q_des, dtype=np.float64)[None],
        kp=spec.actuated_array("kp"),
        kd=spec.actuated_array("kd"),
    )
    return replace(base, **fields)


def test_it_is_a_robot_and_loads_as_a_plug_in(spec):
    robot = load_plugin("real.loopback:LoopbackRobot", spec, options={"period_s": 0.01})
    assert isinstance(robot, RobotIO)
    assert robot.period_s == 0.01
    assert robot.command_timeout_s == 0.1


def test_it_starts_at_the_default_pose_and_stands_still_under_damping(spec, clock):
    robot = LoopbackRobot(spec, start={"FL_hip_joint": 0.4}, clock=clock)
    first = robot.start()
    expected = spec.q_default
    expected[spec.joint_names.index("FL_hip_joint")] = 0.4
    np.testing.assert_array_equal(first.q, [expected])
    for _ in range(5):
        clock.advance(0.005)
        state = robot.exchange(JointCommand.damping(first.stamp_ns, 12, damping_kd=3.0))
    np.testing.assert_array_equal(state.q, [expected])
    np.testing.assert_array_equal(state.dq, np.zeros((1, 12)))
    assert state.stamp_ns[0] == clock.ns


def test_each_joint_approaches_its_own_target_with_its_own_time_constant(spec, clock):
    robot = LoopbackRobot(spec, viscosity=1.0, clock=clock)
    start = robot.start().q[0]
    target = start + np.linspace(-0.3, 0.3, 12)
    robot.exchange(command(spec, target))
    clock.advance(0.03)
    state = robot.exchange(command(spec, target))
    # Hand arithmetic: tau_j = (1 + kd_j) / kp_j, remaining error exp(-0.03 / tau_j).
    for j, joint in enumerate(spec.joints):
        remaining = math.exp(-0.03 * joint.kp / (1.0 + joint.kd))
        assert state.q[0, j] == pytest.approx(target[j] + (start[j] - target[j]) * remaining)
        # b dq = tau, with b = 1.
        assert state.tau[0, j] == pytest.approx(state.dq[0, j])


def test_velocity_and_torque_targets_reach_their_joint_too(spec, clock):
    order = [*spec.joint_names[5:], *spec.joint_names[:5]]
    robot = LoopbackRobot(spec, viscosity=2.0, hardware_order=order, clock=clock)
    start = robot.start().q[0]
    torque, speed = np.zeros((1, 12)), np.zeros((1, 12))
    torque[0, 1], speed[0, 7] = 0.6, 0.9
    free = command(
        spec, start, kp=np.zeros((1, 12)), kd=np.ones((1, 12)), tau_ff=torque, dq_des=speed
    )
    robot.exchange(free)
    clock.advance(0.05)
    state = robot.exchange(free)
    # (b + kd) dq = kd dq_des + tau_ff: 0.6 / 3 and 0.9 / 3.
    expected = np.zeros(12)
    expected[1], expected[7] = 0.2, 0.3
    np.testing.assert_allclose(state.dq[0], expected, atol=1e-12)
    np.testing.assert_allclose(state.q[0], start + 0.05 * expected, atol=1e-12)


def test_the_hardware_order_is_invisible_outside(spec, clock):
    rng = np.random.default_rng(0)
    orders = [list(spec.joint_names), list(rng.permutation(spec.joint_names)), None]
    robots = [LoopbackRobot(spec, hardware_order=order, clock=clock) for order in orders]
    starts = [robot.start() for robot in robots]
    start = starts[0].q[0]
    target = start + rng.uniform(-0.3, 0.3, 12)
    for robot in robots:
        robot.exchange(command(spec, target))
    clock.advance(0.02)
    states = [robot.exchange(command(spec, target)) for robot in robots]
    for other in states[1:]:
        for key in ("q", "dq", "tau"):
            np.testing.assert_array_equal(getattr(states[0], key), getattr(other, key))


def test_passive_joints_are_reported_but_never_driven(spec, clock):
    joints = list(spec.joints)
    joints[4] = replace(joints[4], actuated=False)
    legged = replace(spec, joints=tuple(joints))
    robot = LoopbackRobot(legged, clock=clock)
    start = robot.start().q[0]
    target = legged.q_default[legged.actuated_ids] + 0.2
    robot.exchange(command(legged, target))
    clock.advance(0.09)
    state = robot.exchange(command(legged, target))
    assert state.q.shape == (1, 12)
    moved = state.q[0] - start
    assert moved[4] == 0.0
    assert (np.delete(moved, 4) > 0.1).all()


def test_the_firmware_stops_the_joints_when_nobody_calls(spec, clock):
    robot = LoopbackRobot(spec, command_timeout_s=0.1, clock=clock)
    start = robot.start().q[0]
    target = start + 0.3
    robot.exchange(command(spec, target))
    clock.advance(5.0)
    state = robot.exchange(command(spec, target))
    assert robot.firmware_stops == 1
    kp, kd = spec.actuated_array("kp"), spec.actuated_array("kd")
    np.testing.assert_allclose(state.q[0], target - 0.3 * np.exp(-0.1 * kp / (1.0 + kd)))
    np.testing.assert_array_equal(state.dq, np.zeros((1, 12)))
    np.testing.assert_array_equal(state.tau, np.zeros((1, 12)))


def test_close_stops_and_may_be_called_twice(spec, clock):
    robot = LoopbackRobot(spec, clock=clock)
    start = robot.start().q[0]
    robot.exchange(command(spec, start + 0.3))
    robot.close()
    robot.close()
    clock.advance(0.05)
    state = robot.exchange(command(spec, start + 0.3))
    np.testing.assert_array_equal(state.q[0], start)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hardware_order": ["FR_hip_joint"]}, "must name each joint"),
        ({"start": {"FR_hip": 0.1}}, "did you mean 'FR_hip_joint'"),
        ({"viscosity": 0.0}, "viscosity is 0.0; expected > 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(spec, options, words):
    with pytest.raises(FerryError, match=words):
        LoopbackRobot(spec, **options)
