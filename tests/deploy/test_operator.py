"""The operator node where the answer to its request to arm is lost."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.extras import reason

pytest.importorskip("rclpy", reason=reason("rclpy"))

import rclpy
from rclpy.task import Future
from std_msgs.msg import String
from std_srvs.srv import Trigger

from deploy import operator_node
from deploy.operator_node import OperatorNode
from deploy.schedule import Schedule

pytestmark = [pytest.mark.ros, pytest.mark.patient, pytest.mark.timeout(300)]


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
