"""Managed nodes over real DDS: every way down ends in the safe stop, every refusal says why."""

from __future__ import annotations

import pytest

from tests.extras import reason

pytest.importorskip("rclpy", reason=reason("rclpy"))

import rclpy
from rclpy.lifecycle import TransitionCallbackReturn

from deploy.lifecycle import ManagedNode
from real.errors import FerryError
from real.log import read_log
from tests.deploy.ros_probe import PATIENCE_S, describe, running, with_parameters

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]


@pytest.fixture
def in_this_process():
    """rclpy here, for nodes whose transitions are called and not asked for."""
    rclpy.init()
    yield
    rclpy.shutdown()


class Told(ManagedNode):
    """Writes down what is asked of it, and fails where it is told to."""

    def __init__(self, **fails):
        super().__init__("told")
        self.fails, self.done = fails, []

    def _do(self, name):
        self.done.append(name)
        if name in self.fails:
            raise self.fails[name]

    def configure(self):
        self.listen("/cmd_vel", print)
        self.every(1.0, print)
        self.publish_on("/joint_states")
        self._do("configure")

    def activate(self):
        self._do("activate")

    def deactivate(self):
        self._do("deactivate")

    def cleanup(self):
        self._do("cleanup")


def sizes(node):
    return [len(list(e)) for e in (node.subscriptions, node.timers, node.publishers)]


def test_a_configure_that_fails_says_why_and_leaves_nothing_open(in_this_process):
    node = Told(configure=FerryError("no such bundle"))
    before = sizes(node)
    assert node.trigger_configure() == TransitionCallbackReturn.FAILURE
    assert node.inactive == "told is unconfigured: configure failed: no such bundle"
    assert node.done == ["configure", "cleanup"]
    assert sizes(node) == before
    del node.fails["configure"]
    assert node.trigger_configure() == TransitionCallbackReturn.SUCCESS
    assert node.inactive == "told is inactive: not activated"
    assert sizes(node) == [n + 1 for n in before]
    node.destroy_node()


def test_an_activate_that_is_refused_leaves_it_inactive_and_one_that_breaks_stops_all(
    in_this_process,
):
    node = Told(activate=FerryError("not calibrated"))
    node.trigger_configure()
    assert node.trigger_activate() == TransitionCallbackReturn.FAILURE
    assert node.inactive == "told is inactive: activate failed: not calibrated"
    node.fails["activate"] = ZeroDivisionError("by hand")
    node.done.clear()
    assert node.trigger_activate() == TransitionCallbackReturn.ERROR
    assert node.done == ["activate", "deactivate", "cleanup"], "the safe stop, then the rest"
    assert node.inactive.startswith("told is unconfigured: activate failed: ZeroDivisionError")
    assert node.exit_code is None
    node.destroy_node()


def test_a_node_that_cannot_even_stop_ends(in_this_process):
    node = Told(activate=ValueError("a"), deactivate=ValueError("b"))
    node.trigger_configure()
    node.trigger_activate()
    assert (node.phase, node.active, node.exit_code) == ("finalized", False, 1)
    node.destroy_node()


def test_a_node_that_nobody_configured_can_be_shut_down_and_says_so(in_this_process):
    node = Told()
    before = sizes(node)
    assert node.trigger_shutdown() == TransitionCallbackReturn.SUCCESS
    assert node.done == ["cleanup"], "there is nothing to stop"
    assert node.inactive == "told is finalized: shut down"
    assert sizes(node) == before, "its diagnostics are published until the process ends"
    node.destroy_node()


NODES = ("policy_node", "safety_node", "robot_node", "recorder_node")


def managed(folder, **options):
    """The graph of a standing policy whose nodes wait for a manager."""
    described = describe(folder, **options)
    for node in described.nodes:
        described = with_parameters(described, node.name, autostart=False)
    return described


def only_safe_stops_follow(probe, count=5):
    """The safety node goes on, and none of what it says moves anything."""
    seen = len(probe.commands)
    probe.until(lambda: len(probe.commands) > seen + count, "the safe stop is repeated")
    assert not any(len(c.position) for c in probe.commands[seen + 1 :])


