"""A node in the test's own process that sees, sends and waits; and graphs to look at."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from rclpy.parameter_client import AsyncParameterClient
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray, String
from std_srvs.srv import Trigger

from deploy.convert import to_ns
from deploy.graph import LOOPBACK, Graph, RobotChoice, graph
from deploy.links import offered
from deploy.processes import Supervisor
from deploy.records import read_step
from tests.deploy.stand_bundle import write_bundle

#: No wait in these tests is longer, however busy the computer.
PATIENCE_S = 60.0
#: After this long an answer is lost, not late [s].
LOST_S = 10.0
LATCHED = QoSProfile(
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)
RELIABLE = QoSProfile(depth=50, reliability=ReliabilityPolicy.RELIABLE)


class Probe:
    """Everything said on the graph, and a voice of its own."""

    def __init__(self):
        self.context = rclpy.Context()
        rclpy.init(context=self.context)
        self.node = rclpy.create_node("probe", context=self.context)
        self.modes: list[str] = []
        self.commands: list[JointState] = []
        self.states: list[JointState] = []
        self.wishes: list[JointState] = []
        self.steps = []
        self.diagnostics: dict[str, str] = {}
        self.values: dict[str, dict[str, str]] = {}
        self.on_state = None
        self._new = threading.Condition()
        listen = self.node.create_subscription
        listen(String, "/safety/mode", self._take(lambda m: self.modes.append(m.data)), LATCHED)
        listen(JointState, "/joint_command", self._take(self.commands.append), RELIABLE)
        listen(JointState, "/policy/joint_command", self._take(self.wishes.append), RELIABLE)
        listen(JointState, "/joint_states", self._take(self._state), RELIABLE)
        listen(
            Float64MultiArray,
            "/policy/step",
            self._take(lambda m: self.steps.append(read_step(m))),
            RELIABLE,
        )
        listen(DiagnosticArray, "/diagnostics", self._take(self._diagnosed), RELIABLE)
        self._twist = None
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.node)
        self._running = True
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    def _take(self, keep):
        def callback(message):
            with self._new:
                keep(message)
                self._new.notify_all()

        return callback

    def _state(self, message):
        self.states.append(message)
        if self.on_state is not None:
            self.on_state(message)

    def _diagnosed(self, message):
        for status in message.status:
            self.diagnostics[status.name] = status.message
            self.values[status.name] = {v.key: v.value for v in status.values}

    def _spin(self):
        while self._running:
            with contextlib.suppress(rclpy.executors.ExternalShutdownException):
                self._executor.spin_once(timeout_sec=0.05)

    def until(self, condition, what):
        """Wait for a condition over what was seen."""
        with self._new:
            if not self._new.wait_for(condition, timeout=PATIENCE_S):
                raise AssertionError(
                    f"{what}: not within {PATIENCE_S} s; modes {self.modes}, "
                    f"diagnostics {self.diagnostics}"
                )

    def until_mode(self, mode):
        self.until(lambda: self.modes[-1:] == [mode], f"mode {mode}")

    def until_said(self, node, *words):
        """Wait for a node's diagnostics to contain one of these words."""

        def said():
            return any(each in self.diagnostics.get(node, "") for each in words)

        self.until(said, f"{node} says {' or '.join(words)}")

    def ask(self, type_, service, request):
        """Call a service and return its answer.

        One that is lost is asked for again: DDS drops an answer where the service has not yet
        discovered the client, and the client cannot see that it has not.
        """
        client = self.node.create_client(type_, service)
        assert client.wait_for_service(timeout_sec=PATIENCE_S), f"nobody offers {service}"
        deadline = time.monotonic() + PATIENCE_S
        while True:
            done = threading.Event()
            future = client.call_async(request)
            future.add_done_callback(lambda _, done=done: done.set())
            if done.wait(LOST_S):
                return future.result()
            assert time.monotonic() < deadline, f"{service} does not answer"

    def call(self, service):
        """Call a Trigger service: (success, message)."""
        answer = self.ask(Trigger, service, Trigger.Request())
        return answer.success, answer.message

    def change(self, node, label):
        """Ask for a transition of a node's lifecycle: whether it was made."""
        request = ChangeState.Request()
        request.transition.label = label
        return self.ask(ChangeState, f"/{node}/change_state", request).success

    def transition(self, node, label):
        """The same, and the state then."""
        done = self.change(node, label)
        return done, self.ask(
            GetState, f"/{node}/get_state", GetState.Request()
        ).current_state.label

    def until_answered(self, service, answer):
        """Call a Trigger service until it answers so: a node may not have heard the mode yet."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.call(service)) != answer:
            assert time.monotonic() < deadline, found
            time.sleep(0.1)

    def set_parameter(self, node, name, value):
        """Set a text parameter of a node; returns why it is refused, or nothing."""
        client = AsyncParameterClient(self.node, node)
        assert client.wait_for_services(timeout_sec=PATIENCE_S), f"{node} has no parameters"
        done = threading.Event()
        future = client.set_parameters([Parameter(name, value=value)])
        future.add_done_callback(lambda _: done.set())
        assert done.wait(PATIENCE_S), f"{node} does not answer"
        (result,) = future.result().results
        return "" if result.successful else result.reason or "refused"

    def settle(self, node, name, value):
        """Set a parameter as soon as the node lets us: it may not have heard the mode yet."""
        deadline = time.monotonic() + PATIENCE_S
        while why := self.set_parameter(node, name, value):
            assert time.monotonic() < deadline, why
            time.sleep(0.1)

    def arm(self):
        """Arm as soon as the safety node lets us, and wait for RUN."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            success, message = self.call("/arm")
            # A refusal may be of the second of two requests, of which the first was not answered.
            if success or self.modes[-1:] in (["RAMP"], ["RUN"]):
                return self.until_mode("RUN")
            assert time.monotonic() < deadline, f"arming refused: {message}"
            time.sleep(0.1)

    def refused(self, words):
        """Ask to be armed until the refusal contains words; it must never be granted."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            success, message = self.call("/arm")
            assert not success
            if words in message:
                return message
            assert time.monotonic() < deadline, f"refused for another reason: {message}"
            time.sleep(0.1)

    def drive(self, message):
        """Publish a velocity command, stamped or not; one kind per test."""
        if self._twist is None:
            self._twist = self.node.create_publisher(type(message), "/cmd_vel", RELIABLE)
        self._twist.publish(message)

    def policy(self, names, targets):
        """Act as the policy: answer every fourth state with ``targets()`` for joints ``names``."""
        out = self.node.create_publisher(JointState, "/policy/joint_command", offered(0.02))
        count = [0]

        def answer(state):
            count[0] += 1
            if count[0] % 4 == 0:
                values = targets()
                if values is not None:
                    message = JointState(name=list(names()), position=np.asarray(values, float))
                    message.header.stamp = state.header.stamp
                    out.publish(message)

        self.on_state = answer
        return out

    def close(self):
        self._running = False
        self._thread.join(timeout=5.0)
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


def describe(
    folder: Path, *, contract=None, without=(), start=None, record=None, ramp_s=0.3
) -> Graph:
    """The graph of a standing policy and the loopback robot in this process's domain."""
    settings = folder / "safety.yaml"
    settings.write_text(f"ramp_s: {ramp_s}\n")
    described = graph(
        write_bundle(folder / "stand.onnx", contract),
        RobotChoice(LOOPBACK, simulated=True, options={"start": start or {}}),
        robot_name="a1",
        record=record,
        metadata={"bundle": "stand"},
        safety_settings=settings,
        # A second: these tests look at what follows a silence, on computers that may be busy with
        # ten other tests and then fall silent for a fifth of a second by themselves.
        watchdog_periods=50.0,
        domain_id=int(os.environ["ROS_DOMAIN_ID"]),
    )
    return replace(described, nodes=tuple(n for n in described.nodes if n.name not in without))


def with_parameters(described: Graph, name: str, **parameters) -> Graph:
    """The same graph with more parameters for one node."""
    nodes = [
        replace(n, parameters={**n.parameters, **parameters}) if n.name == name else n
        for n in described.nodes
    ]
    return replace(described, nodes=tuple(nodes))


@contextlib.contextmanager
def running(described: Graph, folder: Path):
    """Start a graph and a probe; the graph's processes are gone afterwards."""
    logs = folder / "logs"
    logs.mkdir()
    with Supervisor(described, log_dir=logs) as run:
        probe = Probe()
        try:
            yield run, probe
        finally:
            probe.close()


def positions(message, names):
    """A command's targets by name."""
    found = dict(zip(message.name, message.position, strict=True))
    return np.array([found[n] for n in names])


def stamps(messages):
    return np.array([to_ns(m.header.stamp) for m in messages])
