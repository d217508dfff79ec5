"""Scoring a recorded drive: pairing by time, falls, stops, and what the filter changed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from real.errors import FerryError
from real.log import Log
from real.log_rows import TopicLog
from real.spec import load_robot
from training.drive import drive_poses, score_drive

ROBOT = load_robot("a1")
DT = ROBOT.control_dt_s
#: Receiving starts here [ns since 1970]; stamps count from somewhere else, as in simulation.
EPOCH = 1_790_000_000 * 10**9
ORIGIN = 5_000 * 10**9
#: The robot runs from this time of the recording [s].
RUN_S = 0.5


def ns(seconds) -> np.ndarray:
    return np.rint(np.asarray(seconds, dtype=np.float64) * 1e9).astype(np.int64)


def topic(name, kind, log_s, values=None, *, stamp_ns=None, text=(), names=()) -> TopicLog:
    log_ns = EPOCH + ns(log_s)
    return TopicLog(
        topic=name,
        type_name=kind,
        stamp_ns=log_ns if stamp_ns is None else stamp_ns,
        log_ns=log_ns,
        values=values or {},
        text=tuple(text),
        names=tuple(names),
        dropped=0,
        refused=0,
        backwards=0,
    )


def vectors(x, y, z) -> np.ndarray:
    return np.stack(np.broadcast_arrays(x, y, z), axis=1).astype(np.float64)


def recording(seconds=6.0, *, end_s=None, error=(0.0, 0.0, 0.0)) -> Log:
    """A robot that follows a command, off by ``error``, and 200 states a second.

    The command is (0.5, -0.2, 0.3), and from 3 s after RUN (-0.4, 0.1, -0.6).
    """
    states_s = np.arange(0.0, RUN_S + seconds + 0.5, 0.005)
    stamps = ORIGIN + ns(states_s)
    orders_s = np.arange(0.013, states_s[-1], DT)
    late = orders_s >= RUN_S + 3.0
    orders = np.where(late[:, None], [-0.4, 0.1, -0.6], [0.5, -0.2, 0.3])
    # What the robot does follows the newest order by half a millisecond, error aside.
    newest = np.maximum(np.searchsorted(orders_s, states_s - 0.0005, side="right") - 1, 0)
    done = orders[newest] + np.array(error)
    count = states_s.size
    quat = np.tile([1.0, 0.0, 0.0, 0.0], (count, 1))
    q = np.tile(ROBOT.q_default, (count, 1)) + 0.001 * np.arange(12)
    ticks = slice(0, None, 4)
    names, order = list(ROBOT.joint_names), np.roll(np.arange(12), 5)
    sent_s, sent_q = states_s[ticks] + 0.002, q[ticks]
    end_s = RUN_S + seconds + 0.05 if end_s is None else RUN_S + end_s
    joints = "sensor_msgs/msg/JointState"
    topics = [
        topic(
            "/cmd_vel",
            "geometry_msgs/msg/Twist",
            orders_s,
            {
                "linear": vectors(orders[:, 0], orders[:, 1], 7.0),
                "angular": vectors(7.0, 7.0, orders[:, 2]),
            },
        ),
        topic(
            "/ground_truth/odom",
            "nav_msgs/msg/Odometry",
            states_s,
            {
                "position": vectors(states_s, 2.0, 0.28),
                "quat": quat,
                "linear": vectors(done[:, 0], done[:, 1], 9.0),
                "angular": vectors(9.0, 9.0, done[:, 2]),
            },
            stamp_ns=stamps,
        ),
        topic(
            "/safety/mode",
            "std_msgs/msg/String",
            [0.0, 0.1, RUN_S, end_s],
            text=["DAMP", "RAMP", "RUN", "DAMP"],
        ),
        topic("/joint_states", joints, states_s, {"position": q}, stamp_ns=stamps, names=names),
        topic(
            "/policy/joint_command",
            joints,
            sent_s,
            {"position": sent_q.copy()},
            stamp_ns=stamps[ticks],
            names=names,
        ),
        # The safety node names the joints in another order.
        topic(
            "/joint_command",
            joints,
            sent_s + 0.001,
            {"position": sent_q[:, order].copy()},
            stamp_ns=stamps[ticks],
            names=[names[i] for i in order],
        ),
    ]
    return Log(Path("drive.mcap"), {t.topic: t for t in topics}, {}, {}, None)


def changed(log: Log, name: str, **fields) -> Log:
    return replace(log, topics={**log.topics, name: replace(log[name], **fields)})


def test_a_perfect_robot_loses_only_the_steps_in_which_the_command_jumped():
    drive = score_drive(recording(), ROBOT, seconds=6.0)
    assert drive.time_s.shape == (300,)
    assert drive.velocity.shape == drive.command.shape == (300, 3)
    np.testing.assert_allclose(drive.command[0], [0.5, -0.2, 0.3])
    np.testing.assert_allclose(drive.command[-1], [-0.4, 0.1, -0.6])
    # The order is in force from the step after it came, the robot obeys within that step, so one
    # of the 250 steps that count has the error (0.9, -0.3, 0.9):
    jump = (2.0 * math.exp(-0.9 / 0.25) + math.exp(-0.81 / 0.25)) / 3.0
    assert drive.tracking == pytest.approx((249.0 + jump) / 250.0, abs=1e-12)
    assert (drive.falls, drive.fallen_s, drive.stopped_s) == (0, None, None)
    assert drive.clamped_share == 0.0


def test_the_score_is_the_formula_of_a_constant_error():
    drive = score_drive(recording(2.5, error=(0.3, -0.4, 0.2)), ROBOT, seconds=2.5)
    # ex^2 + ey^2 = 0.25, ewz^2 = 0.04
    expected = (2.0 * math.exp(-1.0) + math.exp(-0.16)) / 3.0
    assert drive.tracking == pytest.approx(expected, abs=1e-12)
    np.testing.assert_allclose(drive.velocity[7], [0.8, -0.6, 0.5])


def test_a_tilt_ends_the_score_and_counts_as_one_fall():
    log = recording(2.5)
    odom = log["/ground_truth/odom"]
    quat = odom.values["quat"].copy()
    fallen = odom.log_ns >= EPOCH + ns(RUN_S + 1.999)
    quat[fallen] = [math.cos(0.55), 0.0, math.sin(0.55), 0.0]  # 1.1 rad about y
    log = changed(log, "/ground_truth/odom", values={**odom.values, "quat": quat})
    drive = score_drive(log, ROBOT, seconds=2.5)
    assert drive.falls == 1
    assert drive.fallen_s == pytest.approx(2.0)
    # Perfect in the steps that end at 1.02 ... 1.98 s: 49 of the 75 that count.
    assert drive.tracking == pytest.approx(49.0 / 75.0)


def test_a_low_base_counts_as_fallen_after_a_fifth_of_a_second():
    log = recording(2.5)
    odom = log["/ground_truth/odom"]
    position = odom.values["position"].copy()
    low = odom.log_ns >= EPOCH + ns(RUN_S + 1.999)
    assert ROBOT.fall_height_m is not None
    position[low, 2] = ROBOT.fall_height_m - 0.01
    log = changed(log, "/ground_truth/odom", values={**odom.values, "position": position})
    # Low in the 10 steps that end at 2.00 ... 2.18 s.
    assert score_drive(log, ROBOT, seconds=2.5).fallen_s == pytest.approx(2.18)


def test_a_stop_by_the_safety_node_scores_nothing_afterwards_but_is_no_fall():
    drive = score_drive(recording(2.5, end_s=1.5), ROBOT, seconds=2.5)
    assert drive.stopped_s == pytest.approx(1.5)
    assert drive.falls == 0
    assert np.isfinite(drive.velocity[:75]).all()
    assert np.isnan(drive.velocity[75:]).all()
    assert drive.tracking == pytest.approx(25.0 / 75.0)


def test_truth_that_stops_coming_scores_nothing_and_is_no_fall():
    log = recording(3.0)
    odom = log["/ground_truth/odom"]
    keep = odom.log_ns <= EPOCH + ns(RUN_S + 1.5)
    values = {k: v[keep] for k, v in odom.values.items()}
    log = changed(
        log,
        "/ground_truth/odom",
        values=values,
        log_ns=odom.log_ns[keep],
        stamp_ns=odom.stamp_ns[keep],
    )
    drive = score_drive(log, ROBOT, seconds=3.0)
    assert drive.falls == 0
    # Believed until half a second after the last one: steps ending at 1.02 ... 2.00 s of 3 s.
    assert drive.tracking == pytest.approx(50.0 / 100.0)


def test_commands_that_the_filter_changed_are_counted_by_stamp_and_name():
    log = recording(2.0)
    sent = log["/joint_command"]
    position = sent.values["position"].copy()
    inside = np.flatnonzero(sent.log_ns >= EPOCH + ns(RUN_S + 0.01))
    position[inside[:7], 3] += 0.02
    position[inside[10]] = np.nan  # a safe stop
    log = changed(log, "/joint_command", values={"position": position})
    asked = log["/policy/joint_command"].log_ns - EPOCH - ns(RUN_S)
    commands = int(((asked >= 0) & (asked <= ns(2.0))).sum())
    assert score_drive(log, ROBOT, seconds=2.0).clamped_share == pytest.approx(8 / commands)


def test_shuffled_commands_give_the_same_share():
    log = recording(2.0)
    sent = log["/joint_command"]
    position = sent.values["position"].copy()
    position[::3] += 0.1
    one = changed(log, "/joint_command", values={"position": position})
    turn = np.random.default_rng(0).permutation(len(sent))
    other = changed(
        one,
        "/joint_command",
        values={"position": position[turn]},
        stamp_ns=sent.stamp_ns[turn],
        log_ns=sent.log_ns[turn],
    )
    share = score_drive(one, ROBOT, seconds=2.0).clamped_share
    assert 0.2 < share < 0.5
    assert score_drive(other, ROBOT, seconds=2.0).clamped_share == share


def test_a_robot_that_never_ran_is_refused_with_the_modes_seen():
    log = recording()
    log = changed(log, "/safety/mode", text=("DAMP", "RAMP", "DAMP", "DAMP"))
    with pytest.raises(FerryError, match="never ran; modes in it: DAMP, RAMP"):
        score_drive(log, ROBOT, seconds=6.0)


def test_a_missing_topic_is_named():
    log = recording()
    topics = {k: v for k, v in log.topics.items() if k != "/cmd_vel"}
    with pytest.raises(FerryError, match="/cmd_vel"):
        score_drive(replace(log, topics=topics), ROBOT, seconds=6.0)


def test_poses_take_joints_by_name_and_end_with_the_drive():
    log = recording(2.0)
    joints = log["/joint_states"]
    order = np.roll(np.arange(12), 3)
    log = changed(
        log,
        "/joint_states",
        names=tuple(joints.names[i] for i in order),
        values={"position": joints.values["position"][:, order]},
    )
    poses = drive_poses(log, ROBOT, start_s=0.25, seconds=60.0)
    np.testing.assert_allclose(poses.q, np.tile(joints.values["position"][0], (len(poses.q), 1)))
    np.testing.assert_allclose(poses.position_w[:, 0], RUN_S + 0.25 + poses.time_s, atol=1e-6)
    assert poses.time_s[0] == 0.0
    assert poses.time_s[-1] == pytest.approx(1.8, abs=0.005)
    with pytest.raises(FerryError, match="less than 5 s"):
        drive_poses(log, ROBOT, start_s=5.0, seconds=1.0)
