"""The node that owns the robot: any RobotIO plug-in, simulated or hardware, on the wire.

It publishes what the robot measures and applies the targets of ``/joint_command`` with the gains
of the robot's own specification. Without fresh targets it stops the robot by itself.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import replace
from typing import Any, cast

from rosgraph_msgs.msg import Clock
from std_msgs.msg import String

from deploy.convert import CommandReader, StateWriter, set_stamp, to_ns
from deploy.node_base import FerryNode, run_node
from deploy.records import ERROR, OK, WARN, OdometryWriter
from deploy.robot_loop import RobotLoop
from deploy.timing import Window
from deploy.vitals_wire import VitalsOut
from real.contract import RobotContract
from real.description import link_rotation
from real.errors import FerryError
from real.frames import multiply
from real.robot_io import RobotIO, drawn_world, load_plugin
from real.signals import RobotState
from real.spec import RobotSpec, load_robot

#: Stamps of published states that are remembered: an answer to an older one comes too late anyway.
KEPT_STAMPS = 32

#: A driver call longer than this is reported while it lasts [s].
BLOCKED_S = 0.5


def load_here(name: str) -> RobotSpec:
    """Load a robot, with the limits of its description where that file is on this computer."""
    spec = load_robot(name, read_limits=False)
    return load_robot(name) if has_description(spec) else spec


def has_description(spec: RobotSpec) -> bool:
    """Whether the robot's description lies on this computer."""
    try:
        spec.description_file()
    except FerryError:
        return False
    return True


def contract_of(spec: RobotSpec) -> RobotContract:
    """What the robot says of itself, with the IMU's rotation where its description gives it."""
    contract = RobotContract.from_spec(spec)
    if spec.imu_link is None or not has_description(spec):
        return contract
    in_file = link_rotation(spec.description_file(), link=spec.imu_link, base_link=spec.base_link)
    w, x, y, z = multiply(spec.base_rotation, in_file).tolist()
    return replace(contract, imu_rotation=(w, x, y, z))


