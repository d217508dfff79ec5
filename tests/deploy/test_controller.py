from __future__ import annotations

import dataclasses
import logging
import math

import numpy as np
import pytest

from deploy.checks import Check
from deploy.controller import Controller
from deploy.modes import Mode
from deploy.policy_pipeline import PolicyPipeline
from deploy.safety import SafetySettings, Verdict
from deploy.safety_pipeline import SafetyPipeline
from real.contract import PolicyContract
from real.errors import FerryError
from real.frames import from_rpy
from real.observation import ObservationBuilder
from real.signals import RobotState
from real.spec import RobotSpec, load_robot
from tests.deploy.stand_bundle import stand_contract

DT = 20_000_000  # ns
S = 1_000_000_000
ROBOT = load_robot("a1")
POSE = ROBOT.q_default
CONTRACT = stand_contract(ROBOT, history=3)
SLICES = CONTRACT.observation.slices()


class LinearPolicy:
    """mean = observation @ weight, log_std = -1; raises when told to."""

    def __init__(self, contract: PolicyContract = CONTRACT, weight=None) -> None:
        self.contract = contract
        shape = (contract.observation.dim, contract.action.dim)
        self.weight = np.zeros(shape, dtype=np.float32) if weight is None else weight
        self.broken = False

    def infer(self, observation):
        if self.broken:
            raise FerryError("out of order")
        mean = observation @ self.weight
        return mean, np.full_like(mean, -1.0)


def small_weight(seed=0, contract=CONTRACT) -> np.ndarray:
    """A weight whose actions stay small, so that no limit is met."""
    shape = (contract.observation.dim, contract.action.dim)
    return np.random.default_rng(seed).normal(0.0, 0.01, shape).astype(np.float32)


class Bench:
    """A controller with a clock and N robots, whose joints go where they are told at once."""

    def __init__(self, policy=None, num=1, **changes) -> None:
        self.num, self.now = num, 10 * S
        self.policy = LinearPolicy(weight=small_weight()) if policy is None else policy
        self.controller = Controller(self.policy, num, settings=SafetySettings(**changes))
        self.q = np.tile([j.q_default for j in self.policy.contract.joints], (num, 1))
        self.quat = np.tile([1.0, 0.0, 0.0, 0.0], (num, 1))
        self.command = np.zeros((num, 3))

    def state(self) -> RobotState:
        plain = RobotState.zeros(self.num, self.q.shape[1])
        stamp = np.full(self.num, self.now, dtype=np.int64)
        return dataclasses.replace(plain, stamp_ns=stamp, q=self.q.copy(), quat_wb=self.quat.copy())

    def arm(self, rows=None):
        return self.controller.arm(self.now, self.state(), rows)

    def tick(self, *, follow=True):
        self.now += DT
        tick = self.controller.tick(self.now, self.state(), self.command)
        if follow:
            active = tick.verdict != Verdict.DAMP
            self.q[active] = tick.command.q_des[active]
        return tick

    def modes(self):
        return [Mode(m) for m in self.controller.safety.modes.mode]


def observed(tick, name: str, world=0) -> np.ndarray:
    return tick.policy.observation[world, SLICES[name]]


# ------------------------------------------------------------------ from damping to running


def test_a_robot_damps_until_it_is_armed_ramps_and_then_runs():
    bench = Bench(ramp_s=1.0)
    bench.q[0] = POSE + 0.4
    tick = bench.tick()
    assert (tick.verdict[0], bench.modes()) == (Verdict.DAMP, [Mode.DAMP])
    assert bench.arm() == []
    poses = []
    while bench.modes() == [Mode.RAMP]:
        tick = bench.tick()
        poses.append(bench.q[0].copy())
    assert bench.modes() == [Mode.RUN]
    assert len(poses) == 50
    # From the measured pose to the default pose, never back, and slowly.
    way = np.array(poses)[:-1] - POSE  # the last tick is the policy's
    assert np.abs(way[0] - 0.4).max() < 0.005
    assert np.abs(way[-1]).max() < 0.005
    assert (np.diff(way, axis=0) <= 1e-12).all()
    assert np.abs(np.diff(way, axis=0)).max() < 0.4 * 1.5 * 0.02 + 1e-6


