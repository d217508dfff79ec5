from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from real.chain import chain_of, read_chain
from real.errors import FerryError
from real.spec import load_robot

ARM = """<robot name="arm">
  <link name="base"/><link name="upper"/><link name="plate"/>
  <link name="slider"/><link name="hand"/>
  <joint name="turn" type="revolute">
    <parent link="base"/><child link="upper"/>
    <origin xyz="0 0 0.5"/><axis xyz="0 0 2"/><limit lower="-3" upper="3" effort="1" velocity="1"/>
  </joint>
  <joint name="bolt" type="fixed">
    <parent link="upper"/><child link="plate"/><origin xyz="0.4 0 0" rpy="0 0 1.5707963267948966"/>
  </joint>
  <joint name="push" type="prismatic">
    <parent link="plate"/><child link="slider"/>
    <origin xyz="0.1 0 0"/><axis xyz="1 0 0"/><limit lower="0" upper="1" effort="1" velocity="1"/>
  </joint>
  <joint name="glue" type="fixed">
    <parent link="slider"/><child link="hand"/><origin xyz="0 0 -0.2"/>
  </joint>
</robot>"""


@pytest.fixture
def arm(tmp_path):
    path = tmp_path / "arm.urdf"
    path.write_text(ARM)
    return path


def test_a_turn_a_turned_bracket_and_a_slide_by_hand(arm):
    chain = chain_of(arm, link="hand", base_link="base", joints=["push", "other", "turn"])
    # At zero: 0.4 out along x, where the bracket turns x to y: 0.1 and the push go along y.
    q = np.array([[0.0, 9.0, 0.0], [0.3, 9.0, 0.0], [0.3, 9.0, np.pi / 2]])
    expected = [[0.4, 0.1, 0.3], [0.4, 0.4, 0.3], [-0.4, 0.4, 0.3]]
    assert np.allclose(chain.position(q), expected)


def test_an_arm_is_where_another_engine_says_it_is():
    bullet = pytest.importorskip("pybullet")
    data = pytest.importorskip("pybullet_data")
    path = f"{data.getDataPath()}/kuka_iiwa/model.urdf"
    client = bullet.connect(bullet.DIRECT)
    try:
        body = bullet.loadURDF(path, useFixedBase=True, physicsClientId=client)
        names = [bullet.getJointInfo(body, i, client)[1].decode() for i in range(7)]
        chain = chain_of(path, link="lbr_iiwa_link_7", base_link="lbr_iiwa_link_0", joints=names)
        q = np.random.default_rng(0).uniform(-2.0, 2.0, (20, 7))
        for row, found in zip(q, chain.position(q), strict=True):
            for i, value in enumerate(row):
                bullet.resetJointState(body, i, value, physicsClientId=client)
            state = bullet.getLinkState(body, 6, computeForwardKinematics=1, physicsClientId=client)
            base = bullet.getBasePositionAndOrientation(body, client)[0]
            inertial = bullet.getDynamicsInfo(body, -1, client)[3]
            assert found == pytest.approx(np.array(state[4]) - base + inertial, abs=1e-6)
    finally:
        bullet.disconnect(client)


def test_what_is_no_chain_is_refused_by_name(arm):
    with pytest.raises(FerryError, match="'tool' does not hang on 'base'"):
        chain_of(arm, link="tool", base_link="base", joints=["turn", "push"])
    with pytest.raises(FerryError, match=r"no joint 'push'.*did you mean 'pusch'"):
        chain_of(arm, link="hand", base_link="base", joints=["turn", "pusch"])
    arm.write_text(ARM.replace('xyz="0 0 2"', 'xyz="0 0 0"'))
    with pytest.raises(FerryError, match="'turn': its axis has no length"):
        chain_of(arm, link="hand", base_link="base", joints=["turn", "push"])
    arm.write_text(ARM.replace('xyz="0 0 0.5"', 'xyz="0 0"'))
    with pytest.raises(FerryError, match="'0 0' is not three numbers"):
        chain_of(arm, link="hand", base_link="base", joints=["turn", "push"])
    robot = dataclasses.replace(load_robot("a1"), end_effector=None)
    with pytest.raises(FerryError, match="names no end_effector"):
        read_chain(robot)
