"""Schedules by hand, and that no rate has two masters."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from real.errors import ConfigError
from training.ppo_config import PpoConfig
from training.run_config import load_run_config
from training.schedules import Schedule, kl_adapted, kl_braked, scheduled


@pytest.mark.parametrize(
    ("kind", "update", "expected"),
    [
        ("constant", 0, 8.0),
        ("constant", 999, 8.0),
        ("linear", 0, 8.0),
        ("linear", 25, 6.5),
        ("linear", 100, 2.0),
        ("linear", 500, 2.0),
        ("cosine", 0, 8.0),
        ("cosine", 25, 8.0 - 6.0 * 0.5 * (1.0 - math.sqrt(0.5))),
        ("cosine", 50, 5.0),
        ("cosine", 100, 2.0),
        ("cosine", 500, 2.0),
    ],
)
def test_a_setting_goes_from_its_start_to_the_end_and_stays(kind, update, expected):
    schedule = Schedule(kind=kind, end=2.0, updates=100)
    assert schedule.value(8.0, update=update) == pytest.approx(expected)


def test_without_a_schedule_a_setting_stays():
    assert scheduled(None, 3.0, update=10**6) == 3.0


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        (0.0129, 1.0),
        (0.0131, 1 / 1.2),
        (0.0078, 1.0),
        (0.0076, 1.2),
        (1e-9, 1.2),
        (0.0, 1.0),
        (-1e-8, 1.0),
        (math.nan, 1 / 1.2),
        (math.inf, 1 / 1.2),
        (-math.inf, 1 / 1.2),
    ],
)
def test_the_step_size_follows_the_kl_and_never_rises_on_none_or_a_broken_one(kl, factor):
    rate = kl_adapted(1e-3, kl=kl, desired=0.01, low=1e-5, high=1e-2)
    assert rate == pytest.approx(1e-3 * factor)


@pytest.mark.parametrize(
    ("kl", "factor"), [(0.0, 1.0), (0.039, 1.0), (0.041, 1 / 1.5), (math.nan, 1 / 1.5)]
)
def test_a_minibatch_that_went_much_too_far_slows_the_next(kl, factor):
    assert kl_braked(1e-3, kl=kl, desired=0.01, low=1e-5) == pytest.approx(1e-3 * factor)


def test_the_step_size_stays_within_its_bounds():
    assert kl_adapted(1e-3, kl=1.0, desired=0.01, low=9e-4, high=2e-3) == 9e-4
    assert kl_adapted(1e-3, kl=1e-6, desired=0.01, low=9e-4, high=1.1e-3) == 1.1e-3
    assert kl_braked(1e-3, kl=1.0, desired=0.01, low=9e-4) == 9e-4


def test_two_controllers_on_one_rate_are_an_error_that_names_both():
    linear = {"learning_rate": {"kind": "linear", "end": 0.0, "updates": 10}}
    with pytest.raises(ValidationError, match=r"two controllers on one rate: desired_kl .* null"):
        PpoConfig(desired_kl=0.01, schedules=linear)
    assert PpoConfig(desired_kl=None, schedules=linear).schedules.learning_rate is not None
    # The critic's rate is not the KL's.
    PpoConfig(desired_kl=0.01, schedules={"critic_learning_rate": {"kind": "linear"}})


def test_a_task_file_with_two_controllers_is_refused_and_one_with_one_is_not():
    schedule = "training.ppo.schedules.learning_rate={kind: cosine, end: 0.0, updates: 100}"
    with pytest.raises(ConfigError, match="two controllers on one rate"):
        load_run_config("a1_walk", [schedule])
    config = load_run_config("a1_walk", [schedule, "training.ppo.desired_kl=null"])
    assert config.training.ppo.schedules.learning_rate == Schedule(
        kind="cosine", end=0.0, updates=100
    )


def test_bounds_of_the_step_size_in_the_wrong_order_are_refused():
    with pytest.raises(ValidationError, match=r"min_learning_rate 0.1 is above"):
        PpoConfig(min_learning_rate=0.1, max_learning_rate=0.01)
