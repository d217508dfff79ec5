"""The ground and the motors of one simulated robot, as options of its plug-in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from real.errors import FerryError
from real.robot_io import PlannedWorld, drawn_world, load_plugin
from real.signals import JointCommand
from real.spec import load_robot
from sim.actuator_export import servo_network
from sim.env import make_env
from sim.motors import NetworkMotors
from sim.robot_world import robot_world
from sim.sim_robot import MujocoRobot, SimRobot
from sim.task import StartConfig, load_env_config

A1 = load_robot("a1")
PLUGINS = pytest.mark.parametrize("plugin", ["MujocoRobot", "PyBulletRobot"])
#: A hill that is 0.8 tan 0.2 or 0.8 tan 0.6 m high, and pits of four steps of 0.1 or 0.2 m.
TERRAIN: dict[str, Any] = {
    "levels": 2,
    "tile_m": 3.0,
    "platform_m": 1.4,
    "cell_m": 0.1,
    "border_m": 0.5,
    "tiles": {
        "hill": {"shape": "slope", "easiest": -0.2, "hardest": -0.6},
        "pit": {"shape": "steps", "easiest": 0.1, "hardest": 0.2, "tread_m": 0.2},
    },
    "curriculum": {"measure": "reward/alive", "up_at": 0.2, "down_at": 0.1},
}


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Servos that are three physics steps late: nobody takes them for the engine's."""
    return servo_network(A1, tmp_path_factory.mktemp("motors") / "late.onnx", late=3)


def load(plugin: str, **options: object) -> SimRobot:
    robot = load_plugin(f"sim.sim_robot:{plugin}", A1, options=options)
    assert isinstance(robot, SimRobot)
    return robot


def crouch(offset: float) -> JointCommand:
    target = A1.actuated_array("q_default") + np.tile([0.0, offset, -2.0 * offset], 4)
    kp, kd = A1.actuated_array("kp"), A1.actuated_array("kd")
    return JointCommand.position(np.zeros(1, dtype=np.int64), target[None], kp=kp, kd=kd)


@PLUGINS
@pytest.mark.parametrize(
    ("tile", "level", "height"),
    [("hill", 1, 0.8 * np.tan(0.6)), ("pit", 0, -0.4)],
)
def test_it_stands_on_the_tile_that_is_asked_for_and_says_so(
    plugin: str, tile: str, level: int, height: float
) -> None:
    robot = load(plugin, terrain=TERRAIN, tile=tile, level=level, friction=0.7)
    state = robot.start()
    for _ in range(60):
        state = robot.exchange(JointCommand.damping(state.stamp_ns, 12, damping_kd=A1.damping_kd))
    truth = robot.ground_truth()
    assert truth is not None
    assert truth.position_w[2] - height == pytest.approx(A1.base_height_m, abs=0.03)
    # Tiles lie along x, levels along y, about the origin.
    middle = [-1.5 if tile == "hill" else 1.5, -1.5 if level == 0 else 1.5]
    np.testing.assert_allclose(truth.position_w[:2], middle, atol=0.05)
    sample = drawn_world(robot)
    assert sample is not None
    column = 0.0 if tile == "hill" else 1.0
    assert sample.values == {"friction": [0.7], "terrain": [column, level, 0.0, 0.0]}
    robot.close()


def test_an_env_begins_where_the_sample_of_a_simulated_robot_says() -> None:
    robot = load("MujocoRobot", terrain=TERRAIN, seed=3)
    robot.start()
    truth, sample = robot.ground_truth(), drawn_world(robot)
    assert truth is not None and sample is not None and sample.seed == 3
    config = load_env_config("a1_walk").nominal()
    table = robot_world(A1, terrain=TERRAIN).terrain
    config = config.model_copy(update={"terrain": table, "start": StartConfig()})
    env = make_env(config, num=1, threads=1, randomize=False)
    env.reset(0, domain={0: replace(sample, values={"terrain": sample.values["terrain"]})})
    np.testing.assert_allclose(env.engine.state().position_w[0], truth.position_w, atol=1e-9)
    env.close()
    robot.close()


def test_tiles_and_levels_are_drawn_each_as_often_and_one_given_leaves_the_other() -> None:
    drawn = [robot_world(A1, terrain=TERRAIN, seed=seed) for seed in range(200)]
    pairs = [(world.tile, world.level) for world in drawn]
    assert {pairs.count(pair) > 30 for pair in ((0, 0), (0, 1), (1, 0), (1, 1))} == {True}
    for seed in range(8):
        given = robot_world(A1, terrain=TERRAIN, seed=seed, tile="pit")
        assert (given.tile, given.level) == (1, drawn[seed].level)
    assert drawn[0].terrain is not None
    # Nobody ends an episode at the edge of the tile, and nobody measures success.
    assert (drawn[0].terrain.border_m, drawn[0].terrain.curriculum) == (8.0, None)


