"""The look at one robot answers as the checks and limits of many robots do, to the last bit."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from deploy.checks import Check
from deploy.glance import Before, Glance
from deploy.safety import SafetySettings, Verdict
from deploy.safety_settings import bounds_of
from deploy.vitals import VitalSettings
from real.frames import from_rpy
from real.joint_limits import JointLimits, LimitKind
from tests.deploy.safety_bench import CONTRACT, DT, NOW, POSE, Bench

LIMITS = JointLimits.from_joints(CONTRACT.actuated)
JOINT = 4  # of the cases by hand


class Look:
    """A good state and command; a case changes one number of it."""

    def __init__(self, **changes) -> None:
        bounds = bounds_of(CONTRACT, LIMITS, SafetySettings(**changes))
        self.glance = Glance(CONTRACT, LIMITS, *bounds, columns=slice(None))
        self.bench = Bench()
        self.now, self.wish = NOW + DT, POSE.copy()
        self.last_q, self.target, self.velocity = (np.zeros((1, 12)) for _ in range(3))
        self.last_q[:] = self.target[:] = POSE

    def fine(self) -> bool:
        command = self.bench.command(self.wish)
        last = Before(self.last_q, np.array([NOW - DT]), self.target, self.velocity)
        return self.glance.fine(self.now, self.bench.state(), command, before=last, dt_s=DT * 1e-9)


def test_a_good_state_and_command_are_fine():
    assert Look().fine()


@pytest.mark.parametrize(
    ("field", "most"),
    [
        ("q", LIMITS.q_max[JOINT] + 0.25),
        ("q", LIMITS.q_min[JOINT] - 0.25),
        ("wish", LIMITS.q_high[JOINT]),
        ("wish", LIMITS.q_low[JOINT]),
    ],
)
def test_the_end_itself_is_fine_and_the_next_number_beyond_is_not(field, most):
    look = Look()
    # A motor that is strong and quick enough for any target: only the range is left.
    look.glance._reach[:] = look.glance._rate[:] = look.glance._accel[:] = 1e9
    beyond = math.nextafter(most, math.copysign(math.inf, most - POSE[JOINT]))
    for value, expected in ((most, True), (beyond, False)):
        (look.wish[None] if field == "wish" else look.bench.q)[0, JOINT] = value
        look.last_q[:] = look.bench.q
        assert look.fine() == expected


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_target_that_asks_for_a_little_too_much_is_not_fine(sign):
    for share, expected in ((1.0 - 1e-9, True), (1.0 + 1e-9, False)):
        look = Look()  # from rest a target gains accel dt in a period, and moves accel dt^2
        look.wish[JOINT] += sign * share * LIMITS.accel[JOINT] * (DT * 1e-9) ** 2
        assert look.fine() == expected
        look = Look()  # one that moves already: rate dt
        look.velocity[0, JOINT] = sign * LIMITS.rate[JOINT]
        look.wish[JOINT] += sign * share * LIMITS.rate[JOINT] * DT * 1e-9
        assert look.fine() == expected
        look = Look()  # at rest: tau = kp (q_des - q)
        look.wish[JOINT] += sign * share * LIMITS.tau_max[JOINT] / LIMITS.kp[JOINT]
        look.target[0, JOINT] = look.wish[JOINT]
        assert look.fine() == expected
        look = Look()  # q_des - q = (tau + kd dq) / kp
        look.bench.dq[0, JOINT] = 2.0 * sign
        torque = LIMITS.tau_max[JOINT] * share + LIMITS.kd[JOINT] * 2.0
        look.wish[JOINT] += sign * torque / LIMITS.kp[JOINT]
        look.target[0, JOINT] = look.wish[JOINT]
        assert look.fine() == expected


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_joint_that_moves_outwards_is_stopped_before_the_end(sign):
    end = LIMITS.q_high[JOINT] if sign > 0.0 else LIMITS.q_low[JOINT]
    distance = LIMITS.brake[JOINT] * 5.0**2
    for share, expected in ((1.0 + 1e-9, True), (1.0 - 1e-9, False)):
        look = Look()
        look.bench.dq[0, JOINT] = 5.0 * sign
        look.wish[JOINT] = end - sign * share * distance
        for array in (look.bench.q, look.last_q, look.target):
            array[0, JOINT] = look.wish[JOINT]
        assert look.fine() == expected


@pytest.mark.parametrize("part", ["q", "dq", "tau", "quat_wb", "gyro_b", "acc_b", "wish"])
def test_a_number_that_is_none_is_never_fine(part):
    look = Look(outside=None, jump_factor=None, tilt_rad=None)
    state = look.bench.state()
    changed = look.wish[None] if part == "wish" else getattr(state, part).copy()
    if part != "wish":
        look.bench.state = lambda: dataclasses.replace(state, **{part: changed})
    assert look.fine()
    for bad in (math.nan, math.inf, -math.inf, 1e60, -1e60):
        changed[0, -1] = bad
        with np.errstate(all="raise"):
            assert not look.fine()


@pytest.mark.parametrize("age", [3 * DT, -DT])
@pytest.mark.parametrize("field", ["state_age", "command_age"])
def test_ages_are_those_of_the_settings(field, age):
    look = Look()
    look.last_q[:] = POSE
    look.now, old = NOW + 10 * DT, 10 * DT
    look.bench.state_age = look.bench.command_age = -old
    assert look.fine()
    setattr(look.bench, field, age - old)
    assert look.fine()
    setattr(look.bench, field, age - old + (1 if age > 0 else -1))
    assert not look.fine()


def test_a_base_in_the_soft_zone_and_a_quaternion_of_zeros_are_not_fine():
    look = Look()
    for tilt, expected in ((0.699, True), (0.701, False)):
        look.bench.quat = from_rpy([[tilt, 0.0, 0.3]])
        assert look.fine() == expected
    look.bench.quat = np.zeros((1, 4))
    assert not look.fine()


def test_a_joint_that_jumps_and_one_at_which_torque_fades_are_not_fine():
    look = Look()
    look.bench.q[0, JOINT] += 0.7  # in half a period: 0.1 + 2 * 28.6 rad/s * 0.01 s = 0.67 rad
    assert not look.fine()
    look = Look()
    look.bench.dq[0, JOINT] = -0.91 * LIMITS.dq_max[JOINT]
    look.wish[JOINT] -= 0.02  # less than the damping that holds against it
    assert not look.fine()


def change(bench, field, value, *, joint=slice(None)):
    array = getattr(bench, field)
    array[0, joint] = value


#: What brings every fault and limit about, from a robot whose commands passed at a glance.
#: A check that is not named here is one that the look may not know of, and would let pass.
CASES = {
    Check.CLOCK: lambda b: b.send(POSE, advance=0),
    Check.STATE_STALE: lambda b: setattr(b, "state_age", 10 * DT),
    Check.STATE_NOT_FINITE: lambda b: change(b, "dq", math.nan, joint=JOINT),
    Check.FALL: lambda b: change(b, "quat", from_rpy([1.2, 0.0, 0.0])),
    Check.TILT: lambda b: change(b, "quat", from_rpy([0.8, 0.0, 0.0])),
    Check.HEIGHT: lambda b: setattr(b, "height", np.array([0.1])),
    Check.GYRO: lambda b: change(b, "gyro", 200.0),
    Check.TEMPERATURE: lambda b: setattr(b, "temperature", np.full((1, 12), 90.0)),
    Check.VOLTAGE: lambda b: setattr(b, "voltage", np.array([10.0])),
    Check.OUTSIDE: lambda b: change(b, "q", LIMITS.q_max[JOINT] + 0.3, joint=JOINT),
    Check.JUMP: lambda b: change(b, "q", POSE[JOINT] + 1.4, joint=JOINT),
    Check.COMMAND_STALE: lambda b: setattr(b, "command_age", 10 * DT),
    Check.COMMAND_NOT_FINITE: lambda b: b.send(np.full(12, math.nan)),
    Check.COMMAND_IMPLAUSIBLE: lambda b: b.send(POSE + 100.0),
    LimitKind.POSITION: lambda b: b.send(POSE + 3.0),
    LimitKind.ACCELERATION: lambda b: b.send(POSE + 3.0),
    LimitKind.RATE: lambda b: (b.send(POSE + 0.4), b.send(POSE + 3.0))[1],
    LimitKind.TORQUE: lambda b: (b.send(POSE + 0.5), b.send(POSE + 1.0))[1],
    LimitKind.VELOCITY: lambda b: (b.send(POSE + 0.4), change(b, "dq", 28.5), b.send(POSE + 0.9))[
        2
    ],
}
#: Those of the modes and of the nodes, and of a box, with which the filter does not look.
ELSEWHERE = {Check.EXCEPTION, Check.MODE, Check.RAMP, Check.WORKSPACE}


@pytest.mark.parametrize("kind", [k for k in (*Check, *LimitKind) if k not in ELSEWHERE])
def test_every_fault_and_limit_is_still_found_after_a_look(kind):
    bench = Bench(vitals=VitalSettings(height_min=0.2, voltage_min=20.0))
    for _ in range(3):
        assert bench.send(POSE).verdict[0] == Verdict.PASS
    result = CASES[kind](bench)
    if result is None:
        result = bench.send(POSE)
    assert kind in {violation.kind for violation in result.violations}


def test_a_stream_of_states_is_answered_as_that_of_two_robots():
    rng = np.random.default_rng(4)
    one, two = Bench(1), Bench(2)  # two are never looked at
    seen: list[Verdict] = []
    for tick in range(400):
        big = rng.choice([0.02, 0.02, 0.02, 0.4])
        q, dq = POSE + rng.normal(0.0, big, 12), rng.normal(0.0, 50.0 * big, 12)
        quat = from_rpy(rng.normal(0.0, big, 3) * [1.0, 1.0, 0.0])
        wish = POSE + rng.normal(0.0, 3.0 * big, 12)
        if rng.random() < 0.03:
            wish[rng.integers(12)] = rng.choice([math.nan, math.inf, 1e9])
        ages = rng.integers(-DT // 2, 2 * DT, 2) if rng.random() < 0.05 else (0, 0)
        advance = rng.choice([DT, DT, DT, DT // 4, DT + 1234, 4 * DT])
        answers = []
        for bench in (one, two):
            bench.q[:], bench.dq[:], bench.quat[:] = q, dq, quat
            bench.state_age, bench.command_age = (int(age) for age in ages)
            answers.append(bench.send(wish, advance=int(advance)))
        alone, among = answers
        np.testing.assert_array_equal(alone.command.q_des[0], among.command.q_des[0])
        np.testing.assert_array_equal(alone.command.kp[0], among.command.kp[0])
        assert alone.verdict[0] == among.verdict[0]
        assert alone.stop[0] == among.stop[0]
        if tick % 8 == 0:  # words take longer than all the rest
            told = [str(v) for v in among.violations if v.world == 0]
            assert [str(v) for v in alone.violations] == told
        seen.append(Verdict(int(alone.verdict[0])))
    assert {Verdict.PASS, Verdict.CLAMPED, Verdict.HOLD, Verdict.DAMP} == set(seen)
    assert seen.count(Verdict.PASS) > 40


def test_what_passed_at_a_glance_is_what_the_next_tick_starts_from():
    bench = Bench()
    bench.send(POSE)
    wish = POSE.copy()
    wish[JOINT] += 0.01
    passed = bench.send(wish)
    assert (passed.verdict[0], passed.violations, passed.warned) == (Verdict.PASS, [], False)
    held = bench.send(np.full(12, math.nan))
    np.testing.assert_array_equal(held.command.q_des[0], wish)
    # The state is the caller's, who may write over it.
    bench.now += DT
    state = bench.state()
    bench.filter.filter(bench.now, state, bench.command(wish))
    state.q[:] = 99.0
    assert not bench.send(wish).violations
