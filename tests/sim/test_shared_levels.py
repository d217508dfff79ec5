"""What the worlds of a run have reached is known in one place, and whoever joins begins there."""

from __future__ import annotations

import numpy as np
import pytest

from real.errors import FerryError
from sim.shared import Shared
from sim.streams import make_streams
from sim.terrain import Terrain, TerrainConfig
from sim.terrain_levels import PICTURES, Levels

#: Two tiles of three levels: worlds are at 0, 1, 2, or at 3, where they passed the last.
TERRAIN = {
    "levels": 3,
    "tile_m": 2.0,
    "platform_m": 1.2,
    "border_m": 0.5,
    "cell_m": 0.1,
    "tiles": {
        "hollow": {"shape": "slope", "hardest": 0.8},
        "hill": {"shape": "steps", "hardest": -0.3, "tread_m": 0.4},
    },
    "curriculum": {"measure": "return", "up_at": 1.0, "down_at": 0.0},
}


def levels(num: int, stream: tuple[int, int] = (0, 0), *, rule: bool = True) -> Levels:
    table = TERRAIN if rule else {**TERRAIN, "curriculum": None}
    terrain = Terrain(TerrainConfig.model_validate(table))
    return Levels(terrain, make_streams(7, num, stream=stream)["start"])


def follower(num: int, stream: tuple[int, int] = (0, 0)) -> Levels:
    made = levels(num, stream)
    made.follow()
    return made


def ended(made: Levels, tile: list[int], good: list[bool]) -> None:
    """An episode of every world ends, on this tile at the level that the world is at."""
    rows = np.arange(len(tile))
    made.place[:, 0], made.place[:, 1] = tile, np.minimum(made.level[rows, tile], 2)
    never = np.zeros(rows.size, dtype=bool)
    episode = dict.fromkeys(("fallen", "strayed", "diverged"), never)
    value = np.where(good, 2.0, -1.0)
    made.learn(rows, {**episode, "return": value}, np.ones(rows.size))


def test_a_report_says_how_many_worlds_are_where_and_the_metrics_what_that_comes_to():
    made = follower(3)
    ended(made, [0, 0, 1], [True, True, True])
    ended(made, [0, 1, 1], [True, False, True])
    (worlds,) = made.report()["worlds"]
    assert made.level.tolist() == [[2, 0], [1, 0], [0, 2]]
    assert worlds.tolist() == [[1, 1, 1, 0], [2, 0, 1, 0]]
    # One that decides for itself has nobody to tell, and knows of its own worlds at any time.
    alone = levels(3)
    assert not alone.report()
    for tile, good in (([0, 0, 1], [True] * 3), ([0, 1, 1], [True, False, True])):
        ended(alone, tile, good)
        np.testing.assert_array_equal(alone.shared_state()["worlds"].sum(axis=(0, 2)), [3, 3])
    np.testing.assert_array_equal(alone.shared_state()["worlds"], [worlds])
    assert alone.measures() == pytest.approx({"mean": 5 / 6, "hollow": 1.0, "hill": 2 / 3})
    # As far as it was told something, that is out of date once its own worlds move on.
    alone.load_shared_state({"worlds": np.array([[[9, 0, 0, 0], [0, 0, 0, 9]]])})
    assert alone.measures() == pytest.approx({"mean": 1.5, "hollow": 0.0, "hill": 3.0})
    assert alone.level.tolist() == made.level.tolist()
    ended(alone, [0, 0, 0], [True, True, True])
    assert alone.measures()["hollow"] == 2.0


def test_reports_of_many_actors_one_after_the_other_and_together_come_to_the_same():
    rng = np.random.default_rng(3)
    actors, decider = [follower(n, (n, 0)) for n in (2, 3, 5)], levels(4)
    one = levels(4)
    for _ in range(PICTURES):
        reports = []
        for actor in actors:
            num = len(actor.level)
            ended(actor, rng.integers(2, size=num).tolist(), (rng.random(num) < 0.7).tolist())
            reports.append(actor.report())
        for report in reports:
            decider.absorb(report)
        one.absorb({"worlds": np.concatenate([r["worlds"] for r in reports])})
        known = decider.shared_state()["worlds"]
        np.testing.assert_array_equal(one.shared_state()["worlds"], known)
        # The newest, whoever's they are; of its own worlds, which nobody steps, it says nothing.
        newest = [r["worlds"][0] for r in reports]
        np.testing.assert_array_equal(known[-3:], newest)
        assert len(known) <= PICTURES
    assert len(known) == PICTURES
    assert known.sum(axis=(1, 2)).tolist()[-3:] == [4, 6, 10]
    other = levels(4)
    other.load_shared_state(decider.shared_state())
    np.testing.assert_array_equal(other.shared_state()["worlds"], known)
    assert (other.level == 0).all()  # nobody steps those


def test_worlds_that_join_begin_where_those_of_the_run_are_each_by_its_own_numbers():
    # Of two actors, four worlds: on the hollow at 1 1 2 3, on the hill at 0 0 0 2.
    told = {"worlds": np.array([[[0, 2, 0, 0], [2, 0, 0, 0]], [[0, 0, 1, 1], [1, 0, 1, 0]]])}
    num, stream = 400, (2, 1)
    joins = follower(num, stream)
    joins.load_shared_state(told)
    # The slow way: all worlds of the run in a row, of which each takes one by chance.
    rows = ([1, 1, 2, 3], [0, 0, 0, 2])
    for world, rng in enumerate(make_streams(7, num, stream=stream)["start"]):
        chance = rng.random(2).tolist()
        expected = [row[int(c * 4)] for row, c in zip(rows, chance, strict=True)]
        assert joins.level[world].tolist() == expected
    share = joins.report()["worlds"][0] / num
    np.testing.assert_allclose(share, [[0, 0.5, 0.25, 0.25], [0.75, 0, 0.25, 0]], atol=0.08)
    # Another actor has other numbers, the same one the same, however many worlds it has.
    again, other = follower(3, stream), follower(num, (2, 2))
    again.load_shared_state(told)
    other.load_shared_state(told)
    np.testing.assert_array_equal(again.level, joins.level[:3])
    assert (other.level != joins.level).any()
    # Once: what they reach from then on is theirs, whatever the others do.
    own = joins.level.copy()
    joins.load_shared_state({"worlds": np.array([[[0, 0, 0, 9], [0, 0, 0, 9]]])})
    np.testing.assert_array_equal(joins.level, own)


def test_who_is_told_what_it_knows_already_draws_nothing():
    joins, fresh = follower(5), follower(5)
    joins.load_shared_state(levels(5).shared_state())
    joins.draw(np.arange(5), {})
    fresh.draw(np.arange(5), {})
    np.testing.assert_array_equal(joins.place, fresh.place)


def test_levels_of_other_ground_are_refused_and_those_without_a_rule_are_nobodys():
    made = levels(2)
    for worlds in (np.zeros((1, 2, 3), int), np.zeros((0, 2, 4), int)):
        with pytest.raises(FerryError, match=r"expected \(2, 4\) .*was the table `terrain` chang"):
            made.load_shared_state({"worlds": worlds})
    with pytest.raises(FerryError, match="has worlds at levels None"):
        made.load_shared_state({})
    assert made.shared is made and levels(2, rule=False).shared is None
    assert not Shared({"terrain": levels(2, rule=False).shared})
