"""What no update could be made with is refused before any process starts."""

from __future__ import annotations

import pytest

from real.errors import ConfigError
from training.plan import plan
from training.rates import Rates
from training.run_config import load_run_config, require_updates, side_by_side_config
from training.train import train

RATES = Rates(actor_steps_per_s=500.0, update_s_per_sample=1e-5)


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        (("queue_capacity=4", "fragments_per_update=5"), r"capacity is 4, but an update takes 5"),
        (("queue_capacity=2",), r"capacity is 2, but an update takes 3"),
        (("worlds=1", "learners=4"), r"learners is 4, .* rollouts of 3 worlds"),
    ],
)
def test_an_update_that_could_never_be_made_is_refused(overrides, found):
    given = ["training.ppo.minibatches=1", *(f"training.runtime.{text}" for text in overrides)]
    config = load_run_config("cartpole_balance", given)
    with pytest.raises(ConfigError, match=found):
        require_updates(side_by_side_config(config), actors=3)
    with pytest.raises(ConfigError, match=found):
        plan(5, 0, config=config, rates=RATES, actors=3)


def overrides(*texts: str) -> list[str]:
    return [f"training.{text}" for text in texts]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        # What the updates of actors side by side are made of, not what sim.worlds says.
        (
            ("network.gru=8", "ppo.minibatches=4", "runtime.worlds=3", "runtime.actors=1"),
            r"minibatches is 4, but with .*gru.* whole worlds, of which there are 3 \(training.run",
        ),
        (
            ("ppo.minibatches=50", "horizon=8", "runtime.worlds=3", "runtime.actors=2"),
            r"minibatches is 50, but 6 worlds .* have 48 samples",
        ),
        (("network.gru=0",), "0 is no size of a memory; null is off"),
        (("network.critic_gru=false",), "False is no size of a memory; null is off"),
        (
            ("runtime.actors=2", "runtime.throttle.min_actors=3"),
            r"throttle.min_actors is 3, but there are 2 actors",
        ),
        (("ppo.schedules.clip={kind: linear, end: 1.5}",), r"schedules.clip.end is 1.5, expected"),
        (("ppo.schedules.clip={kind: cosine}",), r"schedules.clip.end is 0, expected above 0"),
    ],
)
def test_what_cannot_be_is_refused_by_name_when_a_task_is_loaded(given, found):
    with pytest.raises(ConfigError, match=found):
        load_run_config("cartpole_balance", overrides(*given))


def test_what_can_be_is_not_refused(tmp_path):
    memory = ("network.gru=8", "ppo.minibatches=4", "runtime.worlds=2")
    config = load_run_config("cartpole_balance", overrides(*memory, "runtime.actors=2"))
    require_updates(side_by_side_config(config), actors=2)
    # How many actors there are is known later: then the same is refused, or not.
    config = load_run_config("cartpole_balance", overrides(*memory))
    require_updates(side_by_side_config(config), actors=2)
    with pytest.raises(ConfigError, match="whole worlds, of which there are 2"):
        require_updates(side_by_side_config(config), actors=1)
    config = load_run_config("cartpole_balance", overrides("runtime.throttle.min_actors=3"))
    with pytest.raises(ConfigError, match="min_actors is 3, but there are 2"):
        require_updates(config, actors=2)
    # The serial runtime's updates are of one rollout, whatever others' are.
    both = load_run_config("cartpole_balance", [*overrides(*memory), "sim.worlds=2"])
    with pytest.raises(ConfigError, match=r"whole worlds, of which there are 2 \(sim.worlds\)"):
        train(both, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    clip = "ppo.schedules.clip={kind: linear, end: 0.05}"
    load_run_config("cartpole_balance", overrides(clip, "ppo.clip=0.3"))
