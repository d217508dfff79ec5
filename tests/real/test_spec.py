"""The robot file and the description together make one RobotSpec, or a clear refusal."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from real.errors import FerryError
from real.frames import rotate
from real.spec import load_robot

URDF = """<robot name="r">
  <link name="base"/><link name="cart"/><link name="upper"/><link name="lower"/>
  <joint name="rail" type="prismatic"><parent link="base"/><child link="cart"/>
    <limit lower="-1" upper="2" effort="50" velocity="3"/></joint>
  <joint name="shoulder" type="revolute"><parent link="cart"/><child link="upper"/>
    <limit lower="-1.5" upper="0.5" effort="20" velocity="9"/></joint>
  <joint name="elbow" type="continuous"><parent link="upper"/><child link="lower"/></joint>
</robot>"""

ROBOT = """schema_version: 1
name: r
description: r.urdf
base: {kind: fixed, link: base, height_m: 0.7}
imu_link: null
safe_stop: hold
damping_kd: 1
control_dt_s: 0.02
physics_dt_s: 0.005
defaults: {kp: 40, kd: 2, action_scale: 0.5, damping: 0.1}
joints:
  shoulder: {q_default: -0.25, kp: 11, friction: 0.3}
  elbow: {q_default: 0.125, actuated: false, damping: 0.7}
  rail: {q_default: 1.5, kd: 5, armature: 0.4}