def test_a_joint_that_does_not_follow_the_ramp_is_a_fault_by_name():
    bench = Bench(ramp_s=0.2, num=2)
    bench.q[1, 4] = POSE[4] + 0.35
    assert bench.arm() == []
    for _ in range(9):
        bench.tick(follow=False)
    assert bench.modes() == [Mode.RAMP, Mode.RAMP]
    tick = bench.tick(follow=False)
    assert bench.modes() == [Mode.RUN, Mode.DAMP]
    assert tick.verdict[1] == Verdict.DAMP
    assert tick.safety.stop.tolist() == [False, True]
    (found,) = [v for v in tick.violations if v.world == 1]
    assert (found.kind, found.joint) == (Check.RAMP, ROBOT.joint_names[4])
    assert str(found) == "ramp_not_followed of FL_upper_joint: 0.35 rad, limit 0.3 rad"
    assert not [v for v in bench.tick(follow=False).violations if v.kind == Check.RAMP]


def test_what_runs_is_observe_infer_clip_decode():
    bench = Bench(ramp_s=0.0)
    bench.arm()
    bench.command[0] = [0.5, -0.1, 0.3]
    tick = bench.tick()
    builder = ObservationBuilder(CONTRACT.observation, POSE, 1)
    state = dataclasses.replace(bench.state(), q=np.array([POSE]))
    expected = builder.build(state, bench.command, np.zeros((1, 12)))
    assert np.array_equal(tick.policy.observation, expected)
    mean = expected @ bench.policy.weight
    assert np.array_equal(tick.policy.mean, mean)
    action = np.clip(mean, -4.0, 4.0)
    scale = [j.action_scale for j in ROBOT.joints]
    assert np.allclose(tick.command.q_des, POSE + scale * action, atol=1e-7)
    assert tick.verdict[0] == Verdict.PASS
    assert tick.violations == []


def test_the_previous_action_is_the_clipped_one_of_the_tick_before():
    weight = np.zeros((CONTRACT.observation.dim, 12), dtype=np.float32)
    weight[SLICES["command"].start] = np.linspace(-9.0, 9.0, 12)
    bench = Bench(LinearPolicy(weight=weight), ramp_s=0.0)
    bench.arm()
    bench.command[0, 0] = 1.0
    first, second = bench.tick(follow=False), bench.tick(follow=False)
    assert np.allclose(first.policy.action[0], np.linspace(-9.0, 9.0, 12))
    assert not observed(first, "prev_action").any()
    # The contract clips at 4.
    assert np.allclose(observed(second, "prev_action"), np.clip(np.linspace(-9, 9, 12), -4, 4))


def test_while_ramping_the_policy_remembers_nothing():
    bench = Bench(LinearPolicy(weight=small_weight(seed=2)), ramp_s=0.2)
    bench.q[0] = POSE + 0.3
    bench.arm()
    while bench.modes() == [Mode.RAMP]:
        tick = bench.tick()
        assert not observed(tick, "prev_action").any()
    history = observed(tick, "joint_pos").reshape(3, 12)
    # The first tick that runs: no action before it, and a history of nothing but itself.
    assert np.array_equal(history[0], history[2])
    tick = bench.tick()
    assert observed(tick, "prev_action").any()
    assert not np.array_equal(*observed(tick, "joint_pos").reshape(3, 12)[[0, 2]])


# ------------------------------------------------------------------ stopping and starting again


def test_after_an_emergency_stop_everything_starts_anew_from_where_the_joints_are_now():
    bench = Bench(ramp_s=1.0)
    bench.arm()
    for _ in range(80):
        bench.tick()
    assert bench.modes() == [Mode.RUN]
    bench.controller.safety.estop()
    for _ in range(250):  # 5 s, in which the policy goes on and somebody moves the legs
        tick = bench.tick()
        assert tick.verdict[0] == Verdict.DAMP
        assert not tick.command.kp.any()
        bench.q[0] = np.clip(bench.q[0] + 0.002, POSE - 1.0, POSE + 0.45)
    refused = bench.arm()
    assert [str(v) for v in refused] == ["mode: mode is ESTOP: reset it first"]
    bench.controller.safety.reset_estop()
    assert bench.tick().verdict[0] == Verdict.DAMP  # the reset alone moves nothing
    moved = bench.q[0].copy()
    assert np.abs(moved - POSE).max() > 0.4
    assert bench.arm() == []
    tick = bench.tick()
    # The first target lies at the measured pose, not at the default one and not at the old one.
    assert np.abs(tick.command.q_des[0] - moved).max() < 0.005
    assert not observed(tick, "prev_action").any()


