from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from deploy.checks import Check, Violation
from deploy.safety import SafetyFilter, SafetySettings, Verdict
from real.contract import PolicyContract
from real.errors import FerryError
from real.frames import from_rpy
from real.joint_limits import LimitKind, LimitSettings
from real.signals import JointCommand, RobotState
from tests.deploy.safety_bench import CONTRACT, DT, NOW, POSE, ROBOT, Bench
from tests.deploy.stand_bundle import stand_contract

NAMES = ROBOT.joint_names
KNEE = NAMES.index("FL_lower_joint")


def holding(contract: PolicyContract = CONTRACT) -> PolicyContract:
    return dataclasses.replace(contract, safe_stop="hold")


def verdicts(result) -> list[Verdict]:
    return [Verdict(v) for v in result.verdict]


def kinds(result) -> set[str]:
    return {v.kind for v in result.violations}


# ------------------------------------------------------------------ what passes


def test_a_good_command_passes_unchanged_under_the_contracts_gains():
    bench = Bench()
    result = bench.send(POSE + 0.05)
    assert verdicts(result) == [Verdict.PASS]
    assert np.array_equal(result.command.q_des[0], POSE + 0.05)
    assert np.array_equal(result.command.kp[0], ROBOT.actuated_array("kp"))
    assert np.array_equal(result.command.kd[0], ROBOT.actuated_array("kd"))
    assert not result.command.dq_des.any()
    assert not result.command.tau_ff.any()
    assert result.violations == []
    assert not result.stop.any()


def test_verdicts_are_ordered_from_harmless_to_severe():
    assert Verdict.PASS < Verdict.CLAMPED < Verdict.HOLD < Verdict.DAMP


def test_a_limited_command_names_joint_value_and_limit():
    bench = Bench()
    q_des = POSE.copy()
    q_des[KNEE] = -0.5  # the range ends at -0.916
    result = bench.send(q_des)
    assert verdicts(result) == [Verdict.CLAMPED]
    high = ROBOT.joints[KNEE].q_max - SafetySettings().limits.margin
    assert result.violations[0] == Violation(
        LimitKind.POSITION, "FL_lower_joint", -0.5, pytest.approx(high), 0
    )
    assert str(result.violations[0]) == "position of FL_lower_joint: -0.5 rad, limit -0.9263 rad"
    assert [v.joint for v in result.violations if v.kind == LimitKind.POSITION] == [NAMES[KNEE]]


def test_predicted_torque_is_limited_with_the_gains_of_each_joint():
    # Only the rate and range of a joint with a wide range would be in the way: switch them off.
    off = ("rate", "acceleration", "position")
    limits = LimitSettings(disabled=dict.fromkeys(off, ("all",)))
    bench = Bench(limits=limits, outside=None, implausible=100.0)
    bench.dq[:] = 0.5
    result = bench.send(POSE + 3.0)
    q, dq = bench.q[0], bench.dq[0]
    torque = ROBOT.actuated_array("kp") * (result.command.q_des[0] - q)
    torque -= ROBOT.actuated_array("kd") * dq
    assert np.allclose(torque, ROBOT.actuated_array("tau_max"))
    found = {v.joint: v for v in result.violations}
    assert set(found) == set(NAMES)
    for joint in ROBOT.joints:
        assert found[joint.name].kind == LimitKind.TORQUE
        assert found[joint.name].value == pytest.approx(3.0 * joint.kp - 0.5 * joint.kd)
        assert found[joint.name].limit == pytest.approx(joint.tau_max)


def test_the_first_target_starts_from_the_measured_pose_and_not_from_a_default():
    bench = Bench(limits=LimitSettings(target_rate=5.0))
    bench.q[0] = POSE - 0.6
    result = bench.send(POSE)
    # 5 rad/s for 0.02 s from where the joints are.
    assert np.allclose(result.command.q_des[0], POSE - 0.6 + 0.1)


def test_targets_never_move_faster_than_the_rate_however_long_the_pause_was():
    bench = Bench(limits=LimitSettings(target_rate=5.0))
    bench.send(POSE)
    # After half a second without a tick, no more than two periods' worth.
    result = bench.send(POSE + 0.9 * np.sign(-POSE), advance=500_000_000)
    assert np.abs(result.command.q_des[0] - POSE).max() == pytest.approx(5.0 * 0.04)


