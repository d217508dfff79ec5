"""Poses that an arm is asked for: within its limits and the box, and reachable."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from real.config import config_dict, parse_config
from real.errors import ConfigError, FerryError
from real.kinematics import Kinematics, pose_error
from real.observation import ObservationBuilder, ObservationSpec, make_term
from real.reach import CANDIDATES, POSE_NAMES, ReachSpace, poses_reached
from real.signals import RobotState
from real.spec import load_robot
from sim.chain import end_effector_chain
from sim.env import make_env
from sim.model import build_mujoco
from sim.pose_commands import PoseCommandConfig, PoseCommands, reach_of, reach_space
from sim.task import EnvConfig, load_env_config
from training.suites import episode_commands

PANDA = load_robot("panda")
TASK = load_env_config("panda_reach")


def generators(num: int, seed: int = 0) -> list[np.random.Generator]:
    return [np.random.default_rng([seed, i]) for i in range(num)]


def space(robot=PANDA, **changes: object) -> ReachSpace:
    config = parse_config(
        PoseCommandConfig, {**config_dict(TASK.command), **changes}, source="test"
    )
    return reach_space(config, robot)[0]


@pytest.mark.parametrize("name", ["panda", "iiwa"])
def test_the_chain_ends_where_mujoco_has_the_end_effector(name):
    import mujoco

    robot = load_robot(name)
    arm = Kinematics(end_effector_chain(robot), robot.joint_names)
    # A foot gets a site at the origin of its link, also where links are fused.
    built = build_mujoco(robot)
    data = mujoco.MjData(built.model)
    q = robot.q_default + np.random.default_rng(1).uniform(-0.4, 0.4, 7)
    data.qpos[built.joint_qpos_adr] = q
    mujoco.mj_forward(built.model, data)
    position, quat = arm.pose(q[None])
    last = data.body(robot.joints[-1].name.replace("joint", "link").replace("link_7", "link_7"))
    if name == "iiwa":
        np.testing.assert_allclose(position[0], last.xpos, atol=1e-9)
        assert abs(quat[0] @ last.xquat) == pytest.approx(1.0, abs=1e-9)
        return
    # The grasp target is on the axis of the flange: 0.107 to the hand, 0.105 to the tips.
    axis = last.xmat.reshape(3, 3)[:, 2]
    np.testing.assert_allclose(position[0], last.xpos + 0.212 * axis, atol=1e-9)


def test_every_drawn_pose_is_in_the_box_and_is_one_of_joints_within_their_limits():
    poses = space().draw(generators(200))
    assert poses.shape == (200, 7)
    low, high = TASK.command.limits().low, TASK.command.limits().high
    assert ((poses >= np.array(low) - 1e-9) & (poses <= np.array(high) + 1e-9)).all()
    np.testing.assert_allclose(np.linalg.norm(poses[:, 3:], axis=1), 1.0)
    assert (poses[:, 3] >= 0.0).all()
    assert len(np.unique(poses[:, 0])) == 200


def test_a_pose_is_that_of_the_first_candidate_in_the_box_drawn_alone_or_with_others():
    made = space()
    together = made.draw(generators(3))
    for world in range(3):
        alone = made.draw([generators(3)[world]])
        np.testing.assert_array_equal(alone[0], together[world])
        # The slow way: candidate by candidate.
        share = generators(3)[world].random((CANDIDATES, 7))
        low = np.array([j.q_min for j in PANDA.joints])
        high = np.array([j.q_max for j in PANDA.joints])
        default, reach = PANDA.q_default, TASK.command.share
        for row in share:
            q = default + reach * (low - default) + row * reach * (high - low)
            position, quat = made.kinematics.pose(q[None])
            if made.inside(np.concatenate([position, quat], axis=1))[0]:
                break
        assert np.abs(pose_error(together[world][None], position, quat)).max() < 1e-9


def test_a_command_holds_for_its_time_and_then_another_comes():
    source = PoseCommands(space(), 2, generators(2), hold_s=(0.1, 0.1), control_dt_s=0.02)
    source.reset(np.arange(2))
    first = source.value.copy()
    for _ in range(4):
        source.step()
        np.testing.assert_array_equal(source.value, first)
    source.step()
    assert (source.value != first).any(axis=1).all()


def test_commands_go_on_from_their_state():
    one, two = (
        PoseCommands(space(), 2, generators(2, s), hold_s=(0.04, 0.1), control_dt_s=0.02)
        for s in (0, 0)
    )
    one.reset(np.arange(2))
    two.reset(np.arange(2))
    two.load_state_dict(one.state_dict())
    for _ in range(20):
        one.step()
        two.step()
        np.testing.assert_array_equal(one.value, two.value)


def test_a_box_that_the_arm_hardly_reaches_is_refused_with_the_share():
    with pytest.raises(ConfigError, match=r"0\.0 % of the poses of 'panda_grasptarget'"):
        space(x=[2.0, 3.0])
    with pytest.raises(FerryError, match="names no end_effector"):
        reach_of(TASK.command, replace(PANDA, end_effector=None))
    with pytest.raises(FerryError, match="is fixed to the base"):
        reach_of(TASK.command, replace(PANDA, end_effector="panda_link0"))


def test_what_is_no_pose_becomes_the_default_pose_and_the_rest_is_brought_into_the_box():
    made = space()
    given = np.array(
        [
            [0.0] * 7,  # nobody commands anything
            [np.nan, 0.0, 0.5, 1.0, 0.0, 0.0, 0.0],
            [9.0, -9.0, 0.5, -2.0, 0.0, 0.0, 0.0],
        ]
    )
    out = made.usable(given)
    np.testing.assert_allclose(out[0], made.rest)
    np.testing.assert_allclose(out[1], made.rest)
    np.testing.assert_allclose(out[2], [0.75, -0.5, 0.5, 1.0, 0.0, 0.0, 0.0])


def test_a_pose_task_says_what_follows_a_command_of_another_kind():
    config = config_dict(TASK)
    with pytest.raises(ConfigError, match=r"rewards\.trot follow a velocity command.*a pose comm"):
        parse_config(EnvConfig, {**config, "rewards": {"trot": {"weight": 1.0}}}, source="test")
    walk = config_dict(load_env_config("a1_walk"))
    for term in ("pose_error", "pose_step"):
        terms = {**walk["observation"], term: {}}
        with pytest.raises(ConfigError, match=rf"observation\.{term} follow a pose command"):
            parse_config(EnvConfig, {**walk, "observation": terms}, source="test")
    with pytest.raises(ConfigError, match="hold_s"):
        parse_config(
            EnvConfig, {**config, "command": {**config["command"], "hold": 3}}, source="test"
        )


def test_an_env_observes_what_is_missing_to_the_commanded_pose():
    env = make_env(TASK, num=3, threads=1, seed=1, randomize=False)
    try:
        env.reset(2)
        obs = env.step(np.zeros((3, 7))).obs["policy"]
        arm = Kinematics(end_effector_chain(PANDA), PANDA.joint_names)
        position, quat = arm.pose(env.engine.state().robot.q)
        expected = pose_error(env.command, position, quat)
        np.testing.assert_allclose(obs[:, :6], expected, atol=1e-6)
        np.testing.assert_array_equal(env.command.shape, (3, 7))
        assert env.command_limits.names == POSE_NAMES
    finally:
        env.close()


def test_a_delta_counts_from_where_the_joints_are():
    env = make_env(TASK, num=2, threads=1, seed=1, randomize=False)
    try:
        env.reset(2)
        before = env.engine.state().robot.q.copy()
        action = np.full((2, 7), 0.5)
        env.step(action)
        sent = env.engine.batch.bind("ctrl")[:, env.engine.built.actuator_ids]
        np.testing.assert_allclose(sent, before + 0.1 * action, atol=1e-12)
    finally:
        env.close()


def test_a_pose_counts_as_reached_if_it_is_kept_to_the_end_of_its_time():
    made = space()
    arm, dt = made.kinematics, 0.5
    q = np.tile(PANDA.q_default, (24, 3, 1))
    here = made.rest
    away = here + np.array([0.3, 0, 0, 0, 0, 0, 0])
    command = np.tile(here, (24, 3, 1))
    command[8:16] = away  # 4 s each: reached, not reached, reached
    q[20, 1, 0] += 0.3  # leaves in between, and is back in time
    q[23, 2, 0] += 0.3  # leaves at the end
    scores = poses_reached(command, q, arm, dt_s=dt)
    np.testing.assert_allclose(scores, [2 / 3, 2 / 3, 1 / 3])
    command[22:] = away  # cut short: does not count
    np.testing.assert_allclose(poses_reached(command, q, arm, dt_s=dt), [2 / 3] * 3)
    with pytest.raises(FerryError, match=r"no pose was commanded for 2\.5 s"):
        poses_reached(command[:3], q[:3], arm, dt_s=dt)


def test_the_suites_command_the_same_poses_for_the_same_seeds():
    limits = TASK.command.limits()
    first, again = (
        episode_commands(limits, generators(2), steps=300, dt_s=0.02, space=space())
        for _ in range(2)
    )
    assert first.shape == (300, 2, 7)
    np.testing.assert_array_equal(first, again)
    changes = (first[1:] != first[:-1]).any(axis=2).sum(axis=0)
    assert (changes >= 1).all()


def test_pose_terms_of_three_robots_equal_each_alone_and_need_a_pose():
    arm = space().kinematics
    state = replace(RobotState.zeros(3, 7), q=np.random.default_rng(0).normal(size=(3, 7)))
    poses = space().draw(generators(3))
    terms = tuple(make_term(n, PANDA, command_dim=7) for n in ("pose_error", "pose_step"))
    spec = ObservationSpec(terms)
    builder = ObservationBuilder(spec, PANDA.q_default, 3, kinematics=arm)
    together = builder.build(state, poses, np.zeros((3, 7)))
    assert together.shape == (3, 13)
    for row in range(3):
        alone = ObservationBuilder(spec, PANDA.q_default, 1, kinematics=arm).build(
            replace(RobotState.zeros(1, 7), q=state.q[row : row + 1]),
            poses[row : row + 1],
            np.zeros((1, 7)),
        )
        np.testing.assert_allclose(alone[0], together[row], atol=1e-6)
    for term in terms:
        without = ObservationBuilder(ObservationSpec((term,)), PANDA.q_default, 3)
        with pytest.raises(FerryError, match=f"'{term.name}' needs a commanded pose"):
            without.build(state, poses, np.zeros((3, 7)))
