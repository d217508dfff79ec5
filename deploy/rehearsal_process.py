"""The policy and the safety node in lock-step with a simulated robot, and the controller beside.

All three nodes are real and talk over DDS, but this process turns them one after the other: a
state is published, each node spins until it has it, and only then does the robot go on. So time is
the robot's, nothing depends on how busy the computer is, and every command can be compared with
the one that :class:`~deploy.controller.Controller` gives for the same state.
"""

from __future__ import annotations

import _thread
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from numpy.typing import NDArray
from rclpy.executors import SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions
from std_msgs.msg import String
from std_srvs.srv import Trigger

from deploy.agreement import agree
from deploy.bundle import read_bundle
from deploy.controller import Controller
from deploy.convert import CommandReader, StateWriter, make_pose, make_twist, to_ns
from deploy.graph import parameter_arguments
from deploy.introduction import contract_of, load_here
from deploy.modes import Mode
from deploy.node_base import FerryNode, wait_for_end_of_input
from deploy.policy import OnnxPolicy
from deploy.policy_node import PolicyNode
from deploy.rehearsal import Rehearsal
from deploy.rehearsal_order import ContractOrder
from deploy.safety import SafetySettings
from deploy.safety_node import SafetyNode
from deploy.schedule import Schedule
from real.config import load_config
from real.errors import FerryError
from real.signals import RobotState

Array = NDArray[np.float64]

#: No wait for a message is longer [s].
PATIENCE_S = 60.0
#: What a node has not heard by then is published again [s].
RETRY_S = 0.5


