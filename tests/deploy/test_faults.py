"""Faults over real DDS that a robot, its driver or its clock brings: each ends safely, with why.

Faults of commands and processes are in test_nodes.py: NaN, infinity and 1e9, joints permuted and
missing, killed and stalled nodes, two writers, other gains, other bytes on disk.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from tests.extras import reason

pytest.importorskip("rclpy", reason=reason("rclpy"))

from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import JointState

from deploy.graph import RobotChoice, graph
from tests.deploy.faulty_robot import A1, Voice
from tests.deploy.ros_probe import LATCHED, RELIABLE, describe, positions, running
from tests.deploy.stand_bundle import stand_contract, write_bundle

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]

BEST_EFFORT = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
NAMES, DEFAULT = A1.joint_names, A1.q_default


def frozen(voice):
    voice.frozen = True


def set_back(voice):
    voice.shift_ns -= 30_000_000_000  # further than to the moment of arming


def duplicated(voice):
    voice.names = [*NAMES[:-1], NAMES[0]]


def degrees(voice):
    voice.rate, voice.gyro_factor = 0.5, 57.3


def jumped(voice):
    voice.q = DEFAULT.copy()
    voice.q[1] += 2.5  # within the thigh's range, and far even for the time of a pause


#: Fault, who says why, and the words.
FAULTS = [
    (frozen, "safety_node", "no new state for"),
    (set_back, "safety_node", "clock"),
    (duplicated, "policy_node", f"'{NAMES[0]}' is named twice"),
    (degrees, "safety_node", "gyro"),
    (jumped, "safety_node", "position_jump"),
]


TRIES = 4


def said(probe, who, words):
    """Whether it says so within two of its reports."""
    deadline = time.monotonic() + 3.0
    while time.monotonic() < deadline:
        if words in probe.diagnostics.get(who, ""):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("fault", "who", "words"), FAULTS, ids=lambda v: getattr(v, "__name__", "")
)
def test_a_fault_of_a_robots_states_ends_in_damp_and_says_why(tmp_path, fault, who, words):
    with running(describe(tmp_path, without=("robot_node",)), tmp_path) as (_, probe):
        voice = Voice(probe, states=BEST_EFFORT)  # which all who listen must take
        # On a busy computer a pause of the test itself may be what stops the robot first.
        for _ in range(TRIES):
            probe.arm()
            fault(voice)
            probe.until_mode("DAMP")
            probe.until_said("safety_node", "DAMP: ")
            if said(probe, who, words):
                break
            voice.heal()
        else:
            pytest.fail(f"{who} never said {words!r}: {probe.diagnostics}")
        probe.until(lambda: not len(probe.commands[-1].position), "an empty command")


def test_a_robot_that_publishes_its_joints_in_another_order_is_the_same_to_the_policy(tmp_path):
    pose = DEFAULT + np.linspace(-0.1, 0.1, 12)  # each joint where no other is
    order = np.random.default_rng(2).permutation(12)
    part = stand_contract().observation.slices()["joint_pos"]
    with running(describe(tmp_path, without=("robot_node",)), tmp_path) as (_, probe):
        voice = Voice(probe)
        voice.q = pose.copy()
        probe.arm()
        for _ in range(2):
            seen = len(probe.steps) + 2  # the last of the order before may be on its way
            probe.until(lambda seen=seen: len(probe.steps) > seen, "a step of the policy")
            np.testing.assert_allclose(probe.steps[-1].observation[part], pose - DEFAULT, atol=1e-6)
            voice.names, voice.q = [NAMES[i] for i in order], pose[order]
            stamp_ns = voice.stamp_ns
            probe.until(
                lambda stamp_ns=stamp_ns: probe.steps[-1].stamp_ns > stamp_ns, "a step after it"
            )
        assert probe.modes[-1] == "RUN"
        written = set(probe.states[-1].name)
        assert list(probe.states[-1].name) == voice.names
        assert written == set(NAMES)


def test_an_emergency_stop_holds_while_joints_are_moved_and_the_policy_goes_on(tmp_path):
    with running(describe(tmp_path, without=("robot_node",)), tmp_path) as (_, probe):
        voice = Voice(probe)
        probe.arm()
        assert probe.call("/estop") == (True, "")
        probe.until_mode("ESTOP")
        held_s = time.monotonic()
        first, wishes = len(probe.commands), len(probe.wishes)

        def moved():
            elapsed = time.monotonic() - held_s
            voice.q = DEFAULT + 0.15 * np.sin(elapsed + np.arange(12))
            return elapsed >= 5.0

        probe.until(moved, "five seconds")
        assert probe.modes[-1] == "ESTOP"
        assert len(probe.wishes) > wishes, "the policy goes on"
        assert len(probe.commands) > first + 1
        assert not any(len(c.position) for c in probe.commands[first + 1 :])
        assert probe.call("/reset") == (True, "")
        probe.until_mode("DAMP")
        measured, before = voice.q.copy(), len(probe.commands)
        probe.arm()

        def targets():
            return [positions(c, NAMES) for c in probe.commands[before:] if len(c.position)]

        probe.until(targets, "a target: the mode may be heard before it")
        np.testing.assert_allclose(targets()[0], measured, atol=0.05)


def test_late_inference_ends_in_damp(tmp_path):
    without = ("robot_node", "policy_node")
    with running(describe(tmp_path, without=without), tmp_path) as (_, probe):
        Voice(probe)
        probe.policy(lambda: NAMES, lambda: DEFAULT)
        probe.arm()
        answer = probe.on_state
        # A second and a half late, at the right rate: more than the 50 periods of these tests.
        probe.on_state = lambda _state: answer(probe.states[max(0, len(probe.states) - 150)])
        probe.until_mode("DAMP")
        probe.until_said("safety_node", "command_stale")


def test_what_is_not_latched_is_not_heard_and_arming_is_refused(tmp_path):
    # Volatile and best effort, where all that listen want it kept and reliable.
    with running(describe(tmp_path, without=("robot_node",)), tmp_path) as (_, probe):
        Voice(probe, qos=BEST_EFFORT)
        words = probe.refused("/robot/contract: incompatible QoS of publisher 'probe'")
        assert "robot_node has not published /robot/contract yet" in words
        assert not any(len(c.position) for c in probe.commands)


def test_what_the_middleware_tells_of_a_command_topic_bars_arming_or_stops(tmp_path):
    topic = "/policy/joint_command"
    with running(describe(tmp_path, without=("policy_node",)), tmp_path) as (_, probe):
        # Without a deadline it is not heard; a listener that wants what is latched does not hear.
        mute = probe.node.create_publisher(JointState, topic, RELIABLE)
        words = probe.refused(f"{topic}: incompatible QoS of publisher 'probe'")
        assert "deadline" in words
        probe.until_said("safety_node", f"{topic}: incompatible QoS of publisher 'probe'")
        deaf = probe.node.create_subscription(JointState, "/joint_command", print, LATCHED)
        probe.refused("/joint_command: incompatible QoS of listener 'probe'")
        probe.node.destroy_publisher(mute)
        probe.node.destroy_subscription(deaf)
        out = probe.policy(lambda: NAMES, lambda: DEFAULT)
        probe.arm()
        # Late: the deadline's event wakes the watchdog, which stops the robot.
        answer, probe.on_state = probe.on_state, None
        probe.until_mode("DAMP")
        probe.until_said("safety_node", "DAMP: no policy command for")
        missed = f"deadline missed {topic}"
        probe.until(lambda: missed in probe.values["safety_node"], missed)
        probe.on_state = answer
        probe.arm()
        # Gone: nobody waits until it is late.
        probe.on_state = None
        probe.node.destroy_publisher(out)
        probe.until_mode("DAMP")
        probe.until_said("safety_node", f"nobody publishes {topic} any more")
        probe.refused(f"nobody publishes {topic} any more")


def test_a_driver_call_that_blocks_is_noticed_by_all_others(tmp_path):
    when = tmp_path / "block"
    described = describe(tmp_path)
    plugin = RobotChoice(
        "tests.deploy.faulty_robot:BlockingRobot", simulated=True, options={"when": str(when)}
    )
    other = graph(write_bundle(tmp_path / "stand.onnx"), plugin, robot_name="a1")
    driver = next(n for n in other.nodes if n.name == "robot_node")
    nodes = tuple(driver if n.name == "robot_node" else n for n in described.nodes)
    with running(replace(described, nodes=nodes), tmp_path) as (_, probe):
        probe.arm()
        when.touch()
        probe.until_mode("DAMP")
        probe.until_said("safety_node", "no new state for")
        probe.until_said("robot_node", "driver call has been blocked for")
