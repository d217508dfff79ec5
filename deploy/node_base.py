"""What all nodes share: QoS, parameters, watchdog timers, diagnostics, start and end.

Executor: rclpy's events executor where it exists. At 200 Hz it costs a third of the wait-set
executor's processor time. It is driven by ``spin_once``: its ``spin`` keeps a core busy.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import rclpy
from rcl_interfaces.msg import FloatingPointRange, ParameterDescriptor
from rclpy.clock import Clock, ClockType
from rclpy.exceptions import InvalidParameterValueException
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions
from std_srvs.srv import Trigger

from deploy.convert import LATCHED, TOPICS
from deploy.graph import STATUS_ENV
from deploy.graph_environment import require_this_computer
from deploy.links import Links
from deploy.parameters import usage
from deploy.punctual import settle_memory
from deploy.records import OK, diagnostics
from real.errors import FerryError

logger = logging.getLogger(__name__)


def _profile(reliability: Any, durability: Any, depth: int) -> Any:
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=reliability,
        durability=durability,
    )


#: Publishers are reliable, subscribers best effort: compatible with either side.
PUBLISH = _profile(ReliabilityPolicy.RELIABLE, DurabilityPolicy.VOLATILE, 1)
SUBSCRIBE = _profile(ReliabilityPolicy.BEST_EFFORT, DurabilityPolicy.VOLATILE, 1)
LATCH = _profile(ReliabilityPolicy.RELIABLE, DurabilityPolicy.TRANSIENT_LOCAL, 1)
#: A recorder must not lose what arrives while it writes.
RECORD = _profile(ReliabilityPolicy.BEST_EFFORT, DurabilityPolicy.VOLATILE, 2000)
RECORD_LATCH = _profile(ReliabilityPolicy.RELIABLE, DurabilityPolicy.TRANSIENT_LOCAL, 100)


class FerryNode(Node):
    """A node of the graph.

    Args:
        name: node name; also its name in diagnostics and status lines.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        require_this_computer()  # before anything is published
        # The steady clock: a watchdog must not stop because somebody set the time.
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._diagnostics = self.publish_on("/diagnostics")

    # ------------------------------------------------------------------ parameters

    def text(self, name: str, default: str, doc: str, *, read_only: bool = True) -> str:
        """Declare and read a text parameter."""
        descriptor = ParameterDescriptor(description=doc, read_only=read_only, dynamic_typing=True)
        value = self.declare_parameter(name, default, descriptor).value
        # `-p robot:=1` arrives as a number, although a name was meant.
        return "" if value is None else str(value)

    def needed(self, name: str, doc: str, *, read_only: bool = True) -> str:
        """Declare and read a text parameter that must be given.

        Raises:
            FerryError: it is absent or empty.
        """
        value = self.text(name, "", doc, read_only=read_only)
        if not value:
            raise FerryError(
                f"{self.get_name()}: parameter {name} is missing ({doc}); "
                f"give --ros-args -p {name}:=..."
            )
        return value

    def number(self, name: str, default: float, doc: str, *, low: float, high: float) -> float:
        """Declare and read a number; an integer is as good as a float.

        Raises:
            FerryError: not a number, or outside ``[low, high]``.
        """
        descriptor = ParameterDescriptor(
            description=f"{doc}; {low} to {high}",
            read_only=True,
            dynamic_typing=True,
            floating_point_range=[FloatingPointRange(from_value=low, to_value=high, step=0.0)],
        )
        try:
            value = self.declare_parameter(name, default, descriptor).value
        except InvalidParameterValueException as error:
            raise FerryError(f"{self.get_name()}: parameter {name}: {error}") from error
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise FerryError(f"{self.get_name()}: parameter {name} is {value!r}; expected a number")
        if not low <= value <= high:
            raise FerryError(
                f"{self.get_name()}: parameter {name} is {value}; expected {low} to {high}"
            )
        return float(value)

    def flag(self, name: str, default: bool, doc: str) -> bool:
        """Declare and read a parameter that is true or false.

        Raises:
            FerryError: it is neither.
        """
        descriptor = ParameterDescriptor(description=doc, read_only=True, dynamic_typing=True)
        value = self.declare_parameter(name, default, descriptor).value
        if not isinstance(value, bool):
            raise FerryError(
                f"{self.get_name()}: parameter {name} is {value!r}; expected true or false"
            )
        return value

    # ------------------------------------------------------------------ topics and timers

    def publish_on(
        self, topic: str, *, type_: type | None = None, qos: Any = None, links: Links | None = None
    ) -> Any:
        """Publisher on a topic of the wire, with its type and QoS; its events go to ``links``."""
        profile = qos or (LATCH if topic in LATCHED else PUBLISH)
        events = {} if links is None else {"event_callbacks": links.sent(topic, profile)}
        return self.create_publisher(type_ or TOPICS[topic], topic, profile, **events)

    def listen(
        self,
        topic: str,
        callback: Callable[[Any], None],
        *,
        type_: type | None = None,
        qos: Any = None,
        links: Links | None = None,
    ) -> None:
        """Subscribe to a topic of the wire, with its type and QoS; its events go to ``links``."""
        profile = qos or (LATCH if topic in LATCHED else SUBSCRIBE)
        events = {} if links is None else {"event_callbacks": links.heard(topic, profile)}
        self.create_subscription(type_ or TOPICS[topic], topic, callback, profile, **events)

    def listen_raw(
        self,
        topic: str,
        callback: Callable[[bytes], None],
        *,
        qos: Any = None,
        type_: type | None = None,
        links: Links | None = None,
    ) -> None:
        """Subscribe to the serialised messages of a topic of the wire."""
        profile = qos or (LATCH if topic in LATCHED else SUBSCRIBE)
        events = {} if links is None else {"event_callbacks": links.heard(topic, profile)}
        self.create_subscription(
            type_ or TOPICS[topic], topic, callback, profile, raw=True, **events
        )

    def every(self, seconds: float, callback: Callable[[], None]) -> Any:
        """Call back periodically on the steady clock; returns the timer."""
        return self.create_timer(seconds, callback, clock=self._steady)

    def serve(self, name: str, action: Callable[[], str]) -> None:
        """Offer a Trigger service; ``action`` returns why it refuses, or nothing."""

        def answer(_request: Any, response: Any) -> Any:
            response.message = action()
            response.success = not response.message
            if response.message:
                self.get_logger().warning(f"{name} refused: {response.message}")
            return response

        self.create_service(Trigger, name, answer)

    # ------------------------------------------------------------------ reports

    def diagnose(
        self, values: Mapping[str, object], *, level: bytes = OK, message: str = "ok"
    ) -> None:
        """Publish this node's diagnostics, stamped with the system's time."""
        self._diagnostics.publish(
            diagnostics(
                self.get_name(), time.time_ns(), level=level, message=message, values=values
            )
        )

    def report(self, event: str, **fields: object) -> None:
        """Tell the supervisor: one JSON line on standard output, where it asked for them."""
        if STATUS_ENV in os.environ:
            line = json.dumps({"node": self.get_name(), "event": event, **fields})
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    # ------------------------------------------------------------------ start and end

    def start(self) -> None:
        """Begin to work, once :func:`run_node` has made the node."""

    @property
    def exit_code(self) -> int | None:
        """Set by a node that has finished its work; ends :func:`run_node`."""
        return None

    def close(self) -> None:
        """Leave everything safe. Called exactly once, whatever ended the node."""


