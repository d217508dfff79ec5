"""The demonstration: its budget, its numbers, and the whole road once."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ferry
from deploy.graph_run import GraphReport
from deploy.supervisor import DeployResult
from real.errors import FerryError
from real.log import read_log
from sim.env import make_env
from training.demo import (
    drive_bundle,
    drive_seconds,
    liveliest,
    plain_config,
    run_demo,
    tick_us,
    why_stopped,
)
from training.demo_result import ROWS, DemoResult, Variant, read_curve, report_data
from training.drive import Drive
from training.evaluator import Evaluation
from training.progress import ProgressFn, bar, silent
from training.report import render_html
from training.run_config import load_run_config
from training.scores import Interval
from training.train import TrainResult

ROOT = Path(ferry.__file__).parent
BUNDLE = ROOT / "configs" / "bundles" / "a1_walk.onnx"
KEYS = {
    "training_s",
    "tracking_mujoco",
    "tracking_pybullet_ros",
    "falls",
    "clamped_share",
    "tick_us",
}


@pytest.mark.ros
def test_an_interrupted_demonstration_says_what_is_left_and_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "demo" / "randomised" / "run"

    @contextlib.contextmanager
    def interrupted(title: str) -> Iterator[ProgressFn]:
        assert title.startswith("training")
        run.mkdir(parents=True)
        raise KeyboardInterrupt
        yield silent

    with pytest.raises(KeyboardInterrupt):
        run_demo(tmp_path / "demo", minutes=1.0, compare=False, seed=0, stage=interrupted)
    said = " ".join(capsys.readouterr().err.split())
    assert "interrupted; what was made so far is in" in said
    assert f"go on: ferry train {run}/config.yaml --out {run} --resume" in said


@pytest.mark.ros
@pytest.mark.slow
def test_ctrl_c_ends_a_demonstration_with_a_closing_line(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    process = subprocess.Popen(
        [sys.executable, "ferry.py", "demo", "--minutes", "1", "--out", str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        metrics = folder / "randomised" / "run" / "metrics.jsonl"
        deadline = time.monotonic() + 100.0
        while time.monotonic() < deadline and not metrics.is_file():
            assert process.poll() is None
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert "go on: ferry train" in stderr.strip().splitlines()[-1]


def variant(folder: Path, label: str, *, score: float, fallen_s: float | None = None) -> Variant:
    steps = 500
    return Variant(
        label=label,
        folder=folder / label,
        training=TrainResult(folder / label / "run", 570.0, 20.0, 5_100_000, 0.9, False),
        nominal=Evaluation(
            suite="nominal",
            episodes=3,
            seed=0,
            purpose="report",
            score=Interval(score, score - 0.02, score + 0.01),
            falls_per_minute=Interval(0.5, 0.1, 1.4),
            clamped_share=0.01,
            each=(),
        ),
        drive=Drive(
            time_s=0.02 * np.arange(1, steps + 1),
            command=np.full((steps, 3), 0.3),
            velocity=np.full((steps, 3), 0.25),
            tracking=score - 0.1,
            fallen_s=fallen_s,
            stopped_s=fallen_s,
            clamped_share=0.125,
        ),
        tick_us={"p50": 210.0, "p99": 480.0},
        latency_ms={"p50": 0.9, "p99": 2.25},
        stopped="" if fallen_s is None else "fall: 1.01 rad, limit 1 rad",
    )


@pytest.fixture
def result(tmp_path: Path) -> DemoResult:
    return DemoResult(
        main=variant(tmp_path, "randomised", score=0.9),
        other=variant(tmp_path, "not randomised", score=0.8, fallen_s=4.0),
        report=tmp_path / "report.html",
    )


def test_json_has_the_documented_keys_and_the_comparison_only_when_asked_for(result, tmp_path):
    both = json.loads(json.dumps(result.as_json(), allow_nan=False))
    assert set(both) == {*KEYS, "compare"}
    assert set(both["compare"]) == KEYS
    assert both["tracking_mujoco"] == 0.9
    assert both["tick_us"] == {"p50": 210.0, "p99": 480.0}
    assert (both["falls"], both["compare"]["falls"]) == (0, 1)
    alone = DemoResult(result.main, None, result.report)
    assert set(alone.as_json()) == KEYS


def test_the_table_has_a_column_for_each_variant_and_a_cell_for_each_row(result):
    assert result.table_header() == ["", "randomised", "not randomised"]
    rows = {row[0]: row[1:] for row in result.table_rows()}
    assert tuple(rows) == ROWS
    assert rows["tracking, MuJoCo (95 %)"][0] == "0.900 [0.880, 0.910]"
    assert rows["tracking, PyBullet, ROS 2"] == ["0.800", "0.700"]
    assert rows["falls"] == ["0 in 10 s", "1 in 10 s"]
    assert rows["stopped early"] == [
        "no",
        "after 4.0 s: fall: 1.01 rad, limit 1 rad",
    ]
    assert rows["clamped commands"][0] == "12.5 %"
    assert rows["training"][0] == "9.5 min, 5.1 M steps"


@pytest.mark.slow
def test_the_page_shows_both_variants_and_why_one_ended_early(result):
    page = render_html(report_data(result, load_run_config("a1_walk"), None))
    for text in ("randomised", "not randomised", "fall: 1.01 rad", "0.900", "0.700"):
        assert text in page


def test_the_tick_is_what_both_nodes_need_and_unknown_if_one_is_silent():
    said = {
        "policy_node": {"tick_p50_ms": 0.2, "tick_p99_ms": 0.5},
        "safety_node": {"tick_p50_ms": 0.05, "tick_p99_ms": 0.25},
    }
    assert tick_us(said) == pytest.approx({"p50": 250.0, "p99": 750.0})
    del said["safety_node"]
    assert math.isnan(tick_us(said)["p50"])


def test_a_silent_node_is_null_in_json(result):
    silenced = replace(result.main, tick_us={"p50": math.nan, "p99": math.nan})
    assert silenced.as_json()["tick_us"] == {"p50": None, "p99": None}


def test_short_demonstrations_drive_for_less_but_visit_every_motion():
    # The schedule has a second of standing and nine motions of at least a second each.
    assert drive_seconds(15.0) == 60.0
    assert drive_seconds(5.0) == 60.0
    assert drive_seconds(2.0) == 24.0
    assert drive_seconds(0.5) >= 10.0


def test_without_randomisation_everything_else_is_equal():
    config = load_run_config("a1_walk")
    plain = plain_config(config)
    assert not plain.randomize
    assert plain.sensors is None
    changed = {
        name for name in type(config).model_fields if getattr(config, name) != getattr(plain, name)
    }
    assert changed == {"randomize", "sensors", "critic"}
    with contextlib.closing(make_env(plain, num=3, threads=1, seed=0)) as env:
        result = env.step(np.zeros((3, env.action_dim)))
        assert np.isfinite(result.obs["critic"]).all()


def test_the_curve_is_what_the_run_folder_says(tmp_path):
    rows = [
        {"training_s": 60.0 * m, "score": s, "tracking": {"mean": s, "low": s - 0.1, "high": 1.0}}
        for m, s in ((1.5, 0.3), (3.0, 0.7), (4.5, 0.8))
    ]
    text = "".join(json.dumps(r) + "\n" for r in rows)
    (tmp_path / "evaluations.jsonl").write_text(text)
    curve = read_curve(tmp_path, "x")
    np.testing.assert_allclose(curve.minutes, [1.5, 3.0, 4.5])
    np.testing.assert_allclose(curve.mean, [0.3, 0.7, 0.8])
    np.testing.assert_allclose(curve.low, [0.2, 0.6, 0.7])
    assert read_curve(tmp_path / "nothing", "x").minutes.size == 0


def test_the_reason_of_an_early_end_is_the_safety_node_s_own():
    graph = GraphReport(
        ok=False,
        reason="operator_node ended (1): mode is DAMP after 3.0 s of 60.0 s",
        seconds=9.0,
        exit_codes={"operator_node": 1},
        modes=[
            (0.1, "DAMP", "robot_node started"),
            (2.0, "RAMP", "armed"),
            (4.0, "RUN", "ramp over"),
        ],
        summaries={},
        log_dir=Path("logs"),
    )
    stop = (7.0, "DAMP", "fall: 1.01 rad, limit 1 rad")
    ended = DeployResult(False, graph.reason, graph, {}, None)
    fallen = replace(ended, graph=replace(graph, modes=[*graph.modes, stop]))
    assert why_stopped(fallen) == "fall: 1.01 rad, limit 1 rad"
    never = replace(ended, graph=replace(graph, modes=[]))
    assert why_stopped(never) == graph.reason
    assert why_stopped(replace(fallen, ok=True)) == ""


def test_the_picture_shows_where_the_robot_moved_most(result):
    drive = result.main.drive
    velocity = np.zeros((500, 3))
    velocity[150:250, 2] = -1.0  # 3 s to 5 s
    velocity[400:430, 0] = 0.5
    velocity[450:] = np.nan  # stopped
    assert liveliest(replace(drive, velocity=velocity), 2.0) == pytest.approx(3.0)
    # Longer than the drive: all of it.
    assert liveliest(replace(drive, velocity=velocity), 60.0) == 0.0


@pytest.mark.ros
def test_a_folder_in_use_is_refused_before_anything_is_done(tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(FerryError, match="not empty"):
        run_demo(tmp_path, minutes=1.0, compare=False, seed=0, stage=bar)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.ros
@pytest.mark.slow
def test_the_shipped_policy_drives_in_pybullet_over_ros_2(tmp_path):
    config = load_run_config("a1_walk")
    record = tmp_path / "drive.mcap"
    drive, ended = drive_bundle(BUNDLE, config, record, seconds=12.0, progress=silent)
    assert ended.ok, ended.reason
    assert (drive.falls, drive.stopped_s) == (0, None)
    assert drive.tracking > 0.7
    assert tick_us(ended.graph.summaries)["p99"] > 0.0
    # Every motion was asked for, and the wire shows it: both ends of vx, vy and wz.
    assert (drive.command.min(axis=0) < 0.0).all()
    assert (drive.command.max(axis=0) > 0.0).all()
    assert read_log(record).damage is None


@pytest.mark.ros
@pytest.mark.slow
@pytest.mark.timeout(420)
def test_the_whole_road_in_half_a_minute_and_what_starting_and_driving_take(tmp_path):
    out, numbers = tmp_path / "demo", tmp_path / "demo.json"
    done = subprocess.run(
        [
            *(sys.executable, str(ROOT / "ferry.py"), "demo"),
            *("--minutes", "0.5", "--out", str(out), "--json", str(numbers)),
        ],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(numbers.read_text())
    assert set(found) == KEYS
    assert found["training_s"] > 10.0
    # A policy of 20 s stands at least: standing still scores about 0.45 in MuJoCo.
    assert found["tracking_mujoco"] > 0.3
    assert 0.0 <= found["tracking_pybullet_ros"] <= 1.0
    assert found["tick_us"]["p50"] > 0.0
    for row in ROWS:
        assert row in done.stdout
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 2
    assert "data:image/gif" in page
    assert (out / "randomised" / "run" / "evaluations.jsonl").is_file()
    assert read_log(out / "randomised" / "drive.mcap").damage is None
