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
    # The newest could not have been acted with yet.
    recent = published[len(published) - (now.published - last.published) - 1 : -1]
    unread = sum(version not in acted for version in recent)
    used = now.lags - last.lags
    times = now.times.since(last.times)
    return Load(
        arrived=now.counts.added - last.counts.added,
        dropped=now.counts.dropped - last.counts.dropped,
        used=used,
        lag_mean=(now.lag_sum - last.lag_sum) / max(1, used),
        learner_idle=min(1.0, (now.waited_s - last.waited_s) / max(1e-9, now.at_s - last.at_s)),
        actor_idle=times.idle_share if times.total > 0.0 else 0.0,
        unread_share=unread / max(1, len(recent)),
        queue_depth=queue_depth,
    )
