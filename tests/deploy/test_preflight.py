from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.graph import LOOPBACK, RobotChoice, choose_robot
from deploy.preflight import preflight, require_ros
from deploy.supervisor import deploy
from real.errors import FerryError
from real.spec import load_robot
from tests.deploy.stand_bundle import other_gain, stand_contract, write_bundle

LOOP = RobotChoice(LOOPBACK, simulated=True)

DRIVER = """
class Robot:
    simulated = False

class Fake:
    simulated = True
"""


@pytest.fixture
def bundle(tmp_path):
    return write_bundle(tmp_path / "stand.onnx")


@pytest.fixture
def driver(tmp_path, monkeypatch):
    (tmp_path / "driver_of_mine.py").write_text(DRIVER)
    (tmp_path / "broken_driver.py").write_text("raise OSError('no such device')")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.ros
def test_what_is_right_passes(bundle, tmp_path):
    cleared = preflight(bundle, LOOP, record=tmp_path / "new.mcap")
    assert cleared.bundle.contract.robot == cleared.robot.robot == "a1"
    assert cleared.choice == LOOP
    assert not (tmp_path / "new.mcap").exists()


@pytest.mark.ros
def test_every_difference_between_bundle_and_robot_is_named(tmp_path):
    contract = replace(other_gain(stand_contract(), kp=55.0), control_dt_s=0.01, damping_kd=2.0)
    bundle = write_bundle(tmp_path / "other.onnx", contract)
    with pytest.raises(FerryError) as raised:
        preflight(bundle, LOOP)
    assert "joint 'FL_hip_joint' kp: policy has 55.0, robot reports 40.0" in str(raised.value)
    assert "control_dt_s: policy has 0.01, robot reports 0.02" in str(raised.value)
    assert "damping_kd: policy has 2.0, robot reports 3.0" in str(raised.value)


@pytest.mark.ros
def test_a_bundle_for_a_robot_nobody_knows_is_refused_by_name(tmp_path):
    robot = replace(load_robot("a1"), name="a2")
    bundle = write_bundle(tmp_path / "other.onnx", stand_contract(robot))
    with pytest.raises(FerryError, match="'a2'"):
        preflight(bundle, LOOP)
    with pytest.raises(FerryError, match="robot: policy has 'a2', robot reports 'a1'"):
        preflight(bundle, LOOP, robot_name="a1")


@pytest.mark.ros
def test_an_unreadable_bundle_is_one_sentence(tmp_path):
    path = tmp_path / "bad.onnx"
    path.write_bytes(b"not a policy")
    with pytest.raises(FerryError, match=r"bad\.onnx"):
        preflight(path, LOOP)


@pytest.mark.ros
@pytest.mark.usefixtures("driver")
def test_a_driver_says_by_its_class_whether_it_is_simulated(bundle):
    assert not preflight(bundle, choose_robot("driver_of_mine:Robot")).choice.simulated
    assert preflight(bundle, choose_robot("driver_of_mine:Fake")).choice.simulated


@pytest.mark.ros
@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("robot", "words"),
    [
        ("driver_of_yours:Robot", "no module 'driver_of_yours'"),
        ("no_package.driver:Robot", "no_package"),
        ("driver_of_mine:Robto", "did you mean 'Robot'"),
        ("broken_driver:Robot", "OSError: no such device"),
        ("real.loopback:nq", r"has no 'nq'$"),
        ("json:dumps", "'dumps' is a function; expected a class"),
    ],
)
def test_a_driver_that_cannot_be_had_is_named(bundle, robot, words):
    with pytest.raises(FerryError, match=words):
        preflight(bundle, choose_robot(robot))


@pytest.mark.ros
def test_a_recording_that_exists_or_has_no_folder_is_refused_before_anything_starts(
    bundle, tmp_path
):
    (tmp_path / "old.mcap").write_bytes(b"precious")
    with pytest.raises(FerryError, match="exists already"):
        preflight(bundle, LOOP, record=tmp_path / "old.mcap")
    with pytest.raises(FerryError, match="there is no folder"):
        preflight(bundle, LOOP, record=tmp_path / "none" / "new.mcap")
    # /proc is a folder in which nobody, not even root, can make a file.
    with pytest.raises(FerryError, match="cannot be written"):
        preflight(bundle, LOOP, record=Path("/proc/new.mcap"))


@pytest.mark.parametrize("missing", ["rclpy", "nav_msgs"])
def test_without_ros_one_sentence_says_how_to_get_it(bundle, monkeypatch, missing):
    for name in [n for n in sys.modules if n.split(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)

    class Hidden:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == missing:
                raise ModuleNotFoundError(name)

    monkeypatch.setattr(sys, "meta_path", [Hidden(), *sys.meta_path])
    with pytest.raises(FerryError, match=missing) as raised:
        require_ros()
    assert "\n" not in str(raised.value)
    assert "ferry[ros]" in str(raised.value)
    with pytest.raises(FerryError, match=missing):
        deploy(bundle, "loopback")