@pytest.mark.slow
@PLUGINS
def test_a_learned_actuator_moves_it_as_it_moves_the_worlds_of_a_task(
    plugin: str, late: Path
) -> None:
    learned, servos = load(plugin, actuator=str(late)), load(plugin)
    again = load(plugin)
    for robot in (learned, servos, again):
        robot.start()
    # The same engine under the motors of a task, a control period at a time.
    motors = NetworkMotors(learned._motors.network, again._engine)  # type: ignore[union-attr]
    for step in range(6):
        command = crouch(0.3 if step % 2 else 0.1)
        for _ in range(A1.substeps):
            state, other = learned.exchange(command), servos.exchange(command)
        motors.apply(command)
        np.testing.assert_array_equal(state.q, again._engine.state().robot.q)
    assert np.abs(state.q - other.q).max() > 0.01
    # A new start knows nothing of what was told before.
    first = learned.start().q
    learned.exchange(crouch(0.1))
    fresh = load(plugin, actuator=str(late))
    np.testing.assert_array_equal(first, fresh.start().q)
    fresh.exchange(crouch(0.1))
    np.testing.assert_array_equal(learned._engine.state().robot.q, fresh._engine.state().robot.q)
    for robot in (learned, servos, again, fresh):
        robot.close()


def test_a_robot_that_walks_off_its_ground_ends_before_it_falls() -> None:
    robot = load("MujocoRobot", terrain=TERRAIN, tile="hill", level=0)
    robot.start()
    world, ground, truth = robot._world, robot._engine.terrain, robot._engine.state()
    assert ground is not None
    # It ends at half a tile and eight metres: 9.5 m from the middle at (-1.5, -1.5).
    for x, off in ((7.4, False), (7.6, True), (-10.4, False), (-10.6, True)):
        there = replace(truth, position_w=np.array([[x, -1.5, 0.3]]))
        if off:
            with pytest.raises(FerryError, match=r"walked off .* 9\.5 m from .* --plane"):
                world.require_on_ground(ground, there)
        else:
            world.require_on_ground(ground, there)
    robot.close()


def test_a_task_gives_ground_and_motors_and_a_plane_can_be_asked_for(late: Path) -> None:
    rough = robot_world(A1, task="a1_terrain", tile="rubble", level=5)
    assert rough.words() == "terrain, tile rubble of level 5; servos"
    assert robot_world(A1, task="a1_terrain", plane=True).words() == "a plane; servos"
    assert robot_world(A1, task="a1_walk").words() == "a plane; servos"
    assert robot_world(A1, terrain=TERRAIN, plane=True, actuator=str(late)).words() == (
        "a plane; learned actuator late.onnx"
    )
    assert robot_world(A1).ground() is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"terrain": TERRAIN, "tile": "hil"}, "no such tile.*did you mean 'hill'.*hill, pit"),
        ({"terrain": TERRAIN, "level": 2}, "level=2: expected 0 to 1"),
        ({"tile": "hill"}, "tile=hill, but the robot stands on a plane"),
        ({"terrain": TERRAIN, "plane": True, "level": 0}, "level=0, but .* plane"),
        ({"terrain": {"tiles": {"a": {"shape": "slpe"}}}}, "option terrain.*slope"),
        ({"terrain": TERRAIN, "task": "a1_terrain"}, "expected one of them"),
        ({"task": "a1_walk", "actuator": "m.onnx"}, r"has servos, .*leave out --actuator m\.onnx"),
        ({"actuator": "none.onnx"}, r"cannot read none\.onnx"),
        ({"seed": -1}, "option seed=-1: expected 0 or more"),
        ({"friction": -0.1}, "option friction=-0.1: expected a finite number, 0 or more"),
    ],
)
def test_a_world_that_cannot_be_is_said_before_it_is_built(
    options: dict[str, object], words: str
) -> None:
    assert isinstance(MujocoRobot, PlannedWorld)
    with pytest.raises(FerryError, match=r"(?s)" + words):
        MujocoRobot.planned_world(A1, {"friction": 0.5, **options})


def test_neither_terrain_for_an_arm_nor_the_motors_of_another_robot(late: Path) -> None:
    panda = load_robot("panda")
    with pytest.raises(FerryError, match="fixed base and stands on no terrain"):
        robot_world(panda, terrain=TERRAIN)
    with pytest.raises(FerryError, match="fitted for 'a1', this is 'panda'"):
        robot_world(panda, actuator=str(late))
