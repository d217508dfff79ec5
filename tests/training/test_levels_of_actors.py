"""Levels of terrain where many actors have worlds: nobody's are lost, and whoever joins goes on."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from real.errors import FerryError
from real.rollout import Rollout
from sim.state import State
from sim.terrain_levels import NAME
from tests.training.climbing_run import began, climbing_config, levels
from tests.training.growing_run import HORIZON, WORLDS, run_env
from tests.training.test_adaptation import InProcess
from tests.training.toy_run import wait_until
from training.actor import ActorWorker
from training.adaptation import Adaptation
from training.async_loop import AsyncRuntime
from training.learner import Learner
from training.loop import SerialRuntime
from training.metrics import check_names
from training.roles import Stream, actor_id
from training.snapshot import PolicySnapshot

CONFIG = climbing_config("training.runtime.throttle.enabled=false")


class Climber(ActorWorker):
    """Remembers at which levels its worlds were, from before its first rollout on."""

    def __init__(self, stream: Stream) -> None:
        network = CONFIG.training.network
        env = run_env(CONFIG, stream)
        super().__init__(env, actor_id(stream), network=network, seed=0, stream=stream)
        self.seen = [levels(env)]
        self.told: State = {}  # before its first rollout

    def collect(self, snapshot: PolicySnapshot, horizon: int, **options):
        self.told = self.told or dict(snapshot.shared)
        self._adopt(snapshot)
        self.seen.append(levels(self.env))
        rollout = super().collect(snapshot, horizon, **options)
        self.seen.append(levels(self.env))
        return rollout


def learner(env) -> Learner:
    sizes, training = (env.policy_dim, env.critic_dim), CONFIG.training
    return Learner(
        *sizes, action_dim=env.action_dim, network=training.network, ppo=training.ppo, seed=0
    )


def asynchronous(engine: InProcess) -> AsyncRuntime:
    env = run_env(CONFIG, (0, 0))
    return AsyncRuntime(
        learner(env),
        engine,  # pyright: ignore[reportArgumentType] - it has no evaluators
        config=CONFIG.training.runtime,
        actors=2,
        horizon=HORIZON,
        shared=env.shared,
    )


@pytest.fixture(scope="module")
def half() -> SerialRuntime:
    actor = Climber((0, 0))
    runtime = SerialRuntime(actor, learner(actor.env), horizon=HORIZON)
    for _ in range(3):
        check_names(metrics := runtime.iterate())
    own = levels(actor.env)
    assert 1.0 < own.mean() == metrics["terrain/mean"] and own.std() > 0.5
    assert metrics["terrain/hill"] == own[:, 0].mean()
    return runtime


def test_a_fresh_actor_begins_all_its_worlds_at_levels_that_the_run_has_reached(half):
    snapshot = half.store.newest()
    reached = levels(half.actor.env)
    fresh, same, other = Climber((2, 1)), Climber((2, 1)), Climber((2, 2))
    for actor in (fresh, same, other):
        actor.shared.follow()
        assert (levels(actor.env) == 0).all()
        rollout = actor.collect(snapshot, 1)
    drawn = fresh.seen[1]
    for tile in range(2):
        assert set(drawn[:, tile]) <= set(reached[:, tile])
    assert (drawn > 0).any() and (same.seen[1] == drawn).all() and (other.seen[1] != drawn).any()
    # The first step is on these levels already.
    tile, level = begun(rollout)
    np.testing.assert_array_equal(level, other.seen[1][np.arange(WORLDS), tile])
    (worlds,) = rollout.outcomes["terrain.worlds"]
    assert worlds.sum(axis=1).tolist() == [WORLDS, WORLDS]
    # One whose run has reached nothing yet leaves its worlds as they are.
    beginner, nobody = Climber((2, 1)), Climber((2, 1))
    beginner.shared.follow()
    beginning = dataclasses.replace(snapshot, shared=nobody.shared.state_dict())
    rollout = beginner.collect(beginning, 1)
    np.testing.assert_array_equal(begun(rollout), began(nobody.env).T)


def begun(rollout: Rollout) -> np.ndarray:
    """``[2, N]`` tiles and levels of the episodes that its first step is in."""
    assert rollout.domain is not None
    return rollout.domain.draws[:WORLDS, rollout.domain.columns[NAME]][:, :2].T.astype(int)


@pytest.mark.slow
def test_an_actor_is_killed_and_its_worlds_levels_are_not_lost_nor_those_of_others_moved(half):
    engine = InProcess(Climber)
    runtime = asynchronous(engine)
    runtime.restore(half.checkpoint())
    np.testing.assert_array_equal(
        pictures(runtime), [half.actor.shared.state_dict()["terrain.worlds"][0]]
    )
    try:
        for _ in range(3):
            check_names(runtime.iterate() or {})
        engine.dead.add("actor-1")
        again = "actor-1-restart-1"
        wait_until(
            lambda: runtime.iterate() and len(getattr(engine.actors.get(again), "seen", ())) > 3,
            "the replacement's first rollouts",
        )
    finally:
        runtime.rest()
    assert set(engine.actors) == {"actor-0-restart-1", "actor-1", again}
    reached = levels(half.actor.env)
    for name, actor in engine.actors.items():
        first, told, *later = actor.seen
        assert (first == 0).all() and told.mean() > 0.5 * reached.mean(), name
        # From there on one up at a time, whatever the others do.
        for before, after in zip([told, *later], later, strict=False):
            assert (after >= before).all() and (after <= before + 2).all(), name
    # Of a run that is further on, the replacement begins further on, by its own numbers.
    replacement, twin = engine.actors[again], run_env(CONFIG, (1, 1))
    twin.shared.follow()
    twin.shared.load_state_dict(replacement.told)
    np.testing.assert_array_equal(replacement.seen[1], levels(twin))
    assert twin.shared.measures()["terrain/mean"] > reached.mean()
    told = runtime.adaptation.measures()["terrain/mean"]
    assert told > reached.mean()

    later = asynchronous(InProcess(Climber))
    later.restore(runtime.checkpoint())
    np.testing.assert_array_equal(pictures(later), pictures(runtime))
    assert later.adaptation.measures()["terrain/mean"] == told


def pictures(runtime: AsyncRuntime) -> np.ndarray:
    """``[P, K, L + 1]``."""
    return np.asarray(runtime.adaptation.state_dict()["shared.terrain.worlds"])


def test_what_an_older_checkpoint_does_not_say_is_named():
    adaptation = Adaptation(run_env(CONFIG, (0, 0)).shared)
    kept = adaptation.state_dict()
    adaptation.load_state_dict(kept, source="run")
    ranges = {k: v for k, v in kept.items() if k.startswith("shared.curriculum.")}
    for older, lacking in (({}, "curriculum and terrain"), (ranges, "terrain")):
        with pytest.raises(FerryError, match=f"^run does not say how .* were in {lacking}; resume"):
            adaptation.load_state_dict(older, source="run")
