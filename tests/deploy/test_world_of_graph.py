"""Rehearsal and deployment in the world of the bundle, with real nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.extras import need, reason

pytest.importorskip("rclpy", reason=reason("rclpy"))

from deploy.channel import Disturbance
from deploy.rehearse import rehearse
from deploy.sim_world import WorldWish
from deploy.supervisor import deploy
from real.domain import DomainSample
from real.errors import FerryError
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
    """A policy that moves its legs a little, of a hill and late motors: carried, and named only."""
    folder = tmp_path_factory.mktemp("bundles")
    motors = servo_network(A1, folder / "late.onnx", late=3)
    config = load_env_config("a1_walk", [HILL, f"actuators.network={motors}", "randomize={}"])
    contract = replace(stand_contract(), world=training_world(config))
    carried = motors.read_bytes()
    return (
        write_bundle(folder / "inside.onnx", contract, gain=0.3, actuator=carried),
        write_bundle(folder / "named.onnx", contract, gain=0.3),
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
    on_plane = WorldWish(plane=True)
    flat = rehearse(
        bundles[0], "sim:pybullet", disturbance=Disturbance(), seconds=1.0, world=on_plane
    )
    assert flat.equal, flat.verdict()
    assert flat.world == "a plane; learned actuator late.onnx"


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
    assert result.ok, result.reason
    world = "terrain, tile hill of level 1; learned actuator late.onnx"
    assert result.rows()["world"] == world
    assert f"the simulated robot's world: {world}" in said
    log = read_log(tmp_path / "walk.mcap")
    assert log.metadata["ferry"]["world"] == world
    sample = DomainSample.from_json(log["/ground_truth/domain"].text[-1])
    assert sample.values["terrain"] == [0.0, 1.0, 0.0, 0.0]
    above = log["/ground_truth/odom"].values["position"][:, 2] - 0.8 * np.tan(0.6)
    assert (np.abs(above - A1.base_height_m) < 0.08).all()


def test_an_actuator_that_is_only_named_stops_both_commands_before_a_node_starts(bundles):
    for run in (
        lambda: rehearse(bundles[1], "sim:pybullet", disturbance=Disturbance()),
        lambda: deploy(bundles[1], "sim:pybullet", seconds=0.5),
    ):
        with pytest.raises(FerryError, match=r"which it names but does not carry: .* --actuator"):
            run()
