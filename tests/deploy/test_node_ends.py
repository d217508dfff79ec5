"""What is left of a node whose transition fails, or that nobody configured; without a graph."""

from __future__ import annotations

import json
import signal
import threading
import time

import pytest

from tests.extras import reason

pytest.importorskip("rclpy", reason=reason("rclpy"))

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.parameter import Parameter
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from deploy import robot_node
from deploy.node_base import LATCH, run_node
from deploy.policy_node import PolicyNode
from deploy.recorder_node import RecorderNode
from deploy.robot_node import RobotNode
from deploy.safety_node import SafetyNode
from real.errors import FerryError
from real.log import read_log
from real.loopback import LoopbackRobot
from real.spec import load_robot
from tests.deploy.ros_probe import PATIENCE_S
from tests.deploy.stand_bundle import other_gain, stand_contract, write_bundle

pytestmark = [pytest.mark.ros, pytest.mark.patient, pytest.mark.timeout(300)]

SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE
ERROR = TransitionCallbackReturn.ERROR
A1 = load_robot("a1")


@pytest.fixture
def make():
    """Makes a node with parameters, in this process."""
    nodes = []

    def build(type_, **parameters):
        given = [x for n, v in parameters.items() for x in ("-p", f"{n}:={json.dumps(v)}")]
        rclpy.init(args=["--ros-args", *given])
        nodes.append(type_())
        return nodes[0]

    yield build
    for node in nodes:
        node.destroy_node()
    rclpy.shutdown()


