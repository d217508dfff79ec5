"""The operator node where the answer to its request to arm is lost."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.extras import reason

pytest.importorskip("rclpy", reason=reason("rclpy"))

import rclpy
from geometry_msgs.msg import Twist, TwistStamped
from rclpy.task import Future
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from std_srvs.srv import Trigger

from deploy import operator_node
from deploy.node_base import LATCH
from deploy.operator_node import OperatorNode
from deploy.schedule import Schedule
from tests.training.toy_run import wait_until

pytestmark = [pytest.mark.ros, pytest.mark.patient, pytest.mark.timeout(300)]


_CONNECT = operator_node._Phase.CONNECT


class Deaf:
    """A client of /arm whose answers never arrive, until somebody gives one."""

    def __init__(self):
        self.asked = []

    def call_async(self, _request):
        self.asked.append(Future())
        return self.asked[-1]


@pytest.fixture
def operator(tmp_path):
    """An operator that has found everybody, and nobody turns its executor."""
    file = tmp_path / "schedule.json"
    Schedule(0.02, ("vx", "vy", "wz"), np.zeros((5, 3))).save(file)
    rclpy.init(args=["--ros-args", "-p", f"schedule:={json.dumps(str(file))}"])
    node = OperatorNode()
    node._arm = Deaf()
    node._phase = operator_node._Phase.ARM
    yield node
    node.destroy_node()
    rclpy.shutdown()


def test_it_waits_for_the_policy_although_a_recorder_listens_already(operator):
    operator._arm, operator._phase = operator.create_client(Trigger, "/arm"), _CONNECT
    others = [rclpy.create_node(name) for name in ("recorder_node", "policy_node")]
    recorder, policy = others
    try:
        recorder.create_service(Trigger, "/arm", lambda _request, response: response)
        recorder.create_subscription(Twist, "/cmd_vel", lambda _message: None, 1)
        wait_until(lambda: operator._out.get_subscription_count() == 1, "the recorder hears")
        wait_until(operator._arm.service_is_ready, "/arm is offered")
        operator._connect()
        assert operator._phase is _CONNECT
        policy.create_publisher(JointState, "/policy/joint_command", 1)
        wait_until(lambda: operator.count_publishers("/policy/joint_command"), "a policy is there")
        operator._connect()
        assert operator._phase is _CONNECT
        policy.create_subscription(Twist, "/cmd_vel", lambda _message: None, 1)

        def arms():
            operator._connect()
            return operator._phase is operator_node._Phase.ARM

        wait_until(arms, "it arms")
    finally:
        for node in others:
            node.destroy_node()


@pytest.fixture
def arms(operator):
    """Whether the operator goes on to arm, beside /arm and a policy; and who is a stranger."""
    operator._arm, operator._phase = operator.create_client(Trigger, "/arm"), _CONNECT
    apart = rclpy.Context()  # a process has one type of a topic
    rclpy.init(context=apart)
    nodes = [rclpy.create_node(name) for name in ("safety_node", "policy_node")]
    nodes.append(rclpy.create_node("stranger", context=apart))
    safety, policy, stranger = nodes
    safety.create_service(Trigger, "/arm", lambda _request, response: response)
    policy.create_publisher(JointState, "/policy/joint_command", 1)
    policy.create_subscription(Twist, "/cmd_vel", lambda _message: None, 1)

    def does():
        operator._connect()
        return operator._phase is operator_node._Phase.ARM

    yield does, stranger
    for node in nodes:
        node.destroy_node()
    rclpy.shutdown(context=apart)


def test_what_a_second_policy_means_is_left_to_the_safety_node_to_say(operator, arms):
    does, stranger = arms
    stranger.create_publisher(JointState, "/policy/joint_command", 1)
    wait_until(lambda: operator.count_publishers("/policy/joint_command") == 2, "both are there")
    wait_until(does, "it arms")


@pytest.mark.parametrize("kind", ["another type", "a latched topic"])
def test_who_cannot_hear_it_does_not_keep_it_from_arming(operator, arms, kind):
    does, stranger = arms
    type_, qos = (TwistStamped, 1) if kind == "another type" else (Twist, LATCH)
    stranger.create_subscription(type_, "/cmd_vel", lambda _message: None, qos)
    wait_until(lambda: operator.count_subscribers("/cmd_vel") == 2, "both are there")
    wait_until(does, "it arms")


def test_a_lost_answer_is_asked_for_again_and_the_mode_speaks_for_it(operator, monkeypatch):
    monkeypatch.setattr(operator_node, "LOST_S", -1.0)
    operator._on_mode(String(data="DAMP"))
    for _ in range(4):
        operator._try_to_arm()
    assert len(operator._arm.asked) == 2
    # The first request was carried out; it had already failed when its answer might have come.
    operator._on_mode(String(data="RAMP"))
    operator._on_mode(String(data="DAMP"))
    operator._try_to_arm()
    assert len(operator._arm.asked) == 2
    assert operator._phase is operator_node._Phase.RAMP
    operator._wait_for_run()
    assert operator._failure == "mode is DAMP before the ramp was over"


def test_a_robot_that_somebody_else_had_armed_is_not_taken_over(operator):
    operator._on_mode(String(data="RUN"))
    operator._try_to_arm()
    operator._try_to_arm()
    assert operator._phase is operator_node._Phase.ARM
    operator._arm.asked[-1].set_result(Trigger.Response(success=False, message="it runs"))
    operator._deadline = 0.0
    operator._try_to_arm()
    assert operator._failure == "arming refused: it runs"
