"""One loader, two engines, the same robot; and what a wrong description gets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import mujoco
import numpy as np
import pybullet
import pytest

from real.errors import FerryError
from real.frames import Pose, conjugate, from_rpy, rotate, to_matrix
from real.spec import RobotSpec, load_robot
from sim.engine import FLOOR_FRICTION
from sim.inertia import Inertial, fuse
from sim.meshes import check_stl
from sim.model import MujocoModel, build_mujoco
from sim.urdf import prepare

Build = Callable[..., RobotSpec]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """A RobotSpec from URDF text and the lines of its robot file that matter."""

    def make(urdf: str, joints: str, *, base: str = "floating, link: base", more: str = ""):
        (tmp_path / "r.urdf").write_text(urdf)
        path = tmp_path / "r.yaml"
        path.write_text(
            "schema_version: 1\nname: r\ndescription: r.urdf\n"
            f"base: {{kind: {base}}}\nsafe_stop: damp\ndamping_kd: 1\n"
            "control_dt_s: 0.02\nphysics_dt_s: 0.005\n"
            "defaults: {kp: 40, kd: 1, action_scale: 0.25}\n"
            f"{more or 'imu_link: null'}\njoints:\n{joints}"
        )
        return load_robot(path)

    return make


def inertial(mass: float, xx: float, yy: float, zz: float, *, origin: str = "", xy="0", yz="0"):
    return (
        f'<inertial>{origin}<mass value="{mass}"/><inertia ixx="{xx}" iyy="{yy}" izz="{zz}" '
        f'ixy="{xy}" ixz="0" iyz="{yz}"/></inertial>'
    )


# Two arms; fixed children are shifted and rotated, with unequal, off-diagonal inertias.
TWO_ARMS = f"""<robot name="r">
  <link name="base">{inertial(2, 0.02, 0.03, 0.04, origin='<origin xyz="0.1 -0.2 0.05"/>')}</link>
  <link name="lid">{inertial(1, 0.01, 0.03, 0.035, xy="0.002")}</link>
  <link name="one">{inertial(0.5, 0.004, 0.006, 0.007, origin='<origin xyz="0 0 -0.1"/>')}</link>
  <link name="tip">{
    inertial(
        0.3,
        0.002,
        0.003,
        0.004,
        xy="0.0005",
        yz="-0.0003",
        origin='<origin xyz="0.02 0.01 0" rpy="0.4 -0.7 1"/>',
    )
}</link>
  <link name="two">{inertial(0.7, 0.005, 0.006, 0.004)}</link>
  <link name="frame"/>
  <joint name="lid_fixed" type="fixed"><parent link="base"/><child link="lid"/>
    <origin xyz="0.3 0.1 0.2" rpy="0.5 -0.8 1.5"/></joint>
  <joint name="j_one" type="revolute"><parent link="base"/><child link="one"/>
    <origin xyz="0 0.2 0" rpy="0.2 0 0.1"/><axis xyz="0 1 0"/>
    <limit lower="-1" upper="2" effort="10" velocity="5"/></joint>
  <joint name="tip_fixed" type="fixed"><parent link="one"/><child link="tip"/>
    <origin xyz="0.1 -0.05 -0.2" rpy="0 0 1.5707963267948966"/></joint>
  <joint name="j_two" type="revolute"><parent link="one"/><child link="two"/>
    <origin xyz="0 0 -0.3"/><axis xyz="1 0 0"/>
    <limit lower="-0.5" upper="0.7" effort="20" velocity="6"/></joint>
  <joint name="frame_fixed" type="fixed"><parent link="two"/><child link="frame"/>
    <origin xyz="0 0 -0.1"/></joint>
