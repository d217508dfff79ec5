"""What a first robot file takes from an MJCF: pose, gains, motors, feet; each as the file says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from real.spec import load_robot
from sim.mjcf_hints import read_hints
from sim.pybullet_engine import PyBulletEngine
from sim.robot_new import new_robot
from tests.extras import need


def leg(name: str, x: float, y: float, *, more: str = "") -> str:
    """Hip and knee; a shin that ends near the ground, too, and the foot on the same body."""
    return f"""
    <body name="{name}_thigh" pos="{x} {y} 0">
      <joint name="{name}_hip" class="hip"/><geom type="capsule" size="0.02 0.08" pos="0 0 -0.1"/>
      <body name="{name}_shin" pos="0 0 -0.2">
        <joint name="{name}_knee" class="knee"/>
        <geom type="capsule" size="0.01 0.08" pos="0 0 -0.1"/>
        <geom name="{name}_foot" size="0.02" pos="0 0 -0.2"/>{more}
      </body>
    </body>"""


def walker(*, actuators: str = "", key: str = "", more: str = "") -> str:
    legs = [leg(n, x, y, more=more) for n, x, y in (("f", 0.2, 0.0), ("b", -0.2, 0.1))]
    return f"""<mujoco><compiler angle="radian"/>
  <default>
    <default class="hip"><joint axis="0 1 0" range="-1 2" armature="0.01"/></default>
    <default class="knee"><joint axis="0 1 0" range="-2.5 -0.3"/></default>
    <default class="servo"><position kp="40" kv="2" forcerange="-20 20"/>
      <default class="stiff"><position kp="100" dampratio="1"/></default></default>
  </default>
  <worldbody><body name="trunk" pos="0 0 0.5"><freejoint/>
    <geom type="box" size="0.2 0.1 0.05" mass="5"/><site name="imu" pos="0.1 0 0"/>{"".join(legs)}
  </body></worldbody>
  <actuator>{actuators}</actuator><keyframe>{key}</keyframe></mujoco>"""


SERVOS = (
    '<position class="servo" joint="f_hip"/><position class="stiff" joint="f_knee" gear="2"/>'
    '<position class="servo" joint="b_hip" kv="0"/><motor joint="b_knee" ctrlrange="-30 30"/>'
)
KEYS = (
    '<key name="lying" qpos="0 0 0.1 1 0 0 0 0 -2.4 0 -2.4"/>'
    '<key name="Home" qpos="0 0 0.3 1 0 0 0 0.7 -1.2345678 0.8 -1.3"/>'
)


@pytest.fixture
def write(tmp_path: Path):
    def made(mjcf: str, name: str = "mine") -> Path:
        (tmp_path / f"{name}.xml").write_text(mjcf)
        new_robot(str(tmp_path / f"{name}.xml"), tmp_path / f"{name}.yaml")
        return tmp_path / f"{name}.yaml"

    return made


def test_a_robot_stands_as_its_key_frame_says_and_has_the_gains_of_its_servos(write):
    file = write(walker(actuators=SERVOS, key=KEYS))
    robot = load_robot(file)
    assert robot.joint_names == ("f_hip", "f_knee", "b_hip", "b_knee")
    np.testing.assert_allclose(robot.q_default, [0.7, -1.2346, 0.8, -1.3])
    f_hip, f_knee, b_hip, b_knee = robot.joints
    assert (f_hip.kp, f_hip.kd) == (40.0, 2.0)
    # The servo is in the length 2 q, and the joint feels twice its force: 2 * 2 * 100.
    assert f_knee.kp == 400.0
    assert f_knee.kd > 0.0  # MuJoCo works damping ratios out
    assert b_hip.kp == 40.0 and b_hip.kd > 0.0  # no servo brakes nothing
    assert "its servo has none" in file.read_text()
    assert b_knee.kp != 40.0 and b_knee.tau_max == 30.0  # a motor: proposed
    assert "key frame 'Home' of the file" in file.read_text()


def test_a_joint_without_an_actuator_in_a_file_that_has_some_is_passive(write):
    motors = '<motor joint="f_hip"/><motor joint="b_hip"/>'
    robot = load_robot(write(walker(actuators=motors, key=KEYS)))
    assert [joint.actuated for joint in robot.joints] == [True, False, True, False]
    # A file without any says nothing of motors.
    bare = load_robot(write(walker(key=KEYS), "bare"))
    assert all(joint.actuated for joint in bare.joints)


COUPLED = """<tendon><fixed name="both"><joint joint="f_knee" coef="1"/>
  <joint joint="b_knee" coef="-1"/></fixed></tendon>"""
PULLED = '<tendon><spatial name="both"><site site="imu"/><site site="toe"/></spatial></tendon>'


@pytest.mark.parametrize(
    ("actuators", "tendon", "motors"),
    [
        ('<position class="servo" jointinparent="f_hip"/>', "", {"f_hip"}),
        ('<motor tendon="both"/>', COUPLED, {"f_knee", "b_knee"}),
        ('<motor joint="f_hip"/><motor tendon="both"/>', PULLED, set()),
        ('<motor joint="f_hip"/><general site="imu" gear="0 0 1 0 0 0"/>', "", set()),
        ('<motor joint="f_hip"/><adhesion body="f_shin" ctrlrange="0 1"/>', "", set()),
    ],
)
def test_an_actuator_drives_joints_in_other_ways_than_at_one(write, actuators, tendon, motors):
    """Where the file does not name the joints that one acts on, none is called passive."""
    mjcf = walker(actuators=actuators, key=KEYS).replace("</mujoco>", f"{tendon}</mujoco>")
    mjcf = mjcf.replace('<site name="imu"', '<site name="toe"/><site name="imu"')
    file = write(mjcf)
    assert read_hints(file.with_suffix(".xml")).motors == motors
    driven = {joint.name for joint in load_robot(file).joints if joint.actuated}
    assert driven == (motors or {"f_hip", "f_knee", "b_hip", "b_knee"})


def test_a_servo_in_the_parents_frame_gives_its_gains_and_one_with_a_tendon_beside_it_none(write):
    servos = "".join(
        f'<position class="servo" jointinparent="{name}"/>' for name in ("f_hip", "f_knee")
    )
    mjcf = walker(actuators=servos + '<motor tendon="both"/>', key=KEYS)
    file = write(mjcf.replace("</mujoco>", f"{COUPLED}</mujoco>"))
    assert read_hints(file.with_suffix(".xml")).gains == {"f_hip": (40.0, 2.0)}


@pytest.mark.parametrize("knee", ["-0.1", "-2.6"])
def test_a_key_frame_beyond_a_limit_is_left_out_and_said_so(write, caplog, knee):
    file = write(walker(key=f'<key name="home" qpos="0 0 0.3 1 0 0 0 0.7 {knee} 0.8 -1.3"/>'))
    why = f"key frame 'home' has joints beyond limits: 'f_knee' at {knee} (limits: -2.5 to -0.3)"
    assert f"# q_default: none of the file's: {why}.\n" in file.read_text()
    assert why in caplog.text
    assert 0.7 not in load_robot(file).q_default


def test_a_pose_at_a_limit_is_written_within_it(write):
    third = -1.0 / 3.0  # -0.3333 is beyond it
    key = f'<key qpos="0 0 0.3 1 0 0 0 0.7 {third!r} 0.8 -1.3"/>'
    mjcf = walker(key=key).replace("-2.5 -0.3", f"-2.5 {third!r}")
    robot = load_robot(write(mjcf))
    assert robot.joints[1].q_default == robot.joints[1].q_max


def test_feet_are_the_lowest_shapes_of_the_last_bodies_and_corners_of_a_sole_together(write):
    assert load_robot(write(walker(key=KEYS))).feet == ("f_foot", "b_foot")
    # A second corner beside the first; and an ankle below, after which no shin is an end.
    corner = '<geom name="{}" size="0.02" pos="0 0.05 -0.2"/>'
    mjcf = walker(key=KEYS)
    for name in ("f", "b"):
        foot = f'<geom name="{name}_foot" size="0.02" pos="0 0 -0.2"/>'
        sole = corner.format(f"{name}_heel") + corner.format(f"{name}_toe").replace("0.05", "0.09")
        ankle = (
            f'<body name="{name}_sole" pos="0 0 -0.02"><joint name="{name}_ankle" axis="1 0 0" '
            f'range="-0.1 0.1"/>{sole}</body>'
        )
        mjcf = mjcf.replace(foot, ankle)
    mjcf = mjcf.replace("-2.4 0 -2.4", "-2.4 0 0 -2.4 0")
    mjcf = mjcf.replace("-1.2345678 0.8 -1.3", "-1.4 0 0.7 -1.4 0")
    assert load_robot(write(mjcf, "soles")).feet == ("f_heel", "f_toe", "b_heel", "b_toe")


def test_what_no_joint_of_the_file_has_is_asked_for_once_and_the_base_feels_its_falls(write):
    file = write(walker(actuators=SERVOS, key=KEYS))
    assert file.read_text().count("# limits: {dq_max: ?, source: ?}") == 1
    limits = "limits: {dq_max: 9.0, source: guess}"
    file.write_text(file.read_text().replace("# limits: {dq_max: ?, source: ?}", limits))
    robot = load_robot(file)
    robot.require_complete()
    assert {joint.dq_max for joint in robot.joints} == {9.0}
    assert robot.imu_link == "trunk"


def test_hints_of_a_file_without_anything_are_none(tmp_path):
    (tmp_path / "bare.xml").write_text(walker())
    found = read_hints(tmp_path / "bare.xml")
    assert (found.key, found.q, found.gains, found.motors) == ("", {}, {}, frozenset())


def test_pybullet_reads_long_descriptions_whole(write):
    """It cuts lines of more than 8191 characters, in the middle of a word or a number."""
    need("pybullet")
    many = "".join(
        f'<body pos="{1 / (i + 3)!r} {1 / (i + 7)!r} {1 / (i + 11)!r}">'
        f'<geom size="0.01" mass="0.01"/></body>'
        for i in range(20)
    )
    limits = "limits: {dq_max: 9.0, tau_max: 9.0, source: guess}"
    file = write(walker(key=KEYS, more=many))
    text = file.read_text()
    file.write_text(text.replace("  # limits: {dq_max: ?, tau_max: ?, source: ?}", f"  {limits}"))
    engine = PyBulletEngine(load_robot(file), 1)
    try:
        assert np.isfinite(engine.state().robot.q).all()
    finally:
        engine.close()
