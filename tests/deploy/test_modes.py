from __future__ import annotations

import itertools

import numpy as np
import pytest

from deploy.modes import TRANSITIONS, Event, Mode, ModeMachine
from real.errors import FerryError

S = 1_000_000_000
GOAL = np.array([0.5, -1.0])


def machine(num=1, *, safe_stop="damp", ramp_s=2.0, **options) -> ModeMachine:
    return ModeMachine(num, safe_stop=safe_stop, goal=GOAL, ramp_s=ramp_s, **options)


def in_mode(mode: Mode, *, safe_stop="damp") -> ModeMachine:
    """A machine brought there by events alone."""
    made = machine(safe_stop=safe_stop)
    if mode in (Mode.RAMP, Mode.RUN):
        made.arm(0, np.zeros((1, 2)))
    if mode is Mode.RUN:
        made.advance(2 * S, GOAL[None])
    if mode is Mode.ESTOP:
        made.fire(Event.ESTOP)
    assert made.mode[0] == mode
    return made


# What every event does in every mode, for a robot whose safe stop is damping; None is refused.
EXPECTED = {
    Mode.DAMP: {
        Event.ARM: Mode.RAMP,
        Event.RAMPED: None,
        Event.DISARM: Mode.DAMP,
        Event.FAULT: None,
        Event.ESTOP: Mode.ESTOP,
        Event.RESET: Mode.DAMP,
    },
    Mode.RAMP: {
        Event.ARM: None,
        Event.RAMPED: Mode.RUN,
        Event.DISARM: Mode.DAMP,
        Event.FAULT: Mode.DAMP,
        Event.ESTOP: Mode.ESTOP,
        Event.RESET: None,
    },
    Mode.RUN: {
        Event.ARM: None,
        Event.RAMPED: None,
        Event.DISARM: Mode.DAMP,
        Event.FAULT: Mode.DAMP,
        Event.ESTOP: Mode.ESTOP,
        Event.RESET: None,
    },
    Mode.ESTOP: {
        Event.ARM: None,
        Event.RAMPED: None,
        Event.DISARM: None,
        Event.FAULT: None,
        Event.ESTOP: Mode.ESTOP,
        Event.RESET: Mode.DAMP,
    },
}


@pytest.mark.parametrize(("mode", "event"), list(itertools.product(EXPECTED, Event)))
def test_every_event_in_every_mode_does_what_the_table_says(mode, event):
    made = in_mode(mode)
    refused = made.fire(event)
    expected = EXPECTED[mode][event]
    assert refused.tolist() == [expected is None]
    assert made.mode[0] == (mode if expected is None else expected)


@pytest.mark.parametrize("mode", [Mode.RAMP, Mode.RUN])
@pytest.mark.parametrize("event", [Event.DISARM, Event.FAULT])
def test_a_robot_that_would_drop_holds_instead_of_damping(mode, event):
    made = in_mode(mode, safe_stop="hold")
    made.fire(event)
    assert made.mode[0] == Mode.HOLD


def test_only_arming_leaves_a_safe_stop():
    for safe_stop in ("damp", "hold"):
        for event in set(Event) - {Event.ARM, Event.ESTOP}:
            made = machine(safe_stop=safe_stop)
            before = made.mode[0]
            made.fire(event)
            assert made.mode[0] == before


def test_running_is_reached_through_the_ramp_alone():
    assert [key for key, new in TRANSITIONS.items() if new == Mode.RUN] == [
        (Mode.RAMP, Event.RAMPED)
    ]


def test_an_emergency_stop_must_be_reset_and_then_armed():
    made = in_mode(Mode.ESTOP)
    assert made.arm(5 * S, np.zeros((1, 2))).all()
    assert made.mode[0] == Mode.ESTOP
    made.fire(Event.RESET)
    assert made.mode[0] == Mode.DAMP
    assert not made.arm(5 * S, np.zeros((1, 2))).any()
    assert made.mode[0] == Mode.RAMP


