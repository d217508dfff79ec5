"""What safety_node says: commands to the robot, the mode, and the verdict of each decision."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from std_msgs.msg import String

from deploy.convert import CommandWriter
from deploy.lifecycle import ManagedNode
from deploy.links import Links, offered
from deploy.modes import Mode
from deploy.records import VerdictWriter
from deploy.safety_pipeline import SafetyTick
from real.contract import PolicyContract


class SafetyOut:
    """``/joint_command``, ``/safety/mode`` and ``/safety/step`` of a node.

    The mode can be told from the start, and commands from the first :meth:`connect` on. Their
    publisher outlives the node's cleanup, so that the safe stop does.

    Args:
        node: whose publishers these are.
    """

    def __init__(self, node: ManagedNode) -> None:
        self._node = node
        # A plain publisher, latched: it must also tell of stops while the node is inactive.
        self._mode = node.publish_on("/safety/mode")
        self._command: Any = None
        self._repeat: Any = None

    def connect(self, contract: PolicyContract, links: Links) -> None:
        """Publish commands for a contract's joints from now on, those of the last one no more."""
        old = (self._command, self._repeat)
        # First: nobody may publish on what is destroyed, should the new one not come to be.
        self._command = self._repeat = None
        for entity in old:
            if entity is not None:
                self._node.give_up(entity)
        self._writer = CommandWriter(contract.action.joints)
        self._period_s = contract.control_dt_s
        qos = offered(self._period_s)
        self._command = self._node.keep(
            self._node.publish_on("/joint_command", qos=qos, links=links)
        )
        self._verdict, self._record = self._node.publish_on("/safety/step"), VerdictWriter()

    def tell_mode(self, mode: Mode) -> None:
        """Publish a mode."""
        self._mode.publish(String(data=mode.name))

    def stop(self, stamp_ns: int | None) -> None:
        """Command the safe stop, in answer to a state of this stamp or at the time of now [ns].

        Nothing happens before there is a publisher.
        """
        if self._command is not None:
            self._command.publish(self._writer.safe_stop(stamp_ns or time.time_ns()))

    def repeat(self, stop: Callable[[], None]) -> None:
        """Call ``stop`` in every control period until the next :meth:`connect`, cleanup or not."""
        if self._command is not None and self._repeat is None:
            self._repeat = self._node.keep(self._node.every(self._period_s, stop))

    def command(self, stamp_ns: int, tick: SafetyTick) -> None:
        """Publish what a decision lets through, or the safe stop."""
        if tick.stop[0]:
            message = self._writer.safe_stop(stamp_ns)
        else:
            message = self._writer.targets(stamp_ns, tick.command.q_des[0])
        self._command.publish(message)

    def verdict(self, stamp_ns: int, tick: SafetyTick) -> None:
        """Publish what was decided, for the recording."""
        self._verdict.publish(self._record.write(stamp_ns, tick))
