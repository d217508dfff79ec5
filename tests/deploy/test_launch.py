"""The launch file describes the graph of deploy/graph.py.

The launch packages are on no package index. Where they are installed the file runs under them;
everywhere else its calls go to a stand-in that only remembers them, so that the arguments, the
commands and the environment are compared with the graph in every run.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

from deploy.bundle import read_bundle
from deploy.graph import choose_robot, graph
from real.errors import FerryError
from tests.deploy.stand_bundle import write_bundle

pytestmark = pytest.mark.ros

FILE = Path(__file__).parents[2] / "deploy" / "launch" / "robot.launch.py"
NAMES = {
    "launch": ["LaunchContext", "LaunchDescription"],
    "launch.actions": [
        "DeclareLaunchArgument",
        "EmitEvent",
        "ExecuteProcess",
        "OpaqueFunction",
        "RegisterEventHandler",
        "SetEnvironmentVariable",
    ],
    "launch.event_handlers": ["OnProcessExit"],
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
    variables = {
        a.args[0]: a.args[1] for a in actions if isinstance(a, kinds["SetEnvironmentVariable"])
    }
    assert variables.keys() == described.environment.keys()
    assert variables["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "LOCALHOST"


def test_the_end_of_any_node_shuts_all_down(load, given):
    defined, kinds = load
    actions = defined["processes"](given)
    started = [a for a in actions if isinstance(a, kinds["ExecuteProcess"])]
    handlers = [a.args[0] for a in actions if isinstance(a, kinds["RegisterEventHandler"])]
    assert [h.options["target_action"] for h in handlers] == started
    for handler in handlers:
        (emitted,) = handler.options["on_exit"]
        assert isinstance(emitted.options["event"], kinds["Shutdown"])


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


@pytest.mark.skipif(
    importlib.util.find_spec("launch") is None, reason="the launch packages are not installed"
)
def test_the_real_launch_reads_it():
    from launch import LaunchDescription
    from launch.launch_description_sources import get_launch_description_from_any_launch_file

    assert isinstance(get_launch_description_from_any_launch_file(str(FILE)), LaunchDescription)
