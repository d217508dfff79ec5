"""The MuJoCo engine against a slow reference: one MjData per world, stepped in a Python loop."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path

import mujoco
import numpy as np
import pytest

from real.errors import FerryError
from real.frames import from_rpy, rotate_inverse, to_matrix
from real.signals import JointCommand
from real.spec import RobotSpec, load_robot
from sim import readout
from sim.engine import InitialState, WorldState
from sim.model import build_mujoco
from sim.mujoco_engine import MujocoEngine

N = 5


@pytest.fixture(scope="module")
def robot() -> RobotSpec:
    return load_robot("a1")


def spread(robot: RobotSpec, num: int, seed: int = 0, *, height: float = 0.32) -> InitialState:
    """Different in every world: pose, heading, tilt, velocities."""
    rng = np.random.default_rng(seed)
    joints = len(robot.joints)
    start = InitialState.default(robot, num)
    return InitialState(
        q=start.q + rng.uniform(-0.2, 0.2, (num, joints)),
        dq=rng.uniform(-1.0, 1.0, (num, joints)),
        position_w=rng.uniform(-1.0, 1.0, (num, 3)) * [1.0, 1.0, 0.03] + [0.0, 0.0, height],
        quat_wb=from_rpy(rng.uniform(-1.0, 1.0, (num, 3)) * [0.3, 0.3, 3.0]),
        lin_vel_b=rng.uniform(-0.5, 0.5, (num, 3)),
        ang_vel_b=rng.uniform(-1.0, 1.0, (num, 3)),
    )


def rows_of(start: InitialState, rows: np.ndarray) -> InitialState:
    return InitialState(**{f.name: getattr(start, f.name)[rows] for f in fields(start)})


def targets(robot: RobotSpec, steps: int, num: int, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    default = robot.actuated_array("q_default")
    return default + rng.uniform(-0.3, 0.3, (steps, num, len(default)))


def arrays(state: WorldState) -> dict[str, np.ndarray]:
    out = {
        f.name: getattr(state, f.name) for f in fields(state) if f.name not in ("robot", "ground_w")
    }
    return out | state.robot.reported()


def assert_same(
    left: WorldState, right: WorldState, rows: np.ndarray | None = None, *, but: tuple = ()
) -> None:
    for name, value in arrays(left).items():
        if name not in but:
            other = arrays(right)[name]
            if rows is not None:
                value, other = value[rows], other[rows]
            np.testing.assert_array_equal(value, other, err_msg=name)


def reference_data(engine: MujocoEngine, model: mujoco.MjModel, row: int) -> mujoco.MjData:
    """World ``row`` in a plain MjData of ``model``, not yet forwarded."""
    data = mujoco.MjData(model)
    spec = mujoco.mjtState.mjSTATE_INTEGRATION
    mujoco.mj_setState(model, data, engine.batch.state[row].copy(), spec)
    return data


# ------------------------------------------------------------------ stepping


def test_stepping_n_worlds_equals_stepping_each_alone(robot: RobotSpec) -> None:
    engine = MujocoEngine(robot, N, threads=2)
    engine.reset(np.arange(N), spread(robot, N))
    model = engine.built.model
    worlds = [reference_data(engine, model, row) for row in range(N)]
    for q_des in targets(robot, 12, N):
        engine.step(q_des)
        for data, target in zip(worlds, q_des, strict=True):
            data.ctrl[:] = target
            mujoco.mj_step(model, data, nstep=4)
    qpos = np.array([data.qpos for data in worlds])
    qvel = np.array([data.qvel for data in worlds])
    np.testing.assert_array_equal(engine.batch.bind("qpos"), qpos)
    np.testing.assert_array_equal(engine.batch.bind("qvel"), qvel)
    state = engine.state()
    np.testing.assert_array_equal(state.robot.q, qpos[:, 7:])
    assert state.robot.stamp_ns.tolist() == [12 * 20_000_000] * N


def test_a_world_depends_neither_on_the_others_nor_on_threads(robot: RobotSpec) -> None:
    start, actions = spread(robot, N), targets(robot, 10, N)
    runs = []
    for threads in (1, 2, 3):
        engine = MujocoEngine(robot, N, threads=threads)
        engine.reset(np.arange(N), start)
        for q_des in actions:
            engine.step(q_des)
        runs.append(engine.state())
    alone = MujocoEngine(robot, 1)
    alone.reset(np.arange(1), rows_of(start, np.array([3])))
    for q_des in actions:
        alone.step(q_des[3:4])
    assert_same(runs[0], runs[1])
    assert_same(runs[0], runs[2])
    for name, value in arrays(alone.state()).items():
        np.testing.assert_array_equal(value[0], arrays(runs[0])[name][3], err_msg=name)


def test_threads_are_as_asked_or_as_many_as_pay(robot: RobotSpec) -> None:
    assert MujocoEngine(robot, 3, threads=2).threads == 2
    assert MujocoEngine(robot, 3).threads == 1
    assert MujocoEngine(robot, 256).threads == min(16, len(os.sched_getaffinity(0)))
    for num, threads in ((0, 1), (3, -1)):
        with pytest.raises(FerryError, match=f"{num} worlds on {threads} threads"):
            MujocoEngine(robot, num, threads=threads)


def test_joints_are_found_by_name_whatever_their_order(robot: RobotSpec) -> None:
    order = np.array([4, 9, 0, 11, 2, 7, 1, 10, 5, 3, 8, 6])
    other = replace(robot, joints=tuple(robot.joints[i] for i in order))
    start, actions = spread(robot, N), targets(robot, 8, N)
    plain, permuted = MujocoEngine(robot, N), MujocoEngine(other, N)
    plain.reset(np.arange(N), start)
    permuted.reset(np.arange(N), replace(start, q=start.q[:, order], dq=start.dq[:, order]))
    for q_des in actions:
        plain.step(q_des)
        permuted.step(q_des[:, order])
    a, b = plain.state(), permuted.state()
    # Actuators are summed in another order, so the last bits differ.
    for name in ("q", "dq", "tau"):
        left, right = getattr(a.robot, name)[:, order], getattr(b.robot, name)
        np.testing.assert_allclose(left, right, atol=1e-7, err_msg=name)
    np.testing.assert_allclose(a.position_w, b.position_w, atol=1e-9)


def test_targets_of_another_shape_are_refused(robot: RobotSpec) -> None:
    engine = MujocoEngine(robot, 3)
    with pytest.raises(ValueError, match=r"\(12,\).*\(3, 12\)"):
        engine.step(robot.q_default)


# ------------------------------------------------------------------ state


def test_derived_signals_are_those_of_mujocos_own_sensors(robot: RobotSpec) -> None:
    engine = MujocoEngine(robot, N)
    engine.reset(np.arange(N), spread(robot, N))
    own = build_mujoco(robot)
    for steps in (0, 1, 6):
        for q_des in targets(robot, steps, N):
            engine.step(q_des)
        state = engine.state()
        for row in range(N):
            data = reference_data(engine, own.model, row)
            mujoco.mj_forward(own.model, data)
            sensed = data.sensordata
            near = {"atol": 1e-10, "rtol": 1e-10}
            np.testing.assert_allclose(
                state.robot.gyro_b[row], sensed[own.gyro_adr : own.gyro_adr + 3], **near
            )
            for foot, first in enumerate(own.foot_velocity_adr):
                velocity = sensed[first : first + 3]
                np.testing.assert_allclose(state.foot_velocity_w[row, foot], velocity, **near)
                site = own.foot_site_ids[foot]
                np.testing.assert_allclose(
                    state.foot_position_w[row, foot], data.site_xpos[site], **near
                )
            rotation = data.xmat[own.base_body_id].reshape(3, 3)
            np.testing.assert_allclose(state.lin_vel_b[row], rotation.T @ data.qvel[:3], **near)
            np.testing.assert_allclose(to_matrix(state.robot.quat_wb[row]), rotation, atol=1e-9)
            if steps == 0:  # forces belong to the substep before, so only here to this state
                first = own.accelerometer_adr
                np.testing.assert_allclose(
                    state.robot.acc_b[row], sensed[first : first + 3], atol=1e-9
                )
                np.testing.assert_allclose(state.robot.tau[row], data.qfrc_actuator[6:], **near)


def test_base_velocities_are_in_the_base_frame_also_after_a_turn(robot: RobotSpec) -> None:
    """Yawed by 90 degrees, moving along the world's x at 1 m/s, turning at 2 rad/s."""
    engine = MujocoEngine(robot, 3)
    start = InitialState.default(robot, 3)
    start.quat_wb[:] = from_rpy(np.tile([0.0, 0.0, np.pi / 2], (3, 1)))
    start.lin_vel_b[:] = [0.0, -1.0, 0.0]
    start.ang_vel_b[:] = [0.0, 0.0, 2.0]
    engine.reset(np.arange(3), start)
    np.testing.assert_allclose(engine.batch.bind("qvel")[:, :3], [[1.0, 0.0, 0.0]] * 3, atol=1e-12)
    state = engine.state()
    np.testing.assert_allclose(state.lin_vel_b, [[0.0, -1.0, 0.0]] * 3, atol=1e-12)
    np.testing.assert_allclose(state.robot.gyro_b, [[0.0, 0.0, 2.0]] * 3, atol=1e-12)


