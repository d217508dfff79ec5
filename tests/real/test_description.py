"""Reading joints and links of URDF files as they are found in the wild."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import real.description
from real.description import description_path, link_rotation, read_description
from real.errors import FerryError
from real.frames import from_rpy, to_matrix
from tests.extras import need

URDF = """<robot name="r">
  <link name="base"/><link name="arm"/><link name="rail"/><link name="wheel"/><link name="finger"/>
  <link name="plate"/><link name="imu"/>
  <joint name="slide" type="prismatic"><parent link="base"/><child link="rail"/>
    <limit lower="-0.5" upper="1.5" effort="30" velocity="2"/></joint>
  <joint name="turn" type="revolute"><parent link="rail"/><child link="arm"/></joint>
  <joint name="roll" type="continuous"><parent link="arm"/><child link="wheel"/>
    <limit lower="-1" upper="1" effort="0" velocity="7"/></joint>
  <joint name="pinch" type="revolute"><parent link="arm"/><child link="finger"/>
    <limit lower="0" upper="1" effort="1" velocity="1"/><mimic joint="turn"/></joint>
  <joint name="glue" type="fixed"><parent link="base"/><child link="plate"/>
    <origin xyz="1 2 3" rpy="0.3 -0.4 1.2"/></joint>
  <joint name="glue_imu" type="fixed"><parent link="plate"/><child link="imu"/>
    <origin rpy="1.1 0.2 -0.7"/></joint>
</robot>"""


@pytest.fixture
def urdf(tmp_path: Path) -> Path:
    path = tmp_path / "r.urdf"
    path.write_text(URDF)
    return path


def test_joints_come_in_file_order_without_the_fixed_ones(urdf):
    described = read_description(urdf)
    assert list(described.joints) == ["slide", "turn", "roll", "pinch"]
    assert [j.kind for j in described.joints.values()] == ["slide", "hinge", "hinge", "hinge"]
    assert described.links == ("base", "arm", "rail", "wheel", "finger", "plate", "imu")
    assert [j.child for j in described.joints.values()] == ["rail", "arm", "wheel", "finger"]


def test_limits_are_read_and_missing_ones_are_nan_not_zero(urdf):
    joints = read_description(urdf).joints
    slide = joints["slide"]
    assert (slide.q_min, slide.q_max, slide.dq_max, slide.tau_max) == (-0.5, 1.5, 2.0, 30.0)
    turn = joints["turn"]
    assert all(math.isnan(x) for x in (turn.q_min, turn.q_max, turn.dq_max, turn.tau_max))


def test_a_continuous_joint_has_no_position_limits_whatever_the_file_says(urdf):
    roll = read_description(urdf).joints["roll"]
    assert (roll.q_min, roll.q_max) == (-math.inf, math.inf)
    assert (roll.dq_max, roll.tau_max) == (7.0, 0.0)  # zero stays zero: it is not "unknown"


def test_a_mimic_joint_names_the_joint_it_follows(urdf):
    joints = read_description(urdf).joints
    assert joints["pinch"].mimics == "turn"
    assert joints["turn"].mimics is None


def test_a_limit_that_is_no_number_names_file_joint_and_value(urdf):
    urdf.write_text(URDF.replace('effort="30"', 'effort="thirty"'))
    with pytest.raises(FerryError, match=r"r\.urdf: joint 'slide': <limit effort='thirty'>"):
        read_description(urdf)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<robot", "not readable as XML"),
        ("<sdf/>", "root element is <sdf>; expected a URDF <robot> or an MJCF <mujoco>"),
        ('<robot><joint name="a" type="revolute"/></robot>', "joint 'a' lacks"),
    ],
)
def test_a_file_that_is_no_urdf_says_what_it_is(tmp_path, text, message):
    path = tmp_path / "bad.urdf"
    path.write_text(text)
    with pytest.raises(FerryError, match=message) as caught:
        read_description(path)
    assert str(path) in str(caught.value)


def test_a_package_prefix_finds_the_installed_file():
    need("pybullet_data")
    path = description_path("pybullet_data:a1/a1.urdf")
    assert path.is_file()
    assert path.parts[-3:] == ("pybullet_data", "a1", "a1.urdf")


def test_a_package_that_is_not_installed_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(real.description.PACKAGE_PREFIXES, "no_such_package", "no-such")
    with pytest.raises(FerryError, match="needs the package 'no-such': pip install"):
        description_path("no_such_package:a.urdf")


def test_relative_paths_start_at_the_robot_file_and_a_miss_names_the_nearest(urdf):
    assert description_path("r.urdf", base=urdf.parent) == urdf
    assert description_path(str(urdf), base=Path("/")) == urdf
    with pytest.raises(FerryError, match=r"no file .*/rr\.urdf.*r\.urdf"):
        description_path("rr.urdf", base=urdf.parent)


def test_link_rotation_multiplies_the_rotations_on_the_way(urdf):
    # v_base = R(plate) R(imu) v_imu: outer first, and neither factor is the identity.
    expected = to_matrix(from_rpy([0.3, -0.4, 1.2])) @ to_matrix(from_rpy([1.1, 0.2, -0.7]))
    rotation = link_rotation(urdf, link="imu", base_link="base")
    np.testing.assert_allclose(to_matrix(rotation), expected, atol=1e-12)
    np.testing.assert_array_equal(
        link_rotation(urdf, link="base", base_link="base"), [1.0, 0.0, 0.0, 0.0]
    )


def test_link_rotation_refuses_a_joint_that_moves_and_links_that_are_not_connected(urdf):
    with pytest.raises(FerryError, match=r"joint 'turn' .*lies between 'arm' and 'base'"):
        link_rotation(urdf, link="arm", base_link="base")
    with pytest.raises(FerryError, match="'base' does not hang on 'imu'"):
        link_rotation(urdf, link="base", base_link="imu")


def test_a_menagerie_model_is_found_through_its_package(tmp_path, monkeypatch):
    menagerie = need("mujoco_menagerie")
    entry = menagerie.get("unitree_a1").entry("a1")
    folder = tmp_path / "unitree_a1"
    folder.mkdir()
    (folder / entry.file).write_text("<mujoco/>")
    monkeypatch.setenv("MENAGERIE_ROOT", str(tmp_path))  # a checkout in place of a download
    assert description_path("menagerie:unitree_a1/a1") == folder / entry.file
    with pytest.raises(FerryError, match=r"menagerie:unitree_a2.*Did you mean"):
        description_path("menagerie:unitree_a2")
    with pytest.raises(FerryError, match="has no entry point 'nose'"):
        description_path("menagerie:unitree_a1/nose")


def test_without_the_menagerie_package_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(real.description, "MENAGERIE_PACKAGE", "no_such_menagerie")
    with pytest.raises(FerryError, match=r"needs the package 'mujoco-menagerie': pip install"):
        description_path("menagerie:unitree_a1")
