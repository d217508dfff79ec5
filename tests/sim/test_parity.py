"""The two engines on the same robot: by hand, and within the documented differences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from real.errors import FerryError
from real.frames import from_rpy
from real.signals import JointCommand
from real.spec import load_robot
from sim.document_tables import marks
from sim.engine import Engine, InitialState
from sim.mujoco_engine import MujocoEngine
from sim.parity import NAME, bound, documented, main, shipped_robots
from sim.parity_measures import QUANTITIES, as_built, engines
from sim.pybullet_engine import PyBulletEngine

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "engines.md"
BOTH = pytest.mark.parametrize("engine_class", [MujocoEngine, PyBulletEngine])

#: Robots whose measurements are quick; the others' are left to the slow tests.
QUICK = ("cartpole",)
ROBOTS = [
    pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in shipped_robots()
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ROBOTS)
def test_every_difference_is_within_what_the_documentation_says(name):
    bounds = documented(DOCUMENT.read_text(encoding="utf-8"))
    robot = load_robot(name)
    missing, exceeded = [], []
    for quantity in QUANTITIES:
        if not quantity.applies(robot):
            continue
        limit = bounds.get((name, quantity.name))
        if limit is None:
            missing.append(quantity.name)
        elif not (found := quantity.measure(robot)) <= limit:
            exceeded.append(f"{quantity.name}: {found:g} > {limit:g} {quantity.unit}")
    assert missing == [], "run `python -m sim.parity --write docs/engines.md`"
    assert exceeded == []


def test_the_table_is_of_robots_and_quantities_that_exist():
    bounds = documented(DOCUMENT.read_text(encoding="utf-8"))
    assert {robot for robot, _ in bounds} == set(shipped_robots())
    assert {quantity for _, quantity in bounds} <= {q.name for q in QUANTITIES}
    assert all(0.0 < limit < 0.25 for limit in bounds.values())


@pytest.mark.slow
def test_the_command_replaces_the_table_of_a_document_and_nothing_else(tmp_path):
    file = tmp_path / "d.md"
    begin, end = marks(NAME)
    file.write_text(f"before\n{begin}\nold\n{end}\nafter\n", encoding="utf-8")
    main(["cartpole", "--write", str(file)])
    text = file.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{begin}\n| robot") and text.endswith(f"|\n{end}\nafter\n")
    applied = {q.name for q in QUANTITIES if q.applies(load_robot("cartpole"))}
    assert documented(text).keys() == {("cartpole", name) for name in applied}
    with pytest.raises(FerryError, match="has no table between"):
        documented("nothing")


@pytest.mark.parametrize(
    ("value", "stated"),
    [(0.0, 1e-9), (1e-12, 1e-9), (0.011, 0.02), (0.05, 0.06), (0.079, 0.1), (3.0, 4.0)],
)
def test_a_difference_is_stated_a_fifth_larger_and_rounded_up(value, stated):
    assert bound(value) == pytest.approx(stated)


def test_a_robot_that_is_heavier_in_one_engine_is_noticed():
    """The measurements measure: what differs, they tell, by its size."""
    robot = load_robot("cartpole")
    with engines(robot, 3) as (one, two):
        two.set_parameter("mass", np.arange(3), np.array([[1.0, 1.5]] * 3))
        two.reset(np.arange(3), InitialState.default(robot, 3))
        for mine, other in as_built(one, two):
            assert other["mass"][0] - mine["mass"][0] == pytest.approx(0.05)  # of a pole of 0.1 kg
            assert not np.allclose(mine["com"], other["com"])
            np.testing.assert_allclose(other["limits"], mine["limits"])


# ------------------------------------------------------------------ by hand


def limp(engine: Engine) -> JointCommand:
    stamps = np.zeros(engine.num, dtype=np.int64)
    return JointCommand.damping(stamps, len(engine.robot.actuated), damping_kd=0.0)


@BOTH
def test_velocities_come_in_the_frame_of_a_base_that_is_turned_and_spins(engine_class):
    robot = load_robot("a1")
    engine = engine_class(robot, 3)
    yaw = np.array([0.5 * np.pi, np.pi, -0.5 * np.pi])
    start = InitialState.default(robot, 3)
    start.position_w[:, 2] = 3.0
    start.quat_wb[:] = from_rpy(np.stack([np.zeros(3), np.zeros(3), yaw], axis=1))
    start.ang_vel_b[:, 2] = [2.0, -1.0, 3.0]
    # All along world x, with 1 m/s: to the right, backwards and to the left of who is turned so.
    start.lin_vel_b[:] = [[0.0, -1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    engine.reset(np.arange(3), start)
    read = engine.state()
    np.testing.assert_allclose(read.lin_vel_b, start.lin_vel_b, atol=1e-9)
    np.testing.assert_allclose(read.robot.gyro_b, start.ang_vel_b, atol=1e-9)
    engine.apply(limp(engine), substeps=20)  # 0.1 s; the centre of mass is a few mm from the base
    state = engine.state()
    np.testing.assert_allclose(state.position_w[:, :2], [[0.1, 0.0]] * 3, atol=5e-3)
    turned = yaw + np.array([0.2, -0.1, 0.3])
    expected = np.stack([np.cos(turned), -np.sin(turned)], axis=1)
    np.testing.assert_allclose(state.lin_vel_b[:, :2], expected, atol=0.03)
    np.testing.assert_allclose(state.robot.gyro_b[:, 2], start.ang_vel_b[:, 2], atol=0.1)
    engine.close()


@BOTH
def test_a_rotor_makes_a_joint_slower_by_its_share_of_the_inertia(engine_class):
    """Cart of 1 kg and pole of 0.1 kg on a rail, pushed by 11 N: with 4.4 kg of rotor a fifth."""
    cartpole = load_robot("cartpole")
    joints = tuple(replace(j, armature=4.4) if j.actuated else j for j in cartpole.joints)
    accelerations = []
    for robot in (cartpole, replace(cartpole, joints=joints)):
        engine = engine_class(robot, 3)
        start = InitialState.default(robot, 3)
        start.q[:, 1] = [0.0, np.pi, 0.5 * np.pi]  # up, down, and level
        engine.reset(np.arange(3), start)
        command = replace(limp(engine), tau_ff=np.full((3, 1), 11.0))
        engine.apply(command, substeps=1)
        accelerations.append(engine.state().robot.dq[:, 0] / robot.physics_dt_s)
        engine.close()
    # (m_cart + m_pole - (m l)^2 cos^2 / I) a = F, plus the rotor: m l = 0.05, I = 1.025
    upright = 1.1 - 0.05**2 / 1.025
    own = np.array([upright, upright, 1.1])
    np.testing.assert_allclose(accelerations[0], 11.0 / own, rtol=0.01)
    np.testing.assert_allclose(accelerations[1], 11.0 / (own + 4.4), rtol=0.01)


def test_rotors_resist_their_joints_and_not_the_turning_of_the_robot():
    """Added to the links instead, rotors of 0.5 kg m^2 would make A1 many times as hard to turn."""
    robot = load_robot("a1")
    joints = tuple(replace(j, armature=0.5) for j in robot.joints)
    geared = replace(robot, joints=joints)
    lost = {}
    for one in (robot, geared):
        for engine_class in (MujocoEngine, PyBulletEngine):
            engine = engine_class(one, 3)
            start = InitialState.default(one, 3)
            start.position_w[:, 2] = 3.0
            start.ang_vel_b[:] = 3.0 * np.eye(3)  # about x, y and z
            engine.reset(np.arange(3), start)
            # The legs swing outwards and take some of the spin.
            engine.step(np.tile(one.actuated_array("q_default"), (3, 1)), substeps=10)
            lost[one is geared, engine_class] = 3.0 - np.diag(engine.state().robot.gyro_b)
            engine.close()
    for heavy in (False, True):
        np.testing.assert_allclose(
            lost[heavy, PyBulletEngine], lost[heavy, MujocoEngine], atol=0.05, err_msg=str(heavy)
        )
    assert np.abs(lost[True, PyBulletEngine]).max() < 1.0


def test_rotors_do_not_weigh():
    robot = load_robot("a1")
    plain = replace(robot, joints=tuple(replace(j, armature=0.0) for j in robot.joints))
    masses = []
    for one in (robot, plain):
        engine = PyBulletEngine(one)
        masses.append(engine.facts()["mass"].sum())
        engine.close()
    assert masses[0] == pytest.approx(masses[1], abs=1e-9)
