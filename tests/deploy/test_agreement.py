from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from deploy.agreement import agree, changes, require_imu
from deploy.safety_pipeline import SafetyPipeline
from real.contract import RobotContract
from real.errors import ContractMismatch, FerryError
from real.signals import JointCommand, RobotState
from real.spec import load_robot
from tests.deploy.stand_bundle import other_gain, stand_contract

A1 = load_robot("a1")
POLICY = stand_contract()
ROBOT = RobotContract.from_spec(A1)
NAMES = A1.joint_names


def with_limit(name: str, **values: float | None) -> RobotContract:
    """The robot with other limits of the seventh joint of its own, shuffled order."""
    order = np.random.default_rng(3).permutation(12)
    shuffled = RobotContract.from_spec(replace(A1, joints=tuple(A1.joints[i] for i in order)))
    at = shuffled.actuated.index(name)
    columns = {}
    for key, value in values.items():
        column = list(getattr(shuffled, key))
        column[at] = value
        columns[key] = tuple(column)
    return replace(shuffled, **columns)


def test_a_robot_with_the_same_limits_changes_nothing():
    enforced, notes = agree(POLICY, ROBOT)
    assert (enforced, notes) == (POLICY, [])


def test_the_tighter_of_two_limits_is_enforced_whichever_side_it_is_on():
    joint = A1.joints[7]
    robot = with_limit(
        NAMES[7],
        q_min=joint.q_min + 0.2,
        q_max=joint.q_max + 0.5,
        dq_max=joint.dq_max / 2.0,
        tau_max=joint.tau_max * 2.0,
    )
    enforced, notes = agree(POLICY, robot)
    expected = replace(joint, q_min=joint.q_min + 0.2, dq_max=joint.dq_max / 2.0)
    assert enforced.joints[7] == expected
    assert enforced.joints[:7] == POLICY.joints[:7]
    assert enforced.joints[8:] == POLICY.joints[8:]
    # The wider ones are told as well, although they change nothing.
    assert [n.split(" of ")[0] for n in notes] == ["q_min", "q_max", "dq_max", "tau_max"]
    assert all(NAMES[7] in n for n in notes)
    asked, theirs = joint.tau_max, joint.tau_max * 2.0
    assert notes[3].endswith(
        f"policy has {asked:g}, robot reports {theirs:g}; {asked:g} is enforced"
    )


def test_what_the_robot_does_not_know_or_does_not_limit_leaves_the_policys_limit():
    robot = with_limit(NAMES[7], tau_max=None, q_max=math.inf)
    assert agree(POLICY, robot)[0] == POLICY
    silent = replace(ROBOT, q_min=(), q_max=(), dq_max=(), tau_max=())
    assert agree(POLICY, silent) == (POLICY, [])


def test_limits_that_fit_no_joint_are_refused():
    with pytest.raises(ContractMismatch, match="11 values of dq_max for 12 joints"):
        agree(POLICY, replace(ROBOT, dq_max=ROBOT.dq_max[1:]))
    with pytest.raises(ContractMismatch, match="not trained for this robot"):
        agree(POLICY, replace(ROBOT, damping_kd=1.0))


def test_a_running_filter_takes_the_tighter_limit_and_keeps_an_emergency_stop():
    pipeline = SafetyPipeline(POLICY, 1)
    state = replace(RobotState.zeros(1, 12), q=A1.q_default[None], stamp_ns=np.array([10**9]))
    pipeline.estop()
    pipeline.enforce(agree(POLICY, with_limit(NAMES[7], q_max=A1.q_default[7] + 0.1))[0])
    assert [v.note for v in pipeline.arm(10**9, state)] == ["mode is ESTOP: reset it first"]
    q_des = A1.q_default[None] + 0.3
    kp = np.array([j.kp for j in A1.joints])
    sent = JointCommand.position(np.array([10**9]), q_des, kp=kp, kd=kp)
    result = pipeline.filter.filter(10**9, state, sent)
    assert result.command.q_des[0, 7] == pytest.approx(A1.q_default[7] + 0.1 - 0.01)
    # Limits that leave no room are a refusal, and the old ones stay.
    before = pipeline.filter
    with pytest.raises(FerryError, match=NAMES[7]):
        pipeline.enforce(agree(POLICY, with_limit(NAMES[7], q_max=A1.joints[7].q_min - 1.0))[0])
    assert pipeline.filter is before


def test_a_floating_base_that_nobody_can_see_fall_is_refused_and_a_fixed_one_is_not():
    blind = replace(POLICY, imu_link=None)
    with pytest.raises(FerryError, match="floating base and no imu_link"):
        agree(blind, replace(ROBOT, imu_link=None))
    require_imu(replace(blind, base="fixed"))


def test_a_policy_of_the_same_contract_may_come_from_elsewhere():
    other = replace(POLICY, policy_version=9, config_hash="x", git_sha="y", provenance={"a": "b"})
    assert changes(POLICY, other) == []


def test_every_change_of_what_a_policy_needs_or_means_is_named():
    assert changes(POLICY, other_gain(POLICY, 55.0)) == [
        "joint 'FL_hip_joint' kp: running 40.0, new 55.0"
    ]
    assert changes(POLICY, replace(POLICY, control_dt_s=0.01)) == [
        "control_dt_s: running 0.02, new 0.01"
    ]
    (found,) = changes(POLICY, stand_contract(history=2))
    assert found.startswith("observation:")
    action = replace(POLICY.action, scale=(0.5,) * 12)
    (found,) = changes(POLICY, replace(POLICY, action=action))
    assert found.startswith("action:")
    gone = changes(POLICY, replace(POLICY, joints=POLICY.joints[1:]))
    assert any("FR_hip_joint" in line for line in gone)
