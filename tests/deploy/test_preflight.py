from __future__ import annotations

import math
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import deploy.preflight as preflight_module
from deploy.graph import LOOPBACK, RobotChoice, choose_robot
from deploy.preflight import preflight, require_ros
from deploy.supervisor import deploy
from real.errors import FerryError
from real.spec import load_robot
from tests.deploy.stand_bundle import other_gain, stand_contract, write_bundle

LOOP = RobotChoice(LOOPBACK, simulated=True)

DRIVER = """
from real.loopback import LoopbackRobot

class Robot(LoopbackRobot):
    simulated = False
    closed = 0

    def __init__(self, robot):
        super().__init__(robot)

    def start(self):
        raise AssertionError("opened before a node started")

    def close(self):
        type(self).closed += 1
        super().close()

class Fake:
    simulated = True

class Serial(LoopbackRobot):
    simulated = False
    def __init__(self, robot, port, *, speed=115200):
        super().__init__(robot)

class Open(LoopbackRobot):
    simulated = False
    def __init__(self, robot, **settings):
        super().__init__(robot)

class Hanging(LoopbackRobot):
    simulated = False
    def __init__(self, robot, *, timeout=None):
        super().__init__(robot)
        self.command_timeout_s = timeout

class Broken(LoopbackRobot):
    simulated = False
    def __init__(self, robot):
        raise OSError("no such device")

class Quitting(LoopbackRobot):
    simulated = False
    def __init__(self, robot):
        raise SystemExit("no licence")

class QuittingLate(LoopbackRobot):
    simulated = False
    def __init__(self, robot):
        super().__init__(robot)
    def close(self):
        raise SystemExit(3)

class Undecided(LoopbackRobot):
    simulated = False
    def __init__(self, robot):
        super().__init__(robot)
        self.simulated = True

class OddWorld(LoopbackRobot):
    @classmethod
    def planned_world(cls, robot, options):
        raise SystemExit("no licence")
"""


@pytest.fixture
def bundle(tmp_path):
    return write_bundle(tmp_path / "stand.onnx")


@pytest.fixture
def driver(tmp_path, monkeypatch):
    (tmp_path / "driver_of_mine.py").write_text(DRIVER)
    (tmp_path / "broken_driver.py").write_text("raise OSError('no such device')")
    (tmp_path / "quitting_driver.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.ros
@pytest.mark.patient
def test_what_is_right_passes(bundle, tmp_path):
    cleared = preflight(bundle, LOOP, record=tmp_path / "new.mcap")
    assert cleared.bundle.contract.robot == cleared.robot.robot == "a1"
    assert cleared.choice == LOOP
    assert not (tmp_path / "new.mcap").exists()


@pytest.mark.ros
@pytest.mark.patient
def test_every_difference_between_bundle_and_robot_is_named(tmp_path):
    contract = replace(other_gain(stand_contract(), kp=55.0), control_dt_s=0.01, damping_kd=2.0)
    bundle = write_bundle(tmp_path / "other.onnx", contract)
    with pytest.raises(FerryError) as raised:
        preflight(bundle, LOOP)
    assert "joint 'FL_hip_joint' kp: policy has 55.0, robot reports 40.0" in str(raised.value)
    assert "control_dt_s: policy has 0.01, robot reports 0.02" in str(raised.value)
    assert "damping_kd: policy has 2.0, robot reports 3.0" in str(raised.value)


@pytest.mark.ros
@pytest.mark.patient
def test_a_bundle_for_a_robot_nobody_knows_is_refused_by_name(tmp_path):
    robot = replace(load_robot("a1"), name="a2")
    bundle = write_bundle(tmp_path / "other.onnx", stand_contract(robot))
    with pytest.raises(FerryError, match="'a2'"):
        preflight(bundle, LOOP)
    with pytest.raises(FerryError, match="robot: policy has 'a2', robot reports 'a1'"):
        preflight(bundle, LOOP, robot_name="a1")


@pytest.mark.ros
@pytest.mark.patient
def test_a_bundles_robot_that_does_not_ship_is_asked_for_by_option(tmp_path):
    robot = replace(load_robot("a1"), name="a2")
    bundle = write_bundle(tmp_path / "other.onnx", stand_contract(robot))
    with pytest.raises(FerryError, match=r"other\.onnx is for the robot 'a2'.*--robot-file FILE"):
        preflight(bundle, LOOP)
    # A file that was asked for by name and is not there is another mistake.
    with pytest.raises(FerryError) as raised:
        preflight(bundle, LOOP, robot_name="a22")
    assert "--robot-file" not in str(raised.value)


@pytest.mark.ros
@pytest.mark.patient
@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("robot", "options", "words"),
    [
        ("loopback", {"port": 3}, "no option 'port'.*; it has: period_s, command_timeout_s"),
        ("loopback", {"viscosty": 3.0}, "did you mean 'viscosity'"),
        ("sim:mujoco", {"frction": 1.0}, "did you mean 'friction'"),
        ("sim:pybullet", {"gain": 1.0}, "it has: friction, hold_until_commanded"),
        ("driver_of_mine:Robot", {"port": 3}, "it has: none"),
        ("driver_of_mine:Serial", {"speed": 9600}, "needs the option port: add --option port="),
        ("loopback", {"viscosity": "thick"}, "option viscosity='thick': expected a number"),
        ("sim:mujoco", {"seed": 1.5}, "option seed=1.5: expected a whole number"),
    ],
)
def test_an_option_that_the_plug_in_does_not_take_is_refused(bundle, robot, options, words):
    with pytest.raises(FerryError, match=words):
        preflight(bundle, choose_robot(robot, options=options))


