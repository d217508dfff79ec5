"""A bundle is evaluated where its policy was trained: ground, errors and motors, or a refusal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import ferry
from deploy.bundle import read_bundle
from deploy.policy import OnnxPolicy
from real.config import save_config
from real.contract import PolicyContract
from real.errors import FerryError
from real.spec import load_robot
from sim.actuator_export import servo_network
from sim.task import load_env_config
from sim.world_config import training_world, world_of_contract, world_of_task
from tests.deploy.stand_bundle import write_bundle
from training import evaluator
from training.bundle_world import bundle_world
from training.contract import run_contract
from training.evaluator import evaluate, evaluate_path
from training.run_config import RunConfig, load_run_config
from training.stamping import evaluate_and_stamp
from training.suites import find_suite

A1 = load_robot("a1")
HILL = (
    "terrain={levels: 2, tile_m: 3.0, platform_m: 1.4, cell_m: 0.1, border_m: 0.5, tiles: "
    "{hill: {shape: slope, easiest: -0.2, hardest: -0.6}}, "
    "curriculum: {measure: reward/alive, up_at: 0.2, down_at: 0.1}}"
)


@pytest.fixture(scope="module")
def motors(tmp_path_factory) -> Path:
    """Servos that are three physics steps late: nobody takes them for the engine's."""
    return servo_network(A1, tmp_path_factory.mktemp("motors") / "late.onnx", late=3)


@pytest.fixture
def short(monkeypatch):
    """Suites of sixty steps, ten of which count."""
    monkeypatch.setattr(
        evaluator, "find_suite", lambda name: replace(find_suite(name), episode_s=1.2)
    )


def task(*overrides: str) -> RunConfig:
    return load_run_config("a1_walk", list(overrides))


def moved_by(motors: Path) -> RunConfig:
    return task(HILL, f"actuators.network={motors}", "randomize={friction: '=U(0.4, 0.5)'}")


@pytest.mark.parametrize("name", ["a1_walk", "a1_terrain", "cartpole_balance", "panda_reach"])
def test_what_a_contract_keeps_of_a_task_is_what_the_task_says(name):
    config = load_env_config(name)
    contract = replace(run_contract(task(), {}), robot=config.robot, world=training_world(config))
    again = PolicyContract.from_json(contract.to_json())
    assert again == contract and again.world is not None
    read = world_of_contract(again.world, config.robot, actuators=None, source="p.onnx")
    assert read == world_of_task(config)
    # The order of random terms is that in which they are drawn.
    assert list(read.randomize) == list(config.randomize)


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["terrain", "randomized"])
def test_a_bundle_scores_as_its_task_does_in_every_suite(short, motors, tmp_path, suite):
    config = moved_by(motors)
    path = write_bundle(
        tmp_path / "p.onnx", run_contract(config, {}), actuator=motors.read_bytes(), gain=0.3
    )
    policy = OnnxPolicy(read_bundle(path))
    found = evaluate_path(path, suite=suite, episodes=1)
    assert found == evaluate(policy, config, suite=suite, episodes=1)
    # It is the ground, the errors and the motors that matter.
    plain = task(HILL, "randomize={friction: '=U(0.4, 0.5)'}")
    assert found != evaluate(policy, plain, suite=suite, episodes=1)


@pytest.mark.slow
def test_an_actuator_that_is_only_named_is_asked_for_and_another_is_refused(
    short, motors, tmp_path
):
    config = moved_by(motors)
    inside, named = tmp_path / "inside.onnx", tmp_path / "named.onnx"
    contract = run_contract(config, {})
    write_bundle(inside, contract, actuator=motors.read_bytes())
    write_bundle(named, contract)
    with pytest.raises(FerryError, match=r"late\.onnx .*does not carry: .* --actuator"):
        evaluate_path(named, episodes=1)
    found = evaluate_path(named, episodes=1, actuator=motors)
    assert found == evaluate_path(inside, episodes=1)
    other = servo_network(A1, tmp_path / "other.onnx")
    for path in (inside, named):
        with pytest.raises(FerryError, match=r"other\.onnx is not what .* was trained with"):
            evaluate_path(path, episodes=1, actuator=other)
    evaluate_and_stamp(named, required=0.0, episodes=1, actuator=motors)
    stamp = read_bundle(named).evaluation
    assert stamp is not None and stamp.score == pytest.approx(found.score.mean)
    servos = write_bundle(tmp_path / "servos.onnx", run_contract(task(), {}))
    with pytest.raises(FerryError, match="was trained with servos"):
        evaluate_path(servos, episodes=1, actuator=motors)