def test_a_fall_stops_and_only_arming_starts_again():
    bench = Bench(ramp_s=0.0, gyro_slack=None)  # no gyroscope confirms such a sudden turn
    bench.arm()
    bench.tick()
    bench.quat[:] = from_rpy([0.0, 1.2, 0.4])
    tick = bench.tick()
    assert [v.kind for v in tick.violations] == [Check.FALL]
    assert bench.modes() == [Mode.DAMP]
    assert [v.kind for v in bench.arm()] == [Check.FALL]  # it still lies
    bench.quat[:] = [1.0, 0.0, 0.0, 0.0]
    for _ in range(10):
        assert bench.tick().verdict[0] == Verdict.DAMP
    assert bench.arm() == []
    assert bench.tick().verdict[0] == Verdict.PASS


def test_arming_twice_is_refused_and_disturbs_nothing():
    bench = Bench(ramp_s=0.0)
    bench.arm()
    bench.tick()
    assert [v.kind for v in bench.arm()] == [Check.MODE]
    assert bench.tick().verdict[0] == Verdict.PASS


@pytest.mark.parametrize("part", ["stale", "nan", "outside"])
def test_arming_is_refused_in_a_state_that_nobody_should_act_on(part):
    bench = Bench()
    if part == "nan":
        bench.q[0, 3] = math.nan
    if part == "outside":
        bench.q[0, 3] = 3.0
    state = bench.state()
    now = bench.now + (10 * DT if part == "stale" else 0)
    reasons = bench.controller.arm(now, state)
    assert len(reasons) == 1
    assert bench.modes() == [Mode.DAMP]
    if part != "stale":
        assert reasons[0].joint == ROBOT.joint_names[3]


def test_disarming_stops():
    bench = Bench(ramp_s=0.0)
    bench.arm()
    bench.tick()
    bench.controller.safety.disarm()
    assert bench.tick().verdict[0] == Verdict.DAMP


# ------------------------------------------------------------------ what breaks


def test_a_policy_that_raises_stops_all_its_robots_and_says_so(caplog):
    bench = Bench(num=3, ramp_s=0.0)
    bench.arm()
    bench.tick()
    bench.policy.broken = True
    with caplog.at_level(logging.ERROR):
        tick = bench.tick()
    assert (tick.verdict == Verdict.DAMP).all()
    assert tick.policy is None
    assert [(v.kind, v.world) for v in tick.violations] == [(Check.EXCEPTION, i) for i in range(3)]
    assert "FerryError: out of order" in str(tick.violations[0])
    assert "out of order" in caplog.text
    bench.policy.broken = False
    assert (bench.tick().verdict == Verdict.DAMP).all()  # no way back without arming


def test_a_policy_that_raises_makes_an_arm_hold_where_it_is():
    contract = dataclasses.replace(CONTRACT, safe_stop="hold")
    bench = Bench(LinearPolicy(contract, small_weight()), ramp_s=0.0)
    bench.arm()
    last = bench.tick().command.q_des.copy()
    bench.policy.broken = True
    tick = bench.tick()
    assert tick.verdict[0] == Verdict.HOLD
    assert np.array_equal(tick.command.q_des, last)
    assert tick.command.kp.all()


@pytest.mark.parametrize(("safe_stop", "verdict"), [("damp", Verdict.DAMP), ("hold", Verdict.HOLD)])
def test_even_a_filter_that_raises_ends_in_the_safe_stop(safe_stop, verdict, monkeypatch):
    contract = dataclasses.replace(CONTRACT, safe_stop=safe_stop)
    bench = Bench(LinearPolicy(contract, small_weight()), ramp_s=0.0)
    bench.arm()
    last = bench.tick().command.q_des.copy()

    def broken(*args, **kwargs):
        raise ZeroDivisionError("dt")

    monkeypatch.setattr(bench.controller.safety.filter, "filter", broken)
    tick = bench.tick()
    assert tick.verdict.tolist() == [verdict]
    assert tick.safety.stop.all()
    assert bench.modes() == [Mode.HOLD if safe_stop == "hold" else Mode.DAMP]
    assert "ZeroDivisionError: dt" in str(tick.violations[0])
    if safe_stop == "hold":
        assert np.array_equal(tick.command.q_des, last)


def test_an_arm_that_damps_since_its_pose_was_never_measured_is_not_said_to_hold(monkeypatch):
    contract = dataclasses.replace(CONTRACT, safe_stop="hold")
    bench = Bench(LinearPolicy(contract, small_weight()), 2)
    bench.q[0, 3] = np.nan
    assert bench.tick().verdict.tolist() == [Verdict.DAMP, Verdict.HOLD]

    def broken(*args, **kwargs):
        raise ZeroDivisionError("dt")

    monkeypatch.setattr(bench.controller.safety.filter, "filter", broken)
    tick = bench.tick()
    assert tick.verdict.tolist() == [Verdict.DAMP, Verdict.HOLD]
    assert not tick.command.kp[0].any()
    assert (tick.command.kd[0] == contract.damping_kd).all()
    assert tick.command.kp[1].all()


