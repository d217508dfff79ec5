"""What a rehearsal says of velocities and of poses, against sums by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from deploy.channel import Disturbance
from deploy.rehearsal_score import PoseScore, VelocityScore, score_of
from deploy.rehearse import RehearsalResult
from real.reach import ReachSpace
from real.robot_io import GroundTruth
from real.signals import RobotState
from tests.deploy.stand_bundle import stand_contract
from tests.deploy.test_reach import arm_contract

CONTRACT = arm_contract()
SPACE = ReachSpace(CONTRACT.reach, CONTRACT.joints, low=[-1] * 3, high=[1] * 3)
DEFAULT = np.array([j.q_default for j in CONTRACT.joints])
DT = 0.1


def state(q):
    return replace(RobotState.zeros(1, len(q)), q=np.array(q)[None])


def truth(linear, angular):
    return GroundTruth(
        0, np.zeros(3), np.array([1.0, 0, 0, 0]), np.array(linear), np.array(angular)
    )


def test_velocities_are_compared_by_name_and_what_nobody_knows_does_not_count():
    score = VelocityScore(("wz", "vx"))
    command = np.array([1.0, 2.0])
    score.add(command, state(DEFAULT), truth([2.5, 9.0, 9.0], [9.0, 9.0, 1.3]))
    score.add(command, state(DEFAULT), truth([2.0, 9.0, 9.0], [9.0, 9.0, 1.4]))
    score.add(command, state(DEFAULT), None)
    score.miss(command)
    rms = score.result()["rms_error"]
    assert rms["vx"] == pytest.approx(np.sqrt(0.25 / 2))
    assert rms["wz"] == pytest.approx(np.sqrt((0.09 + 0.16) / 2))
    assert VelocityScore(("vx",)).result() == {"rms_error": {}, "poses": None}


def played(*parts):
    """Joint 1, the arm's second, turned by so much [rad] for so many steps, of one command each."""
    score = score_of(CONTRACT, dt_s=DT)
    assert isinstance(score, PoseScore)
    for wanted, turns in parts:
        goal = DEFAULT.copy()
        goal[0] += wanted
        command = np.concatenate(SPACE.kinematics.pose(goal[None]), axis=1)[0]
        for turn in turns:
            if turn is None:
                score.miss(command)
                continue
            q = DEFAULT.copy()
            q[0] += turn
            score.add(command, state(q), None)
    return score.result()["poses"]


def test_poses_count_if_they_are_kept_to_the_end_and_errors_are_means():
    # 2.5 s is fair, 0.2 s at its end are looked at; the link behind the joint is 0.4 m long.
    got = played(
        (0.0, [0.0] * 25),
        (0.3, [0.0] * 12 + [0.27] * 13),  # off by 0.03 rad and about 0.012 m: reached
        (-0.2, [-0.2] * 24 + [-0.05]),  # left it at the end
        (0.5, [0.0] * 20),  # not asked for long enough
    )
    assert (got["asked"], got["reached"]) == (3, pytest.approx(2 / 3))
    turned = [0.0] * 25 + [0.3] * 12 + [0.03] * 13 + [0.0] * 24 + [0.15] + [0.5] * 20
    assert got["angle_rad"] == pytest.approx(np.mean(turned))
    assert got["position_m"] == pytest.approx(np.mean(2 * 0.4 * np.sin(np.array(turned) / 2)))
    assert got["kept_angle_rad"] == pytest.approx(np.mean([0, 0, 0.03, 0.03, 0, 0.15]))


def test_a_stop_within_a_pose_counts_against_it_only_at_its_end():
    early = played((0.0, [0.0] * 10 + [None] + [0.0] * 14))
    late = played((0.0, [0.0] * 24 + [None]))
    assert (early["reached"], late["reached"]) == (1.0, 0.0)
    assert late["angle_rad"] == pytest.approx(0.0)
    short = played((0.0, [0.0] * 3))
    assert (short["asked"], short["reached"], short["kept_angle_rad"]) == (0, None, None)
    assert score_of(CONTRACT, dt_s=DT).result()["poses"] is None
    assert isinstance(score_of(stand_contract(), dt_s=DT), VelocityScore)


def test_the_table_tells_of_poses_in_place_of_velocities_and_falls():
    run = {"samples": 10, "max_difference": 0.0, "falls": 0, "stops": [], "lost": 0, "seconds": 1.0}
    poses = {"asked": 3, "reached": 2 / 3, "position_m": 0.01, "angle_rad": 0.02}
    plain = {**run, "rms_error": {}, "poses": {**poses, "kept_position_m": 0.001}}
    unlucky = {**plain, "poses": {**plain["poses"], "reached": 0.0}, "stops": ["0.1 s: why"]}
    rows = RehearsalResult(plain, unlucky, Disturbance(loss=0.1)).table_rows()
    told = {name: cells for name, *cells in rows}
    assert told["poses reached and kept"] == ["2 of 3", "0 of 3"]
    assert told["mean position error [m]"] == ["0.010", "0.010"]
    assert told["angle error when kept [rad]"] == ["not measured", "not measured"]
    assert told["stops"] == ["0", "1"]
    assert told["first stop"] == ["-", "0.1 s: why"]
    assert "falls" not in told
    walks = {**run, "rms_error": {"vx": 0.1}, "poses": None}
    rows = RehearsalResult(walks, None, Disturbance()).table_rows()
    told = {name: cells for name, *cells in rows}
    assert told["falls"] == ["0", "-"]
    assert told["rms error of vx"] == ["0.100", "-"]
