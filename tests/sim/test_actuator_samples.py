"""From a robot's log to samples at the rate of the physics, without what says nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from real.errors import FerryError
from real.log import Log
from real.log_rows import TopicLog
from real.spec import load_robot
from sim.actuator_samples import COMMANDS, STATES, Samples, read_samples, windows

ROBOT = replace(load_robot("panda"), physics_dt_s=0.005, control_dt_s=0.02)
NAMES = [joint.name for joint in ROBOT.actuated]
MS = 1_000_000
T0 = 1_700_000_000_000 * MS


def topic(name: str, at_ms: list[float], names: list[str], **values: np.ndarray) -> TopicLog:
    stamp = np.array([T0 + round(at * MS) for at in at_ms], dtype=np.int64)
    empty = np.zeros((len(at_ms), 0))
    fields = {"position": empty, "velocity": empty, "effort": empty, **values}
    return TopicLog(
        name, "sensor_msgs/msg/JointState", stamp, stamp, fields, (), tuple(names), 0, 0, 0
    )


def made(state_ms: list[float], command_ms: list[float], *, broken: int | None = None) -> Log:
    """At time t [s] joint k is at t + k, with velocity 10 + k and effort t k; told command + k."""
    t, k = np.array(state_ms)[:, None] / 1e3, np.arange(len(NAMES))[::-1]
    told = np.arange(len(command_ms))[:, None] + np.arange(len(NAMES))
    told = told.astype(float)
    if broken is not None:
        told[broken] = np.nan  # a safe stop
    states = topic(
        STATES,
        state_ms,
        NAMES[::-1],  # the driver's order
        position=t + k,
        velocity=0.0 * t + 10.0 + k,
        effort=t * k,
    )
    commands = topic(COMMANDS, command_ms, NAMES, position=told)
    return Log(Path("a.mcap"), {STATES: states, COMMANDS: commands}, {}, {}, None)


def test_targets_hold_from_their_stamps_and_signals_are_joined_by_name():
    # States every 2.5 ms, twice as often as needed; the commands begin 10 ms later.
    log = made([2.5 * i for i in range(17)], [10.0, 30.0])
    (piece,) = read_samples(log, ROBOT)
    at, k = np.array([[10.0, 15, 20, 25, 30, 35, 40]]).T / 1e3, np.arange(len(NAMES))
    np.testing.assert_allclose(piece.q, at + k, atol=1e-6)
    np.testing.assert_allclose(piece.dq, 10.0 + k + 0.0 * at)
    np.testing.assert_allclose(piece.tau, at * k, atol=1e-6)
    np.testing.assert_array_equal(piece.q_des[:, 2], [2, 2, 2, 2, 3, 3, 3])


def test_safe_stops_holes_and_what_follows_the_last_command_are_left_out():
    states = [5.0 * i for i in range(50) if not 12 <= i < 16]  # a hole of 25 ms from 55 to 80 ms
    log = made(states, [0.0, 20, 40, 60, 80, 100, 120, 140], broken=5)
    pieces = read_samples(log, ROBOT)
    # to 50 ms; from 80 ms to the stop at 100 ms; on at 120 ms; 60 ms after the last at 140 ms.
    assert [round(1e3 * p.q[0, 0]) for p in pieces] == [0, 80, 120]
    assert [round(1e3 * p.q[-1, 0]) for p in pieces] == [50, 95, 200]
    seen, tau = windows(pieces, 4)
    assert len(seen) == len(tau) == sum(len(p.q) - 3 for p in pieces)
    # Joint 1 in the first window: four errors, then four velocities, oldest first.
    np.testing.assert_allclose(seen[0, 1, :4], [0.0, -0.005, -0.010, -0.015], atol=1e-6)
    np.testing.assert_allclose(seen[0, 1, 4:], 11.0)
    assert tau[0, 3] == pytest.approx(0.015 * 3, abs=1e-6)
    with pytest.raises(FerryError, match="no 60 samples in a row"):
        windows(pieces, 60)


def test_a_log_that_cannot_tell_is_refused():
    with pytest.raises(FerryError, match=r"states come every 0\.01 s, physics_dt_s is 0\.005 s"):
        read_samples(made([10.0 * i for i in range(9)], [0.0]), ROBOT)
    log = made([5.0 * i for i in range(9)], [0.0])
    mute = replace(log[STATES], values={**log[STATES].values, "effort": np.zeros((9, 0))})
    with pytest.raises(FerryError, match="no efforts"):
        read_samples(replace(log, topics={**log.topics, STATES: mute}), ROBOT)
    other = replace(log[COMMANDS], names=("elbow", *NAMES[1:]))
    with pytest.raises(FerryError, match=f"{COMMANDS} lacks the joints {NAMES[0]}"):
        read_samples(replace(log, topics={**log.topics, COMMANDS: other}), ROBOT)
    with pytest.raises(FerryError, match=r"tau has shape .* or numbers that are not finite"):
        Samples(*(np.zeros((3, 2)) for _ in range(3)), tau=np.full((3, 2), np.nan))
