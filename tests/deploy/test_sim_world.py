"""Which world a simulated robot is given: its bundle's, a task's, a plane; or words of refusal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from deploy.bundle import read_bundle
from deploy.graph import choose_robot
from deploy.sim_world import WorldWish, begun_anew, in_its_world
from real.errors import FerryError
from real.spec import load_robot
from sim.actuator_export import servo_network
from sim.task import load_env_config
from sim.world_config import training_world
from tests.deploy.stand_bundle import stand_contract, write_bundle

HILL = (
    "terrain={levels: 2, tile_m: 3.0, platform_m: 1.4, cell_m: 0.1, border_m: 0.5, tiles: "
    "{hill: {shape: slope, easiest: -0.2, hardest: -0.6}}, "
    "curriculum: {measure: reward/alive, up_at: 0.2, down_at: 0.1}}"
)
SIM = choose_robot("sim:pybullet")


@pytest.fixture(scope="module")
def motors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return servo_network(load_robot("a1"), tmp_path_factory.mktemp("motors") / "late.onnx", late=3)


def trained_in(path: Path, *overrides: str, carried: bytes | None = None) -> Path:
    """A bundle that stands, trained in the world of A1's walk with overrides."""
    world = training_world(load_env_config("a1_walk", list(overrides)))
    return write_bundle(path, replace(stand_contract(), world=world), actuator=carried)


def options_of(path: Path, wish: WorldWish | None = None, robot=SIM, folder: Path | None = None):
    place = path.parent / "world" if folder is None else folder
    return in_its_world(read_bundle(path), robot, wish or WorldWish(), folder=place).options


def learned(motors: Path) -> list[str]:
    return [f"actuators.network={motors}", "randomize={}"]


@pytest.mark.slow
def test_a_bundles_ground_and_learned_actuator_are_options_of_the_plug_in(tmp_path, motors):
    path = trained_in(tmp_path / "p.onnx", HILL, *learned(motors), carried=motors.read_bytes())
    options = dict(options_of(path, WorldWish(seed=4)))
    file = Path(str(options.pop("actuator")))
    assert file == tmp_path / "world" / "late.onnx"
    assert file.read_bytes() == motors.read_bytes()
    kept = read_bundle(path).contract.world
    assert kept is not None
    assert options == {"terrain": kept.terrain, "seed": 4}
    # What was asked for by name stays.
    given = choose_robot("sim:mujoco", options={"seed": 9, "friction": 0.5, "tile": "hill"})
    assert options_of(path, robot=given) == {
        **options,
        "actuator": str(file),
        "seed": 9,
        "friction": 0.5,
        "tile": "hill",
    }


@pytest.mark.slow
def test_without_a_world_of_its_own_or_another_robot_nothing_changes(tmp_path):
    for name, path in (
        ("old", write_bundle(tmp_path / "old.onnx")),
        ("plain", trained_in(tmp_path / "plain.onnx")),
    ):
        for wish in (None, WorldWish(plane=True)):
            assert options_of(path, wish) == {}, name
        assert in_its_world(read_bundle(path), SIM, WorldWish(), folder=None) == SIM
    rough = trained_in(tmp_path / "rough.onnx", HILL)
    loopback = choose_robot("loopback")
    assert in_its_world(read_bundle(rough), loopback, WorldWish(), folder=None) == loopback
    assert not (tmp_path / "world").exists()


def test_a_plane_leaves_the_motors_as_they_are(tmp_path, motors):
    path = trained_in(tmp_path / "p.onnx", HILL, *learned(motors), carried=motors.read_bytes())
    assert list(options_of(path, WorldWish(plane=True))) == ["actuator"]


@pytest.mark.slow
def test_a_task_takes_the_place_of_the_bundles_world(tmp_path, motors, monkeypatch):
    path = trained_in(tmp_path / "p.onnx", HILL, *learned(motors))
    assert options_of(path, WorldWish(task="a1_terrain")) == {"task": "a1_terrain", "seed": 0}
    asked = WorldWish(task="a1_terrain", plane=True, actuator=motors)
    assert options_of(path, asked) == {
        "task": "a1_terrain",
        "plane": True,
        "actuator": str(motors),
    }
    by_option = choose_robot("sim:mujoco", options={"task": "a1_terrain"})
    assert options_of(path, WorldWish(seed=4), by_option) == {"task": "a1_terrain", "seed": 4}
    assert options_of(path, replace(asked, task=None), by_option) == options_of(path, asked)
    with pytest.raises(FerryError, match="--task a1_walk and --option task=a1_terrain"):
        options_of(path, WorldWish(task="a1_walk"), by_option)
    (tmp_path / "mine.yaml").write_text("extends: a1_walk\n")
    monkeypatch.chdir(tmp_path)  # nodes may start elsewhere
    assert options_of(path, WorldWish(task="mine.yaml"))["task"] == str(tmp_path / "mine.yaml")


@pytest.mark.slow
def test_an_actuator_that_is_only_named_is_asked_for_and_another_is_refused(tmp_path, motors):
    named = trained_in(tmp_path / "named.onnx", *learned(motors))
    with pytest.raises(FerryError, match=r"late\.onnx \(sha256 .*does not carry: .* --actuator"):
        options_of(named)
    assert options_of(named, WorldWish(actuator=motors)) == {"actuator": str(motors)}
    other = servo_network(load_robot("a1"), tmp_path / "other.onnx")
    with pytest.raises(FerryError, match=r"other\.onnx is not what .*named\.onnx was trained with"):
        options_of(named, WorldWish(actuator=other))
    with pytest.raises(FerryError, match=r"--actuator .*none\.onnx cannot be read"):
        options_of(named, WorldWish(actuator=tmp_path / "none.onnx"))


@pytest.mark.parametrize(
    ("robot", "wish", "words"),
    [
        ("loopback", WorldWish(plane=True), "--plane is for robots that Ferry simulates"),
        ("a_driver:Robot", WorldWish(task="a1_walk"), "--task is for .*sim:pybullet, sim:mujoco"),
        ("sim:mujoco", WorldWish(actuator=Path("m.onnx")), "before bundles carried their world"),
    ],
)
def test_a_world_that_nobody_has_is_refused(tmp_path, robot, wish, words):
    path = write_bundle(tmp_path / "old.onnx")
    with pytest.raises(FerryError, match=words):
        options_of(path, wish, choose_robot(robot))


def test_an_actuator_for_a_bundle_of_servos_is_refused(tmp_path, motors):
    path = trained_in(tmp_path / "p.onnx")
    with pytest.raises(FerryError, match="was trained with servos"):
        options_of(path, WorldWish(actuator=motors))


def test_who_stands_in_for_a_fallen_robot_begins_on_a_tile_of_its_own_draw():
    assert begun_anew(SIM.plugin, {"seed": 3, "friction": 0.5}, 2) == {"seed": 5, "friction": 0.5}
    assert begun_anew(SIM.plugin, {}, 2) == {}
    assert begun_anew("my_driver:Robot", {"seed": 3}, 2) == {"seed": 3}