def test_an_unknown_safe_stop_is_refused():
    with pytest.raises(FerryError, match="'sit'"):
        machine(safe_stop="sit")


def test_the_ramp_leads_from_the_measured_pose_to_the_goal_at_rest_at_both_ends():
    made = machine()
    pose = np.array([[-0.5, 1.0]])
    made.arm(10 * S, pose)
    at = {t: made.ramp_target(round((10 + t) * S))[0] for t in (0.0, 0.002, 0.5, 1.0, 1.998, 2.0)}
    assert np.allclose(at[0.0], pose[0])
    assert np.allclose(at[2.0], GOAL)
    assert np.allclose(at[1.0], [0.0, 0.0])  # half way: the middle
    # u = 1/4: 3/16 - 2/64 = 5/32 of the way
    assert np.allclose(at[0.5], pose[0] + 5.0 / 32.0 * (GOAL - pose[0]))
    # At the ends it hardly moves: u = 0.001 gives 3e-6 of the way.
    assert np.abs(at[0.002] - at[0.0]).max() < 1e-5
    assert np.abs(at[2.0] - at[1.998]).max() < 1e-5


def test_the_ramp_takes_its_time_and_not_less():
    made = machine()
    made.arm(10 * S, np.zeros((1, 2)))
    made.advance(12 * S - 1, GOAL[None])
    assert made.ramping.all()
    made.advance(12 * S, GOAL[None])
    assert made.running.all()


def test_a_ramp_that_a_joint_did_not_follow_ends_in_the_safe_stop_and_names_the_joint():
    made = machine(4, reach=0.3)
    made.arm(0, np.zeros((4, 2)))
    pose = GOAL + np.array([[0.29, -0.29], [0.0, 0.31], [-0.31, 0.0], [0.0, np.nan]])
    assert made.advance(2 * S - 1, pose) is None, "on the way nobody has to be there"
    assert made.ramping.all()
    far = made.advance(2 * S, pose)
    expected = [[False, False], [False, True], [True, False], [False, True]]
    assert far.tolist() == expected
    assert [Mode(m) for m in made.mode] == [Mode.RUN, Mode.DAMP, Mode.DAMP, Mode.DAMP]
    assert made.advance(3 * S, pose + 9.0) is None, "what runs is not asked again"


def test_a_ramp_of_no_time_asks_nobody_where_he_stands():
    made = machine(ramp_s=0.0, reach=0.1)
    made.arm(10 * S, GOAL[None] + 5.0)
    assert made.running.all()


def test_a_ramp_of_no_time_runs_at_once():
    made = machine(ramp_s=0.0)
    made.arm(10 * S, np.zeros((1, 2)))
    assert made.running.all()


def test_a_second_arming_ramps_from_the_new_pose():
    made = in_mode(Mode.RUN)
    made.fire(Event.FAULT)
    pose = np.array([[0.3, 0.7]])
    made.arm(100 * S, pose)
    assert np.allclose(made.ramp_target(100 * S), pose)


def test_each_of_many_robots_has_a_mode_of_its_own():
    made = machine(4)
    poses = np.arange(8.0).reshape(4, 2)
    made.arm(0, poses, np.array([1, 3]))
    made.advance(1 * S, poses)
    made.arm(1 * S, poses, np.array([0]))
    made.fire(Event.ESTOP, np.array([False, False, True, False]))
    made.advance(2 * S, poses)
    assert [Mode(m) for m in made.mode] == [Mode.RAMP, Mode.RUN, Mode.ESTOP, Mode.RUN]
    refused = made.arm(2 * S, poses)
    assert refused.tolist() == [True, True, True, True]
    made.fire(Event.FAULT, np.array([3]))
    assert [Mode(m) for m in made.mode] == [Mode.RAMP, Mode.RUN, Mode.ESTOP, Mode.DAMP]
