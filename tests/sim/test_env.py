"""The order of a step and everything that may go wrong at the borders of episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from real.config import load_config
from real.errors import FerryError
from real.signals import RobotState
from sim import rewards
from sim.engine import InitialState
from sim.env import StepResult, VecEnv, make_env
from sim.task import EnvConfig, load_env_config

NUM = 4
CALM = ["randomize_episode_phase=false"]
#: Episodes of 0.16 s end all the time; commands change every one to three steps.
BUSY = [*CALM, "episode_s=0.16", "command.hold_s=[0.02, 0.06]"]


def make(*overrides: str, num: int = NUM, **options: Any) -> VecEnv:
    config = load_env_config("a1_walk", [*CALM, *overrides])
    return make_env(config, num=num, threads=1, **options)


def actions(step: int, num: int = NUM, size: float = 0.4) -> np.ndarray:
    return size * np.random.default_rng(step).normal(size=(num, 12))


def run(env: VecEnv, steps: int, first: int = 0) -> list[StepResult]:
    return [env.step(actions(first + i, env.num_envs)) for i in range(steps)]


def flat(result: StepResult) -> dict[str, np.ndarray]:
    """Everything in a result, by name."""
    out: dict[str, np.ndarray] = {}
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        parts = value if isinstance(value, dict) else {"": value}
        out.update({f"{field.name}.{k}": v for k, v in parts.items()})
    return out


def assert_equal(first: StepResult, second: StepResult) -> None:
    a, b = flat(first), flat(second)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def assert_rows_equal(first: StepResult, second: StepResult, rows: list[int]) -> None:
    for name in ("reward", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(first, name)[rows], getattr(second, name)[rows])
    for name in ("policy", "critic"):
        np.testing.assert_array_equal(first.obs[name][rows], second.obs[name][rows])


def poison(env: VecEnv, row: int) -> None:
    """Make the position of one world's base NaN inside the physics."""
    env.engine.batch.bind("qpos")[row, 2] = np.nan


def turn_over(env: VecEnv, row: int) -> None:
    """Lay one robot on its back."""
    start = InitialState.default(env.robot, 1)
    start.quat_wb[0] = [0.0, 1.0, 0.0, 0.0]
    env.engine.reset(np.array([row]), start)


# ------------------------------------------------------------------ what a step returns


def test_observation_is_48_less_the_3_of_linear_velocity() -> None:
    env = make()
    assert env.policy_dim == 3 + 3 + 3 + 12 + 12 + 12
    assert list(env.observation_spec.slices()) == [
        "base_ang_vel",
        "projected_gravity",
        "command",
        "joint_pos",
        "joint_vel",
        "prev_action",
    ]
    assert env.action_dim == 12
    assert env.critic_dim > env.policy_dim + 3 + 1 + 4 + 4
    obs = env.reset()
    assert obs["policy"].shape == (NUM, env.policy_dim)
    assert obs["critic"].shape == (NUM, env.critic_dim)


def test_shapes_and_types_of_a_step() -> None:
    env = make(*BUSY)
    for result in run(env, 10):
        for obs in (result.obs, result.final_obs):
            assert obs["policy"].dtype == obs["critic"].dtype == np.float32
        assert result.obs["policy"].shape == (NUM, env.policy_dim)
        assert result.final_obs["critic"].shape == (result.final_ids.size, env.critic_dim)
        assert result.reward.dtype == np.float32
        assert result.reward.shape == result.terminated.shape == result.truncated.shape == (NUM,)
        assert all(v.shape == (NUM,) for v in result.reward_parts.values())
        assert all(v.shape == result.final_ids.shape for v in result.episode.values())


def test_returned_arrays_are_never_written_again() -> None:
    env = make(*BUSY)
    kept = []
    for step in range(20):
        result = env.step(actions(step))
        kept.append((result, {k: v.copy() for k, v in flat(result).items()}))
    for result, copies in kept:
        for name, value in flat(result).items():
            np.testing.assert_array_equal(value, copies[name], err_msg=name)


def test_the_critic_sees_true_signals_and_the_policy_noisy_ones() -> None:
    noisy, nominal = make(), make(randomize=False)
    where = noisy.observation_spec.slices()
    for env, differs in ((noisy, True), (nominal, False)):
        obs = run(env, 3)[-1].obs
        own = obs["critic"][:, : env.policy_dim]
        for name in ("base_ang_vel", "projected_gravity", "joint_pos", "joint_vel"):
            same = own[:, where[name]] == obs["policy"][:, where[name]]
            assert same.all() != differs, name
        for name in ("command", "prev_action"):
            np.testing.assert_array_equal(
                own[:, where[name]], obs["policy"][:, where[name]], err_msg=name
            )