@pytest.mark.slow
def test_an_older_bundle_is_evaluated_as_ever_and_says_how_to_name_its_world(
    short, motors, tmp_path
):
    config = moved_by(motors)
    contract = run_contract(config, {})
    old = write_bundle(tmp_path / "old.onnx", replace(contract, world=None))
    assert evaluate_path(old, episodes=1).episodes == 1
    for suite in ("terrain", "randomized"):
        with pytest.raises(FerryError, match=r"before bundles carried it: .*--task, e\.g\. runs/"):
            evaluate_path(old, suite=suite, episodes=1)
    with pytest.raises(FerryError, match="--actuator does not suffice: name its task"):
        evaluate_path(old, episodes=1, actuator=motors)
    save_config(config, tmp_path / "config.yaml")
    new = write_bundle(tmp_path / "new.onnx", contract, actuator=motors.read_bytes())
    told = evaluate_path(old, suite="terrain", episodes=1, task=tmp_path / "config.yaml")
    assert told.each == evaluate_path(new, suite="terrain", episodes=1).each


@pytest.mark.slow
def test_a_task_in_place_of_a_bundles_world_takes_the_actuator_that_is_given_for_it(
    motors, tmp_path
):
    save_config(moved_by(motors), tmp_path / "config.yaml")
    other = servo_network(A1, tmp_path / "other.onnx")
    learned, servos = run_contract(moved_by(motors), {}), run_contract(task(), {})
    for name, contract in (
        ("learned", learned),
        ("servos", servos),
        ("old", replace(servos, world=None)),
    ):
        bundle = read_bundle(write_bundle(tmp_path / f"{name}.onnx", contract))
        with bundle_world(bundle, task=tmp_path / "config.yaml", actuator=other) as world:
            assert world is not None and world.actuators is not None
            assert world.actuators.network == str(other)
        with (
            pytest.raises(FerryError, match=r"task a1_walk has servos, .*leave out .*other\.onnx"),
            bundle_world(bundle, task="a1_walk", actuator=other),
        ):
            pass


def test_a_world_that_this_version_cannot_simulate_is_named(short, tmp_path):
    contract = run_contract(task(HILL), {})
    assert contract.world is not None and contract.world.terrain is not None
    odd = replace(contract.world, terrain={**contract.world.terrain, "lava": True})
    path = write_bundle(tmp_path / "odd.onnx", replace(contract, world=odd))
    with pytest.raises(FerryError, match=r"odd\.onnx: the world in its contract.*lava"):
        evaluate_path(path, episodes=1)
    plane = write_bundle(tmp_path / "plane.onnx", run_contract(task(), {}))
    with pytest.raises(FerryError, match="trained on a plane; of a bundle another task"):
        evaluate_path(plane, suite="terrain", episodes=1)


def test_files_of_a_context_are_gone_with_it(motors, tmp_path):
    contract = run_contract(moved_by(motors), {})
    path = write_bundle(tmp_path / "p.onnx", contract, actuator=motors.read_bytes())
    with bundle_world(read_bundle(path)) as world:
        assert world is not None and world.actuators is not None
        file = Path(world.actuators.network)
        assert file.name == "late.onnx" and file.read_bytes() == motors.read_bytes()
    assert not file.parent.exists()


def test_a_stamp_is_of_the_bundles_own_world_and_a_run_folder_brings_its_own(tmp_path):
    path = write_bundle(tmp_path / "p.onnx", run_contract(task(), {}))
    options = ["evaluate", str(path), "--stamp", "0.5", "--task", "a1_walk"]
    refused = CliRunner().invoke(ferry.app, options)
    assert refused.exit_code == 2 and "leave out --task" in refused.output
    for option in ("--task", "--actuator"):
        refused = CliRunner().invoke(ferry.app, ["evaluate", str(tmp_path), option, "a1_walk"])
        assert refused.exit_code == 2 and f"{option} is for bundles" in refused.output
