"""The last gate: a process of its own between the policy and the robot.

Modes and filter are :class:`~deploy.safety_pipeline.SafetyPipeline`, the code that evaluation runs.
Time is that of the states' stamps, so that simulated and real time are one case; beside it, a
watchdog on the steady clock notices what stops coming. Any doubt ends in the safe stop, and only
``/arm`` leaves it. While the node is not active it repeats the safe stop and refuses to arm; an
emergency stop outlives every transition until its reset.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.agreement import agree
from deploy.bundle import read_bundle
from deploy.convert import CommandReader, to_ns
from deploy.evaluation_stamp import required_score
from deploy.links import Links, asked
from deploy.modes import MOVING, Event, Mode
from deploy.node_base import run_node
from deploy.records import ERROR, OK, WARN
from deploy.safety import SafetySettings
from deploy.safety_out import SafetyOut
from deploy.safety_pipeline import SafetyPipeline
from deploy.signing import configured_keys
from deploy.state_listener import StateNode
from deploy.state_stream import StateStream
from deploy.tally import Tally
from deploy.timing import Rate, TickGrid
from deploy.vitals_wire import VitalsIn
from deploy.watchdog import Watchdog
from real.config import load_config
from real.contract import RobotContract
from real.errors import FerryError
from real.signals import JointCommand, RobotState

Array = NDArray[np.float64]

#: Where two who command are none, at any time.
JOINT_COMMANDS = ("/policy/joint_command", "/joint_command")
#: The same when arming. Later a second operator is no fault of the robot's that it should fall for.
OPERATORS = ("/cmd_vel", "/target_pose")


class SafetyNode(StateNode):
    """``/policy/joint_command`` -> ``/joint_command``, modes and their services; see the module.

    Args:
        clock: nanoseconds of a clock that never goes back; measures the age of what came.
    """

    def __init__(self, *, clock: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__("safety_node")
        self._steady_ns = clock
        self.text("bundle", "", "the policy whose contract to enforce")
        self._keys = self.text("trusted_keys", "", "of public keys; empty: $FERRY_TRUSTED_KEYS")
        self._pinned = self.text("bundle_sha256", "", "of the file at the start; empty: any")
        self._file = self.text("safety_settings", "", "file of SafetySettings; empty: defaults")
        self._periods = self.number(
            "watchdog_periods", 0.0, "periods of silence allowed; 0: as set", low=0.0, high=50.0
        )
        required = self.flag("require_evaluation", False, "refuse a bundle never evaluated")
        score = self.number("minimum_score", 0.0, "of that evaluation; not 0: asks", low=0, high=1)
        self._minimum = required_score(required, score)
        self._rest = self._mode = Mode.DAMP
        self._why = "started"
        self._refusal = ""
        #: Commanded by hand; kept here, since the pipeline ends with a cleanup.
        self._estopped = False
        self._tally, self._rate = Tally(), Rate()
        self._out = SafetyOut(self)
        self.serve("/arm", self._arm)
        self.serve("/disarm", lambda: self._leave(Event.DISARM, "disarmed"))
        self.serve("/estop", lambda: self._leave(Event.ESTOP, "emergency stop"))
        self.serve("/reset", self._reset)

    # ------------------------------------------------------------ lifecycle

    def configure(self) -> None:
        """Read bundle and settings, connect, and command the safe stop from the first state on."""
        bundle = read_bundle(self.given("bundle"), trusted=configured_keys(self._keys))
        bundle.require_sha256(self._pinned).require_evaluation(self._minimum)
        contract = bundle.contract
        settings = load_config(SafetySettings, self._file) if self._file else SafetySettings()
        if self._periods:
            ages = {"state_periods": self._periods, "command_periods": self._periods}
            settings = settings.model_copy(update=ages)
        pipeline = SafetyPipeline(contract, 1, settings=settings)
        period_ns = round(contract.control_dt_s * 1e9)
        self._contract, self._pipeline = contract, pipeline
        self._state_ns = round(settings.state_periods * period_ns)
        self._command_ns = round(settings.command_periods * period_ns)
        ages, clock = (self._state_ns, self._command_ns), self._steady_ns
        self._silence = Watchdog(*ages, period_ns=period_ns, who="safety_node", clock=clock)
        self._vitals = VitalsIn(contract.joint_names, settings.vitals, clock=clock)
        limits = pipeline.filter.limits
        self._kp, self._kd = limits.kp[None], limits.kd[None]
        self._reader = CommandReader(contract.action.joints, what="/policy/joint_command")
        self._grid = TickGrid(contract.control_dt_s)
        self._refusal = "robot_node has not published /robot/contract yet"
        self._policy_ns: int | None = None
        self._run_from_ns = 0
        self._latest_ns = 0  # of all stamps since arming: a clock set back makes states stale
        if self._estopped:
            pipeline.estop()
        self._rest, self._mode = pipeline.modes.safe_stop, Mode(int(pipeline.modes.mode[0]))
        self._connect(settings.command_periods * contract.control_dt_s)

    def _connect(self, timeout_s: float) -> None:
        """Publishers and subscriptions, with what to do when one is lost."""
        period_s = self._contract.control_dt_s
        self._links = Links(self, on_loss=self._lost, on_late=self._watchdog)
        self._out.connect(self._contract, self._links)
        self._out.tell_mode(self._mode)
        self.listen_to_robot(self._links)
        self._vitals.listen_on(self.listen)
        wanted = asked(period_s, timeout_s)
        self.listen("/policy/joint_command", self._on_policy, qos=wanted, links=self._links)
        self.every(period_s, self._watchdog)

    def activate(self) -> None:
        """From now on it may be armed; nothing moves by this."""
        self.report("ready", mode=self._mode.name)

    def deactivate(self) -> None:
        """Safe stop, which every state from now on repeats."""
        self._leave(Event.DISARM, "safety_node was deactivated")

    def cleanup(self) -> None:
        """Without states to answer, a timer repeats the safe stop."""
        self._out.repeat(self._command_stop)

    # ------------------------------------------------------------ services

    def _arm(self) -> str:
        reasons = [self.inactive] if not self.active else self._not_ready()
        if self._stream is not None and not reasons:
            try:
                now = self._stream.stamp_ns or 0
                reasons = [str(v) for v in self._pipeline.arm(now, self._state(self._stream))]
                self._latest_ns = self._latest_ns if reasons else now
            except FerryError as error:
                reasons = [str(error)]
        if not reasons:
            self._announce("armed")
        return "; ".join(reasons)

    def _not_ready(self) -> list[str]:
        """Everything outside the filter that forbids moving."""
        if self._refusal:
            return [self._refusal, *self._links.problems()]
        now, reasons = self._steady_ns(), list[str]()
        if self._stream is None or now - self._stream.received_ns > self._state_ns:
            lacks = "" if self._stream is None else self._stream.lacks()
            reasons.append("no fresh state from robot_node" + (f": {lacks}" if lacks else ""))
        if self._policy_ns is None or now - self._policy_ns > self._command_ns:
            reasons.append("no fresh command from policy_node (not running, or not warmed up)")
        rivals = self._rivals(*JOINT_COMMANDS, *OPERATORS)
        return reasons + rivals + self._links.problems() + self._vitals.problems()

    def _rivals(self, *topics: str) -> list[str]:
        """Those of the topics that more than one node commands on."""
        counts = {t: self.count_publishers(t) for t in topics}
        return [f"{n} publishers on {topic}" for topic, n in counts.items() if n > 1]

    def _leave(self, event: Event, why: str) -> str:
        if event in (Event.ESTOP, Event.RESET):
            self._estopped = event is Event.ESTOP
        if self.configured:
            self._pipeline.modes.fire(event)
        self._stop_now(why)
        return ""

    def _reset(self) -> str:
        if self._mode in MOVING:
            return f"mode is {self._mode.name}: /disarm first"
        return self._leave(Event.RESET, "reset")

    # ------------------------------------------------------------ what comes in

    def _on_contract(self, message: Any) -> None:
        # Latched, so a second one means that the robot's driver was started anew.
        self._fault("robot_node started")
        self._vitals.forget()
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
            self._out.stop(stream.stamp_ns)

    def _on_policy(self, message: Any) -> None:
        """Policy commands drive RUN."""
        if not len(message.position):
            self._policy_ns = None  # nor may anybody arm, until it commands again
            if self._mode in MOVING:
                self._fault("the policy asked for a safe stop")
            return
        self._policy_ns = self._steady_ns()
        if self._mode is not Mode.RUN or self._stream is None:
            return
        try:
            q_des = self._reader.read(message)
        except FerryError as error:
            self._fault(str(error))
            return
        assert q_des is not None  # it has positions
        stamp_ns = to_ns(message.header.stamp)
        since_ns = (self._stream.stamp_ns or 0) - self._run_from_ns
        # Not so if the clock was set back since: all would look that old, for as long as it was.
        if stamp_ns <= self._run_from_ns and 0 <= since_ns <= self._command_ns:
            return  # made before the policy could know that it runs
        command = JointCommand.position(np.array([stamp_ns]), q_des[None], kp=self._kp, kd=self._kd)
        self._tick(self._stream, command)
        arrival = self._stream.arrival_ns(stamp_ns)
        if arrival is not None:
            self._tally.latency.add((self._steady_ns() - arrival) * 1e-9)

    # ------------------------------------------------------------ the tick

    def _tick(self, stream: StateStream, command: JointCommand | None) -> None:
        """One decision of the pipeline, published; an exception of any kind is a fault."""
        start, state_ns = time.perf_counter(), stream.stamp_ns or 0
        answered_ns = state_ns if command is None else int(command.stamp_ns[0])
        try:
            # On a busy computer a command can overtake the very state that it answers. After a
            # clock was set back all states are older than those before: stale, so the robot stops.
            self._latest_ns = max(self._latest_ns, state_ns, answered_ns)
            tick = self._pipeline.step(self._latest_ns, self._state(stream), command)
        # Whatever went wrong in here, the robot must not move on.
        except Exception as error:
            self._fault(f"{type(error).__name__}: {error}")
            return
        self._out.command(answered_ns, tick)
        self._tally.tick_time.add(time.perf_counter() - start)
        self._tally.add(tick)
        self._out.verdict(answered_ns, tick)
        if Mode(int(tick.mode[0])) is not self._mode:
            self._announce("; ".join(map(str, tick.violations)) if tick.stop[0] else "ramp over")

    def _state(self, stream: StateStream) -> RobotState:
        return self._vitals.add_to(stream.state())

    def _watchdog(self) -> None:
        received_ns = 0 if self._stream is None else self._stream.received_ns
        silent = self._silence.look(received_ns, self._policy_ns or 0)
        if self._mode not in MOVING:
            return
        wrong = self._rivals(*JOINT_COMMANDS) or self._vitals.problems()
        if wrong or silent:
            self._fault("; ".join(wrong) or silent)

    def _lost(self, why: str) -> None:
        """Somebody is gone: no need to wait until it is late."""
        if self._mode in MOVING:
            received_ns = 0 if self._stream is None else self._stream.received_ns
            # After a pause of this process all others look gone; then the watchdog knows better.
            self._fault(self._silence.look(received_ns, self._policy_ns or 0) or why)

    # ------------------------------------------------------------ ways out

    def _fault(self, why: str) -> None:
        """Stop safely because something outside the filter failed."""
        self._pipeline.fault()
        self._stop_now(why)

    def _stop_now(self, why: str) -> None:
        """Tell the robot at once, without waiting for the next state."""
        self._command_stop()
        self._announce(why)

    def _command_stop(self) -> None:
        self._out.stop(self.newest_ns)

    def _announce(self, why: str) -> None:
        """Publish the mode if it changed, and why."""
        mode = Mode.ESTOP if self._estopped else self._rest
        if self.configured:
            mode = Mode(int(self._pipeline.modes.mode[0]))
        if mode is self._mode:
            return
        self._mode, self._why = mode, why
        if mode is Mode.RUN and self._stream is not None:
            self._run_from_ns = self._stream.stamp_ns or 0
        self._out.tell_mode(mode)
        self.get_logger().info(f"mode {mode.name}: {why}")
        self.report("mode", mode=mode.name, reason=why)
        if self.active:
            self.describe()

    # ------------------------------------------------------------ reports

    def describe(self) -> None:
        """Publish diagnostics: mode and why, verdicts, violations, latency."""
        problems = self._links.problems()
        wrong = bool(self._refusal or problems)
        level = OK if self._mode in MOVING else ERROR if wrong else WARN
        why = "; ".join([self._refusal or self._why, *problems])
        rate = {"rate_hz": self._rate.of(self._tally.tick_time.count)}
        values = {"mode": self._mode.name, **rate, **self._tally.summary(), **self._links.counts}
        self.diagnose(values, level=level, message=f"{self._mode.name}: {why}")

    def close(self) -> None:
        """Leave the robot in its safe stop and say how it went."""
        self._leave(Event.DISARM, "safety_node ends")
        self.report("summary", mode=self._mode.name, reason=self._why, **self._tally.summary())


def main() -> None:
    """Entry point of ``python -m deploy.safety_node``."""
    sys.exit(run_node(SafetyNode))


if __name__ == "__main__":
    main()
