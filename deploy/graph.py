"""The ROS graph as data: which nodes, with which parameters, in which environment.

``deploy/launch/robot.launch.py`` and :mod:`deploy.graph_run` both start what :func:`graph`
describes, so that they cannot differ.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from deploy.graph_environment import graph_environment
from deploy.parameters import read_parameter_file
from deploy.yaml_text import yaml_scalar
from real.errors import FerryError, nearest

Parameter = bool | int | float | str

#: Names after ``sim:`` and the plug-ins they mean. Plug-ins are named, never imported, here.
SIMULATORS = {
    "pybullet": "sim.sim_robot:PyBulletRobot",
    "mujoco": "sim.sim_robot:MujocoRobot",
}
LOOPBACK = "real.loopback:LoopbackRobot"

#: Control periods of silence until a simulated robot is stopped; hardware gets three. A simulation
#: shares its cores with whatever else its user runs, and then pauses of 100 ms are ordinary; a
#: robot computer must not have them. So a simulated graph does not show that a computer is fast
#: enough for hardware: the latencies that ``ferry deploy`` reports do.
SIMULATION_PERIODS = 10.0

#: Set by the supervisor: nodes then write one JSON line per event on standard output, and stop
#: when their standard input ends.
STATUS_ENV = "FERRY_STATUS"


@dataclass(frozen=True)
class RobotChoice:
    """What ``--robot`` means.

    Attributes:
        plugin: RobotIO plug-in, ``module:Class``.
        simulated: whether nothing real can move.
        options: keyword arguments of the plug-in.
    """

    plugin: str
    simulated: bool
    options: Mapping[str, object] = field(default_factory=dict[str, object])


def choose_robot(text: str, *, options: Mapping[str, object] | None = None) -> RobotChoice:
    """Read ``sim:pybullet``, ``sim:mujoco``, ``loopback`` or ``module:Class``.

    Args:
        text: which of them.
        options: keyword arguments of the plug-in.

    Raises:
        FerryError: none of these.
    """
    given = dict(options or {})
    if text == "loopback":
        return RobotChoice(LOOPBACK, simulated=True, options=given)
    left, colon, right = text.partition(":")
    if left == "sim":
        if right not in SIMULATORS:
            raise FerryError(
                f"robot {text!r}: no simulator {right!r}{nearest(right, SIMULATORS)}; "
                f"expected {' or '.join('sim:' + n for n in SIMULATORS)}"
            )
        return RobotChoice(SIMULATORS[right], simulated=True, options=given)
    if not colon or not left or not right:
        raise FerryError(
            f"robot {text!r}: expected {', '.join('sim:' + n for n in SIMULATORS)}, loopback, or a "
            "driver as module:Class"
        )
    return RobotChoice(text, simulated=text in (*SIMULATORS.values(), LOOPBACK), options=given)


@dataclass(frozen=True)
class NodeSpec:
    """One process of the graph.

    Attributes:
        name: node name.
        module: run as ``python -m module``.
        parameters: ROS parameters.
        finishes: whether its end, with exit code 0, is the graph's normal end.
        params: parameter file, read before ``parameters``, which win.
    """

    name: str
    module: str
    parameters: Mapping[str, Parameter]
    finishes: bool = False
    params: Path | None = None

    def command(self) -> list[str]:
        """The command line that starts it."""
        argv = [sys.executable, "-m", self.module, "--ros-args", "-r", f"__node:={self.name}"]
        if self.params is not None:
            argv += ["--params-file", str(self.params)]
        return argv + parameter_arguments(self.parameters)


def parameter_arguments(parameters: Mapping[str, Parameter]) -> list[str]:
    """Parameters as arguments of ROS, behind ``--ros-args``."""
    return [a for name, value in parameters.items() for a in ("-p", f"{name}:={_yaml(value)}")]


def _yaml(value: Parameter) -> str:
    """A value as ROS reads it: YAML, where only quotes keep a text from becoming a number."""
    if isinstance(value, float):
        # ROS reads "1e-07" as a text; "1.0e-07" is a number.
        mantissa, e, exponent = repr(value).partition("e")
        return mantissa + ("" if "." in mantissa else ".0") + e + exponent
    return yaml_scalar(value)


@dataclass(frozen=True)
class Graph:
    """Processes and what they share.

    Attributes:
        nodes: in the order in which they are stopped: who commands first, who records last.
        environment: variables set for every process, on top of the inherited ones.
        simulated: whether nothing real can move.
    """

    nodes: tuple[NodeSpec, ...]
    environment: Mapping[str, str]
    simulated: bool


def graph(
    bundle: Path,
    robot: RobotChoice,
    *,
    robot_name: str,
    schedule: Path | None = None,
    repeat: bool = False,
    arm_timeout_s: float = 30.0,
    report: Path | None = None,
    record: Path | None = None,
    metadata: Mapping[str, str] | None = None,
    safety_settings: Path | None = None,
    twist_stamped: bool = False,
    publish_clock: bool = False,
    watchdog_periods: float | None = None,
    domain_id: int | None = None,
    bundle_sha256: str = "",
    trusted_keys: Path | None = None,
    minimum_score: float | None = None,
    params: Path | None = None,
) -> Graph:
    """Describe the graph that runs a bundle on a robot.

    Args:
        bundle: the policy.
        robot: the plug-in.
        robot_name: robot file, by name or path.
        schedule: what an operator node plays; without one a person arms and drives.
        repeat: begin the schedule anew at its end.
        arm_timeout_s: how long the operator node tries to arm [s].
        report: file that the operator node writes at its end.
        record: MCAP file to record to.
        metadata: texts kept in the recording.
        safety_settings: YAML file of :class:`deploy.safety.SafetySettings`.
        twist_stamped: ``/cmd_vel`` is a TwistStamped.
        publish_clock: the robot publishes ``/clock``.
        watchdog_periods: control periods of silence until the safe stop, for both watchdogs and
            the ages of states and commands; None: the nodes' own, or :data:`SIMULATION_PERIODS`
            where nothing real can move.
        domain_id: of DDS; None takes a free one for a simulated robot, and the environment's for
            hardware.
        bundle_sha256: of the file that was checked; the nodes refuse to start on another. Empty:
            not compared.
        trusted_keys: folder of keys with one of which every bundle must be signed, also one that is
            loaded later; None: as the environment says.
        minimum_score: lowest score of the evaluation that every bundle must carry; None asks for
            no evaluation, unless ``params`` does.
        params: parameter file for all nodes. What is asked for here wins over it, and it wins over
            what nobody asked for: flags that are off, and the watchdogs of a simulated robot.
    """
    unasked = _unasked(twist_stamped, publish_clock, watchdog_periods)
    if watchdog_periods is None and robot.simulated:
        watchdog_periods = SIMULATION_PERIODS
    checked = _checked(bundle, bundle_sha256, trusted_keys, minimum_score)
    nodes: list[NodeSpec] = []
    if schedule is not None:
        nodes.append(
            _operator(schedule, repeat, arm_timeout_s, twist_stamped=twist_stamped, report=report)
        )
    policy: dict[str, Parameter] = {**checked, "twist_stamped": twist_stamped}
    nodes += [
        NodeSpec("policy_node", "deploy.policy_node", policy),
        _safety(checked, safety_settings, watchdog_periods),
        _driver(robot, robot_name, watchdog_periods, publish_clock=publish_clock),
    ]
    if record is not None:
        nodes.append(_recorder(record, metadata or {}, twist_stamped=twist_stamped))
    return Graph(
        nodes=tuple(nodes if params is None else _with_file(nodes, params, unasked)),
        environment=graph_environment(simulated=robot.simulated, domain_id=domain_id),
        simulated=robot.simulated,
    )


def _safety(
    checked: Mapping[str, Parameter], settings: Path | None, periods: float | None
) -> NodeSpec:
    parameters = dict(checked)
    if settings is not None:
        parameters["safety_settings"] = str(settings.absolute())
    if periods is not None:
        parameters["watchdog_periods"] = periods
    return NodeSpec("safety_node", "deploy.safety_node", parameters)


def _driver(
    robot: RobotChoice, robot_name: str, periods: float | None, *, publish_clock: bool
) -> NodeSpec:
    parameters: dict[str, Parameter] = {
        "robot": robot_name,
        "plugin": robot.plugin,
        "plugin_options": json.dumps(dict(robot.options)),
        "publish_clock": publish_clock,
    }
    if periods is not None:
        parameters["command_timeout_periods"] = periods
    return NodeSpec("robot_node", "deploy.robot_node", parameters)


def _recorder(record: Path, metadata: Mapping[str, str], *, twist_stamped: bool) -> NodeSpec:
    parameters: dict[str, Parameter] = {
        "path": str(record.absolute()),
        "twist_stamped": twist_stamped,
        "metadata": json.dumps(dict(metadata)),
    }
    return NodeSpec("recorder_node", "deploy.recorder_node", parameters)


def _checked(
    bundle: Path, sha256: str, keys: Path | None, minimum: float | None
) -> dict[str, Parameter]:
    """What every node that reads the bundle holds it against."""
    out: dict[str, Parameter] = {"bundle": str(bundle.absolute()), "bundle_sha256": sha256}
    if keys is not None:
        out["trusted_keys"] = str(keys.absolute())
    if minimum is not None:
        out |= {"require_evaluation": True, "minimum_score": float(minimum)}
    return out


def _unasked(stamped: bool, clock: bool, periods: float | None) -> set[str]:
    """Parameters for which a file may speak, since nobody who asked for the graph did."""
    flags = {"twist_stamped": stamped, "publish_clock": clock}
    watchdogs = {"watchdog_periods", "command_timeout_periods"} if periods is None else set[str]()
    return {name for name, on in flags.items() if not on} | watchdogs


def _with_file(nodes: Iterable[NodeSpec], file: Path, unasked: set[str]) -> Iterable[NodeSpec]:
    """The nodes with a parameter file, which decides what is in it and nobody asked for."""
    given = read_parameter_file(file)
    for node in nodes:
        leave = unasked & given[node.name].keys()
        kept = {name: value for name, value in node.parameters.items() if name not in leave}
        yield replace(node, parameters=kept, params=file.absolute())


def _operator(
    schedule: Path,
    repeat: bool,
    arm_timeout_s: float,
    *,
    twist_stamped: bool,
    report: Path | None,
) -> NodeSpec:
    parameters: dict[str, Parameter] = {
        "schedule": str(schedule.absolute()),
        "repeat": repeat,
        "arm_timeout_s": arm_timeout_s,
        "twist_stamped": twist_stamped,
    }
    if report is not None:
        parameters["report"] = str(report.absolute())
    return NodeSpec("operator_node", "deploy.operator_node", parameters, finishes=True)
