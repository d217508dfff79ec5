"""The node that runs the policy: state and operator's command in, joint targets out.

The command is a velocity (``/cmd_vel``) or, for an arm, a pose (``/target_pose``), as the contract
says.

It has no clock of its own: it answers the first state at or after each control period, by the
stamps of the states. What it publishes is a wish; ``safety_node`` decides.

While the robot does not move, the parameter ``bundle`` may be set to another file and
``/policy/load`` (or ``/policy/reload``) reads it: a policy of the same contract, such as a
fine-tuned one. Armed again, the robot ramps from the pose it stands in.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from builtin_interfaces.msg import Time
from geometry_msgs.msg import Twist, TwistStamped
from numpy.typing import NDArray
from rcl_interfaces.msg import SetParametersResult

from deploy.agreement import changes
from deploy.bundle import Bundle, read_bundle
from deploy.convert import CommandWriter, read_pose, read_twist, to_ns
from deploy.evaluation_stamp import required_score
from deploy.links import Links, offered
from deploy.modes import Mode
from deploy.node_base import run_node
from deploy.policy import OnnxPolicy
from deploy.policy_pipeline import PolicyPipeline
from deploy.records import ERROR, OK, WARN, StepRecord, StepWriter
from deploy.signing import configured_keys
from deploy.state_listener import StateNode
from deploy.state_stream import StateStream
from deploy.target_pose import TargetPose
from deploy.timing import TickGrid, Window
from real.contract import PolicyContract, RobotContract
from real.errors import FerryError
from real.signals import RobotState

Array = NDArray[np.float64]

#: A velocity command older than this is no command: the robot is told to stand [s].
COMMAND_AGE_S = 0.5
#: Inferences before the first real one; the first two are the slow ones.
WARM_UPS = 5


class PolicyNode(StateNode):
    """Bundle -> ``/policy/joint_command`` and ``/policy/step``; see the module.

    Args:
        clock: nanoseconds of a clock that never goes back; measures the age of what came.
    """

    def __init__(self, *, clock: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__("policy_node")
        self._steady_ns = clock
        self.text("bundle", "", "the policy, an .onnx bundle", read_only=False)
        self._pinned = self.text("bundle_sha256", "", "of the file at the start; empty: any")
        self._keys = self.text("trusted_keys", "", "of public keys; empty: $FERRY_TRUSTED_KEYS")
        required = self.flag(
            "require_evaluation", False, "refuse a bundle that was never evaluated"
        )
        score = self.number("minimum_score", 0.0, "of that evaluation; not 0: asks", low=0, high=1)
        #: Of every bundle, as the keys.
        self._minimum = required_score(required, score)
        self._stamped = self.flag("twist_stamped", False, "/cmd_vel is a TwistStamped")
        self._timeout_s = self.number(
            "target_timeout_s",
            0.5,
            "how long a /target_pose counts [s], then the arm stays where it is; 0: until the next",
            low=0.0,
            high=3600.0,
        )
        self._explore = self.flag("explore", False, "sample actions instead of taking the mean")
        seed = self.number("seed", 0, "of the exploration noise", low=0, high=2**31)
        self._noise = np.random.default_rng(int(seed)) if self._explore else None
        self._mode = ""
        #: What the graph was started with; every later bundle must equal it.
        self._first: PolicyContract | None = None
        self._tick_time = Window()
        self._counted = (time.monotonic(), 0)
        #: Stamp of the state that was answered last [ns].
        self.answered_ns = 0
        #: How many commands of the operator have come.
        self.commands_heard = 0
        self.add_on_set_parameters_callback(self._may_set)
        for service in ("/policy/load", "/policy/reload"):
            self.serve(service, self._load_other)

    # ------------------------------------------------------------ lifecycle

    def configure(self) -> None:
        """Read the bundle, run it a few times, connect."""
        #: Of every bundle, also of one that is loaded later.
        self._trusted = configured_keys(self._keys)
        bundle = read_bundle(self.given("bundle"), trusted=self._trusted)
        self._bundle = bundle.require_sha256(self._pinned).require_evaluation(self._minimum)
        if different := self._other_contract(bundle):
            raise FerryError(different)
        contract = self._contract = bundle.contract
        self._pipeline = self._load(bundle)
        self._commands = CommandWriter(contract.action.joints)
        self._steps = StepWriter(contract.observation.dim, contract.action.dim)
        self._grid = TickGrid(contract.control_dt_s)
        self._zero: Array = np.zeros((1, contract.command.dim))
        self._command: Array = self._zero
        self._command_ns = 0
        self._target: TargetPose | None = None
        self._running = np.zeros(1, dtype=bool)
        self._mode = ""
        self._refusal = "no /robot/contract yet"
        #: What was wrong with the operator's newest command; empty: nothing.
        self._complaint = ""
        self._links = Links(self)
        self._command_out = self.publish_on(
            "/policy/joint_command", qos=offered(contract.control_dt_s), links=self._links
        )
        self._step_out = self.publish_on("/policy/step")
        if contract.reach is None:
            type_ = TwistStamped if self._stamped else Twist
            self.listen("/cmd_vel", self._on_twist, type_=type_)
        else:
            self._target = TargetPose(contract, timeout_s=self._timeout_s)
            self.listen("/target_pose", self._on_target)
        self.listen("/safety/mode", self._on_mode, links=self._links)
        self.listen_to_robot(self._links)
        self._first = self._first or contract

    def activate(self) -> None:
        """Answer states from now on."""
        self._forget()
        self._counted = (time.monotonic(), self._tick_time.count)
        self.report("ready", robot=self._contract.robot, bundle=self._bundle.sha256[:12])

    def deactivate(self) -> None:
        """Ask for the safe stop, since the silence that follows would be noticed later."""
        stamp_ns = self.newest_ns or time.time_ns()
        self._command_out.publish(self._commands.safe_stop(stamp_ns))
        self._forget()

    def _forget(self) -> None:
        """Nothing of what was remembered or commanded reaches what comes next."""
        self._pipeline.reset()
        self._command, self._command_ns = self._zero, 0
        if self._target is not None:
            self._target.forget()

    def _load(self, bundle: Bundle) -> PolicyPipeline:
        pipeline = PolicyPipeline(OnnxPolicy(bundle), 1, explore=self._noise)
        for _ in range(WARM_UPS):
            pipeline.warm_up()
        return pipeline

    @property
    def mode(self) -> str:
        """The safety node's mode, as heard; empty before it has spoken."""
        return self._mode

    # ------------------------------------------------------------ another bundle

    def _moving(self) -> str:
        """Why the bundle may not change now, or nothing."""
        if self.phase == "unconfigured":
            return ""
        if self._mode in (Mode.DAMP.name, Mode.HOLD.name, Mode.ESTOP.name):
            return ""
        if not self._mode:
            return "safety_node has not told its mode yet"
        return f"mode is {self._mode}: /disarm first"

    def _may_set(self, parameters: list[Any]) -> Any:
        for parameter in parameters:
            if parameter.name == "bundle":
                why = self._moving()
                if not isinstance(parameter.value, str) or not parameter.value:
                    why = "bundle must be the path of an .onnx file"
                if why:
                    return SetParametersResult(successful=False, reason=why)
        return SetParametersResult(successful=True)

    def _load_other(self) -> str:
        """Read the file of the parameter ``bundle``; returns why the old policy stays, if so."""
        why = self._moving()
        if self.phase == "unconfigured":
            why = self.inactive
        if why:
            return why
        try:
            file = str(self.get_parameter("bundle").value)
            bundle = read_bundle(file, trusted=self._trusted)
            bundle.require_evaluation(self._minimum)
        except FerryError as error:
            return str(error)
        if different := self._other_contract(bundle):
            return different
        # A new pipeline: nothing that the old policy remembered reaches the new one.
        self._pipeline, self._bundle = self._load(bundle), bundle
        version = bundle.contract.policy_version
        self.get_logger().info(f"reloaded {bundle.source}: version {version}, {bundle.sha256}")
        self.report("reloaded", bundle=bundle.sha256, policy_version=version)
        return ""

    def _other_contract(self, bundle: Bundle) -> str:
        """In what a bundle is not of the contract that the graph was started with, or nothing."""
        different = [] if self._first is None else changes(self._first, bundle.contract)
        told = f"{bundle.source}: its contract is not the one that this graph was started with: "
        return told + "; ".join(different) if different else ""

    # ------------------------------------------------------------ what comes in

    def _on_contract(self, message: Any) -> None:
        try:
            robot = RobotContract.from_json(message.data)
            self._contract.require_match(robot)
            self._stream = StateStream(self._contract.joint_names, robot, clock=self._steady_ns)
            self._refusal = ""
        except FerryError as error:
            self._stream = None
            self._refusal = str(error)
            self.get_logger().error(f"refusing to run: {error}")
            self.report("refused", reason=str(error))

    def _on_mode(self, message: Any) -> None:
        self._mode = str(message.data)
        self._running[:] = self._mode == Mode.RUN.name
        if not self._running[0]:
            # Also if no state comes before it runs again: then no tick would notice.
            self._pipeline.reset()
            if self._target is not None:
                self._target.forget()

    def _on_twist(self, message: Any) -> None:
        try:
            command = read_twist(message, self._contract.command.names)[None]
        except FerryError as error:
            self.get_logger().error(str(error), throttle_duration_sec=1.0)
            return
        if isinstance(message, TwistStamped) and message.header.stamp != Time():
            age_ns = self.get_clock().now().nanoseconds - to_ns(message.header.stamp)
            if age_ns > COMMAND_AGE_S * 1e9:
                return  # sent long ago, whatever delayed it
        self._command, self._command_ns = command, self._steady_ns()
        self.commands_heard += 1

    def _on_target(self, message: Any) -> None:
        target = self._target
        stamp = message.header.stamp
        if target is None:
            return
        if stamp != Time() and self._timeout_s:
            age_ns = self.get_clock().now().nanoseconds - to_ns(stamp)
            if age_ns > self._timeout_s * 1e9:
                return  # sent long ago, whatever delayed it
        try:
            pose = read_pose(message, self._contract.base_link)
            self._complaint = target.take(pose, self._steady_ns())
        except FerryError as error:
            self._complaint = f"refused: {error}"
        if self._complaint:
            self.get_logger().warning(self._complaint, throttle_duration_sec=1.0)
        self.commands_heard += 1

    # ------------------------------------------------------------ the tick

    def _on_state(self, stream: StateStream) -> None:
        if not self.active or stream.stamp_ns is None or not self._grid.due(stream.stamp_ns):
            return
        start = time.perf_counter()
        try:
            state = stream.state()
        except FerryError as error:
            # No command is the right answer to a state that nobody can read.
            self._refusal = str(error)
            self.get_logger().error(str(error), throttle_duration_sec=1.0)
            return
        self._refusal = ""
        self._tick(state, stream.stamp_ns)
        self.answered_ns = stream.stamp_ns
        self._tick_time.add(time.perf_counter() - start)

    def _tick(self, state: RobotState, stamp_ns: int) -> None:
        now_ns = self._steady_ns()
        if self._target is not None:
            command = self._target.command(state.q, now_ns, running=bool(self._running[0]))
        else:
            fresh = (now_ns - self._command_ns) * 1e-9 <= COMMAND_AGE_S
            command = self._command if fresh else self._zero
        out = self._pipeline.step(state, command, running=self._running)
        if out.stop[0]:
            self.get_logger().error("what the policy remembers is not finite: safe stop")
            self._command_out.publish(self._commands.safe_stop(stamp_ns))
        else:
            self._command_out.publish(self._commands.targets(stamp_ns, out.command.q_des[0]))
        step = StepRecord(
            stamp_ns=stamp_ns,
            observation=out.observation[0],
            mean=out.mean[0],
            action=out.action[0],
            log_prob=float(out.log_prob[0]),
            policy_version=self._bundle.contract.policy_version,
            explore=self._explore,
        )
        self._step_out.publish(self._steps.write(step))

    # ------------------------------------------------------------ reports

    def describe(self) -> None:
        """Publish diagnostics: rate, time of a tick, what keeps it from answering."""
        now, ticks = time.monotonic(), self._tick_time.count
        rate = (ticks - self._counted[1]) / max(now - self._counted[0], 1e-9)
        self._counted = (now, ticks)
        level, message = OK, "answering states"
        problems = "; ".join(self._links.problems())
        if self._refusal:
            told = f"; {problems}" if problems else ""
            level, message = ERROR, f"no commands: {self._refusal}{told}"
        elif problems:
            level, message = ERROR, problems
        elif rate == 0.0:
            level, message = WARN, "no states come"
        elif self._complaint:
            level, message = WARN, self._complaint
        elif self._target is not None and self._target.held:
            message = "answering states; no target, so the arm is told to stay where it is"
        times = self._tick_time.milliseconds("tick")
        values = {"rate_hz": rate, "ticks": ticks, "bundle": self._bundle.sha256, **times}
        self.diagnose({**values, **self._links.counts}, level=level, message=message)

    def close(self) -> None:
        """Ask for the safe stop and say how it went."""
        if self.active:
            self.deactivate()
        self.report("summary", ticks=self._tick_time.count, **self._tick_time.milliseconds("tick"))


def main() -> None:
    """Entry point of ``python -m deploy.policy_node``."""
    sys.exit(run_node(PolicyNode))


if __name__ == "__main__":
    main()
