"""The launch file describes the graph of deploy/graph.py.

The launch packages are on no package index. Where they are installed the file runs under them;
everywhere else its calls go to a stand-in that only remembers them, so that the arguments, the
commands and the environment are compared with the graph in every run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from deploy.bundle import read_bundle
from deploy.graph import choose_robot, graph
from real.errors import FerryError
from real.log import read_log
from real.spec import load_robot
from sim.actuator_export import servo_network
from sim.task import load_env_config
from sim.world_config import training_world
from tests.deploy.stand_bundle import stand_contract, write_bundle
from tests.extras import need

pytestmark = [pytest.mark.ros, pytest.mark.patient]

FILE = Path(__file__).parents[2] / "deploy" / "launch" / "robot.launch.py"
NAMES = {
    "launch": ["LaunchContext", "LaunchDescription"],
    "launch.actions": [
        "DeclareLaunchArgument",
        "EmitEvent",
        "ExecuteProcess",
        "LogInfo",
        "OpaqueFunction",
        "RegisterEventHandler",
        "SetEnvironmentVariable",
    ],
    "launch.event_handlers": ["OnProcessExit", "OnShutdown"],
    "launch.events": ["Shutdown"],
    "launch.substitutions": ["LaunchConfiguration"],
}


class Remembered:
    def __init__(self, *args, **options):
        self.args, self.options = args, options


@pytest.fixture
def load(monkeypatch):
    """Run the file with stand-ins; returns what it defines and the stand-ins' classes."""
    kinds: dict[str, type] = {}
    for module_name, names in NAMES.items():
        module = ModuleType(module_name)
        for name in names:
            kinds[name] = type(name, (Remembered,), {})
            setattr(module, name, kinds[name])
        monkeypatch.setitem(sys.modules, module_name, module)
    kinds["LaunchConfiguration"].perform = lambda self, context: context[self.args[0]]
    return runpy.run_path(str(FILE)), kinds


@pytest.fixture
def given(tmp_path):
    settings = tmp_path / "safety.yaml"
    settings.write_text("ramp_s: 1.5\n")
    params = tmp_path / "params.yaml"
    params.write_text("safety_node: {ros__parameters: {watchdog_periods: 6.0}}\n")
    return {
        "bundle": str(write_bundle(tmp_path / "stand.onnx")),
        "robot": "loopback",
        "robot_file": "",
        "trusted_keys": "",
        "params": str(params),
        "robot_options": "{start: {FL_hip_joint: 0.1}}",
        "safety_settings": str(settings),
        "record": str(tmp_path / "out.mcap"),
        "twist_stamped": "true",
        "minimum_score": "",
    }


