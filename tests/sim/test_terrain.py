"""Terrain: heights by hand, the same ground in both engines, where episodes begin and end on it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pybullet
import pytest

from real.config import parse_config
from real.errors import ConfigError, FerryError
from real.spec import RobotSpec, load_robot
from sim.engine import Engine, InitialState
from sim.engines import make_engine
from sim.height_field import HeightField
from sim.mujoco_engine import MujocoEngine
from sim.pybullet_ground import lay_floor
from sim.terrain import Terrain, TerrainConfig

#: 4 tiles of 3 levels: 12 m by 9 m in cells of 0.1 m, a border of 0.5 m, platforms of 1 m.
TABLE: dict[str, Any] = {
    "levels": 3,
    "tile_m": 3.0,
    "platform_m": 1.0,
    "border_m": 0.5,
    "cell_m": 0.1,
    "tiles": {
        "flat": {"shape": "flat"},
        "hollow": {"shape": "slope", "easiest": 0.1, "hardest": 0.5},
        "stairs": {"shape": "steps", "easiest": -0.05, "hardest": -0.15, "tread_m": 0.4},
        "rubble": {"shape": "rough", "easiest": 0.02, "hardest": 0.06, "grain_m": 0.3},
    },
}


@pytest.fixture(scope="module")
def terrain() -> Terrain:
    return Terrain(parse_config(TerrainConfig, TABLE, source="terrain"))


@pytest.fixture(scope="module")
def a1() -> RobotSpec:
    return load_robot("a1")


# ------------------------------------------------------------------ heights


def test_a_cell_is_two_triangles_and_the_ground_goes_on_level_beyond_its_edge():
    field = HeightField(np.array([[0.0, 1.0, 0.0], [2.0, 4.0, 0.0]]), cell_m=2.0)
    np.testing.assert_array_equal(field.half_m, [2.0, 1.0])
    # The first cell, in shares of it: (0, 0), (1, 0), (0, 1), (1, 1) are 0, 1, 2, 4 high.
    shares = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.5, 0.25], [0.25, 0.5]])
    below = 0.25 * 0 + 0.25 * 1 + 0.25 * 4 + 0.25 * 0  # half way along x, then a quarter up
    by_hand = [0.0, 1.0, 2.0, 4.0, 0.5 * 1 + 0.25 * (4 - 1), 0.5 * 2 + 0.25 * (4 - 2)]
    assert by_hand[4] == below
    np.testing.assert_allclose(field.at(shares * 2.0 + [-2.0, -1.0]), by_hand)
    outside = np.array([[-9.0, -9.0], [-9.0, 0.0], [0.0, 7.0], [9.0, 9.0]])
    np.testing.assert_allclose(field.at(outside), [0.0, 1.0, 4.0, 0.0])
    assert np.isnan(field.at(np.array([[np.nan, 0.0], [0.0, np.inf]])[:1])).all()


def test_slopes_rise_by_the_tangent_and_steps_by_their_height(terrain: Terrain):
    tiles, levels = np.array([1, 1, 1]), np.array([0, 1, 2])
    # 1 m of slope between the platform and the edge, where the ground is at zero.
    centre = terrain.centre(tiles, levels)
    np.testing.assert_allclose(centre, [[-1.5, -3.0], [-1.5, 0.0], [-1.5, 3.0]])
    for share, off in ((1.0, [0.4, -0.5]), (0.6, [-0.9, 0.2]), (0.25, [0.3, 1.25]), (0, [1.5, 1])):
        np.testing.assert_allclose(
            terrain.field.at(centre + off),
            -share * np.tan([0.1, 0.3, 0.5]),
            atol=1e-6,
            err_msg=str(off),
        )
    # 1 m in treads of 0.4 m is three steps down, the first at the platform, over one cell each.
    centre = terrain.centre(np.array([2, 2, 2]), levels)
    step = np.array([0.05, 0.1, 0.15])
    for steps, off in ((3, 0.5), (2, 0.6), (2, 0.9), (1.5, 0.95), (1, 1.0), (1, 1.3), (0, 1.4)):
        for way in ([off, 0.0], [-0.1, -off], [0.3, off]):
            found = terrain.field.at(centre + way)
            np.testing.assert_allclose(found, steps * step, atol=1e-6, err_msg=f"{way}")
    assert terrain.amount(1, 1) == pytest.approx(0.3) and terrain.amount(2, 0) == -0.05


def test_grains_stand_where_they_should_and_tiles_meet_at_zero(terrain: Terrain):
    levels = np.arange(3)
    centre = terrain.centre(np.full(3, 3), levels)
    grid = np.stack(np.meshgrid(*[np.arange(-1.2, 1.3, 0.3)] * 2), axis=-1)  # the grains
    heights = np.array([terrain.field.at(middle + grid) for middle in centre])
    most = np.array([0.02, 0.04, 0.06])
    assert (np.abs(heights).max(axis=(1, 2)) <= most + 1e-6).all()
    assert (np.abs(heights).max(axis=(1, 2)) > 0.9 * most).all()
    # Between two grains along x the ground is straight.
    between = terrain.field.at(centre[2] + grid[:, :-1] + [0.1, 0.0])
    np.testing.assert_allclose(between, (2 * heights[2][:, :-1] + heights[2][:, 1:]) / 3, atol=1e-6)
    along = np.linspace(-6.4, 6.4, 200)
    for y in (-4.5, -1.5, 1.5, 4.5, 4.9):
        np.testing.assert_array_equal(terrain.field.at(np.stack([along, 0 * along + y], 1)), 0.0)
    # A tile is what its column, level and seed say, whatever stands beside it.
    other = {**TABLE, "tiles": {**TABLE["tiles"], "flat": {"shape": "slope", "hardest": 0.2}}}
    again = Terrain(parse_config(TerrainConfig, other, source="terrain"))
    np.testing.assert_array_equal(again.field.at(centre[1] + grid), heights[1])
    reseeded = Terrain(parse_config(TerrainConfig, {**TABLE, "seed": 1}, source="terrain"))
    assert (reseeded.field.at(centre[1] + grid) != heights[1]).any()


def test_a_place_knows_its_tile_and_when_it_has_left_it(terrain: Terrain):
    tile, level = np.array([3, 0, 2]), np.array([0, 2, 1])
    centre = terrain.centre(tile, level)
    for off in ([1.49, -1.49], [-1.49, 0.0]):
        found = terrain.tile_at(centre + off)
        np.testing.assert_array_equal(found[0], tile)
        np.testing.assert_array_equal(found[1], level)
        assert not terrain.outside(centre + off, centre).any()
    assert terrain.outside(centre + np.array([0.0, -1.51]), centre).all()
    assert not terrain.outside(np.full((3, 2), np.nan), centre).any()
    assert terrain.tile_at(np.array([[99.0, -99.0]])) == (np.array([3]), np.array([0]))
    # The highest point about the top of stairs is the top, and about their foot a step.
    top = terrain.centre(np.array([2]), np.array([2]))
    foot = top + np.array([1.5, 0.0])
    assert terrain.field.highest(top + 0.3, within_m=0.5) == pytest.approx(0.45)
    assert terrain.field.highest(foot, within_m=0.3) == pytest.approx(0.15)
    assert terrain.field.highest(foot, within_m=0.1) == pytest.approx(0.0)


# ------------------------------------------------------------------ both engines


def rays(client: int, xy: np.ndarray) -> np.ndarray:
    """Heights that PyBullet finds from above."""
    start = [[x, y, 5.0] for x, y in xy.tolist()]
    end = [[x, y, -5.0] for x, y in xy.tolist()]
    hits = pybullet.rayTestBatch(start, end, physicsClientId=client)
    return np.array([hit[3][2] for hit in hits])


def test_both_engines_have_the_same_ground_everywhere(terrain: Terrain, a1: RobotSpec):
    import mujoco

    engine = MujocoEngine(a1, 1, threads=1, terrain=terrain)
    model = engine.built.model
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    rng = np.random.default_rng(0)
    floor = np.zeros(1, dtype=np.int32)
    only_floor = np.zeros(6, dtype=np.uint8)
    only_floor[int(model.geom_group[engine.built.floor_geom_id])] = 1
    for tile, level in ((1, 2), (2, 1), (3, 0), (0, 1)):
        centre = terrain.centre(np.array([tile]), np.array([level]))
        xy = centre + rng.uniform(-1.95, 1.95, (60, 2))  # with some of its neighbours
        expected = terrain.field.at(xy)
        assert np.ptp(expected) > 0.03 or tile == 0
        for (x, y), height in zip(xy.tolist(), expected.tolist(), strict=True):
            start, down = np.array([x, y, 5.0]), np.array([0.0, 0.0, -1.0])
            far = mujoco.mj_ray(model, data, start, down, only_floor, 1, -1, floor)
            assert 5.0 - far == pytest.approx(height, abs=2e-6)
        client = pybullet.connect(pybullet.DIRECT)
        lay_floor(client, terrain, centre[0])
        np.testing.assert_allclose(rays(client, xy), expected, atol=2e-6)
        pybullet.disconnect(client)


@pytest.fixture
def make(a1: RobotSpec, terrain: Terrain) -> Iterator[Any]:
    """Builds engines on the terrain and closes them."""
    made: list[Engine] = []

    def build(name: Any, num: int) -> Engine:
        threads = 1 if name == "mujoco" else None
        config = terrain.config
        made.append(make_engine(name, a1, num, threads=threads, randomize={}, terrain=config))
        return made[-1]

    yield build
    for engine in made:
        engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mujoco", "pybullet"])
def test_robots_stand_on_their_platforms_and_feel_them(
    make: Any, a1: RobotSpec, terrain: Terrain, name: str
):
    engine = make(name, 3)
    tile, level = np.array([2, 0, 1]), np.array([2, 1, 2])
    start = InitialState.default(a1, 3)
    xy = terrain.centre(tile, level)
    platform = np.array([0.45, 0.0, -math.tan(0.5)])
    start.position_w[:, :2] = xy
    start.position_w[:, 2] += platform
    yaw = np.array([0.3, 2.0, -1.2])  # standing is the same at any heading
    start.quat_wb[:, 0], start.quat_wb[:, 3] = np.cos(yaw / 2), np.sin(yaw / 2)
    engine.reset(np.arange(3), start)
    assert engine.state().height == pytest.approx(a1.base_height_m)
    for _ in range(25):
        engine.step(start.q)
    state = engine.state()
    assert state.foot_contact.all() and not state.body_contact.any()
    np.testing.assert_allclose(state.position_w[:, 2] - platform, state.height, atol=1e-6)
    np.testing.assert_allclose(state.height, state.height[1], atol=1e-3)  # as on the flat tile
    np.testing.assert_allclose(state.foot_over_ground[:, :, 2], 0.02, atol=1e-3)
    assert np.ptp(state.foot_position_w[:, :, 2]) > 0.9
    # The ground below a base is that below its own place, whatever its heading.
    kept = engine.state_dict()
    moved = InitialState.default(a1, 3)
    moved.position_w[:, :2] = xy + np.array([0.95, 0.3])
    moved.position_w[:, 2] += 1.0
    moved.quat_wb[:] = start.quat_wb
    engine.reset(np.arange(3), moved)
    below = np.array([1.5 * 0.15, 0.0, -0.55 * math.tan(0.5)])
    np.testing.assert_allclose(engine.state().ground_w[:, 0], below, atol=1e-6)
    engine.load_state_dict(kept)
    np.testing.assert_array_equal(engine.state().height, state.height)


def test_on_a_slope_robots_come_to_stand_alike_in_both_engines(
    make: Any, a1: RobotSpec, terrain: Terrain
):
    paths = []
    for name in ("mujoco", "pybullet"):
        engine = make(name, 1)
        start = InitialState.default(a1, 1)
        start.position_w[0, :2] = terrain.centre(np.array([1]), np.array([0]))[0] + [0.9, 0.0]
        start.position_w[0, 2] += terrain.field.highest(start.position_w[:, :2], within_m=0.3)[0]
        engine.reset(np.arange(1), start)
        for _ in range(40):
            engine.step(start.q)
        state = engine.state()
        assert state.foot_contact.all()
        paths.append(np.concatenate([state.position_w[0], state.foot_position_w[0].ravel()]))
        # The middle of a foot of 0.02 m is 0.02 / cos(0.1) above the ground below it.
        np.testing.assert_allclose(state.foot_over_ground[0, :, 2], 0.02, atol=5e-4)
    np.testing.assert_allclose(paths[1], paths[0], atol=0.015)


# ------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tiles": {}}, "at least 1 item"),
        ({"tiles": {"a": {"shape": "slop"}}}, "'flat', 'slope', 'steps' or 'rough'"),
        ({"tiles": {"a": {"shape": "slope"}}}, "a slope tile of 0 is flat"),
        ({"tiles": {"a": {"shape": "flat", "hardest": 1}}}, "remove easiest and hardest"),
        ({"tiles": {"a": {"shape": "rough", "hardest": -0.1}}}, "hardest is -0.1; .*from 0 to 0.5"),
        ({"tiles": {"a": {"shape": "slope", "hardest": 1.2}}}, r"hardest is 1.2; .*angle.*\[rad\]"),
        ({"tiles": {"a": {"shape": "steps", "hardest": 0.1, "tread_m": 0.25}}}, "tread_m is 0.25"),
        ({"tile_m": 3.05}, "tile_m is 3.05 m; expected a whole number of cells of 0.1"),
        ({"platform_m": 0.5}, "expected 1 m at least, to stand on"),
        ({"platform_m": 3.0}, "ground around it"),
        ({"platform_m": 1.1}, "even number of cells"),
        ({"curriculum": {"up_at": 1.0, "down_at": 1.0}}, "expected less than up_at"),
        ({"curriculum": {"up_at": 1, "down_at": 0, "start": 3}}, "level from 0 to 2"),
    ],
)
def test_a_table_that_cannot_be_right_is_refused(change: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        parse_config(TerrainConfig, {**TABLE, **change}, source="terrain")


def test_an_arm_that_is_bolted_down_has_no_terrain():
    config = parse_config(TerrainConfig, TABLE, source="terrain")
    with pytest.raises(FerryError, match="'panda' has a fixed base and stands on no terrain"):
        make_engine("mujoco", load_robot("panda"), 1, threads=1, randomize={}, terrain=config)