</robot>"""
TWO_JOINTS = "  j_two: {q_default: 0.1}\n  j_one: {q_default: 0.3}\n"

CARTPOLE = "  cart_to_pole: {q_default: 0.1, actuated: false}\n  slider_to_cart: {q_default: 0}\n"


def cartpole(tmp_path: Path) -> RobotSpec:
    path = tmp_path / "cartpole.yaml"
    path.write_text(
        "schema_version: 1\nname: cartpole\ndescription: pybullet_data:cartpole.urdf\n"
        "base: {kind: fixed, link: slideBar, height_m: 2.0}\nimu_link: null\nsafe_stop: damp\n"
        "damping_kd: 1\ncontrol_dt_s: 0.02\nphysics_dt_s: 0.005\n"
        f"defaults: {{kp: 40, kd: 1, action_scale: 0.25}}\njoints:\n{CARTPOLE}"
    )
    return load_robot(path)


class Bullet:
    """The prepared file in PyBullet, looked at without the engine."""

    def __init__(self, robot: RobotSpec, path: Path) -> None:
        file = path / "prepared.urdf"
        file.write_text(prepare(robot).xml(visuals=False))
        self.client = pybullet.connect(pybullet.DIRECT)
        self.body = pybullet.loadURDF(
            str(file),
            useFixedBase=robot.base == "fixed",
            flags=pybullet.URDF_USE_INERTIA_FROM_FILE,
            physicsClientId=self.client,
        )
        count = pybullet.getNumJoints(self.body, physicsClientId=self.client)
        self.links = range(-1, count)
        self.joint = {
            (info := pybullet.getJointInfo(self.body, i, physicsClientId=self.client))[
                1
            ].decode(): info
            for i in range(count)
        }

    def mass(self) -> float:
        return sum(
            pybullet.getDynamicsInfo(self.body, i, physicsClientId=self.client)[0]
            for i in self.links
        )

    def mass_matrix(self, robot: RobotSpec, q: np.ndarray) -> np.ndarray:
        """``[J, J]`` in the order of the robot, for a fixed base."""
        movable = [i for i in self.joint.values() if i[2] != pybullet.JOINT_FIXED]
        by_name = dict(zip(robot.joint_names, q, strict=True))
        names = [i[1].decode() for i in movable]
        matrix = pybullet.calculateMassMatrix(
            self.body, [by_name[n] for n in names], physicsClientId=self.client
        )
        order = [names.index(n) for n in robot.joint_names]
        return np.array(matrix)[np.ix_(order, order)]


@pytest.fixture
def bullet(tmp_path: Path):
    made: list[Bullet] = []

    def make(robot: RobotSpec) -> Bullet:
        made.append(Bullet(robot, tmp_path))
        return made[-1]

    yield make
    for one in made:
        pybullet.disconnect(physicsClientId=one.client)


def at_pose(built: MujocoModel, q: np.ndarray) -> mujoco.MjData:
    data = mujoco.MjData(built.model)
    if built.base_qpos_adr >= 0:
        pose = [0.0, 0.0, built.robot.base_height_m, 1.0, 0.0, 0.0, 0.0]
        data.qpos[built.base_qpos_adr : built.base_qpos_adr + 7] = pose
    data.qpos[built.joint_qpos_adr] = q
    mujoco.mj_forward(built.model, data)
    return data


def joint_mass_matrix(built: MujocoModel, q: np.ndarray) -> np.ndarray:
    data = at_pose(built, q)
    full = np.zeros((built.model.nv, built.model.nv))
    mujoco.mj_fullM(built.model, data, full)
    return full[np.ix_(built.joint_dof_adr, built.joint_dof_adr)]


def permuted(robot: RobotSpec, seed: int) -> RobotSpec:
    order = np.random.default_rng(seed).permutation(len(robot.joints))
    return replace(robot, joints=tuple(robot.joints[i] for i in order))


# ------------------------------------------------------------------ the same robot


def test_total_mass_is_that_of_the_file_in_both_engines(bullet):
    robot = load_robot("a1")
    root = ElementTree.parse(robot.description_file()).getroot()
    mass = sum(float(m.get("value", "nan")) for m in root.findall("link/inertial/mass"))
    assert mass == pytest.approx(12.458, abs=1e-9)
    assert build_mujoco(robot).model.body_mass.sum() == pytest.approx(mass, abs=1e-9)
    assert bullet(robot).mass() == pytest.approx(mass, abs=1e-6)


def test_limits_and_kinds_of_joints_agree_in_both_engines_whatever_the_order(bullet):
    robot = permuted(load_robot("a1"), seed=3)
    built, other = build_mujoco(robot), bullet(robot)
    for i, joint in enumerate(robot.joints):
        mine = built.model.joint(joint.name)
        assert mine.qposadr[0] == built.joint_qpos_adr[i]
        assert mine.dofadr[0] == built.joint_dof_adr[i]
        np.testing.assert_array_equal(mine.range, [joint.q_min, joint.q_max])
        info = other.joint[joint.name]
        assert info[8:12] == pytest.approx((joint.q_min, joint.q_max, joint.tau_max, joint.dq_max))
    for i, joint in enumerate(robot.actuated):
        assert built.model.actuator(int(built.actuator_ids[i])).name == joint.name


def test_properties_land_on_their_own_joint_in_a_permuted_order():
    a1 = load_robot("a1")
    joints = tuple(
        replace(j, armature=0.01 + i, damping=0.02 + i, friction=0.03 + i, kp=10.0 + i, kd=1.0 + i)
        for i, j in enumerate(a1.joints)
    )
    robot = permuted(replace(a1, joints=joints), seed=5)
    built = build_mujoco(robot)
    model, dof, servo = built.model, built.joint_dof_adr, built.actuator_ids
    np.testing.assert_array_equal(model.dof_armature[dof], [j.armature for j in robot.joints])
    np.testing.assert_array_equal(model.dof_damping[dof], [j.damping for j in robot.joints])
    np.testing.assert_array_equal(model.dof_frictionloss[dof], [j.friction for j in robot.joints])
    kp, kd = robot.actuated_array("kp"), robot.actuated_array("kd")
    np.testing.assert_array_equal(model.actuator_gainprm[servo, 0], kp)
    np.testing.assert_array_equal(
        model.actuator_biasprm[servo, :3], np.stack([0 * kp, -kp, -kd], axis=1)
    )
    tau = robot.actuated_array("tau_max")
    np.testing.assert_array_equal(model.actuator_forcerange[servo], np.stack([-tau, tau], axis=1))


def test_fusing_a_rotated_child_equals_the_parallel_axis_theorem_by_hand():
    # A rod along x of 2 kg and, 1 m along y, another of 3 kg turned by 90 degrees about z.
    rod = Inertial(2.0, np.zeros(3), np.diag([0.0, 0.5, 0.5]))
    child = Inertial(3.0, np.array([0.5, 0.0, 0.0]), np.diag([0.1, 0.7, 0.8]))
    pose = Pose(np.array([0.0, 1.0, 0.0]), from_rpy([0.0, 0.0, math.pi / 2]))
    seen = child.seen_from(pose)
    np.testing.assert_allclose(seen.com, [0.0, 1.5, 0.0], atol=1e-15)
    np.testing.assert_allclose(seen.inertia, np.diag([0.7, 0.1, 0.8]), atol=1e-15)
    whole = fuse([rod, seen])
    assert whole.mass == 5.0
    np.testing.assert_allclose(whole.com, [0.0, 0.9, 0.0], atol=1e-15)
    # Distances along y: 0.9 and 0.6, so x and z gain 2 * 0.81 + 3 * 0.36 = 2.7.
    np.testing.assert_allclose(whole.inertia, np.diag([3.4, 0.6, 4.0]), atol=1e-14)


def test_masses_fixed_to_moving_links_are_fused_alike_in_both_engines(build, bullet):
    floating = build(TWO_ARMS, TWO_JOINTS)
    built, other = build_mujoco(floating), bullet(floating)
    # The base group by hand: base and lid, whose frame is shifted and turned.
    lid_pose = Pose(np.array([0.3, 0.1, 0.2]), from_rpy([0.5, -0.8, 1.5]))
    lid = np.array([[0.01, 0.002, 0.0], [0.002, 0.03, 0.0], [0.0, 0.0, 0.035]])
    base = Inertial(2.0, np.array([0.1, -0.2, 0.05]), np.diag([0.02, 0.03, 0.04]))
    expected = fuse([base, Inertial(1.0, np.zeros(3), lid).seen_from(lid_pose)])
    body = built.model.body(built.base_body_id)
    turn = to_matrix(body.iquat)
    np.testing.assert_allclose(turn @ np.diag(body.inertia) @ turn.T, expected.inertia, atol=1e-9)
    np.testing.assert_allclose(body.ipos, expected.com, atol=1e-9)
    info = pybullet.getDynamicsInfo(other.body, -1, physicsClientId=other.client)
    turn = to_matrix(np.array(info[4])[[3, 0, 1, 2]])
    np.testing.assert_allclose(turn @ np.diag(info[2]) @ turn.T, expected.inertia, atol=1e-6)
    np.testing.assert_allclose(info[3], expected.com, atol=1e-9)
    # The arms: their joint-space inertia feels every fused mass and its orientation.
    fixed = replace(floating, base="fixed")
    built, other = build_mujoco(fixed), bullet(fixed)
    for q in ([0.0, 0.0], [0.3, -0.9], [-0.4, 1.7]):
        np.testing.assert_allclose(
            joint_mass_matrix(built, np.array(q)),
            other.mass_matrix(fixed, np.array(q)),
            atol=1e-7,
        )


def test_the_joint_space_inertia_of_a1_agrees_in_both_engines_but_for_the_rotors(bullet):
    robot = permuted(replace(load_robot("a1"), base="fixed"), seed=1)
    built, other = build_mujoco(robot), bullet(robot)
    rotors = np.diag([j.armature for j in robot.joints])
    rng = np.random.default_rng(0)
    for _ in range(3):
        q = robot.q_default + rng.uniform(-0.3, 0.3, 12)
        mine = joint_mass_matrix(built, q) - rotors
        np.testing.assert_allclose(mine, other.mass_matrix(robot, q), atol=1e-6)


def test_cartpole_has_a_slide_and_a_passive_joint_in_both_engines(tmp_path, bullet):
    robot = cartpole(tmp_path)
    built, other = build_mujoco(robot), bullet(robot)
    assert [j.kind for j in robot.joints] == ["hinge", "slide"]
    assert built.base_qpos_adr == built.base_dof_adr == -1
    assert (built.model.nv, built.model.nu) == (2, 1)
    assert built.model.actuator(int(built.actuator_ids[0])).name == "slider_to_cart"
    assert built.model.body_mass.sum() == pytest.approx(1.1) == other.mass()
    np.testing.assert_array_equal(built.model.joint("slider_to_cart").range, [-15.0, 15.0])
    assert not built.model.joint("cart_to_pole").limited  # continuous
    data = at_pose(built, np.array([0.1, 0.5]))
    np.testing.assert_allclose(data.xpos[built.base_body_id], [0.0, 0.0, 2.0])
    np.testing.assert_allclose(data.body("cart").xpos, [0.5, 0.0, 2.0], atol=1e-12)
    np.testing.assert_allclose(
        joint_mass_matrix(built, np.array([0.6, 0.5])),
        other.mass_matrix(robot, np.array([0.6, 0.5])),
        atol=1e-7,
    )


def test_a_y_up_file_stands_upright_and_equals_its_z_up_twin(build):
    turned = TWO_ARMS.replace(
        '<link name="frame"/>',
        '<link name="frame"/><link name="up"/><joint name="turn" type="fixed"><parent link="up"/>'
        '<child link="base"/><origin xyz="1 2 3" rpy="-1.5707963267948966 0 0"/></joint>',
    )
    plain = build_mujoco(build(TWO_ARMS, TWO_JOINTS))
    # Base link "up": y of the twin's base is z of "up", and the file says so by its rotation.
    quarter = "rotation_rpy: [1.5707963267948966, 0, 0]"
    y_up = build_mujoco(build(turned, TWO_JOINTS, base=f"floating, link: up, {quarter}"))
    q = np.array([0.2, -0.7])
    one, two = at_pose(plain, q), at_pose(y_up, q)
    # up -> base is R(-90 deg about x) at (1, 2, 3); turning by +90 leaves the twin upright, at
    # R(90) (1, 2, 3) = (1, -3, 2).
    shift = np.array([1.0, -3.0, 2.0])
    for name in ("one", "two"):
        np.testing.assert_allclose(two.body(name).xpos, one.body(name).xpos + shift, atol=1e-12)
        np.testing.assert_allclose(two.body(name).xmat, one.body(name).xmat, atol=1e-12)


def test_the_base_frame_is_that_of_the_base_link_also_when_it_is_not_the_root(build):
    robot = build(TWO_ARMS, TWO_JOINTS, base="floating, link: lid")
    data = at_pose(build_mujoco(robot), np.zeros(2))
    # Where "base" is, seen from "lid": the inverse of lid's origin in it.
    back = conjugate(from_rpy([0.5, -0.8, 1.5]))
    expected = rotate(back, -np.array([0.3, 0.1, 0.2])) + rotate(back, np.array([0.0, 0.2, 0.0]))
    np.testing.assert_allclose(data.body("one").xpos, expected, atol=1e-12)


def test_a_base_link_called_world_is_a_link_like_others(build):
    named = TWO_ARMS.replace('"base"', '"world"')
    plain = build_mujoco(build(TWO_ARMS, TWO_JOINTS, base="fixed, link: base, height_m: 0.6"))
    world = build_mujoco(build(named, TWO_JOINTS, base="fixed, link: world, height_m: 0.6"))
    q = np.array([0.2, -0.7])
    one, two = at_pose(plain, q), at_pose(world, q)
    np.testing.assert_allclose(two.xpos[world.base_body_id], [0.0, 0.0, 0.6])
    np.testing.assert_allclose(two.body("two").xpos, one.body("two").xpos, atol=1e-12)
    assert two.geom("floor").xpos[2] == 0.0


def test_a_massless_fixed_frame_weighs_nothing_and_both_engines_agree(build, bullet):
    robot = build(TWO_ARMS, TWO_JOINTS)
    assert build_mujoco(robot).model.body_mass.sum() == pytest.approx(4.5, abs=1e-12)
    assert bullet(robot).mass() == pytest.approx(4.5, abs=1e-9)


def test_a1_stands_with_its_feet_on_the_ground_in_the_default_pose():
    robot = load_robot("a1")
    built = build_mujoco(robot)
    data = at_pose(built, robot.q_default)
    lowest = data.site_xpos[built.foot_site_ids, 2] - built.foot_radius
    np.testing.assert_allclose(lowest, 0.0, atol=1e-3)
    np.testing.assert_array_equal(built.foot_radius, 0.02)


# ------------------------------------------------------------------ the MuJoCo model


def test_contacts_are_with_the_floor_only_and_take_its_friction():
    robot = load_robot("a1")
    built = build_mujoco(robot)
    crossed = robot.q_default.copy()
    crossed[[0, 3]] = 0.6, -0.6  # the front legs through each other
    high = mujoco.MjData(built.model)
    high.qpos[built.base_qpos_adr : built.base_qpos_adr + 7] = [0, 0, 2, 1, 0, 0, 0]
    high.qpos[built.joint_qpos_adr] = crossed
    mujoco.mj_forward(built.model, high)
    calves = [built.model.geom(f"{side}_lower/0").id for side in ("FR", "FL")]
    assert mujoco.mj_geomDistance(built.model, high, *calves, 1.0, None) < 0.0
    assert high.ncon == 0
    standing = at_pose(built, robot.q_default)
    assert sorted(standing.contact.geom2) == sorted(built.foot_geom_ids)
    assert (standing.contact.geom1 == built.floor_geom_id).all()
    np.testing.assert_array_equal(standing.contact.friction[:, 0], FLOOR_FRICTION)
    built.model.geom_friction[built.floor_geom_id, 0] = 0.3
    built.model.geom_friction[built.foot_geom_ids, 0] = 5.0
    standing = at_pose(built, robot.q_default)
    np.testing.assert_array_equal(standing.contact.friction[:, 0], 0.3)


def test_contact_sensors_tell_feet_from_the_rest_of_the_body():
    robot = load_robot("a1")
    built = build_mujoco(robot)
    data = at_pose(built, robot.q_default)
    np.testing.assert_array_equal(data.sensordata[built.foot_contact_adr], 1.0)
    assert data.sensordata[built.contact_adr] == 4.0
    q = robot.q_default.copy()
    q[1] -= 0.7  # lift the first foot, which is FR
    data = at_pose(built, q)
    np.testing.assert_array_equal(data.sensordata[built.foot_contact_adr], [0, 1, 1, 1])
    data.qpos[built.base_qpos_adr + 2] = 0.05  # belly in the ground, feet deeper still
    mujoco.mj_forward(built.model, data)
    feet = data.sensordata[built.foot_contact_adr].sum()
    assert data.sensordata[built.contact_adr] > feet


def test_without_a_floor_there_is_nothing_to_touch():
    robot = load_robot("a1")
    built = build_mujoco(robot, floor=False)
    assert (built.floor_geom_id, built.contact_adr, len(built.foot_contact_adr)) == (-1, -1, 0)
    assert at_pose(built, robot.q_default).ncon == 0


IMU = "imu_link: imu\nfeet: [frame]"
WITH_IMU = TWO_ARMS.replace(
    '<link name="frame"/>',
    '<link name="frame"><collision><geometry><sphere radius="0.05"/></geometry></collision></link>'
    '<link name="imu"/><joint name="imu_fixed" type="fixed"><parent link="lid"/><child link="imu"/>'
    '<origin xyz="0.1 0.2 -0.3" rpy="1 0.5 0.2"/></joint>',
)


def test_imu_and_foot_sensors_report_in_the_frames_they_promise(build):
    built = build_mujoco(build(WITH_IMU, TWO_JOINTS, more=IMU))
    data = at_pose(built, np.array([0.2, -0.5]))
    quat, spin, velocity = from_rpy([0.3, -0.5, 1.9]), [0.4, -0.8, 1.5], [1.0, -2.0, 0.5]
    base, dof = built.base_qpos_adr, built.base_dof_adr
    data.qpos[base : base + 7] = [0.0, 0.0, 5.0, *quat]
    data.qvel[dof : dof + 6] = [*velocity, *spin]
    data.qvel[built.joint_dof_adr] = [0.7, -0.9]
    mujoco.mj_forward(built.model, data)
    sensed = data.sensordata
    np.testing.assert_allclose(sensed[built.quat_adr : built.quat_adr + 4], quat, atol=1e-12)
    np.testing.assert_allclose(sensed[built.gyro_adr : built.gyro_adr + 3], spin, atol=1e-12)
    # The IMU is where the chain base -> lid -> imu puts it.
    lid = Pose(np.array([0.3, 0.1, 0.2]), from_rpy([0.5, -0.8, 1.5]))
    imu = lid.then(Pose(np.array([0.1, 0.2, -0.3]), from_rpy([1, 0.5, 0.2]))).position
    where = np.array([0.0, 0.0, 5.0]) + rotate(quat, imu)
    np.testing.assert_allclose(data.site("imu").xpos, where, atol=1e-12)
    # Foot velocity by finite difference.
    foot, eps = built.foot_site_ids[0], 1e-6
    before, qpos = data.site_xpos[foot].copy(), data.qpos.copy()
    sensed = sensed[built.foot_velocity_adr[0] :][:3].copy()
    mujoco.mj_integratePos(built.model, qpos, data.qvel, eps)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(built.model, data)
    np.testing.assert_allclose(sensed, (data.site_xpos[foot] - before) / eps, atol=1e-5)


def test_a_falling_accelerometer_feels_nothing_and_a_standing_one_feels_gravity(build):
    robot = build(WITH_IMU, TWO_JOINTS, more=IMU)
    falling = build_mujoco(robot, floor=False)
    data = at_pose(falling, np.zeros(2))
    data.ctrl[falling.actuator_ids] = 0.0
    mujoco.mj_forward(falling.model, data)
    at = falling.accelerometer_adr
    np.testing.assert_allclose(data.sensordata[at : at + 3], 0.0, atol=1e-9)
    held = build_mujoco(replace(robot, base="fixed"))
    data = at_pose(held, np.zeros(2))
    np.testing.assert_allclose(
        data.sensordata[held.accelerometer_adr :][:3], [0.0, 0.0, 9.81], atol=1e-12
    )


def test_a_diverging_world_is_not_silently_put_back(build, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log file wherever it is
    built = build_mujoco(build(TWO_ARMS, TWO_JOINTS))
    data = at_pose(built, np.zeros(2))
    data.qvel[:] = 1e12
    mujoco.mj_step(built.model, data)
    assert data.warning.number.sum() > 0
    assert not np.abs(data.qvel).max() < 1e6  # an automatic reset would have set them to zero


def test_a_delay_shifts_the_response_by_whole_physics_steps(build):
    robot = replace(build(TWO_ARMS, TWO_JOINTS), base="fixed")

    def response(delay_s: float) -> np.ndarray:
        built = build_mujoco(robot, delay_max_s=0.02, floor=False)
        built.model.opt.gravity[:] = 0.0
        built.model.actuator_delay[:] = delay_s
        data = at_pose(built, np.zeros(2))
        path = []
        for _ in range(20):
            data.ctrl[built.actuator_ids] = [0.3, -0.2]
            mujoco.mj_step(built.model, data)
            path.append(data.qpos[built.joint_qpos_adr].copy())
        return np.array(path)

    at_once, late = response(0.0), response(0.015)
    assert np.abs(at_once[0]).min() > 0.0
    np.testing.assert_array_equal(late[:3], 0.0)
    np.testing.assert_allclose(late[3:], at_once[:-3], atol=1e-12)


@pytest.mark.parametrize(("delay", "samples"), [(0.0, 0), (0.005, 1), (0.02, 4), (0.021, 5)])
def test_history_buffers_hold_the_longest_delay(delay, samples):
    model = build_mujoco(load_robot("a1"), delay_max_s=delay).model
    np.testing.assert_array_equal(model.actuator_history[:, 0], samples)
    np.testing.assert_array_equal(model.actuator_delay, 0.0)


@pytest.mark.parametrize("delay", [-0.01, math.nan, math.inf])
def test_an_impossible_delay_is_refused(delay):
    with pytest.raises(FerryError, match="delay_max_s is"):
        build_mujoco(load_robot("a1"), delay_max_s=delay)


def test_visuals_add_pictures_and_change_nothing_else():
    plain = build_mujoco(load_robot("a1")).model
    pretty = build_mujoco(load_robot("a1"), visuals=True).model
    assert plain.nmesh == 0 < pretty.nmesh
    assert (plain.geom_contype == 1).sum() == (pretty.geom_contype == 1).sum() == 22
    np.testing.assert_allclose(pretty.body_mass, plain.body_mass, atol=1e-12)
    np.testing.assert_allclose(pretty.body_inertia, plain.body_inertia, atol=1e-12)


def test_the_joint_order_of_the_file_does_not_matter_to_the_motion():
    a1 = load_robot("a1")
    other = permuted(a1, seed=7)
    order = [a1.joint_names.index(n) for n in other.joint_names]
    target = a1.q_default + np.random.default_rng(0).uniform(-0.3, 0.3, 12)

    def run(robot: RobotSpec, targets: np.ndarray) -> np.ndarray:
        built = build_mujoco(robot)
        data = at_pose(built, robot.q_default)
        data.ctrl[built.actuator_ids] = targets
        mujoco.mj_step(built.model, data, nstep=50)
        return data.qpos[built.joint_qpos_adr]

    np.testing.assert_allclose(run(other, target[order]), run(a1, target)[order], atol=1e-9)


# ------------------------------------------------------------------ wrong descriptions


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param(
            inertial(0.7, 0.005, 0.006, 0.004),
            "",
            r"r\.urdf: link 'two' moves but has no mass",
            id="moving link without inertial",
        ),
        pytest.param(
            inertial(0.7, 0.005, 0.006, 0.004),
            inertial(0.7, 1.486e-6, 2e-7, 8.3e-7),
            r"link 'two': principal moments of inertia 2e-07, 8\.3e-07, 1\.486e-06 .*at least",
            id="triangle inequality",
        ),
        pytest.param(
            inertial(0.7, 0.005, 0.006, 0.004),
            inertial(0.7, 0, 0, 0),
            r"link 'two' moves with a mass of 0\.7 kg but no inertia",
            id="no inertia",
        ),
        pytest.param(
            inertial(0.7, 0.005, 0.006, 0.004),
            inertial(0.7, -0.001, 0.006, 0.005),
            r"link 'two': principal moments of inertia -0\.001, .*expected none negative",
            id="negative moment",
        ),
        pytest.param(
            inertial(0.7, 0.005, 0.006, 0.004),
            '<inertial><mass value="0.7"/></inertial>',
            "link 'two': <inertial> has no <inertia>; expected both",
            id="partial inertial",
        ),
        pytest.param(
            inertial(0.7, 0.005, 0.006, 0.004),
            inertial(-0.7, 0.005, 0.006, 0.004),
            r"link 'two': <inertial> has mass -0\.7",
            id="negative mass",
        ),
        pytest.param(
            '<mass value="0.7"/>',
            '<mass value="heavy"/>',
            "link 'two': <inertial>: could not convert string to float: 'heavy'",
            id="mass that is no number",
        ),
        pytest.param(
            '<link name="frame"/>',
            '<link name="frame"/><link name="loose"/>',
            r"root links \['base', 'loose'\]; expected exactly one",
            id="two roots",
        ),
        pytest.param(
            '<axis xyz="1 0 0"/>',
            '<axis xyz="0 0 0"/>',
            "joint 'j_two': <axis xyz='0 0 0'>; expected three numbers",
            id="no axis",
        ),
        pytest.param(
            '<child link="frame"/>',
            '<child link="fram"/>',
            "joint 'frame_fixed': <child> is 'fram', which is no link",
            id="joint to nowhere",
        ),
        pytest.param(
            'name="frame_fixed" type="fixed"',
            'name="frame_fixed" type="floating"',
            "joint 'frame_fixed' is of type 'floating'; expected revolute",
            id="unsupported joint",
        ),
    ],
)
def test_a_wrong_description_names_file_place_and_what_was_expected(build, old, new, message):
    assert old in TWO_ARMS
    robot = build(TWO_ARMS.replace(old, new), TWO_JOINTS)
    with pytest.raises(FerryError, match=message) as caught:
        build_mujoco(robot)
    assert "r.urdf" in str(caught.value)


def test_a_slightly_impossible_inertia_is_corrected_alike_in_both_engines_with_a_warning(
    build, bullet, caplog
):
    # 0.004 + 0.005 falls 0.0006 short of 0.0096, by 6 %; each moment gives or takes 0.0002.
    urdf = TWO_ARMS.replace(inertial(0.7, 0.005, 0.006, 0.004), inertial(0.7, 0.005, 0.0096, 0.004))
    robot = build(urdf, TWO_JOINTS)
    built, other = build_mujoco(robot), bullet(robot)
    expected = [0.0042, 0.0052, 0.0094]
    np.testing.assert_allclose(sorted(built.model.body("two").inertia), expected, atol=1e-8)
    link = other.joint["j_two"][0]
    info = pybullet.getDynamicsInfo(other.body, link, physicsClientId=other.client)
    np.testing.assert_allclose(sorted(info[2]), expected, atol=1e-6)
    assert "link 'two': principal moments of inertia 0.004, 0.005, 0.0096 kg m^2" in caplog.text
    assert "taken as 0.0042, 0.0052, 0.0094" in caplog.text


def mesh(kind: str, path: str) -> str:
    shape = f'<{kind}><geometry><mesh filename="{path}"/></geometry></{kind}>'
    return TWO_ARMS.replace('<link name="frame"/>', f'<link name="frame">{shape}</link>')


@pytest.mark.parametrize("path", ["file:///nonexistent/a.obj", "meshes/a.obj", "package://r/a.obj"])
def test_a_missing_collision_mesh_is_an_error_and_a_missing_visual_one_only_for_pictures(
    build, path
):
    with pytest.raises(FerryError, match=f"link 'frame': collision mesh '{path}' was not found"):
        build_mujoco(build(mesh("collision", path), TWO_JOINTS))
    robot = build(mesh("visual", path), TWO_JOINTS)
    assert build_mujoco(robot).model.body_mass.sum() == pytest.approx(4.5)
    with pytest.raises(FerryError, match=f"link 'frame': visual mesh '{path}' was not found"):
        build_mujoco(robot, visuals=True)


@pytest.mark.parametrize(
    "form", ["sub/box.obj", "package://r/sub/box.obj", "file://{}/sub/box.obj"]
)
def test_mesh_paths_are_found_relative_absolute_and_by_package(build, bullet, tmp_path, form):
    (tmp_path / "sub").mkdir()
    corners = [(x, y, z) for x in (0, 1) for y in (0, 1) for z in (0, 1)]
    text = "".join(f"v {x} {y} {z}\n" for x, y, z in corners)
    faces = ["1 3 4", "1 4 2", "5 6 8", "5 8 7", "1 2 6", "1 6 5"]
    faces += ["3 7 8", "3 8 4", "1 5 7", "1 7 3", "2 4 8", "2 8 6"]
    (tmp_path / "sub" / "box.obj").write_text(text + "".join(f"f {f}\n" for f in faces))
    robot = build(mesh("collision", form.format(tmp_path)), TWO_JOINTS)
    assert build_mujoco(robot).model.nmesh == 1
    other = bullet(robot)
    frame = other.joint["frame_fixed"][0]
    shapes = pybullet.getCollisionShapeData(other.body, frame, physicsClientId=other.client)
    assert len(shapes) == 1


def stl(faces: int, *, announced: int | None = None) -> bytes:
    return bytes(80) + (announced or faces).to_bytes(4, "little") + bytes(50) * faces


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"solid box\nfacet normal 0 0 1\n" + b" " * 99, "is an ASCII STL; expected a binary"),
        (stl(200_001), "has 200001 faces; expected at most 200000"),
        (stl(3, announced=4), "has 234 bytes; expected 284 for the 4 faces"),
    ],
    ids=["text", "dense", "cut off"],
)
def test_an_stl_that_engines_choke_on_is_refused_by_name(build, tmp_path, content, message):
    (tmp_path / "a.STL").write_bytes(content)
    robot = build(mesh("collision", "a.STL"), TWO_JOINTS)
    with pytest.raises(FerryError, match=rf"link 'frame': collision mesh .*a\.STL {message}"):
        build_mujoco(robot)


def test_a_binary_stl_may_begin_with_the_word_of_a_text_one(tmp_path):
    (tmp_path / "a.stl").write_bytes(b"solid" + stl(7)[5:])
    assert check_stl(tmp_path / "a.stl") == 7


def test_limits_of_a_continuous_joint_are_ignored_with_a_warning(build, caplog):
    endless = TWO_ARMS.replace('name="j_two" type="revolute"', 'name="j_two" type="continuous"')
    built = build_mujoco(build(endless, TWO_JOINTS))
    assert not built.model.joint("j_two").limited
    assert built.model.joint("j_one").limited
    assert "joint 'j_two' is continuous: its position limits are ignored" in caplog.text


MIMICKING = TWO_ARMS.replace(
    '<limit lower="-0.5" upper="0.7" effort="20" velocity="6"/>',
    '<limit lower="-0.5" upper="0.7" effort="20" velocity="6"/>'
    '<mimic joint="j_one" multiplier="-0.5" offset="0.2"/>',
)


def test_a_joint_that_mimics_one_that_moves_is_refused_with_both_ways_out(build):
    robot = build(MIMICKING, "  j_one: {q_default: 0.3}\n")
    with pytest.raises(FerryError, match=r"'j_two' mimics 'j_one', which moves.* `locked: \{j_one"):
        build_mujoco(robot)


def test_a_locked_joint_stands_where_it_is_told_and_its_follower_with_it(build, bullet):
    three = MIMICKING.replace(
        "</robot>",
        f'<link name="three">{inertial(0.2, 0.001, 0.001, 0.001)}</link>'
        '<joint name="j_three" type="prismatic"><parent link="two"/><child link="three"/>'
        '<axis xyz="0 0 2"/><limit lower="0" upper="0.4" effort="20" velocity="6"/></joint>'
        "</robot>",
    )
    # The leader at 0.6 takes its follower to 0.2 - 0.5 * 0.6 = -0.1.
    free = build_mujoco(build(TWO_ARMS, TWO_JOINTS))
    expected = at_pose(free, np.array([-0.1, 0.6])).body("two")
    robot = build(
        three,
        "  j_three: {q_default: 0}\n",
        base="fixed, link: base",
        more="imu_link: null\nlocked: {j_one: 0.6}",
    )
    assert robot.joint_names == ("j_three",)
    locked = build_mujoco(robot)
    found = at_pose(locked, np.array([0.0])).body("three")
    np.testing.assert_allclose(found.xpos, expected.xpos, atol=1e-9)
    np.testing.assert_allclose(found.xmat, expected.xmat, atol=1e-9)
    world = bullet(robot)
    assert sum(i[2] != pybullet.JOINT_FIXED for i in world.joint.values()) == 1
    np.testing.assert_allclose(
        world.mass_matrix(robot, np.zeros(1)), joint_mass_matrix(locked, np.zeros(1)), atol=1e-9
    )


def test_a_locked_joint_must_exist_move_in_the_file_and_not_be_listed_as_moving(build):
    both = "imu_link: null\nlocked: {j_one: 0.6}"
    with pytest.raises(FerryError, match="'j_one' stands under `joints` and under `locked`"):
        build(TWO_ARMS, TWO_JOINTS, more=both)
    with pytest.raises(FerryError, match=r"'j_on' is not in .*did you mean 'j_one'"):
        build(TWO_ARMS, TWO_JOINTS, more="imu_link: null\nlocked: {j_on: 0.6}")


def test_mass_properties_of_the_robot_file_replace_those_of_the_description(build, bullet):
    missing = TWO_ARMS.replace(inertial(0.7, 0.005, 0.006, 0.004), inertial(0.7, 0, 0, 0))
    given = (
        "imu_link: null\nlinks:\n  two: {inertia: [0.005, 0.006, 0.004, 0, 0, 0], source: a twin}\n"
        "  lid: {mass: 2.0, com: [0.0, 0.1, 0.0], source: scales}"
    )
    robot = build(missing, TWO_JOINTS, more=given)
    built = build_mujoco(robot)
    assert built.model.body_mass.sum() == pytest.approx(5.5, abs=1e-12)
    whole = build(
        TWO_ARMS,
        TWO_JOINTS,
        more="imu_link: null\nlinks: {lid: {mass: 2, com: [0, 0.1, 0], source: abc}}",
    )
    q = np.array([0.3, -0.4])
    np.testing.assert_allclose(
        joint_mass_matrix(built, q), joint_mass_matrix(build_mujoco(whole), q), atol=1e-12
    )


def test_impossible_or_homeless_mass_properties_of_the_robot_file_are_refused(build):
    bad = "imu_link: null\nlinks: {two: {inertia: [0.1, 0.1, 0.3, 0, 0, 0], source: guess}}"
    with pytest.raises(FerryError, match=r"r\.yaml: links\.two: principal moments of inertia 0\.1"):
        build_mujoco(build(TWO_ARMS, TWO_JOINTS, more=bad))
    with pytest.raises(FerryError, match=r"link 'too' is not in .*did you mean 'two'"):
        build(TWO_ARMS, TWO_JOINTS, more="imu_link: null\nlinks: {too: {mass: 1, source: guess}}")
    none = TWO_ARMS.replace(inertial(0.7, 0.005, 0.006, 0.004), inertial(0.7, 0, 0, 0))
    with pytest.raises(FerryError, match=r"no inertia.*links\.two\.inertia"):
        build_mujoco(build(none, TWO_JOINTS))


def test_an_imu_or_base_behind_a_joint_is_refused(build):
    with pytest.raises(FerryError, match="imu_link 'tip' hangs on the joint of 'one'"):
        build_mujoco(build(TWO_ARMS, TWO_JOINTS, more="imu_link: tip"))
    with pytest.raises(FerryError, match="base link 'tip' hangs on the joint of 'one'"):
        build_mujoco(build(TWO_ARMS, TWO_JOINTS, base="floating, link: tip"))


def test_a_foot_needs_one_collision_shape(build):
    robot = build(TWO_ARMS, TWO_JOINTS, more="imu_link: null\nfeet: [frame]")
    with pytest.raises(FerryError, match="foot 'frame' has 0 collision shapes"):
        build_mujoco(robot)


def test_a_joint_without_limits_is_refused_before_anything_is_built(build):
    bare = TWO_ARMS.replace(' effort="20" velocity="6"', "")
    with pytest.raises(FerryError, match="'j_two': dq_max is not given"):
        build_mujoco(build(bare, TWO_JOINTS))