def test_it_starts_exactly_the_graph(load, given):
    defined, kinds = load
    actions = defined["processes"](given)
    started = [a.options for a in actions if isinstance(a, kinds["ExecuteProcess"])]
    described = graph(
        Path(given["bundle"]),
        choose_robot("loopback", options={"start": {"FL_hip_joint": 0.1}}),
        robot_name="a1",
        record=Path(given["record"]),
        safety_settings=Path(given["safety_settings"]),
        twist_stamped=True,
        bundle_sha256=read_bundle(given["bundle"]).sha256,
        params=Path(given["params"]),
    )

    def without_metadata(argv):
        return [a for a in argv if not a.startswith("metadata:=")]

    assert [s["name"] for s in started] == [n.name for n in described.nodes]
    for launched, node in zip(started, described.nodes, strict=True):
        assert without_metadata(launched["cmd"]) == without_metadata(node.command())
    waits = {s["name"]: float(s.get("sigterm_timeout", "5")) for s in started}
    assert max(waits, key=waits.get) == "recorder_node", "it may have a full buffer to write"
    variables = {
        a.args[0]: a.args[1] for a in actions if isinstance(a, kinds["SetEnvironmentVariable"])
    }
    assert variables.keys() == described.environment.keys()
    assert variables["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "SYSTEM_DEFAULT"
    assert variables["FASTRTPS_DEFAULT_PROFILES_FILE"].endswith("fastdds_local.xml")
    (told,) = [a.options["msg"] for a in actions if isinstance(a, kinds["LogInfo"])]
    assert told.startswith(f"ROS domain id: {variables['ROS_DOMAIN_ID']};")


def test_the_end_of_any_node_shuts_all_down(load, given):
    defined, kinds = load
    actions = defined["processes"](given)
    started = [a for a in actions if isinstance(a, kinds["ExecuteProcess"])]
    handlers = [a.args[0] for a in actions if isinstance(a, kinds["RegisterEventHandler"])]
    assert [h.options["target_action"] for h in handlers] == started
    for handler in handlers:
        (emitted,) = handler.options["on_exit"]
        assert isinstance(emitted.options["event"], kinds["Shutdown"])


@pytest.fixture
def carried(given, tmp_path, monkeypatch):
    """Arguments for a bundle that carries a learned actuator, and its bytes."""
    need("mujoco")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    motors = servo_network(load_robot("a1"), tmp_path / "late.onnx", late=1)
    config = load_env_config("a1_walk", [f"actuators.network={motors}", "randomize={}"])
    contract = replace(stand_contract(), world=training_world(config))
    path = write_bundle(tmp_path / "p.onnx", contract, actuator=motors.read_bytes())
    asked = {"bundle": str(path), "robot": "sim:mujoco", "robot_options": "{}"}
    return {**given, **asked}, motors.read_bytes()


def test_a_learned_actuator_is_a_file_until_the_graph_shuts_down(load, carried):
    defined, kinds = load
    given, network = carried
    actions = defined["processes"](given)
    told = [a.options["msg"] for a in actions if isinstance(a, kinds["LogInfo"])]
    assert told[-1] == "the simulated robot's world: a plane; learned actuator late.onnx"
    (argument,) = [
        word
        for a in actions
        if isinstance(a, kinds["ExecuteProcess"])
        for word in a.options["cmd"]
        if word.startswith("plugin_options:=")
    ]
    file = Path(json.loads(json.loads(argument.partition(":=")[2]))["actuator"])
    assert file.read_bytes() == network
    (gone,) = [
        a.args[0].options["on_shutdown"]
        for a in actions
        if isinstance(a, kinds["RegisterEventHandler"]) and "on_shutdown" in a.args[0].options
    ]
    assert not gone(None, None)
    assert not file.parent.exists()


@pytest.mark.slow
def test_where_nothing_starts_no_file_of_it_stays(load, carried, tmp_path):
    defined, _ = load
    given, _ = carried
    for wrong, words in (({"robot_options": "{level: 2}"}, "level=2"), ({"record": "/"}, "exists")):
        with pytest.raises(FerryError, match=words):
            defined["processes"]({**given, **wrong})
    assert list(tmp_path.glob("ferry-*")) == []


def test_it_declares_its_arguments_with_their_meaning(load):
    defined, kinds = load
    description = defined["generate_launch_description"]()
    declared = [d for d in description.args[0] if isinstance(d, kinds["DeclareLaunchArgument"])]
    assert [d.args[0] for d in declared] == list(defined["ARGUMENTS"])
    assert all(d.options["description"] for d in declared)


def test_a_mistake_is_found_before_a_process_is_described(load, given):
    defined, _ = load
    with pytest.raises(FerryError, match="did you mean 'pybullet'"):
        defined["processes"]({**given, "robot": "sim:pybulet"})
    with pytest.raises(FerryError, match=r"none\.onnx"):
        defined["processes"]({**given, "bundle": "none.onnx"})


def test_a_flag_that_is_neither_is_refused(load, given):
    defined, _ = load
    with pytest.raises(FerryError, match="twist_stamped:=ture: expected true or false"):
        defined["processes"]({**given, "twist_stamped": "ture"})


def test_a_misspelt_argument_is_refused_and_one_of_another_file_is_not(load, given):
    """`ros2 launch` takes any name and passes over those that nobody declares."""
    defined, _ = load

    class Context(dict):
        argv = ("safety_setings:=my.yaml", "front_camera:=usb")

    with pytest.raises(FerryError, match=r"'safety_setings'.*did you mean 'safety_settings'"):
        defined["processes"](Context(given))
    Context.argv = ("robot:=loopback", "robot_name:=spot", "front_camera:=usb")
    assert defined["processes"](Context(given))


def test_a_bundle_that_was_never_evaluated_is_refused_where_that_is_asked(load, given):
    defined, _ = load
    with pytest.raises(FerryError, match=r"stand\.onnx: it carries no evaluation"):
        defined["processes"]({**given, "minimum_score": "0.5"})
    with pytest.raises(FerryError, match="minimum_score:=high: expected a number"):
        defined["processes"]({**given, "minimum_score": "high"})


SERVICE = """
import sys
from launch import LaunchDescription, LaunchService
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import AnyLaunchDescriptionSource
service = LaunchService(argv=sys.argv[2:])
arguments = [tuple(a.split(":=", 1)) for a in sys.argv[2:]]
source = AnyLaunchDescriptionSource(sys.argv[1])
included = IncludeLaunchDescription(source, launch_arguments=arguments)
service.include_launch_description(LaunchDescription([included]))
sys.exit(service.run())
"""


@pytest.mark.skipif(
    importlib.util.find_spec("launch") is None, reason="the launch packages are not installed"
)
def test_the_real_launch_starts_the_graph_and_ends_all_of_it_with_any_node(given, tmp_path):
    given = {k: v for k, v in given.items() if v and k != "safety_settings"}
    command = [sys.executable, "-c", SERVICE, str(FILE), *(f"{k}:={v}" for k, v in given.items())]
    environment = {**os.environ, "ROS_LOG_DIR": str(tmp_path / "log"), "PYTHONUNBUFFERED": "1"}
    with (tmp_path / "said").open("w+") as said:
        launched = subprocess.Popen(command, stdout=said, stderr=said, env=environment)
    try:
        deadline = time.monotonic() + 60.0
        while not _recorded(Path(given["record"])):
            assert launched.poll() is None, (tmp_path / "said").read_text()
            assert time.monotonic() < deadline, (tmp_path / "said").read_text()
            time.sleep(0.2)
        told = (tmp_path / "said").read_text()
        assert "ROS domain id: " in told
        pids = dict(re.findall(r"\[(\w+)-\d\]: process started with pid \[(\d+)\]", told))
        assert set(pids) == {"policy_node", "safety_node", "robot_node", "recorder_node"}
        os.kill(int(pids["policy_node"]), signal.SIGKILL)
        launched.wait(timeout=60.0)
    finally:
        launched.kill()
        launched.wait()
    told = (tmp_path / "said").read_text()
    for name in set(pids) - {"policy_node"}:
        assert re.search(rf"\[{name}-\d\]: process has finished cleanly", told), told
    log = read_log(given["record"])
    assert log.damage is None
    assert {"bundle_sha256", "contract", "robot"} <= log.metadata["ferry"].keys()


def _recorded(record):
    """Whether a command has reached the recording: then all nodes run and have met."""
    with contextlib.suppress(FerryError):
        return bool(len(read_log(record, topics=["/joint_command"])["/joint_command"]))
    return False
