"""Sensors err as they are told to, each world by itself, and only where told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from real.config import Config, load_config
from real.errors import ConfigError, FerryError
from real.frames import conjugate, from_rpy, multiply
from real.signals import RobotState
from sim.sensors import BLOCK, SensorConfig, Sensors
from sim.streams import make_streams, pack_streams, reseed, unpack_streams

N, J = 5, 7

ALL: dict[str, Any] = {
    "q": {"noise": 0.01, "bias": 0.05},
    "dq": {"noise": 0.5},
    "gyro": {"noise": 0.1, "bias": 0.2},
    "acc": {"bias": 0.3},
    "orientation": {"noise": 0.02, "bias": 0.03},
}


def true_state(num: int = N, seed: int = 0) -> RobotState:
    rng = np.random.default_rng(seed)
    return RobotState(
        stamp_ns=np.arange(num, dtype=np.int64) * 1000,
        q=rng.uniform(-1, 1, (num, J)),
        dq=rng.uniform(-9, 9, (num, J)),
        tau=rng.uniform(-9, 9, (num, J)),
        quat_wb=from_rpy(rng.uniform(-3, 3, (num, 3))),
        gyro_b=rng.uniform(-2, 2, (num, 3)),
        acc_b=rng.uniform(-9, 9, (num, 3)),
    )


def sensors(config: Any, num: int = N, seed: int = 0) -> Sensors:
    made = Sensors(config, num, make_streams(seed, num)["sensor"], joints=J)
    made.reset(np.arange(num))
    return made


def turn(true: RobotState, sensed: RobotState) -> np.ndarray:
    """Rotation vectors ``[N, 3]`` from the true to the sensed attitude, in the base frame."""
    error = multiply(conjugate(true.quat_wb), sensed.quat_wb)
    return 2.0 * error[:, 1:] * np.sign(error[:, :1])


def errors(true: RobotState, sensed: RobotState) -> np.ndarray:
    """All errors ``[N, 2 J + 9]``: q, dq, gyro, acc, orientation."""
    parts = [getattr(sensed, k) - getattr(true, k) for k in ("q", "dq", "gyro_b", "acc_b")]
    return np.concatenate([*parts, turn(true, sensed)], axis=1)


def assert_same(left: RobotState, right: RobotState) -> None:
    for name, value in left.reported().items():
        np.testing.assert_array_equal(value, getattr(right, name), err_msg=name)


def test_perfect_sensors_report_the_truth_itself() -> None:
    true = true_state()
    perfect = sensors(None)
    assert perfect.sense(true) is true
    assert perfect.sense_rows(true, np.array([2]), true_state(seed=1)) is true
    perfect.load_state_dict(perfect.state_dict())


def test_errors_have_the_spread_that_was_asked_for() -> None:
    true, steps = true_state(), 40 * BLOCK
    noisy = sensors(ALL)
    found = np.stack([errors(true, noisy.sense(true)) for _ in range(steps)])
    spread = found.std(axis=0)
    expected = np.repeat([0.01, 0.5, 0.1, 0.0, 0.02], [J, J, 3, 3, 3])
    # The spread of a standard deviation of 1280 numbers is 2 %; 5 of those.
    np.testing.assert_allclose(spread, np.tile(expected, (N, 1)), rtol=0.1, atol=1e-9)
    # Noise is white: no step knows of the one before, also across the ends of blocks.
    noise = (found - found.mean(axis=0))[:, :, :J]
    lagged = (noise[1:] * noise[:-1]).mean(axis=0) / noise.var(axis=0)
    assert np.abs(lagged).max() < 5 / np.sqrt(steps)
    again = (noise[BLOCK:] * noise[:-BLOCK]).mean(axis=0) / noise.var(axis=0)
    assert np.abs(again).max() < 5 / np.sqrt(steps - BLOCK)
    mixed = np.corrcoef(noise.reshape(steps, -1).T) - np.eye(N * J)
    assert np.abs(mixed).max() < 6 / np.sqrt(steps), "worlds or joints share noise"


def test_biases_last_an_episode_and_stay_within_their_bounds() -> None:
    true, biased = true_state(), sensors({"q": {"bias": 0.05}, "acc": {"bias": 0.3}})
    first = errors(true, biased.sense(true))
    np.testing.assert_array_equal(errors(true, biased.sense(true)), first)
    biased.reset(np.array([3, 1]))
    second = errors(true, biased.sense(true))
    np.testing.assert_array_equal(second[[0, 2, 4]], first[[0, 2, 4]])
    assert (second[[1, 3], :J] != first[[1, 3], :J]).all()
    many = sensors({"q": {"bias": 0.05}}, num=300)
    true = true_state(300)
    found = errors(true, many.sense(true))[:, :J]
    assert np.abs(found).max() <= 0.05 and np.abs(found).max() > 0.0499
    assert abs(found.std() - 0.05 / np.sqrt(3)) < 0.001, "uniform"


def test_what_is_not_named_is_untouched() -> None:
    true = true_state()
    sensed = sensors({"gyro": {"noise": 0.1}}).sense(true)
    for name in ("stamp_ns", "q", "dq", "tau", "quat_wb", "acc_b"):
        assert getattr(sensed, name) is getattr(true, name)
    assert (sensed.gyro_b != true.gyro_b).all()


def test_attitude_errs_in_the_base_frame_whatever_the_attitude() -> None:
    config = {"orientation": {"noise": 0.02, "bias": 0.03}}
    upright = RobotState.zeros(N, J)
    tilted = true_state()
    left, right = sensors(config).sense(upright), sensors(config).sense(tilted)
    np.testing.assert_allclose(turn(upright, left), turn(tilted, right), atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(right.quat_wb, axis=1), 1.0, rtol=1e-12)
    assert np.abs(turn(tilted, right)).max() > 0.005


def test_a_world_errs_the_same_whatever_the_others_do() -> None:
    true = true_state()
    calm, busy = sensors(ALL), sensors(ALL)
    for step in range(2 * BLOCK + 3):
        if step % 7 == 3:
            busy.reset(np.array([4, 0]))
        left, right = calm.sense(true), busy.sense(true)
        for row in (1, 2, 3):
            for name, value in left.reported().items():
                np.testing.assert_array_equal(value[row], getattr(right, name)[row], err_msg=name)
    assert (left.q[[0, 4]] != right.q[[0, 4]]).all()
    alone = Sensors(ALL, 1, [make_streams(0, N)["sensor"][2]], joints=J)
    alone.reset(np.arange(1))
    one = RobotState(**{k: v[2:3] for k, v in true.reported().items()})
    for _ in range(2 * BLOCK + 3):
        sensed = alone.sense(one)
    np.testing.assert_array_equal(sensed.q[0], left.q[2])


def test_a_reset_reports_new_rows_and_repeats_the_rest() -> None:
    """Sensing after a reset is not a step: the others' next errors are as if nothing happened."""
    before_true, after_true = true_state(seed=1), true_state(seed=2)
    resetting, calm = sensors(ALL), sensors(ALL)
    before = resetting.sense(before_true)
    assert_same(before, calm.sense(before_true))
    kept = {name: value.copy() for name, value in before.reported().items()}
    rows = np.array([4, 1])
    resetting.reset(rows)
    after = resetting.sense_rows(after_true, rows, before)
    assert_same(before, RobotState(**kept))
    for name, value in after.reported().items():
        np.testing.assert_array_equal(value[[0, 2, 3]], kept[name][[0, 2, 3]], err_msg=name)
    found = errors(after_true, after)[rows]
    assert (np.abs(found) > 0).all() and (np.abs(found[:, :J]) < 0.05 + 5 * 0.01).all()
    np.testing.assert_array_equal(after.tau[rows], after_true.tau[rows])
    np.testing.assert_array_equal(after.stamp_ns[rows], after_true.stamp_ns[rows])
    left, right = resetting.sense(after_true), calm.sense(after_true)
    np.testing.assert_array_equal(left.q[[0, 2, 3]], right.q[[0, 2, 3]])


