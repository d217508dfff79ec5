"""An arm's policy behind the controller: poses as commands, targets that count from the joints."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from deploy.contract_check import contract_problems
from deploy.controller import Controller
from deploy.safety import SafetySettings
from deploy.safety_pipeline import SafetyPipeline
from real.action import ActionSpec
from real.contract import CommandLimits, PolicyContract
from real.kinematics import Chain, ChainJoint
from real.observation import ObservationSpec, ObsTerm
from real.reach import POSE_NAMES, POSE_UNITS, Reach, ReachSpace
from real.signals import RobotState
from real.spec import load_robot


class Follow:
    """A policy that does what its joint step says: one observation term, copied to the action."""

    def __init__(self, contract):
        self.contract = contract

    def infer(self, observation):
        size = self.contract.action.dim
        return observation[:, :size].copy(), np.full((len(observation), size), -1.0, np.float32)


def arm_contract():
    robot = load_robot("panda")
    identity = (1.0, 0.0, 0.0, 0.0)
    # Not the Panda's chain: two of its joints as an arm in a plane, out of the robot's order.
    chain = Chain(
        link="tip",
        joints=(
            ChainJoint("panda_joint3", "hinge", (0.0, 0.0, 0.2), identity, (0.0, 0.0, 1.0)),
            ChainJoint("panda_joint1", "hinge", (0.5, 0.0, 0.0), identity, (0.0, 0.0, 1.0)),
        ),
        position=(0.4, 0.0, 0.0),
        quat=identity,
    )
    term = ObsTerm("pose_step", 7, "rad", 10.0, None, 1, "pose_step")
    return PolicyContract.of_robot(
        robot,
        observation=ObservationSpec((term,)),
        action=ActionSpec.from_robot(robot, clip=4.0, kind="joint_position_delta"),
        command=CommandLimits(
            names=POSE_NAMES,
            low=(-1.0, -1.0, 0.0, *(-1.0,) * 4),
            high=(1.0, 1.0, 1.0, *(1.0,) * 4),
            units=POSE_UNITS,
        ),
        reach=Reach(chain, 0.5),
    )


def test_an_arm_is_brought_to_the_commanded_pose_and_home_if_nothing_is_commanded():
    contract = arm_contract()
    assert contract_problems(contract) == []
    again = PolicyContract.from_json(contract.to_json())
    assert again == contract  # the way to the end effector crosses whole
    controller = Controller(Follow(again), 2, settings=SafetySettings(ramp_s=0.0))
    q = np.tile([j.q_default for j in contract.joints], (2, 1))
    wanted = q[0].copy()
    wanted[[0, 2]] += [0.3, -0.2]
    space = ReachSpace(contract.reach, contract.joints, low=[-1] * 3, high=[1] * 3)
    goal = np.concatenate(space.kinematics.pose(wanted[None]), axis=1)[0]
    q[:, 0] += 0.1
    command = np.stack([goal, np.zeros(7)])
    state = replace(RobotState.zeros(2, 7), q=q)
    assert controller.arm(0, state) == []
    for tick in range(1, 300):
        out = controller.tick(tick * 20_000_000, state, command)
        assert not out.errors
        # An ideal servo: joints are where they were told to be. Targets move at the joints' speed.
        assert (np.abs(out.command.q_des - state.q) <= 0.02 * 2.61 + 1e-9).all()
        state = replace(state, q=out.command.q_des.copy(), stamp_ns=np.full(2, tick * 20_000_000))
    np.testing.assert_allclose(state.q[0], wanted, atol=0.02)
    rest = space.kinematics.pose(np.array([[j.q_default for j in contract.joints]]))
    here = space.kinematics.pose(state.q[1:])
    np.testing.assert_allclose(here[0], rest[0], atol=0.02)


def test_the_ramp_ends_in_the_default_pose_also_where_actions_count_from_the_joints():
    contract = arm_contract()
    default = np.array([[j.q_default for j in contract.joints]])
    safety = SafetyPipeline(contract, 1, settings=SafetySettings(ramp_s=0.5))
    state = replace(RobotState.zeros(1, 7), q=default + 0.1)
    assert safety.arm(0, state) == []
    np.testing.assert_allclose(safety.modes.ramp_target(250_000_000), default + 0.05)
    np.testing.assert_allclose(safety.modes.ramp_target(500_000_000), default)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reach": None}, "observation reads a pose error, but no pose is commanded"),
        ({"command": CommandLimits((), (), (), ())}, "its command is not x, y, z, qw"),
    ],
)
def test_a_contract_that_cannot_reach_is_refused(change, message):
    problems = contract_problems(replace(arm_contract(), **change))
    assert any(message in problem for problem in problems)