def test_after_a_reset_the_target_starts_from_the_pose_that_is_measured_then():
    bench = Bench(2, limits=LimitSettings(target_rate=5.0))
    bench.send(POSE)
    bench.q += 0.3
    bench.filter.reset(np.array([1]))
    result = bench.send(POSE)
    assert np.allclose(result.command.q_des[0], POSE)
    assert np.allclose(result.command.q_des[1], POSE + 0.3 - 0.1)


def test_joints_in_another_order_give_the_same_answers_by_name():
    order = np.random.default_rng(8).permutation(12)
    mixed = dataclasses.replace(ROBOT, joints=tuple(ROBOT.joints[i] for i in order))
    plain, other = Bench(), Bench(contract=stand_contract(mixed))
    rng = np.random.default_rng(1)
    for _ in range(20):
        q = POSE + rng.normal(0.0, 0.2, 12)
        dq, q_des = rng.normal(0.0, 8.0, 12), POSE + rng.normal(0.0, 0.5, 12)
        plain.q[0], plain.dq[0] = q, dq
        other.q[0], other.dq[0] = q[order], dq[order]
        a, b = plain.send(q_des), other.send(q_des[order])
        for field in ("q_des", "kp", "kd"):
            first, second = getattr(a.command, field), getattr(b.command, field)
            assert np.array_equal(first[0, order], second[0])
        assert {(v.kind, v.joint) for v in a.violations} == {
            (v.kind, v.joint) for v in b.violations
        }


def test_each_of_many_robots_gets_what_it_would_get_alone():
    rng = np.random.default_rng(9)
    many, alone = Bench(5), [Bench() for _ in range(5)]
    for _ in range(10):
        many.q = POSE + rng.normal(0.0, 0.1, (5, 12))
        many.dq = rng.normal(0.0, 5.0, (5, 12))
        q_des = POSE + rng.normal(0.0, 0.4, (5, 12))
        q_des[3] = math.nan if rng.random() < 0.3 else q_des[3]
        together = many.send(q_des)
        for i, bench in enumerate(alone):
            bench.q[0], bench.dq[0] = many.q[i], many.dq[i]
            single = bench.send(q_des[i])
            assert np.array_equal(single.command.q_des[0], together.command.q_des[i])
            assert single.verdict[0] == together.verdict[i]


# ------------------------------------------------------------------ bad commands


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (math.nan, Check.COMMAND_NOT_FINITE),
        (math.inf, Check.COMMAND_NOT_FINITE),
        (-math.inf, Check.COMMAND_NOT_FINITE),
        (1e9, Check.COMMAND_IMPLAUSIBLE),
        (-1e9, Check.COMMAND_IMPLAUSIBLE),
    ],
)
@pytest.mark.parametrize("joint", [0, 7, 11])
def test_a_broken_command_is_never_forwarded_the_last_safe_target_is_held_and_it_is_named(
    value, kind, joint
):
    bench = Bench()
    bench.send(POSE + 0.05)
    q_des = POSE + 0.1
    q_des[joint] = value
    result = bench.send(q_des)
    assert verdicts(result) == [Verdict.HOLD]
    # All joints hold, not only the broken one: a half-executed command is none.
    assert np.array_equal(result.command.q_des[0], POSE + 0.05)
    assert [(v.kind, v.joint) for v in result.violations] == [(kind, NAMES[joint])]
    assert not result.stop.any()


def test_a_broken_command_that_lasts_stops_the_robot():
    bench = Bench(hold_ticks=3)
    bench.send(POSE)
    bad = np.full(12, math.nan)
    assert [verdicts(bench.send(bad))[0] for _ in range(3)] == [Verdict.HOLD] * 3
    result = bench.send(bad)
    assert verdicts(result) == [Verdict.DAMP]
    assert result.stop.all()


def test_a_good_command_between_broken_ones_starts_the_count_anew():
    bench = Bench(hold_ticks=2)
    bad = np.full(12, math.nan)
    for _ in range(5):
        bench.send(POSE)
        for _ in range(2):
            assert not bench.send(bad).stop.any()


def test_a_broken_first_command_holds_the_measured_pose():
    bench = Bench()
    bench.q[0] = POSE + 0.2
    result = bench.send(np.full(12, math.nan))
    assert verdicts(result) == [Verdict.HOLD]
    assert np.allclose(result.command.q_des[0], POSE + 0.2)