def test_privileged_terms_are_the_true_state() -> None:
    env = make()
    obs = run(env, 6)[-1].obs["critic"]
    world = env.engine.state()
    for name, expected in (
        ("base_lin_vel", world.lin_vel_b),
        ("base_height", world.position_w[:, 2:]),
        ("foot_contact", world.foot_contact),
    ):
        np.testing.assert_array_equal(obs[:, env.critic_slices[name]], expected.astype(np.float32))
    assert obs[:, env.critic_slices["foot_contact"]].any()


def test_reward_is_the_sum_of_its_parts_and_answers_the_command_the_policy_saw() -> None:
    env = make("command.hold_s=[0.02, 0.02]", "command.standing_share=0.0", randomize=False)
    command = env.command
    for step in range(5):
        result = env.step(actions(step))
        total = sum(result.reward_parts.values())
        np.testing.assert_allclose(result.reward, total, atol=1e-6)
        velocity = result.obs["critic"][:, env.critic_slices["base_lin_vel"]]
        error = ((command[:, :2] - velocity[:, :2]) ** 2).sum(axis=1)
        config = env.config.rewards["track_lin_vel"]
        expected = 0.02 * config.weight * np.exp(-error / config.params["sigma"])
        np.testing.assert_allclose(result.reward_parts["track_lin_vel"], expected, rtol=1e-4)
        assert (env.command != command).any()  # the next command is another one
        command = env.command
        where = env.observation_spec.slices()["command"]
        np.testing.assert_allclose(result.obs["policy"][:, where], command, rtol=1e-6)


# ------------------------------------------------------------------ borders of episodes


def test_a_time_out_truncates_after_the_whole_limit_and_does_not_terminate() -> None:
    env = make("episode_s=0.1", randomize=False)
    for _ in range(3):
        for step in range(1, 6):
            result = env.step(np.zeros((NUM, 12)))
            assert not result.terminated.any()
            np.testing.assert_array_equal(result.truncated, step == 5)
        np.testing.assert_array_equal(result.episode["length"], 5)


def test_reset_zeroes_the_step_counter() -> None:
    env = make("episode_s=0.1", randomize=False)
    run(env, 3)
    env.reset()
    cut = [env.step(np.zeros((NUM, 12))).truncated.any() for _ in range(5)]
    assert cut == [False, False, False, False, True]


def test_final_observation_belongs_to_the_old_episode_and_obs_to_the_new() -> None:
    ending, going_on = make("episode_s=0.1"), make("episode_s=10.0")
    for step in range(5):
        cut, on = ending.step(actions(step)), going_on.step(actions(step))
    np.testing.assert_array_equal(cut.final_ids, np.arange(NUM))
    # The twin whose episode goes on sees the same state, command and previous action.
    np.testing.assert_array_equal(cut.final_obs["policy"], on.obs["policy"])
    np.testing.assert_array_equal(cut.final_obs["critic"], on.obs["critic"])
    assert (cut.obs["policy"] != cut.final_obs["policy"]).any(axis=1).all()


@pytest.mark.parametrize("history", [1, 3])
def test_previous_action_is_zero_in_the_first_observation_of_every_episode(history: int) -> None:
    env = make(*BUSY, f"observation.prev_action.history={history}")
    where = env.observation_spec.slices()["prev_action"]
    assert not env.reset()["policy"][:, where].any()
    seen = 0
    for result in run(env, 30):
        first = np.isin(np.arange(NUM), result.final_ids)
        assert not result.obs["policy"][first, where].any()
        assert not result.obs["critic"][first, where].any()
        assert result.obs["policy"][~first, where].any(axis=1).all()
        assert result.final_obs["policy"][:, where].any(axis=1).all()
        seen += first.sum()
    assert seen >= 3 * NUM


def test_first_observation_is_of_the_state_after_a_fresh_forward_pass() -> None:
    env = make(*BUSY, "start.lin_vel=1.0", randomize=False)
    result = run(env, 8)[-1]
    np.testing.assert_array_equal(result.truncated, True)
    env.engine.batch.forward()
    world = env.engine.state()
    first = result.obs["critic"]
    np.testing.assert_allclose(
        first[:, env.critic_slices["base_lin_vel"]], world.lin_vel_b, rtol=1e-5, atol=1e-7
    )
    np.testing.assert_array_equal(
        first[:, env.critic_slices["foot_contact"]], world.foot_contact.astype(np.float32)
    )
    assert np.abs(world.lin_vel_b).max() > 0.3  # the new episode started with a velocity


