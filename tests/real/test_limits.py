from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from real.errors import FerryError
from real.joint_limits import FREE, JointLimits, LimitKind, LimitSettings
from real.limits import limit_targets
from real.spec import JointSpec, load_robot


def joint(name="j", **changes) -> JointSpec:
    values = {
        "kind": "hinge",
        "actuated": True,
        "q_min": -1.0,
        "q_max": 1.0,
        "dq_max": 10.0,
        "tau_max": 20.0,
        "kp": 40.0,
        "kd": 1.0,
        "q_default": 0.0,
        "action_scale": 0.25,
        "armature": 0.0,
        "damping": 0.0,
        "friction": 0.0,
        "limit_source": "test",
    }
    return JointSpec(name=name, **{**values, **changes})


def limits(*joints: JointSpec, **settings_) -> JointLimits:
    given = {"margin": 0.0, "stop_s": 0.0, "soft_speed": 0.9, "target_rate": 100.0}
    return JointLimits.from_joints(
        joints or [joint()], settings=LimitSettings(**{**given, **settings_})
    )


def one(lim: JointLimits, q_des, *, q=0.0, dq=0.0, previous=None, dt=0.02, velocity=None):
    def row(value):
        return np.array([[float(value)]])

    previous = q if previous is None else previous
    state = {"q": row(q), "dq": row(dq), "previous": row(previous)}
    velocity = None if velocity is None else row(velocity)
    return limit_targets(lim, row(q_des), **state, dt_s=dt, velocity=velocity)


def target(*args, **kwargs) -> float:
    return float(one(*args, **kwargs).target[0, 0])


# ------------------------------------------------------------------ one limit at a time


def test_a_target_within_every_limit_passes_unchanged():
    result = one(limits(), 0.1)
    assert result.target[0, 0] == 0.1
    assert not result.changed.any()
    for kind in LimitKind:
        assert not result.clipped(kind).mask.any()


def test_a_position_is_clipped_a_margin_inside_the_range():
    lim = limits(margin=0.1)
    assert target(lim, 1.2, q=0.85) == pytest.approx(0.9)
    found = one(lim, 1.2, q=0.85).clipped(LimitKind.POSITION)
    assert found.mask.all()
    assert found.asked[0, 0] == 1.2
    assert found.limit[0, 0] == pytest.approx(0.9)


def test_the_range_shrinks_by_the_distance_that_a_moving_joint_needs_to_stop():
    # a = dq_max / stop_s = 10 / 0.1 = 100 rad/s^2; d = dq^2 / (2 a) = 4^2 / 200 = 0.08 rad
    lim = limits(stop_s=0.1)
    assert target(lim, 1.0, q=0.9, dq=4.0) == pytest.approx(0.92)
    # Moving away from that end, all of the range is open.
    assert target(lim, 1.0, q=0.9, dq=-4.0) == pytest.approx(1.0)
    # The same at the lower end.
    assert target(lim, -1.0, q=-0.9, dq=-4.0) == pytest.approx(-0.92)


def test_a_margin_wider_than_the_range_leaves_its_middle():
    lim = limits(joint(q_min=0.2, q_max=0.4), margin=5.0)
    assert target(lim, 9.0, q=0.3) == pytest.approx(0.3)


def test_a_target_moves_no_faster_than_the_rate_against_the_previous_target():
    lim = limits(target_rate=3.0)
    # 3 rad/s for 0.02 s is 0.06 rad from the previous target, wherever the joint is.
    assert target(lim, 0.5, q=-0.1, previous=0.1) == pytest.approx(0.16)
    found = one(lim, 0.5, q=-0.1, previous=0.1).clipped(LimitKind.RATE)
    assert found.asked[0, 0] == pytest.approx(0.4 / 0.02)
    assert found.limit[0, 0] == pytest.approx(3.0)


def test_the_rate_is_the_joints_own_speed_limit_unless_given():
    lim = JointLimits.from_joints([joint(dq_max=7.0)])
    assert lim.rate.tolist() == [7.0]