@pytest.mark.parametrize("steps", [0, 1, BLOCK - 1, BLOCK, BLOCK + 5])
def test_saved_sensors_continue_bit_by_bit(steps: int) -> None:
    true = true_state()
    streams = make_streams(0, N)["sensor"]
    running = Sensors(ALL, N, streams, joints=J)
    running.reset(np.arange(N))
    for _ in range(steps):
        running.sense(true)
    kept = running.state_dict()
    fresh_streams = make_streams(77, N)["sensor"]
    unpack_streams(fresh_streams, pack_streams(streams))
    other = Sensors(ALL, N, fresh_streams, joints=J)
    other.load_state_dict(kept)
    for step in range(BLOCK + 3):
        if step == 2:
            running.reset(np.array([1]))
            other.reset(np.array([1]))
        assert_same(running.sense(true), other.sense(true))


def test_a_reset_makes_a_new_seed_count_at_once() -> None:
    true = true_state()
    streams = make_streams(0, N)["sensor"]
    used = Sensors(ALL, N, streams, joints=J)
    used.reset(np.arange(N))
    used.sense(true)
    reseed(streams, make_streams(5, N)["sensor"])
    used.reset(np.arange(N))
    assert_same(used.sense(true), sensors(ALL, seed=5).sense(true))


def test_the_state_of_other_sensors_is_refused() -> None:
    with pytest.raises(FerryError, match="were the sensors changed"):
        sensors({"q": {"noise": 0.1}}).load_state_dict(sensors(ALL).state_dict())


class Task(Config):
    """A file with nothing but sensors."""

    sensors: SensorConfig | None = None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("qq: {noise: 0.1}", "did you mean 'q'"),
        ("gravity: {noise: 0.1}", "gravity"),
        ("gyro: {nois: 0.1}", "did you mean 'noise'"),
        ("gyro: {noise: -0.1}", "-0.1"),
        ("gyro: {}", "sensors.gyro has neither noise nor bias: it changes nothing"),
        ("gyro: {noise: 0, bias: 0.0}", "changes nothing"),
    ],
)
def test_sensors_that_cannot_be_right_are_refused_with_file_and_line(
    tmp_path: Path, line: str, said: str
) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(f"sensors:\n  {line}\n")
    with pytest.raises(ConfigError, match=said) as error:
        load_config(Task, path)
    assert "task.yaml" in str(error.value)
