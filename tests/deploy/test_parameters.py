"""The shipped parameter file is what the nodes declare; a user's is read strictly."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from deploy import punctual
from deploy.graph import choose_robot, graph
from deploy.parameters import OF_EVERY_NODE, SHIPPED, read_parameter_file, shipped
from real.errors import FerryError

DEPLOY = Path(__file__).parents[2] / "deploy"
DECLARING = {"text": "", "needed": "", "number": None, "flag": None}


def declared(node):
    """Name, default and description of every parameter that a node's source declares."""
    # Nodes with a lifecycle, and those that live from states, have what all of those have, too.
    files = [f"{node}.py"] + (["lifecycle.py"] if node != "operator_node" else [])
    files += ["state_listener.py"] if node in ("policy_node", "safety_node") else []
    calls = [c for f in files for c in ast.walk(ast.parse((DEPLOY / f).read_text()))]
    for call in calls:
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
            continue
        if call.func.attr in DECLARING and ast.unparse(call.func.value) == "self":
            name, *rest = (
                getattr(punctual, a.id) if isinstance(a, ast.Name) else ast.literal_eval(a)
                for a in call.args
            )
            needed = call.func.attr == "needed"
            yield name, "" if needed else rest[0], rest[0 if needed else 1]


@pytest.mark.parametrize("node", list(shipped()))
def test_the_file_names_every_parameter_of_the_node_with_its_default(node):
    found = {name: default for name, default, _ in declared(node)}
    assert found == shipped()[node]
    assert [type(v) for v in found.values()] == [type(shipped()[node][n]) for n in found]
    assert all(description for _, _, description in declared(node))


def test_every_node_that_can_be_started_is_in_the_file():
    starters = {path.name for path in (DEPLOY / "share" / "nodes").iterdir()}
    assert starters == set(shipped()) == {p.stem for p in DEPLOY.glob("*_node.py")}


def written(tmp_path, text):
    path = tmp_path / "my.yaml"
    path.write_text(text)
    return path


def test_what_ships_is_read_as_anybodys_file_and_a_wildcard_reaches_those_who_have_it(tmp_path):
    assert read_parameter_file(SHIPPED) == shipped()
    path = written(
        tmp_path,
        "/**: {ros__parameters: {twist_stamped: true, use_sim_time: false}}\n"
        "/safety_node: {ros__parameters: {watchdog_periods: 4}}\n",
    )
    assert read_parameter_file(path) == {
        "policy_node": {"twist_stamped": True},
        "safety_node": {"watchdog_periods": 4},
        "robot_node": {},
        "recorder_node": {"twist_stamped": True},
        "operator_node": {"twist_stamped": True},
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("policy_node: {ros__parameters: {sed: 3}}", "no parameter 'sed'.*did you mean 'seed'"),
        ("polcy_node: {ros__parameters: {}}", "no node 'polcy_node'.*'policy_node'"),
        ("robot_node: {publish_clock: true}", "ros__parameters.*found 'publish_clock'"),
        ("robot_node: {ros__parameters: {publish_clock: 1}}", "is 1; expected true or false"),
        ("robot_node: {ros__parameters: {command_timeout_periods: soon}}", "expected a number"),
        ("robot_node: {ros__parameters: {plugin_options: {port: 3}}}", "expected a text"),
        ("/**: {ros__parameters: {watchdog: 3}}", "no parameter 'watchdog'"),
        ("[1, 2]", "expected a mapping"),
    ],
)
def test_what_no_node_has_is_an_error_with_file_and_name(tmp_path, text, words):
    with pytest.raises(FerryError, match=r"my\.yaml.*" + words):
        read_parameter_file(written(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FerryError, match=r"none\.yaml: there is no such file"):
        read_parameter_file(tmp_path / "none.yaml")


def test_a_file_wins_over_what_nobody_asked_for_and_loses_to_what_somebody_did(tmp_path):
    path = written(
        tmp_path,
        "safety_node: {ros__parameters: {watchdog_periods: 7.0}}\n"
        "policy_node: {ros__parameters: {twist_stamped: true, bundle: other.onnx}}\n",
    )

    def described(**asked):
        made = graph(
            Path("p.onnx"), choose_robot("loopback"), robot_name="a1", params=path, **asked
        )
        return {node.name: node for node in made.nodes}

    nodes = described()
    assert "twist_stamped" not in nodes["policy_node"].parameters
    assert "watchdog_periods" not in nodes["safety_node"].parameters
    # The file says nothing of the robot's own watchdog: the one of a simulation stays.
    assert nodes["robot_node"].parameters["command_timeout_periods"] == 10.0
    assert nodes["policy_node"].parameters["bundle"] == str(Path("p.onnx").absolute())
    argv = nodes["safety_node"].command()
    assert argv[argv.index("--params-file") + 1] == str(path)
    assert argv.index("--params-file") < argv.index("-p")
    asked = described(twist_stamped=True, watchdog_periods=5.0)
    assert asked["policy_node"].parameters["twist_stamped"] is True
    assert asked["safety_node"].parameters["watchdog_periods"] == 5.0


@pytest.mark.ros
@pytest.mark.patient
def test_running_nodes_have_these_parameters_described_and_read_the_file(tmp_path):
    from rclpy.parameter_client import AsyncParameterClient

    from tests.deploy.ros_probe import PATIENCE_S, describe, running

    # Integers where the nodes want doubles: ROS would refuse or pass over them.
    path = written(
        tmp_path,
        "robot_node: {ros__parameters: {plugin_options: '{\"viscosity\": 2.0}'}}\n"
        "recorder_node: {ros__parameters: {buffer_mib: 8, split_s: 60}}\n"
        "policy_node: {ros__parameters: {minimum_score: 0}}\n",
    )
    settings = graph(
        tmp_path / "stand.onnx",
        choose_robot("loopback"),
        robot_name="a1",
        record=tmp_path / "out.mcap",
        params=path,
        watchdog_periods=50.0,
        domain_id=int(os.environ["ROS_DOMAIN_ID"]),
    )
    describe(tmp_path)  # writes the bundle
    with running(settings, tmp_path) as (_, probe):

        def answer(client, call, *args):
            assert client.wait_for_services(timeout_sec=PATIENCE_S)
            done, future = threading.Event(), call(*args)
            future.add_done_callback(lambda _: done.set())
            assert done.wait(PATIENCE_S)
            return future.result()

        for node in ("policy_node", "safety_node", "robot_node", "recorder_node"):
            client = AsyncParameterClient(probe.node, node)
            listed = answer(client, client.list_parameters)
            names = set(listed.result.names) - OF_EVERY_NODE.keys()
            assert names == shipped()[node].keys(), node
            if node == "recorder_node":
                values = answer(client, client.get_parameters, ["buffer_mib", "split_s"]).values
                assert [v.integer_value for v in values] == [8, 60]
            described = answer(client, client.describe_parameters, sorted(names)).descriptors
            assert all(d.description for d in described)
            ranged = {d.name for d in described if d.floating_point_range}
            assert ranged == {
                name
                for name, value in shipped()[node].items()
                if isinstance(value, int | float) and not isinstance(value, bool)
            }


@pytest.mark.ros
@pytest.mark.patient
def test_a_node_explains_itself():
    found = subprocess.run(
        [sys.executable, "-m", "deploy.policy_node", "--help"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert found.stdout.startswith("usage: ros2 run ferry policy_node")
    assert "The node that runs the policy" in found.stdout
    assert all(f"  {name} (default: " in found.stdout for name in shipped()["policy_node"])