def test_a_target_gains_no_more_speed_than_the_acceleration_allows():
    lim = limits(target_accel=50.0)
    # 2 rad/s before, 50 rad/s^2 for 0.02 s: 3 rad/s at most, 0.06 rad from the previous target.
    assert target(lim, 0.5, previous=0.1, velocity=2.0) == pytest.approx(0.16)
    assert target(lim, -0.5, previous=-0.1, velocity=-2.0) == pytest.approx(-0.16)
    # From rest 1 rad/s, and with a velocity that nobody knows, anything.
    assert target(lim, 0.5, previous=0.1, velocity=0.0) == pytest.approx(0.12)
    assert target(lim, 0.5, previous=0.1) == 0.5
    found = one(lim, 0.5, previous=0.1, velocity=2.0).clipped(LimitKind.ACCELERATION)
    assert found.asked[0, 0] == pytest.approx((0.4 / 0.02 - 2.0) / 0.02)
    assert found.limit[0, 0] == pytest.approx(50.0)


def test_a_target_may_stop_at_once_but_not_turn_round_at_once():
    lim = limits(target_accel=50.0)
    assert target(lim, 0.1, previous=0.1, velocity=4.0) == 0.1
    # 4 - 50 * 0.02 = 3 rad/s would still go on; the way back is closed for this step.
    assert target(lim, -0.5, previous=0.1, velocity=4.0) == 0.1
    assert target(lim, -0.5, previous=0.1, velocity=0.5) == pytest.approx(0.1 - 0.01)


def test_a_target_that_runs_towards_the_end_of_the_range_ends_there():
    lim = limits(target_accel=5.0, target_rate=10.0)
    previous, velocity, seen = 0.0, 0.0, []
    for _ in range(100):
        now = target(lim, 5.0, q=previous, previous=previous, velocity=velocity)
        velocity, previous = (now - previous) / 0.02, now
        seen.append(now)
    assert (np.diff(seen) >= 0.0).all()
    assert seen[-1] == 1.0
    assert max(seen) <= 1.0


def test_the_acceleration_is_full_speed_within_its_time_unless_given():
    joints = [joint("a", dq_max=7.0), joint("b", dq_max=3.0)]
    assert JointLimits.from_joints(joints).accel.tolist() == pytest.approx([350.0, 150.0])
    assert target(limits(target_accel=0.0), 0.5, previous=0.2, velocity=0.0) == 0.2
    off = limits(target_accel=0.0, disabled={"acceleration": ("all",)})
    assert target(off, 0.5, previous=0.2, velocity=0.0) == 0.5


def test_a_target_is_moved_to_where_the_motor_gives_its_highest_torque():
    # tau = 40 (q_des - 0.1) - 1 * 2; 20 N m at q_des = 0.1 + 22 / 40 = 0.65
    lim = limits()
    assert target(lim, 0.9, q=0.1, dq=2.0) == pytest.approx(0.65)
    found = one(lim, 0.9, q=0.1, dq=2.0).clipped(LimitKind.TORQUE)
    assert found.asked[0, 0] == pytest.approx(40 * 0.8 - 2)
    assert found.limit[0, 0] == pytest.approx(20.0)


def test_driving_torque_fades_to_zero_at_the_speed_limit_and_braking_stays():
    lim = limits()
    # Half way through the fade (0.9 to 1.0 of 10 rad/s) half of the torque is left:
    # q_des = q + (kd dq + 10) / kp
    assert target(lim, 1.0, q=0.0, dq=9.5) == pytest.approx((9.5 + 10.0) / 40.0)
    # At the limit and beyond, the target gives no torque at all: q_des = q + kd dq / kp.
    assert target(lim, 1.0, q=0.0, dq=10.0) == pytest.approx(10.0 / 40.0)
    assert target(lim, 1.0, q=0.0, dq=14.0) == pytest.approx(14.0 / 40.0)
    # Braking with all of the torque: 40 q_des - 14 = -20.
    assert target(lim, -1.0, q=0.0, dq=14.0) == pytest.approx(-6.0 / 40.0)
    # The other direction.
    assert target(lim, -1.0, q=0.0, dq=-10.0) == pytest.approx(-10.0 / 40.0)
    found = one(lim, 1.0, q=0.0, dq=14.0).clipped(LimitKind.VELOCITY)
    assert found.mask.all()
    assert (found.asked[0, 0], found.limit[0, 0]) == (14.0, 10.0)


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_a_joint_that_starts_outside_may_only_move_inwards(side):
    lim = limits(target_rate=1.0)
    q = previous = side * 1.3
    seen = [previous]
    for _ in range(40):
        # The request is to go further out; the joint follows its target at once.
        previous = target(lim, side * 2.0, q=q, previous=previous)
        q = previous
        seen.append(previous)
    steps = side * np.diff(seen)
    assert (steps <= 1e-12).all()
    assert (np.abs(steps) <= 0.02 + 1e-12).all()
    assert seen[-1] == pytest.approx(side * 1.0)