def test_a_world_does_not_notice_that_another_one_was_reset() -> None:
    alone, disturbed = make(), make()
    run(alone, 3)
    run(disturbed, 3)
    turn_over(disturbed, 2)  # falls, and is reset within the step
    for step in range(3, 8):
        a, b = alone.step(actions(step)), disturbed.step(actions(step))
        assert_rows_equal(a, b, [0, 1, 3])
    assert disturbed.counters["episodes"] == 1


def test_episode_statistics_are_sums_over_the_episode() -> None:
    env = make(*BUSY)
    returns, lengths = np.zeros(NUM), np.zeros(NUM, dtype=int)
    ends = 0
    for result in run(env, 40):
        returns += result.reward
        lengths += 1
        ids = result.final_ids
        np.testing.assert_allclose(result.episode["return"], returns[ids], atol=1e-5)
        np.testing.assert_array_equal(result.episode["length"], lengths[ids])
        parts = [v for k, v in result.episode.items() if k.startswith("reward/")]
        np.testing.assert_allclose(np.sum(parts, axis=0), returns[ids], atol=1e-5)
        returns[ids], lengths[ids] = 0.0, 0
        ends += ids.size
    assert ends == env.counters["episodes"] >= 4 * NUM


def test_random_phase_spreads_the_first_time_outs_and_leaves_later_episodes_whole() -> None:
    env = make("randomize_episode_phase=true", "episode_s=0.4", "terminations.fall.enabled=false")
    ends: list[list[int]] = [[] for _ in range(NUM)]
    for step in range(1, 61):
        result = env.step(np.zeros((NUM, 12)))
        for row in result.final_ids:
            ends[row].append(step)
    first = [e[0] for e in ends]
    assert len(set(first)) > 1
    assert all((np.diff(e) == 20).all() for e in ends)


def test_the_nominal_task_starts_every_episode_at_its_beginning() -> None:
    env = make("randomize_episode_phase=true", "episode_s=0.1", randomize=False)
    cut = [env.step(np.zeros((NUM, 12))).truncated for _ in range(5)]
    np.testing.assert_array_equal(cut, np.repeat([[False]] * 4 + [[True]], NUM, axis=1))


# ------------------------------------------------------------------ falls


def test_a_fall_terminates_without_truncating_even_at_the_time_limit() -> None:
    env = make("episode_s=0.02", randomize=False)
    turn_over(env, 1)
    result = env.step(np.zeros((NUM, 12)))
    np.testing.assert_array_equal(result.terminated, [False, True, False, False])
    np.testing.assert_array_equal(result.truncated, [True, False, True, True])
    np.testing.assert_array_equal(result.episode["fallen"], [False, True, False, False])


def test_reward_does_not_depend_on_whether_a_fall_ends_the_episode() -> None:
    env, switched = (
        make(f"terminations.fall.enabled={on}", randomize=False) for on in ("true", "false")
    )
    for each in (env, switched):
        run(each, 2)
        turn_over(each, 2)
    ended, going_on = env.step(actions(2)), switched.step(actions(2))
    assert ended.terminated[2]
    assert not going_on.terminated.any()
    np.testing.assert_array_equal(ended.reward, going_on.reward)
    assert ended.reward_parts["alive"][2] == going_on.reward_parts["alive"][2] == 0.0
    assert ended.reward_parts["alive"][1] > 0.0
    paid = env.config.rewards["termination"].weight * env.robot.control_dt_s
    assert ended.reward_parts["termination"][2] == pytest.approx(paid)


# ------------------------------------------------------------------ worlds that break


