from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from deploy import graph_environment
from deploy.graph import (
    LOOPBACK,
    NodeSpec,
    RobotChoice,
    choose_robot,
    graph,
)
from deploy.graph_environment import HIGHEST_DOMAIN, PROFILES, free_domain_id
from real.errors import FerryError

SIMULATED = RobotChoice(LOOPBACK, simulated=True)
HARDWARE = RobotChoice("my_driver:MyRobot", simulated=False)


def describe(robot=SIMULATED, **options):
    return graph(Path("policy.onnx"), robot, robot_name="a1", **options)


def names(described):
    return [node.name for node in described.nodes]


@pytest.mark.parametrize(
    ("text", "plugin", "simulated"),
    [
        ("sim:pybullet", "sim.sim_robot:PyBulletRobot", True),
        ("sim:mujoco", "sim.sim_robot:MujocoRobot", True),
        ("loopback", "real.loopback:LoopbackRobot", True),
        ("my_driver.a1:Robot", "my_driver.a1:Robot", False),
    ],
)
def test_the_robot_option_names_a_plug_in(text, plugin, simulated):
    choice = choose_robot(text)
    assert (choice.plugin, choice.simulated) == (plugin, simulated)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sim:pybulet", "did you mean 'pybullet'"),
        ("a1", "module:Class"),
        (":Robot", "module:Class"),
        ("my_driver:", "module:Class"),
    ],
)
def test_other_words_are_refused_with_what_was_expected(text, words):
    with pytest.raises(FerryError, match=words):
        choose_robot(text)


def test_without_a_schedule_nobody_commands_and_without_a_file_nobody_records():
    assert names(describe()) == ["policy_node", "safety_node", "robot_node"]
    full = describe(schedule=Path("s.json"), record=Path("out.mcap"))
    assert names(full) == [
        "operator_node",
        "policy_node",
        "safety_node",
        "robot_node",
        "recorder_node",
    ]
    assert [n.name for n in full.nodes if n.finishes] == ["operator_node"]


def test_policy_and_safety_read_the_same_file_and_both_watchdogs_the_same_patience():
    described = describe(watchdog_periods=4.5)
    parameters = {n.name: n.parameters for n in described.nodes}
    assert parameters["policy_node"]["bundle"] == parameters["safety_node"]["bundle"]
    assert Path(str(parameters["policy_node"]["bundle"])).is_absolute()
    assert parameters["safety_node"]["watchdog_periods"] == 4.5
    assert parameters["robot_node"]["command_timeout_periods"] == 4.5


def test_both_readers_of_the_bundle_are_told_which_bytes_were_checked():
    described = describe(bundle_sha256="c0ffee")
    told = {n.name: n.parameters.get("bundle_sha256") for n in described.nodes}
    assert told == {"policy_node": "c0ffee", "safety_node": "c0ffee", "robot_node": None}


def test_hardware_keeps_the_patience_of_the_nodes_and_a_simulation_gets_more():
    hardware = {n.name: n.parameters for n in describe(HARDWARE).nodes}
    assert "watchdog_periods" not in hardware["safety_node"]
    assert "command_timeout_periods" not in hardware["robot_node"]
    simulated = {n.name: n.parameters for n in describe().nodes}
    assert simulated["safety_node"]["watchdog_periods"] == 10.0
    assert simulated["robot_node"]["command_timeout_periods"] == 10.0


