"""PyBullet as an engine: by hand where physics can be done by hand, against MuJoCo elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from real.errors import FerryError
from real.frames import from_rpy, rotate, rotate_inverse
from real.signals import JointCommand
from real.spec import RobotSpec, load_robot
from sim.engine import FLOOR_FRICTION, GRAVITY, Engine, InitialState, WorldState
from sim.model import build_mujoco
from sim.mujoco_engine import MujocoEngine
from sim.pybullet_engine import PyBulletEngine

Make = Callable[..., Engine]
BOTH = pytest.mark.parametrize("engine_class", [MujocoEngine, PyBulletEngine])


@pytest.fixture(scope="module")
def a1() -> RobotSpec:
    return load_robot("a1")


@pytest.fixture
def make() -> Iterator[Make]:
    """Builds engines and closes them."""
    made: list[Engine] = []

    def build(engine_class: type, robot: RobotSpec, num: int = 1, **options: float) -> Engine:
        made.append(engine_class(robot, num, **options))
        return made[-1]

    yield build
    for engine in made:
        engine.close()


def started(engine: Engine, **changes: object) -> WorldState:
    """Reset every world to the default with some fields replaced; returns the state."""
    start = InitialState.default(engine.robot, engine.num)
    shaped = {
        name: np.broadcast_to(value, getattr(start, name).shape).astype(float)
        for name, value in changes.items()
    }
    engine.reset(np.arange(engine.num), replace(start, **shaped))
    return engine.state()


def limp(num: int, joints: int, **changes: object) -> JointCommand:
    """A command without gains, some fields replaced."""
    command = JointCommand.damping(np.zeros(num, dtype=np.int64), joints, damping_kd=0.0)
    shape = (num, joints)
    return replace(command, **{k: np.broadcast_to(v, shape) for k, v in changes.items()})


def arrays(state: WorldState) -> dict[str, np.ndarray]:
    out = {
        f.name: getattr(state, f.name)
        for f in fields(state)
        if f.name not in ("robot", "ground_w", "gravity_b")
    }
    return out | state.robot.reported()


def assert_equal(left: WorldState, right: WorldState, rows: object = slice(None)) -> None:
    for name, value in arrays(left).items():
        np.testing.assert_array_equal(value[rows], arrays(right)[name][rows], err_msg=name)


def one_joint(tmp_path: Path, *, joint: str, fixed: bool, link: str = "") -> RobotSpec:
    """A heavy box with a wheel of 0.01 kg m^2 about y, its centre of mass on the axis."""
    wheel = '<inertia ixx="0.02" iyy="0.01" izz="0.02" ixy="0" ixz="0" iyz="0"/>'
    box = '<inertia ixx="0.1" iyy="0.2" izz="0.25" ixy="0" ixz="0" iyz="0"/>'
    shape = '<collision><geometry><box size="0.4 0.3 0.1"/></geometry></collision>'
    (tmp_path / "w.urdf").write_text(
        f'<robot name="w"><link name="box"><inertial><mass value="5"/>{box}</inertial>{shape}'
        f'</link><link name="wheel"><inertial>{link}<mass value="0.5"/>{wheel}</inertial></link>'
        '<joint name="spin" type="continuous"><parent link="box"/><child link="wheel"/>'
        '<axis xyz="0 1 0"/><limit effort="50" velocity="500"/></joint></robot>'
    )
    kind, height = ("fixed", 2.0) if fixed else ("floating", 0.05)
    path = tmp_path / "w.yaml"
    path.write_text(
        "schema_version: 1\nname: w\ndescription: w.urdf\nimu_link: null\nsafe_stop: damp\n"
        f"base: {{kind: {kind}, link: box, height_m: {height}}}\ndamping_kd: 1\n"
        "control_dt_s: 0.02\nphysics_dt_s: 0.005\n"
        f"defaults: {{kp: 20, kd: 0.5, action_scale: 1}}\n"
        f"joints:\n  spin: {{q_default: 0{joint}}}\n"
    )
    return load_robot(path)


# ------------------------------------------------------------------ frames


@BOTH
def test_velocities_of_a_yawed_spinning_base_come_in_its_own_frame(make, a1, engine_class):
    engine = make(engine_class, a1, 2)
    half = math.sqrt(0.5)
    # Yawed by 90 degrees, moving along world x: that is -y of the base.
    state = started(
        engine,
        position_w=[0.0, 0.0, 2.0],
        quat_wb=[half, 0.0, 0.0, half],
        lin_vel_b=[0.0, -1.0, 0.0],
        ang_vel_b=[0.0, 0.0, 2.0],
    )
    np.testing.assert_allclose(state.lin_vel_b, [[0.0, -1.0, 0.0]] * 2, atol=1e-12)
    np.testing.assert_allclose(state.robot.gyro_b, [[0.0, 0.0, 2.0]] * 2, atol=1e-12)
    engine.step(np.tile(a1.actuated_array("q_default"), (2, 1)), substeps=2)
    moved = engine.state()
    assert (moved.position_w[:, 0] > 0.009).all()  # along world x
    np.testing.assert_allclose(moved.lin_vel_b[:, :2], [[0.0, -1.0]] * 2, atol=0.05)


@BOTH
def test_a_start_of_any_pose_and_velocity_is_read_back_as_given(make, a1, engine_class):
    engine = make(engine_class, a1, 3)
    rng = np.random.default_rng(0)
    start = InitialState(
        q=a1.q_default + rng.uniform(-0.2, 0.2, (3, 12)),
        dq=rng.uniform(-2.0, 2.0, (3, 12)),
        position_w=rng.uniform(1.0, 2.0, (3, 3)),
        quat_wb=from_rpy(rng.uniform(-1.5, 1.5, (3, 3))),
        lin_vel_b=rng.uniform(-1.0, 1.0, (3, 3)),
        ang_vel_b=rng.uniform(-2.0, 2.0, (3, 3)),
    )
    engine.reset(np.array([2, 0, 1]), start)
    state, order = engine.state(), [1, 2, 0]
    np.testing.assert_allclose(state.robot.q, start.q[order], atol=1e-12)
    np.testing.assert_allclose(state.robot.dq, start.dq[order], atol=1e-12)
    np.testing.assert_allclose(state.position_w, start.position_w[order], atol=1e-12)
    sign = np.sign(np.sum(state.robot.quat_wb * start.quat_wb[order], axis=1, keepdims=True))
    np.testing.assert_allclose(sign * state.robot.quat_wb, start.quat_wb[order], atol=1e-12)
    np.testing.assert_allclose(state.lin_vel_b, start.lin_vel_b[order], atol=1e-12)
    np.testing.assert_allclose(state.robot.gyro_b, start.ang_vel_b[order], atol=1e-12)


def test_the_base_is_the_link_frame_also_where_its_centre_of_mass_is_elsewhere(make, tmp_path):
    """PyBullet reports the centre of mass; a spin then shows as a velocity of the origin."""
    robot = one_joint(tmp_path, joint=", actuated: false", fixed=False)
    far = '<mass value="5"/>'
    urdf = tmp_path / "w.urdf"
    urdf.write_text(
        urdf.read_text().replace(far, '<origin xyz="0.3 0.2 -0.1" rpy="0.4 1 2"/>' + far)
    )
    quat, spin = from_rpy([0.3, -0.4, 1.0]), np.array([0.5, -1.0, 2.0])
    states = {}
    for engine_class in (PyBulletEngine, MujocoEngine):
        engine = make(engine_class, robot)
        started(
            engine,
            position_w=[0.0, 0.0, 3.0],
            quat_wb=quat,
            ang_vel_b=spin,
            lin_vel_b=[1.0, 2.0, 3.0],
        )
        engine.step(np.zeros((1, 0)), substeps=20)
        states[engine_class] = engine.state()
    mine, other = states.values()
    np.testing.assert_allclose(mine.position_w, other.position_w, atol=5e-3)
    np.testing.assert_allclose(mine.robot.quat_wb, other.robot.quat_wb, atol=5e-3)
    np.testing.assert_allclose(mine.lin_vel_b, other.lin_vel_b, atol=3e-2)
    np.testing.assert_allclose(mine.robot.gyro_b, other.robot.gyro_b, atol=3e-2)


@BOTH
def test_foot_velocities_are_the_motion_of_foot_positions(make, a1, engine_class):
    engine = make(engine_class, a1)
    rng = np.random.default_rng(1)
    before = started(
        engine,
        position_w=[0.0, 0.0, 2.0],
        quat_wb=from_rpy([0.2, 0.3, 1.2]),
        lin_vel_b=[1.0, -0.5, 0.3],
        ang_vel_b=[0.5, 1.0, -1.5],
        dq=rng.uniform(-1.0, 1.0, 12),
    )
    engine.apply(limp(1, 12), substeps=1)
    after = engine.state()
    mean = (after.foot_position_w - before.foot_position_w) / a1.physics_dt_s
    middle = 0.5 * (before.foot_velocity_w + after.foot_velocity_w)
    np.testing.assert_allclose(middle, mean, atol=0.03)
    assert np.abs(mean).max() > 0.7


def test_the_velocity_of_a_foot_is_that_of_its_frame_not_of_its_centre_of_mass(make, tmp_path):
    robot = one_joint(tmp_path, joint="", fixed=True)
    urdf = tmp_path / "w.urdf"
    inertia = '<inertia ixx="1e-3" iyy="1e-3" izz="1e-3" ixy="0" ixz="0" iyz="0"/>'
    foot = (
        f'<link name="foot"><inertial><origin xyz="0 0 0.4"/><mass value="0.1"/>{inertia}'
        '</inertial><collision><geometry><sphere radius="0.02"/></geometry></collision></link>'
        '<joint name="glue" type="fixed"><parent link="wheel"/><child link="foot"/>'
        '<origin xyz="0 0 -0.3" rpy="0.5 0 0"/></joint></robot>'
    )
    urdf.write_text(urdf.read_text().replace("</robot>", foot))
    engine = make(PyBulletEngine, replace(robot, feet=("foot",)))
    state = started(engine, dq=2.0)
    # w x r = (0, 2, 0) x (0, 0, -0.3)
    np.testing.assert_allclose(state.foot_velocity_w, [[[-0.6, 0.0, 0.0]]], atol=1e-6)
    np.testing.assert_allclose(state.foot_position_w, [[[0.0, 0.0, 1.7]]], atol=1e-6)


# ------------------------------------------------------------------ by hand


@BOTH
def test_free_fall_is_a_parabola_and_feels_weightless(make, a1, engine_class):
    engine = make(engine_class, a1)
    started(engine, position_w=[0.0, 0.0, 5.0], lin_vel_b=[0.7, 0.0, 0.0])
    engine.apply(limp(1, 12), substeps=80)  # 0.4 s
    state = engine.state()
    # z = h - g t^2 / 2; integrating in steps of at most 5 ms adds at most g t dt / 2 = 0.01.
    assert state.position_w[0, 2] == pytest.approx(5.0 - 0.5 * GRAVITY * 0.16, abs=0.011)
    assert state.position_w[0, 0] == pytest.approx(0.7 * 0.4, abs=1e-3)
    np.testing.assert_allclose(state.robot.acc_b, 0.0, atol=0.05)
    assert state.robot.stamp_ns[0] == 400_000_000
    assert not state.foot_contact.any() and not state.body_contact.any()


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("dt", [1 / 240, 1 / 600])
def test_a_passive_pendulum_swings_at_its_own_period(make, tmp_path, engine_class, dt):
    """The velocity motor of every new joint, left on, would hold it still."""
    arm = '<origin xyz="0 0 -0.2"/>'
    robot = one_joint(tmp_path, joint=", actuated: false", fixed=True, link=arm)
    robot = replace(robot, physics_dt_s=dt, control_dt_s=dt)
    engine = make(engine_class, robot, 3)
    amplitude = np.array([0.1, -0.3, 0.6])
    # I = 0.01 + 0.5 * 0.2^2 = 0.03; T = 2 pi sqrt(I / (m g l)) (1 + a^2 / 16 + 11 a^4 / 3072)
    small = 2.0 * math.pi * math.sqrt(0.03 / (0.5 * GRAVITY * 0.2))
    period = small * (1.0 + amplitude**2 / 16.0 + 11.0 * amplitude**4 / 3072.0)
    for _ in range(2):  # also after another reset
        started(engine, q=amplitude[:, None])
        first, last = np.full(3, np.nan), amplitude
        for step in range(1, round(0.3 * period.max() / dt)):
            engine.step(np.zeros((3, 0)), substeps=1)
            q = engine.state().robot.q[:, 0]
            for row in np.flatnonzero(np.sign(q) != np.sign(last)):
                first[row] = (step - q[row] / (q[row] - last[row])) * dt
            last = q
        # Let go at rest, it is at the bottom after a quarter.
        np.testing.assert_allclose(first, 0.25 * period, rtol=0.01)


@BOTH
def test_joint_damping_and_dry_friction_slow_a_wheel_as_they_should(make, tmp_path, engine_class):
    viscous = one_joint(tmp_path, joint=", damping: 0.05", fixed=True)
    engine = make(engine_class, viscous)
    started(engine, dq=10.0)
    engine.apply(limp(1, 1), substeps=40)
    # dq = dq0 exp(-b t / I), b / I = 5
    assert engine.state().robot.dq[0, 0] == pytest.approx(10.0 * math.exp(-1.0), rel=0.02)
    dry = one_joint(tmp_path, joint=", friction: 0.2", fixed=True)
    engine = make(engine_class, dry)
    started(engine, dq=10.0)
    engine.apply(limp(1, 1), substeps=40)
    # dq = dq0 - (f / I) t = 10 - 20 * 0.2
    assert engine.state().robot.dq[0, 0] == pytest.approx(6.0, rel=0.02)
    started(engine, dq=0.0)
    engine.apply(limp(1, 1, tau_ff=0.19), substeps=40)  # less than the friction
    # Without friction it would turn with 3.8 rad/s; MuJoCo's soft friction creeps.
    assert abs(engine.state().robot.dq[0, 0]) < 0.05


@BOTH
@pytest.mark.parametrize("friction", [0.3, FLOOR_FRICTION])
def test_a_sliding_box_is_slowed_by_the_friction_that_was_asked_for(
    make, tmp_path, engine_class, friction
):
    robot = one_joint(tmp_path, joint="", fixed=False)
    if engine_class is PyBulletEngine:
        engine = make(PyBulletEngine, robot, friction=friction)
    else:
        engine = make(MujocoEngine, robot)
        engine.field("geom_friction")[:, engine.built.floor_geom_id, 0] = friction
    started(engine, lin_vel_b=[0.8, 0.0, 0.0])
    steps = 0
    while (state := engine.state()).lin_vel_b[0, 0] > 0.2:
        engine.apply(limp(1, 1), substeps=1)
        steps += 1
    slowed = (0.8 - state.lin_vel_b[0, 0]) / (steps * robot.physics_dt_s)
    # MuJoCo's soft contacts need a few ms to build up and lift what slides fast.
    assert slowed == pytest.approx(friction * GRAVITY, rel=0.12)


@BOTH
def test_effort_obeys_the_formula_of_a_command_joint_by_joint(make, a1, engine_class):
    robot = replace(a1, joints=a1.joints[::-1])
    engine = make(engine_class, robot, 2)
    rng = np.random.default_rng(2)
    state = started(
        engine, position_w=[0, 0, 2.0], dq=rng.uniform(-0.5, 0.5, 12), q=robot.q_default
    )
    command = JointCommand(
        stamp_ns=np.zeros(2, dtype=np.int64),
        q_des=robot.q_default + rng.uniform(-0.1, 0.1, (2, 12)),
        dq_des=rng.uniform(-1.0, 1.0, (2, 12)),
        tau_ff=rng.uniform(-1.0, 1.0, (2, 12)),
        kp=rng.uniform(10.0, 40.0, (2, 12)),
        kd=rng.uniform(0.1, 0.5, (2, 12)),
    )
    # A step so short that the state of its start is that of its end.
    short = replace(robot, physics_dt_s=1e-5, control_dt_s=1e-5)
    engine = make(engine_class, short, 2)
    engine.reset(np.arange(2), replace(InitialState.default(short, 2), dq=state.robot.dq))
    engine.apply(command, substeps=1)
    expected = (
        command.kp * (command.q_des - state.robot.q)
        + command.kd * (command.dq_des - state.robot.dq)
        + command.tau_ff
    )
    np.testing.assert_allclose(engine.state().robot.tau, expected, atol=0.01)
    assert np.abs(expected).max() > 2.0


@BOTH
def test_efforts_stop_at_the_limit_of_the_motor(make, a1, engine_class):
    engine = make(engine_class, a1)
    started(engine, position_w=[0.0, 0.0, 2.0])
    push = np.where(np.arange(12) % 2 == 0, 1e3, -1e3)
    engine.apply(limp(1, 12, tau_ff=push), substeps=1)
    limit = a1.actuated_array("tau_max")
    np.testing.assert_allclose(engine.state().robot.tau[0], np.sign(push) * limit)


def test_a_light_joint_gets_shorter_solver_steps_and_stays_stable(make, tmp_path):
    # 0.01 kg m^2 and kd 50: held for 1 ms, damping would take 5 times the velocity away.
    robot = one_joint(tmp_path, joint=", kd: 50, kp: 500", fixed=True)
    engine = make(PyBulletEngine, robot)
    started(engine, dq=1.0)
    engine.step(np.zeros((1, 1)), substeps=1)
    state = engine.state()
    assert abs(state.robot.dq[0, 0]) < 0.1
    engine.step(np.full((1, 1), 0.3), substeps=200)
    assert engine.state().robot.q[0, 0] == pytest.approx(0.3, abs=0.01)


def test_a_joint_too_light_for_its_damping_is_refused_by_name(tmp_path):
    robot = one_joint(tmp_path, joint=", kd: 500", fixed=True)
    with pytest.raises(FerryError, match=r"joint 'spin': damping gain 500 .*inertia of 0\.01"):
        PyBulletEngine(robot)


# ------------------------------------------------------------------ the two engines


def test_both_engines_hold_the_default_pose_at_the_same_height(make, a1):
    heights = []
    for engine_class in (MujocoEngine, PyBulletEngine):
        engine = make(engine_class, a1)
        started(engine)
        for _ in range(100):
            engine.step(a1.actuated_array("q_default")[None])
        state = engine.state()
        assert state.foot_contact.all() and not state.body_contact.any()
        assert state.robot.quat_wb[0, 0] > 0.999
        np.testing.assert_allclose(state.robot.acc_b, [[0.0, 0.0, GRAVITY]], atol=0.3)
        heights.append(state.position_w[0, 2])
    # Gains of 40 N m/rad let it sag by a few cm; 0.27 to 0.2983 is standing.
    assert all(0.27 < h < a1.base_height_m for h in heights)
    assert heights[0] == pytest.approx(heights[1], abs=0.005)


def test_a_servo_answers_a_step_alike_in_both_engines(make, a1):
    # Held by the trunk and without rotors, which PyBullet does not have.
    joints = tuple(replace(j, armature=0.0) for j in a1.joints)
    robot = replace(a1, base="fixed", base_height_m=1.0, joints=joints)
    target = a1.q_default + np.tile([0.2, -0.3, 0.25], 4)
    paths = []
    for engine_class in (MujocoEngine, PyBulletEngine):
        engine = make(engine_class, robot)
        started(engine)
        path = []
        for _ in range(80):
            engine.step(target[None], substeps=1)
            path.append(engine.state().robot.q[0])
        paths.append(np.array(path))
    mine, other = paths
    assert np.abs(mine - a1.q_default).max() > 0.2
    np.testing.assert_allclose(other, mine, atol=0.02)


def test_the_two_engines_agree_on_who_touches_the_ground(make, a1):
    for engine_class in (MujocoEngine, PyBulletEngine):
        engine = make(engine_class, a1)
        q = a1.q_default.copy()
        q[1] -= 0.7  # FR, the first foot
        state = started(engine, q=q, position_w=[0.0, 0.0, a1.base_height_m - 1e-3])
        np.testing.assert_array_equal(state.foot_contact, [[False, True, True, True]])
        np.testing.assert_array_equal(state.body_contact, [False])
        state = started(engine, position_w=[0.0, 0.0, 0.055])
        np.testing.assert_array_equal(state.body_contact, [True])


def test_the_robot_does_not_collide_with_itself(make, a1):
    engine = make(PyBulletEngine, a1)
    crossed = a1.q_default.copy()
    crossed[[0, 3]] = 0.6, -0.6  # the front calves through each other
    started(engine, q=crossed, position_w=[0.0, 0.0, 2.0])
    engine.apply(limp(1, 12), substeps=1)
    # A contact would throw the links apart; gravity accelerates all of them alike.
    np.testing.assert_allclose(engine.state().robot.dq, 0.0, atol=1e-3)


def test_a_slide_and_a_passive_hinge_move_alike_in_both_engines(make, tmp_path):
    path = tmp_path / "cartpole.yaml"
    path.write_text(
        "schema_version: 1\nname: cartpole\ndescription: pybullet_data:cartpole.urdf\n"
        "base: {kind: fixed, link: slideBar, height_m: 2.0}\nimu_link: null\nsafe_stop: damp\n"
        "damping_kd: 1\ncontrol_dt_s: 0.02\nphysics_dt_s: 0.005\n"
        "defaults: {kp: 40, kd: 4, action_scale: 0.25}\njoints:\n"
        "  cart_to_pole: {q_default: 0.2, actuated: false}\n  slider_to_cart: {q_default: 0}\n"
    )
    robot = load_robot(path)
    states = []
    for engine_class in (MujocoEngine, PyBulletEngine):
        engine = make(engine_class, robot)
        started(engine)
        for _ in range(40):
            engine.step(np.array([[0.5]]))
        states.append(engine.state())
        np.testing.assert_allclose(states[-1].position_w, [[0.0, 0.0, 2.0]])
        np.testing.assert_array_equal(states[-1].lin_vel_b, 0.0)
    one, two = states
    assert abs(one.robot.q[0, 1] - 0.0) > 0.2  # the cart went
    assert one.robot.tau[0, 0] == two.robot.tau[0, 0] == 0.0  # the hinge has no motor
    np.testing.assert_allclose(two.robot.q, one.robot.q, atol=0.01)
    np.testing.assert_allclose(two.robot.dq, one.robot.dq, atol=0.03)


# ------------------------------------------------------------------ worlds


def test_a_reset_world_is_as_good_as_new(make, a1):
    engine, fresh = make(PyBulletEngine, a1), make(PyBulletEngine, a1)
    rough = a1.actuated_array("q_default")[None] + 0.4 * np.sin(np.arange(12))
    for _ in range(15):
        engine.step(rough)
    started(engine)
    assert_equal(engine.state(), fresh.state())
    for _ in range(5):
        engine.step(rough)
        fresh.step(rough)
    assert_equal(engine.state(), fresh.state())
    assert engine.state().robot.stamp_ns[0] == 100_000_000


def test_resetting_some_worlds_leaves_the_others_alone(make, a1):
    engine, other = make(PyBulletEngine, a1, 3), make(PyBulletEngine, a1, 3)
    target = np.tile(a1.actuated_array("q_default"), (3, 1))
    target += np.array([[0.1], [-0.2], [0.3]])
    for one in (engine, other):
        for _ in range(4):
            one.step(target)
    engine.reset(np.array([1]), InitialState.default(a1, 1))
    engine.step(target)
    other.step(target)
    assert_equal(engine.state(), other.state(), rows=[0, 2])
    assert engine.state().robot.stamp_ns.tolist() == [100_000_000, 20_000_000, 100_000_000]


def test_three_worlds_at_once_equal_each_alone(make, a1):
    together = make(PyBulletEngine, a1, 3)
    default = a1.actuated_array("q_default")
    targets = default + 0.2 * np.random.default_rng(0).standard_normal((3, 12))
    for _ in range(4):
        together.step(targets)
    for row in range(3):
        alone = make(PyBulletEngine, a1)
        for _ in range(4):
            alone.step(targets[[row]])
        for name, value in arrays(together.state()).items():
            np.testing.assert_array_equal(value[[row]], arrays(alone.state())[name], err_msg=name)


def test_the_joint_order_of_the_robot_file_does_not_matter_to_the_motion(make, a1):
    order = np.random.default_rng(4).permutation(12)
    other = replace(a1, joints=tuple(a1.joints[i] for i in order))
    one, two = make(PyBulletEngine, a1), make(PyBulletEngine, other)
    target = a1.q_default + np.random.default_rng(0).uniform(-0.3, 0.3, 12)
    for _ in range(5):
        one.step(target[None])
        two.step(target[order][None])
    mine, permuted = one.state().robot, two.state().robot
    np.testing.assert_allclose(permuted.q, mine.q[:, order], atol=1e-9)
    np.testing.assert_allclose(permuted.tau, mine.tau[:, order], atol=1e-6)


def test_a_target_that_is_not_finite_marks_its_own_world_only(make, a1):
    engine = make(PyBulletEngine, a1, 3)
    target = np.tile(a1.actuated_array("q_default"), (3, 1))
    target[1, 4] = np.nan
    engine.step(target)
    np.testing.assert_array_equal(engine.state().diverged, [False, True, False])
    engine.reset(np.array([1]), InitialState.default(a1, 1))
    np.testing.assert_array_equal(engine.state().diverged, False)
    fresh = make(PyBulletEngine, a1)  # nothing of the broken episode is left
    for _ in range(3):
        engine.step(np.tile(a1.actuated_array("q_default"), (3, 1)))
        fresh.step(a1.actuated_array("q_default")[None])
    for name, value in arrays(engine.state()).items():
        np.testing.assert_array_equal(value[[1]], arrays(fresh.state())[name], err_msg=name)


def test_states_are_fresh_arrays_that_later_steps_do_not_change(make, a1):
    engine = make(PyBulletEngine, a1)
    state = engine.state()
    kept = {name: value.copy() for name, value in arrays(state).items()}
    engine.step(a1.actuated_array("q_default")[None] + 0.2)
    for name, value in arrays(state).items():
        np.testing.assert_array_equal(value, kept[name], err_msg=name)


def test_an_imu_away_from_the_base_feels_the_turning(make, tmp_path):
    robot = one_joint(tmp_path, joint="", fixed=False)
    urdf = tmp_path / "w.urdf"
    imu = (
        '<link name="imu"/><joint name="glue" type="fixed"><parent link="box"/>'
        '<child link="imu"/><origin xyz="0.5 0 0" rpy="1 2 3"/></joint></robot>'
    )
    urdf.write_text(urdf.read_text().replace("</robot>", imu))
    robot = replace(robot, imu_link="imu")
    for engine_class in (PyBulletEngine, MujocoEngine):
        engine = make(engine_class, robot)
        started(engine, position_w=[0.0, 0.0, 3.0], ang_vel_b=[0.0, 0.0, 4.0])
        engine.apply(limp(1, 1), substeps=2)
        # Centripetal: -w^2 r = -16 * 0.5 along x, in free fall nothing else.
        np.testing.assert_allclose(engine.state().robot.acc_b, [[-8.0, 0.0, 0.0]], atol=0.15)


def test_wrong_numbers_and_shapes_are_refused(make, a1):
    with pytest.raises(FerryError, match="number of worlds is 0; expected at least 1"):
        PyBulletEngine(a1, 0)
    with pytest.raises(FerryError, match="friction is nan"):
        PyBulletEngine(a1, 1, friction=math.nan)
    engine = make(PyBulletEngine, a1, 2)
    with pytest.raises(FerryError, match=r"shape \(1, 12\); expected \[N, A\] \(2, 12\)"):
        engine.step(a1.actuated_array("q_default")[None])


def test_closing_twice_is_fine(a1):
    engine = PyBulletEngine(a1)
    engine.close()
    engine.close()


def test_tilt_is_seen_by_the_accelerometer(make, a1):
    engine = make(PyBulletEngine, replace(a1, base="fixed", base_height_m=1.0))
    engine.step(a1.actuated_array("q_default")[None])
    np.testing.assert_allclose(engine.state().robot.acc_b, [[0.0, 0.0, GRAVITY]], atol=1e-9)
    quat = from_rpy([0.3, -0.2, 1.0])
    floating = make(PyBulletEngine, a1)
    state = started(floating, position_w=[0.0, 0.0, 2.0], quat_wb=quat)
    np.testing.assert_allclose(
        state.robot.acc_b[0], rotate_inverse(quat, [0.0, 0.0, GRAVITY]), atol=1e-9
    )
    np.testing.assert_allclose(rotate(quat, state.robot.acc_b[0]), [0, 0, GRAVITY], atol=1e-9)


def test_the_engine_and_the_model_are_built_from_the_same_feet(make, a1):
    built = build_mujoco(a1)
    robot = replace(a1, feet=a1.feet[::-1])
    forward, backward = make(PyBulletEngine, a1).state(), make(PyBulletEngine, robot).state()
    np.testing.assert_allclose(
        backward.foot_position_w, forward.foot_position_w[:, ::-1], atol=1e-12
    )
    mujoco_feet = make(MujocoEngine, a1).state().foot_position_w
    np.testing.assert_allclose(forward.foot_position_w, mujoco_feet, atol=1e-6)
    assert [built.model.site(int(i)).name for i in built.foot_site_ids] == list(a1.feet)