def test_a_command_that_answers_an_old_state_stops_although_it_keeps_coming():
    bench = Bench()
    bench.send(POSE)
    bench.command_age = 2 * DT
    assert verdicts(bench.send(POSE)) == [Verdict.PASS]
    bench.command_age = 3 * DT + 1_000_000
    result = bench.send(POSE)
    assert verdicts(result) == [Verdict.DAMP]
    assert result.stop.all()
    assert kinds(result) == {Check.COMMAND_STALE}
    assert result.violations[0].value == pytest.approx(0.061)
    assert result.violations[0].limit == pytest.approx(0.06)


def test_commands_that_stop_coming_stop_the_robot():
    bench = Bench()
    bench.send(POSE)
    # The node that calls has nothing newer: three periods are bridged.
    stopped = [bench.send(None).stop.any() for _ in range(5)]
    assert stopped == [False, False, False, True, True]


def test_a_command_that_never_came_is_awaited_from_the_reset_on():
    bench = Bench()
    bench.filter.reset(now_ns=bench.now)
    stopped = [bench.send(None).stop.any() for _ in range(5)]
    assert stopped == [False, False, False, True, True]


def test_while_ramping_nobody_waits_for_the_policy():
    bench = Bench()
    nobody, everyone = np.array([False]), np.array([True])
    ramp = np.array([POSE + 0.01])
    for _ in range(20):
        result = bench.send(None, engaged=everyone, running=nobody, ramp=ramp)
        assert verdicts(result) == [Verdict.PASS]
    assert np.array_equal(result.command.q_des, ramp)
    # Its turn has come: now the wait begins.
    stopped = [bench.send(None).stop.any() for _ in range(5)]
    assert stopped == [False, False, False, True, True]


def test_a_broken_policy_does_not_disturb_the_ramp():
    bench = Bench()
    ramp = np.array([POSE + 0.01])
    result = bench.send(np.full(12, math.nan), running=np.array([False]), ramp=ramp)
    assert verdicts(result) == [Verdict.PASS]
    assert np.array_equal(result.command.q_des, ramp)


# ------------------------------------------------------------------ bad states and clocks


def test_a_stale_state_stops():
    bench = Bench()
    bench.send(POSE)
    bench.state_age = 3 * DT + 1_000_000
    result = bench.send(POSE)
    assert verdicts(result) == [Verdict.DAMP]
    assert Check.STATE_STALE in kinds(result)


