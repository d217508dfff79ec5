"""What no update could be made with is refused before any process starts."""

from __future__ import annotations

import pytest

from real.errors import ConfigError
from training.plan import plan
from training.rates import Rates
from training.run_config import load_run_config, require_updates, side_by_side_config

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
