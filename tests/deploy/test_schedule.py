from __future__ import annotations

import numpy as np
import pytest

from deploy.schedule import Schedule, arm_tour, tour
from real.errors import FerryError
from real.reach import ReachSpace
from tests.deploy.stand_bundle import LIMITS, stand_contract
from tests.deploy.test_reach import arm_contract


def test_a_schedule_survives_its_file(tmp_path):
    commands = np.array([[0.1, 0.2, 1 / 3], [0.4, 0.5, 0.6]])
    Schedule(0.05, ("vx", "vy", "wz"), commands).save(tmp_path / "s.json")
    got = Schedule.load(tmp_path / "s.json")
    np.testing.assert_array_equal(got.commands, commands)
    assert (got.dt_s, got.names, got.seconds) == (0.05, ("vx", "vy", "wz"), 0.1)


def test_the_beginning_of_a_schedule():
    schedule = Schedule(0.02, ("vx",), np.arange(100.0)[:, None])
    np.testing.assert_array_equal(schedule.first(0.1).commands[:, 0], np.arange(5.0))
    assert schedule.first(99.0).seconds == 2.0


@pytest.mark.parametrize(
    ("dt", "commands", "words"),
    [
        (0.05, np.zeros((0, 2)), "at least one row of 2"),
        (0.05, np.zeros((3, 3)), r"shape \(3, 3\)"),
        (0.5, np.zeros((3, 2)), "dt is 0.5 s; expected 0.002 to 0.25 s"),
        (0.05, np.array([[0.0, 0.0], [0.0, np.nan]]), "command 1 is not finite"),
    ],
)
def test_schedules_that_cannot_be_played_are_refused(dt, commands, words):
    with pytest.raises(FerryError, match=words):
        Schedule(dt, ("vx", "wz"), commands)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"dt": 0.05}', '{"dt": "x", "names": [], "commands": []}']
)
def test_files_that_are_no_schedule_are_refused_by_name(tmp_path, text):
    path = tmp_path / "s.json"
    path.write_text(text)
    with pytest.raises(FerryError, match=r"s\.json"):
        Schedule.load(path)
    with pytest.raises(FerryError, match="cannot be read"):
        Schedule.load(tmp_path / "none.json")


@pytest.mark.parametrize("seconds", [3.0, 20.0, 60.0])
def test_a_tour_visits_both_ends_of_every_command_one_at_a_time_and_stands_between(seconds):
    schedule = tour(LIMITS, seconds=seconds)
    assert schedule.seconds == pytest.approx(seconds, abs=0.1)
    rows = schedule.commands
    np.testing.assert_allclose(rows.max(axis=0), [0.72, 0.24, 0.6])
    np.testing.assert_allclose(rows.min(axis=0), [-0.48, -0.24, -0.6])
    assert ((rows != 0).sum(axis=1) <= 1).all()
    assert not rows[0].any()
    assert not rows[-1].any()
    changes = np.flatnonzero(np.any(np.diff(rows, axis=0) != 0, axis=1))
    assert len(changes) == 12  # six legs, each begun and ended


def test_an_arms_tour_begins_at_rest_and_asks_for_poses_that_it_can_reach(tmp_path):
    contract = arm_contract()
    arm_tour(contract, seconds=10.0, stay_s=4.0).save(tmp_path / "s.json")
    got = Schedule.load(tmp_path / "s.json")
    assert (got.frame, got.seconds, got.commands.shape) == ("panda_link0", 10.0, (200, 7))
    box = {"low": contract.command.low, "high": contract.command.high}
    space = ReachSpace(contract.reach, contract.joints, **box)
    np.testing.assert_allclose(got.commands[0], space.rest)
    assert space.inside(got.commands).all()
    # 80 rows each, and the last pose cut short.
    changes = np.flatnonzero(np.abs(np.diff(got.commands, axis=0)).max(axis=1) > 1e-9) + 1
    assert changes.tolist() == [80, 160]
    with pytest.raises(FerryError, match="not commanded poses"):
        arm_tour(stand_contract())
