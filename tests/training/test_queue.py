"""The queue: bounded, admits by lag at the time of taking, and counts whatever it drops."""

from __future__ import annotations

import threading

import pytest

from real.errors import FerryError
from tests.training.toy_run import rollout
from training.queue import LagStats, QueueClosed, QueueCounts, RolloutQueue


def versions(admitted) -> list[int]:
    return [a.rollout.policy_version for a in admitted]


def test_rollouts_leave_in_the_order_in_which_they_came():
    queue = RolloutQueue(4, max_staleness=9)
    for version in (3, 1, 2):
        queue.put(rollout(version))
    assert versions(queue.take(2, 3)) == [3, 1]
    assert len(queue) == 1
    assert [a.lag for a in queue.take(1, 7)] == [5]
    assert queue.counts == QueueCounts(added=3, taken=3)


def test_a_full_queue_drops_its_oldest_rollout_and_counts_it():
    queue = RolloutQueue(3, max_staleness=9)
    for version in range(8):
        queue.put(rollout(version))
        assert len(queue) <= 3
    assert versions(queue.take(3, 8)) == [5, 6, 7]
    assert queue.counts == QueueCounts(added=8, taken=3, overflowed=5)
    assert queue.counts.dropped == 5


def test_a_batch_is_whole_or_not_at_all():
    queue = RolloutQueue(3, max_staleness=1)
    queue.put(rollout(0))
    assert queue.take(2, 0) == []
    assert len(queue) == 1
    queue.put(rollout(0))
    assert len(queue.take(2, 0)) == 2


def test_what_is_admitted_is_decided_when_it_is_taken_and_the_bound_itself_is_inside():
    queue = RolloutQueue(5, max_staleness=2)
    for version in (4, 5, 6):
        queue.put(rollout(version))
    assert versions(queue.take(2, 7)) == [5, 6]  # lags 2 and 1; that of version 4 is 3
    assert queue.counts == QueueCounts(added=3, taken=2, stale=1)


def test_a_bound_of_zero_admits_the_present_policy_only():
    queue = RolloutQueue(5, max_staleness=0)
    for version in (3, 4, 4):
        queue.put(rollout(version))
    assert versions(queue.take(2, 4)) == [4, 4]
    assert queue.counts.stale == 1


def test_by_configuration_an_old_rollout_counts_for_less():
    queue = RolloutQueue(5, max_staleness=4, over_bound="weight")
    for version in (10, 9, 8, 1):
        queue.put(rollout(version))
    admitted = queue.take(4, 13)
    assert [a.lag for a in admitted] == [3, 4, 5, 12]
    assert [a.weight for a in admitted] == [1.0, 1.0, 1 / 2, 1 / 9]
    assert queue.counts == QueueCounts(added=4, taken=4, over_bound=2)


def test_a_learner_that_waits_gets_what_arrives_meanwhile():
    queue = RolloutQueue(2, max_staleness=0)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(versions(queue.take(1, 5, timeout_s=30))))
    thread.start()
    queue.put(rollout(4))  # too old: it goes on waiting
    queue.put(rollout(5))
    thread.join(30)
    assert found == [5]
    assert queue.counts.stale == 1


def test_closing_wakes_whoever_waits():
    queue = RolloutQueue(2, max_staleness=0)
    raised: list[Exception] = []

    def wait():
        try:
            queue.take(1, 0, timeout_s=60)
        except QueueClosed as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    queue.close()
    thread.join(30)
    assert len(raised) == 1


def test_a_producer_ten_times_as_fast_leaves_the_newest_and_the_lag_stays_small():
    """Ten rollouts while the learner makes one update: none is held back to be used too late."""
    queue = RolloutQueue(2, max_staleness=4)
    lags = []
    for version in range(1, 40):
        for _ in range(10):
            queue.put(rollout(version - 1))  # begun before the update was published
        (admitted,) = queue.take(1, version)
        lags.append(admitted.lag)
        assert len(queue) <= 2
    assert max(lags) == 1
    counts = queue.counts
    assert counts.added == counts.taken + counts.dropped + len(queue)


def test_a_queue_that_cannot_work_is_refused():
    with pytest.raises(FerryError, match="capacity of at least 1"):
        RolloutQueue(0, max_staleness=1)
    with pytest.raises(FerryError, match="cannot take 3 rollouts from a queue of 2"):
        RolloutQueue(2, max_staleness=1).take(3, 0)


def test_lag_is_told_by_mean_percentile_and_largest():
    assert LagStats.of([]) == LagStats(0.0, 0.0, 0.0)
    found = LagStats.of([9, *[1] * 18, 2])
    assert found == LagStats(29 / 20, 2.0, 9.0)  # 19 of 20 do not exceed 2
