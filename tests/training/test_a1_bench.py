"""When a run of A1 reached its goal, from the records that it leaves."""

from __future__ import annotations

import json

import pytest

from real.errors import FerryError
from training.a1_bench import A1Times, Reached, median, reached

METRICS = [
    {"step": 100, "time/training_s": 10.0, "time/evaluation_s": 0.0},
    {"step": 100, "evaluation/score": 0.3},
    {"step": 200, "time/training_s": 25.0, "time/evaluation_s": 3.0},
    {"step": 300, "time/training_s": 40.0, "time/evaluation_s": 6.0},
]
SCORES = [
    {"step": 100, "score": 0.3},
    {"step": 300, "score": 0.9},
    {"step": 200, "score": 0.86},
]


def test_the_time_is_that_of_the_first_policy_that_scores_enough_not_of_its_score():
    serial = reached(SCORES, METRICS, pauses=True)
    assert serial == Reached(25.0, 22.0, 200, 0.9)
    # Beside training, evaluation is no pause.
    assert reached(SCORES, METRICS, pauses=False).without_evaluation_s == 25.0
    assert reached(SCORES, METRICS, pauses=True, goal=0.87).seconds == 40.0


def test_a_run_that_does_not_get_there_says_how_far_it_came():
    assert reached(SCORES, METRICS, pauses=True, goal=0.95) == Reached(None, None, None, 0.9)
    with pytest.raises(FerryError, match="too short; give it more minutes"):
        reached([], METRICS, pauses=True)


def test_a_run_that_does_not_get_there_is_longer_than_all_that_do():
    assert median([30.0, None, 10.0]) == 30.0
    assert median([None, None, 10.0]) is None


def run(seconds: float | None) -> Reached:
    return Reached(seconds, seconds, 1000, 0.9)


def test_the_ratio_is_of_the_medians():
    times = A1Times(
        {"serial": (run(100.0), run(90.0), run(300.0)), "ray": (run(120.0), run(500.0), run(60.0))}
    )
    found = json.loads(json.dumps(times.as_json()))
    assert found["seconds"] == {"serial": 100.0, "ray": 120.0}
    assert found["ratio"] == pytest.approx(1.2)
    assert len(found["runs"]["ray"]) == 3
    assert "1.20" in times.rows()["ray over serial"]
    never = A1Times({"serial": (run(100.0),), "ray": (run(None),)})
    assert never.ratio is None
    assert "not reached, best 0.900" in never.rows()["ray"]
