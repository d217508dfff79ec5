"""The graph in a time that is not the wall's: a simulation at a quarter of the speed, from 1000 s.

Ticks, ages of stamped commands and the ramp go by that time; watchdogs go by the computer's own.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.extras import reason

pytest.importorskip("rclpy", reason=reason("rclpy"))

from geometry_msgs.msg import TwistStamped
from rosgraph_msgs.msg import Clock

from deploy.convert import set_stamp
from tests.deploy.faulty_robot import Voice
from tests.deploy.ros_probe import RELIABLE, describe, running, with_parameters
from tests.deploy.stand_bundle import stand_contract

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]

BEGIN_NS, SPEED, PERIOD_NS = 1_000_000_000_000, 0.25, 20_000_000


class SlowVoice(Voice):
    """A simulated robot that also publishes its time on /clock."""

    def __init__(self, probe):
        self._began_ns = time.monotonic_ns()
        self._clock = probe.node.create_publisher(Clock, "/clock", RELIABLE)
        super().__init__(probe)

    def _speak(self):
        now_ns = BEGIN_NS + round(SPEED * (time.monotonic_ns() - self._began_ns))
        self.shift_ns = now_ns - time.time_ns()
        super()._speak()
        message = Clock()
        set_stamp(message.clock, self.stamp_ns)
        self._clock.publish(message)


def test_it_ticks_once_in_a_control_period_of_that_time_and_holds_where_it_stands(tmp_path):
    seen = stand_contract().observation.slices()["command"]
    graph = describe(tmp_path, without=("robot_node",))
    for node in ("policy_node", "safety_node"):
        graph = with_parameters(graph, node, use_sim_time=True)
    graph = with_parameters(graph, "policy_node", twist_stamped=True)
    with running(graph, tmp_path) as (_, probe):
        voice = SlowVoice(probe)
        probe.arm()
        first = len(probe.steps)
        probe.until(lambda: len(probe.steps) > first + 20, "twenty ticks")
        stamps = np.array([s.stamp_ns for s in probe.steps[first:]])
        assert ((stamps > BEGIN_NS) & (stamps < BEGIN_NS + 300e9)).all()
        # States are 2.5 ms of that time apart; on a busy computer some come late.
        assert abs(np.median(np.diff(stamps)) - PERIOD_NS) <= 2_500_000
        assert len(stamps) <= (stamps[-1] - stamps[0]) / PERIOD_NS + 2

        message = TwistStamped()
        message.twist.linear.x = 0.6

        def told(age_s):
            set_stamp(message.header.stamp, voice.stamp_ns - round(age_s * 1e9))
            probe.drive(message)
            return probe.steps[-1].observation[seen][0] == np.float32(0.6)

        ticks = len(probe.steps)
        probe.until(lambda: told(2.0) or len(probe.steps) > ticks + 10, "some time")
        assert not any(s.observation[seen].any() for s in probe.steps[first:]), "sent long ago"
        # By the wall's clock it would have been sent fifty years ago.
        probe.until(lambda: told(0.0), "the command")

        assert probe.modes[-1] == "RUN"
        voice.frozen = True
        stood_ns = voice.stamp_ns
        probe.until_mode("DAMP")
        probe.until_said("safety_node", "no new state for")
        assert [s.stamp_ns for s in probe.steps if s.stamp_ns >= stood_ns][1:] == []
