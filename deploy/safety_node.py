"""The last gate: a process of its own between the policy and the robot.

Modes and filter are :class:`~deploy.safety_pipeline.SafetyPipeline`, the code that evaluation runs.
Time is that of the states' stamps, so that simulated and real time are one case; beside it, a
watchdog on the steady clock notices what stops coming. Any doubt ends in the safe stop, and only
``/arm`` leaves it.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from std_msgs.msg import String

from deploy.agreement import agree
from deploy.bundle import read_bundle
from deploy.convert import CommandReader, CommandWriter, to_ns
from deploy.modes import Mode
from deploy.node_base import StateNode, run_node
from deploy.records import ERROR, OK, WARN
from deploy.safety import SafetySettings, Verdict
from deploy.safety_pipeline import SafetyPipeline
from deploy.signing import configured_keys
from deploy.state_stream import StateStream
from deploy.timing import TickGrid, Window
from deploy.watchdog import Watchdog
from real.config import load_config
from real.contract import RobotContract
from real.errors import FerryError
from real.signals import JointCommand

Array = NDArray[np.float64]

#: Modes in which the robot moves.
MOVING = (Mode.RAMP, Mode.RUN)


class SafetyNode(StateNode):
    """``/policy/joint_command`` -> ``/joint_command``, modes and their services; see the module.

    Args:
        clock: nanoseconds of a clock that never goes back; measures the age of what came.
    """

    def __init__(self, *, clock: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__("safety_node")
        self._steady_ns = clock
        path = self.needed("bundle", "the policy whose contract to enforce")
        folder = self.text("trusted_keys", "", "of public keys; empty: $FERRY_TRUSTED_KEYS")
        bundle = read_bundle(path, trusted=configured_keys(folder))
        pinned = self.text("bundle_sha256", "", "of the file at the start; empty: not checked")
        contract = self._contract = bundle.require_sha256(pinned).contract
        file = self.text("safety_settings", "", "YAML file of SafetySettings; empty: defaults")
        settings = load_config(SafetySettings, file) if file else SafetySettings()
        periods = self.number(
            "watchdog_periods",
            0.0,
            "control periods without a fresh state or policy command until the safe stop, in "
            "place of those of the safety settings; 0 keeps them",
            low=0.0,
            high=50.0,
        )
        if periods:
            ages = {"state_periods": periods, "command_periods": periods}
            settings = settings.model_copy(update=ages)
        self._state_ns = round(settings.state_periods * contract.control_dt_s * 1e9)
        self._command_ns = round(settings.command_periods * contract.control_dt_s * 1e9)
        period_ns = round(contract.control_dt_s * 1e9)
        self._silence = Watchdog(
            self._state_ns,
            self._command_ns,
            period_ns=period_ns,
            who="safety_node",
            clock=clock,
        )
        self._pipeline = SafetyPipeline(contract, 1, settings=settings)
        limits = self._pipeline.filter.limits
        self._kp, self._kd = limits.kp[None], limits.kd[None]
        self._reader = CommandReader(contract.action.joints, what="/policy/joint_command")
        self._writer = CommandWriter(contract.action.joints)
        self._grid = TickGrid(contract.control_dt_s)
        self._refusal = "robot_node has not published /robot/contract yet"
        self._policy_ns: int | None = None
        self._run_from_ns = 0
        self._latest_ns = 0  # of all stamps since arming: a clock set back makes states stale
        self._mode = Mode(int(self._pipeline.modes.mode[0]))
        self._why = "started"
        self._verdicts: Counter[str] = Counter()
        self._violations: Counter[str] = Counter()
        self._latency, self._tick_time = Window(), Window()
        self._command_out = self.publish_on("/joint_command")
        self._mode_out = self.publish_on("/safety/mode")
        self._mode_out.publish(String(data=self._mode.name))
        self.listen_to_robot()
        self.listen("/policy/joint_command", self._on_policy)
        self.serve("/arm", self._arm)
        self.serve("/disarm", lambda: self._leave(self._pipeline.disarm, "disarmed"))
        self.serve("/estop", lambda: self._leave(self._pipeline.estop, "emergency stop"))
        self.serve("/reset", self._reset)
        self.every(contract.control_dt_s, self._watchdog)
        self.every(1.0, self._diagnose)
        self.report("ready", mode=self._mode.name)

    # ------------------------------------------------------------ services

    def _arm(self) -> str:
        reasons = self._not_ready()
        if self._stream is not None and not reasons:
            try:
                now = self._stream.stamp_ns or 0
                reasons = [str(v) for v in self._pipeline.arm(now, self._stream.state())]
                self._latest_ns = self._latest_ns if reasons else now
            except FerryError as error:
                reasons = [str(error)]
        if not reasons:
            self._announce("armed")
        return "; ".join(reasons)

    def _not_ready(self) -> list[str]:
        """Everything outside the filter that forbids moving."""
        if self._refusal:
            return [self._refusal]
        now, reasons = self._steady_ns(), list[str]()
        if self._stream is None or now - self._stream.received_ns > self._state_ns:
            lacks = "" if self._stream is None else self._stream.lacks()
            reasons.append("no fresh state from robot_node" + (f": {lacks}" if lacks else ""))
        if self._policy_ns is None or now - self._policy_ns > self._command_ns:
            reasons.append("no fresh command from policy_node (not running, or not warmed up)")
        return reasons + self._rivals()

    def _rivals(self) -> list[str]:
        """Topics that more than one node commands on."""
        counts = {t: self.count_publishers(t) for t in ("/policy/joint_command", "/joint_command")}
        return [f"{n} publishers on {topic}" for topic, n in counts.items() if n > 1]

    def _leave(self, change: Callable[[], None], why: str) -> str:
        change()
        self._stop_now(why)
        return ""

    def _reset(self) -> str:
        if self._mode in MOVING:
            return f"mode is {self._mode.name}: /disarm first"
        return self._leave(self._pipeline.reset_estop, "reset")

    # ------------------------------------------------------------ what comes in

    def _on_contract(self, message: Any) -> None:
        # Latched, so a second one means that the robot's driver was started anew.
        self._fault("robot_node started")
        try:
            robot = RobotContract.from_json(message.data)
            enforced, notes = agree(self._contract, robot)
            self._pipeline.enforce(enforced)
            self._stream = StateStream(self._contract.joint_names, robot, clock=self._steady_ns)
            self._refusal = ""
        except FerryError as error:
            self._stream, self._refusal = None, str(error)
            self.get_logger().error(f"refusing to arm: {error}")
            return
        for note in notes:
            self.get_logger().warning(note)

    def _on_state(self, stream: StateStream) -> None:
        """States drive everything but RUN: the ramp, and the repeated word to stay stopped."""
        if stream.stamp_ns is None or not self._grid.due(stream.stamp_ns):
            return
        if self._mode is Mode.RAMP:
            self._tick(stream, None)
        elif self._mode is not Mode.RUN:
            self._command_out.publish(self._writer.safe_stop(stream.stamp_ns))

    def _on_policy(self, message: Any) -> None:
        """Policy commands drive RUN."""
        self._policy_ns = self._steady_ns()
        if self._mode is not Mode.RUN or self._stream is None:
            return
        try:
            q_des = self._reader.read(message)
        except FerryError as error:
            self._fault(str(error))
            return
        if q_des is None:
            self._fault("the policy asked for a safe stop")
            return
        stamp_ns = to_ns(message.header.stamp)
        since_ns = (self._stream.stamp_ns or 0) - self._run_from_ns
        # Not so if the clock was set back since: all would look that old, for as long as it was.
        if stamp_ns <= self._run_from_ns and 0 <= since_ns <= self._command_ns:
            return  # made before the policy could know that it runs
        command = JointCommand.position(np.array([stamp_ns]), q_des[None], kp=self._kp, kd=self._kd)
        self._tick(self._stream, command)
        arrival = self._stream.arrival_ns(stamp_ns)
        if arrival is not None:
            self._latency.add((self._steady_ns() - arrival) * 1e-9)

    # ------------------------------------------------------------ the tick

    def _tick(self, stream: StateStream, command: JointCommand | None) -> None:
        """One decision of the pipeline, published; an exception of any kind is a fault."""
        start, state_ns = time.perf_counter(), stream.stamp_ns or 0
        answered_ns = state_ns if command is None else int(command.stamp_ns[0])
        try:
            # On a busy computer a command can overtake the very state that it answers. After a
            # clock was set back all states are older than those before: stale, so the robot stops.
            self._latest_ns = max(self._latest_ns, state_ns, answered_ns)
            tick = self._pipeline.step(self._latest_ns, stream.state(), command)
        # Whatever went wrong in here, the robot must not move on.
        except Exception as error:
            self._fault(f"{type(error).__name__}: {error}")
            return
        if tick.stop[0]:
            self._command_out.publish(self._writer.safe_stop(answered_ns))
        else:
            self._command_out.publish(self._writer.targets(answered_ns, tick.command.q_des[0]))
        self._tick_time.add(time.perf_counter() - start)
        verdict = Verdict(int(tick.verdict[0]))
        self._verdicts[verdict.name] += 1
        if verdict is not Verdict.PASS or tick.warned:
            for violation in tick.violations:
                self._violations[f"{violation.kind} {violation.joint or ''}".strip()] += 1
        if Mode(int(tick.mode[0])) is not self._mode:
            self._announce("; ".join(map(str, tick.violations)) if tick.stop[0] else "ramp over")

    def _watchdog(self) -> None:
        received_ns = 0 if self._stream is None else self._stream.received_ns
        silent = self._silence.look(received_ns, self._policy_ns or 0)
        if self._mode not in MOVING:
            return
        rivals = self._rivals()
        if rivals or silent:
            self._fault("; ".join(rivals) or silent)

    # ------------------------------------------------------------ ways out

    def _fault(self, why: str) -> None:
        """Stop safely because something outside the filter failed."""
        self._pipeline.fault()
        self._stop_now(why)

    def _stop_now(self, why: str) -> None:
        """Tell the robot at once, without waiting for the next state."""
        stamp = None if self._stream is None else self._stream.stamp_ns
        self._command_out.publish(self._writer.safe_stop(stamp or time.time_ns()))
        self._announce(why)

    def _announce(self, why: str) -> None:
        """Publish the mode if it changed, and why."""
        mode = Mode(int(self._pipeline.modes.mode[0]))
        if mode is self._mode:
            return
        self._mode, self._why = mode, why
        if mode is Mode.RUN and self._stream is not None:
            self._run_from_ns = self._stream.stamp_ns or 0
        self._mode_out.publish(String(data=mode.name))
        self.get_logger().info(f"mode {mode.name}: {why}")
        self.report("mode", mode=mode.name, reason=why)
        self._diagnose()

    # ------------------------------------------------------------ reports

    def _diagnose(self) -> None:
        level = OK if self._mode in MOVING else ERROR if self._refusal else WARN
        why = self._refusal or self._why
        self.diagnose(self._summary(), level=level, message=f"{self._mode.name}: {why}")

    def _summary(self) -> dict[str, object]:
        return {
            **{f"verdict {v.name}": self._verdicts[v.name] for v in Verdict},
            **{f"violation {name}": n for name, n in sorted(self._violations.items())},
            **self._latency.milliseconds("state_to_command"),
            **self._tick_time.milliseconds("tick"),
        }

    def close(self) -> None:
        """Leave the robot in its safe stop and say how it went."""
        self._leave(self._pipeline.disarm, "safety_node ends")
        self.report("summary", mode=self._mode.name, reason=self._why, **self._summary())


def main() -> None:
    """Entry point of ``python -m deploy.safety_node``."""
    sys.exit(run_node(SafetyNode))


if __name__ == "__main__":
    main()
