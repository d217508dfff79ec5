"""The filter's laws for every shipped robot: legs, arms and a cart with a pole without a motor."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from deploy.safety import SafetyFilter, SafetySettings, Verdict
from real.signals import JointCommand, RobotState
from real.spec import load_robot
from tests.deploy.stand_bundle import stand_contract

ROBOTS = ("a1", "laikago", "mini_cheetah", "panda", "iiwa", "cartpole")
DT, NUM, TICKS = 20_000_000, 60, 8
OFF = SafetySettings(outside=None, jump_factor=None, gyro_slack=None)


def cases(robot, rng):
    """``(q, dq, q_des)`` by joint name: near and beyond the ends, with some that are no numbers."""
    for _ in range(TICKS):
        fields = {}
        for joint in robot.joints:
            q = joint.q_default + rng.normal(0.0, 0.6, NUM)
            # A joint at either end, to the last bit, and the next number beyond it.
            if np.isfinite([joint.q_min, joint.q_max]).all():
                ends = [joint.q_min, joint.q_max, np.nextafter(joint.q_max, np.inf)]
                q = np.where(rng.random(NUM) < 0.2, rng.choice(ends, NUM), q)
            dq = rng.normal(0.0, 1.0, NUM) * 10.0 ** rng.uniform(-2.0, 2.0, NUM)
            wish = joint.q_default + rng.normal(0.0, 2.0, NUM)
            wish[rng.random(NUM) < 0.02] = rng.choice([np.nan, np.inf, -np.inf])
            fields[joint.name] = (q, dq, wish)
        yield fields


def answers(robot, *, seed):
    """What the filter sends to the robot in ``TICKS`` ticks, by joint name, and the limits."""
    rng = np.random.default_rng(seed)
    named = sorted(robot.joints, key=lambda j: j.name)
    stream = list(cases(dataclasses.replace(robot, joints=tuple(named)), rng))
    contract = stand_contract(robot)
    gate = SafetyFilter(contract, NUM, settings=OFF)
    motors = [j.name for j in robot.joints if j.actuated]
    out = []
    for tick, fields in enumerate(stream):
        now = np.full(NUM, 10**9 + tick * DT)
        part = [np.stack([fields[n][i] for n in robot.joint_names], axis=1) for i in (0, 1)]
        plain = RobotState.zeros(NUM, len(robot.joints))
        state = dataclasses.replace(plain, stamp_ns=now, q=part[0], dq=part[1])
        wish = np.stack([fields[n][2] for n in motors], axis=1)
        ones = np.ones(len(motors))
        command = JointCommand.position(now, wish, kp=ones, kd=ones)
        result = gate.filter(int(now[0]), state, command)
        out.append((result, {n: result.command.q_des[:, i] for i, n in enumerate(motors)}))
    return stream, out, gate.limits


@pytest.mark.parametrize("name", ROBOTS)
def test_every_robot_is_kept_within_its_limits_in_whatever_order_its_joints_come(name):
    robot = load_robot(name)
    stream, out, limits = answers(robot, seed=3)
    rng = np.random.default_rng(4)
    shuffled = tuple(robot.joints[i] for i in rng.permutation(len(robot.joints)))
    _, other, _ = answers(dataclasses.replace(robot, joints=shuffled), seed=3)
    clamped = 0
    before = {n: np.full(NUM, np.nan) for n in limits.names}
    for fields, (result, sent), (again, permuted) in zip(stream, out, other, strict=True):
        assert np.array_equal(result.verdict, again.verdict)
        clamped += int((result.verdict == Verdict.CLAMPED).sum())
        moved = result.verdict != Verdict.DAMP
        stays = result.stop | (result.verdict == Verdict.HOLD)
        for i, joint in enumerate(limits.names):
            q, dq, _wish = fields[joint]
            target = sent[joint]
            np.testing.assert_allclose(target, permuted[joint], rtol=0.0, atol=1e-12)
            assert np.isfinite(target).all()
            low, high = np.minimum(limits.q_min[i], q), np.maximum(limits.q_max[i], q)
            kept = ~moved | (stays & (target == before[joint]))
            inside = (target >= low) & (target <= high)
            assert (inside | kept).all()
            torque = limits.kp[i] * (target - q) - limits.kd[i] * dq
            slack = 1e-6 * (1.0 + np.abs(limits.kd[i] * dq))
            end = (target <= low) | (target >= high)
            fits = np.abs(torque) <= limits.tau_max[i] + slack
            assert (fits | (end & (torque * np.sign(dq) <= slack)) | kept).all()
            before[joint] = np.where(moved, target, np.nan)
    assert clamped > NUM
