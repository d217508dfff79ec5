"""The node that owns the robot: any RobotIO plug-in, simulated or hardware, on the wire.

It publishes what the robot measures and applies the targets of ``/joint_command`` with the gains
of the robot's own specification. Without fresh targets it stops the robot by itself. Inactive, the
driver is open and gets the safe stop all the time, and no states are published.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from functools import partial
from typing import Any, cast

from rosgraph_msgs.msg import Clock
from std_msgs.msg import String

from deploy.convert import CommandReader, StateWriter, set_stamp, to_ns
from deploy.introduction import contract_of, has_description, load_here
from deploy.lifecycle import ManagedNode
from deploy.links import Links, asked
from deploy.node_base import run_node
from deploy.punctual import PRIORITY, share_the_interpreter, take_priority
from deploy.records import ERROR, OK, WARN, OdometryWriter
from deploy.robot_loop import RobotLoop
from deploy.timing import Histogram, Rate
from deploy.vitals_wire import VitalsOut
from real.errors import FerryError
from real.robot_io import (
    RobotIO,
    asked_to_exit,
    drawn_world,
    load_plugin,
    require_firmware_timeout,
)
from real.signals import RobotState
from real.spec import RobotSpec

#: Stamps of published states that are remembered: an answer to an older one comes too late anyway.
KEPT_STAMPS = 32

#: A driver must have given its first state by then [s]; physics engines take a few to load.
START_S = 30.0

#: A driver call longer than this is reported while it lasts [s].
BLOCKED_S = 0.5

#: How long the last call of a driver is waited for when it is to be closed [s].
JOIN_S = 2.0

INACTIVE = "robot_node is inactive"


class RobotNode(ManagedNode):
    """Publishes states, applies commands; see the module."""

    def __init__(self) -> None:
        super().__init__("robot_node")
        take_priority(self.number("realtime_priority", 0.0, PRIORITY, low=0, high=98))
        self._name = self.text("robot", "a1", "name or file of the robot")
        self._plugin = self.text("plugin", "real.loopback:LoopbackRobot", "RobotIO, module:Class")
        self._options = self.text("plugin_options", "{}", "keyword arguments of the plug-in, JSON")
        self._unguarded = self.flag(
            "allow_no_firmware_timeout", False, "accept hardware that does not stop by itself"
        )
        self._periods = self.number(
            "command_timeout_periods",
            3.0,
            "control periods after which a command is too old",
            low=1.0,
            high=50.0,
        )
        self._wants_clock = self.flag("publish_clock", False, "publish /clock with robot's time")
        self._loop: RobotLoop | None = None
        self._thread: threading.Thread | None = None
        #: A loop's thread whose driver call did not return; the hardware may still be its.
        self._stuck: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._end: dict[str, object] = {}
        self._answers = Histogram()

    # ------------------------------------------------------------ lifecycle

    def configure(self) -> None:
        """Open the driver. From its first state on the robot gets its safe stop."""
        if self._stuck is not None and self._stuck.is_alive():
            raise FerryError("the driver's last call has not returned; restart robot_node")
        spec = load_here(self._name)
        robot = self._robot = self._load(spec)
        contract = contract_of(spec)
        self._writer = StateWriter(contract, imu_in_base=not has_description(spec))
        self._reader = CommandReader(contract.actuated, what="/joint_command")
        self._odometry = OdometryWriter(spec.base_link)
        self._vitals = VitalsOut(contract, self.publish_on)
        self._offset_ns: int | None = None
        self._joint_states = self.publish_on("/joint_states")
        self._imu = self.publish_on("/imu/data") if spec.imu_link is not None else None
        self._truth = self.publish_on("/ground_truth/odom") if robot.simulated else None
        self._clock_out = self.publish_on("/clock") if self._wants_clock else None
        sample = drawn_world(robot)
        if sample is not None:
            self.publish_on("/ground_truth/domain").publish(String(data=sample.to_json()))
        self._contract_out = self.publish_on("/robot/contract")
        self._introduction = contract.to_json()
        #: When the newest states were published, by stamp [ns], and how long their answers took.
        self._published: dict[int, int] = {}
        #: Steps and missed deadlines before the first targets came, when nodes were still starting.
        self._before: tuple[int, int] | None = None
        self._rate = Rate()
        timeout_s = self._periods * spec.control_dt_s
        self._links = Links(self, on_loss=self._lost)
        qos = asked(spec.control_dt_s, timeout_s)
        self.listen("/joint_command", self._on_command, qos=qos, links=self._links)
        # Of this loop alone: one that was given up on may still say something.
        self._failure, began = None, threading.Event()
        publish = partial(self._publish, began)
        loop = self._loop = RobotLoop(robot, spec, command_timeout_s=timeout_s, publish=publish)
        loop.block(INACTIVE)
        # Named for stack dumps of a stuck driver; a daemon, so that it cannot keep the process
        # alive after `close` has given up on it.
        self._thread = threading.Thread(
            target=self._run, args=(loop, began), name="robot-loop", daemon=True
        )
        self._thread.start()
        if not began.wait(timeout=START_S):
            raise FerryError(f"robot plug-in {self._plugin!r} gave no state within {START_S:g} s")
        self._raise_failure()

    def activate(self) -> None:
        """Introduce the robot, publish its states, follow commands."""
        self._contract_out.publish(String(data=self._introduction))
        # What came before counts no more. The loop's next step ends the block, unless two command.
        self._loop_now.command(None, reason="no command since robot_node is active")
        self.report("ready", robot=self._name, simulated=self._robot.simulated)

    def deactivate(self) -> None:
        """Safe stop, whoever commands what; states are no longer published."""
        if self._loop is None:
            return  # after a cleanup that failed, there is nobody left to tell
        self._loop.block(INACTIVE)
        self._loop.command(None, reason=INACTIVE)

    def cleanup(self) -> None:
        """End the loop, which stops the robot safely once more and closes the driver.

        Raises:
            FerryError: of a driver that was open: one of the two failed, or never returned.
        """
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        loop.stop()
        thread.join(timeout=JOIN_S)
        if thread.is_alive():
            self._stuck = thread
            self._failure = FerryError("the driver's last call has not returned; left without it")
        self._end = {
            "steps": loop.steps,
            "missed_deadlines": loop.missed,
            "steps_before": (self._before or (loop.steps, 0))[0],
            "missed_before": (self._before or (0, loop.missed))[1],
            **loop.lateness.milliseconds("lateness"),
            **loop.period_error.milliseconds("period_error"),
        }
        self._loop = self._thread = None
        if self._failure is not None and self.configured:
            raise FerryError(f"the robot may not have been stopped safely: {self._why()}")

    @property
    def _loop_now(self) -> RobotLoop:
        if self._loop is None:
            raise FerryError("robot_node has no driver: it is not configured")
        return self._loop

    def _load(self, spec: RobotSpec) -> RobotIO:
        plugin, options = self._plugin, self._options
        try:
            keywords: Any = json.loads(options)
        except json.JSONDecodeError as error:
            raise FerryError(f"plugin_options {options!r} is not JSON: {error}") from error
        if not isinstance(keywords, dict):
            raise FerryError(f"plugin_options {options!r}: expected a JSON object")
        robot = load_plugin(plugin, spec, options=cast("dict[str, Any]", keywords))
        if not self._unguarded:
            require_firmware_timeout(robot, plugin)
        return robot

    # ------------------------------------------------------------ the loop's thread

    def _run(self, loop: RobotLoop, began: threading.Event) -> None:
        try:
            loop.run()
        # Whatever a driver raises must end the node, and the thread cannot raise into it. Of a
        # SystemExit nobody would hear: threads end by it in silence.
        except BaseException as error:
            if loop is self._loop:
                self._failure = error
            if began.is_set():
                self.get_logger().error(f"robot loop ended: {_named(error)}")
        finally:
            began.set()

    def _raise_failure(self) -> None:
        if isinstance(self._failure, SystemExit):
            raise asked_to_exit(self._plugin, "starting it", self._failure)
        if self._failure is not None:
            raise self._failure

    def _why(self) -> str:
        return "" if self._failure is None else _named(self._failure)

    def _publish(self, began: threading.Event, state: RobotState) -> None:
        began.set()
        if self.active:  # else nobody arms
            self._send(state)
        # Here, and not by a timer: what the executor's thread does at its own time may have the
        # interpreter's lock at the next deadline.
        self._count_writers()

    def _send(self, state: RobotState) -> None:
        stamp = int(state.stamp_ns[0])
        if self._offset_ns is None:
            # Drivers count steady or simulated time; messages carry it moved to the date, by an
            # offset taken once, so that a clock that is set later changes nothing.
            self._offset_ns = time.time_ns() - stamp
        stamp += self._offset_ns
        self._writer.write(state, stamp)
        self._published[stamp] = time.monotonic_ns()
        if len(self._published) > KEPT_STAMPS:
            del self._published[next(iter(self._published))]
        if self._imu is not None:
            self._imu.publish(self._writer.imu)
        self._joint_states.publish(self._writer.joints)
        self._vitals.publish(state, stamp)
        if self._truth is not None:
            truth = self._robot.ground_truth()
            if truth is not None:
                self._truth.publish(self._odometry.write(truth, stamp))
        if self._clock_out is not None:
            self._clock_out.publish(_clock(stamp))

    def _count_writers(self) -> None:
        """Every control period: two who command one robot are none."""
        loop = self._loop
        if loop is None:
            return  # the driver's last call returned after the node gave up on it
        writers = self.count_publishers("/joint_command")
        wrong = f"{writers} publishers on /joint_command" if writers > 1 else ""
        loop.block(wrong if self.active else INACTIVE)

    # ------------------------------------------------------------ the executor's thread

    def _on_command(self, message: Any) -> None:
        loop = self._loop
        if loop is None:
            return  # the executor had this call in hand while the node was cleaned up
        try:
            targets = self._reader.read(message)
        except FerryError as error:
            loop.command(None, reason=str(error))
            self.get_logger().error(str(error), throttle_duration_sec=1.0)
            return
        loop.command(targets)
        if targets is not None and self._before is None:
            self._before = (loop.steps, loop.missed)
            loop.count_anew()
        sent_ns = self._published.get(to_ns(message.header.stamp))
        if targets is not None and sent_ns is not None:
            self._answers.add((time.monotonic_ns() - sent_ns) * 1e-9)

    def _lost(self, why: str) -> None:
        """Nobody commands any more: no need to wait until the last command is too old."""
        loop = self._loop
        if loop is not None:
            loop.command(None, reason=why)

    def describe(self) -> None:
        """Publish diagnostics: rates, lateness, and why the robot is in its safe stop, if so."""
        loop = self._loop_now
        inside_since = loop.inside_since_ns
        inside_s = (time.monotonic_ns() - inside_since) * 1e-9 if inside_since else 0.0
        level, message = OK, "following commands"
        if inside_s > BLOCKED_S:
            level, message = ERROR, f"driver call has been blocked for {inside_s:.1f} s"
        elif loop.reason:
            level, message = WARN, f"safe stop: {'; '.join([loop.reason, *self._links.problems()])}"
        values = {
            "state_rate_hz": self._rate.of(loop.steps),
            "steps": loop.steps,
            "missed_deadlines": loop.missed,
            **loop.lateness.milliseconds("lateness"),
            **loop.exchange_time.milliseconds("exchange"),
            **self._links.counts,
        }
        self.diagnose(values, level=level, message=message)

    @property
    def exit_code(self) -> int | None:
        """1 once the loop has failed; else as of every managed node."""
        return (
            1 if self._failure is not None and self.phase != "unconfigured" else super().exit_code
        )

    def close(self) -> None:
        """Stop the robot safely and wait for it."""
        try:
            self.cleanup()
        except FerryError as error:  # the exit code tells it, too
            self.get_logger().error(str(error))
        answers = self._answers.milliseconds("answer")
        self.report("summary", failure=self._why(), **{**self._end, **answers})


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _clock(stamp_ns: int) -> Any:
    message: Any = Clock()
    set_stamp(message.clock, stamp_ns)
    return message


def main() -> None:
    """Entry point of ``python -m deploy.robot_node``."""
    share_the_interpreter()  # its loop shall not wait for what comes from the network
    sys.exit(run_node(RobotNode))


if __name__ == "__main__":
    main()