def test_a_joint_pushed_out_is_not_followed_outwards():
    lim = limits()
    # Pushed to 1.2 while the target was 1.0: the target must not follow it out.
    assert target(lim, 1.0, q=1.2, previous=1.0) <= 1.0
    # Pushed so far that the motor saturates: full torque inwards, the target never beyond q.
    assert target(lim, 1.0, q=2.0, previous=1.0) == pytest.approx(2.0 - 20.0 / 40.0)


def test_the_range_wins_where_the_torque_limit_would_leave_it():
    # kd dq = 40 N m of damping alone exceeds tau_max = 20 N m: to give 20 N m the target would
    # have to lie beyond the end of the range.
    lim = limits(joint(dq_max=100.0))
    assert target(lim, 0.9, q=0.9, dq=40.0) == pytest.approx(1.0)


# ------------------------------------------------------------------ absent, zero, disabled


@pytest.mark.parametrize("key", ["q_min", "q_max", "dq_max", "tau_max"])
def test_an_absent_limit_is_refused_by_joint_and_name(key):
    with pytest.raises(FerryError, match=rf"'b': {key} is not given"):
        limits(joint("a"), joint("b", **{key: math.nan}))


def test_a_torque_limit_of_zero_leaves_no_authority():
    lim = limits(joint(tau_max=0.0))
    # tau = 40 (q_des - 0.2) - 3 = 0 at q_des = 0.275
    assert target(lim, 0.9, q=0.2, dq=3.0) == pytest.approx(0.275)
    assert target(lim, -0.9, q=0.2, dq=3.0) == pytest.approx(0.275)


def test_a_speed_limit_of_zero_allows_torque_only_against_the_motion():
    lim = limits(joint(dq_max=0.0))
    at_rest = target(lim, 0.9, q=0.2, dq=0.0)
    assert lim.torque(np.array(at_rest), q=np.array(0.2), dq=np.array(0.0)) == pytest.approx(0.0)
    braking = target(lim, -0.9, q=0.2, dq=3.0)
    torque = lim.torque(np.array(braking), q=np.array(0.2), dq=np.array(3.0))
    assert torque == pytest.approx(-20.0)


def test_a_target_rate_of_zero_freezes_the_target():
    assert target(limits(target_rate=0.0), 0.5, q=0.1, previous=0.2) == 0.2


@pytest.mark.parametrize("by", ["settings", "infinity"])
def test_a_disabled_limit_is_not_applied(by):
    if by == "settings":
        disabled = dict.fromkeys(LimitKind, ("all",))
        lim = limits(joint(), disabled=disabled)
    else:
        inf = math.inf
        lim = limits(joint(q_min=-inf, q_max=inf, dq_max=inf, tau_max=inf), target_rate=1e12)
    for q_des in (-50.0, 3.0, 700.0):
        assert target(lim, q_des, q=0.5, dq=99.0) == q_des


def test_a_limit_may_be_absent_where_it_is_disabled():
    lim = limits(joint("a", tau_max=math.nan), joint("b"), disabled={"torque": ("a",)})
    assert lim.tau_max.tolist() == [FREE, 20.0]


def test_disabling_the_limit_of_an_unknown_joint_names_the_nearest():
    with pytest.raises(FerryError, match=r"'FR_hip'.*did you mean 'FR_hip_joint'"):
        limits(joint("FR_hip_joint"), disabled={"torque": ("FR_hip",)})


def test_an_upside_down_range_is_refused():
    with pytest.raises(FerryError, match=r"q_min 1.0 is above q_max -1.0"):
        limits(joint(q_min=1.0, q_max=-1.0))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"q_min": np.inf}, "q_min inf is above"),
        ({"q_max": -np.inf}, "is above q_max -inf"),
        ({"q_min": np.inf, "q_max": np.inf}, "q_min inf is above"),
        ({"dq_max": -np.inf}, "dq_max is -inf; expected >= 0"),
        ({"tau_max": -np.inf}, "tau_max is -inf; expected >= 0"),
    ],
)
def test_infinity_of_the_wrong_sign_switches_no_limit_off_but_is_refused(wrong, words):
    with pytest.raises(FerryError, match=words):
        limits(joint(), joint("FR_calf_joint", **wrong))