@pytest.mark.parametrize("read", ["sites", "balls"])
def test_contacts_are_those_of_mujocos_list(
    robot: RobotSpec, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standing, on the belly, on the back, in the air: feet and body apart.

    Where the balls of the feet are not about their sites, their own positions are read.
    """
    if read == "balls":
        monkeypatch.setattr(readout, "_alike", lambda *_: False)
    engine = MujocoEngine(robot, 40)
    start = spread(robot, 40, seed=3)
    rng = np.random.default_rng(4)
    start.position_w[:, 2] = rng.uniform(0.05, 0.4, 40)
    start.quat_wb[20:] = from_rpy(rng.uniform(-3.0, 3.0, (20, 3)))
    engine.reset(np.arange(40), start)
    built, seen = engine.built, set()
    for q_des in targets(robot, 3, 40):
        engine.step(q_des)
        state = engine.state()
        for row in range(40):
            data = reference_data(engine, built.model, row)
            mujoco.mj_forward(built.model, data)
            pairs = np.array([[c.geom1, c.geom2] for c in data.contact], dtype=int).reshape(-1, 2)
            touching = set(pairs.ravel().tolist()) - {built.floor_geom_id}
            feet = [g in touching for g in built.foot_geom_ids.tolist()]
            body = bool(touching - set(built.foot_geom_ids.tolist()))
            assert state.foot_contact[row].tolist() == feet
            assert state.body_contact[row] == body
            seen.add((any(feet), body))
    assert seen == {(False, False), (True, False), (False, True), (True, True)}


def test_feet_that_are_no_spheres_are_felt_by_sensors(robot: RobotSpec) -> None:
    """With the shins as feet (boxes), a robot lowered onto its toes touches with its body."""
    shins = replace(robot, feet=("FR_lower", "FL_lower", "RR_lower", "RL_lower"))
    engine = MujocoEngine(shins, 3)
    start = InitialState.default(shins, 3)
    start.position_w[:, 2] = [0.29, 0.6, 0.05]
    start.q[2] = [0.0, 1.5, -2.5] * 4
    engine.reset(np.arange(3), start)
    engine.step(start.q)
    state = engine.state()
    assert state.foot_contact.any(axis=1).tolist() == [False, False, True]
    assert state.body_contact.tolist() == [True, False, True]


def test_a_robot_at_rest_feels_gravity_upwards_and_carries_its_weight(robot: RobotSpec) -> None:
    engine = MujocoEngine(robot, 3)
    for _ in range(100):
        engine.step(np.tile(robot.q_default, (3, 1)))
    state = engine.state()
    np.testing.assert_allclose(np.linalg.norm(state.robot.acc_b, axis=1), 9.81, atol=0.02)
    assert (state.robot.acc_b[:, 2] > 9.7).all()
    assert state.foot_contact.all() and not state.body_contact.any()
    assert (np.abs(state.lin_vel_b) < 0.03).all()


IMU_URDF = """<robot name="hopper">
  <link name="body"><inertial><origin xyz="0.03 0.01 -0.02"/><mass value="3"/>
    <inertia ixx="0.02" iyy="0.03" izz="0.04" ixy="0.002" ixz="0" iyz="0.001"/></inertial></link>
  <link name="head"/>
  <joint name="neck" type="fixed"><parent link="body"/><child link="head"/>
    <origin xyz="0.2 -0.1 0.15" rpy="0.4 -0.3 1.0"/></joint>
  <link name="leg"><inertial><origin xyz="0 0 -0.1"/><mass value="0.5"/>
    <inertia ixx="0.002" iyy="0.002" izz="0.001" ixy="0" ixz="0" iyz="0"/></inertial>
    <collision><origin xyz="0 0 -0.2"/><geometry><sphere radius="0.03"/></geometry></collision>
  </link>
  <joint name="hip" type="revolute"><parent link="body"/><child link="leg"/><axis xyz="0 1 0"/>
    <limit lower="-2" upper="2" effort="20" velocity="10"/></joint>
</robot>"""

IMU_ROBOT = """schema_version: 1
name: hopper
description: hopper.urdf
base: {kind: KIND, link: body, height_m: 1.0}
imu_link: head
feet: FEET
control_dt_s: 0.02
physics_dt_s: 0.005
safe_stop: damp
damping_kd: 1.0
defaults: {kp: 30.0, kd: 1.0, action_scale: 0.3}
joints: {hip: {q_default: 0.3}}
"""


def hopper(folder: Path, *, kind: str, feet: str) -> RobotSpec:
    (folder / "hopper.urdf").write_text(IMU_URDF)
    (folder / "hopper.yaml").write_text(IMU_ROBOT.replace("KIND", kind).replace("FEET", feet))
    return load_robot(folder / "hopper.yaml")


def test_an_imu_away_from_the_base_feels_the_lever_arm(tmp_path: Path) -> None:
    """a_imu = a + alpha x r + w x (w x r), here against MuJoCo's accelerometer."""
    robot = hopper(tmp_path, kind="floating", feet="[leg]")
    engine, own = MujocoEngine(robot, 3), build_mujoco(robot)
    start = spread(robot, 3, height=1.5)
    start.ang_vel_b[:] *= 5.0
    engine.reset(np.arange(3), start)
    acc = engine.state().robot.acc_b
    for row in range(3):
        data = reference_data(engine, own.model, row)
        mujoco.mj_forward(own.model, data)
        first = own.accelerometer_adr
        np.testing.assert_allclose(acc[row], data.sensordata[first : first + 3], atol=1e-9)
    assert (np.abs(acc) > 1.0).any()


def test_a_fixed_base_neither_moves_nor_can_be_pushed(tmp_path: Path) -> None:
    engine = MujocoEngine(hopper(tmp_path, kind="fixed", feet="[]"), 3)
    engine.step(np.array([[-0.5], [0.0], [0.8]]))
    state = engine.state()
    assert state.foot_position_w.shape == (3, 0, 3)
    np.testing.assert_allclose(state.position_w, [[0.0, 0.0, 1.0]] * 3)
    np.testing.assert_allclose(state.robot.acc_b, [[0.0, 0.0, 9.81]] * 3, atol=1e-9)
    assert not state.robot.gyro_b.any() and not state.lin_vel_b.any()
    assert len(np.unique(state.robot.q)) == 3
    with pytest.raises(FerryError, match="fixed base"):
        engine.add_velocity(np.array([1]), np.ones((1, 3)), np.zeros((1, 3)))


# ------------------------------------------------------------------ resetting


def test_after_a_reset_everything_belongs_to_the_new_episode(robot: RobotSpec) -> None:
    engine, fresh = MujocoEngine(robot, N), MujocoEngine(robot, N)
    engine.reset(np.arange(N), spread(robot, N, seed=5))
    for q_des in targets(robot, 15, N):
        engine.step(q_des)
    start = spread(robot, N, seed=6)
    engine.reset(np.arange(N), start)
    fresh.reset(np.arange(N), start)
    assert_same(engine.state(), fresh.state())
    for q_des in targets(robot, 5, N, seed=7):
        engine.step(q_des)
        fresh.step(q_des)
    assert_same(engine.state(), fresh.state())


def test_resetting_some_worlds_leaves_the_others_alone(robot: RobotSpec) -> None:
    """Rows come in any order, each with its own start."""
    reset, untouched = MujocoEngine(robot, N), MujocoEngine(robot, N)
    start, actions = spread(robot, N), targets(robot, 10, N)
    for engine in (reset, untouched):
        engine.reset(np.arange(N), start)
    rows, again = np.array([4, 0, 3]), spread(robot, N, seed=8)
    for k, q_des in enumerate(actions):
        reset.step(q_des)
        untouched.step(q_des)
        if k == 4:
            reset.reset(rows, rows_of(again, rows))
            state = reset.state()
            np.testing.assert_allclose(state.robot.q[rows], again.q[rows])
            np.testing.assert_allclose(state.position_w[rows], again.position_w[rows])
            assert state.robot.stamp_ns.tolist() == [0, 100_000_000, 100_000_000, 0, 0]
        assert_same(reset.state(), untouched.state(), np.array([1, 2]))
    assert not np.array_equal(reset.state().robot.q[0], untouched.state().robot.q[0])


@pytest.mark.parametrize("rows", [[1, 1], [0, 9]])
def test_rows_that_are_repeated_or_out_of_range_are_refused(
    robot: RobotSpec, rows: list[int]
) -> None:
    engine = MujocoEngine(robot, 3)
    with pytest.raises(ValueError):
        engine.reset(np.array(rows), InitialState.default(robot, 2))


def test_a_push_adds_to_the_velocity_of_its_worlds_only(robot: RobotSpec) -> None:
    engine = MujocoEngine(robot, 3)
    start = spread(robot, 3, height=1.0)
    engine.reset(np.arange(3), start)
    before = engine.batch.bind("qvel").copy()
    engine.add_velocity(
        np.array([0, 2]), np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), np.ones((2, 3))
    )
    gained = engine.batch.bind("qvel") - before
    np.testing.assert_allclose(gained[:, :3], [[1, 2, 3], [0, 0, 0], [4, 5, 6]], atol=1e-12)
    np.testing.assert_allclose(gained[:, 3:6], [[1, 1, 1], [0, 0, 0], [1, 1, 1]], atol=1e-12)
    engine.step(start.q)
    # In the air for 20 ms: gravity takes 0.2 m/s off, the rest is still there.
    gained_w = [
        to_matrix(engine.state().robot.quat_wb[r]) @ engine.state().lin_vel_b[r] - before[r, :3]
        for r in range(3)
    ]
    np.testing.assert_allclose(gained_w, [[1, 2, 2.8], [0, 0, -0.2], [4, 5, 5.8]], atol=0.15)


