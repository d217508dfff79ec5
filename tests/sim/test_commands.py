from __future__ import annotations

import numpy as np
import pytest

from real.errors import ConfigError, FerryError
from sim.commands import (
    CommandConfig,
    VelocityCommands,
    command_limits,
    command_schedule,
    make_commands,
    velocity_command,
)
from sim.streams import make_streams

DT = 0.02
CONFIG = CommandConfig(
    vx=(-0.8, 1.2), vy=(-0.4, 0.3), wz=(-1.0, 0.9), standing_share=0.2, hold_s=(0.1, 0.3)
)
LOW, HIGH = np.array([-0.8, -0.4, -1.0]), np.array([1.2, 0.3, 0.9])


def sampler(num: int, seed: int = 3, config: CommandConfig = CONFIG) -> VelocityCommands:
    rngs = make_streams(seed, num)["command"]
    commands = VelocityCommands(config, num, rngs, control_dt_s=DT)
    commands.reset(np.arange(num))
    return commands


def record(commands: VelocityCommands, steps: int) -> np.ndarray:
    out = []
    for _ in range(steps):
        out.append(commands.value.copy())
        commands.step()
    return np.array(out)  # [T, N, 3]


def changes(values: np.ndarray) -> np.ndarray:
    """``[K]`` steps at which a ``[T, 3]`` record changes."""
    return np.flatnonzero((np.diff(values, axis=0) != 0.0).any(axis=1)) + 1


def test_commands_fill_their_ranges_and_stay_inside() -> None:
    values = record(sampler(40), 600).reshape(-1, 3)
    assert (values >= LOW).all()
    assert (values <= HIGH).all()
    np.testing.assert_allclose(values.min(axis=0), LOW, atol=0.03)
    np.testing.assert_allclose(values.max(axis=0), HIGH, atol=0.03)


def test_standing_has_its_share_of_the_draws() -> None:
    commands = sampler(1)
    draws = []
    for _ in range(4000):
        commands.reset(np.array([0]))
        draws.append(commands.value[0].any())
    # 4000 draws of p = 0.2: standard deviation 0.0063; the deadband adds well below 0.01.
    assert 0.18 < 1.0 - np.mean(draws) < 0.23


def test_draws_inside_the_deadband_are_exactly_zero() -> None:
    config = CommandConfig(
        vx=(-0.2, 0.2), vy=(0.0, 0.0), wz=(0.0, 0.0), standing_share=0.0, hold_s=(0.02, 0.02)
    )
    vx = np.abs(record(sampler(5, config=config), 200)[..., 0])
    assert 0.3 < np.mean(vx == 0.0) < 0.7  # half of +-0.2 is inside the deadband of 0.1
    assert vx[vx > 0.0].min() >= 0.1


def test_a_command_is_held_for_its_time_and_then_drawn_again() -> None:
    values = record(sampler(6), 800)
    spans = np.concatenate([np.diff(changes(values[:, i])) for i in range(6)])
    moving = spans[spans <= 15]  # two draws of standing in a row look like one long span
    assert set(moving.tolist()) == set(range(5, 16))  # 0.1 s to 0.3 s
    assert moving.size > 0.8 * spans.size


def test_resampling_happens_within_an_episode_without_reset() -> None:
    assert changes(record(sampler(3), 100)[:, 1]).size >= 4


def test_reset_touches_only_the_rows_given() -> None:
    commands = sampler(4)
    before = commands.value.copy()
    commands.reset(np.array([2, 0]))
    np.testing.assert_array_equal(commands.value[[1, 3]], before[[1, 3]])
    assert (commands.value[[0, 2]] != before[[0, 2]]).any(axis=1).all()


def test_a_world_draws_the_same_whatever_the_others_do() -> None:
    alone, disturbed = sampler(3), sampler(3)
    expected, got = [], []
    for step in range(60):
        if step % 7 == 0:
            disturbed.reset(np.array([0, 2]))
        expected.append(alone.value[1].copy())
        got.append(disturbed.value[1].copy())
        alone.step()
        disturbed.step()
    np.testing.assert_array_equal(expected, got)


def test_state_restores_commands_and_timers() -> None:
    first, second = sampler(3), sampler(3, seed=99)
    record(first, 9)
    state = first.state_dict()
    second.load_state_dict(state)
    first.step()
    np.testing.assert_array_equal(state["value"], second.value)  # the saved arrays are copies
    steps_to_change = [changes(record(c, 40)[:, 0])[0] for c in (first, second)]
    assert steps_to_change[1] == steps_to_change[0] + 1


