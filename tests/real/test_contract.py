from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.agreement import not_numbers
from real.action import ActionSpec
from real.contract import (
    CONTRACT_VERSION,
    CommandLimits,
    PolicyContract,
    RobotContract,
)
from real.errors import ContractMismatch, FerryError
from real.observation import ObservationSpec, make_term
from real.spec import RobotSpec, load_robot

COMMAND = CommandLimits(
    names=("vx", "vy", "wz"),
    low=(-0.8, -0.4, -1.0),
    high=(1.2, 0.4, 1.0),
    units=("m/s", "m/s", "rad/s"),
)


def distinct(robot: RobotSpec) -> RobotSpec:
    """The robot with gains that differ at every joint, so that none can stand for another."""
    joints = tuple(
        dataclasses.replace(j, kp=30.0 + i / 3.0, kd=1.0 + i / 7.0)
        for i, j in enumerate(robot.joints)
    )
    return dataclasses.replace(robot, joints=joints)


def contract_of(robot: RobotSpec, **changes) -> PolicyContract:
    names = ("base_ang_vel", "projected_gravity", "command", "joint_pos", "prev_action")
    terms = tuple(
        make_term(n, robot, command_dim=3, scale=1.0 / 3.0, clip=5.0, history=2) for n in names
    )
    contract = PolicyContract.of_robot(
        robot,
        observation=ObservationSpec(terms=terms),
        action=ActionSpec.from_robot(robot, clip=5.0),
        command=COMMAND,
        config_hash="c0ffee",
        git_sha="abc-dirty",
        policy_version=17,
        provenance={"command": "ferry train a1_walk", "seed": "0"},
    )
    return dataclasses.replace(contract, **changes)


@pytest.fixture(scope="module")
def robot() -> RobotSpec:
    return distinct(load_robot("a1"))


def test_a_contract_survives_json_without_losing_a_bit(robot):
    contract = contract_of(robot)
    back = PolicyContract.from_json(contract.to_json())
    assert back == contract
    assert back.digest() == contract.digest()
    # A third has no short decimal form: rounding to three decimals would show here.
    assert back.actuated[1].kp == 30.0 + 1.0 / 3.0


@pytest.mark.slow
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_double_survives(value):
    joint = dataclasses.replace(load_robot("a1").joints[0], tau_max=value)
    text = json.dumps(dataclasses.asdict(joint))
    assert json.loads(text)["tau_max"] == value


def test_infinite_limits_of_a_joint_without_a_stop_survive(robot):
    joints = list(robot.joints)
    joints[2] = dataclasses.replace(joints[2], q_min=-math.inf, q_max=math.inf)
    contract = contract_of(robot, joints=tuple(joints))
    assert PolicyContract.from_json(contract.to_json()) == contract


def test_a_contract_needs_complete_limits(robot):
    joints = list(robot.joints)
    joints[4] = dataclasses.replace(joints[4], tau_max=math.nan)
    incomplete = dataclasses.replace(robot, joints=tuple(joints))
    with pytest.raises(FerryError, match=r"'FL_upper_joint': tau_max is not given"):
        contract_of(incomplete)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": CONTRACT_VERSION + 1}, "schema version 2"),
        ({"schema_version": None}, "schema version None"),
        ({"unheard_of": 1}, "unheard_of"),
        ({"joints": [{"name": "x"}]}, r"joints\.0\.kind: Field required"),
        ({"observation": {}}, "terms"),
    ],
)
def test_a_text_that_does_not_fit_is_refused(robot, change, message):
    body = {**json.loads(contract_of(robot).to_json()), **change}
    with pytest.raises(ContractMismatch, match=message):
        PolicyContract.from_json(json.dumps(body))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"words"', "3"])
def test_a_text_that_is_no_contract_is_refused(text):
    with pytest.raises(ContractMismatch):
        PolicyContract.from_json(text)
    with pytest.raises(ContractMismatch):
        RobotContract.from_json(text)


# ------------------------------------------------------------------ robot and policy


def test_a_missing_value_is_named_on_one_line(robot):
    body = json.loads(contract_of(robot).to_json())
    del body["joints"][2]["kp"]
    with pytest.raises(ContractMismatch, match=r"not readable: joints\.2\.kp: Field required$"):
        PolicyContract.from_json(json.dumps(body))


def test_a_robot_contract_survives_json_and_notices_a_change(robot):
    reported = RobotContract.from_spec(robot)
    text = reported.to_json()
    assert RobotContract.from_json(text) == reported
    changed = text.replace("30.0", "31.0", 1)
    assert changed != text
    with pytest.raises(ContractMismatch, match="hash"):
        RobotContract.from_json(changed)