@pytest.mark.parametrize("part", ["q", "dq", "quat"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_state_that_is_not_finite_stops_and_nothing_of_it_gets_through(part, value):
    bench = Bench(3)
    bench.send(POSE)
    getattr(bench, part)[1, 2] = value
    result = bench.send(POSE)
    assert verdicts(result) == [Verdict.PASS, Verdict.DAMP, Verdict.PASS]
    for field in ("q_des", "dq_des", "tau_ff", "kp", "kd"):
        assert np.isfinite(getattr(result.command, field)).all()
    assert {(v.kind, v.world) for v in result.violations} == {(Check.STATE_NOT_FINITE, 1)}
    if part == "q":
        assert result.violations[0].joint == NAMES[2]


def test_a_fall_stops():
    bench = Bench(4)
    bench.quat[:] = from_rpy([[0.99, 0, 0.7], [1.01, 0, 0.7], [0, -1.01, 2.0], [0.8, 0.8, 0]])
    result = bench.send(POSE)
    # The last is tilted by acos(cos 0.8 cos 0.8) = 1.064 rad.
    assert verdicts(result) == [Verdict.PASS, Verdict.DAMP, Verdict.DAMP, Verdict.DAMP]
    fall = [v for v in result.violations if v.kind == Check.FALL]
    assert [v.value for v in fall] == pytest.approx([1.01, 1.01, math.acos(math.cos(0.8) ** 2)])
    assert [v.limit for v in fall] == pytest.approx([1.0] * 3)


def test_a_quaternion_of_zeros_is_no_upright_robot():
    bench = Bench()
    bench.quat[:] = 0.0
    assert verdicts(bench.send(POSE)) == [Verdict.DAMP]


def test_a_quaternion_that_is_not_quite_of_unit_length_is_read_right():
    bench = Bench(2)
    bench.quat[:] = 1.1 * from_rpy([[0.95, 0.0, 0.0], [1.05, 0.0, 0.0]])
    assert verdicts(bench.send(POSE)) == [Verdict.PASS, Verdict.DAMP]


def test_a_fixed_base_cannot_fall_and_a_disabled_check_does_not_stop():
    fixed = dataclasses.replace(CONTRACT, base="fixed")
    for bench in (Bench(contract=fixed), Bench(tilt_rad=None)):
        bench.quat[:] = from_rpy([2.0, 0.0, 0.0])
        assert verdicts(bench.send(POSE)) == [Verdict.PASS]


def test_a_joint_far_outside_its_range_stops_and_one_a_little_outside_moves_inwards():
    bench = Bench(2, outside=0.25, limits=LimitSettings(target_rate=2.0))
    end = ROBOT.joints[KNEE].q_max
    bench.q[:, KNEE] = [end + 0.1, end + 0.3]
    result = bench.send(np.where(np.arange(12) == KNEE, end + 5.0, POSE))
    assert verdicts(result) == [Verdict.CLAMPED, Verdict.DAMP]
    assert result.command.q_des[0, KNEE] == pytest.approx(end + 0.1 - 2.0 * 0.02)
    outside = [v for v in result.violations if v.kind == Check.OUTSIDE]
    assert [(v.joint, v.world) for v in outside] == [(NAMES[KNEE], 1)]


def test_an_encoder_that_jumps_stops():
    bench = Bench()
    bench.send(POSE)
    bench.q[0, 4] += 1.6  # 28.6 rad/s for 0.02 s is 0.57 rad; twice that and 0.1 rad: 1.244
    result = bench.send(POSE)
    assert verdicts(result) == [Verdict.DAMP]
    assert [(v.kind, v.joint) for v in result.violations] == [(Check.JUMP, NAMES[4])]
    assert result.violations[0].limit == pytest.approx(1.244)


def test_a_joint_without_a_speed_limit_cannot_jump():
    bench = Bench(limits=LimitSettings(disabled={"velocity": ("all",)}))
    bench.send(POSE)
    bench.q[0, 4] += 1.6
    assert Check.JUMP not in kinds(bench.send(POSE))


def test_a_clock_that_stands_holds_and_divides_by_nothing():
    bench = Bench()
    bench.send(POSE + 0.05)
    result = bench.send(POSE + 0.2, advance=0)
    assert verdicts(result) == [Verdict.HOLD]
    assert np.array_equal(result.command.q_des[0], POSE + 0.05)
    assert kinds(result) == {Check.CLOCK}
    # It stands on: the robot stops.
    for _ in range(3):
        result = bench.send(POSE, advance=0)
    assert result.stop.all()


def test_a_state_from_before_the_last_one_holds_even_where_it_is_not_stale():
    bench = Bench(2)
    bench.send(POSE + 0.05)
    bench.state_age = DT + 1_000_000
    result = bench.send(POSE + 0.1)
    assert verdicts(result) == [Verdict.HOLD] * 2
    assert np.array_equal(result.command.q_des, np.tile(POSE + 0.05, (2, 1)))
    assert kinds(result) == {Check.CLOCK}


def test_a_base_that_leans_is_named_before_it_counts_as_fallen():
    bench = Bench(3, gyro_slack=None)
    bench.quat = from_rpy([[0.6, 0.0, 0.3], [0.0, -0.8, 0.3], [1.1, 0.0, 0.3]])
    result = bench.send(POSE)
    assert verdicts(result) == [Verdict.PASS, Verdict.PASS, Verdict.DAMP]
    assert {(v.kind, v.world) for v in result.violations} == {(Check.TILT, 1), (Check.FALL, 2)}
    assert result.violations[1].value == pytest.approx(0.8)
    assert result.warned


def test_a_target_gathers_speed_no_faster_than_the_acceleration_allows():
    limits = LimitSettings(target_accel=100.0, target_rate=5.0)
    bench = Bench(limits=limits)
    bench.send(POSE)
    steps, before = [], POSE
    for _ in range(5):
        result = bench.send(POSE + 0.5)
        steps.append(result.command.q_des[0, 0] - before[0])
        before = result.command.q_des[0]
    # 2 rad/s more in each period of 0.02 s, until 5 rad/s are reached.
    assert np.allclose(np.array(steps) / 0.02, [2.0, 4.0, 5.0, 5.0, 5.0])
    assert LimitKind.ACCELERATION in {v.kind for v in bench.send(POSE - 0.5).violations}
    # A stop starts from rest again.
    bench.filter.reset(now_ns=bench.now)
    assert np.allclose(bench.send(POSE + 0.5).command.q_des[0] - POSE, 0.04)


def test_after_a_reset_a_clock_that_was_set_back_in_between_is_no_fault():
    bench = Bench()
    bench.send(POSE)
    bench.now -= 3_600 * 1_000_000_000
    assert kinds(bench.send(POSE)) >= {Check.CLOCK}
    bench.filter.reset(now_ns=bench.now)
    assert [verdicts(bench.send(POSE)) for _ in range(6)] == [[Verdict.PASS]] * 6


def test_stamps_from_the_future_mean_that_the_clock_was_set_back():
    bench = Bench()
    bench.send(POSE)
    bench.state_age = bench.command_age = -5 * DT
    result = bench.send(POSE)
    assert verdicts(result) == [Verdict.DAMP]
    assert {Check.STATE_STALE, Check.COMMAND_STALE} <= kinds(result)


# ------------------------------------------------------------------ the safe stop


def test_damping_is_velocity_gain_and_nothing_else():
    bench = Bench()
    bench.quat[:] = from_rpy([2.0, 0.0, 0.0])
    command = bench.send(POSE).command
    assert not command.kp.any()
    assert not command.q_des.any()
    assert (command.kd == CONTRACT.damping_kd).all()


def test_a_robot_that_would_drop_holds_its_last_safe_target():
    bench = Bench(contract=holding())
    bench.send(POSE + 0.05)
    bench.quat[:] = from_rpy([2.0, 0.0, 0.0])
    result = bench.send(POSE + 0.2)
    assert verdicts(result) == [Verdict.HOLD]
    assert result.stop.all()
    assert np.array_equal(result.command.q_des[0], POSE + 0.05)
    assert np.array_equal(result.command.kp[0], ROBOT.actuated_array("kp"))


def test_a_pose_that_was_never_measured_cannot_be_held():
    bench = Bench(contract=holding())
    bench.q[0, 5] = math.nan
    result = bench.send(POSE)
    assert verdicts(result) == [Verdict.DAMP]
    assert np.isfinite(result.command.q_des).all()


def test_a_robot_that_is_not_engaged_gets_its_safe_stop_and_no_questions():
    bench = Bench(2)
    bench.quat[:] = from_rpy([2.0, 0.0, 0.0])
    bench.command_age = 100 * DT
    result = bench.send(POSE, engaged=np.array([False, False]))
    assert verdicts(result) == [Verdict.DAMP] * 2
    assert result.stop.all()
    assert result.violations == []


# ------------------------------------------------------------------ laws


def test_a_contract_without_a_limit_is_refused_by_name():
    joints = list(CONTRACT.joints)
    joints[2] = dataclasses.replace(joints[2], tau_max=math.nan)
    with pytest.raises(FerryError, match="FR_lower_joint"):
        SafetyFilter(dataclasses.replace(CONTRACT, joints=tuple(joints)), 1)


def test_passive_joints_are_left_out_by_name():
    joints = list(ROBOT.joints)
    joints[3] = dataclasses.replace(joints[3], actuated=False)
    robot = dataclasses.replace(ROBOT, joints=tuple(joints))
    contract = stand_contract(robot)
    keep = np.delete(np.arange(12), 3)
    safe = SafetyFilter(contract, 2)
    state = dataclasses.replace(
        RobotState.zeros(2, 12), stamp_ns=np.full(2, NOW), q=np.tile(np.arange(12.0), (2, 1))
    )
    state.q[:] = POSE
    state.q[:, 3] = 77.0  # nobody commands it and nobody minds
    command = JointCommand.position(
        state.stamp_ns, np.tile(POSE[keep] + 0.05, (2, 1)), kp=np.ones(11), kd=np.ones(11)
    )
    result = safe.filter(NOW, state, command)
    assert verdicts(result) == [Verdict.PASS] * 2
    assert np.array_equal(result.command.kp[0], ROBOT.actuated_array("kp")[keep])
