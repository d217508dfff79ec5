"""`deploy`: from a bundle file to a finished drive, with real nodes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tests.extras import reason

pytest.importorskip("rclpy", reason=reason("rclpy"))

from deploy.bundle import read_bundle
from deploy.schedule import Schedule
from deploy.supervisor import deploy
from real.errors import FerryError
from real.log import read_log
from real.spec import load_robot
from tests.deploy.stand_bundle import LIMITS, stand_contract, write_bundle

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]


@pytest.fixture
def bundle(tmp_path):
    return write_bundle(tmp_path / "stand.onnx")


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "safety.yaml").write_text("ramp_s: 0.3\n")
    return tmp_path / "safety.yaml"


def test_a_schedule_is_armed_played_recorded_and_reported(bundle, settings, tmp_path):
    record = tmp_path / "out.mcap"
    commands = np.repeat([[0.5, 0.0, 0.0], [0.0, -0.3, 0.8]], 15, axis=0)
    said, told = [], []
    result = deploy(
        bundle,
        "loopback",
        schedule=Schedule(0.05, LIMITS.names, commands),
        record=record,
        safety_settings=settings,
        watchdog_periods=50,  # a busy computer pauses; what a pause does is tested elsewhere
        on_status=said.append,
        progress=lambda *now: told.append(now),
    )
    assert result.ok, result.reason
    assert result.operator["completed"] is True
    assert [mode for _, mode, _ in result.graph.modes] == ["RAMP", "RUN", "DAMP"]
    assert set(result.graph.exit_codes.values()) == {0}
    assert any("ROS domain id" in line for line in said)
    done = [now for now, total, _ in told if total]
    assert done == sorted(done)
    assert 0.0 < done[-1] <= told[-1][1] == pytest.approx(1.5)
    rows = result.rows()
    assert rows["ended"] == "operator_node has finished"
    assert rows["commands"].endswith("0 damp")
    assert rows["recording"] == str(record)
    assert rows["logs of the nodes"] == "removed, since the run ended well"
    assert not result.graph.log_dir.exists()

    log = read_log(record)
    assert log.metadata["ferry"]["robot"] == "a1"
    assert log.metadata["ferry"]["policy_version"] == "7"
    twists = log["/cmd_vel"]
    during = (twists.log_ns > result.operator["start_ns"]) & (
        twists.log_ns < result.operator["end_ns"]
    )
    forward = twists.values["linear"][during, 0]
    turning = twists.values["angular"][during, 2]
    assert set(np.round(forward, 9)) == {0.5, 0.0}
    # What each half asks for, in order; how often, the computer decides.
    np.testing.assert_array_equal(np.argsort(turning, kind="stable"), np.arange(len(turning)))
    # Every command that reached the robot answers the policy's of the same stamp.
    asked = dict(zip(log["/policy/joint_command"].stamp_ns, range(10**6), strict=False))
    sent = log["/joint_command"]
    ran = (sent.log_ns > result.operator["start_ns"]) & (sent.log_ns < result.operator["end_ns"])
    assert ran.sum() > 10
    # Best effort may lose some to a recorder on a busy computer.
    assert sum(int(s) in asked for s in sent.stamp_ns[ran]) > 0.8 * ran.sum()


def test_a_stamped_operator_drives_a_stamped_policy(bundle, settings, tmp_path):
    """All of it by a parameter file, into a recording of several files."""
    record = tmp_path / "walk"
    params = tmp_path / "my.yaml"
    params.write_text(
        "/**: {ros__parameters: {twist_stamped: true}}\n"
        f"safety_node: {{ros__parameters: {{safety_settings: {settings}, watchdog_periods: 50}}}}\n"
        "robot_node: {ros__parameters: {command_timeout_periods: 50}}\n"
        "recorder_node: {ros__parameters: {split_s: 1}}\n"
    )
    # In 1 s the tour asks for each command for 0.1 s alone, which a busy computer sleeps through.
    result = deploy(bundle, "loopback", seconds=4.0, record=record, params=params)
    assert result.ok, result.reason
    assert (record / "walk_0001.mcap").is_file()
    log = read_log(record)
    assert log.damage is None
    assert log.metadata["ferry"]["bundle_sha256"] == read_bundle(bundle).sha256
    assert log["/cmd_vel"].type_name == "geometry_msgs/msg/TwistStamped"
    asked = log["/cmd_vel"].values["linear"][:, 0].max()
    assert asked == pytest.approx(0.72)  # 60 % of 1.2 m/s, on the tour
    command = stand_contract().observation.slices()["command"]
    assert log["/policy/step"].values["observation"][:, command][:, 0].max() == np.float32(asked)


def test_a_robot_that_lies_on_its_side_is_not_armed_and_the_reason_is_the_answer(
    bundle, settings, tmp_path, monkeypatch
):
    (tmp_path / "lying_robot.py").write_text(
        "from real.loopback import LoopbackRobot\n"
        "class Lying(LoopbackRobot):\n"
        "    simulated = True\n"
        "    def __init__(self, robot):\n"
        "        super().__init__(robot, quat_wb=(0.5, 0.5, 0.5, 0.5))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = deploy(
        bundle,
        "lying_robot:Lying",
        seconds=1.0,
        safety_settings=settings,
        arm_timeout_s=6.0,  # so long, a busy computer has connected everybody
    )
    assert not result.ok
    assert "arming refused: fall: 1.571 rad, limit 1 rad" in result.reason
    assert result.operator["completed"] is False
    assert result.graph.exit_codes["operator_node"] == 1


def test_a_driver_that_cannot_open_ends_the_graph_in_its_own_words(bundle, tmp_path, monkeypatch):
    (tmp_path / "bare_driver.py").write_text(
        "from real.errors import FerryError\n"
        "from real.loopback import LoopbackRobot\n"
        "class Bare(LoopbackRobot):\n"
        "    simulated = False\n"
        "    def start(self):\n"
        "        raise FerryError('the bus is not there')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = deploy(bundle, "bare_driver:Bare", seconds=5.0, domain_id=None)
    assert not result.ok
    assert result.graph.exit_codes["robot_node"] == 2
    rows = result.rows()
    assert rows["state to command p50 / p99"] == "not measured"
    assert rows["logs of the nodes"] == str(result.graph.log_dir)
    assert result.graph.log_dir.is_dir()
    shutil.rmtree(result.graph.log_dir)
    assert "the bus is not there" in result.reason


def test_mistakes_are_found_before_a_process_starts(bundle, tmp_path):
    with pytest.raises(FerryError, match="sim:pybullet"):
        deploy(bundle, "sim:pybulet")
    with pytest.raises(FerryError, match=r"none\.onnx"):
        deploy(tmp_path / "none.onnx", "loopback")
    with pytest.raises(FerryError, match="did you mean 'ramp_s'"):
        deploy(bundle, "loopback", safety=["ramps=1"])
    with pytest.raises(FerryError, match="expected KEY=VALUE"):
        deploy(bundle, "loopback", options=["port"])
    with pytest.raises(FerryError, match=r"stand\.onnx: it carries no evaluation"):
        deploy(bundle, "loopback", minimum_score=0.9)
    with pytest.raises(FerryError, match=r"none\.yaml: there is no such file"):
        deploy(bundle, "loopback", params=tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("module", "raised"),
    [("supervisor.preflight", KeyboardInterrupt), ("graph.graph_environment", FerryError)],
)
def test_a_start_that_does_not_happen_leaves_no_folder(
    bundle, tmp_path, monkeypatch, module, raised
):
    def fails(*_, **__):
        raise raised("now")

    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(f"deploy.{module}", fails)
    with pytest.raises(raised):
        deploy(bundle, "loopback")
    assert list((tmp_path / "temporary").iterdir()) == []


#: A driver that takes its time to be imported, and says that it is.
SLOW_DRIVER = """
import time
print("importing", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", ["deploy", "rehearse"])
def test_a_signal_during_the_start_leaves_no_folder(bundle, tmp_path, command, number):
    (tmp_path / "slow_driver.py").write_text(SLOW_DRIVER)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    asked = [sys.executable, "-m", "ferry", command, str(bundle), "--robot", "slow_driver:Robot"]
    with subprocess.Popen(
        asked,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": path},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        said = iter(process.stdout.readline, b"")
        assert any(b"importing" in line for line in said)
        assert [p for p in temporary.iterdir() if p.name.startswith("ferry-")]
        process.send_signal(number)
        rest = process.stdout.read()
        assert process.wait(30) == 130
    assert b"Traceback" not in rest
    assert not [p for p in temporary.iterdir() if p.name.startswith("ferry-")]


def test_options_reach_the_users_own_driver_robot_file_and_safety_node(
    bundle, tmp_path, monkeypatch
):
    (tmp_path / "own_driver.py").write_text(
        "from real.loopback import LoopbackRobot\n"
        "class Own(LoopbackRobot):\n"
        "    simulated = True\n"
        "    def __init__(self, robot, *, port, seen):\n"
        # Tilted by 2 acos(0.8) = 1.29 rad: under the default of 1 rad it would not be armed.
        "        super().__init__(robot, quat_wb=(0.8, 0.6, 0.0, 0.0))\n"
        "        open(seen, 'w').write(f'{port!r} {robot.source}')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    own = tmp_path / "own.yaml"
    own.write_text(Path(load_robot("a1").source).read_text())
    result = deploy(
        bundle,
        "own_driver:Own",
        seconds=0.3,
        robot_name=str(own),
        options=["port=7", f"seen={tmp_path / 'seen'}"],
        safety=["ramp_s=0.1", "tilt_rad=1.5"],
        watchdog_periods=50,
    )
    assert result.ok, result.reason
    assert (tmp_path / "seen").read_text() == f"7 {own}"
