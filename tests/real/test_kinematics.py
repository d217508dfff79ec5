"""Poses of end effectors, and the way to them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from real.errors import FerryError
from real.frames import conjugate, from_rpy, multiply, rotate, to_rpy
from real.kinematics import Chain, ChainJoint, Kinematics, pose_error, rotation_vector

IDENTITY = (1.0, 0.0, 0.0, 0.0)


def planar() -> Chain:
    """Two links of 0.5 and 0.3 m that turn about z, and a slide along the second."""
    return Chain(
        link="tip",
        joints=(
            ChainJoint("one", "hinge", (0.0, 0.0, 0.2), IDENTITY, (0.0, 0.0, 1.0)),
            ChainJoint("two", "hinge", (0.5, 0.0, 0.0), IDENTITY, (0.0, 0.0, 1.0)),
            ChainJoint("three", "slide", (0.0, 0.0, 0.0), IDENTITY, (1.0, 0.0, 0.0)),
        ),
        position=(0.3, 0.0, 0.0),
        quat=IDENTITY,
    )


def turned() -> Chain:
    """Joints about all axes, each in a frame turned against the one before."""
    rng = np.random.default_rng(5)

    def joint(name: str, axis: tuple[float, float, float]) -> ChainJoint:
        quat = from_rpy(rng.uniform(-1.5, 1.5, 3))
        return ChainJoint(name, "hinge", tuple(rng.uniform(-0.3, 0.3, 3)), tuple(quat), axis)

    axes = [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.6, 0.8), (0.0, 0.0, 1.0)] * 2
    joints = tuple(joint(f"j{i}", axis) for i, axis in enumerate(axes[:7]))
    return Chain("tip", joints, (0.1, -0.2, 0.3), tuple(from_rpy([0.3, -0.4, 0.9])))


def test_a_planar_arm_is_where_trigonometry_puts_it():
    # Columns are out of order, and a joint that is not on the way does not matter.
    arm = Kinematics(planar(), ["two", "other", "three", "one"])
    q = np.array([[0.4, 9.0, 0.1, 0.3], [0.0, 0.0, 0.0, 0.0], [-0.7, 1.0, -0.2, 1.2]])
    position, quat = arm.pose(q)
    for row in range(3):
        one, two, out = q[row, 3], q[row, 0], q[row, 2]
        x = 0.5 * math.cos(one) + (0.3 + out) * math.cos(one + two)
        y = 0.5 * math.sin(one) + (0.3 + out) * math.sin(one + two)
        np.testing.assert_allclose(position[row], [x, y, 0.2], atol=1e-12)
        np.testing.assert_allclose(to_rpy(quat[row]), [0.0, 0.0, one + two], atol=1e-12)


def test_three_arms_at_once_equal_each_alone():
    arm = Kinematics(turned(), [f"j{i}" for i in range(7)])
    q = np.random.default_rng(0).normal(size=(3, 7))
    position, quat = arm.pose(q)
    for row in range(3):
        alone = arm.pose(q[row : row + 1])
        np.testing.assert_array_equal(alone[0][0], position[row])
        np.testing.assert_array_equal(alone[1][0], quat[row])


@pytest.mark.parametrize("angle", [0.0, 1e-12, 1e-5, 0.3, 3.1, 3.3, -2.0])
def test_a_rotation_vector_is_axis_times_the_shorter_angle(angle):
    axis = np.array([0.0, 0.6, -0.8])
    quat = np.array([math.cos(angle / 2), *(math.sin(angle / 2) * axis)])
    shorter = math.remainder(angle, 2.0 * math.pi)
    for same in (quat, -quat):  # both mean the same rotation
        np.testing.assert_allclose(rotation_vector(same[None])[0], shorter * axis, atol=1e-12)


def test_the_error_of_a_pose_takes_the_end_effector_there():
    rng = np.random.default_rng(1)
    quat = np.array([from_rpy(rng.uniform(-3, 3, 3)) for _ in range(3)])
    wanted = np.array([from_rpy(rng.uniform(-3, 3, 3)) for _ in range(3)])
    position, goal = rng.normal(size=(3, 3)), rng.normal(size=(3, 3))
    error = pose_error(np.concatenate([goal, wanted], axis=1), position, quat)
    np.testing.assert_allclose(position + error[:, :3], goal, atol=1e-12)
    for row in range(3):
        angle = np.linalg.norm(error[row, 3:])
        assert angle <= math.pi
        axis = error[row, 3:] / angle
        turn = np.array([math.cos(angle / 2), *(math.sin(angle / 2) * axis)])
        # The error is in the base frame: it turns from the left.
        left = multiply(turn, quat[row])
        same = multiply(left, conjugate(wanted[row]))
        assert abs(same[0]) == pytest.approx(1.0, abs=1e-9)


def test_the_step_towards_a_pose_is_the_damped_inverse_of_a_measured_jacobian():
    arm = Kinematics(turned(), [f"j{i}" for i in range(7)])
    q = np.random.default_rng(2).normal(size=(3, 7))
    goal = np.random.default_rng(3).normal(size=(3, 7))
    goal[:, 3:] /= np.linalg.norm(goal[:, 3:], axis=1, keepdims=True)
    step = arm.step_towards(goal, q)
    position, quat = arm.pose(q)
    error = pose_error(goal, position, quat)
    for row in range(3):
        jacobian = np.zeros((6, 7))
        for joint in range(7):
            moved = q[row : row + 1].copy()
            moved[0, joint] += 1e-6
            there, stands = arm.pose(moved)
            jacobian[:3, joint] = (there[0] - position[row]) / 1e-6
            turn = multiply(stands, conjugate(quat[row : row + 1]))
            jacobian[3:, joint] = rotation_vector(turn)[0] / 1e-6
        inverse = jacobian.T @ np.linalg.inv(jacobian @ jacobian.T + 0.05**2 * np.eye(6))
        np.testing.assert_allclose(step[row], inverse @ error[row], rtol=1e-3, atol=1e-4)


def test_following_the_steps_reaches_a_pose_with_a_slide_in_the_way():
    arm = Kinematics(planar(), ["one", "two", "three", "far"])
    q = np.array([[0.2, 0.5, 0.0, 7.0]])
    wanted = np.array([[0.9, 0.3, 0.1, 0.0]])
    goal = np.concatenate(arm.pose(wanted), axis=1)
    for _ in range(200):
        q = q + 0.5 * arm.step_towards(goal, q)
    position, quat = arm.pose(q)
    assert np.abs(pose_error(goal, position, quat)).max() < 1e-3
    assert q[0, 3] == 7.0  # a joint that is not on the way is left alone


def test_a_stretched_arm_is_not_asked_for_what_it_cannot_do():
    arm = Kinematics(planar(), ["one", "two", "three"])
    goal = np.array([[5.0, 0.0, 2.0, 1.0, 0.0, 0.0, 0.0]])  # far away and off the plane
    step = arm.step_towards(goal, np.zeros((1, 3)))
    assert np.isfinite(step).all()
    assert np.abs(step[0, :2]).max() < 0.1  # turning would not bring it nearer


def test_a_chain_of_unknown_joints_is_refused_by_name():
    with pytest.raises(FerryError, match="the way to 'tip' has joints three, which are not among"):
        Kinematics(planar(), ["one", "two"])


def test_roll_pitch_yaw_come_back_also_where_yaw_is_not_unique():
    for rpy in ([0.3, -0.8, 2.0], [0.5, math.pi / 2, 0.0], [-0.4, -math.pi / 2, 0.0]):
        quat = from_rpy(rpy)
        again = from_rpy(to_rpy(quat))
        vector = np.array([1.0, 2.0, 3.0])
        np.testing.assert_allclose(rotate(again, vector), rotate(quat, vector), atol=1e-7)
