from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from real.config import config_path
from real.errors import FerryError
from real.spec import load_robot
from sim.actuator_export import servo_network
from sim.env import make_env
from sim.motors import NetworkMotors
from tests.deploy.stand_bundle import write_bundle
from training.contract import run_contract
from training.run_config import load_run_config
from training.view import load_scene, record, view
from training.window import why_no_window

BUNDLE = str(config_path("bundles/a1_walk.onnx"))


def no_display(monkeypatch, tmp_path) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_without_a_display_it_says_so_and_writes_a_file_of_a_new_name(monkeypatch, tmp_path):
    no_display(monkeypatch, tmp_path)
    (tmp_path / "view.gif").write_text("somebody's")
    said: list[str] = []
    told: list[tuple[float, float]] = []
    path = view(
        "cartpole_balance",
        seconds=0.2,
        say=said.append,
        progress=lambda done, total, note="": told.append((done, total)),
    )
    assert said == ["there is no display: writing view-2.gif in place of a window"]
    assert path is not None and path.read_bytes()[:6] == b"GIF89a"
    assert (tmp_path / "view.gif").read_text() == "somebody's"
    assert told[0] == (1, 5) and told[4] == (5, 5) and told[-1] == (1, 1)


def test_a_display_that_is_not_there_is_found_out_before_the_viewer_waits_for_it(monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", "localhost:987")
    assert why_no_window().startswith("DISPLAY=localhost:987 cannot be used")


def test_what_cannot_be_watched_or_written_is_refused(tmp_path) -> None:
    with pytest.raises(FerryError, match=r"expected FILE\.gif"):
        view("cartpole_balance", out=tmp_path / "a.mp4")
    with pytest.raises(FerryError, match="has no robot"):
        view("gym", out=tmp_path / "a.gif")
    with pytest.raises(FerryError, match="no_such_task"):
        view("no_such_task", out=tmp_path / "a.gif")


def test_a_bundle_walks_on_and_a_task_alone_stands() -> None:
    moved = {}
    for source in (BUNDLE, "a1_walk"):
        with load_scene(source, overrides=["command.standing_share=0"]) as scene:
            env = make_env(scene.config, num=1, threads=1, randomize=False)
        poses = record(env, scene, seconds=1.0)
        env.close()
        assert poses.q.shape == (50, 12)
        assert poses.time_s[-1] == pytest.approx(0.98)
        moved[source] = np.ptp(poses.q[25:], axis=0).max()
    assert moved[BUNDLE] > 0.2
    # It settles on its legs; nothing swings.
    assert moved["a1_walk"] < 0.5 * moved[BUNDLE]


@pytest.mark.slow
def test_a_bundle_is_watched_where_it_was_trained(tmp_path) -> None:
    robot = load_robot("a1")
    motors = servo_network(robot, tmp_path / "motors.onnx", late=3)
    hill = "terrain={levels: 2, tiles: {hill: {shape: slope, easiest: 0.2, hardest: 0.3}}}"
    config = load_run_config("a1_walk", [hill, f"actuators.network={motors}", "randomize={}"])
    bundle = write_bundle(
        tmp_path / "p.onnx", run_contract(config, {}), actuator=motors.read_bytes()
    )
    motors.unlink()
    with load_scene(str(bundle), overrides=["command.standing_share=1"]) as scene:
        assert scene.config.terrain is not None
        assert list(scene.config.terrain.tiles) == ["hill"]
        env = make_env(scene.config, num=1, threads=1, randomize=False)
    assert isinstance(env._motors, NetworkMotors)
    assert env.engine.terrain is not None
    poses = record(env, scene, seconds=0.1)  # the file of the network is gone by now
    env.close()
    assert np.isfinite(poses.q).all()
    with load_scene(str(bundle), task="a1_walk") as other:
        assert other.config.terrain is None and other.config.actuators is None
    with pytest.raises(FerryError, match="--task is for bundles"), load_scene("a1", task="a1_walk"):
        pass


@pytest.mark.slow
def test_a_bundle_of_a_task_that_is_not_here_says_how_to_name_it(tmp_path) -> None:
    made = run_contract(load_run_config("a1_walk"), {})
    other = replace(made, provenance={"task": "elsewhere"})
    bundle = write_bundle(tmp_path / "p.onnx", other)
    words = r"'elsewhere', which cannot be read here .*--task"
    with pytest.raises(FerryError, match=words), load_scene(str(bundle)):
        pass
    with load_scene(str(bundle), task="a1_walk") as scene:
        assert scene.config.name == "a1_walk"
