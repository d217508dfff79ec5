"""Rehearsal and deployment in the world of the bundle, with real nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.extras import need, reason

pytest.importorskip("rclpy", reason=reason("rclpy"))

import ferry
from deploy.channel import Disturbance
from deploy.graph import choose_robot
from deploy.preflight import preflight
from deploy.rehearse import rehearse
from deploy.sim_world import WorldWish
from deploy.supervisor import deploy
from real.domain import DomainSample
from real.log import read_log
from real.spec import load_robot
from sim.actuator_export import servo_network
from sim.task import load_env_config
from sim.world_config import training_world
from tests.deploy.stand_bundle import stand_contract, write_bundle
from tests.deploy.test_sim_world import HILL

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
A1 = load_robot("a1")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory) -> tuple[Path, Path]:
    """A policy of a hill and of motors a physics step late, which it carries, or only names."""
    folder = tmp_path_factory.mktemp("bundles")
    motors = servo_network(A1, folder / "late.onnx", late=1)
    config = load_env_config("a1_walk", [HILL, f"actuators.network={motors}", "randomize={}"])
    contract = replace(stand_contract(), world=training_world(config))
    carried = motors.read_bytes()
    return (
        write_bundle(folder / "inside.onnx", contract, gain=0.1, actuator=carried),
        write_bundle(folder / "named.onnx", contract, gain=0.1),
    )


@pytest.mark.slow
def test_a_rehearsal_on_terrain_with_a_learned_actuator_equals_the_controller(bundles):
    need("pybullet")
    result = rehearse(bundles[0], "sim:pybullet", disturbance=Disturbance(), seconds=1.0, seed=1)
    assert result.equal, result.verdict()
    assert result.plain["samples"] == 50  # 1 s at 50 Hz
    assert (result.plain["falls"], result.plain["stops"]) == (0, [])
    assert result.world.startswith("terrain, tile hill of level ")
    assert result.world.endswith("; learned actuator late.onnx")
    assert result.as_json()["world"] == result.world
    assert result.table_rows()[0] == ("world", result.world, "-")


def test_a_deployed_robot_stands_in_its_world_and_the_recording_says_so(bundles, tmp_path):
    need("mujoco")
    said: list[str] = []
    result = deploy(
        bundles[0],
        "sim:mujoco",
        seconds=0.5,
        record=tmp_path / "walk.mcap",
        options=["level=1"],
        safety=["ramp_s=0.1"],
        watchdog_periods=50,
        on_status=said.append,
    )
    assert result.ok, (result.reason, result.graph.modes)
    world = "terrain, tile hill of level 1; learned actuator late.onnx"
    assert result.rows()["world"] == world
    assert f"the simulated robot's world: {world}" in said
    log = read_log(tmp_path / "walk.mcap")
    assert log.metadata["ferry"]["world"] == world
    sample = DomainSample.from_json(log["/ground_truth/domain"].text[-1])
    assert sample.values["terrain"] == [0.0, 1.0, 0.0, 0.0]
    above = log["/ground_truth/odom"].values["position"][:, 2] - 0.8 * np.tan(0.6)
    assert (np.abs(above - A1.base_height_m) < 0.08).all()


@pytest.mark.parametrize(
    ("wish", "world"),
    [
        (WorldWish(plane=True), "a plane; learned actuator late.onnx"),
        (WorldWish(task="a1_walk"), "a plane; servos"),
        (WorldWish(task="a1_terrain"), "terrain, tile rubble of level 3; servos"),
    ],
)
def test_another_world_is_asked_for_by_name(bundles, tmp_path, wish, world):
    need("mujoco")
    cleared = preflight(bundles[0], choose_robot("sim:mujoco"), world=wish, folder=tmp_path)
    assert cleared.world == world
    assert cleared.metadata("sim:mujoco")["world"] == world
    hidden = choose_robot("sim:mujoco", options={"hide_truth": True})
    told = preflight(bundles[0], hidden, world=wish, folder=tmp_path).metadata("sim:mujoco")
    assert "world" not in told


def test_both_commands_refuse_a_world_that_they_cannot_make_before_a_node_starts(bundles):
    inside, named = (str(path) for path in bundles)
    for options, words in (
        (["--robot", "sim:mujoco"], "names but does not carry: give the file with --actuator"),
        (["--robot", "loopback", "--plane"], "--plane is for robots that Ferry simulates"),
        (["--robot", "sim:mujoco", "--option", "level=7"], "level=7: expected 0 to 1"),
    ):
        bundle = named if "names" in words else inside
        for command in ("rehearse", "deploy"):
            refused = CliRunner().invoke(ferry.app, [command, bundle, *options])
            assert refused.exit_code == 2
            assert words in " ".join(refused.output.split())