@pytest.fixture
def shell(monkeypatch):
    """A user's environment in which nothing is said of Fast DDS."""
    for name in (*PROFILES, "RMW_IMPLEMENTATION"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_a_simulated_graph_stays_on_this_computer_in_a_domain_of_its_own(shell):
    shell.setenv("ROS_DOMAIN_ID", "0")
    shell.setenv("ROS_STATIC_PEERS", "192.168.1.7")
    shell.setenv("ROS_DISCOVERY_SERVER", "192.168.1.7:11811")
    environment = describe().environment
    assert environment["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "SYSTEM_DEFAULT"
    assert environment["RMW_IMPLEMENTATION"] == "rmw_fastrtps_cpp"
    for name in PROFILES:
        assert "<address>127.0.0.1</address>" in Path(environment[name]).read_text()
    assert environment["ROS_STATIC_PEERS"] == environment["ROS_DISCOVERY_SERVER"] == ""
    assert 1 <= int(environment["ROS_DOMAIN_ID"]) <= HIGHEST_DOMAIN
    assert describe(domain_id=42).environment["ROS_DOMAIN_ID"] == "42"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "/my/own.xml") for name in PROFILES),
        ("RMW_IMPLEMENTATION", "rmw_cyclonedds_cpp"),
    ],
)
def test_it_does_so_by_ros_s_own_means_where_the_user_chose_another_wire(shell, name, value):
    shell.setenv(name, value)
    environment = describe().environment
    assert environment["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "LOCALHOST"
    assert environment.get(name, value) == value


def test_hardware_is_reached_where_the_environment_says():
    environment = describe(HARDWARE).environment
    assert "ROS_DOMAIN_ID" not in environment
    assert "ROS_AUTOMATIC_DISCOVERY_RANGE" not in environment
    assert "ROS_STATIC_PEERS" not in environment


@pytest.mark.parametrize("choice", [SIMULATED, HARDWARE])
def test_the_dds_profile_is_set_for_both_distributions_unless_the_user_has_one(shell, choice):
    environment = describe(choice).environment
    (shipped,) = {environment[name] for name in PROFILES}
    assert "<nanosec>200000000</nanosec>" in Path(shipped).read_text()
    shell.setenv(PROFILES[0], "")
    assert describe(choice).environment[PROFILES[0]] == shipped
    shell.setenv(PROFILES[1], "/my/own.xml")
    assert describe(choice).environment[PROFILES[1]] == "/my/own.xml"
    assert "127.0.0.1" not in Path(describe(choice).environment[PROFILES[0]]).read_text()


def test_both_profiles_say_the_same_of_discovery():
    hardware, local = (
        ElementTree.parse(Path(graph_environment.__file__).with_name(name))
        for name in ("fastdds.xml", "fastdds_local.xml")
    )
    place = ".//{*}builtin/{*}discovery_config"
    told = [ElementTree.tostring(tree.find(place)).split() for tree in (hardware, local)]
    assert told[0] == told[1]


def test_a_domain_in_use_is_left_alone():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        domain = free_domain_id()
        taken.bind(("", 7410 + 250 * domain))
        assert free_domain_id([domain, domain + 1 if domain < 101 else 1]) != domain
        with pytest.raises(FerryError, match="no free DDS domain id"):
            free_domain_id([domain])


ECHO = """
import json, sys
import rclpy
rclpy.init()
node = rclpy.create_node("echo", automatically_declare_parameters_from_overrides=True)
values = {n: node.get_parameter(n).value for n in json.loads(sys.stdin.read())}
print(json.dumps(values))
"""


@pytest.mark.ros
def test_parameters_arrive_as_the_types_they_left_as(tmp_path):
    parameters = {
        "json": '{"start": {"a": 0.5}, "name": "x: y"}',
        "empty": "{}",
        "number_as_text": "007",
        "path": "/tmp/a b/ü.onnx",
        "flag": True,
        "whole": 3.0,
        "tiny": 1e-07,
        "count": 4,
    }
    (tmp_path / "echo.py").write_text(ECHO)
    argv = NodeSpec("echo", "echo", parameters).command()
    assert argv[:3] == [sys.executable, "-m", "echo"]
    done = subprocess.run(
        argv,
        cwd=tmp_path,
        input=json.dumps(list(parameters)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert got == parameters
    assert {k: type(v) for k, v in got.items()} == {k: type(v) for k, v in parameters.items()}