"""


@pytest.fixture
def robot_file(tmp_path: Path) -> Path:
    (tmp_path / "r.urdf").write_text(URDF)
    path = tmp_path / "r.yaml"
    path.write_text(ROBOT)
    return path


def edited(path: Path, old: str, new: str) -> Path:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def test_joints_are_in_the_order_of_the_robot_file_not_of_the_description(robot_file):
    robot = load_robot(robot_file)
    assert robot.joint_names == ("shoulder", "elbow", "rail")
    assert [j.name for j in robot.actuated] == ["shoulder", "rail"]
    np.testing.assert_array_equal(robot.actuated_ids, [0, 2])
    np.testing.assert_array_equal(robot.q_default, [-0.25, 0.125, 1.5])
    assert [j.kind for j in robot.joints] == ["hinge", "hinge", "slide"]


def test_every_array_follows_the_order_of_the_actuated_joints(robot_file):
    robot = load_robot(robot_file)
    expected = {
        "q_min": [-1.5, -1.0],
        "q_max": [0.5, 2.0],
        "dq_max": [9.0, 3.0],
        "tau_max": [20.0, 50.0],
        "kp": [11.0, 40.0],
        "kd": [2.0, 5.0],
        "q_default": [-0.25, 1.5],
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(robot.actuated_array(name), values)


def test_a_joints_own_value_beats_the_default(robot_file):
    shoulder, elbow, rail = load_robot(robot_file).joints
    assert (shoulder.damping, elbow.damping, rail.damping) == (0.1, 0.7, 0.1)
    assert (shoulder.friction, rail.friction) == (0.3, 0.0)
    assert (shoulder.armature, rail.armature) == (0.0, 0.4)
    assert (elbow.kp, elbow.kd) == (0.0, 0.0)  # no motor, no gains


def test_rates_give_the_substeps_and_a_fraction_is_refused(robot_file):
    assert load_robot(robot_file).substeps == 4
    edited(robot_file, "physics_dt_s: 0.005", "physics_dt_s: 0.006")
    with pytest.raises(FerryError, match=r"3\.33333 physics steps .*expected a whole number"):
        load_robot(robot_file)


def test_an_unknown_joint_names_file_joint_and_the_nearest(robot_file):
    edited(robot_file, "  shoulder:", "  sholder:")
    with pytest.raises(FerryError, match=r"joint 'sholder' is not in .*r\.urdf.*'shoulder'"):
        load_robot(robot_file)


def test_a_joint_that_is_not_listed_is_refused_since_it_would_move_freely(robot_file):
    edited(robot_file, "  elbow: {q_default: 0.125, actuated: false, damping: 0.7}\n", "")
    with pytest.raises(FerryError, match="does not list: elbow; list each"):
        load_robot(robot_file)


@pytest.mark.parametrize("key", ["imu_link: null", "link: base"])
def test_a_link_that_is_not_in_the_description_names_the_nearest(robot_file, key):
    edited(robot_file, key, key.split(":")[0] + ": bse")
    with pytest.raises(FerryError, match=r"link 'bse' is not in .*'base'"):
        load_robot(robot_file)


def test_a_missing_limit_loads_but_refuses_to_run_naming_joint_and_key(robot_file):
    urdf = robot_file.with_name("r.urdf")
    edited(urdf, ' effort="20" velocity="9"', "")
    robot = load_robot(robot_file)
    assert math.isnan(robot.joints[0].tau_max)
    with pytest.raises(FerryError, match=r"'shoulder': dq_max is not given.*\n.*'shoulder': tau_m"):
        robot.require_complete()


def test_limits_given_in_the_robot_file_win_and_carry_their_source(robot_file):
    urdf = robot_file.with_name("r.urdf")
    edited(urdf, ' effort="20" velocity="9"', "")
    edited(
        robot_file,
        "q_default: -0.25,",
        "q_default: -0.25, limits: {tau_max: 33, dq_max: 8, q_max: 0.1, source: data sheet},",
    )
    edited(
        robot_file,
        "damping: 0.1}",
        "damping: 0.1, limits: {tau_max: 44, dq_max: 6, source: catalogue}}",
    )
    robot = load_robot(robot_file)
    robot.require_complete()
    shoulder, elbow, rail = robot.joints
    assert (shoulder.tau_max, shoulder.dq_max) == (33.0, 8.0)
    assert (shoulder.q_min, shoulder.q_max) == (-1.5, 0.1)
    assert shoulder.limit_source == "r.urdf; data sheet"
    assert (rail.tau_max, rail.dq_max, rail.q_max) == (44.0, 6.0, 2.0)
    assert rail.limit_source == "r.urdf; catalogue"
    assert elbow.tau_max == 44.0


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [("tau_max", 'effort="20"', 'effort="0"'), ("dq_max", 'velocity="9"', 'velocity="0.0"')],
)
def test_a_zero_limit_means_no_authority_and_is_refused(robot_file, key, old, new):
    edited(robot_file.with_name("r.urdf"), old, new)
    with pytest.raises(FerryError, match=f"joint 'shoulder': {key} is 0 .*no authority"):
        load_robot(robot_file)


def test_a_default_pose_outside_the_limits_is_refused(robot_file):
    edited(robot_file, "q_default: -0.25", "q_default: 0.75")
    with pytest.raises(FerryError, match=r"'shoulder': q_default 0\.75 .*\[-1\.5, 0\.5\]"):
        load_robot(robot_file)


def test_a_foot_listed_twice_is_refused_by_name(robot_file):
    edited(robot_file, "imu_link: null", "imu_link: null\nfeet: [base, base]")
    with pytest.raises(FerryError, match="found twice: base"):
        load_robot(robot_file)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kd: 2, ", "", "joint 'shoulder' has no kd"),
        ("q_default: 1.5, ", "", "joint 'rail' has no q_default"),
    ],
)
def test_what_is_missing_is_named_with_where_to_give_it(robot_file, old, new, message):
    edited(robot_file, old, new)
    with pytest.raises(FerryError, match=message):
        load_robot(robot_file)


def test_without_the_description_limits_stay_unknown(robot_file):
    robot_file.with_name("r.urdf").unlink()
    robot = load_robot(robot_file, read_limits=False)
    assert np.isnan(robot.actuated_array("q_min")).all()
    with pytest.raises(FerryError, match="cannot run"):
        robot.require_complete()


def test_the_base_rotation_turns_a_y_up_file_upright(robot_file):
    edited(robot_file, "height_m: 0.7}", "height_m: 0.7, rotation_rpy: [1.5707963267948966, 0, 0]}")
    robot = load_robot(robot_file)
    np.testing.assert_allclose(
        rotate(robot.base_rotation, [0.0, 1.0, 0.0]), [0.0, 0.0, 1.0], atol=1e-15
    )


def test_a1_is_what_its_files_say():
    robot = load_robot("a1")
    robot.require_complete()
    assert (robot.base, robot.base_link, robot.imu_link) == ("floating", "trunk", "imu_link")
    assert len(robot.joints) == len(robot.actuated) == 12
    assert robot.substeps == 4
    hip, upper, lower = robot.joints[:3]
    assert (hip.q_min, hip.q_max) == (-0.802851455917, 0.802851455917)
    assert (hip.tau_max, upper.tau_max, lower.tau_max) == (20.0, 55.0, 55.0)
    assert (hip.dq_max, upper.dq_max, lower.dq_max) == (52.4, 28.6, 28.6)
    assert hip.limit_source == "pybullet_data:a1/a1.urdf"


def test_every_shipped_robot_loads_and_can_run():
    import configs

    files = sorted(Path(next(iter(configs.__path__)), "robots").glob("*.yaml"))
    assert files
    for file in files:
        robot = load_robot(file)
        robot.require_complete()
        assert robot.name == file.stem