def test_a_network_that_answers_nan_is_held_then_stopped_and_its_joints_are_named():
    weight = small_weight()
    weight[:, 5] = np.nan
    bench = Bench(LinearPolicy(weight=weight), ramp_s=0.0, hold_ticks=2)
    bench.arm()
    verdicts = []
    for _ in range(4):
        tick = bench.tick()
        verdicts.append(Verdict(tick.verdict[0]))
        assert np.isfinite(tick.command.q_des).all()
    assert verdicts == [Verdict.HOLD, Verdict.HOLD, Verdict.DAMP, Verdict.DAMP]
    assert bench.modes() == [Mode.DAMP]


def test_the_reason_for_a_stop_is_logged_once(caplog):
    bench = Bench(num=2, ramp_s=0.0, gyro_slack=None)
    bench.arm()
    bench.tick()
    bench.quat[1] = from_rpy([1.5, 0.0, 0.0])
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            bench.tick()
    assert [r.getMessage() for r in caplog.records] == ["robot 1 stops: fall: 1.5 rad, limit 1 rad"]


# ------------------------------------------------------------------ operator's command


def test_the_command_is_brought_into_the_range_of_training():
    bench = Bench(ramp_s=0.0)
    bench.arm()
    bench.command[0] = [9.0, -9.0, 0.3]
    assert np.allclose(observed(bench.tick(), "command"), [1.2, -0.4, 0.3])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_command_that_is_not_finite_counts_as_none(bad):
    bench = Bench(num=2, ramp_s=0.0)
    bench.arm()
    bench.command[:] = [[0.5, bad, 0.3], [0.5, 0.1, 0.3]]
    tick = bench.tick()
    assert np.allclose(observed(tick, "command", 0), 0.0)
    assert np.allclose(observed(tick, "command", 1), [0.5, 0.1, 0.3])
    assert tick.verdict.tolist() == [Verdict.PASS, Verdict.PASS]


# ------------------------------------------------------------------ joints in another order


def reordered(robot: RobotSpec, order) -> RobotSpec:
    return dataclasses.replace(robot, joints=tuple(robot.joints[i] for i in order))


def test_a_robot_with_its_joints_in_another_order_moves_the_same_joints_the_same_way():
    # Distinct gains, scales and default poses; a network whose weights are permuted by name.
    joints = tuple(
        dataclasses.replace(j, kp=30.0 + i, kd=1.0 + 0.1 * i, action_scale=0.1 + 0.02 * i)
        for i, j in enumerate(ROBOT.joints)
    )
    robot = dataclasses.replace(ROBOT, joints=joints)
    order = np.random.default_rng(6).permutation(12)
    plain, mixed = stand_contract(robot), stand_contract(reordered(robot, order))
    weight = np.random.default_rng(3).normal(0.0, 0.3, (plain.observation.dim, 12))
    moved = weight.copy()
    for name in ("joint_pos", "joint_vel", "prev_action"):
        part = plain.observation.slices()[name]
        moved[part] = weight[part][order]
    moved = moved[:, order]
    rng = np.random.default_rng(4)
    a = Bench(LinearPolicy(plain, weight.astype(np.float32)), ramp_s=0.0)
    b = Bench(LinearPolicy(mixed, moved.astype(np.float32)), ramp_s=0.0)
    a.arm()
    b.arm()
    seen = set()
    for _ in range(30):
        a.q[0] = POSE + rng.normal(0.0, 0.1, 12)
        b.q[0] = a.q[0, order]
        a.command[0] = b.command[0] = rng.uniform(-1.0, 1.0, 3)
        first, second = a.tick(follow=False), b.tick(follow=False)
        for field in ("q_des", "kp", "kd"):
            one, other = getattr(first.command, field), getattr(second.command, field)
            assert np.allclose(one[0, order], other[0], atol=1e-6)
        assert first.verdict[0] == second.verdict[0]
        assert {(v.kind, v.joint) for v in first.violations} == {
            (v.kind, v.joint) for v in second.violations
        }
        seen |= {v.joint for v in first.violations}
    assert seen  # limits were met, too


# ------------------------------------------------------------------ many robots