def test_schedule_stands_for_a_second_and_is_piecewise_constant() -> None:
    schedule = command_schedule(CONFIG, seconds=60.0, dt=DT, seed=4)
    assert schedule.shape == (3000, 3)
    assert not schedule[:50].any()
    assert schedule[50].any() or changes(schedule)[0] > 50
    # hold_s is [0.1, 0.3] here: segments of 0.2 s
    assert np.diff(changes(schedule)).min() == 10


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("seconds", [20.0, 60.0])
def test_schedule_covers_every_kind_of_motion(seconds: float, seed: int) -> None:
    config = CONFIG.model_copy(update={"hold_s": (4.0, 8.0)})
    schedule = command_schedule(config, seconds=seconds, dt=DT, seed=seed)[50:]
    assert (schedule >= LOW).all()
    assert (schedule <= HIGH).all()
    vx, vy, wz = schedule.T
    assert vx.max() >= 0.6
    assert vx.min() <= -0.4
    assert vy.max() >= 0.15
    assert vy.min() <= -0.2
    assert wz.max() >= 0.45
    assert wz.min() <= -0.5
    standing = ~schedule.any(axis=1)
    assert 50 <= standing.sum() < 0.4 * schedule.shape[0]


def test_schedule_depends_on_the_seed_alone() -> None:
    first, same, other = (command_schedule(CONFIG, seconds=30.0, dt=DT, seed=s) for s in (7, 7, 8))
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()


def test_schedule_of_a_range_without_backward_never_goes_backward() -> None:
    config = CONFIG.model_copy(update={"vx": (0.2, 1.0)})
    schedule = command_schedule(config, seconds=60.0, dt=DT, seed=4)
    assert schedule[:, 0].min() == 0.0


def test_limits_name_the_command_for_the_contract() -> None:
    limits = CONFIG.limits()
    assert limits.names == ("vx", "vy", "wz")
    assert limits.low == (-0.8, -0.4, -1.0)
    assert limits.high == (1.2, 0.3, 0.9)
    assert limits.units == ("m/s", "m/s", "rad/s")


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[1.0, -1.0\] is empty"):
        CommandConfig(
            vx=(1.0, -1.0), vy=(0.0, 0.0), wz=(0.0, 0.0), standing_share=0.0, hold_s=(1.0, 2.0)
        )


@pytest.mark.parametrize(("seconds", "dt"), [(0.0, 0.02), (10.0, 0.0), (float("nan"), 0.02)])
def test_a_schedule_without_length_is_refused(seconds: float, dt: float) -> None:
    with pytest.raises(ConfigError, match="expected both > 0"):
        command_schedule(CONFIG, seconds=seconds, dt=dt, seed=0)


# ------------------------------------------------------------------ tasks without a command


def test_a_task_without_a_command_has_one_of_length_zero_and_draws_nothing() -> None:
    rngs = [np.random.default_rng(i) for i in range(3)]
    before = [rng.bit_generator.state for rng in rngs]
    commands = make_commands(None, 3, rngs, control_dt_s=DT)
    commands.reset(np.arange(3))
    commands.step()
    commands.load_state_dict(commands.state_dict())
    assert commands.value.shape == (3, 0)
    assert [rng.bit_generator.state for rng in rngs] == before
    limits = command_limits(None)
    assert (limits.dim, limits.names, limits.low, limits.high, limits.units) == (0, (), (), (), ())


def test_a_task_with_a_command_gets_the_velocity_commands_of_its_config() -> None:
    made = make_commands(CONFIG, 2, [np.random.default_rng(i) for i in (7, 8)], control_dt_s=DT)
    own = VelocityCommands(CONFIG, 2, [np.random.default_rng(i) for i in (7, 8)], control_dt_s=DT)
    for commands in (made, own):
        commands.reset(np.arange(2))
    np.testing.assert_array_equal(made.value, own.value)
    assert command_limits(CONFIG) == CONFIG.limits()


def test_who_drives_a_robot_refuses_a_task_without_a_velocity_command() -> None:
    assert velocity_command(CONFIG, "walk") is CONFIG
    with pytest.raises(FerryError, match="'poles' has no velocity command"):
        velocity_command(None, "poles")
