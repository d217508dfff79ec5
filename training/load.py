"""What a run measures of itself between two moments, which is what the throttle decides by."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from training.crew import ActorTimes
from training.queue import QueueCounts
from training.throttle import Load


@dataclass(frozen=True)
class Totals:
    """What happened since the start, at one moment; two of them say what happened between.

    Attributes:
        counts: of the queue.
        times: of the actors.
        waited_s: time in which the learner waited for rollouts [s].
        at_s: the moment [s].
        published: publications of weights.
        lags: rollouts used.
        lag_sum: sum of their lags [versions].
    """

    counts: QueueCounts
    times: ActorTimes
    waited_s: float
    at_s: float
    published: int
    lags: int
    lag_sum: int


def load_between(
    last: Totals, now: Totals, *, published: Sequence[int], acted: Set[int], queue_depth: int
) -> Load:
    """What happened between two moments.

    Args:
        last: the earlier one.
        now: the later one.
        published: versions that were published, in order, those before ``last`` included.
        acted: versions that rollouts were made with.
        queue_depth: rollouts that wait now.
    """
    used = now.lags - last.lags
    times = now.times.since(last.times)
    return Load(
        arrived=now.counts.added - last.counts.added,
        dropped=now.counts.dropped - last.counts.dropped,
        used=used,
        lag_mean=(now.lag_sum - last.lag_sum) / max(1, used),
        learner_idle=min(1.0, (now.waited_s - last.waited_s) / max(1e-9, now.at_s - last.at_s)),
        actor_idle=times.idle_share if times.total > 0.0 else 0.0,
        unread_share=unread_share(published, new=now.published - last.published, acted=acted),
        queue_depth=queue_depth,
    )


def unread_share(published: Sequence[int], *, new: int, acted: Set[int]) -> float:
    """Share of versions that nobody acted with; in a plan of a run as in the run itself.

    Args:
        published: versions, in order.
        new: how many of them are of the time that is looked at. The newest of all could not have
            been acted with yet, and is counted next time.
        acted: versions that the rollouts used were made with.
    """
    recent = published[max(0, len(published) - new - 1) : -1]
    return sum(version not in acted for version in recent) / max(1, len(recent))