def test_limits_that_a_robot_knows_survive_json_and_what_it_does_not_know_is_none(robot):
    joints = list(robot.joints)
    joints[1] = dataclasses.replace(joints[1], tau_max=math.nan, q_max=math.inf, dq_max=7.0 / 3.0)
    reported = RobotContract.from_spec(dataclasses.replace(robot, joints=tuple(joints)))
    assert reported.tau_max[1] is None
    assert reported.tau_max[0] == robot.joints[0].tau_max
    back = RobotContract.from_json(reported.to_json())
    assert back == reported
    assert (back.dq_max[1], back.q_max[1]) == (7.0 / 3.0, math.inf)


def test_a_policy_fits_the_robot_it_was_trained_for(robot):
    assert contract_of(robot).differences(RobotContract.from_spec(robot)) == []
    contract_of(robot).require_match(RobotContract.from_spec(robot))


def test_another_joint_order_is_no_difference_since_joints_are_mapped_by_name(robot):
    order = np.random.default_rng(2).permutation(12)
    joints = tuple(robot.joints[i] for i in order)
    shuffled = RobotContract.from_spec(dataclasses.replace(robot, joints=joints))
    assert shuffled.joints != robot.joint_names
    assert contract_of(robot).differences(shuffled) == []


def test_gains_that_moved_to_another_joint_are_named_joint_by_joint(robot):
    reported = RobotContract.from_spec(robot)
    kp = list(reported.kp)
    kp[3], kp[7] = kp[7], kp[3]
    found = contract_of(robot).differences(dataclasses.replace(reported, kp=tuple(kp)))
    assert len(found) == 2
    assert "'FL_hip_joint' kp: policy has 31.0, robot reports" in found[0]
    assert "'RR_upper_joint' kp" in found[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"robot": "a2"}, "robot: policy has 'a1', robot reports 'a2'"),
        ({"control_dt_s": 0.005}, "control_dt_s"),
        ({"imu_link": "trunk"}, "imu_link"),
        ({"base_link": "pelvis"}, "base_link"),
        ({"safe_stop": "hold"}, "safe_stop"),
        ({"damping_kd": 1.0}, "damping_kd"),
    ],
)
def test_every_other_difference_is_named(robot, change, words):
    reported = dataclasses.replace(RobotContract.from_spec(robot), **change)
    with pytest.raises(ContractMismatch) as error:
        contract_of(robot).require_match(reported)
    assert words in str(error.value)


def test_missing_and_extra_joints_are_named(robot):
    reported = RobotContract.from_spec(robot)
    renamed = tuple("tail_joint" if n == "RL_hip_joint" else n for n in reported.joints)
    found = contract_of(robot).differences(
        dataclasses.replace(reported, joints=renamed, actuated=renamed)
    )
    assert "joint 'RL_hip_joint': the robot does not report it" in found
    assert "joint 'tail_joint': the policy does not know it" in found


def test_a_joint_that_is_passive_on_the_robot_is_named(robot):
    reported = RobotContract.from_spec(robot)
    fewer = dataclasses.replace(
        reported, actuated=reported.actuated[1:], kp=reported.kp[1:], kd=reported.kd[1:]
    )
    found = contract_of(robot).differences(fewer)
    assert found == ["joint 'FR_hip_joint': actuated in the policy, passive on the robot"]


def test_all_differences_come_at_once(robot):
    reported = dataclasses.replace(
        RobotContract.from_spec(robot), robot="a2", control_dt_s=0.01, damping_kd=0.0
    )
    assert len(contract_of(robot).differences(reported)) == 3


def test_numbers_that_are_nan_are_named(robot):
    joints = list(robot.joints)
    joints[5] = dataclasses.replace(joints[5], kd=math.nan)
    action = dataclasses.replace(ActionSpec.from_robot(robot, clip=1.0), offset=(math.nan,) * 12)
    bad = not_numbers(contract_of(robot, joints=tuple(joints), action=action))
    assert bad == ["FL_lower_joint.kd", "action.offset"]


def test_a_robot_that_contradicts_itself_is_refused_by_name(robot):
    """Such a text may come over the wire; it must not end in an exception of another kind."""
    reported = RobotContract.from_spec(robot)
    name = reported.joints[4]
    odd = dataclasses.replace(
        reported, joints=(*reported.joints, name), actuated=(*reported.actuated, name)
    )
    found = contract_of(robot).differences(odd)
    assert found[0] == f"joint {name!r}: the robot reports it twice"
    assert found[1] == f"motor of joint {name!r}: the robot reports it twice"
    assert found[2] == "gains: 12 kp, 12 kd, 13 motors"


def test_a_motor_that_the_policy_does_not_know_of_is_a_difference(robot):
    joints = list(robot.joints)
    joints[3] = dataclasses.replace(joints[3], actuated=False)
    mine = contract_of(dataclasses.replace(robot, joints=tuple(joints)))
    assert mine.differences(RobotContract.from_spec(robot)) == [
        f"joint {joints[3].name!r}: passive in the policy, actuated on the robot"
    ]