def test_robots_that_are_armed_at_different_times_do_not_disturb_each_other():
    weight = small_weight(seed=7)
    together = Bench(LinearPolicy(weight=weight), num=3, ramp_s=0.1)
    alone = [Bench(LinearPolicy(weight=weight), ramp_s=0.1) for _ in range(3)]
    rng = np.random.default_rng(2)
    for step in range(40):
        for i, start in enumerate((2, 5, 11)):
            if step == start:
                together.arm(np.array([i]))
                alone[i].arm()
        if step == 20:
            together.controller.safety.estop(np.array([1]))
            alone[1].controller.safety.estop()
        together.q = POSE + rng.normal(0.0, 0.02, (3, 12))
        together.command[:] = rng.uniform(-0.4, 0.4, (3, 3))
        tick = together.tick(follow=False)
        for i, bench in enumerate(alone):
            bench.q[0], bench.command[0] = together.q[i], together.command[i]
            single = bench.tick(follow=False)
            assert np.allclose(single.command.q_des[0], tick.command.q_des[i], atol=1e-6)
            assert single.verdict[0] == tick.verdict[i]
            assert single.mode[0] == tick.mode[i]
            assert np.allclose(single.policy.observation[0], tick.policy.observation[i], atol=1e-6)


# ------------------------------------------------------------------ the halves on their own


def test_the_two_halves_apart_do_what_the_controller_does():
    weight = small_weight(seed=5)
    bench = Bench(LinearPolicy(weight=weight), ramp_s=0.1)
    front = PolicyPipeline(LinearPolicy(weight=weight), 1)
    back = SafetyPipeline(CONTRACT, 1, settings=SafetySettings(ramp_s=0.1))
    bench.arm()
    back.arm(bench.now, bench.state())
    rng = np.random.default_rng(0)
    for _ in range(30):
        bench.q[0] = POSE + rng.normal(0.0, 0.05, 12)
        whole = bench.tick(follow=False)
        running = back.advance(bench.now, bench.state())
        state = bench.state()
        halves = back.step(
            bench.now, state, front.step(state, bench.command, running=running).command
        )
        assert np.array_equal(halves.command.q_des, whole.command.q_des)
        assert halves.verdict[0] == whole.verdict[0]
        assert halves.mode[0] == whole.mode[0]


def test_the_caller_may_reuse_its_mask_of_running_robots():
    front = PolicyPipeline(LinearPolicy(weight=small_weight()), 1)
    running = np.array([True])
    bench = Bench()
    front.step(bench.state(), bench.command, running=running)
    running[:] = False
    front.step(bench.state(), bench.command, running=running)
    running[:] = True
    out = front.step(bench.state(), bench.command, running=running)
    assert not out.observation[0, SLICES["prev_action"]].any()


def test_warming_up_leaves_no_memory():
    weight = small_weight(seed=1)
    warm, cold = (PolicyPipeline(LinearPolicy(weight=weight), 1) for _ in range(2))
    warm.warm_up()
    bench = Bench()
    bench.q[0] = POSE + 0.1
    first, second = (p.step(bench.state(), bench.command) for p in (warm, cold))
    assert np.array_equal(first.observation, second.observation)


def test_exploration_samples_around_the_mean_and_its_log_probability_is_the_gaussians():
    front = PolicyPipeline(
        LinearPolicy(weight=small_weight()), 400, explore=np.random.default_rng(0)
    )
    bench = Bench(num=400)
    out = front.step(bench.state(), bench.command)
    noise = (out.action - out.mean) / math.exp(-1.0)
    assert abs(noise.mean()) < 0.05
    assert abs(noise.std() - 1.0) < 0.05
    for world in (0, 7, 399):
        expected = sum(
            -0.5 * z * z - (-1.0) - 0.5 * math.log(2.0 * math.pi) for z in noise[world].tolist()
        )
        assert out.log_prob[world] == pytest.approx(expected, rel=1e-5)


def test_without_exploration_the_mean_is_executed_and_has_the_highest_density():
    front = PolicyPipeline(LinearPolicy(weight=small_weight()), 2)
    bench = Bench(num=2)
    out = front.step(bench.state(), bench.command)
    assert np.array_equal(out.action, out.mean)
    assert out.log_prob == pytest.approx([12.0 - 6.0 * math.log(2.0 * math.pi)] * 2)


def test_targets_keep_the_stamp_of_the_state_they_answer_when_the_state_is_written_over():
    front = PolicyPipeline(LinearPolicy(weight=small_weight()), 1)
    state = Bench().state()
    out = front.step(state, np.zeros((1, 3)))
    state.stamp_ns[:] = 0
    assert out.command.stamp_ns[0] == 10 * S