class RehearsalNode(FerryNode):
    """The robot's and the operator's side of the wire; see the module.

    Args:
        plan: what :mod:`deploy.rehearse` wrote: bundle, robot, plugin, options, schedule,
            latency_s, jitter_s, loss, seed.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__("rehearsal_process")
        self._plan = plan
        spec = self.spec = load_here(plan["robot"])
        contract = contract_of(spec)
        self._writer = StateWriter(contract)
        self._reader = CommandReader(contract.actuated, what="/joint_command")
        self._has_imu = spec.imu_link is not None
        self._joints, self._imu = self.publish_on("/joint_states"), self.publish_on("/imu/data")
        self._intro = self.publish_on("/robot/contract")
        self._intro.publish(String(data=contract.to_json()))
        self.commands: dict[int, Array | None] = {}
        self.why = ""
        self.listen("/joint_command", self._on_command)
        self.listen("/diagnostics", self._on_diagnostics)
        self._arm = self.create_client(Trigger, "/arm")
        self._disarm = self.create_client(Trigger, "/disarm")
        settings = load_config(SafetySettings, plan["safety_settings"])
        bundle = read_bundle(plan["bundle"])
        #: In which an arm's poses are; empty for a robot that is told velocities.
        self.frame = "" if bundle.contract.reach is None else bundle.contract.base_link
        self._wishes = self.publish_on("/target_pose" if self.frame else "/cmd_vel")
        self.shadow = Controller(OnnxPolicy(bundle), 1, settings=settings)
        self.shadow.safety.enforce(agree(bundle.contract, contract)[0])
        self.order = ContractOrder(bundle.contract, contract)
        #: The robot's time [ns], by which the nodes count ages; watchdogs stand while it stands.
        self.now_ns = time.time_ns()
        self.policy = PolicyNode(clock=lambda: self.now_ns)
        self.safety = SafetyNode(clock=lambda: self.now_ns)
        for node in (self.policy, self.safety):
            node.start()
        self._executors: list[Any] = []
        for node in (self, self.policy, self.safety):
            executor = SingleThreadedExecutor()
            executor.add_node(node)
            self._executors.append(executor)

    # ------------------------------------------------------------ what comes in

    def _on_command(self, message: Any) -> None:
        self.commands[to_ns(message.header.stamp)] = self._reader.read(message)
        if len(self.commands) > 64:
            del self.commands[next(iter(self.commands))]

    def _on_diagnostics(self, message: Any) -> None:
        for status in message.status:
            if status.name == "safety_node":
                self.why = status.message

    # ------------------------------------------------------------ turning the nodes

    def _spin(self, condition: Callable[[], bool], *turned: FerryNode, patience_s: float) -> bool:
        """Turn these nodes, and this one, until a condition holds or patience ends."""
        nodes: tuple[FerryNode, ...] = (self, self.policy, self.safety)
        chosen = [self._executors[nodes.index(n)] for n in (*turned, self)]
        deadline = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            for executor in chosen:
                executor.spin_once(timeout_sec=0.0005)
        return True

    def wait(self, condition: Callable[[], bool], *turned: FerryNode, what: str) -> None:
        """The same, and no end of patience but an error.

        Raises:
            FerryError: it took too long.
        """
        if not self._spin(condition, *turned, patience_s=PATIENCE_S):
            raise FerryError(f"rehearsal: {what}: not within {PATIENCE_S:g} s; {self.why}")

    def tell(self, state: RobotState) -> bool:
        """Publish a state and let both nodes take it; whether the policy answers it."""
        stamp = int(state.stamp_ns[0])
        self._writer.write(state, stamp)

        def publish() -> None:
            if self._has_imu:
                self._imu.publish(self._writer.imu)
            self._joints.publish(self._writer.joints)

        # The safety node first: it judges a command by the newest state.
        self._until_heard(publish, lambda: self.safety.newest_ns == stamp, self.safety)
        if not self._spin(lambda: self.policy.newest_ns == stamp, self.policy, patience_s=RETRY_S):
            self._until_heard(publish, lambda: self.policy.newest_ns == stamp, self.policy)
        return self.policy.answered_ns == stamp

    def _until_heard(
        self, publish: Callable[[], None], heard: Callable[[], bool], node: FerryNode
    ) -> None:
        """Publish until a node has it: best effort may lose what comes before all are matched."""
        for _ in range(round(PATIENCE_S / RETRY_S)):
            publish()
            if self._spin(heard, node, patience_s=RETRY_S):
                return
        raise FerryError(f"rehearsal: {node.get_name()} does not hear what is published")

    def drive(self, command: Array) -> None:
        """Publish what the operator wants and let the policy node take it."""
        before = self.policy.commands_heard
        wish: Any = make_pose(command.tolist(), self.frame) if self.frame else None
        if wish is None:
            wish = make_twist(command.tolist(), self.shadow.contract.command.names)
        self._until_heard(
            lambda: self._wishes.publish(wish),
            lambda: self.policy.commands_heard != before,
            self.policy,
        )

    def answer(self, stamp_ns: int) -> Array | None:
        """The command that left the safety node for this state; None for the safe stop."""
        self.wait(lambda: stamp_ns in self.commands, self.safety, what="/joint_command")
        return self.commands[stamp_ns]

    def connect(self) -> None:
        """Wait until everybody hears everybody.

        Raises:
            FerryError: the nodes do not find each other.
        """
        outs = [self._joints, self._intro, *([self._imu] if self._has_imu else [])]
        self.wait(
            lambda: (
                all(out.get_subscription_count() >= 2 for out in outs)
                and self._wishes.get_subscription_count() >= 1
                and self.count_subscribers("/policy/joint_command") >= 1
                and self._arm.service_is_ready()
                and self.policy.introduced
                and self.safety.introduced
            ),
            self.policy,
            self.safety,
            what="discovery",
        )

    def arm(self, state: RobotState) -> str:
        """Ask for RUN; why it is refused, or nothing once both nodes and the controller run."""
        future = self._arm.call_async(Trigger.Request())
        self.wait(future.done, self.safety, what="/arm")
        answer: Any = future.result()
        if not answer.success:
            return str(answer.message)
        self.wait(lambda: self.policy.mode == Mode.RUN.name, self.policy, what="mode RUN")
        self.shadow.safety.disarm()
        refused = self.shadow.arm(int(state.stamp_ns[0]), self.order.state(state))
        if refused:
            raise FerryError(f"rehearsal: the controller refuses: {'; '.join(map(str, refused))}")
        return ""

    def safety_stop(self) -> None:
        """Disarm, so that arming may follow, and let the policy hear it."""
        future = self._disarm.call_async(Trigger.Request())
        self.wait(future.done, self.safety, what="/disarm")
        self.wait(lambda: self.policy.mode != Mode.RUN.name, self.policy, what="a stop")

    def reason(self) -> str:
        """Why the safety node has stopped, in its own words."""
        self._spin(lambda: not self.why.startswith("RUN"), self.safety, patience_s=2.0)
        return self.why

    def close(self) -> None:
        """End the two other nodes."""
        for node in (self.policy, self.safety):
            node.close()
            node.destroy_node()


def _end_with_parent() -> None:
    """Interrupt as Ctrl-C does when the other end of standard input is gone."""
    wait_for_end_of_input()
    _thread.interrupt_main()


def main() -> None:
    """Entry point of ``python -m deploy.rehearsal_process PLAN.json``.

    It ends with its standard input, which whoever started it holds open.
    """
    plan: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    parameters = {
        "bundle": plan["bundle"],
        "safety_settings": plan["safety_settings"],
    }
    given = parameter_arguments(parameters)
    # Their handlers would end the graph in the middle of a step, and not this process.
    rclpy.init(args=["--ros-args", *given], signal_handler_options=SignalHandlerOptions.NO)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    node: RehearsalNode | None = None
    try:
        node = RehearsalNode(plan)
        node.connect()
        result = Rehearsal(node, plan).play(Schedule.load(Path(plan["schedule"])))
        Path(plan["report"]).write_text(json.dumps(result))
    except FerryError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit("interrupted")
    finally:
        if node is not None:
            node.close()
            node.destroy_node()
        rclpy.shutdown()


if __name__ == "__main__":
    main()
