"""An MJCF becomes the same robot as MuJoCo's own reading of it, in both engines."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np
import pytest

from real.description import read_description
from real.errors import FerryError
from real.mjcf import Mjcf
from real.spec import load_robot
from sim.engine import InitialState
from sim.model import build_mujoco
from sim.mujoco_engine import MujocoEngine
from sim.pybullet_engine import PyBulletEngine
from sim.urdf import prepare

# Degrees, nested classes, an include, joints that turn about another point than the body's origin
# and that read another number than 0 where they are drawn, unnamed and oddly turned shapes.
MJCF = """<mujoco model="m">
  <compiler autolimits="true" eulerseq="zyx"/>
  <include file="defaults.xml"/>
  <asset><mesh name="wedge" vertex="0 0 0  0.2 0 0  0 0.1 0  0 0 0.05" scale="1 1 2"/></asset>
  <worldbody>
    <geom name="ground" type="plane" size="1 1 1"/>
    <body name="trunk" pos="0.3 0.2 0.5" euler="20 -10 30" childclass="leg">
      <freejoint name="root"/>
      <inertial pos="0.01 0.02 0.03" mass="3" fullinertia="0.03 0.04 0.05 0.001 -0.002 0.003"/>
      <geom type="box" size="0.2 0.1 0.05" euler="0 0 10"/>
      <site name="imu" pos="0.05 0 0.02"/>
      <body name="thigh" pos="0 0.15 0" euler="0 15 0">
        <joint name="hip" class="knee" pos="0.02 0 0.01" axis="0 1 0" ref="20"/>
        <geom type="capsule" size="0.03 0.1" pos="0 0 -0.1" mass="0.7"/>
        <geom type="mesh" mesh="wedge" pos="0.05 0 0" euler="0 30 0" mass="0.2"/>
        <frame pos="0 0 -0.2">
          <body name="shank" euler="0 -20 5">
            <joint name="knee" axis="0 2 0" range="-90 -10"/>
            <geom type="cylinder" size="0.02 0.08" pos="0 0 -0.08" mass="0.3"/>
            <geom type="sphere" size="0.03" pos="0.01 0 -0.17" mass="0.05"/>
          </body>
        </frame>
      </body>
      <body name="rail" pos="0 -0.2 0.1">
        <joint name="slide" type="slide" axis="1 1 0" range="-0.1 0.4" limited="true" ref="0.1"/>
        <geom name="block" type="box" size="0.05 0.05 0.05" mass="0.4"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor joint="hip" gear="5" ctrlrange="-2 3"/>
    <position joint="knee" kp="20" forcerange="-7 9" class="leg"/>
    <general joint="slide" class="leg"/>
  </actuator>
</mujoco>"""
DEFAULTS = """<mujocoinclude>
  <default>
    <joint damping="0.3"/>
    <default class="leg">
      <general forcerange="-11 11"/>
      <default class="knee"><joint range="-60 45"/></default>
    </default>
  </default>
</mujocoinclude>"""
ROBOT = """schema_version: 1
name: m
description: m.xml
base: {kind: floating, link: trunk, height_m: 0.5}
imu_link: imu
feet: [shank/1]
control_dt_s: 0.02
physics_dt_s: 0.005
safe_stop: damp
damping_kd: 1.0
defaults: {kp: 40.0, kd: 1.0, action_scale: 0.25, limits: {dq_max: 9.0, source: a guess}}
joints:
  slide: {q_default: 0.05}
  hip: {q_default: 0.2}
  knee: {q_default: -1.0}