class RobotNode(FerryNode):
    """Publishes states, applies commands; see the module."""

    def __init__(self) -> None:
        super().__init__("robot_node")
        spec = load_here(self.text("robot", "a1", "name or file of the robot"))
        self._robot = self._load(spec)
        periods = self.number(
            "command_timeout_periods",
            3.0,
            "control periods after which a command is too old",
            low=1.0,
            high=50.0,
        )
        contract = contract_of(spec)
        self._writer = StateWriter(contract, imu_in_base=not has_description(spec))
        self._reader = CommandReader(contract.actuated, what="/joint_command")
        self._odometry = OdometryWriter(spec.base_link)
        self._vitals = VitalsOut(contract, self.publish_on)
        self._offset_ns: int | None = None
        self._has_imu = spec.imu_link is not None
        self._joint_states = self.publish_on("/joint_states")
        self._imu = self.publish_on("/imu/data") if self._has_imu else None
        self._truth = self.publish_on("/ground_truth/odom") if self._robot.simulated else None
        wants_clock = self.flag("publish_clock", False, "publish /clock with the robot's time")
        self._clock_out = self.publish_on("/clock") if wants_clock else None
        self._world_out = self._tell_world()
        self._contract_out = self.publish_on("/robot/contract")
        self._contract_out.publish(String(data=contract.to_json()))
        self._loop = RobotLoop(
            self._robot,
            spec,
            command_timeout_s=periods * spec.control_dt_s,
            publish=self._publish,
        )
        self._failure = ""
        #: When the newest states were published, by stamp [ns], and how long their answers took.
        self._published: dict[int, int] = {}
        self._answers = Window()
        #: Steps and missed deadlines before the first targets came, when nodes were still starting.
        self._before: tuple[int, int] | None = None
        self._counted = (time.monotonic(), 0)
        self.listen("/joint_command", self._on_command)
        self.every(spec.control_dt_s, self._count_writers)
        self.every(1.0, self._once_a_second)
        # Named, so that a stuck driver is seen in a stack dump; a daemon, so that it cannot keep
        # the process alive after `close` has given up on it.
        self._thread = threading.Thread(target=self._run, name="robot-loop", daemon=True)
        self._thread.start()
        self.report("ready", robot=spec.name, simulated=self._robot.simulated)

    def _load(self, spec: RobotSpec) -> RobotIO:
        plugin = self.text("plugin", "real.loopback:LoopbackRobot", "RobotIO, module:Class")
        options = self.text("plugin_options", "{}", "keyword arguments of the plug-in, JSON")
        try:
            keywords: Any = json.loads(options)
        except json.JSONDecodeError as error:
            raise FerryError(f"plugin_options {options!r} is not JSON: {error}") from error
        if not isinstance(keywords, dict):
            raise FerryError(f"plugin_options {options!r}: expected a JSON object")
        robot = load_plugin(plugin, spec, options=cast("dict[str, Any]", keywords))
        unguarded = self.flag(
            "allow_no_firmware_timeout", False, "accept hardware that does not stop by itself"
        )
        if not robot.simulated and robot.command_timeout_s is None and not unguarded:
            raise FerryError(
                f"robot plug-in {plugin!r} declares no command_timeout_s: if this process hangs, "
                "nothing stops the robot. Use a driver with a firmware time-out, or set "
                "allow_no_firmware_timeout"
            )
        return robot

    def _tell_world(self) -> Any:
        """Publish what a simulated world was drawn to be, for the recording; None where hidden."""
        sample = drawn_world(self._robot)
        if sample is None:
            return None
        out = self.publish_on("/ground_truth/domain")
        out.publish(String(data=sample.to_json()))
        return out

    # ------------------------------------------------------------ the loop's thread

    def _run(self) -> None:
        try:
            self._loop.run()
        # Whatever a driver raises must end the node, and the thread cannot raise into it.
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
            self.get_logger().error(f"robot loop ended: {self._failure}")

    def _publish(self, state: RobotState) -> None:
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

    # ------------------------------------------------------------ the executor's thread

    def _on_command(self, message: Any) -> None:
        try:
            targets = self._reader.read(message)
        except FerryError as error:
            self._loop.command(None, reason=str(error))
            self.get_logger().error(str(error), throttle_duration_sec=1.0)
            return
        self._loop.command(targets)
        if targets is not None and self._before is None:
            self._before = (self._loop.steps, self._loop.missed)
        sent_ns = self._published.get(to_ns(message.header.stamp))
        if targets is not None and sent_ns is not None:
            self._answers.add((time.monotonic_ns() - sent_ns) * 1e-9)

    def _count_writers(self) -> None:
        """Every control period: two who command one robot are none."""
        writers = self.count_publishers("/joint_command")
        self._loop.block(f"{writers} publishers on /joint_command" if writers > 1 else "")

    def _once_a_second(self) -> None:
        loop = self._loop
        now, steps = time.monotonic(), loop.steps
        rate = (steps - self._counted[1]) / (now - self._counted[0])
        self._counted = (now, steps)
        inside_since = loop.inside_since_ns
        inside_s = (time.monotonic_ns() - inside_since) * 1e-9 if inside_since else 0.0
        level, message = OK, "following commands"
        if inside_s > BLOCKED_S:
            level, message = ERROR, f"driver call has been blocked for {inside_s:.1f} s"
        elif loop.reason:
            level, message = WARN, f"safe stop: {loop.reason}"
        values = {
            "state_rate_hz": rate,
            "steps": steps,
            "missed_deadlines": loop.missed,
            **loop.lateness.milliseconds("lateness"),
            **loop.exchange_time.milliseconds("exchange"),
        }
        self.diagnose(values, level=level, message=message)

    @property
    def exit_code(self) -> int | None:
        """1 once the loop has failed."""
        return 1 if self._failure else None

    def close(self) -> None:
        """Stop the robot safely and wait for it."""
        self._loop.stop()
        self._thread.join(timeout=2.0)
        if self._thread.is_alive():
            self.get_logger().error("driver call is blocked; leaving without it")
        self.report(
            "summary",
            failure=self._failure,
            steps=self._loop.steps,
            missed_deadlines=self._loop.missed,
            steps_before=(self._before or (self._loop.steps, 0))[0],
            missed_before=(self._before or (0, self._loop.missed))[1],
            **self._loop.lateness.milliseconds("lateness"),
            **self._loop.period_error.milliseconds("period_error"),
            **self._answers.milliseconds("answer"),
        )


def _clock(stamp_ns: int) -> Any:
    message: Any = Clock()
    set_stamp(message.clock, stamp_ns)
    return message


def main() -> None:
    """Entry point of ``python -m deploy.robot_node``."""
    sys.exit(run_node(RobotNode))


if __name__ == "__main__":
    main()