@pytest.mark.ros
@pytest.mark.patient
@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("robot", "options"),
    [
        ("loopback", {"viscosity": 2.0}),
        ("sim:mujoco", {"friction": 1.0}),
        ("driver_of_mine:Serial", {"port": 3}),
        ("driver_of_mine:Open", {"whatever": 3}),
    ],
)
def test_options_that_the_plug_in_takes_pass(bundle, robot, options):
    choice = preflight(bundle, choose_robot(robot, options=options)).choice
    assert choice.options == options


@pytest.mark.ros
@pytest.mark.patient
def test_a_ros_that_cannot_be_imported_is_found_before_anything_starts(
    bundle, tmp_path, monkeypatch
):
    (tmp_path / "rclpy").mkdir()
    broken = "raise ImportError('libpython3.12.so.1.0: cannot open shared object file')"
    (tmp_path / "rclpy" / "__init__.py").write_text(broken)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        preflight_module._require_import.cache_clear()
        with pytest.raises(FerryError, match=r"cannot be imported by .*libpython3\.12") as raised:
            require_ros()
        assert "\n" not in str(raised.value)
        with pytest.raises(FerryError, match="libpython"):
            deploy(bundle, "loopback")
    require_ros()  # a failure is not remembered


@pytest.mark.ros
@pytest.mark.patient
def test_an_unreadable_bundle_is_one_sentence(tmp_path):
    path = tmp_path / "bad.onnx"
    path.write_bytes(b"not a policy")
    with pytest.raises(FerryError, match=r"bad\.onnx"):
        preflight(path, LOOP)


@pytest.mark.ros
@pytest.mark.patient
@pytest.mark.usefixtures("driver")
def test_a_driver_is_built_and_closed_and_not_opened(bundle):
    import driver_of_mine  # type: ignore[import-not-found]

    driver_of_mine.Robot.closed = 0
    preflight(bundle, choose_robot("driver_of_mine:Robot"))
    assert driver_of_mine.Robot.closed == 1


@pytest.mark.ros
@pytest.mark.patient
@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("timeout", "found"),
    [
        (None, "no command_timeout_s"),
        (0.0, "command_timeout_s = 0.0"),
        (-1.0, "command_timeout_s = -1.0"),
        (math.inf, "command_timeout_s = inf"),
        (math.nan, "command_timeout_s = nan"),
        ("soon", "command_timeout_s = 'soon'"),
        (True, "command_timeout_s = True"),
        ([0.1], r"command_timeout_s = \[0\.1\]"),
    ],
)
def test_hardware_that_nothing_stops_is_refused_unless_somebody_answers_for_it(
    bundle, tmp_path, timeout, found
):
    robot = choose_robot("driver_of_mine:Hanging", options={"timeout": timeout})
    with pytest.raises(FerryError, match=rf"declares {found}: .*allow_no_firmware_timeout"):
        preflight(bundle, robot)
    params = tmp_path / "params.yaml"
    params.write_text("robot_node: {ros__parameters: {allow_no_firmware_timeout: true}}\n")
    assert preflight(bundle, robot, params=params).choice.plugin == robot.plugin
    preflight(bundle, choose_robot("driver_of_mine:Hanging", options={"timeout": 0.1}))


@pytest.mark.ros
@pytest.mark.patient
@pytest.mark.usefixtures("driver")
def test_a_driver_says_by_its_class_whether_it_is_simulated(bundle):
    assert not preflight(bundle, choose_robot("driver_of_mine:Robot")).choice.simulated
    assert preflight(bundle, choose_robot("driver_of_mine:Fake")).choice.simulated


@pytest.mark.ros
@pytest.mark.patient
@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("robot", "words"),
    [
        ("driver_of_yours:Robot", "no module 'driver_of_yours'"),
        ("no_package.driver:Robot", "no_package"),
        ("driver_of_mine:Robto", "did you mean 'Robot'"),
        ("broken_driver:Robot", "OSError: no such device"),
        ("driver_of_mine:Broken", "cannot be built .*OSError: no such device"),
        ("driver_of_mine:Quitting", "building 'Quitting' asked the process to exit .no licence"),
        ("driver_of_mine:QuittingLate", "built and closed before the start .SystemExit: 3"),
        ("driver_of_mine:Undecided", "class says simulated = False, what it builds says True"),
        ("driver_of_mine:OddWorld", "planned_world failed .SystemExit: no licence"),
        ("quitting_driver:Robot", "importing 'quitting_driver' failed .SystemExit: 0"),
        ("real.loopback:nq", r"has no 'nq'$"),
        ("json:dumps", "'dumps' is a function; expected a class"),
    ],
)
def test_a_driver_that_cannot_be_had_is_named(bundle, robot, words):
    with pytest.raises(FerryError, match=words):
        preflight(bundle, choose_robot(robot))


@pytest.mark.ros
@pytest.mark.patient
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


def test_wheels_of_two_distributions_are_refused_before_anything_is_imported(tmp_path, monkeypatch):
    def install(name, version):
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}")

    monkeypatch.syspath_prepend(tmp_path)
    install("ros-jazzy-rclpy", "7.1.6")
    install("ros-kilted-std-msgs", "5.5.1")  # what a half-removed distribution leaves
    with pytest.raises(FerryError, match="of two ROS 2 distributions") as raised:
        require_ros()
    said = str(raised.value)
    assert "ros-jazzy-rclpy 7.1.6 and ros-kilted-" in said
    assert "'ferry[ros]' (Jazzy) or 'ferry[ros-kilted]' (Kilted)" in said
    assert "\n" not in said
