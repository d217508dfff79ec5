"""Starts the graph of deploy/graph.py with `ros2 launch`; `ferry deploy` starts the same one.

ros2 launch ferry robot.launch.py bundle:=policy.onnx robot:=my_driver:MyRobot
ros2 launch deploy/launch/robot.launch.py bundle:=... robot:=...    # in a clone, not installed

Nobody arms the robot here: call `/arm` (std_srvs/srv/Trigger) when it may move.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from launch import LaunchContext, LaunchDescription
from launch.actions import (
    DeclareLaunchArgument,
    EmitEvent,
    ExecuteProcess,
    OpaqueFunction,
    RegisterEventHandler,
    SetEnvironmentVariable,
)
from launch.event_handlers import OnProcessExit
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

from deploy.graph import choose_robot, graph
from deploy.options import read_options
from deploy.preflight import preflight
from deploy.safety import SafetySettings
from real.config import load_config

ARGUMENTS = {
    "bundle": ("", "the policy, an .onnx bundle"),
    "robot": ("", "sim:pybullet, sim:mujoco, loopback, or a driver as module:Class"),
    "robot_file": ("", "robot file, by name or path; empty: the one that the bundle names"),
    "robot_options": ("{}", "options of a driver, a YAML mapping such as {port: /dev/ttyUSB0}"),
    "safety_settings": ("", "YAML file of deploy.safety.SafetySettings; empty: the defaults"),
    "record": ("", "MCAP file to record to; empty: no recording"),
    "params": ("", "parameter file of the nodes, as share/ferry/config/params.yaml; or empty"),
    "trusted_keys": ("", "folder of public keys; empty: $FERRY_TRUSTED_KEYS"),
    "twist_stamped": ("false", "/cmd_vel is a TwistStamped"),
}


def processes(context: LaunchContext) -> list:
    """The graph's environment and processes, for the values of the arguments."""
    given = {name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}
    bundle = Path(given["bundle"])
    record = Path(given["record"]) if given["record"] else None
    trusted = Path(given["trusted_keys"]) if given["trusted_keys"] else None
    settings = Path(given["safety_settings"]) if given["safety_settings"] else None
    params = Path(given["params"]) if given["params"] else None
    if settings is not None:
        load_config(SafetySettings, settings)
    options = read_options([], mapping=given["robot_options"])
    cleared = preflight(
        bundle,
        choose_robot(given["robot"], options=options),
        robot_name=given["robot_file"] or None,
        record=record,
        trusted_keys=trusted,
    )
    described = graph(
        bundle,
        cleared.choice,
        robot_name=given["robot_file"] or cleared.bundle.contract.robot,
        record=record,
        metadata={"bundle_sha256": cleared.bundle.sha256, "plugin": given["robot"]},
        safety_settings=settings,
        twist_stamped=given["twist_stamped"].lower() == "true",
        bundle_sha256=cleared.bundle.sha256,
        trusted_keys=trusted,
        params=params,
    )
    actions: list = [SetEnvironmentVariable(k, v) for k, v in described.environment.items()]
    for node in described.nodes:
        process = ExecuteProcess(cmd=node.command(), name=node.name, output="screen")
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
