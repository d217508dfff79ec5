"""Episodes on terrain: where they begin, how they end, which level follows, and a replay."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from real.domain import DomainSample
from real.errors import ConfigError, FerryError
from real.spec import load_robot
from sim.engine import InitialState
from sim.engines import make_engine
from sim.env import VecEnv
from sim.episodes import Episodes
from sim.observe import PRIVILEGED, SCAN_B, ground_scan
from sim.streams import make_streams
from sim.task import EnvConfig, load_env_config
from sim.terrain import Terrain, TerrainConfig
from sim.terrain_levels import Levels

#: Tiles of 2 m with platforms of 1.2 m: 0.1 m to each side to start on, 0.4 m of slope or steps.
TERRAIN: dict[str, Any] = {
    "levels": 3,
    "tile_m": 2.0,
    "platform_m": 1.2,
    "border_m": 0.5,
    "cell_m": 0.1,
    "tiles": {
        "hollow": {"shape": "slope", "easiest": 0.3, "hardest": 0.8},
        "hill": {"shape": "steps", "easiest": -0.1, "hardest": -0.3, "tread_m": 0.4},
    },
}
RULE = {"measure": "reward/alive", "up_at": 0.2, "down_at": 0.1}
#: How high platforms are above the tiles' edges, by tile and level.
PLATFORM = np.array([-0.4 * np.tan([0.3, 0.55, 0.8]), [0.1, 0.2, 0.3]])


def task(*overrides: str, rule: dict[str, Any] | None = None) -> EnvConfig:
    terrain = json.dumps({**TERRAIN, "curriculum": rule})
    calm = ["start={lift: 0.01}", "randomize={}", "sensors=null", "randomize_episode_phase=false"]
    return load_env_config("a1_walk", [f"terrain={terrain}", *calm, *overrides])


@pytest.fixture
def make() -> Iterator[Any]:
    """Builds envs and closes them."""
    made: list[VecEnv] = []

    def build(config: EnvConfig, num: int, seed: int = 0) -> VecEnv:
        robot = load_robot(config.robot)
        engine = make_engine(  # PyBullet in this process
            config.sim.engine,
            robot,
            num,
            threads=1 if config.sim.engine == "mujoco" else None,
            randomize={},
            terrain=config.terrain,
        )
        made.append(VecEnv(config, robot, engine=engine, seed=seed))
        return made[-1]

    yield build
    for env in made:
        env.close()


def begun(env: VecEnv) -> np.ndarray:
    """``[N, 4]`` tile, level, x and y that the samples of present episodes name."""
    return np.array([env.drawn().sample(i).values["terrain"] for i in range(env.num_envs)])


# ------------------------------------------------------------------ where


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["mujoco", "pybullet"])
def test_worlds_begin_on_tiles_of_their_own_a_base_height_above_them(make: Any, engine: str):
    num = 8 if engine == "mujoco" else 3
    env = make(task(f"sim.engine={engine}", "episode_s=0.1"), num)
    place = begun(env)
    tile, level = place[:, :2].astype(int).T
    assert len({tuple(p) for p in place[:, :2]}) >= 3 and len(set(level)) >= 2
    world = env.engine.state()
    middle = np.stack([2.0 * tile - 1.0, 2.0 * level - 2.0], axis=1)
    np.testing.assert_allclose(world.position_w[:, :2], middle + place[:, 2:], atol=1e-9)
    assert (np.abs(place[:, 2:]) <= 0.1).all() and np.ptp(place[:, 2:]) > 0.05
    # The platform, the default pose, and the lift of 0.01 m.
    high = PLATFORM[tile, level] + env.robot.base_height_m + 0.01
    np.testing.assert_allclose(world.position_w[:, 2], high, atol=1e-6)
    critic = env.observation["critic"][:, env.critic_slices["base_height"]]
    np.testing.assert_allclose(critic[:, 0], env.robot.base_height_m + 0.01, atol=1e-6)

    # What is kept goes on bit by bit, through resets to other tiles.
    sample, first = env.drawn().sample(num - 1), world.position_w[-1].copy()
    kept, still = env.state_dict(), np.zeros((num, 12))
    expected = [env.step(still) for _ in range(7)]
    assert sum(r.truncated.sum() for r in expected) == num
    following = begun(env)
    assert (following != place).any()
    env.load_state_dict(kept)
    np.testing.assert_array_equal(begun(env), place)
    for one in expected:
        two = env.step(still)
        np.testing.assert_array_equal(two.obs["critic"], one.obs["critic"])
        np.testing.assert_array_equal(two.reward, one.reward)
    np.testing.assert_array_equal(begun(env), following)

    # An episode is lived through again in another world, from its sample alone.
    body = json.loads(json.dumps(asdict(sample)))
    env.reset(domain={1: DomainSample(**{**body, "streams": tuple(map(tuple, body["streams"]))})})
    np.testing.assert_array_equal(begun(env)[1], place[-1])
    np.testing.assert_array_equal(env.engine.state().position_w[1], first)
    for one in expected[:4]:
        again = env.step(still).obs["critic"][1]
        np.testing.assert_array_equal(again, one.obs["critic"][-1])


def test_a_sample_of_other_ground_is_refused(make: Any):
    env, flat = make(task(), 2), make(task("terrain=null"), 2)
    sample = env.drawn().sample(1)
    with pytest.raises(FerryError, match="is of a task on terrain; this one is on a plane"):
        flat.reset(domain={0: sample})
    with pytest.raises(FerryError, match=r"on the terrain at None; expected \(tile, level, x, y\)"):
        env.reset(domain={0: flat.drawn().sample(1)})
    further = replace(sample, values={**sample.values, "terrain": [2.0, 0.0, 0.0, 0.0]})
    with pytest.raises(FerryError, match="on 2 tiles of 3 levels; was the table `terrain` changed"):
        env.reset(domain={0: further})
    with pytest.raises(FerryError, match=r"has levels None; expected \(2, 2\) \(worlds, tiles\)"):
        env.load_state_dict(flat.state_dict())


def test_a_nominal_task_keeps_its_ground_and_meets_every_level():
    config = task(rule=RULE)
    assert config.terrain is not None and config.terrain.curriculum is not None
    ground = config.nominal().terrain
    assert ground is not None and ground.curriculum is None and ground.tiles == config.terrain.tiles
    assert task("terrain=null").nominal().terrain is None


def test_the_critic_sees_the_ground_about_the_base_in_its_heading(make: Any):
    env = make(task("critic=[ground_scan]"), 4)
    world, terrain = env.engine.state(), env.engine.terrain
    assert terrain is not None
    # On a hollow of level 2, 0.3 or 0.5 m off its middle, with the head to +x, +y, -x and between.
    off = np.array([[0.3, 0.0], [0.5, 0.0], [0.3, 0.0], [0.3, 0.0]])
    xy = terrain.centre(np.zeros(4, dtype=int), np.full(4, 2)) + off
    heading = np.array([0.0, np.pi / 2, np.pi, 0.75 * np.pi])
    quat = np.stack([np.cos(heading / 2), *np.zeros((2, 4)), np.sin(heading / 2)], axis=1)
    position = np.concatenate([xy, np.full((4, 1), 0.5)], axis=1)
    placed = replace(world, position_w=position, robot=replace(world.robot, quat_wb=quat))
    found = ground_scan(replace(env._view(world), world=placed)).reshape(4, 5, 3)
    floor, slope = -0.4 * math.tan(0.8), math.tan(0.8)
    # 0.5 m ahead is 0.8 m from the middle, 0.2 m up the slope; nothing else ends beyond 0.6 m.
    np.testing.assert_allclose(found[0, 4], 0.5 - floor - 0.2 * slope, atol=1e-6)
    np.testing.assert_allclose(found[0, :3], 0.5 - floor, atol=1e-6)
    # The head to +y: 0.25 m to the right is 0.75 m from the middle, all else on the platform.
    np.testing.assert_allclose(found[1, :, 0], 0.5 - floor - 0.15 * slope, atol=1e-6)
    np.testing.assert_allclose(found[1, :, 1:], 0.5 - floor, atol=1e-6)
    np.testing.assert_allclose(found[2, 0], found[0, 4], atol=1e-6)  # backwards is +x
    # By the slow way for the last: each point turned by itself.
    for i, (forward, left) in enumerate(SCAN_B.tolist()):
        c, s = math.cos(heading[3]), math.sin(heading[3])
        point = xy[3] + np.array([c * forward - s * left, s * forward + c * left])
        expected = 0.5 - terrain.field.at(point)
        assert found[3].ravel()[i] == pytest.approx(expected, abs=1e-9)
    assert np.ptp(found[3]) > 0.05
    assert env.critic_slices["ground_scan"].stop == env.critic_dim


@pytest.mark.parametrize("engine", ["mujoco", "pybullet"])
def test_a_state_renewed_for_some_worlds_is_the_state_and_its_rows_are_seen_alike(
    make: Any, engine: str
):
    env = make(task(f"sim.engine={engine}", f"critic=[{', '.join(PRIVILEGED)}]"), 3)
    env.step(np.full((3, 12), 0.3))
    before, rows = env.engine.state().of(np.arange(3)), np.array([2, 0])
    start = InitialState.default(env.robot, 2)
    env.engine.reset(rows, replace(start, position_w=start.position_w + np.array([0.5, 0.1, 0.2])))
    renewed = env.engine.renew_state(before, rows)
    state = env.engine.state()
    assert state.ground_w is not None
    for name, value in vars(state).items():
        if name != "robot":
            np.testing.assert_array_equal(getattr(renewed, name), value, err_msg=name)
    # The last observation of rows that ended is made from their rows alone.
    view = env._view(state)
    for name, term in PRIVILEGED.items():
        alone = np.asarray(term.read(view.of(rows)))
        np.testing.assert_array_equal(alone, np.asarray(term.read(view))[rows], err_msg=name)


# ------------------------------------------------------------------ how it ends


def test_a_robot_that_leaves_its_tile_is_truncated_and_begins_again(make: Any):
    env = make(task(rule=RULE), 4)
    still, steps = np.zeros((4, 12)), 0
    tile = begun(env)[:, 0].astype(int)
    # Thrown up and sideways, 0.9 to 1.1 m to the edge at no more than 2.5 m/s.
    env.engine.add_velocity(np.array([2]), np.array([[2.5, 0.0, 2.0]]), np.zeros((1, 3)))
    result = env.step(still)
    while not result.final_ids.size:
        before = env.engine.state().position_w[2, 0]
        result, steps = env.step(still), steps + 1
    assert result.final_ids.tolist() == [2] and 17 <= steps <= 30
    assert result.truncated[2] and not result.terminated[2]
    edge = 2.0 * tile[2]
    assert edge - 0.06 < before < edge
    assert result.episode["left"].tolist() == [True]
    assert not result.episode["fallen"].any() and (result.final_obs["critic"] != 0.0).any()
    assert env.engine.state().height[2] == pytest.approx(env.robot.base_height_m + 0.01)
    # It lived as long as it could, so what it got per second is good: the next level.
    assert result.episode["terrain_level"].tolist() == [1]
    assert env.state_dict()["starts.terrain.level"][2, tile[2]] == 1


def test_who_falls_while_it_leaves_has_fallen():
    episodes = Episodes(3, limit=9, parts=("alive",))
    episodes.tick()
    left, fell = np.array([True, True, False]), np.array([True, False, False])
    assert episodes.over(left, fell).tolist() == [False, True, False]
    # Who left lived as long as it could; who fell could have lived to the limit.
    np.testing.assert_array_equal(episodes.could_last(np.arange(3)), [9.0, 1.0, 9.0])


def test_a_fall_is_low_above_the_ground_on_a_hill_and_in_a_hollow(make: Any):
    env = make(task("terminations.fall.tilt_rad=3.0"), 8)
    assert set(begun(env)[:, 0].astype(int)) == {0, 1}
    # In a hollow of 0.41 m every base is below zero, and none has fallen.
    for _ in range(15):
        assert not env.step(np.zeros((8, 12))).terminated.any()
    low = env.engine.state().position_w[:, 2] < env.robot.fall_height_m
    assert low.any() and not low.all()
    # Lying down: thighs forward, calves folded. On a hill the belly is still high.
    fold = np.tile([0.0, 4.0, -5.0], 4) * np.ones((8, 1))
    fallen = np.zeros(8, dtype=bool)
    for _ in range(50):
        high = env.engine.state().position_w[:, 2] > env.robot.fall_height_m
        result = env.step(fold)
        fallen[result.final_ids[result.episode["fallen"]]] = True
        if result.final_ids.size and high[result.final_ids].any():
            assert result.terminated[result.final_ids].all()
    assert fallen.all()


# ------------------------------------------------------------------ levels


def levels(num: int, *, seed: int = 0, **rule: Any) -> Levels:
    made = TerrainConfig.model_validate({**TERRAIN, "curriculum": {**RULE, **rule}})
    return Levels(Terrain(made), make_streams(seed, num)["start"])


def ended(alive: list[float], **failed: list[bool]) -> dict[str, np.ndarray]:
    nobody = np.zeros(len(alive), dtype=bool)
    out = {name: np.array(failed.get(name, nobody)) for name in ("fallen", "strayed", "diverged")}
    return {**out, "reward/alive": np.array(alive)}


def test_levels_rise_with_success_and_fall_with_failure_by_hand():
    made, rows = levels(5, start=1), np.arange(5)
    made.place[:, 0], made.place[:, 1] = [0, 0, 1, 1, 0], 1
    # Per second of 4 s: 0.25, 0.15, 0.05, 0.25 but fallen, and not a number.
    given = ended([1.0, 0.6, 0.2, 1.0, np.nan], fallen=[False, False, False, True, False])
    found = made.learn(rows, given, np.full(5, 4.0))
    assert found.tolist() == [2, 1, 0, 0, 0]
    assert made.level.tolist() == [[2, 1], [1, 1], [1, 0], [1, 0], [0, 1]]
    # From the last level on to any, and back from where it failed; at the bottom it stays.
    made.place[:2, 1], made.place[2:, 1] = [2, 2], 0
    assert made.learn(rows, ended([4.0, 0.0, 0.0, 0.0, 0.0]), np.ones(5)).tolist() == [
        3,
        1,
        0,
        0,
        0,
    ]
    made.place[0, 1] = 0
    assert made.learn(rows[:1], ended([0.15]), np.ones(1)).tolist() == [3]
    made.place[0, 1] = 2
    assert made.learn(rows[:1], ended([0.0]), np.ones(1)).tolist() == [1]


def test_who_passed_everything_meets_every_level_and_a_replay_teaches_nothing():
    num = 60
    made, rows = levels(num), np.arange(num)
    made.draw(rows, {})
    assert (made.place[:, 1] == 0).all() and set(made.place[:, 0]) == {0.0, 1.0}
    made.level[:] = 3
    made.draw(rows, {})
    counts = np.bincount(made.place[:, 1].astype(int), minlength=3)
    assert counts.min() > 10 and counts.sum() == num
    sample = DomainSample(0, {"terrain": [1.0, 2.0, 0.05, -0.03]})
    made.draw(rows[:2], {1: sample})
    assert made.place[1].tolist() == [1.0, 2.0, 0.05, -0.03]
    made.learn(rows[:2], ended([0.0, 0.0]), np.ones(2))
    assert (made.level[1] == 3).all() and (made.level[0] < 3).any()


def test_a_world_draws_the_same_whatever_the_others_do():
    one, two = levels(3, seed=4), levels(1, seed=4)
    one.draw(np.arange(3), {})
    two.draw(np.arange(1), {})
    np.testing.assert_array_equal(one.place[:1], two.place)


def test_levels_that_follow_something_unknown_are_refused_at_their_line():
    with pytest.raises(ConfigError, match=r"'reward/alife' is not known \(did you mean 'reward/al"):
        task(rule={**RULE, "measure": "reward/alife"})


def test_the_steepest_hollow_is_as_deep_as_its_tangent():
    assert pytest.approx(-0.4 * math.tan(0.8)) == PLATFORM[0, 2]
