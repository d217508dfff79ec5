"""Evaluation on terrain: every tile and level, until a robot leaves the tile that it began on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from real.errors import FerryError
from real.spec import load_robot
from tests.training.short_run import short_config
from training.contract import run_contract
from training.evaluator import _scored
from training.progress import silent
from training.scores import NEVER, falls_per_minute, tracking
from training.suites import SUITES, episode_seeds, selection_suite
from training.trial import Trajectory, Worlds, run_trial

ROBOT = load_robot("a1")
TERRAIN = (
    "terrain={levels: 2, tile_m: 3.0, platform_m: 1.4, cell_m: 0.1, border_m: 0.5, tiles: "
    "{hill: {shape: slope, easiest: -0.2, hardest: -0.6}, "
    "pit: {shape: steps, easiest: 0.1, hardest: 0.2, tread_m: 0.2}}, "
    "curriculum: {measure: reward/alive, up_at: 0.2, down_at: 0.1}}"
)


class Standing:
    """Asks for the default pose whatever it sees."""

    contract = run_contract(short_config(), {})

    def infer(self, observation):
        mean = np.zeros((observation.shape[0], 12), dtype=np.float32)
        return mean, mean - 1.0


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "num"), [("terrain", 24), ("pybullet_terrain", 3)])
def test_robots_of_a_suite_stand_on_every_tile_and_are_scored_where_they_stand(suite, num):
    short = replace(SUITES[suite], episode_s=0.4)
    seeds = episode_seeds(0, num, purpose="report")
    worlds = Worlds(short, ROBOT, config=short_config(TERRAIN), seeds=seeds)
    run = run_trial(Standing(), worlds, progress=silent)
    truth = worlds._engine.state()
    ground = truth.position_w[:, 2] - truth.height
    worlds.close()
    # Hills of 0.8 m of slope, pits of four steps; levels apart although the task has a curriculum.
    known = [0.8 * np.tan(0.2), 0.8 * np.tan(0.6), -0.4, -0.8]
    found = {int(np.argmin(np.abs(np.array(known) - height))) for height in ground}
    assert found == {0, 1, 2, 3} if num == 24 else len(found) > 1
    assert (run.height_m[-1] > 0.25).all() and (run.height_m[-1] < 0.32).all()
    assert run.counted.tolist() == [20] * num
    gone = replace(truth, position_w=truth.position_w + np.array([0.0, 2.3, 0.0]))
    assert worlds.left(gone).all() and not worlds.left(truth).any()


def test_what_happens_beyond_the_tile_counts_for_nothing():
    steps, num, dt = 200, 3, 0.02
    command = np.zeros((steps, num, 3))
    still = np.zeros((steps, num, 3))
    fast = still.copy()
    fast[:, :, 0] = 0.5  # scores (2 exp(-1) + 1) / 3
    off = (2.0 * np.exp(-1.0) + 1.0) / 3.0
    counted = np.array([200, 120, 100])
    moving = np.where(np.arange(steps)[:, None, None] < 90, still, fast)
    never = np.full(num, NEVER)
    found = tracking(command, moving, still, fallen_at=never, dt_s=dt, counted=counted)
    # Of steps 50 to 199, 119 and 99, those up to 89 are right.
    by_hand = [(40 + 110 * off) / 150, (40 + 30 * off) / 70, (40 + 10 * off) / 50]
    np.testing.assert_allclose(found, by_hand)
    none = tracking(command, still, still, fallen_at=never, dt_s=dt, counted=np.full(num, 30))
    assert none.tolist() == [0.0] * num

    tilt = np.zeros((steps, num))
    tilt[110:] = 1.5
    zeros = np.zeros((steps, num))
    run = Trajectory(
        command, still, still, tilt, zeros + 0.3, zeros, np.zeros((steps, num, 12)),
        zeros.astype(np.int8), counted,
    )  # fmt: skip
    scores, fallen = _scored(run, ROBOT, "tracking", None)
    assert fallen.tolist() == [110, 110, NEVER]
    np.testing.assert_allclose(scores, [60 / 150, 60 / 70, 1.0])
    rate = falls_per_minute(fallen, steps=counted, dt_s=dt).mean
    assert rate == pytest.approx(2 / ((110 + 110 + 100) * dt / 60))


def test_the_ground_of_the_task_chooses_its_best_checkpoint():
    assert selection_suite("mujoco", terrain=False) == "nominal"
    assert selection_suite("pybullet", terrain=False) == "pybullet"
    assert selection_suite("mujoco", terrain=True) == "terrain"
    assert selection_suite("pybullet", terrain=True) == "pybullet_terrain"


@pytest.mark.parametrize("config", [None, short_config()])
def test_a_suite_on_terrain_needs_a_task_that_has_one(config):
    with pytest.raises(FerryError, match="suite 'terrain' needs the task's own terrain"):
        Worlds(SUITES["terrain"], ROBOT, config=config, seeds=episode_seeds(0, 1, purpose="report"))
