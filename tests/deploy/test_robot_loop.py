from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from deploy.robot_loop import RobotLoop
from real.errors import FerryError
from real.loopback import LoopbackRobot
from real.spec import load_robot

A1 = load_robot("a1")
MS = 1_000_000


class Clock:
    """Time that moves only when somebody sleeps, plus what a step is told to cost."""

    def __init__(self):
        self.ns = 10**9
        self.slept = []

    def __call__(self):
        return self.ns

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.ns += round(seconds * 1e9)


class Recording(LoopbackRobot):
    """A loopback robot that remembers what it was told; `at` lets a test act at a call."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.commands = []
        self.closed = 0
        self.at = {}

    def exchange(self, command):
        self.commands.append(command)
        action = self.at.get(len(self.commands))
        if action is not None:
            action()
        return super().exchange(command)

    def close(self):
        self.closed += 1
        super().close()


@pytest.fixture
def clock():
    return Clock()


def make(clock, spec=A1, **options):
    robot = Recording(spec, clock=clock, **options)
    published = []
    loop = RobotLoop(
        robot,
        spec,
        command_timeout_s=0.06,
        publish=published.append,
        clock=clock,
        sleep=clock.sleep,
    )
    return loop, robot, published


def damps(command):
    return bool((command.kp == 0).all() and (command.kd == 3.0).all() and not command.tau_ff.any())


def target(offset=0.1):
    return A1.actuated_array("q_default") + offset


def test_the_first_command_is_the_safe_stop_even_if_targets_wait(clock):
    loop, robot, published = make(clock)
    loop.command(target())
    clock.ns += 61 * MS  # what waited from before the start is old by then
    robot.at = {3: loop.stop}
    loop.run()
    assert damps(robot.commands[0])
    assert len(published) == 4  # the first state and one per call; none after the last stop


def test_targets_are_applied_with_the_robots_own_gains(clock):
    joints = tuple(replace(j, kp=10.0 + i, kd=0.1 * i) for i, j in enumerate(A1.joints))
    spec = replace(A1, joints=joints)
    loop, robot, _ = make(clock, spec)
    robot.at = {1: lambda: loop.command(target()), 3: loop.stop}
    loop.run()
    sent = robot.commands[1]
    np.testing.assert_array_equal(sent.q_des, [target()])
    np.testing.assert_array_equal(sent.kp, [[10.0 + i for i in range(12)]])
    np.testing.assert_allclose(sent.kd, [[0.1 * i for i in range(12)]])
    assert not sent.dq_des.any()
    assert not sent.tau_ff.any()


def test_a_command_is_used_until_it_is_three_control_periods_old_and_not_longer(clock):
    loop, robot, _ = make(clock)
    robot.at = {1: lambda: loop.command(target()), 20: loop.stop}
    loop.run()
    # Calls are 5 ms apart: 60 ms are reached at call 13, exceeded at call 14.
    stopped = [damps(c) for c in robot.commands[:20]]
    assert stopped == [True] + [False] * 12 + [True] * 7
    assert loop.reason == "newest command is 95 ms old"


def test_an_empty_command_stops_at_once_and_names_its_reason(clock):
    loop, robot, _ = make(clock)
    robot.at = {
        1: lambda: loop.command(target()),
        3: lambda: loop.command(None, reason="joints do not fit"),
        4: loop.stop,
    }
    loop.run()
    assert [damps(c) for c in robot.commands[:4]] == [True, False, False, True]
    assert loop.reason == "joints do not fit"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_targets_that_are_not_finite_are_a_safe_stop_that_names_the_joint(clock, bad):
    loop, robot, _ = make(clock)
    broken = target()
    broken[7] = bad
    robot.at = {1: lambda: loop.command(broken), 3: loop.stop}
    loop.run()
    assert all(damps(c) for c in robot.commands)
    assert loop.reason == f"command is not finite for {A1.joints[7].name}"


def test_while_blocked_fresh_targets_are_refused(clock):
    loop, robot, _ = make(clock)
    loop.block("2 publishers on /joint_command")
    robot.at = {
        1: lambda: loop.command(target()),
        3: lambda: loop.block(""),
        4: lambda: loop.command(target()),
        6: loop.stop,
    }
    loop.run()
    assert [damps(c) for c in robot.commands[:6]] == [True, True, True, False, False, False]


def test_a_robot_that_must_hold_holds_the_pose_in_which_it_stopped(clock):
    spec = replace(A1, safe_stop="hold")
    loop, robot, published = make(clock, spec)
    robot.at = {
        1: lambda: loop.command(target(0.2)),
        5: lambda: loop.command(None),
        9: loop.stop,
    }
    loop.run()
    held = [c.q_des[0] for c in robot.commands[5:9]]
    np.testing.assert_array_equal(held[0], published[5].q[0])  # the state after call 5
    for later in held[1:]:
        np.testing.assert_array_equal(later, held[0])
    assert (robot.commands[5].kp == 40.0).all()


def test_a_missed_deadline_is_counted_and_followed_by_no_burst(clock):
    loop, robot, _ = make(clock)

    def slow():
        clock.ns += 23 * MS

    robot.at = {4: slow, 10: loop.stop}
    loop.run()
    assert loop.missed == 3  # due 5 ms later, over by 18 ms: three periods of 5 ms
    # After the miss, every further call waits a whole period.
    np.testing.assert_allclose(clock.slept[3:], 0.005)
    assert loop.lateness.percentile(100) == pytest.approx(0.018)


def test_period_errors_are_of_all_steps_or_of_those_since_it_counts_anew(clock):
    loop, robot, _ = make(clock)

    def slow():
        clock.ns += 23 * MS

    robot.at = {4: slow, 9: loop.stop}
    loop.run()
    # Woken 23 ms after the time before in place of 5 ms; all others are on time.
    assert loop.period_error.count == 8
    assert loop.period_error.longest_s == pytest.approx(0.018)
    assert loop.period_error.percentile(50) < 1e-6

    loop, robot, _ = make(clock)
    robot.at = {4: slow, 6: loop.count_anew, 9: loop.stop}
    loop.run()
    assert loop.period_error.count == 4
    assert loop.period_error.longest_s < 1e-6


def test_deadlines_are_absolute_so_work_does_not_stretch_the_period(clock):
    loop, robot, _ = make(clock)

    def work():
        clock.ns += 2 * MS

    robot.at = dict.fromkeys(range(1, 40), work) | {40: loop.stop}
    begin = clock.ns
    loop.run()
    assert clock.ns - begin == pytest.approx(40 * 5 * MS)
    assert loop.missed == 0


@pytest.mark.parametrize("raised", [OSError, SystemExit, KeyboardInterrupt])
def test_an_exception_of_the_driver_ends_in_a_safe_stop_and_a_closed_driver(clock, raised):
    loop, robot, _ = make(clock)

    def breaks():
        raise raised("cable")

    robot.at = {1: lambda: loop.command(target()), 5: breaks}
    with pytest.raises(raised, match="cable"):
        loop.run()
    assert damps(robot.commands[-1])
    assert len(robot.commands) == 6
    assert robot.closed == 1


def test_a_driver_that_fails_again_in_the_stop_is_closed_all_the_same(clock):
    loop, robot, _ = make(clock)

    def breaks():
        raise OSError("cable")

    robot.at = {2: breaks, 3: breaks}
    with pytest.raises(OSError, match="cable"):
        loop.run()
    assert robot.closed == 1


def test_a_state_of_the_wrong_size_is_refused(clock):
    loop, robot, _ = make(clock)
    original = robot.start
    robot.start = lambda: replace(original(), q=np.zeros((1, 11)))
    with pytest.raises(FerryError, match=r"shape \(1, 11\); expected \(1, 12\)"):
        loop.run()
    assert robot.closed == 1


def test_the_end_is_a_safe_stop(clock):
    loop, robot, _ = make(clock)
    robot.at = {1: lambda: loop.command(target()), 3: loop.stop}
    loop.run()
    assert [damps(c) for c in robot.commands] == [True, False, False, True]
    assert robot.closed == 1
