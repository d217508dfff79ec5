"""The trainer in the second engine: the serial runtime bit by bit, the Ray runtime beside it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.training.toy_run import alive, left_behind, wait_until, workers
from training.checkpoint import newest_checkpoint
from training.evaluator import evaluate_path
from training.process_tree import descendants
from training.run_config import RunConfig, load_run_config
from training.train import train

WORLDS, HORIZON = 6, 8

pytestmark = pytest.mark.slow


def config(*overrides: str) -> RunConfig:
    return load_run_config(
        "cartpole_balance",
        [
            "sim.engine=pybullet",
            f"sim.worlds={WORLDS}",
            "sim.threads=2",
            "episode_s=0.6",  # time-outs within the run
            f"training.horizon={HORIZON}",
            "training.ppo.minibatches=2",
            "training.network.hidden=[8]",
            "training.network.critic_hidden=[8]",
            *overrides,
        ],
    )


def constant(_module):
    return {"score": 0.0}


def test_n_and_n_iterations_are_2n_bit_by_bit_also_with_other_processes(tmp_path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    one_go = 6 * WORLDS * HORIZON
    train(config(), whole, steps=one_go, evaluate=constant)
    train(config(), halves, steps=one_go // 2, evaluate=constant)
    train(config("sim.threads=1"), halves, steps=one_go, resume=True, evaluate=constant)
    one = newest_checkpoint(whole / "checkpoints")
    two = newest_checkpoint(halves / "checkpoints")
    assert one.step == two.step == one_go
    assert one.episodes["total"] > WORLDS
    different = [
        f"{field}.{name}"
        for field in ("policy", "learner", "actor", "episodes", "probe")
        for name, array in getattr(one, field).items()
        if not np.array_equal(array, getattr(two, field)[name])
    ]
    assert different == []
    assert left_behind() == []


@pytest.mark.parametrize("suite", ["nominal", "pybullet", "randomized", "pybullet_randomized"])
def test_a_run_is_scored_in_both_engines(tmp_path, suite):
    train(config(), tmp_path, steps=WORLDS * HORIZON, evaluate=constant)
    found = evaluate_path(tmp_path, suite=suite, episodes=3, which="latest")
    assert found.suite == suite
    assert np.isfinite(found.score.mean)


def test_a_run_is_selected_in_the_engine_it_trains_in(tmp_path, monkeypatch):
    import training.evaluator

    suites = []
    real = training.evaluator.evaluate

    def noted(*arguments, **options):
        suites.append(options["suite"])
        return real(*arguments, **{**options, "episodes": 2})

    monkeypatch.setattr(training.evaluator, "evaluate", noted)
    train(config(), tmp_path, steps=WORLDS * HORIZON)
    assert set(suites) == {"pybullet"}


@pytest.mark.ray
def test_actors_on_ray_have_their_own_workers_and_leave_none(tmp_path, address):
    seen: set[int] = set()

    def look(done: float, total: float, note: str = "") -> None:
        seen.update(pid for actor in workers("_Actor") for pid in (actor, *descendants(actor)))

    result = train(
        config("training.runtime.actors=2"),
        tmp_path,
        steps=6 * WORLDS * HORIZON,
        evaluate=constant,
        runtime="ray",
        address=address,
        progress=look,
    )
    assert result.steps >= 6 * WORLDS * HORIZON
    assert len(seen) >= 2
    wait_until(lambda: not alive(seen), "the end of the actors and all below them")
    assert left_behind() == []