def test_without_a_position_gain_the_torque_cannot_be_bounded_by_the_target():
    assert target(limits(joint(kp=0.0)), 0.7, q=0.0, dq=5.0) == 0.7


# ------------------------------------------------------------------ what is not a number


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_request_that_is_not_finite_leaves_the_previous_target_and_is_flagged(bad):
    lim = limits(joint("a"), joint("b"), joint("c"))
    previous = np.array([[0.1, 0.2, 0.3]])
    request = np.array([[0.15, bad, 0.35]])
    zero = np.zeros((1, 3))
    result = limit_targets(lim, request, q=zero, dq=zero, previous=previous, dt_s=0.02)
    assert result.target.tolist() == [[0.15, 0.2, 0.35]]
    assert result.not_finite is not None
    assert result.not_finite.tolist() == [[False, True, False]]
    assert result.changed.tolist() == [[False, True, False]]


@pytest.mark.parametrize("part", ["q", "dq"])
def test_a_state_that_is_not_finite_leaves_the_previous_target(part):
    lim = limits(joint("a"), joint("b"))
    state = {"q": np.zeros((1, 2)), "dq": np.zeros((1, 2))}
    state[part] = np.array([[math.nan, 0.0]])
    previous = np.array([[0.1, 0.2]])
    result = limit_targets(lim, np.full((1, 2), 0.15), **state, previous=previous, dt_s=0.02)
    assert result.target.tolist() == [[0.1, 0.15]]


def test_an_absurd_but_finite_request_is_within_the_limits():
    for q_des in (1e9, -1e9, 1e300):
        assert abs(target(limits(), q_des, q=0.3)) <= 1.0
    assert abs(target(limits(stop_s=0.1), 0.5, q=0.3, dq=1e200)) <= 1.0


# ------------------------------------------------------------------ laws


def reference(j: JointSpec, s: LimitSettings, q_des, q, dq, previous, dt, velocity) -> float:
    """The same limits for one joint, step by step and slowly."""

    def clip(value, low, high):
        return min(max(value, low), high)

    distance = dq * dq * s.stop_s / (2.0 * j.dq_max)
    low, high = j.q_min + s.margin, j.q_max - s.margin
    soft_low = min(low + (distance if dq < 0 else 0.0), high)
    soft_high = max(high - (distance if dq > 0 else 0.0), low)
    out = clip(q_des, soft_low, soft_high)
    accel = j.dq_max / s.start_s if s.target_accel is None else s.target_accel
    slowest, fastest = velocity - accel * dt, velocity + accel * dt
    out = clip(out, previous + min(slowest, 0.0) * dt, previous + max(fastest, 0.0) * dt)
    rate = j.dq_max if s.target_rate is None else s.target_rate
    out = clip(out, previous - rate * dt, previous + rate * dt)
    span = (1.0 - s.soft_speed) * j.dq_max
    up = clip((j.dq_max - dq) / span, 0.0, 1.0) * j.tau_max
    down = clip((j.dq_max + dq) / span, 0.0, 1.0) * j.tau_max
    for bottom, top in ((-j.tau_max, j.tau_max), (-down, up)):
        # tau = kp (q_des - q) - kd dq, solved for q_des
        out = clip(out, q + (bottom + j.kd * dq) / j.kp, q + (top + j.kd * dq) / j.kp)
    return clip(out, min(j.q_min, q), max(j.q_max, q))


def distinct_joints(rng: np.random.Generator, count: int) -> list[JointSpec]:
    return [
        joint(
            f"j{i}",
            q_min=-rng.uniform(0.2, 3.0),
            q_max=rng.uniform(0.2, 3.0),
            dq_max=rng.uniform(1.0, 50.0),
            tau_max=rng.uniform(1.0, 60.0),
            kp=rng.uniform(5.0, 200.0),
            kd=rng.uniform(0.1, 10.0),
        )
        for i in range(count)
    ]


