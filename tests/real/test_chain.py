from __future__ import annotations

import dataclasses
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from real.chain import chain_of, read_chain
from real.errors import FerryError
from real.frames import from_rpy
from real.kinematics import Kinematics
from real.spec import load_robot
from tests.extras import need

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


def chain(text=ARM, *, link="hand", base_link="base", joints=("push", "other", "turn"), **more):
    urdf = ElementTree.fromstring(text)
    return chain_of(urdf, link=link, base_link=base_link, joints=joints, source="arm.urdf", **more)


def place(found, q, *, joints=("push", "other", "turn")):
    return Kinematics(found, joints).pose(np.atleast_2d(q))[0]


def test_a_turn_a_turned_bracket_and_a_slide_by_hand():
    # At zero: 0.4 out along x, where the bracket turns x to y: 0.1 and the push go along y.
    q = np.array([[0.0, 9.0, 0.0], [0.3, 9.0, 0.0], [0.3, 9.0, np.pi / 2]])
    expected = [[0.4, 0.1, 0.3], [0.4, 0.4, 0.3], [-0.4, 0.4, 0.3]]
    assert np.allclose(place(chain(), q), expected)
    # The hand stands as the bracket does, which turns with the first joint.
    quat = Kinematics(chain(), ["push", "turn"]).pose(np.array([[0.3, 0.4]]))[1]
    assert np.allclose(quat[0], from_rpy([0.0, 0.0, 0.4 + np.pi / 2]))


def test_a_locked_joint_on_the_way_stands_where_the_robot_file_says():
    slid = chain(joints=["turn"], locked={"push": 0.3})
    assert np.allclose(place(slid, [0.5], joints=["turn"]), place(chain(), [0.3, 0.0, 0.5]))
    turned = chain(joints=["push"], locked={"turn": 0.5})
    assert np.allclose(place(turned, [0.2], joints=["push"]), place(chain(), [0.2, 0.0, 0.5]))


def test_the_base_frame_is_that_of_the_base_link_turned_upright():
    # A file with y up: its (x, y, z) is (x, -z, y) in the base frame.
    upright = from_rpy([np.pi / 2, 0.0, 0.0])
    x, y, z = place(chain(), [0.3, 0.0, 0.5])[0]
    found = place(chain(base_rotation=upright), [0.3, 0.0, 0.5])[0]
    assert np.allclose(found, [x, -z, y])
    # A base link beside the way, 0.2 m above the root and turned by 180 degrees about z.
    beside = (
        '<link name="plinth"/><joint name="bolts" type="fixed"><parent link="base"/>'
        '<child link="plinth"/><origin xyz="0 0 0.2" rpy="0 0 3.141592653589793"/></joint></robot>'
    )
    found = place(chain(ARM.replace("</robot>", beside), base_link="plinth"), [0.3, 0.0, 0.5])[0]
    assert np.allclose(found, [-x, -y, z - 0.2])


@pytest.mark.parametrize("name", ["iiwa", "panda"])
def test_the_simulator_reads_the_same_chain(name):
    need("mujoco")
    from sim.chain import end_effector_chain

    robot = load_robot(name)
    q = robot.q_default + np.random.default_rng(0).uniform(-1.0, 1.0, (3, len(robot.joints)))
    ours = Kinematics(read_chain(robot), robot.joint_names).pose(q)
    theirs = Kinematics(end_effector_chain(robot), robot.joint_names).pose(q)
    assert np.allclose(ours[0], theirs[0], atol=1e-9)
    assert np.allclose(np.abs((ours[1] * theirs[1]).sum(axis=1)), 1.0)


def test_an_arm_is_where_another_engine_says_it_is():
    bullet = need("pybullet")
    data = need("pybullet_data")
    path = f"{data.getDataPath()}/kuka_iiwa/model.urdf"
    client = bullet.connect(bullet.DIRECT)
    try:
        body = bullet.loadURDF(path, useFixedBase=True, physicsClientId=client)
        names = [bullet.getJointInfo(body, i, client)[1].decode() for i in range(7)]
        arm = chain(
            Path(path).read_text(),
            link="lbr_iiwa_link_7",
            base_link="lbr_iiwa_link_0",
            joints=names,
        )
        q = np.random.default_rng(0).uniform(-2.0, 2.0, (20, 7))
        for row, found in zip(q, place(arm, q, joints=names), strict=True):
            for i, value in enumerate(row):
                bullet.resetJointState(body, i, value, physicsClientId=client)
            state = bullet.getLinkState(body, 6, computeForwardKinematics=1, physicsClientId=client)
            base = bullet.getBasePositionAndOrientation(body, client)[0]
            inertial = bullet.getDynamicsInfo(body, -1, client)[3]
            assert found == pytest.approx(np.array(state[4]) - base + inertial, abs=1e-6)
    finally:
        bullet.disconnect(client)


def test_what_is_no_chain_is_refused_by_name():
    with pytest.raises(FerryError, match="'tool' does not hang on 'base'"):
        chain(link="tool")
    with pytest.raises(FerryError, match="'hand' does not hang on 'bass'"):
        chain(base_link="bass")
    with pytest.raises(FerryError, match=r"no joint 'push'.*did you mean 'pusch'"):
        chain(joints=["turn", "pusch"])
    with pytest.raises(FerryError, match="joint 'turn' moves the base link"):
        chain(base_link="plate")
    with pytest.raises(FerryError, match="'base' is fixed to the base"):
        chain(link="base")
    with pytest.raises(FerryError, match="'turn': <axis xyz='0 0 0'>; expected three numbers"):
        chain(ARM.replace('xyz="0 0 2"', 'xyz="0 0 0"'))
    with pytest.raises(FerryError, match="joint 'turn': '0 0' is not three numbers"):
        chain(ARM.replace('xyz="0 0 0.5"', 'xyz="0 0"'))
    ring = ARM.replace('<parent link="base"/>', '<parent link="hand"/>')
    with pytest.raises(FerryError, match="'hand' does not hang on 'base'"):
        chain(ring)
    robot = dataclasses.replace(load_robot("a1"), end_effector=None)
    with pytest.raises(FerryError, match="names no end_effector"):
        read_chain(robot)
