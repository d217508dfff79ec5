"""What a world drew is kept, and an episode can be lived through again, bit by bit."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from real.config import config_path
from real.domain import DomainDraws, DomainSample
from real.errors import FerryError
from sim.env import VecEnv, make_env
from sim.task import load_env_config

_FILES = config_path("a1_walk").parent.glob("*.yaml")
TASKS = sorted(path.stem for path in _FILES if path.stem != "gym")  # which has no robot
#: Pushes and commands come every few steps, and episodes end all the time.
BUSY = {
    "a1_walk": [
        "episode_s=0.5",
        "command.hold_s=[0.06, 0.2]",
        "randomize.push.interval_s=[0.06, 0.2]",
        "filter.enabled=true",
        "observation.joint_pos.history=3",
    ],
    "cartpole_balance": ["episode_s=1.0", "randomize_episode_phase=true"],
}


def busy(task: str, num: int, **options: Any) -> VecEnv:
    return make_env(
        load_env_config(task, BUSY.get(task, ["episode_s=1.0"])), num=num, threads=1, **options
    )


def live(env: VecEnv, actions: np.ndarray, row: int) -> dict[str, list[np.ndarray]]:
    """What world ``row`` goes through until its episode ends, under ``actions [T, A]`` of its own.

    The other worlds do something else.
    """
    rng = np.random.default_rng(env.num_envs)
    seen: dict[str, list[np.ndarray]] = {"policy": [], "critic": [], "reward": [], "ends": []}
    for action in actions:
        everyone = rng.normal(size=(env.num_envs, env.action_dim))
        everyone[row] = action
        result = env.step(everyone)
        for name in ("policy", "critic"):
            obs, ended = result.obs[name][row], result.final_ids == row
            seen[name].append(result.final_obs[name][ended][0] if ended.any() else obs)
        seen["reward"].append(result.reward[row])
        seen["ends"].append(np.array([result.terminated[row], result.truncated[row]]))
        if row in result.final_ids:
            break
    return seen


def assert_same(first: dict[str, list[np.ndarray]], second: dict[str, list[np.ndarray]]) -> None:
    for name, values in first.items():
        np.testing.assert_array_equal(np.array(values), np.array(second[name]), err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_an_episode_is_lived_through_again_in_another_world_of_another_env(task: str) -> None:
    env = busy(task, 5, seed=7, stream=(2, 1))
    rng = np.random.default_rng(0)
    row, ended = 3, np.array([], dtype=int)
    while row not in ended:  # an episode that begins with the others in the middle of theirs
        ended = env.step(rng.normal(size=(5, env.action_dim))).final_ids
    first_obs = {name: values[row] for name, values in env.observation.items()}
    actions = 0.5 * rng.normal(size=(100, env.action_dim))
    sample = env.drawn(np.array([row])).sample(0)
    once = live(env, actions, row)
    assert len(once["reward"]) > 3

    other = busy(task, 3, seed=99)
    other.step(rng.normal(size=(3, env.action_dim)))
    obs = other.reset(domain={1: sample})
    for name, values in first_obs.items():
        np.testing.assert_array_equal(obs[name][1], values, err_msg=name)
    assert_same(once, live(other, actions, 1))
    # What is not replayed is something else.
    obs = other.reset()
    assert (obs["critic"][1] != first_obs["critic"]).any()


def test_an_episode_that_began_in_its_middle_ends_when_it_did() -> None:
    env = busy("cartpole_balance", 4, seed=1)
    row = int(np.argmax(env.drawn().clock))
    sample = env.drawn().sample(row)
    assert sample.clock > 0
    calm = np.zeros((100, env.action_dim))
    once = live(env, calm, row)
    other = busy("cartpole_balance", 2, seed=50)
    other.reset(domain={0: sample})
    assert_same(once, live(other, calm, 0))
    assert other.drawn(np.array([1])).clock[0] != sample.clock


def test_a_sample_survives_json_and_a_process_border() -> None:
    env = busy("a1_walk", 3, seed=4)
    draws = env.drawn()
    sample = pickle.loads(pickle.dumps(draws)).sample(2)  # as between actors and learner
    body = json.loads(json.dumps(asdict(sample)))
    back = DomainSample(**{**body, "streams": tuple(map(tuple, body["streams"]))})
    assert back == sample == draws.sample(2)
    one, two = busy("a1_walk", 1, seed=0), busy("a1_walk", 1, seed=1)
    first, second = one.reset(domain={0: sample}), two.reset(domain={0: back})
    np.testing.assert_array_equal(first["critic"], second["critic"])


def test_draws_are_those_in_force_and_pushes_are_added_as_they_come() -> None:
    calm = [*BUSY["a1_walk"], "randomize_episode_phase=false"]
    config = load_env_config("a1_walk", [*calm, "randomize.push.interval_s=[0.04, 0.06]"])
    env = make_env(config, num=3, threads=1, seed=4)
    before = env.drawn()
    for _ in range(8):
        env.step(np.zeros((3, 12)))
    after = DomainDraws.join([(0, before)])
    for row in range(3):
        assert after.sample(row).values == env.randomizer.sample(row).values
        assert len(after.sample(row).values["push"]) >= 6
    friction = [after.sample(row).values["friction"][0] for row in range(3)]
    floor = env.engine.built.floor_geom_id
    np.testing.assert_array_equal(env.engine.field("geom_friction")[:, floor, 0], friction)
    pushed = [len(given) for given in after.pushes or ()]
    for _ in range(8):
        env.step(np.zeros((3, 12)))
    assert [len(given) for given in after.pushes or ()] == pushed
    assert [len(given) for given in before.pushes or ()] > pushed


def test_values_without_streams_are_in_force_and_the_rest_is_drawn_anew() -> None:
    env = busy("a1_walk", 3, seed=4)
    sample = replace(env.drawn().sample(2), streams=())
    other = busy("a1_walk", 3, seed=8)
    command = other.command[0].copy()
    other.reset(domain={0: sample})
    found = other.drawn().sample(0)
    assert {**found.values, "push": []} == {**sample.values, "push": []}
    assert (other.command[0] != command).any()


def test_a_resumed_env_still_knows_where_its_episodes_came_from() -> None:
    env = busy("a1_walk", 3, seed=4)
    rng = np.random.default_rng(0)
    for _ in range(7):
        env.step(rng.normal(size=(3, 12)))
    other = busy("a1_walk", 3, seed=4)
    other.load_state_dict(env.state_dict())
    for row in range(3):
        assert other.drawn().sample(row) == env.drawn().sample(row)
    np.testing.assert_array_equal(other.drawn().age, env.drawn().age)


def test_a_sample_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    env = busy("a1_walk", 2, seed=4)
    sample = env.drawn().sample(0)
    with pytest.raises(FerryError, match="no world 2"):
        env.reset(domain={2: sample})
    with pytest.raises(FerryError, match=r"random streams \(1, 6\); expected \(4, 6\).*sensor"):
        env.reset(domain={0: replace(sample, streams=sample.streams[:1])})
    with pytest.raises(FerryError, match="the sample has the terms"):
        env.reset(domain={0: replace(sample, values={"friction": [1.0]})})


def test_the_draws_of_a_step_are_those_of_the_episode_it_belongs_to() -> None:
    def begun(*worlds: int, mark: float) -> DomainDraws:
        count = len(worlds)
        zeros = np.zeros(count, dtype=np.int64)
        return DomainDraws(
            columns={"friction": slice(0, 1)},
            seed=0,
            world=np.array(worlds),
            step=zeros,
            age=zeros,
            clock=zeros,
            draws=np.full((count, 1), mark),
            streams=np.zeros((count, 4, 6), dtype=np.uint64),
        )

    # World 1 begins again at steps 3 and 7, world 2 at 3.
    draws = DomainDraws.join(
        [(0, begun(0, 1, 2, mark=0.0)), (3, begun(1, 2, mark=3.0)), (7, begun(1, mark=7.0))]
    )
    assert draws.num == 6
    found = [[draws.draws[draws.find(t, n), 0] for n in range(3)] for t in (0, 2, 3, 6, 7, 9)]
    assert found == [[0, 0, 0], [0, 0, 0], [0, 3, 3], [0, 3, 3], [0, 7, 3], [0, 7, 3]]
    with pytest.raises(FerryError, match="step 0 of world 5"):
        draws.find(0, 5)