def test_the_array_program_equals_a_slow_reference_for_joints_that_all_differ():
    rng = np.random.default_rng(3)
    joints = distinct_joints(rng, 7)
    chosen = LimitSettings(margin=0.03, stop_s=0.07, soft_speed=0.8, target_rate=9.0)
    lim = JointLimits.from_joints(joints, settings=chosen)
    shape = (200, 7)
    q, previous = rng.uniform(-3.5, 3.5, (2, *shape))
    dq = rng.normal(0.0, 20.0, shape)
    q_des, velocity = rng.normal(0.0, 4.0, (2, *shape))
    state = {"q": q, "dq": dq, "previous": previous, "velocity": velocity}
    got = limit_targets(lim, q_des, **state, dt_s=0.013).target
    for n in range(shape[0]):
        for a, j in enumerate(joints):
            before = (q[n, a], dq[n, a], previous[n, a])
            expected = reference(j, chosen, q_des[n, a], *before, 0.013, velocity[n, a])
            assert got[n, a] == pytest.approx(expected, abs=1e-9)


def test_one_robot_alone_is_told_the_same_as_among_others():
    # Alone, a command within all limits takes a shorter way.
    rng = np.random.default_rng(6)
    lim = JointLimits.from_joints(distinct_joints(rng, 3))
    shape, passed = (3000, 3), 0
    scale = 10.0 ** rng.uniform(-3.0, 0.5, (3000, 1))
    q = rng.uniform(-1.0, 1.0, shape)
    previous, q_des = q + rng.normal(0.0, 0.1, shape), q + rng.normal(0.0, 1.0, shape) * scale
    dq, velocity = rng.normal(0.0, 3.0, (2, *shape)) * scale
    state = {"q": q, "dq": dq, "previous": previous, "velocity": velocity}
    together = limit_targets(lim, q_des, **state, dt_s=0.02)
    for n in range(shape[0]):
        row = {name: value[n : n + 1] for name, value in state.items()}
        alone = limit_targets(lim, q_des[n : n + 1], **row, dt_s=0.02)
        assert np.allclose(alone.target[0], together.target[n], rtol=0.0, atol=1e-12)
        passed += not alone.stages
    assert 500 < passed < 2500


def test_permuted_joints_give_permuted_targets():
    # Gains, limits and signals of every joint differ: a field on the wrong joint shows.
    rng = np.random.default_rng(5)
    joints = distinct_joints(rng, 6)
    order = rng.permutation(6)
    lim = JointLimits.from_joints(joints)
    mixed = JointLimits.from_joints([joints[i] for i in order])
    q_des, q, previous = rng.uniform(-3.0, 3.0, (3, 50, 6))
    dq = rng.normal(0.0, 10.0, (50, 6))
    plain = limit_targets(lim, q_des, q=q, dq=dq, previous=previous, dt_s=0.02)
    other = limit_targets(
        mixed,
        q_des[:, order],
        q=q[:, order],
        dq=dq[:, order],
        previous=previous[:, order],
        dt_s=0.02,
    )
    assert np.array_equal(plain.target[:, order], other.target)
    for kind in LimitKind:
        assert np.array_equal(plain.clipped(kind).mask[:, order], other.clipped(kind).mask)


def check_laws(lim: JointLimits, *, q_des, q, dq, previous, velocity, dt):
    """Nothing outside the limits ever leaves, whatever goes in."""
    state = {"q": q, "dq": dq, "previous": previous, "velocity": velocity}
    result = limit_targets(lim, q_des, **state, dt_s=dt)
    out = result.target
    sound = np.isfinite(q_des) & np.isfinite(q) & np.isfinite(dq)
    assert np.isfinite(out).all()
    assert np.array_equal(out[~sound], previous[~sound])
    q, dq = np.where(sound, q, 0.0), np.where(sound, dq, 0.0)

    inside = (out >= lim.q_min - 1e-9) & (out <= lim.q_max + 1e-9)
    # Outside the range only towards it from where the joint is.
    inwards = ((q > lim.q_max) & (out <= q)) | ((q < lim.q_min) & (out >= q))
    assert (inside | inwards)[sound].all()

    torque = lim.kp * (out - q) - lim.kd * dq
    slack = 1e-6 * (1.0 + np.abs(lim.kp * q) + np.abs(lim.kd * dq))
    at_end = (out <= np.minimum(lim.q_min, q)) | (out >= np.maximum(lim.q_max, q))
    within = np.abs(torque) <= lim.tau_max + slack
    # At the end of the range more may be asked for, but only against the motion.
    assert (within | (at_end & (torque * dq <= slack)))[sound].all()

    fast = np.abs(dq) >= lim.dq_max
    drives = torque * np.sign(dq) > slack
    assert not (fast & drives & ~at_end)[sound].any()

    # No further from the previous target than the rate allows, unless a stronger limit says so.
    step = np.abs(out - previous) <= lim.rate * dt + 1e-9
    rest = q + lim.lead * dq
    torque_bound = (np.abs(np.abs(out - rest) - lim.reach) <= slack) | (
        np.abs(dq) >= 0.9 * lim.dq_max
    )
    assert (step | torque_bound | at_end)[sound].all()

    # No faster than before by more than the acceleration allows, with the same exceptions.
    grown = np.abs(out - previous) <= (np.abs(velocity) + lim.accel * dt) * dt + 1e-9
    turned = (out - previous) * velocity >= -1e-9
    turned |= (
        np.abs(out - previous) <= np.maximum(lim.accel * dt - np.abs(velocity), 0.0) * dt + 1e-9
    )
    assert ((grown & turned) | torque_bound | at_end)[sound].all()

    # What was asked is given wherever no limit is named.
    named = np.zeros(out.shape, dtype=bool)
    for kind in LimitKind:
        named |= result.clipped(kind).mask
    assert np.array_equal(out[sound & ~named], q_des[sound & ~named])