def make_executor() -> Any:
    """The cheapest executor this rclpy has."""
    try:
        from rclpy.experimental.events_executor import EventsExecutor
    except ImportError:
        return SingleThreadedExecutor()
    return EventsExecutor()


def run_node(factory: Callable[[], FerryNode], args: Sequence[str] | None = None) -> int:
    """Run a node until it is told to stop, and close it in every case.

    SIGINT and SIGTERM end the loop instead of the process, so that ``close`` (the safe stop)
    always runs. An exception does the same and is reported.

    Args:
        factory: makes the node, after rclpy is ready.
        args: command line, ``sys.argv`` if None.

    Returns:
        Exit code: 0 for a normal end, 2 for a mistake the user can mend, 1 for any other.
    """
    if {"-h", "--help"} & set(sys.argv[1:] if args is None else args):
        module = sys.modules[factory.__module__]
        sys.stdout.write(usage(Path(str(module.__file__)).stem, module.__doc__ or ""))
        return 0
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    stopping: list[int] = []

    def ask_to_stop(number: int, _frame: object) -> None:
        stopping.append(number)

    if STATUS_ENV in os.environ:
        watch = threading.Thread(target=_stop_with_parent, args=(stopping,), daemon=True)
        watch.start()
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    signal.signal(signal.SIGINT, ask_to_stop)
    signal.signal(signal.SIGTERM, ask_to_stop)
    node: FerryNode | None = None
    code = 0
    try:
        node = factory()
        settle_memory()  # before a robot's driver is served, which would wait for it
        node.start()
        executor = make_executor()
        executor.add_node(node)
        while not stopping and node.exit_code is None:
            executor.spin_once(timeout_sec=0.05)
        code = node.exit_code or 0
    except FerryError as error:
        code = 2
        _fail(node, str(error))
    except ExternalShutdownException:
        pass
    except Exception as error:
        logger.exception("node ended by an exception")
        code = 1
        _fail(node, f"{type(error).__name__}: {error}")
    finally:
        try:
            if node is not None:
                node.close()
                code = code or node.exit_code or 0  # closing is where the last safe stop may fail
                node.destroy_node()
        finally:
            if rclpy.ok():
                rclpy.shutdown()
    return code


def wait_for_end_of_input() -> None:
    """Return when who started this process is gone, killed included: it holds our input open."""
    # Not sys.stdin: a thread inside its lock aborts the interpreter's shutdown.
    while os.read(0, 4096):
        pass


def _stop_with_parent(stopping: list[int]) -> None:
    wait_for_end_of_input()
    stopping.append(0)


def _fail(node: FerryNode | None, message: str) -> None:
    logger.error("%s", message)
    if node is not None:
        node.report("error", message=message)
    elif STATUS_ENV in os.environ:
        sys.stdout.write(json.dumps({"node": "", "event": "error", "message": message}) + "\n")
        sys.stdout.flush()
