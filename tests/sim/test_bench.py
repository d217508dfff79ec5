"""The benchmark compares like with like: the raw run does the env's physics, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from sim.bench import Replay, bench_sim
from sim.env import VecEnv, make_env
from sim.task import load_env_config

N = 6

#: Episodes of 0.6 s: resets happen within every block.
SHORT = ["episode_s=0.6"]


def walking(overrides: list[str]) -> VecEnv:
    return make_env(load_env_config("a1_walk", overrides), num=N, threads=2, seed=3)


@pytest.mark.parametrize("filtered", ["off", "on"])
def test_the_raw_run_does_the_physics_of_the_env(filtered: str) -> None:
    """Nothing but resets has to be taken over from the env: all else comes out the same."""
    config = load_env_config("a1_walk", [*SHORT, f"filter={filtered}"])
    terms = {name: term for name, term in config.randomize.items() if name != "push"}
    quiet = config.model_copy(update={"randomize": terms})
    env = make_env(quiet, num=N, threads=2, seed=3)
    replay = Replay(env)
    episodes = env.counters["episodes"]
    _, _, first = replay.run_env(40)
    assert env.counters["episodes"] - episodes >= N
    # Resets of the last step are taken over by the next block.
    resets = sum(rows.size for rows in first.rows)
    assert resets > 0
    replay.run_raw(first)
    assert replay.corrected == resets


def test_pushes_are_taken_over_too() -> None:
    env = walking(["randomize.push.interval_s=[0.1, 0.2]"])
    replay = Replay(env)
    _, _, recording = replay.run_env(30)
    replay.run_raw(recording)
    pushes = sum(len(env.randomizer.sample(row).values["push"]) // 3 for row in range(N))
    resets = sum(rows.size for rows in recording.rows)
    assert pushes > N
    # Those of the last step have no state after them that could tell.
    assert pushes - N <= replay.corrected - resets <= pushes


def test_the_env_continues_as_if_nothing_had_run_beside_it() -> None:
    beside, alone = walking(SHORT), walking(SHORT)
    replay = Replay(beside)
    alone.reset()
    actions = np.random.default_rng(0)
    for _ in range(3):
        _, _, recording = replay.run_env(20)
        replay.run_raw(recording)
        for _ in range(20):
            alone.step(actions.normal(0.0, 0.5, (N, alone.action_dim)))
    left, right = beside.state_dict(), alone.state_dict()
    assert left.keys() == right.keys()
    for key, value in left.items():
        np.testing.assert_array_equal(value, right[key], err_msg=key)


@pytest.mark.parametrize("with_policy", [False, True])
def test_the_result_has_the_keys_that_were_promised(with_policy: bool) -> None:
    seen: list[tuple[int, ...]] = []

    def policy(obs: np.ndarray) -> np.ndarray:
        seen.append(obs.shape)
        return np.zeros((len(obs), 12))

    told: list[float] = []
    result = bench_sim(
        "a1_walk",
        worlds=N,
        threads=1,
        seconds=0.0,
        policy=policy if with_policy else None,
        overrides=SHORT,
        progress=lambda done, total: told.append(done),
    )
    assert list(result) == [
        "env_steps_per_s", "raw_steps_per_s", "ratio", "with_policy_ratio", "worlds", "threads",
    ]  # fmt: skip
    assert result["worlds"] == N and result["threads"] == 1 and told
    env, raw, ratio = (result[k] for k in ("env_steps_per_s", "raw_steps_per_s", "ratio"))
    assert env is not None and raw is not None and ratio is not None and env > 0.0
    assert ratio == pytest.approx(env / raw)
    if with_policy:
        assert set(seen) == {(N, 45)}
        assert result["with_policy_ratio"] is not None
        assert 0.0 < result["with_policy_ratio"] < ratio
    else:
        assert result["with_policy_ratio"] is None
