"""A filter with a clock, and N robots that stand in their default pose, for the tests of it."""

from __future__ import annotations

import dataclasses

import numpy as np

from deploy.safety import SafetyFilter, SafetyResult, SafetySettings, Verdict
from real.contract import PolicyContract
from real.signals import JointCommand, RobotState
from real.spec import RobotSpec, load_robot
from tests.deploy.stand_bundle import stand_contract

DT = 20_000_000  # ns
NOW = 1_000_000_000


def distinct_robot() -> RobotSpec:
    """A1 with gains that differ at every joint: a field on the wrong joint shows."""
    robot = load_robot("a1")
    joints = tuple(
        dataclasses.replace(j, kp=30.0 + 2.0 * i, kd=0.5 + 0.1 * i)
        for i, j in enumerate(robot.joints)
    )
    return dataclasses.replace(robot, joints=joints)


ROBOT = distinct_robot()
CONTRACT = stand_contract(ROBOT)
POSE = ROBOT.q_default


class Bench:
    """See the module. Fields are what the next states say; ages count from ``now``."""

    def __init__(self, num=1, *, contract: PolicyContract = CONTRACT, **changes) -> None:
        self.num, self.now = num, NOW
        self.filter = SafetyFilter(contract, num, settings=SafetySettings(**changes))
        self.q, self.dq = np.tile(POSE, (num, 1)), np.zeros((num, 12))
        self.quat = np.tile([1.0, 0.0, 0.0, 0.0], (num, 1))
        self.gyro = np.zeros((num, 3))
        self.temperature = self.voltage = self.height = None
        self.state_age = self.command_age = 0

    def state(self) -> RobotState:
        plain = RobotState.zeros(self.num, 12)
        return dataclasses.replace(
            plain,
            stamp_ns=np.full(self.num, self.now - self.state_age, dtype=np.int64),
            q=self.q.copy(),
            dq=self.dq.copy(),
            quat_wb=self.quat.copy(),
            gyro_b=self.gyro.copy(),
            temperature=self.temperature,
            voltage=self.voltage,
            height=self.height,
        )

    def command(self, q_des) -> JointCommand:
        stamp = np.full(self.num, self.now - self.command_age, dtype=np.int64)
        q_des = np.array(np.broadcast_to(q_des, (self.num, 12)), dtype=np.float64)
        # Gains that are not the contract's: they must not get through.
        return JointCommand.position(stamp, q_des, kp=np.full(12, 999.0), kd=np.full(12, 999.0))

    def send(self, q_des=None, *, advance=DT, **options):
        """One tick; None sends nothing."""
        self.now += advance
        command = None if q_des is None else self.command(q_des)
        return self.filter.filter(self.now, self.state(), command, **options)


def assert_safe(bench: Bench, result: SafetyResult, *, before) -> None:
    """Whatever went in: finite, inside the range or moving inwards, within torque, rate as told.

    Args:
        bench: as it was when the filter was asked.
        result: what came out.
        before: ``[N, A]`` targets sent last; a robot that stops where it is keeps them.
    """
    command, limits, state = result.command, bench.filter.limits, bench.state()
    for field in ("q_des", "dq_des", "tau_ff", "kp", "kd"):
        assert np.isfinite(getattr(command, field)).all()
    assert not command.dq_des.any()
    assert not command.tau_ff.any()
    damped = result.verdict == Verdict.DAMP
    assert (command.kp[damped] == 0.0).all()
    assert (command.kd[damped] == CONTRACT.damping_kd).all()
    assert (command.kp[~damped] == limits.kp).all()
    kept = (command.q_des == before).all(axis=1) & result.stop
    active = ~damped & ~kept
    out, q, dq = command.q_des[active], state.q[active], state.dq[active]
    low, high = np.minimum(limits.q_min, q), np.maximum(limits.q_max, q)
    assert ((out >= low - 1e-9) & (out <= high + 1e-9)).all()
    torque = limits.kp * (out - q) - limits.kd * dq
    slack = 1e-6 * (1.0 + np.abs(limits.kd * dq))
    at_end = (out <= low + 1e-9) | (out >= high - 1e-9)
    brakes = torque * np.sign(dq) <= slack
    assert ((np.abs(torque) <= limits.tau_max + slack) | (at_end & brakes)).all()
    fast = np.abs(dq) >= limits.dq_max
    assert (~fast | brakes | at_end).all()