def _nan_position(env: VecEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(env, 1)


def _infinite_velocity(env: VecEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    env.engine.batch.bind("qvel")[1, 9] = np.inf


def _nan_sensor(env: VecEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    def sense(state: RobotState, true: Callable[..., RobotState] = env._sensors.sense) -> Any:
        gyro = true(state).gyro_b.copy()
        gyro[1, 2] = np.nan
        monkeypatch.undo()
        return dataclasses.replace(state, gyro_b=gyro)

    monkeypatch.setattr(env._sensors, "sense", sense)


def _nan_reward(env: VecEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    term, params = env._rewards._terms[0]

    def broken(x: rewards.RewardInput, **given: float) -> np.ndarray:
        out = term(x, **given)
        out[1] = np.nan
        monkeypatch.undo()
        return out

    monkeypatch.setattr(env._rewards, "_terms", [(broken, params), *env._rewards._terms[1:]])


@pytest.mark.parametrize("damage", [_nan_position, _infinite_velocity, _nan_sensor, _nan_reward])
def test_a_broken_world_ends_is_renewed_whole_and_touches_nobody(
    damage: Callable[[VecEnv, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy, broken = make(randomize=False), make(randomize=False)
    run(healthy, 3)
    run(broken, 3)
    damage(broken, monkeypatch)
    expected, result = healthy.step(actions(3)), broken.step(actions(3))
    np.testing.assert_array_equal(result.terminated, [False, True, False, False])
    assert not result.truncated.any()
    np.testing.assert_array_equal(result.final_ids, [1])
    np.testing.assert_array_equal(result.episode["diverged"], [True])
    assert broken.counters["diverged"] == 1
    paid = broken.config.rewards["termination"].weight * broken.robot.control_dt_s
    assert result.reward[1] == pytest.approx(paid)  # the termination part alone
    assert not result.final_obs["critic"].any()
    assert_rows_equal(expected, result, [0, 2, 3])
    for step in range(4, 12):
        expected, result = healthy.step(actions(step)), broken.step(actions(step))
        assert_rows_equal(expected, result, [0, 2, 3])
        assert not result.terminated.any()
        assert all(np.isfinite(v).all() for v in flat(result).values())


def test_a_renewed_world_equals_one_that_never_broke() -> None:
    broken, cut = make(randomize=False), make(randomize=False)
    for env in (broken, cut):
        run(env, 3)
    poison(broken, 1)
    cut._episodes.clock[1] = cut._episodes.limit  # ends the same episode by its time limit
    for step in range(3, 10):
        assert_rows_equal(broken.step(actions(step)), cut.step(actions(step)), [0, 2, 3])
    for name in ("qpos", "qvel", "qacc_warmstart", "time"):
        np.testing.assert_array_equal(
            broken.engine.batch.bind(name)[1], cut.engine.batch.bind(name)[1]
        )


def test_every_result_is_finite_when_worlds_keep_breaking() -> None:
    env = make(*BUSY)
    for step in range(20):
        if step % 3 == 0:
            poison(env, step % NUM)
        result = env.step(actions(step))
        for name, value in flat(result).items():
            assert np.isfinite(value).all(), name
    assert env.counters["diverged"] == 7


def test_actions_that_are_not_finite_or_of_another_shape_are_refused() -> None:
    env = make(randomize=False)
    bad = np.zeros((NUM, 12))
    bad[2, 5] = np.nan
    with pytest.raises(FerryError, match=r"worlds \[2\] are not finite"):
        env.step(bad)
    with pytest.raises(FerryError, match=r"shape \(4, 11\); expected \(4, 12\)"):
        env.step(np.zeros((NUM, 11)))


def test_huge_actions_are_clipped_before_they_are_seen_or_executed() -> None:
    huge, clipped = make(randomize=False), make(randomize=False)
    clip = huge.config.action.clip
    for step in range(3):
        wild = 1e6 * np.sign(actions(step))
        a, b = huge.step(wild), clipped.step(np.sign(wild) * clip)
        assert_equal(a, b)
    where = huge.observation_spec.slices()["prev_action"]
    assert np.abs(a.obs["policy"][:, where]).max() == clip


# ------------------------------------------------------------------ random numbers


@pytest.mark.slow
def test_worlds_seeds_workers_and_restarts_all_start_differently() -> None:
    starts = [
        make(seed=seed, stream=stream).reset()["critic"][row]
        for seed in (0, 1)
        for stream in ((0, 0), (1, 0), (1, 1))
        for row in range(NUM)
    ]
    assert len({s.tobytes() for s in starts}) == 2 * 3 * NUM
    # Not only as a whole: each drawn part differs between any two of them.
    joint_pos = np.array(starts)[:, 9:21]
    assert all(len(np.unique(joint_pos[:, j])) > 20 for j in range(12))


def test_same_seed_same_trajectory_on_any_number_of_threads() -> None:
    config = load_env_config("a1_walk", BUSY)
    first, second = (make_env(config, num=NUM, threads=t, seed=7) for t in (1, 2))
    for a, b in zip(run(first, 20), run(second, 20), strict=True):
        assert_equal(a, b)


def test_reset_with_a_seed_repeats_and_without_goes_on() -> None:
    env = make(*BUSY)
    env.reset(11)
    before = run(env, 20)
    other = env.reset()
    env.reset(11)
    for a, b in zip(before, run(env, 20), strict=True):
        assert_equal(a, b)
    assert (env.reset()["policy"] == other["policy"]).all()
    assert (env.reset()["policy"] != other["policy"]).any(axis=1).all()


def test_a_new_env_equals_one_reset_with_its_seed() -> None:
    new, used = make(*BUSY, seed=3), make(*BUSY, seed=8)
    run(used, 13)
    used.reset(3)
    for a, b in zip(run(new, 10), run(used, 10), strict=True):
        assert_equal(a, b)


def test_a_world_does_not_depend_on_what_the_others_do() -> None:
    calm, wild = make(*BUSY), make(*BUSY)
    for step in range(25):
        given = actions(step)
        a = calm.step(given)
        others = actions(1000 + step, size=5.0)
        others[2] = given[2]
        b = wild.step(others)
        assert_rows_equal(a, b, [2])


def test_a_world_does_not_depend_on_how_many_others_there_are() -> None:
    few, many = make(*BUSY, num=2), make(*BUSY, num=6)
    for step in range(20):
        given = actions(step, 6)
        assert_rows_equal(few.step(given[:2]), many.step(given), [0, 1])


# ------------------------------------------------------------------ keeping


@pytest.mark.parametrize("options", [{"randomize": True}, {"randomize": False}])
def test_a_restored_env_continues_bit_for_bit(options: dict[str, bool]) -> None:
    overrides = [*BUSY, "episode_s=0.3", "observation.joint_pos.history=3"]
    env = make(*overrides, seed=5, **options)
    run(env, 30)
    turn_over(env, 1)
    env.step(actions(30))
    state = env.state_dict()
    kept = {k: v.copy() for k, v in state.items()}
    expected = run(env, 30, first=31)
    assert sum(r.final_ids.size for r in expected) >= NUM

    fresh = make(*overrides, seed=99, **options)
    run(fresh, 7)
    fresh.load_state_dict(kept)
    assert fresh.counters["episodes"] + 4 <= env.counters["episodes"]
    for a, b in zip(expected, run(fresh, 30, first=31), strict=True):
        assert_equal(a, b)
    assert fresh.counters == env.counters
    for name, value in state.items():  # stepping on never writes into a saved state
        np.testing.assert_array_equal(value, kept[name], err_msg=name)


def test_state_holds_plain_numbers_that_safetensors_can_write() -> None:
    from safetensors.numpy import load, save

    env = make(*BUSY)
    run(env, 5)
    state = env.state_dict()
    assert all(isinstance(v, np.ndarray) and v.dtype.kind in "fiub" for v in state.values())
    restored = load(save({k: np.asarray(v, order="C") for k, v in state.items()}))
    twin = make(*BUSY, seed=4)
    twin.load_state_dict(restored)
    assert_equal(env.step(actions(5)), twin.step(actions(5)))


def test_the_last_observation_comes_back_with_the_state() -> None:
    env, twin = make(*BUSY), make(*BUSY, seed=4)
    last = run(env, 9)[-1]
    twin.load_state_dict(env.state_dict())
    for name in ("policy", "critic"):
        np.testing.assert_array_equal(twin.observation[name], last.obs[name])


def test_state_of_another_number_of_worlds_is_refused() -> None:
    with pytest.raises(FerryError, match=r"in 3 worlds; expected .* in 4 worlds"):
        make().load_state_dict(make(num=3).state_dict())


def test_close_may_be_called_twice() -> None:
    env = make()
    env.close()
    env.close()


# ------------------------------------------------------------------ laws over all tasks


def tasks() -> list[str]:
    from real.config import config_path

    folder = config_path("a1_walk").parent
    return sorted(p.stem for p in folder.glob("*.yaml") if p.stem != "gym")  # has no robot


@pytest.mark.slow
@pytest.mark.parametrize("task", tasks())
def test_every_task_loads_resets_and_stays_finite_and_repeatable(task: str) -> None:
    config = load_config(EnvConfig, task)
    first, second = (make_env(config, num=3, threads=1, seed=2) for _ in range(2))
    obs = first.reset(4), second.reset(4)
    np.testing.assert_array_equal(obs[0]["critic"], obs[1]["critic"])
    for step in range(50):
        given = np.random.default_rng(step).normal(size=(3, first.action_dim))
        a, b = first.step(given), second.step(given)
        assert_equal(a, b)
        for name, value in flat(a).items():
            assert np.isfinite(value).all(), name