def until(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


# ---------------------------------------------------------------- safety, policy, recorder


def test_a_safety_node_that_nobody_configured_shuts_down_and_closes(make):
    node = make(SafetyNode)
    assert node.trigger_shutdown() == SUCCESS
    assert node.inactive == "safety_node is finalized: shut down"
    node.close()
    until(lambda: node.exit_code is not None, "it ends")
    assert node.exit_code == 0


def test_a_publisher_that_cannot_be_made_anew_leaves_nobody_speaking_through_the_old_one(
    make, tmp_path, monkeypatch
):
    node = make(SafetyNode, bundle=str(write_bundle(tmp_path / "stand.onnx")))
    assert node.trigger_configure() == SUCCESS
    assert node.trigger_cleanup() == SUCCESS
    publish_on = node.publish_on

    def refuse(topic, **options):
        if topic == "/joint_command":
            raise FerryError("no more publishers")
        return publish_on(topic, **options)

    monkeypatch.setattr(node, "publish_on", refuse)
    assert node.trigger_configure() == FAILURE
    assert node.inactive == "safety_node is unconfigured: configure failed: no more publishers"
    node.close()  # which commands the safe stop once more, if there is anything to do it with
    monkeypatch.undo()
    assert node.trigger_configure() == SUCCESS
    node.close()


def test_a_policy_node_takes_no_other_contract_by_going_round(make, tmp_path):
    first = write_bundle(tmp_path / "stand.onnx")
    better = write_bundle(tmp_path / "better.onnx", gain=0.1)
    foreign = write_bundle(tmp_path / "gains.onnx", other_gain(stand_contract(), kp=55.0))
    node = make(PolicyNode, bundle=str(first))
    for file, result in ((first, SUCCESS), (better, SUCCESS), (foreign, FAILURE), (first, SUCCESS)):
        node.set_parameters([Parameter("bundle", value=str(file))])
        assert node.trigger_configure() == result, file
        if result == FAILURE:
            assert "gains.onnx: its contract is not the one that this graph" in node.inactive
            assert node.inactive.endswith("joint 'FL_hip_joint' kp: running 40.0, new 55.0")
        else:
            assert node.trigger_cleanup() == SUCCESS


def test_the_next_recording_has_another_path_and_no_latched_message_is_overwritten(make, tmp_path):
    node = make(RecorderNode, path=str(tmp_path / "first.mcap"))
    assert node.trigger_configure() == SUCCESS
    assert node.trigger_cleanup() == SUCCESS
    assert node.trigger_configure() == FAILURE
    assert "first.mcap exists already" in node.inactive
    (set_,) = node.set_parameters([Parameter("path", value=str(tmp_path / "second.mcap"))])
    assert set_.successful
    assert node.trigger_configure() == SUCCESS
    # All of them before the recorder looks once.
    other = rclpy.create_node("other")
    out = other.create_publisher(String, "/safety/mode", LATCH)
    until(lambda: out.get_subscription_count(), "they have met")
    modes = [f"M{i}" for i in range(5)]
    for mode in modes:
        out.publish(String(data=mode))
        assert out.wait_for_all_acked()
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    deadline = time.monotonic() + PATIENCE_S
    while node._recording.status().received.get("/safety/mode", 0) < len(modes):
        assert time.monotonic() < deadline, node._recording.status()
        executor.spin_once(timeout_sec=0.05)
    executor.shutdown()
    assert node.trigger_cleanup() == SUCCESS
    other.destroy_node()
    assert list(read_log(tmp_path / "second.mcap")["/safety/mode"].text) == modes


# ---------------------------------------------------------------- the robot


class Stuck(LoopbackRobot):
    """Its calls return only while they are let."""

    free = threading.Event()

    def exchange(self, command):
        Stuck.free.wait()
        return super().exchange(command)


class Unclosable(LoopbackRobot):
    """It cannot be closed."""

    def close(self):
        raise OSError("the bus is gone")


class Quitting(LoopbackRobot):
    """It ends the process, as a vendor's code may, at one of its calls."""

    when = "later"

    def start(self):
        if Quitting.when == "start":
            raise SystemExit(0)
        return super().start()

    def exchange(self, command):
        if Quitting.when == "exchange":
            raise SystemExit(0)
        return super().exchange(command)


def plugin(kind):
    return f"{__name__}:{kind.__name__}"


def test_a_driver_that_never_returned_keeps_its_hardware_until_it_does(make, monkeypatch):
    monkeypatch.setattr(robot_node, "JOIN_S", 0.05)
    node = make(RobotNode, plugin=plugin(Stuck))
    Stuck.free.clear()
    try:
        assert node.trigger_configure() == SUCCESS
        thread = node._thread
        assert node.trigger_cleanup() == ERROR
        assert "clean up failed: the robot may not have been stopped safely" in node.inactive
        assert node.phase == "unconfigured"
        assert node.trigger_configure() == FAILURE
        assert "has not returned; restart robot_node" in node.inactive
    finally:
        Stuck.free.set()
    thread.join(PATIENCE_S)
    assert node.trigger_configure() == SUCCESS
    monkeypatch.setattr(robot_node, "JOIN_S", PATIENCE_S)
    assert node.trigger_cleanup() == SUCCESS


def test_a_driver_that_fails_at_the_end_is_not_reported_as_cleaned_up(make, monkeypatch):
    node = make(RobotNode, plugin=plugin(Unclosable))
    told = []
    monkeypatch.setattr(node, "report", lambda event, **fields: told.append((event, fields)))
    assert node.trigger_configure() == SUCCESS
    assert node.trigger_cleanup() == ERROR
    assert node.inactive.endswith("stopped safely: OSError: the bus is gone")
    assert node.phase == "unconfigured"
    assert node.exit_code is None
    # What came before is not this loop's.
    assert node.trigger_configure() == SUCCESS
    node.close()
    event, summary = told[-1]
    assert (event, summary["failure"]) == ("summary", "OSError: the bus is gone")
    assert summary["steps"] >= 0
    assert node.exit_code == 1


def test_a_driver_that_quits_ends_its_node_which_says_so(make, monkeypatch):
    node = make(RobotNode, plugin=plugin(Quitting))
    told = []
    monkeypatch.setattr(node, "report", lambda event, **fields: told.append((event, fields)))
    monkeypatch.setattr(Quitting, "when", "start")
    assert node.trigger_configure() == FAILURE
    assert "starting it asked the process to exit (0)" in node.inactive
    monkeypatch.setattr(Quitting, "when", "later")
    assert node.trigger_configure() == SUCCESS
    monkeypatch.setattr(Quitting, "when", "exchange")
    until(lambda: node.exit_code == 1, "it ends")
    node.close()
    assert told[-1][1]["failure"] == "SystemExit: 0"


class Interrupted(RobotNode):
    """Told to stop as soon as it is active."""

    def activate(self):
        super().activate()
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(("kind", "code"), [(Unclosable, 1), (LoopbackRobot, 0)])
def test_the_exit_code_tells_of_a_driver_that_fails_after_everything_else(kind, code):
    module = "real.loopback:LoopbackRobot" if kind is LoopbackRobot else plugin(kind)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert run_node(Interrupted, ["--ros-args", "-p", f"plugin:={module}"]) == code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_targets_from_before_are_forgotten_and_a_lost_commander_is_one_at_once(make):
    # A second, within which an old target would still be fresh.
    node = make(RobotNode, command_timeout_periods=50.0)
    assert node.trigger_configure() == SUCCESS
    loop = node._loop
    names = [joint.name for joint in A1.actuated]
    targets = JointState(name=names, position=[0.0] * len(names))

    def reason():
        """What the loop says of a step that began later."""
        steps = loop.steps
        until(lambda: loop.steps >= steps + 2, "the loop goes on")
        return loop.reason

    assert node.trigger_activate() == SUCCESS
    assert reason() == "no command since robot_node is active"
    node._on_command(targets)
    assert reason() == ""
    node._lost("nobody publishes /joint_command any more")
    assert reason() == "nobody publishes /joint_command any more"
    node._on_command(targets)
    assert node.trigger_deactivate() == SUCCESS
    assert reason() == "robot_node is inactive"
    node._on_command(targets)
    assert node.trigger_activate() == SUCCESS
    assert reason() == "no command since robot_node is active"
    assert node.trigger_deactivate() == SUCCESS
    assert node.trigger_cleanup() == SUCCESS
    # The executor may have had these in hand.
    node._on_command(targets)
    node._lost("nobody")
    node._count_writers()