"""
ORDER = ("slide", "hip", "knee")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m.xml").write_text(MJCF)
    (tmp_path / "defaults.xml").write_text(DEFAULTS)
    (tmp_path / "m.yaml").write_text(ROBOT)
    return tmp_path


def test_limits_and_efforts_are_those_that_mujoco_compiles(folder):
    model = mujoco.MjModel.from_xml_path(str(folder / "m.xml"))
    described = read_description(folder / "m.xml").joints
    assert list(described) == ["hip", "knee", "slide"]
    for name, joint in described.items():
        assert (joint.q_min, joint.q_max) == pytest.approx(tuple(model.joint(name).range))
    assert described["hip"].q_max == pytest.approx(math.radians(45.0))  # by the nested class
    assert described["slide"].q_max == 0.4  # metres are no degrees
    assert described["hip"].tau_max == 15.0  # gear 5 times the larger control
    assert described["knee"].tau_max == 9.0
    assert described["slide"].tau_max == 11.0  # by the class of another kind of actuator
    assert all(math.isnan(joint.dq_max) for joint in described.values())


@pytest.mark.parametrize(
    ("compiler", "limits"),
    [
        ('<compiler angle="radian"/>', (-60.0, 45.0)),
        ('<compiler angle="degree" autolimits="false"/>', (-math.inf, math.inf)),
    ],
)
def test_the_unit_of_angles_and_what_limits_is_the_compilers(folder, compiler, limits):
    text = MJCF.replace('<compiler autolimits="true" eulerseq="zyx"/>', compiler)
    (folder / "m.xml").write_text(text)
    hip = read_description(folder / "m.xml").joints["hip"]
    assert (hip.q_min, hip.q_max) == limits


def test_the_robot_moves_and_weighs_as_in_mujocos_own_reading(folder):
    own = mujoco.MjModel.from_xml_path(str(folder / "m.xml"))
    robot = load_robot(folder / "m.yaml")
    built = build_mujoco(robot)
    assert built.model.body_mass.sum() == pytest.approx(own.body_mass.sum(), rel=1e-12)
    theirs, ours = mujoco.MjData(own), mujoco.MjData(built.model)
    rng = np.random.default_rng(3)
    quat = rng.normal(size=4)
    base = [0.1, -0.2, 0.6, *(quat / np.linalg.norm(quat))]
    q = np.array([0.23, 0.4, -0.9])
    theirs.qpos[:7] = ours.qpos[:7] = base
    ours.qpos[built.joint_qpos_adr] = q
    for name, value in zip(ORDER, q, strict=True):
        theirs.joint(name).qpos = value
    mujoco.mj_forward(own, theirs)
    mujoco.mj_forward(built.model, ours)
    np.testing.assert_allclose(ours.body("shank").xmat, theirs.body("shank").xmat, atol=1e-9)
    np.testing.assert_allclose(ours.subtree_com[1], theirs.subtree_com[1], atol=1e-9)
    np.testing.assert_allclose(ours.site("imu").xpos, theirs.site("imu").xpos, atol=1e-9)
    foot = int(own.body("shank").geomadr[0]) + 1
    np.testing.assert_allclose(
        ours.site_xpos[built.foot_site_ids[0]], theirs.geom_xpos[foot], atol=1e-9
    )
    assert built.foot_radius[0] == 0.03
    full = [np.zeros((9, 9)), np.zeros((9, 9))]
    mujoco.mj_fullM(own, theirs, full[0])
    mujoco.mj_fullM(built.model, ours, full[1])
    dofs = [int(own.jnt_dofadr[own.joint(n).id]) for n in ORDER]
    np.testing.assert_allclose(
        full[1][np.ix_(built.joint_dof_adr, built.joint_dof_adr)],
        full[0][np.ix_(dofs, dofs)],
        atol=1e-9,
    )


def test_a_foot_touches_at_the_same_height_in_both_engines(folder):
    robot = load_robot(folder / "m.yaml")
    start = InitialState.default(robot, 1)
    for engine_class in (MujocoEngine, PyBulletEngine):
        engine = engine_class(robot, 1)
        try:
            foot = engine.state().foot_position_w[0, 0]
            for gap, touches in ((0.002, False), (-0.002, True)):
                # From where the foot is in the default pose to `gap` above the ground.
                lowered = start.position_w.copy()
                lowered[:, 2] += 0.03 + gap - foot[2]
                engine.reset(np.arange(1), replace(start, position_w=lowered))
                state = engine.state()
                assert bool(state.foot_contact[0, 0]) == touches, engine_class
                np.testing.assert_allclose(state.foot_position_w[0, 0, 2], 0.03 + gap, atol=1e-6)
        finally:
            engine.close()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "<freejoint name=",
            "<replicate count='2'/><freejoint name=",
            "<replicate> in body 'trunk'",
        ),
        ('class="knee"', 'class="nee"', "class 'nee', which is not defined"),
        ('range="-90 -10"', 'range="-90"', "joint 'knee': '-90' is not a pair of numbers"),
        ('type="slide"', 'type="ball"', "joint 'slide' is a ball joint"),
    ],
)
def test_what_cannot_be_read_names_file_and_place(folder, old, new, message):
    assert old in MJCF
    (folder / "m.xml").write_text(MJCF.replace(old, new))
    with pytest.raises(FerryError, match=message) as caught:
        read_description(folder / "m.xml")
    assert "m.xml" in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '<joint name="knee" axis="0 2 0" range="-90 -10"/>',
            '<joint name="knee" axis="0 1 0" range="-90 -10"/><joint name="twist" range="-1 1"/>',
            "body 'shank' has 2 joints",
        ),
        (
            '<geom type="cylinder" size="0.02 0.08"',
            '<geom type="ellipsoid" size="0.02 0.02 0.08"',
            "body 'shank' has a shape of type mjGEOM_ELLIPSOID",
        ),
        ('mass="0.4"', 'mass="0"', "MuJoCo cannot read it: .*mass and inertia"),
        (
            "</worldbody>",
            '<body name="other"><joint name="o"/><geom size="0.1"/></body></worldbody>',
            r"hang on the world: \['trunk', 'other'\]; expected exactly one",
        ),
    ],
)
def test_what_engines_do_not_share_is_refused_by_name(folder, old, new, message):
    assert old in MJCF
    text = MJCF.replace(old, new)
    (folder / "m.xml").write_text(text)
    more = "".join(f"  {n}: {{q_default: 0}}\n" for n in ("twist", "o") if f'name="{n}"' in text)
    limits = "limits: {tau_max: 5, source: guess}"
    (folder / "m.yaml").write_text(ROBOT + more.replace("q_default: 0", f"q_default: 0, {limits}"))
    with pytest.raises(FerryError, match=message):
        build_mujoco(load_robot(folder / "m.yaml"))


def test_couplings_that_are_lost_are_told(folder, caplog):
    text = MJCF.replace(
        "<actuator>", '<equality><joint joint1="hip" joint2="knee"/></equality><actuator>'
    )
    (folder / "m.xml").write_text(text)
    build_mujoco(load_robot(folder / "m.yaml"))
    assert "1 equality constraints are not carried over" in caplog.text


def test_the_reader_names_bodies_and_shapes_as_the_compiled_model_does(folder):
    file = Mjcf(folder / "m.xml")
    assert file.bodies == ["trunk", "thigh", "shank", "rail"]
    links = {e.get("name") for e in prepare(load_robot(folder / "m.yaml")).element.findall("link")}
    assert {"thigh/0", "thigh/1", "shank/0", "shank/1", "imu"} <= links
    assert links - {"ferry_base_frame"} <= {*file.bodies, *file.frames}


def test_a_file_that_includes_itself_is_refused(folder):
    (folder / "defaults.xml").write_text(
        '<mujocoinclude><include file="defaults.xml"/></mujocoinclude>'
    )
    with pytest.raises(FerryError, match="includes more than 16 deep"):
        read_description(folder / "m.xml")
