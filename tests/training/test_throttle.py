"""The throttle: small steps inside its ranges, each with its reason, on a clock that is given."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from training.throttle import Load, Settings, Throttle, ThrottleConfig

FINE = Load(
    arrived=20,
    dropped=0,
    used=20,
    lag_mean=1.0,
    learner_idle=0.0,
    actor_idle=0.0,
    unread_share=0.0,
    queue_depth=0,
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def throttle(clock=None, *, actors=4, per_update=2, capacity=4, max_staleness=4, **config):
    return Throttle(
        ThrottleConfig(**config),
        actors=actors,
        per_update=per_update,
        capacity=capacity,
        max_staleness=max_staleness,
        clock=clock or Clock(),
    )


def test_it_starts_with_one_fragment_for_every_actor_and_at_least_one_batch():
    assert throttle(actors=4, per_update=2).settings == Settings(4, 4, 1)
    assert throttle(actors=1, per_update=3).settings == Settings(1, 3, 1)


def test_it_decides_once_a_period():
    clock = Clock()
    made = throttle(clock, period_s=2.0)
    assert not made.due()
    clock.now += 2.0
    assert made.due()
    made.decide(FINE)
    assert not made.due()
    clock.now += 2.5
    assert made.due()


def test_where_all_is_well_or_nothing_was_measured_nothing_changes():
    made = throttle()
    assert made.decide(FINE) == []
    nothing = replace(FINE, used=0, learner_idle=1.0)
    assert made.decide(nothing) == []
    assert made.settings == Settings(4, 4, 1)


def test_dropped_rollouts_park_actors_until_drops_are_below_the_threshold():
    made = throttle(actors=16, per_update=2, capacity=4)
    wasteful = replace(FINE, used=20, dropped=20)
    seen = [made.settings]
    for _ in range(20):
        made.decide(wasteful)
        seen.append(made.settings)
    in_flight = [s.in_flight for s in seen]
    assert in_flight[:4] == [16, 12, 9, 7]  # a quarter less each time
    assert in_flight == sorted(in_flight, reverse=True)
    assert seen[-1] == Settings(
        active_actors=2, in_flight=2, publish_every=1
    )  # never below a batch
    assert all(s.active_actors <= s.in_flight for s in seen)
    # 1 of 20 is 5 %, which is put up with.
    assert made.decide(replace(FINE, used=19, dropped=1)) == []


def test_a_learner_that_waits_gets_more_data_from_more_actors():
    made = throttle(actors=4, per_update=2, capacity=4)
    for _ in range(9):
        made.decide(replace(FINE, dropped=20))
    assert made.settings.active_actors == 2
    hungry = replace(FINE, learner_idle=0.3)
    for _ in range(30):
        made.decide(hungry)
    assert made.settings == Settings(active_actors=4, in_flight=2 * 4 + 4, publish_every=1)


def test_actors_that_have_too_little_to_do_get_more_before_others_join_them():
    made = throttle(actors=4)
    for _ in range(9):
        made.decide(replace(FINE, dropped=20))
    (decision,) = made.decide(replace(FINE, learner_idle=0.3, actor_idle=0.2))
    assert (decision.setting, decision.before, decision.after) == ("in_flight", 2, 3)
    assert "30%" in decision.reason
    assert "actors for 20%" in decision.reason


def test_a_high_lag_is_met_by_fresher_weights_first_and_less_data_then():
    made = throttle(actors=4, per_update=2)
    made.decide(replace(FINE, unread_share=0.8))
    made.decide(replace(FINE, unread_share=0.8))
    assert made.settings.publish_every == 3
    late = replace(FINE, lag_mean=2.5)
    for expected in ((2, 4), (1, 4), (1, 3), (1, 2), (1, 2)):
        made.decide(late)
        assert (made.settings.publish_every, made.settings.in_flight) == expected


def test_a_learner_that_waits_gets_more_data_also_where_lag_is_high():
    made = throttle(actors=4, per_update=2)
    made.decide(replace(FINE, unread_share=0.8))
    starved = replace(FINE, lag_mean=2.5, learner_idle=0.3)
    for expected in ((1, 4), (1, 5), (1, 6)):  # fresher weights come first, as ever
        made.decide(starved)
        assert (made.settings.publish_every, made.settings.in_flight) == expected


def test_what_the_learner_needed_is_not_taken_away_for_lag_until_it_is_tried_again():
    made = throttle(actors=4, per_update=2)
    late = replace(FINE, lag_mean=2.5)
    made.decide(replace(FINE, learner_idle=0.3))
    assert made.settings.in_flight == 5  # with 4 it waited
    seen = [(made.decide(late), made.settings.in_flight)[1] for _ in range(30)]
    assert seen == [5] * 29 + [4]
    made.decide(replace(late, learner_idle=0.3))
    assert made.settings.in_flight == 5
    # What is dropped is of no use, and what waits in a full queue is not needed.
    made.decide(replace(FINE, dropped=20))
    assert made.settings.in_flight == 4
    made.decide(replace(FINE, learner_idle=0.3))
    made.decide(replace(late, queue_depth=4))
    assert made.settings.in_flight == 4


def test_unread_versions_are_published_less_often_but_never_beyond_the_bound_on_lag():
    made = throttle(max_staleness=2)
    for _ in range(9):
        made.decide(replace(FINE, unread_share=0.9))
    assert made.settings.publish_every == 2
    strict = throttle(max_staleness=0)
    strict.decide(replace(FINE, unread_share=0.9, lag_mean=0.0))
    assert strict.settings.publish_every == 1


def test_a_full_queue_before_a_busy_learner_means_that_too_much_is_under_way():
    made = throttle(actors=4, capacity=4)
    made.decide(replace(FINE, queue_depth=4))
    assert made.settings.in_flight == 3
    made.decide(replace(FINE, queue_depth=4, learner_idle=0.2))  # it waits: not too much at all
    assert made.settings.in_flight == 4


def test_ranges_are_kept():
    made = throttle(actors=4, per_update=2, min_actors=3, max_in_flight=5, max_publish_every=2)
    for load in [replace(FINE, learner_idle=0.5)] * 9:
        made.decide(load)
    assert made.settings.in_flight == 5
    for load in [replace(FINE, unread_share=0.9)] * 9:
        made.decide(load)
    assert made.settings.publish_every == 2
    for load in [replace(FINE, dropped=20)] * 9:
        made.decide(load)
    assert (made.settings.active_actors, made.settings.in_flight) == (3, 2)


def test_every_decision_is_logged_with_its_reason(caplog):
    made = throttle()
    with caplog.at_level(logging.INFO, "training.throttle"):
        (decision, *_) = made.decide(replace(FINE, used=10, dropped=10))
    assert str(decision) == "in_flight 4 -> 3: 50% of rollouts were dropped"
    assert str(decision) in caplog.text
    assert made.decisions == len(caplog.records)


def test_switched_off_it_never_limits_anybody():
    clock = Clock()
    made = throttle(clock, enabled=False, actors=4, capacity=4)
    assert made.settings == Settings(4, 2 * 4 + 4, 1)
    clock.now += 1e6
    assert not made.due()
    assert made.decide(replace(FINE, dropped=50)) == []


def test_in_closed_loop_it_finds_the_rate_of_the_learner_and_stays_there():
    """Actors make two rollouts for each that the learner takes; without a throttle half is lost."""
    made = throttle(actors=8, per_update=1, capacity=2)
    waste = []
    for _ in range(60):
        in_flight = made.settings.in_flight
        # What is under way beyond a full queue and the one being learned from is lost.
        dropped = 10 * max(0, in_flight - 3)
        idle = 0.2 if in_flight < 2 else 0.0
        waste.append(dropped)
        depth = min(2, in_flight - 1)
        lag = 0.5 + 0.5 * depth
        made.decide(
            replace(
                FINE, used=100, dropped=dropped, learner_idle=idle, lag_mean=lag, queue_depth=depth
            )
        )
    assert waste[0] > 0
    assert not any(waste[10:])
    assert made.settings.in_flight >= 2


# ------------------------------------------------------------------ from session to session

WAITS = replace(FINE, learner_idle=0.5)
LATE = replace(FINE, lag_mean=3.0)


def adapted() -> Throttle:
    """After what a learner that waited, and then one for which all was late, asked for."""
    made = throttle(actors=8, per_update=2, capacity=4)
    for load in (LATE, LATE, LATE, WAITS, WAITS):
        made.decide(load)
    assert made.settings != throttle(actors=8, per_update=2, capacity=4).settings
    return made


def test_what_it_found_out_is_known_in_the_next_session():
    made, again = adapted(), throttle(actors=8, per_update=2, capacity=4)
    again.load_state_dict(made.state_dict())
    assert again.settings == made.settings
    # Also what the learner needed not long ago, so that the next decisions are the same.
    for load in (LATE, LATE, WAITS, LATE):
        assert again.decide(load) == made.decide(load)


def test_settings_of_before_are_brought_inside_the_ranges_of_now():
    again = throttle(
        actors=8, per_update=2, capacity=4, min_actors=7, max_in_flight=3, max_publish_every=1
    )
    state = {**adapted().state_dict(), "publish_every": np.array(4)}
    again.load_state_dict(state)
    assert again.settings == Settings(active_actors=7, in_flight=3, publish_every=1)


def test_of_another_number_of_actors_or_switched_off_it_begins_as_ever():
    state = adapted().state_dict()
    for other in (
        throttle(actors=9, per_update=2, capacity=4),
        throttle(actors=8, per_update=3, capacity=4),
        throttle(actors=8, per_update=2, capacity=4, enabled=False),
    ):
        before = other.settings
        other.load_state_dict(state)
        assert other.settings == before
