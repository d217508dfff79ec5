from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.extras import reason

pytest.importorskip("rclpy", reason=reason("rclpy"))

from deploy.introduction import contract_of, load_here
from real.contract import RobotContract
from real.description import link_rotation
from real.errors import FerryError
from real.frames import rotate
from real.spec import load_robot

URDF = """<robot name="r">
  <link name="trunk"/><link name="mount"/><link name="imu"/><link name="head"/>
  <joint name="to_mount" type="fixed">
    <parent link="trunk"/><child link="mount"/><origin rpy="0 0 1.5707963267948966"/>
  </joint>
  <joint name="to_imu" type="fixed">
    <parent link="mount"/><child link="imu"/><origin xyz="1 0 0" rpy="1.5707963267948966 0 0"/>
  </joint>
  <joint name="neck" type="revolute"><parent link="trunk"/><child link="head"/></joint>
</robot>"""


@pytest.fixture
def urdf(tmp_path):
    path = tmp_path / "r.urdf"
    path.write_text(URDF)
    return path


def test_rotations_of_fixed_joints_are_chained_from_the_imu_to_the_base(urdf):
    rotation = link_rotation(urdf, link="imu", base_link="trunk")
    # By hand: the IMU's z points along -y of its mount (rolled by 90 degrees), and the mount's
    # y along -x of the trunk (yawed by 90 degrees): z_imu = +x of the trunk.
    np.testing.assert_allclose(rotate(rotation, [0.0, 0.0, 1.0]), [1.0, 0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(rotate(rotation, [1.0, 0.0, 0.0]), [0.0, 1.0, 0.0], atol=1e-12)
    np.testing.assert_array_equal(
        link_rotation(urdf, link="trunk", base_link="trunk"), [1.0, 0.0, 0.0, 0.0]
    )


def test_an_imu_behind_a_movable_joint_or_on_another_tree_is_refused(urdf):
    with pytest.raises(FerryError, match=r"'neck' \(revolute\) lies between"):
        link_rotation(urdf, link="head", base_link="trunk")
    with pytest.raises(FerryError, match="'imu' does not hang on 'head'"):
        link_rotation(urdf, link="imu", base_link="head")


def test_the_robots_contract_tells_how_its_imu_is_mounted(urdf):
    spec = replace(load_robot("a1"), description=str(urdf), imu_link="imu")
    contract = contract_of(spec)
    np.testing.assert_allclose(
        rotate(contract.imu_rotation, [0.0, 0.0, 1.0]), [1.0, 0.0, 0.0], atol=1e-12
    )
    assert RobotContract.from_json(contract.to_json()) == contract
    # A Y-up file: its base frame is turned by +90 degrees about x before anything else.
    half = float(np.sqrt(0.5))
    turned = contract_of(replace(spec, base_rotation=(half, half, 0.0, 0.0)))
    np.testing.assert_allclose(
        rotate(turned.imu_rotation, [1.0, 0.0, 0.0]), [0.0, 0.0, 1.0], atol=1e-12
    )


def test_without_the_description_the_robot_still_loads_with_what_its_file_says(tmp_path):
    source = load_robot("a1").source
    text = Path(source).read_text().replace("pybullet_data:a1/", "/nowhere/")
    path = tmp_path / "far.yaml"
    path.write_text(text)
    spec = load_here(str(path))
    assert spec.joint_names == load_robot("a1").joint_names
    assert np.isnan(spec.actuated_array("q_max")).all()
    assert contract_of(spec).imu_rotation == (1.0, 0.0, 0.0, 0.0)
