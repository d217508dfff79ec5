"""Rehearsals: late and lost messages, options, and the graph that equals the controller."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from deploy.bench import BUNDLE
from deploy.bundle import read_bundle
from deploy.channel import Channel, Disturbance
from deploy.rehearse import RehearsalResult, read_seconds, read_share, rehearse
from deploy.schedule import tour
from real.errors import FerryError
from tests.deploy.stand_bundle import write_bundle
from tests.deploy.test_reach import arm_contract
from tests.extras import need
from tests.training.toy_run import alive, descendants, wait_until

MS = 1_000_000


def test_undisturbed_messages_arrive_at_once_and_in_order():
    way = Channel(Disturbance(), np.random.default_rng(0))
    for i in range(3):
        way.send(5 * MS, i)
    assert way.arrived(5 * MS) == [0, 1, 2]
    assert way.arrived(9 * MS) == []


def test_messages_are_late_by_the_latency_within_the_jitter_and_never_overtake():
    way = Channel(Disturbance(0.010, 0.003), np.random.default_rng(1))
    for i in range(400):
        way.send(5 * i * MS, i)
    seen = []
    for tick in range(4 * 2020):  # a quarter of a millisecond each
        now = tick * MS // 4
        seen += [(i, now - 5 * i * MS) for i in way.arrived(now)]
    assert [i for i, _ in seen] == list(range(400))
    late = np.array([d for _, d in seen]) / MS
    assert late.min() >= 7.0
    assert late.max() <= 13.25 + 5.0  # the wait for the one before is at most this
    assert late.mean() == pytest.approx(10.2, abs=0.4)
    assert late.std() > 1.0


def test_messages_are_lost_with_the_probability_given_and_cleared_ones_never_come():
    way = Channel(Disturbance(loss=0.25), np.random.default_rng(2))
    for i in range(2000):
        way.send(0, i)
    assert way.lost == 2000 - len(way.arrived(0))
    assert way.lost == pytest.approx(500, abs=60)
    way.send(0, 1)
    way.clear()
    assert way.arrived(10**12) == []


def test_durations_and_shares_are_read_with_their_units():
    assert read_seconds("10ms", "latency") == 0.01
    assert read_seconds("0.5 s", "latency") == 0.5
    assert read_seconds("250us", "jitter") == 2.5e-4
    assert read_share("1%", "loss") == 0.01
    assert read_share("0.02", "loss") == 0.02
    for text in ("10", "ms", "1.2.3ms", "-1ms"):
        with pytest.raises(FerryError, match="expected a duration with its unit"):
            read_seconds(text, "latency")
    for text in ("many", "1%x", "%"):
        with pytest.raises(FerryError, match="expected a share"):
            read_share(text, "loss")
    with pytest.raises(FerryError, match=r"loss is 1.5"):
        Disturbance(loss=1.5)


def test_a_difference_or_nothing_to_compare_is_no_equality():
    run = {"samples": 10, "max_difference": 2e-6, "rms_error": {}, "falls": 0, "stops": []}
    run |= {"lost": 0, "seconds": 1.0}
    result = RehearsalResult(run, None, Disturbance())
    assert not result.equal
    assert "NOT equal" in result.verdict()
    assert RehearsalResult({**run, "max_difference": 1e-7}, None, Disturbance()).equal
    assert not RehearsalResult({**run, "samples": 0}, None, Disturbance()).equal
    unlike = RehearsalResult({**run, "max_difference": float("inf")}, None, Disturbance())
    assert unlike.as_json()["undisturbed"]["max_difference"] is None


def test_hardware_is_not_rehearsed():
    need("rclpy")
    with pytest.raises(FerryError, match="no simulator 'gazebo'"):
        rehearse(Path(BUNDLE), "sim:gazebo", disturbance=Disturbance())


PARENT = """
import os, sys
from deploy.rehearse import _wait_for
sys.exit(_wait_for([sys.executable, *sys.argv[1:]], env=os.environ, stderr=sys.stderr))
"""


@pytest.mark.ros
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_process_that_rehearses_ends_with_the_one_that_asked_for_it(tmp_path, number):
    need("rclpy")
    need("pybullet")
    folder = tmp_path / "plan"
    folder.mkdir()
    plan = {
        "bundle": str(BUNDLE),
        "robot": "a1",
        "plugin": "sim.sim_robot:PyBulletRobot",
        "options": {},
        "schedule": str(folder / "schedule.json"),
        "safety_settings": str(folder / "safety.yaml"),
        "report": str(folder / "report.json"),
        "seed": 0,
        **dataclasses.asdict(Disturbance()),
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "safety.yaml").write_text("ramp_s: 0.0\n")
    tour(read_bundle(BUNDLE).contract.command, seconds=600.0).save(folder / "schedule.json")
    child = ["-m", "deploy.rehearsal_process", str(folder / "plan.json")]
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, *child],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as parent:
        wait_until(lambda: len(descendants(parent.pid)) == 1)
        (rehearsing,) = descendants(parent.pid)
        # So many threads only with nodes: it is in the middle of it.
        wait_until(lambda: len(list(Path(f"/proc/{rehearsing}/task").iterdir())) > 8)
        parent.send_signal(number)
    wait_until(lambda: not alive([rehearsing]))


@pytest.mark.ros
@pytest.mark.slow
def test_the_graph_equals_the_controller_and_faults_make_it_no_better():
    need("rclpy")
    need("pybullet")
    result = rehearse(
        Path(BUNDLE),
        "sim:pybullet",
        disturbance=Disturbance(0.010, 0.003, 0.01),
        seconds=2.0,
    )
    plain, disturbed = result.plain, result.disturbed
    assert result.equal, result.verdict()
    assert plain["samples"] == 100  # 2 s at 50 Hz
    assert (plain["falls"], plain["stops"], plain["lost"]) == (0, [], 0)
    assert disturbed is not None
    assert disturbed["lost"] > 0
    assert 0 < disturbed["samples"] <= 100
    assert set(plain["rms_error"]) == {"vx", "vy", "wz"}
    assert any("rms error of vx" in row[0] for row in result.table_rows())


@pytest.mark.ros
@pytest.mark.slow
def test_an_arm_reaches_its_poses_through_the_graph_as_the_controller_would_have_it(tmp_path):
    need("rclpy")
    need("pybullet")
    # In YAML, which ROS reads parameters by, the name would be something else.
    bundle = write_bundle(tmp_path / "arm: first #1.onnx", arm_contract(), gain=1.0)
    result = rehearse(bundle, "sim:pybullet", disturbance=Disturbance(), seconds=5.5)
    assert result.equal, result.verdict()
    assert result.disturbed is None
    plain = result.plain
    assert plain["samples"] == 275  # 5.5 s at 50 Hz
    assert plain["stops"] == []
    poses = plain["poses"]
    assert (poses["asked"], poses["reached"]) == (2, 1.0)  # at rest for 3 s, then another
    assert poses["kept_position_m"] < 0.01 < poses["position_m"]
    assert poses["kept_angle_rad"] < 0.05
