"""The benchmark of the asynchronous runtime: its arithmetic by hand, and one small run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from real.errors import FerryError
from tests.extras import need
from tests.training.toy_run import left_behind
from training.actor import ActorWorker
from training.async_bench import (
    Lengths,
    bench_async,
    compare_with_plan,
    free_config,
    measured_rates,
    of_both,
    ratio,
    stopped,
)
from training.async_result import HEADER, AsyncResult
from training.async_watch import Delivery, Window, event_rate, paced_config
from training.crew import ActorTimes
from training.load import Totals, load_between
from training.paced import MakePacedEnv, PacedEvaluate, PacedLearner, Paces, Update
from training.process_tree import descendants, memory_bytes, with_title
from training.queue import LagStats, QueueCounts
from training.rates import Rates, gather_rates
from training.soak import Memory, slope, soak
from training.toy_env import PointEnv

START = Totals(
    counts=QueueCounts(added=10, taken=4, overflowed=1, stale=1, over_bound=2),
    times=ActorTimes(total=8.0, busy=6.0, parked=1.0),
    waited_s=3.0,
    at_s=100.0,
    published=3,
    lags=4,
    lag_sum=4,
)


def later(**changes: object) -> Totals:
    return replace(START, at_s=110.0, **changes)  # type: ignore[arg-type]


def window(deliveries=(), updates=(), last: Totals | None = None) -> Window:
    return Window(tuple(deliveries), tuple(updates), START, last or later())


def every(period: float, actor: str, *, count: int, busy: float = 0.1) -> list[Delivery]:
    return [Delivery(50.0 + period * i, actor, busy) for i in range(count)]


def test_a_rate_is_that_between_the_first_and_the_last_event():
    assert event_rate([5.0, 5.5, 6.0, 7.0]) == pytest.approx(3 / 2.0)
    assert event_rate([5.0]) == event_rate([]) == event_rate([5.0, 5.0]) == 0.0


def test_throughput_is_the_sum_of_the_actors_rates_with_or_without_one():
    # 4 per second for 2.5 s, 2 per second for 1 s, and one that delivered once
    found = window(every(0.25, "a", count=11) + every(0.5, "b", count=3) + every(1.0, "c", count=1))
    assert found.rates() == pytest.approx({"a": 4.0, "b": 2.0, "c": 0.0})
    assert found.throughput() == pytest.approx(6.0)
    assert found.throughput(without=["a"]) == pytest.approx(2.0)


def test_shares_are_those_of_the_window_alone():
    found = window(
        updates=[
            Update(101.0, 0.3, (0, 1)),
            Update(103.0, 0.3, (1, 2)),
            Update(105.0, 0.3, (4, 0)),
        ],
        last=later(
            counts=QueueCounts(added=40, taken=22, overflowed=2, stale=2, over_bound=5),
            times=ActorTimes(total=48.0, busy=30.0, parked=11.0),
            waited_s=4.0,
        ),
    )
    # 40 s of actors, of which 24 busy and 10 parked; 1 s of 10 waited
    assert found.actor_idle == pytest.approx(6 / 40)
    assert found.actor_parked == pytest.approx(10 / 40)
    assert found.learner_idle == pytest.approx(0.1)
    # 2 dropped, 18 taken
    assert found.dropped_share == pytest.approx(2 / 20)
    assert found.used_over_bound == 3
    assert found.updates_per_s == pytest.approx(0.5)
    assert found.lag == LagStats(mean=8 / 6, p95=4.0, largest=4.0)


def test_load_leaves_out_the_newest_publication_and_what_came_before():
    now = later(
        counts=QueueCounts(added=30, taken=14, overflowed=4, stale=3),
        times=ActorTimes(total=18.0, busy=14.0, parked=1.0),
        waited_s=4.0,
        published=7,
        lags=14,
        lag_sum=29,
    )
    load = load_between(
        START, now, published=[1, 2, 3, 4, 5, 6, 7], acted={1, 2, 3, 5}, queue_depth=2
    )
    assert (load.arrived, load.dropped, load.used) == (20, 5, 10)
    assert load.lag_mean == pytest.approx(2.5)
    assert load.learner_idle == pytest.approx(0.1)
    assert load.actor_idle == pytest.approx(0.2)
    # since the last decision 4, 5, 6, 7 after 3: of 3, 4, 5, 6 nobody acted with 4 and 6
    assert load.unread_share == pytest.approx(0.5)


def test_of_two_throughputs_the_one_that_suffered_more_counts():
    free = window(every(0.5, "a", count=5), [Update(float(t), 0.1, (0,)) for t in range(5)])
    hit = window(every(0.5, "a", count=5), [Update(2.0 * t, 0.1, (0,)) for t in range(5)])
    assert of_both(hit, free) == pytest.approx(0.5)
    assert of_both(free, free) == pytest.approx(1.0)
    assert ratio(1.0, 0.0) == 0.0  # nothing to compare with is no success


def test_a_plan_from_the_durations_at_one_actor_is_compared_with_what_was_measured():
    config = free_config()

    def measured(actors: int, updates_per_s: float) -> Window:
        updates = [Update(i / updates_per_s, 0.2, (0, 0)) for i in range(11)]
        names = [f"actor-{i}" for i in range(actors)]
        return window([d for n in names for d in every(0.4, n, count=9, busy=0.4)], updates)

    # 2.5 rollouts per second and actor, 2 an update of 0.2 s: 5 updates per second at most.
    windows = {1: measured(1, 1.25), 2: measured(2, 2.5), 8: measured(8, 5.0), 16: measured(16, 4)}
    rates = measured_rates(windows, config)
    assert rates.actor_steps_per_s == pytest.approx(16 * 8 / 0.4)
    assert rates.update_fixed_s == pytest.approx(0.2)
    found = compare_with_plan(windows, config)
    assert found == pytest.approx({1: 1.0, 2: 1.0, 8: 1.0, 16: 5 / 4}, rel=0.03)
    with pytest.raises(FerryError, match="too few for a plan"):
        measured_rates({1: window()}, config)


RESULT = AsyncResult(
    throughput={1: 2.5, 2: 5.0, 4: 9.5, 8: 18.0, 16: 34.0},
    actor_idle_share=0.02,
    actor_parked_share=0.48,
    learner_idle_share=0.06,
    lag=LagStats(1.2, 2.0, 3.0),
    used_over_bound=0,
    dropped_share=0.01,
    slowdown={
        "learner_5x": 0.99,
        "actor_5x": 1.02,
        "evaluator_stopped": 1.0,
        "store_stopped": 0.85,
    },
    planner={1: 1.0, 2: 1.01, 4: 0.97, 8: 1.1, 16: 0.8},
    rates=Rates(actor_steps_per_s=320.0, update_s_per_sample=1e-12, update_fixed_s=0.2),
)


def test_json_has_the_agreed_keys_and_numbers():
    found = json.loads(json.dumps(RESULT.as_json()))
    assert set(found) >= {
        *("scaling", "efficiency_16", "actor_idle_share", "learner_idle_share", "lag"),
        *("used_over_bound", "dropped_share", "slowdown", "planner"),
    }
    assert found["scaling"] == pytest.approx({"1": 1.0, "2": 2.0, "4": 3.8, "8": 7.2, "16": 13.6})
    assert found["efficiency_16"] == pytest.approx(13.6 / 16)
    assert found["lag"] == {"mean": 1.2, "p95": 2.0, "max": 3.0}
    assert set(found["slowdown"]) == set(RESULT.slowdown)
    assert found["planner_deviation"] == pytest.approx(0.2)


def test_a_plan_is_made_from_what_the_benchmark_prints(tmp_path):
    path = tmp_path / "async.json"
    path.write_text(json.dumps(RESULT.as_json()))
    assert gather_rates([path], free_config()) == RESULT.rates


def test_the_table_says_which_goals_are_met():
    rows = RESULT.table_rows()
    assert {len(row) for row in rows} == {len(HEADER)}
    missed = [row[0] for row in rows if row[3] == "MISSED"]
    assert missed == [
        "of linear at 16 actors",
        "learner idle, actors suffice",
        "others while the store is stopped",
        "of these the worst is off by",
    ]
    assert {row[0]: row[1] for row in rows}["rollouts dropped"] == "1.0 %"


def test_nothing_delivered_is_no_scaling():
    assert replace(RESULT, throughput={1: 0.0, 2: 3.0}).scaling == {1: 0.0, 2: 0.0}


def test_a_slope_is_that_of_the_least_squares():
    assert slope([0.0, 1.0, 2.0, 3.0], [5.0, 7.0, 9.0, 11.0]) == pytest.approx(2.0)
    # deviations -1 0 1 of x, values 1 0 4: (-1 + 4) / 2
    assert slope([1.0, 2.0, 3.0], [1.0, 0.0, 4.0]) == pytest.approx(1.5)
    assert slope([1.0, 1.0], [3.0, 9.0]) == 0.0


def test_memory_that_grows_by_more_than_a_hundredth_a_minute_is_not_flat():
    grows = Memory((0.0, 1.0, 2.0), (100.0, 101.5, 103.0), produced_over_used=10.0, held=32)
    assert grows.as_json()["slope_mib_per_min"] == pytest.approx(1.5)
    assert not grows.flat
    assert "NOT FLAT" in grows.rows()["slope"]
    still = replace(grows, mib=(100.0, 104.0, 100.2))
    assert still.flat
    assert set(still.as_json()) >= {"start_mib", "end_mib", "slope_mib_per_min", "flat"}


def test_a_child_is_found_by_its_title_stopped_and_goes_on():
    script = "print('up', flush=True); import time; time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        assert child.pid in descendants()
        assert child.pid in with_title(sys.executable)
        before = memory_bytes()
        with stopped(sys.executable):
            assert os.waitpid(child.pid, os.WUNTRACED)[1] == (signal.SIGSTOP << 8) | 0x7F
        assert os.waitpid(child.pid, os.WCONTINUED)[1] == 0xFFFF
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    assert child.pid not in descendants()
    assert memory_bytes() < before
    with pytest.raises(FerryError, match="no process of this run is called ray::_Nobody"):
        stopped("ray::_Nobody").__enter__()


def test_paces_change_while_others_hold_them(tmp_path: Path):
    path = tmp_path / "paces"
    paces = Paces.create(path, actors=3, step_s=0.0, evaluation_s=0.01)
    elsewhere = Paces(path)
    paces.set_step_s(1, 0.25)
    assert [elsewhere.step_s(actor) for actor in range(3)] == [0.0, 0.25, 0.0]
    assert elsewhere.evaluation_s == 0.01
    env = MakePacedEnv(path)(paced_config(), (2, 0))
    assert env.num_envs == 16
    assert env.step(env.observation["policy"][:, :2]).reward.shape == (16,)
    assert PacedEvaluate(path)(None) == {"score": 0.0}  # type: ignore[arg-type]


def test_a_paced_learner_learns_and_writes_down_its_updates():
    config = paced_config()
    training = config.training
    learner = PacedLearner(network=training.network, ppo=training.ppo, seed=0)
    actor = ActorWorker(PointEnv(5, seed=0), "a", network=training.network, seed=0)
    old = learner.snapshot()
    learner.update([actor.collect(old, 4)])
    learner.update([actor.collect(old, 4), actor.collect(learner.snapshot(), 4)])
    assert learner.version == 2
    assert [update.lags for update in learner.updates] == [(0,), (1, 0)]
    assert learner.updates[1].done_s >= learner.updates[0].done_s + learner.updates[1].took_s


@pytest.mark.ray
@pytest.mark.slow
def test_a_small_run_finds_every_number_and_leaves_nothing():
    need("ray")
    notes: list[str] = []
    result = bench_async(
        lengths=Lengths(window=1.5, settle=0.5, away=1.0, adapt=0.5, steady=1.5),
        scale=(1, 2),
        progress=lambda done, total, note="": notes.append(note),
    )
    assert left_behind() == []
    found = json.loads(json.dumps(result.as_json()))
    assert set(found["scaling"]) == set(found["planner"]) == {"1", "2"}
    assert found["scaling"]["2"] > found["scaling"]["1"] == 1.0
    assert set(found["slowdown"]) == {
        *("learner_5x", "actor_5x", "evaluator_stopped", "store_stopped"),
    }
    assert all(value > 0.0 for value in found["slowdown"].values())
    for share in ("actor_idle_share", "learner_idle_share", "dropped_share"):
        assert 0.0 <= found[share] <= 1.0
    assert 0.0 <= found["lag"]["mean"] <= found["lag"]["max"] <= 4.0
    assert found["used_over_bound"] == 0
    assert {"1 actors", "store stopped"} <= set(notes)


@pytest.mark.ray
@pytest.mark.slow
def test_a_short_soak_samples_memory_while_the_queue_overflows():
    need("ray")
    found = soak(0.15, actors=2, sample_s=0.5)
    assert left_behind() == []
    assert len(found.mib) >= 2  # it looks after whole updates, each of which takes 4 s
    # Ray's own processes alone are larger than that.
    assert min(found.mib) > 100.0
    assert found.produced_over_used > 2.0
    assert found.held <= 32
