"""Which learner learns from what: rollouts cut into as many parts as there are learners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from real.errors import FerryError
from real.rollout import Rollout

#: What a rollout keeps of memories, one row for each world.
MEMORIES = ("hidden", "critic_hidden", "mirror_hidden")


def shares(
    rollouts: Sequence[Rollout], weights: Sequence[float], *, size: int
) -> list[tuple[list[Rollout], list[float]]]:
    """Worlds of all rollouts in turn, in as many parts of the same number as there are learners.

    A rollout is cut only where a part ends in the middle of it.

    Args:
        rollouts: of an update.
        weights: one for each.
        size: L.

    Returns:
        For each learner, by rank, its rollouts and their weights.

    Raises:
        FerryError: there are fewer worlds than learners.
    """
    total = sum(rollout.num_envs for rollout in rollouts)
    if total < size:
        raise FerryError(
            f"an update has rollouts of {total} worlds, for {size} learners; expected one each at "
            "least: lower training.runtime.learners, or raise sim.worlds"
        )
    out: list[tuple[list[Rollout], list[float]]] = []
    for rank in range(size):
        start, stop, first = total * rank // size, total * (rank + 1) // size, 0
        part: list[Rollout] = []
        of_part: list[float] = []
        for rollout, weight in zip(rollouts, weights, strict=True):
            low, high = max(start - first, 0), min(stop - first, rollout.num_envs)
            first += rollout.num_envs
            if low < high:
                whole = high - low == rollout.num_envs
                part.append(rollout if whole else of_worlds(rollout, low, high))
                of_part.append(weight)
        out.append((part, of_part))
    return out


def of_worlds(rollout: Rollout, start: int, stop: int) -> Rollout:
    """What a learner reads of worlds ``start`` to ``stop - 1``, copied."""
    chosen = (rollout.final_index[:, 1] >= start) & (rollout.final_index[:, 1] < stop)
    index = rollout.final_index[chosen].copy()
    index[:, 1] -= start
    names = ("obs", "critic_obs", "actions", "log_probs", "rewards", "terminated", "truncated")
    arrays = {name: getattr(rollout, name)[:, start:stop].copy() for name in names}
    remembered = {name: getattr(rollout, name) for name in MEMORIES}
    arrays |= {n: kept[start:stop].copy() for n, kept in remembered.items() if kept is not None}
    return replace(
        rollout,
        final_index=index,
        final_critic_obs=rollout.final_critic_obs[chosen].copy(),
        episodes=(),
        domain=None,
        **arrays,
    )
