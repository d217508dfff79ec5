"""Plays a schedule of commands, as a person with a joystick would: arm, drive, disarm.

It uses nothing that a person could not use: ``/cmd_vel`` or, for an arm, ``/target_pose``, the
services and ``/safety/mode``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import Any

from geometry_msgs.msg import TwistStamped
from rclpy.qos import QoSCompatibility, qos_check_compatible
from std_srvs.srv import Trigger

from deploy.convert import TOPICS, make_pose, make_twist, type_name
from deploy.modes import MOVING, STOPPED, Mode
from deploy.node_base import FerryNode, run_node
from deploy.schedule import Schedule

#: Arming is tried again this often [s]; the reasons of the last refusal are reported.
RETRY_S = 0.25
#: After this long an answer is lost, not late [s]: DDS drops one whose client the service has not
#: discovered yet.
LOST_S = 5.0


class _Phase(Enum):
    CONNECT = auto()
    ARM = auto()
    RAMP = auto()
    PLAY = auto()
    DISARM = auto()
    DONE = auto()


class OperatorNode(FerryNode):
    """Schedule -> commands, ``/arm``, ``/disarm``; ends by itself. See the module."""

    def __init__(self) -> None:
        super().__init__("operator_node")
        self._schedule = Schedule.load(Path(self.needed("schedule", "schedule file, JSON")))
        self._repeat = self.flag("repeat", False, "begin anew at the end, until stopped")
        self._report_path = self.text("report", "", "JSON file to write at the end; or empty")
        patience = self.number("arm_timeout_s", 30.0, "how long to try to arm", low=0.0, high=600.0)
        self._deadline = time.monotonic() + patience
        self._phase, self._failure, self._code = _Phase.CONNECT, "", None
        self._mode = ""
        self._facts: dict[str, object] = {"completed": False}
        self._start = 0.0
        self._row = 0
        self._arm = self.create_client(Trigger, "/arm")
        self._disarm = self.create_client(Trigger, "/disarm")
        self._stamped = self.flag("twist_stamped", False, "/cmd_vel is a TwistStamped")
        self._topic = "/target_pose" if self._schedule.frame else "/cmd_vel"
        twists = self._stamped and not self._schedule.frame
        kind = TwistStamped if twists else TOPICS[self._topic]
        self._out, self._out_type = self.publish_on(self._topic, type_=kind), type_name(kind)
        self._pending: Any = None
        self._retry_at = self._lost_at = 0.0
        self._asked = self._moves = False
        self.listen("/safety/mode", self._on_mode)
        self.every(self._schedule.dt_s, self._step)
        self.report("ready", seconds=self._schedule.seconds)

    # ------------------------------------------------------------ one step per command

    def _step(self) -> None:
        self._command()
        steps: dict[_Phase, Callable[[], None]] = {
            _Phase.CONNECT: self._connect,
            _Phase.ARM: self._try_to_arm,
            _Phase.RAMP: self._wait_for_run,
            _Phase.PLAY: self._advance,
            _Phase.DISARM: self._wait_for_disarm,
        }
        if self._phase in steps:
            steps[self._phase]()

    def _command(self) -> None:
        """Publish a command. Velocities in every phase, so that the policy never waits for one."""
        schedule, playing = self._schedule, self._phase is _Phase.PLAY
        row = schedule.commands[self._row]
        if schedule.frame:
            if playing:  # without a target an arm stays where it is
                pose = make_pose(row.tolist(), schedule.frame)
                pose.header.stamp = self.get_clock().now().to_msg()
                self._out.publish(pose)
            return
        twist = make_twist((row if playing else 0.0 * row).tolist(), schedule.names)
        if self._stamped:
            stamped: Any = TwistStamped(twist=twist)
            stamped.header.stamp = self.get_clock().now().to_msg()
            twist = stamped
        self._out.publish(twist)

    def _connect(self) -> None:
        if self._arm.service_is_ready() and self._policy_hears():
            self._phase = _Phase.ARM
        elif time.monotonic() > self._deadline:
            self._give_up(
                f"nobody offers /arm, or no policy listens to {self._topic} as {self._out_type}"
            )

    def _policy_hears(self) -> bool:
        """Whether a node that answers states is matched on the topic, and not a recorder alone.

        Of a match only their number is told, so all that are known and can hear must be matched.
        That two answer states is for ``/arm`` to refuse, with its reason.
        """
        policies = {i.node_name for i in self.get_publishers_info_by_topic("/policy/joint_command")}
        known = self.get_subscriptions_info_by_topic(self._topic)
        able = [info.node_name for info in known if self._can_hear(info)]
        found = not policies.isdisjoint(able)
        return found and self._out.get_subscription_count() >= len(able)

    def _can_hear(self, listener: Any) -> bool:
        # As the graph tells of it: a profile of one's own has 0 where that says "for ever".
        sent = self.get_publishers_info_by_topic(self._topic)
        own = [info.qos_profile for info in sent if info.node_name == self.get_name()]
        fits = [qos_check_compatible(qos, listener.qos_profile)[0] for qos in own]
        return listener.topic_type == self._out_type and QoSCompatibility.ERROR not in fits

    def _try_to_arm(self) -> None:
        now, pending = time.monotonic(), self._pending
        if self._moves:
            self._armed()
        elif pending is None:
            if now >= self._retry_at:
                self._asked = self._asked or self._among(STOPPED)
                self._pending, self._lost_at = self._arm.call_async(Trigger.Request()), now + LOST_S
        elif pending.done():
            answer, self._pending, self._retry_at = pending.result(), None, now + RETRY_S
            if answer.success:
                self._armed()
            elif now > self._deadline:
                self._give_up(f"arming refused: {answer.message}")
        elif now > self._deadline + 2.0:
            self._give_up("/arm does not answer")
        elif now > self._lost_at:
            self._pending = None

    def _among(self, modes: tuple[Mode, ...]) -> bool:
        return self._mode in [mode.name for mode in modes]

    def _armed(self) -> None:
        self._facts["arm_ns"] = time.time_ns()
        self._phase = _Phase.RAMP

    def _wait_for_run(self) -> None:
        if self._mode == Mode.RUN.name:
            self._phase, self._start = _Phase.PLAY, time.monotonic()
            self._facts["start_ns"] = time.time_ns()
            self.report("playing", seconds=self._schedule.seconds)
        elif self._mode and self._mode != Mode.RAMP.name:
            self._give_up(f"mode is {self._mode} before the ramp was over")

    def _advance(self) -> None:
        if self._mode != Mode.RUN.name:
            self._give_up(
                f"mode is {self._mode} after {time.monotonic() - self._start:.1f} s of "
                f"{self._schedule.seconds:.1f} s"
            )
            return
        # By the clock, not by counting: a late timer must not stretch the schedule.
        row = int((time.monotonic() - self._start) / self._schedule.dt_s)
        if self._repeat:
            self._row = row % self._schedule.commands.shape[0]
        elif row < self._schedule.commands.shape[0]:
            self._row = row
        else:
            self._facts.update(completed=True)
            self._finish()

    def _finish(self) -> None:
        self._facts["end_ns"] = time.time_ns()
        self._phase, self._deadline = _Phase.DISARM, time.monotonic() + 2.0
        self._pending = self._disarm.call_async(Trigger.Request())

    def _wait_for_disarm(self) -> None:
        if (self._pending.done() and self._mode != Mode.RUN.name) or (
            time.monotonic() > self._deadline
        ):
            self._phase, self._code = _Phase.DONE, 1 if self._failure else 0

    def _give_up(self, why: str) -> None:
        self._failure = why
        self.get_logger().error(why)
        self.report("error", message=why)
        if self._disarm.service_is_ready():
            self._finish()
        else:
            self._phase, self._code = _Phase.DONE, 1

    def _on_mode(self, message: Any) -> None:
        self._mode = message.data
        # Armed, whether or not the answer arrives, and also if it is over by then.
        self._moves = self._moves or (self._asked and self._among(MOVING))

    # ------------------------------------------------------------ end

    @property
    def exit_code(self) -> int | None:
        """0 after the whole schedule, 1 if something ended it early, None until then."""
        return self._code

    def close(self) -> None:
        """Write the report; a stop from outside disarms on the way."""
        if self._phase not in (_Phase.DONE, _Phase.CONNECT) and self._disarm.service_is_ready():
            self._disarm.call_async(Trigger.Request())
            time.sleep(0.05)  # let the request leave before the node does
        facts = {**self._facts, "failure": self._failure, "seconds": self._schedule.seconds}
        if self._report_path:
            Path(self._report_path).write_text(json.dumps(facts))
        self.report("summary", **facts)


def main() -> None:
    """Entry point of ``python -m deploy.operator_node``."""
    sys.exit(run_node(OperatorNode))


if __name__ == "__main__":
    main()