def check_random(rng: np.random.Generator, *, rows: int, joints: int) -> None:
    """Random states, commands, limits and time steps for rows x joints cases."""
    off = {kind: (f"j{i}",) for i, kind in enumerate(LimitKind)}
    lim = JointLimits.from_joints(
        distinct_joints(rng, joints), settings=LimitSettings(disabled=off, stop_s=0.1)
    )
    shape = (rows, joints)
    scale = 10.0 ** rng.uniform(-2.0, 4.0, shape)
    q = rng.normal(0.0, 2.0, shape)
    q_des, dq = rng.normal(0.0, 1.0, (2, *shape)) * scale
    previous = np.clip(rng.normal(0.0, 2.0, shape), lim.q_min, lim.q_max)
    velocity = rng.normal(0.0, 20.0, shape) * rng.choice([0.0, 1.0], shape)
    q_des[rng.random(shape) < 0.02] = np.nan
    q_des[rng.random(shape) < 0.02] = np.inf
    q[rng.random(shape) < 0.01] = np.nan
    state = {"q": q, "dq": dq, "previous": previous, "velocity": velocity}
    check_laws(lim, q_des=q_des, **state, dt=10.0 ** rng.uniform(-4.0, -0.5, (rows, 1)))


def test_nothing_outside_the_limits_leaves_for_fifty_thousand_random_cases():
    check_random(np.random.default_rng(11), rows=5_000, joints=10)


@pytest.mark.slow
def test_nothing_outside_the_limits_leaves_for_a_million_random_cases():
    for seed in range(10):
        check_random(np.random.default_rng(seed), rows=1_000, joints=100)


numbers = st.floats(allow_nan=True, allow_infinity=True, width=64)
finite = st.floats(-100.0, 100.0)


@pytest.mark.slow
@settings(max_examples=500)
@given(
    q_des=numbers,
    q=st.floats(-5.0, 5.0),
    dq=finite,
    previous=st.floats(-1.0, 1.0),
    velocity=finite,
    dt=st.floats(1e-4, 0.5),
    tau_max=st.floats(0.0, 100.0),
    dq_max=st.just(0.0) | st.floats(0.01, 50.0),
)
def test_nothing_outside_the_limits_leaves_for_awkward_numbers(
    q_des, q, dq, previous, velocity, dt, tau_max, dq_max
):
    lim = JointLimits.from_joints([joint(tau_max=tau_max, dq_max=dq_max)])
    values = {"q_des": q_des, "q": q, "dq": dq, "previous": previous, "velocity": velocity}
    check_laws(lim, **{k: np.array([[v]]) for k, v in values.items()}, dt=dt)


def test_limits_of_the_shipped_robot_are_those_of_its_description():
    robot = load_robot("a1")
    lim = JointLimits.from_joints(robot.actuated)
    assert lim.names == robot.joint_names
    assert np.array_equal(lim.tau_max, robot.actuated_array("tau_max"))
    assert np.array_equal(lim.dq_max, robot.actuated_array("dq_max"))
    assert ((lim.q_low < robot.q_default) & (robot.q_default < lim.q_high)).all()