# ------------------------------------------------------------------ what goes wrong in one world


@pytest.mark.parametrize("where", ["qpos", "qvel", "qacc_warmstart", "target"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_broken_number_ends_one_world_and_a_reset_heals_it(
    robot: RobotSpec, where: str, value: float
) -> None:
    broken, healthy = MujocoEngine(robot, N), MujocoEngine(robot, N)
    start, actions = spread(robot, N), targets(robot, 6, N)
    for engine in (broken, healthy):
        engine.reset(np.arange(N), start)
    others = np.array([0, 1, 3, 4])
    for k, q_des in enumerate(actions):
        healthy.step(q_des)
        if k == 2:
            if where == "target":
                q_des = q_des.copy()
                q_des[2, 7] = value
            else:
                broken.batch.bind(where)[2, 4] = value
        broken.step(q_des)
        assert broken.state().diverged.tolist() == [False, False, k >= 2, False, False]
        assert_same(broken.state(), healthy.state(), others)
    row = np.array([2])
    broken.reset(row, rows_of(start, row))
    assert not broken.state().diverged.any()
    fresh = MujocoEngine(robot, N)
    fresh.reset(np.arange(N), start)
    for q_des in actions:
        broken.step(q_des)
        fresh.step(q_des)
    assert not broken.state().diverged.any()
    assert_same(broken.state(), fresh.state(), row)


def test_a_world_in_which_mujoco_raises_keeps_its_state_and_is_marked(robot: RobotSpec) -> None:
    engine = MujocoEngine(robot, 3)
    integrator = engine.batch.expand("opt.integrator")
    good = integrator[1].copy()
    engine.step(targets(robot, 1, 3)[0])
    before = engine.batch.state[1].copy()
    integrator[1] = 77  # there is no such integrator
    engine.step(targets(robot, 1, 3)[0])
    state = engine.state()
    assert state.diverged.tolist() == [False, True, False]
    np.testing.assert_array_equal(engine.batch.bind("qpos")[1], before[1:20])
    assert state.robot.stamp_ns.tolist() == [40_000_000, 20_000_000, 40_000_000]
    integrator[1] = good
    engine.step(targets(robot, 1, 3)[0])
    assert engine.state().diverged[1], "only a reset makes a failed world usable"
    engine.reset(np.array([1]), InitialState.default(robot, 1))
    assert not engine.state().diverged.any()


def test_a_diverging_world_writes_no_log_file(
    robot: RobotSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    engine = MujocoEngine(robot, 3)
    engine.batch.bind("qpos")[1, 9] = np.nan
    engine.step(targets(robot, 1, 3)[0])
    assert engine.state().diverged.tolist() == [False, True, False]
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


# ------------------------------------------------------------------ servos


def distinct_command(robot: RobotSpec, num: int, seed: int = 2) -> JointCommand:
    """Other gains, targets, velocities and feed-forward in every joint of every world."""
    rng = np.random.default_rng(seed)
    shape = (num, len(robot.actuated))
    return JointCommand(
        stamp_ns=np.zeros(num, dtype=np.int64),
        q_des=robot.actuated_array("q_default") + rng.uniform(-0.3, 0.3, shape),
        dq_des=rng.uniform(-3.0, 3.0, shape),
        tau_ff=rng.uniform(-2.0, 2.0, shape),
        kp=rng.uniform(10.0, 90.0, shape),
        kd=rng.uniform(0.2, 3.0, shape),
    )


def test_a_command_acts_with_its_own_gains_velocities_and_feed_forward(robot: RobotSpec) -> None:
    """tau = kp (q_des - q) + kd (dq_des - dq) + tau_ff, clipped, on each joint of each world."""
    engine = MujocoEngine(robot, N)
    engine.reset(np.arange(N), spread(robot, N, height=0.8))
    command = distinct_command(robot, N)
    before = engine.state().robot
    engine.apply(command, substeps=1)
    expected = (
        command.kp * (command.q_des - before.q)
        + command.kd * (command.dq_des - before.dq)
        + command.tau_ff
    )
    tau_max = robot.actuated_array("tau_max")
    assert (np.abs(expected) > tau_max).any() or np.abs(expected).max() > 10.0
    np.testing.assert_allclose(
        engine.state().robot.tau, np.clip(expected, -tau_max, tau_max), atol=1e-9
    )


def test_effort_is_clipped_to_what_the_motor_can_give(robot: RobotSpec) -> None:
    engine = MujocoEngine(robot, 3)
    q_des = np.tile(robot.q_default, (3, 1))
    q_des[0, 1], q_des[1, 5], q_des[2, 6] = 9.0, -9.0, 9.0
    engine.step(q_des, substeps=1)
    tau, tau_max = engine.state().robot.tau, robot.actuated_array("tau_max")
    assert tau[0, 1] == tau_max[1] and tau[1, 5] == -tau_max[5] and tau[2, 6] == tau_max[6]


def test_a_command_with_the_robots_gains_is_a_step(robot: RobotSpec) -> None:
    stepped, applied = MujocoEngine(robot, N), MujocoEngine(robot, N)
    kp, kd = robot.actuated_array("kp"), robot.actuated_array("kd")
    for engine in (stepped, applied):
        engine.reset(np.arange(N), spread(robot, N))
    for q_des in targets(robot, 8, N):
        stepped.step(q_des)
        stamp = applied.state().robot.stamp_ns
        applied.apply(JointCommand.position(stamp, q_des, kp=kp, kd=kd))
    assert_same(stepped.state(), applied.state())


def test_a_step_after_damping_has_the_robots_gains_again(robot: RobotSpec) -> None:
    engine, plain = MujocoEngine(robot, 3), MujocoEngine(robot, 3)
    for e in (engine, plain):
        e.servos.bend(np.array([0, 1, 2]), kp_scale=np.linspace(0.8, 1.2, 36).reshape(3, 12))
    kept = plain.state_dict()
    stamp = engine.state().robot.stamp_ns
    for _ in range(25):
        engine.apply(JointCommand.damping(stamp, 12, damping_kd=3.0))
    sunk = engine.state().position_w[:, 2]
    assert (sunk < 0.25).all(), "damping alone lets the robot sink"
    state = engine.state_dict()["state"]
    kept["state"][...] = state
    plain.load_state_dict(kept)
    for q_des in targets(robot, 5, 3):
        engine.step(q_des)
        plain.step(q_des)
    assert_same(engine.state(), plain.state())


def test_a_world_that_is_reset_while_commanded_has_the_robots_gains_again(robot: RobotSpec) -> None:
    engine, fresh = MujocoEngine(robot, 3), MujocoEngine(robot, 3)
    start = spread(robot, 3)
    engine.apply(distinct_command(robot, 3))
    for e, rows in ((engine, np.array([2, 0])), (fresh, np.array([2, 0]))):
        e.reset(rows, rows_of(start, rows))
    assert_same(engine.state(), fresh.state(), np.array([0, 2]))
    assert np.abs(engine.state().robot.tau[[0, 2]]).max() < 5.0, "efforts of holding, not of before"


def test_weaker_motors_give_less_of_everything(robot: RobotSpec) -> None:
    engine = MujocoEngine(robot, 3)
    strength = np.linspace(0.5, 1.5, 36).reshape(3, 12)
    rows = np.array([2, 0, 1])
    engine.servos.bend(rows, strength=strength[rows])
    engine.reset(np.arange(3), spread(robot, 3, height=0.8))
    tau_max = robot.actuated_array("tau_max")
    for command in (
        distinct_command(robot, 3),
        replace(distinct_command(robot, 3), kp=np.full((3, 12), 900.0)),
    ):
        before = engine.state().robot
        engine.apply(command, substeps=1)
        full = (
            command.kp * (command.q_des - before.q)
            + command.kd * (command.dq_des - before.dq)
            + command.tau_ff
        )
        np.testing.assert_allclose(
            engine.state().robot.tau, strength * np.clip(full, -tau_max, tau_max), atol=1e-9
        )


# ------------------------------------------------------------------ delay


def test_delayed_servos_hold_the_start_pose_and_then_hear_targets_late(robot: RobotSpec) -> None:
    """Delays differ by world; reference: the same targets shifted by hand, substep by substep."""
    seconds = np.array([0.0, 0.005, 0.012, 0.02, 0.04])
    substeps = np.array([0, 1, 3, 4, 8])  # held until the next multiple of 5 ms
    late = MujocoEngine(robot, N, delay_max_s=0.04)
    rows = np.array([3, 1, 0, 4, 2])
    late.servos.set_delay(rows, seconds[rows])
    prompt = MujocoEngine(robot, N)
    start, actions = spread(robot, N), targets(robot, 12, N)
    for _ in range(2):  # again after a reset: nothing of the old episode is heard in the new one
        late.reset(np.arange(N), start)
        prompt.reset(np.arange(N), start)
        said: list[np.ndarray] = []
        for q_des in actions:
            late.step(q_des)
            for _ in range(4):
                said.append(q_des)
                now = len(said) - 1
                heard = [
                    said[now - d][row] if now >= d else start.q[row]
                    for row, d in enumerate(substeps.tolist())
                ]
                prompt.step(np.array(heard), substeps=1)
            np.testing.assert_array_equal(late.state().robot.q, prompt.state().robot.q)
    assert not np.array_equal(late.state().robot.q[3], late.state().robot.q[4])


@pytest.mark.parametrize("seconds", [0.041, -0.001, np.nan])
def test_a_delay_beyond_the_history_is_refused(robot: RobotSpec, seconds: float) -> None:
    """MuJoCo would cap it silently."""
    engine = MujocoEngine(robot, 3, delay_max_s=0.04)
    with pytest.raises(FerryError, match=r"0\.04 s"):
        engine.servos.set_delay(np.array([0, 2]), np.array([0.01, seconds]))


# ------------------------------------------------------------------ keeping


def test_a_saved_engine_continues_bit_by_bit(robot: RobotSpec) -> None:
    """Mid-episode, with delays, bent drives, another mass, one broken and one failed world."""

    def varied() -> MujocoEngine:
        return MujocoEngine(robot, N, threads=2, delay_max_s=0.03)

    engine = varied()
    everyone = np.arange(N)
    engine.field("body_mass")[...] *= np.linspace(0.8, 1.2, N)[:, None]
    engine.refresh_constants(everyone)
    engine.servos.set_delay(everyone, np.linspace(0.0, 0.03, N))
    engine.servos.bend(everyone, kp_scale=np.linspace(0.8, 1.2, 12 * N).reshape(N, 12))
    engine.reset(everyone, spread(robot, N))
    actions = targets(robot, 20, N)
    for q_des in actions[:9]:
        engine.step(q_des)
    engine.apply(distinct_command(robot, N))
    engine.batch.bind("qpos")[3, 8] = np.nan
    engine.step(actions[9])
    kept = engine.state_dict()
    copies = {key: value.copy() for key, value in kept.items()}
    other = varied()
    other.load_state_dict(kept)
    assert_same(other.state(), engine.state())
    for q_des in actions[10:]:
        engine.step(q_des)
        other.step(q_des)
        assert_same(other.state(), engine.state())
    assert other.state().diverged.tolist() == [False, False, False, True, False]
    for key, value in kept.items():
        np.testing.assert_array_equal(value, copies[key], err_msg=f"{key} was written to")
    later, other_later = engine.state_dict(), other.state_dict()
    for key, value in later.items():
        np.testing.assert_array_equal(value, other_later[key], err_msg=key)


def test_a_state_of_other_worlds_is_refused(robot: RobotSpec) -> None:
    kept = MujocoEngine(robot, 3).state_dict()
    with pytest.raises(FerryError, match="4 worlds"):
        MujocoEngine(robot, 4).load_state_dict(kept)
    with pytest.raises(FerryError, match=r"0\.02 s"):
        MujocoEngine(robot, 3, delay_max_s=0.02).load_state_dict(kept)


def test_closing_twice_is_allowed(robot: RobotSpec) -> None:
    engine = MujocoEngine(robot, 2)
    engine.close()
    engine.close()


def test_gravity_is_seen_from_the_tilted_base(robot: RobotSpec) -> None:
    """In free fall an accelerometer reads zero, whatever the attitude."""
    engine = MujocoEngine(robot, 3)
    start = spread(robot, 3, height=2.0)
    start.dq[:] = 0.0
    start.ang_vel_b[:] = 0.0
    engine.reset(np.arange(3), start)
    np.testing.assert_allclose(engine.state().robot.acc_b, 0.0, atol=1e-6)
    fall = engine.batch.bind("qacc")[:, :3]
    np.testing.assert_allclose(fall, [[0.0, 0.0, -9.81]] * 3, atol=1e-6)
    np.testing.assert_allclose(rotate_inverse(start.quat_wb, fall)[:, 2] < -8.0, [True] * 3)