def test_a_manager_takes_the_graph_up_and_every_way_down_is_a_safe_stop(tmp_path):
    record = tmp_path / "out.mcap"
    described = managed(tmp_path, record=record)
    right = next(n for n in described.nodes if n.name == "policy_node").parameters["bundle"]
    described = with_parameters(described, "policy_node", bundle=str(tmp_path / "none.onnx"))
    with running(described, tmp_path) as (run, probe):
        # Up: what fails says why and can be mended.
        success, why = probe.call("/arm")
        assert (success, why) == (
            False,
            "safety_node is unconfigured: nobody has configured it yet",
        )
        assert probe.transition("policy_node", "configure") == (False, "unconfigured")
        probe.until_said("policy_node", "unconfigured: configure failed: ")
        probe.until_said("policy_node", "none.onnx: cannot be read")
        assert probe.set_parameter("policy_node", "bundle", right) == ""
        for node in NODES:
            assert probe.transition(node, "configure") == (True, "inactive")
        assert probe.call("/arm")[1] == "safety_node is inactive: not activated"
        for node in ("recorder_node", "safety_node", "robot_node"):
            assert probe.transition(node, "activate") == (True, "active")
        assert probe.transition("safety_node", "activate") == (False, "active"), "twice"
        probe.refused("no fresh command from policy_node")
        assert probe.transition("policy_node", "activate") == (True, "active")
        probe.arm()
        probe.until_said("robot_node", "following commands")

        # Down again, node by node: the policy asks for the stop, and its silence bars arming.
        assert probe.transition("policy_node", "deactivate") == (True, "inactive")
        probe.until_mode("DAMP")
        probe.until_said("safety_node", "the policy asked for a safe stop")
        probe.refused("no fresh command from policy_node")
        assert probe.transition("policy_node", "activate") == (True, "active")
        probe.arm()
        # The robot stops whatever is commanded, and nobody is told of states.
        assert probe.transition("robot_node", "deactivate") == (True, "inactive")
        probe.until_mode("DAMP")
        probe.refused("no fresh state from robot_node")
        assert probe.transition("robot_node", "cleanup") == (True, "unconfigured")
        assert probe.transition("robot_node", "configure") == (True, "inactive")
        assert probe.transition("robot_node", "activate") == (True, "active")
        probe.arm()
        # The safety node is never silent: inactive it answers states, unconfigured a timer.
        assert probe.transition("safety_node", "deactivate") == (True, "inactive")
        probe.until_mode("DAMP")
        probe.until_said("safety_node", "inactive: deactivated")
        only_safe_stops_follow(probe)
        probe.refused("safety_node is inactive: deactivated")
        assert probe.call("/estop") == (True, "")
        assert probe.transition("safety_node", "cleanup") == (True, "unconfigured")
        only_safe_stops_follow(probe)
        # An emergency stop is not left by going round.
        assert probe.transition("safety_node", "configure") == (True, "inactive")
        assert probe.transition("safety_node", "activate") == (True, "active")
        probe.until_mode("ESTOP")
        probe.refused("mode is ESTOP: reset it first")
        assert probe.call("/reset") == (True, "")
        probe.arm()

        # The end: a recording that is whole, and processes that ended in order.
        assert probe.transition("recorder_node", "deactivate") == (True, "inactive")
        assert probe.transition("recorder_node", "cleanup") == (True, "unconfigured")
        log = read_log(record)
        assert log.damage is None
        assert log["/robot/contract"].text, "what is latched is kept, whenever it came"
        assert "RUN" in log["/safety/mode"].text
        assert probe.transition("recorder_node", "configure") == (False, "unconfigured")
        probe.until_said("recorder_node", "exists already")
        assert probe.change("safety_node", "shutdown")
        assert run.processes["safety_node"].wait(timeout=PATIENCE_S) == 0
        probe.until_mode("DAMP")
        probe.until_said("robot_node", "safe stop")
        assert not len(probe.commands[-1].position)
