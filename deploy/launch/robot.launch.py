"""Starts the graph of deploy/graph.py with `ros2 launch`; `ferry deploy` starts the same one.

ros2 launch ferry robot.launch.py bundle:=policy.onnx robot:=my_driver:MyRobot
ros2 launch deploy/launch/robot.launch.py bundle:=... robot:=...    # in a clone, not installed

Nobody arms the robot here: call `/arm` (std_srvs/srv/Trigger) when it may move.
"""

from __future__ import annotations

import difflib
import importlib.util
import shutil
import sys
import tempfile
import uuid
from pathlib import Path

from launch import LaunchContext, LaunchDescription
from launch.actions import (
    DeclareLaunchArgument,
    EmitEvent,
    ExecuteProcess,
    LogInfo,
    OpaqueFunction,
    RegisterEventHandler,
    SetEnvironmentVariable,
)
from launch.event_handlers import OnProcessExit, OnShutdown
from launch.events import Shutdown
from launch.substitutions import LaunchConfiguration

# Where the Python of `ros2` does not see Ferry: in a clone; in an environment that only
# AMENT_PREFIX_PATH names, whose PREFIX/share/ferry/launch holds this file and whose packages serve
# if both Pythons are of one version; and in a folder that `pip install --target` made.
if importlib.util.find_spec("deploy") is None:
    clone, prefix = Path(__file__).resolve().parents[2:4]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for folder in (clone, prefix / "lib" / version / "site-packages", prefix):
        if (folder / "deploy" / "graph.py").is_file():
            # Last: nothing of that environment may hide what `ros2` itself runs on.
            sys.path.append(str(folder))
            break

from deploy.graph import Graph, choose_robot, graph
from deploy.options import read_options
from deploy.preflight import Cleared, preflight
from deploy.processes import RECORDER_STOP_S
from deploy.safety import SafetySettings
from real.config import load_config
from real.errors import FerryError

ARGUMENTS = {
    "bundle": ("", "the policy, an .onnx bundle"),
    "robot": ("", "sim:pybullet, sim:mujoco, loopback, or a driver as module:Class"),
    "robot_file": ("", "robot file, by name or path; empty: the one that the bundle names"),
    "robot_options": ("{}", "options of a driver, a YAML mapping such as {port: /dev/ttyUSB0}"),
    "safety_settings": ("", "YAML file of deploy.safety.SafetySettings; empty: the defaults"),
    "record": ("", "MCAP file to record to, or folder to make for several; empty: no recording"),
    "params": ("", "parameter file of the nodes, as share/ferry/config/params.yaml; or empty"),
    "trusted_keys": ("", "folder of public keys; empty: $FERRY_TRUSTED_KEYS"),
    "minimum_score": ("", "of the evaluation that the bundle must carry, 0 to 1; empty: none"),
    "twist_stamped": ("false", "/cmd_vel is a TwistStamped"),
}


def misspelt(context: LaunchContext) -> None:
    """Refuse `safety_setings:=...`, over which `ros2 launch` passes: the robot would run without.

    Only what is almost one of our names: this file may be included by another with its own.
    """
    for given in getattr(context, "argv", []):
        name, walrus, _ = given.partition(":=")
        close = difflib.get_close_matches(name, ARGUMENTS, n=1, cutoff=0.8)
        if walrus and name not in ARGUMENTS and close:
            raise FerryError(
                f"robot.launch.py has no argument {name!r} (did you mean {close[0]!r}?)"
            )


def minimum_of(text: str) -> float | None:
    """The lowest score that is asked for; None where nothing is."""
    try:
        return float(text) if text else None
    except ValueError:
        raise FerryError(f"minimum_score:={text}: expected a number from 0 to 1") from None


def flag_of(given: dict[str, str], name: str) -> bool:
    """Whether an argument is true. A node that listens for another type would hear nobody."""
    text = given[name].lower()
    if text not in ("true", "false"):
        raise FerryError(f"{name}:={given[name]}: expected true or false")
    return text == "true"


def processes(context: LaunchContext) -> list:
    """The graph's environment and processes, for the values of the arguments."""
    misspelt(context)
    given = {name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}
    folder = Path(tempfile.gettempdir()) / f"ferry-{uuid.uuid4().hex}"
    try:
        cleared, described = checked(given, folder)
    except BaseException:  # nobody will read what is in it
        shutil.rmtree(folder, ignore_errors=True)
        raise
    actions = describe(described)
    if cleared.world:
        actions.append(LogInfo(msg=f"the simulated robot's world: {cleared.world}"))
    if folder.is_dir():  # made for a learned actuator that the bundle carries
        gone = OnShutdown(on_shutdown=lambda *_: shutil.rmtree(folder, ignore_errors=True))
        actions.append(RegisterEventHandler(gone))
    return actions


def checked(given: dict[str, str], folder: Path) -> tuple[Cleared, Graph]:
    """What passed the preflight, and its graph; a simulated robot's files are in the folder."""
    bundle = Path(given["bundle"])
    record, trusted, settings, params = (
        Path(given[name]) if given[name] else None
        for name in ("record", "trusted_keys", "safety_settings", "params")
    )
    if settings is not None:
        load_config(SafetySettings, settings)
    cleared = preflight(
        bundle,
        choose_robot(given["robot"], options=read_options([], mapping=given["robot_options"])),
        robot_name=given["robot_file"] or None,
        record=record,
        trusted_keys=trusted,
        minimum_score=minimum_of(given["minimum_score"]),
        params=params,
        folder=folder,
    )
    described = graph(
        bundle,
        cleared.choice,
        robot_name=given["robot_file"] or cleared.bundle.contract.robot,
        record=record,
        metadata=cleared.metadata(given["robot"]),
        safety_settings=settings,
        twist_stamped=flag_of(given, "twist_stamped"),
        bundle_sha256=cleared.bundle.sha256,
        trusted_keys=trusted,
        minimum_score=cleared.minimum_score,
        params=params,
    )
    return cleared, described


def describe(described: Graph) -> list:
    """What `launch` does to start a graph, and to end all of it with any of its nodes."""
    actions: list = [SetEnvironmentVariable(k, v) for k, v in described.environment.items()]
    # A simulated graph takes a free domain: without its id nobody could call `/arm`.
    domain = described.environment.get("ROS_DOMAIN_ID", "the environment's")
    actions.append(LogInfo(msg=f"ROS domain id: {domain}; call /arm when the robot may move"))
    for node in described.nodes:
        # From SIGINT to SIGTERM, which is followed by SIGKILL.
        patience = {"sigterm_timeout": str(RECORDER_STOP_S)} if node.name == "recorder_node" else {}
        process = ExecuteProcess(cmd=node.command(), name=node.name, output="screen", **patience)
        # One node gone: stop all of them, which ends in the safe stop.
        stop = OnProcessExit(
            target_action=process, on_exit=[EmitEvent(event=Shutdown(reason=node.name))]
        )
        actions += [process, RegisterEventHandler(stop)]
    return actions


def generate_launch_description() -> LaunchDescription:
    """What `ros2 launch` calls."""
    declared = [
        DeclareLaunchArgument(name, default_value=default, description=doc)
        for name, (default, doc) in ARGUMENTS.items()
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=processes)])
