"""The driver template does what its text says, once its four methods are filled in."""

from __future__ import annotations

import numpy as np
import pytest

from deploy.plugins.template import TemplateRobot
from real.errors import FerryError
from real.robot_io import RobotIO, load_plugin
from real.signals import JointCommand
from real.spec import load_robot


@pytest.fixture(scope="module")
def spec():
    return load_robot("cartpole")  # a passive joint, too


class Bus(TemplateRobot):
    def _open(self):
        self.sent, self.shut = [], 0

    def _read(self):
        still = np.zeros(3)
        row = np.arange(len(self._slots), dtype=float)
        return 42, row, 10 * row, 100 * row, np.array([1.0, 0, 0, 0]), still, still

    def _write(self, q_des, dq_des, tau_ff, kp, kd):
        self.sent.append((q_des, dq_des, tau_ff, kp, kd))

    def _shut(self):
        self.shut += 1


def slots(spec):
    return dict(zip(spec.joint_names, reversed(range(len(spec.joints))), strict=True))


def test_joints_are_mapped_by_name_in_both_directions(spec):
    robot = Bus(spec, slots=slots(spec), command_timeout_s=0.1)
    assert isinstance(robot, RobotIO)
    state = robot.start()
    order = list(slots(spec).values())
    assert order != sorted(order)
    assert not robot.sent
    np.testing.assert_array_equal(state.q[0], order)
    np.testing.assert_array_equal(state.tau[0], [100 * s for s in order])
    assert state.stamp_ns[0] == 42
    (driven,) = spec.actuated
    one = np.array([[3.0]])
    stamp = np.zeros(1, dtype=np.int64)
    robot.exchange(JointCommand(stamp, one, 2 * one, 3 * one, 4 * one, 5 * one))
    expected = np.zeros((5, len(order)))
    expected[:, slots(spec)[driven.name]] = [3.0, 6.0, 9.0, 12.0, 15.0]
    np.testing.assert_array_equal(robot.sent[-1], expected)


def test_closing_damps_once_and_lets_go_once(spec):
    robot = Bus(spec, slots=slots(spec))
    robot.start()
    robot.close()
    robot.close()
    assert robot.shut == 1
    ((_, _, _, kp, kd),) = robot.sent
    assert not kp.any() and kd.sum() == spec.damping_kd
    with pytest.raises(FerryError, match="before start"):
        robot.exchange(JointCommand.damping(np.zeros(1, dtype=np.int64), 1, damping_kd=1.0))


def test_a_wrong_map_and_numbers_that_are_none_are_refused(spec):
    first, second = spec.joint_names
    with pytest.raises(FerryError, match=f"'{second}' has no slot"):
        Bus(spec, slots={first: 0})
    with pytest.raises(FerryError, match="expected each joint with one of 0 to 1"):
        Bus(spec, slots={first: 1, second: 1})
    robot = Bus(spec, slots=slots(spec))
    robot.start()
    with pytest.raises(FerryError, match="not finite"):
        robot.exchange(JointCommand.damping(np.zeros(1, dtype=np.int64), 1, damping_kd=np.nan))


def test_the_template_itself_loads_and_says_that_it_is_to_be_copied(spec):
    path = "deploy.plugins.template:TemplateRobot"
    robot = load_plugin(path, spec, options={"slots": slots(spec)})
    assert robot.command_timeout_s is None
    with pytest.raises(FerryError, match="fill in _open"):
        robot.start()
    robot.close()
