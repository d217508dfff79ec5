"""Poses as commands of an arm: which one the policy is told, and the graph that reaches them."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from deploy.graph import LOOPBACK, RobotChoice, graph
from deploy.target_pose import TargetPose
from real.errors import FerryError
from real.reach import ReachSpace
from tests.deploy.stand_bundle import write_bundle
from tests.deploy.test_reach import arm_contract
from tests.extras import need

CONTRACT = arm_contract()
NAMES = CONTRACT.joint_names
DEFAULT = np.array([j.q_default for j in CONTRACT.joints])
SPACE = ReachSpace(CONTRACT.reach, CONTRACT.joints, low=[-1, -1, 0], high=[1, 1, 1])
SECOND = 1_000_000_000


def pose_of(q):
    return np.concatenate(SPACE.kinematics.pose(np.atleast_2d(q)), axis=1)[0]


def moved(**by):
    """Joint positions off the default by name."""
    q = DEFAULT.copy()
    for name, delta in by.items():
        q[NAMES.index(name)] += delta
    return q


def told(target, q, now_s, *, running=True):
    return target.command(np.atleast_2d(q), round(now_s * SECOND), running=running)[0]


def test_without_a_target_the_arm_is_told_the_pose_it_was_in_when_it_began_to_run():
    target = TargetPose(CONTRACT, timeout_s=0.5)
    here, there = moved(panda_joint1=0.2), moved(panda_joint3=-0.3)
    np.testing.assert_allclose(told(target, here, 0.0, running=False), pose_of(here))
    np.testing.assert_allclose(told(target, there, 1.0), pose_of(there))
    # It sags or is pushed: it is still told to be where it began.
    np.testing.assert_allclose(told(target, here, 2.0), pose_of(there))
    assert target.held


def test_a_target_counts_until_it_is_too_old_and_then_the_arm_stays_where_it_is():
    target = TargetPose(CONTRACT, timeout_s=0.5)
    goal, way = pose_of(moved(panda_joint1=0.4)), moved(panda_joint1=0.1)
    told(target, DEFAULT, 0.0)
    assert target.take(goal, 0) == ""
    np.testing.assert_allclose(told(target, DEFAULT, 0.5), goal, atol=1e-12)
    assert not target.held
    np.testing.assert_allclose(told(target, way, 0.6), pose_of(way))
    assert target.held
    np.testing.assert_allclose(told(target, DEFAULT, 9.0), pose_of(way))
    # The next one is followed as the first was.
    target.take(goal, 9 * SECOND)
    np.testing.assert_allclose(told(target, way, 9.1), goal, atol=1e-12)


def test_a_target_without_an_age_counts_until_another_but_no_longer_than_the_policy_runs():
    target = TargetPose(CONTRACT, timeout_s=0.0)
    goal = pose_of(moved(panda_joint1=0.4))
    target.take(goal, 0)
    np.testing.assert_allclose(told(target, DEFAULT, 3600.0), goal, atol=1e-12)
    told(target, DEFAULT, 3601.0, running=False)
    np.testing.assert_allclose(told(target, DEFAULT, 3602.0), pose_of(DEFAULT))


def test_a_target_outside_the_range_is_clamped_and_one_that_is_no_pose_refused():
    target = TargetPose(CONTRACT, timeout_s=0.5)
    goal = np.array([0.5, -1.25, 0.2, 0.0, 0.0, 0.0, 1.0])
    assert target.take(goal, 0).endswith("clamped: y by 0.250 m")
    np.testing.assert_allclose(told(target, DEFAULT, 0.1), [0.5, -1.0, *goal[2:]])
    for bad, words in [
        (np.full(7, np.nan), "not finite"),
        (np.array([0.5, 0.0, 0.2, 2.0, 0.0, 0.0, 0.0]), "length 2.000"),
        (np.array([0.5, 0.0, 0.2, 0.0, 0.0, 0.0, 0.0]), "length 0.000"),
    ]:
        with pytest.raises(FerryError, match=words):
            target.take(bad, 0)
    np.testing.assert_allclose(told(target, DEFAULT, 0.1)[1], -1.0)  # the one before


def arm_graph(folder):
    """A policy that steps towards its pose, on a Panda whose hardware has another joint order."""
    settings = folder / "safety.yaml"
    settings.write_text("ramp_s: 0.3\n")
    order = [NAMES[i] for i in np.random.default_rng(4).permutation(len(NAMES))]
    return graph(
        write_bundle(folder / "arm.onnx", CONTRACT, gain=1.0),
        RobotChoice(
            LOOPBACK,
            simulated=True,
            options={"start": {"panda_joint2": -0.3}, "hardware_order": order},
        ),
        robot_name="panda",
        safety_settings=settings,
        watchdog_periods=50.0,
        domain_id=int(os.environ["ROS_DOMAIN_ID"]),
    )


@pytest.mark.ros
@pytest.mark.timeout(300)
def test_the_graph_brings_an_arm_to_its_target_and_holds_it_when_the_target_stops(tmp_path):
    need("rclpy")
    from geometry_msgs.msg import PoseStamped
    from sensor_msgs.msg import JointState

    from deploy.convert import make_pose
    from deploy.schedule import Schedule
    from tests.deploy.ros_probe import RELIABLE, positions, running

    goal = moved(panda_joint1=0.4, panda_joint3=-0.3)
    described = arm_graph(tmp_path)
    with running(described, tmp_path) as (_, probe):
        out = probe.node.create_publisher(PoseStamped, "/target_pose", RELIABLE)

        def here():
            return positions(probe.states[-1], NAMES)

        def send(pose, frame="panda_link0"):
            out.publish(make_pose(pose, frame))

        probe.until_mode("HOLD")  # an arm is held, not damped
        probe.arm()
        probe.until_said("policy_node", "no target, so the arm is told to stay where it is")
        np.testing.assert_allclose(here(), DEFAULT, atol=0.05)

        def refused(pose, words, frame="panda_link0"):
            def said():
                send(pose, frame)
                return words in probe.diagnostics.get("policy_node", "")

            probe.until(said, words)

        refused(pose_of(goal), "frame 'camera'; expected 'panda_link0'", frame="camera")
        refused(pose_of(goal) * 2.0, "quaternion has length 2.000")
        np.testing.assert_allclose(here(), DEFAULT, atol=0.05)

        def arrived():
            send(pose_of(goal))
            return np.abs(pose_of(here()) - pose_of(goal)).max() < 0.01

        probe.until(arrived, "the arm is at its target")
        # Nobody sends any more: it is told to stay, and neither goes home nor falls.
        probe.until_said("policy_node", "no target, so the arm is told to stay where it is")
        seen = len(probe.states)
        probe.until(lambda: len(probe.states) > seen + 100, "half a second of holding")
        np.testing.assert_allclose(pose_of(here()), pose_of(goal), atol=0.02)
        # A fault makes an arm hold where it is and say why; without gains it would drop.
        rival = probe.node.create_publisher(JointState, "/policy/joint_command", RELIABLE)
        probe.until_mode("HOLD")
        probe.until_said("safety_node", "HOLD: 2 publishers on /policy/joint_command")
        probe.node.destroy_publisher(rival)
        assert probe.call("/disarm") == (True, "")
        seen = len(probe.states)
        probe.until(lambda: len(probe.states) > seen + 50, "some states")
        np.testing.assert_allclose(pose_of(here()), pose_of(goal), atol=0.02)
        assert not len(probe.commands[-1].position)
        # One operator at a time: a second on the topic bars arming.
        probe.node.destroy_publisher(out)
        probe.until(
            lambda: not probe.node.count_publishers("/target_pose"), "the first operator is gone"
        )
        # The operator node does the same by itself: arms, which leads home first, sends, disarms.
        other = moved(panda_joint1=-0.3)
        poses = np.tile(pose_of(other), (40, 1))
        Schedule(0.05, CONTRACT.command.names, poses, "panda_link0").save(tmp_path / "s.json")
        argv = [
            "-m",
            "deploy.operator_node",
            "--ros-args",
            "-p",
            f"schedule:={tmp_path / 's.json'}",
        ]
        done = subprocess.run(
            [sys.executable, *argv],
            env={**os.environ, **described.environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        probe.until_mode("HOLD")
        np.testing.assert_allclose(pose_of(here()), pose_of(other), atol=0.02)
