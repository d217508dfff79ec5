"""Laws over all shipped robots: both engines make the same of every file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np
import pybullet
import pytest

from real.config import config_path
from real.spec import RobotSpec, load_robot
from sim.engine import Engine
from sim.model import build_mujoco
from sim.mujoco_engine import MujocoEngine
from sim.pybullet_engine import PyBulletEngine
from sim.urdf import prepare

ROBOTS = sorted(p.stem for p in config_path("a1", folder="robots").parent.glob("*.yaml"))


def test_the_shipped_robots_are_the_ones_that_are_promised():
    assert {"a1", "laikago", "mini_cheetah", "panda", "iiwa", "cartpole"} <= set(ROBOTS)


@pytest.fixture
def in_bullet(tmp_path: Path):
    client = pybullet.connect(pybullet.DIRECT)

    def load(robot: RobotSpec) -> tuple[int, int, list[tuple]]:
        file = tmp_path / "robot.urdf"
        file.write_text(prepare(robot).xml(visuals=False))
        body = pybullet.loadURDF(
            str(file),
            useFixedBase=robot.base == "fixed",
            flags=pybullet.URDF_USE_INERTIA_FROM_FILE,
            physicsClientId=client,
        )
        count = pybullet.getNumJoints(body, physicsClientId=client)
        infos = [pybullet.getJointInfo(body, i, physicsClientId=client) for i in range(count)]
        return client, body, infos

    yield load
    pybullet.disconnect(physicsClientId=client)


@pytest.mark.slow
@pytest.mark.parametrize("name", ROBOTS)
def test_mass_limits_and_joint_space_inertia_agree_in_both_engines(name: str, in_bullet):
    # Bolted down, so that the mass matrix is that of the joints; rotors exist in MuJoCo alone.
    robot = load_robot(name)
    robot = replace(
        robot, base="fixed", joints=tuple(replace(j, armature=0.0) for j in robot.joints)
    )
    built = build_mujoco(robot)
    client, body, infos = in_bullet(robot)
    masses = [
        pybullet.getDynamicsInfo(body, i, physicsClientId=client)[0] for i in range(-1, len(infos))
    ]
    assert sum(masses) == pytest.approx(built.model.body_mass.sum(), rel=1e-6)
    joints = {info[1].decode(): info for info in infos}
    for joint in robot.joints:
        if np.isfinite(joint.q_min):
            assert joints[joint.name][8:10] == pytest.approx((joint.q_min, joint.q_max))
            np.testing.assert_allclose(
                built.model.joint(joint.name).range, (joint.q_min, joint.q_max)
            )
    data = mujoco.MjData(built.model)
    q = robot.q_default + np.random.default_rng(0).uniform(-0.3, 0.3, len(robot.joints))
    data.qpos[built.joint_qpos_adr] = q
    mujoco.mj_forward(built.model, data)
    full = np.zeros((built.model.nv, built.model.nv))
    mujoco.mj_fullM(built.model, data, full)
    movable = [info[1].decode() for info in infos if info[2] != pybullet.JOINT_FIXED]
    assert set(movable) == set(robot.joint_names)
    at = dict(zip(robot.joint_names, q, strict=True))
    theirs = np.array(
        pybullet.calculateMassMatrix(body, [at[n] for n in movable], physicsClientId=client)
    )
    order = [movable.index(n) for n in robot.joint_names]
    np.testing.assert_allclose(
        full[np.ix_(built.joint_dof_adr, built.joint_dof_adr)],
        theirs[np.ix_(order, order)],
        rtol=1e-4,
        atol=1e-5,
    )


QUICK = {"panda", "a1"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in QUICK else pytest.mark.slow)
        for n in ROBOTS
        if n != "cartpole"  # its default pose is a balance
    ],
)
def test_every_robot_holds_its_default_pose_alike_in_both_engines(name: str):
    robot = load_robot(name)
    heights: list[float] = []
    sags: list[np.ndarray] = []
    for engine_class in (MujocoEngine, PyBulletEngine):
        engine: Engine = engine_class(robot, 1)
        try:
            start = engine.state()
            for _ in range(60):
                engine.step(robot.actuated_array("q_default")[None])
            state = engine.state()
        finally:
            engine.close()
        if robot.feet:  # the default pose stands on its feet, flat on the ground
            lowest = start.foot_position_w[0, :, 2]
            assert np.ptp(lowest) < 1e-3
            assert state.foot_contact.all()
            assert not state.body_contact.any()
        heights.append(float(state.position_w[0, 2]))
        sags.append(state.robot.q[0] - robot.q_default)
    assert heights[0] == pytest.approx(heights[1], abs=0.004)
    assert abs(heights[0] - robot.base_height_m) < 0.03
    assert np.abs(sags[0]).max() < 0.2
    np.testing.assert_allclose(sags[0], sags[1], atol=0.03)


def test_laikago_stands_upright_though_its_file_lies_on_the_side():
    built = build_mujoco(load_robot("laikago"))
    data = mujoco.MjData(built.model)
    data.qpos[3:7] = [1.0, 0.0, 0.0, 0.0]
    data.qpos[2] = built.robot.base_height_m
    data.qpos[built.joint_qpos_adr] = built.robot.q_default
    mujoco.mj_forward(built.model, data)
    feet = data.site_xpos[built.foot_site_ids]
    front, rear = feet[:2], feet[2:]
    assert (front[:, 0] > 0.15).all() and (rear[:, 0] < -0.15).all()  # x is forward
    assert (feet[[0, 2], 1] < -0.1).all() and (feet[[1, 3], 1] > 0.1).all()  # y is left
    np.testing.assert_allclose(feet[:, 2], 0.03, atol=1e-3)  # the radius of a toe
