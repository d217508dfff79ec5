"""The model of a cluster against cases that can be solved by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from real.errors import ConfigError, FerryError
from training.load import unread_share
from training.plan import plan, saturation
from training.plan_model import Cluster
from training.plan_weights import Weights
from training.rates import Rates, gather_rates, measure_rates, read_rates
from training.run_config import RunConfig, load_run_config
from training.throttle import Throttle

T, N = 10, 50  # 500 samples a rollout


def config(*overrides: str) -> RunConfig:
    return load_run_config(
        "cartpole_balance",
        [
            f"sim.worlds={N}",
            f"training.horizon={T}",
            "training.runtime.evaluators=0",
            *overrides,
        ],
    )


#: Every actor has work at any time, whatever becomes of it.
NO_THROTTLE = "training.runtime.throttle.enabled=false"
FOUR = "training.runtime.fragments_per_update=4"


def rates(**changes: float) -> Rates:
    """A rollout takes 1 s, an update of 4 of them 0.02 s."""
    given = {"actor_steps_per_s": 500.0, "update_s_per_sample": 1e-5, "spread": 0.0}
    return Rates(**{**given, **changes})


def test_an_update_takes_its_fixed_time_its_share_of_samples_and_its_sum_of_gradients():
    cluster = Cluster(actors=8, learners=4, horizon=T, fragment=500, per_update=6, capacity=12)
    given = rates(update_s_per_sample=1e-3, update_fixed_s=0.1, sync_s=0.08)
    # 0.1 + 6 * 500 * 0.001 / 4 + 0.08 * 3 / 4
    assert cluster.update_s(given) == pytest.approx(0.1 + 0.75 + 0.06)
    assert cluster.rollout_s(given) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("actors", "throttle"), [(1, ()), (3, ()), (3, (NO_THROTTLE,)), (8, (NO_THROTTLE,))]
)
def test_where_actors_are_slow_all_they_make_is_learned_from(actors, throttle):
    found = plan(99, 0, config=config(FOUR, *throttle), rates=rates(), actors=actors)
    # K rollouts of 500 samples per second
    assert found.samples_per_s == pytest.approx(500.0 * actors, rel=0.02)
    assert found.samples_per_s == pytest.approx(found.made_per_s, rel=0.02)
    assert found.dropped_share == 0.0
    assert found.actor_idle < 0.02
    # an update of 0.02 s every 4 / K seconds
    assert found.learner_idle == pytest.approx(1.0 - 0.02 * actors / 4.0, abs=0.01)
    assert found.versions_per_min == pytest.approx(60.0 * actors / 4.0, rel=0.02)
    assert found.limit == "actors"


def test_rollouts_made_in_step_with_the_learner_are_one_version_old():
    # All begin together, and again when they are done, while the learner still learns from them.
    found = plan(99, 0, config=config(FOUR), rates=rates(), actors=4)
    assert found.lag == {"mean": 1.0, "p95": 1.0, "max": 1.0}


@pytest.mark.parametrize("throttle", [(), (NO_THROTTLE,)])
def test_where_the_learner_is_slow_it_never_waits(throttle):
    # An update of 4 takes 2 s; 8 actors make 8 rollouts in 1 s.
    slow = rates(update_s_per_sample=1e-3)
    found = plan(99, 0, config=config(FOUR, *throttle), rates=slow, actors=8, updates=400)
    assert found.samples_per_s == pytest.approx(4 * 500 / 2.0, rel=0.02)
    assert found.learner_idle < 0.01
    assert found.limit == "learner"
    assert found.lag["max"] <= 4
    if throttle:  # 16 are made in the 2 s in which 4 are used
        assert found.dropped_share == pytest.approx(0.75, abs=0.02)
    else:  # the throttle parks actors instead
        assert found.actor_parked > 0.3
        assert found.dropped_share < 0.05
        assert found.active_actors < 8
        assert found.lag["mean"] <= 2.5


@pytest.mark.parametrize(("actors", "per_update"), [(4, 4), (8, 4), (16, 8)])
@pytest.mark.parametrize("supply", [1.05, 1.15, 2.0])
def test_the_throttle_does_not_starve_a_learner_for_which_there_are_actors_enough(
    actors, per_update, supply
):
    # K actors make K rollouts in 1 s; the learner takes 1 / supply of that. While a rollout is
    # made K / per_update versions pass, so mean lag is over 2 whatever the throttle does, where
    # that is 2 or more.
    given = rates(
        update_s_per_sample=1e-12, update_fixed_s=supply * per_update / actors, spread=0.05
    )
    chosen = config(f"training.runtime.fragments_per_update={per_update}")
    found = plan(99, 0, config=chosen, rates=given, actors=actors, updates=400)
    assert found.learner_idle <= 0.05
    assert found.dropped_share < 0.05
    assert found.actor_idle <= 0.05
    assert found.lag["mean"] <= 2.0 if actors == per_update else found.lag["max"] <= 4


def test_two_learners_take_half_the_time():
    slow = rates(update_s_per_sample=1e-3)
    one = plan(99, 1, config=config(FOUR), rates=slow, actors=32)
    two = plan(99, 2, config=config(FOUR), rates=slow, actors=32)
    assert two.samples_per_s == pytest.approx(2.0 * one.samples_per_s, rel=0.05)


@pytest.mark.parametrize(("per_update", "fixed"), [(4, 0.0), (4, 0.3), (None, 0.3)])
def test_throughput_grows_up_to_the_saturation_and_no_further(per_update, fixed):
    given = rates(update_s_per_sample=1e-4, update_fixed_s=fixed, spread=0.05)
    chosen = ["training.runtime.max_staleness=50", NO_THROTTLE]
    if per_update is not None:
        chosen.append(f"training.runtime.fragments_per_update={per_update}")
    cluster = Cluster(
        actors=1, learners=1, horizon=T, fragment=500, per_update=per_update or 1, capacity=8
    )
    # 4 rollouts take 4 / K s; their update 0.2 s + fixed: K = 20 or 8. Or an update per K rollouts:
    # 1 s = 0.3 s + 0.05 s K: K = 14.
    at = saturation(cluster, given, per_update=per_update)
    assert at == {(4, 0.0): 20, (4, 0.3): 8, (None, 0.3): 14}[per_update, fixed]
    half, twice = (
        plan(99, 0, config=config(*chosen), rates=given, actors=k) for k in (at // 2, 2 * at)
    )
    assert (half.limit, twice.limit) == ("actors", "learner")
    assert half.samples_per_s == pytest.approx(500.0 * (at // 2), rel=0.05)
    assert half.saturation_actors == twice.saturation_actors == at


@pytest.mark.parametrize("throttle", [(), (NO_THROTTLE,)])
def test_rollouts_that_outlast_the_staleness_bound_leave_the_learner_waiting(throttle):
    # An update of 4 takes 0.1 s, so 10 pass while a rollout is made in 1 s; 4 are allowed.
    given = rates(update_s_per_sample=5e-5, spread=0.05)
    found = plan(99, 0, config=config(FOUR, *throttle), rates=given, actors=80)
    assert found.saturation_actors == 40
    assert found.limit == "staleness"
    assert found.lag["max"] <= 4
    assert found.samples_per_s < 0.9 * 4 * 500 / 0.1
    assert "too old" in found.rows()["limit"]


def test_weights_that_come_late_make_rollouts_older():
    # A rollout of 1 s, updates every second; weights 1.5 s late miss one more beginning or two.
    late = plan(99, 0, config=config(FOUR), rates=rates(publish_s=1.5), actors=4)
    soon = plan(99, 0, config=config(FOUR), rates=rates(), actors=4)
    assert late.lag["mean"] == pytest.approx(soon.lag["mean"] + 1.0, abs=0.51)
    assert late.samples_per_s == pytest.approx(soon.samples_per_s, rel=0.01)


@pytest.mark.parametrize(
    ("every", "late_s", "oldest", "step"),
    [
        # Rollouts of ten steps of 0.1 s begin at 0 s, 1 s, ..; weights of the one before come
        # 0.02 s later, so all but the steps before the first look are of them.
        (None, 0.0, 1.0, 1.0),
        (1, 0.0, 1.0, 0.1),
        (2, 0.0, 1.0, 0.2),
        (3, 0.0, 1.0, 0.3),
        (10, 0.0, 1.0, 1.0),
        # After 0.27 s: seen at 0.4 s, before step 4.
        (2, 0.25, 1.0, 0.4),
        # After 1.52 s: a rollout begins with what is two versions old when it is learned from, and
        # at 0.6 s sees the next: six steps of lag 2, four of lag 1.
        (2, 1.5, 2.0, 1.6),
    ],
)
def test_weights_that_come_within_a_rollout_make_its_later_steps_fresher(
    every, late_s, oldest, step
):
    word = "null" if every is None else every
    chosen = config(FOUR, f"training.runtime.refresh_every={word}")
    found = plan(99, 0, config=chosen, rates=rates(publish_s=late_s), actors=4)
    assert found.lag["mean"] == oldest  # rollouts are stamped with the version they began with
    assert found.step_lag == pytest.approx(step)
    assert found.samples_per_s == pytest.approx(4 * 500, rel=0.02)
    assert f"of a mean step {step:.2f}" in found.rows()["lag"]


def test_the_steps_of_a_rollout_see_what_a_look_at_each_of_them_would():
    rng, weights = np.random.default_rng(5), Weights(40)
    times, versions = np.cumsum(rng.exponential(0.1, 60)), np.cumsum(rng.integers(1, 3, 60))
    for at_s, version in zip(times.tolist(), versions.tolist(), strict=True):
        weights.come(version, at_s)
    for steps, every in ((7, 2), (10, 3), (24, 5), (4, 9)):
        begin_s, end_s = sorted(rng.uniform(times[25], times[-1] + 0.5, 2).tolist())
        (begin,) = versions[times <= begin_s][-1:].tolist()
        acting, seen = begin, []
        for t in range(steps):
            if t and t % every == 0:
                acting = versions[times <= begin_s + t * (end_s - begin_s) / steps][-1]
            seen.append(acting)
        span = {"begin_s": begin_s, "end_s": end_s, "steps": steps}
        found = weights.acted(begin, **span, every=every)
        assert found == (begin, pytest.approx(np.mean(seen)))
        assert weights.acted(begin, **span, every=None) == (begin, begin)
    assert weights.recent == versions[-40:].tolist() and weights.newest == versions[-1]


def test_the_seed_decides_and_nothing_else():
    given = rates(spread=0.5)
    one, same, other = (
        plan(20, 0, config=config(FOUR), rates=given, seed=seed, updates=50) for seed in (3, 3, 4)
    )
    assert one == same
    assert one.samples_per_s != other.samples_per_s


def test_cores_go_to_learners_and_evaluators_first():
    given = config(FOUR, "training.runtime.evaluators=2")
    assert plan(20, 3, config=given, rates=rates(), updates=5).cluster.actors == 15
    assert plan(20, 0, config=given, rates=rates(), updates=5).cluster.learners == 1
    with pytest.raises(FerryError, match="leave 0 actors"):
        plan(3, 1, config=given, rates=rates())


@pytest.mark.slow
def test_thousands_of_actors_fit():
    many = config("training.runtime.fragments_per_update=64")
    found = plan(6144, 8, config=many, rates=rates(update_s_per_sample=1e-6), updates=60)
    assert found.cluster.actors == 6136
    # 6136 * 500 steps/s are made, 10^6 * 8 could be learned from
    assert found.saturation_actors == 64 / (64 * 500 * 1e-6 / 8)
    assert set(json.loads(json.dumps(found.as_json()))) >= {"samples_per_s", "lag", "limit"}
    assert "6,136 actors" in found.rows()["cluster"]


def test_rates_are_read_from_a_file_and_wrong_ones_named(tmp_path):
    path = tmp_path / "rates.json"
    path.write_text(json.dumps({"actor_steps_per_s": 9e3, "update_s_per_sample": 1e-5}))
    assert read_rates(path) == {"actor_steps_per_s": 9e3, "update_s_per_sample": 1e-5}
    path.write_text(json.dumps({"actor_step_per_s": 9e3, "update_s_per_sample": 1e-5}))
    with pytest.raises(ConfigError, match="did you mean 'actor_steps_per_s'"):
        read_rates(path)
    with pytest.raises(FerryError, match="no rates can be read"):
        read_rates(tmp_path / "absent.json")
    path.write_text('"9e3"')
    with pytest.raises(FerryError, match="expected an object of rates"):
        read_rates(path)


def test_rates_come_from_several_benchmarks_and_what_is_missing_is_measured(
    tmp_path, monkeypatch, caplog
):
    measured = Rates(actor_steps_per_s=700.0, update_s_per_sample=3e-5, spread=0.3)
    monkeypatch.setattr("training.rates.measure_rates", lambda config, **_: measured)
    slow, fast, links = (tmp_path / f"{name}.json" for name in ("slow", "fast", "links"))
    slow.write_text(json.dumps({"device": "cpu", "rates": {"update_s_per_sample": 1e-4}}))
    fast.write_text(json.dumps({"device": "cuda", "rates": {"update_s_per_sample": 1e-7}}))
    links.write_text(json.dumps({"publish_s": 0.02, "actor_steps_per_s": 5e3}))
    assert gather_rates([], config()) == measured
    assert gather_rates([slow, fast], config()) == Rates(
        actor_steps_per_s=700.0, update_s_per_sample=1e-7, spread=0.3
    )
    assert "actor_steps_per_s of a task is in none of the files" in caplog.text
    assert gather_rates([fast, links], config()) == Rates(
        actor_steps_per_s=5e3, update_s_per_sample=1e-7, publish_s=0.02
    )
    slow.write_text(json.dumps({"rates": {"update_s_per_sample": -1.0}}))
    with pytest.raises(ConfigError, match="update_s_per_sample"):
        gather_rates([slow], config())


def test_the_share_of_versions_nobody_acted_with_leaves_out_the_newest():
    # Of 4, 5, 6 after 3 the newest could not have been acted with yet: 3, 4, 5.
    assert unread_share([1, 2, 3, 4, 5, 6], new=3, acted={1, 4}) == pytest.approx(2 / 3)
    assert unread_share([0], new=0, acted=set()) == 0.0
    assert unread_share([0, 1], new=1, acted=set()) == 1.0


def test_in_step_with_the_learner_a_plan_has_no_version_that_nobody_acted_with(monkeypatch):
    loads = []
    decide = Throttle.decide
    monkeypatch.setattr(
        Throttle, "decide", lambda self, load: (loads.append(load), decide(self, load))[1]
    )
    # Every rollout of 1 s begins with a version of its own: all are acted with but the one before
    # the newest, whose rollouts are being learned from as the throttle looks.
    slow = config(FOUR, "training.runtime.throttle.period_s=20.0")
    plan(99, 0, config=slow, rates=rates(), actors=4, updates=100)
    assert len(loads) >= 5
    assert max(load.unread_share for load in loads[1:]) <= 1 / 19


def test_a_throttle_does_not_hold_back_weights_that_are_seen_within_rollouts(monkeypatch):
    shares = []
    decide = Throttle.decide

    def noted(self, load):
        shares.append(load.unread_share)
        return decide(self, load)

    monkeypatch.setattr(Throttle, "decide", noted)
    # A version in 0.3 s, and rollouts of 1 s begin in step: most versions begin none ...
    given = rates(update_s_per_sample=1e-12, update_fixed_s=0.3)
    for every in ("null", 5):
        shares.clear()
        chosen = config(
            "training.runtime.fragments_per_update=1", f"training.runtime.refresh_every={every}"
        )
        plan(99, 0, config=chosen, rates=given, actors=4, updates=200)
        # ... but where actors look within rollouts, a run does not know who saw them later.
        assert (max(shares[1:]) > 0.2) == (every == "null")


def test_the_lag_that_95_percent_do_not_exceed_is_that_of_a_run():
    found = plan(99, 0, config=config(FOUR, NO_THROTTLE), rates=rates(spread=0.5), actors=9)
    assert found.lag["p95"] == round(found.lag["p95"])  # a lag that was seen, none in between


@pytest.mark.slow
def test_rates_measured_here_say_what_rollouts_and_updates_cost():
    found = measure_rates(config("training.network.hidden=[8]"), updates=4)
    assert 100.0 < found.actor_steps_per_s < 1e8
    assert 1e-8 < found.update_s_per_sample < 1e-2
    assert found.spread < 5.0
    assert plan(8, 0, config=config(), rates=found, updates=5).samples_per_s > 0.0
