from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from real.config import config_path
from real.errors import FerryError
from tests.extras import need
from training import evaluator
from training.a1_bench import Reached
from training.bench_commands import app
from training.robots_bench import HEADER, TASKS, Failed, Learned, bench_robots
from training.run_config import load_run_config
from training.scores import Interval
from training.suites import find_suite
from training.train_bench import bench_train


def test_every_shipped_task_of_a_robot_is_in_it() -> None:
    folder = config_path("a1_walk", folder=".").parent
    shipped = {file.stem for file in folder.glob("*.yaml")} - {"gym"}
    assert set(TASKS) == shipped
    assert {load_run_config(task, []).robot for task in TASKS} == {
        file.stem for file in (folder / "robots").glob("*.yaml")
    }


def test_a_row_says_when_or_how_far() -> None:
    scores = {"nominal": Interval(0.9, 0.8, 1.0), "pybullet": Interval(0.85, 0.7, 1.0)}
    there = Learned("tracking", 0.95, Reached(100.0, 90.4, 12_000, 0.96), scores)
    assert there.row() == ["0.95", "90", "0.01", "0.900 [0.80, 1.00]", "0.850 [0.70, 1.00]"]
    never = Learned("tracking", 0.95, Reached(None, None, None, 0.5), scores)
    assert never.row()[1:3] == ["best 0.500", "-"]


@pytest.mark.slow
def test_a_task_that_fails_says_why_and_loses_no_other(tmp_path: Path, monkeypatch) -> None:
    """One whose robot is not at its place, and then one that is well."""
    need("pybullet")
    monkeypatch.setattr(
        evaluator, "find_suite", lambda name: replace(find_suite(name), episode_s=1.2)
    )
    for name, robot in (("first", "nowhere.yaml"), ("second", "cartpole")):
        (tmp_path / f"{name}.yaml").write_text(
            f"extends: cartpole_balance\nschema_version: 1\nname: {name}\nrobot: {robot}\n"
            "sim: {worlds: 2, threads: 1}\ntraining: {horizon: 2, run: {steps: 4}}\n"
        )
    out = tmp_path / "runs"
    tasks = [str(tmp_path / f"{name}.yaml") for name in ("first", "second")]
    found = bench_robots(out, tasks=tasks, episodes=1)
    assert isinstance(found["first"], Failed)
    assert "nowhere.yaml" in found["first"].reason
    assert len(found["first"].row()) == len(HEADER) - 1
    assert isinstance(found["second"], Learned)
    kept = json.loads((out / "results.json").read_text())
    assert kept == {name: each.as_json() for name, each in found.items()}
    assert kept["first"] == {"failed": found["first"].reason}


def test_what_is_missing_or_misspelt_is_said_before_the_first_run(tmp_path, monkeypatch) -> None:
    out = tmp_path / "runs"
    with pytest.raises(FerryError, match="a1_wlk"):
        bench_robots(out, tasks=["cartpole_balance", "a1_wlk"])
    monkeypatch.setitem(sys.modules, "pybullet", None)
    with pytest.raises(FerryError, match=r"needs PyBullet.*ferry\[pybullet\]"):
        bench_robots(out, tasks=["cartpole_balance"])
    with pytest.raises(FerryError, match=r"needs PyBullet.*ferry\[pybullet\]"):
        bench_train(config="cartpole_balance")
    assert not out.exists()


@pytest.mark.slow
def test_a_task_is_trained_and_scored_in_both_engines(tmp_path: Path) -> None:
    pytest.importorskip("pybullet", reason="pip install 'ferry[pybullet]'")
    task = tmp_path / "short.yaml"
    task.write_text(
        "extends: cartpole_balance\nschema_version: 1\nname: short\nrobot: cartpole\n"
        "sim: {worlds: 4, threads: 1}\n"
        "training: {horizon: 4, run: {steps: 480, stop_score: null}}\n"
    )
    out = tmp_path / "runs"
    asked = ["robots", str(task), "--out", str(out), "--json", "--episodes", "2"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["short"]
    assert json.loads((out / "results.json").read_text())["short"] == found
    assert found["measure"] == "upright"
    assert found["best"] < 0.95  # nobody learns that from 480 steps
    assert found["seconds"] is None
    for suite in ("nominal", "pybullet"):
        score, low, high = found["scores"][suite]
        assert 0.0 <= low <= score <= high <= 1.0
        assert score < 0.95
    again = CliRunner().invoke(app, asked)
    assert "is not empty" in str(again.exception)
    twice = CliRunner().invoke(app, ["robots", "a1_walk", "a1_walk", "--out", str(out / "new")])
    assert "two tasks are named a1_walk" in str(twice.exception)
