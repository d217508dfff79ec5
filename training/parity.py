"""Whether a bundle gives the numbers of torch: each step alone, and whole lives in a row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from deploy.policy import OnnxPolicy
from real.contract import Golden

Float32 = NDArray[np.float32]
Bools = NDArray[np.bool_]

#: Batch sizes tried besides all at once: a size that was baked in shows in one of them.
BATCHES = (1, 2, 7)


@dataclass(frozen=True)
class Recording:
    """What a policy saw in N worlds, step after step.

    Attributes:
        observations: ``[T, N, D]`` raw.
        ended: ``[T, N]`` whether an episode ended with the step.
    """

    observations: Float32
    ended: Bools

    @property
    def rows(self) -> Float32:
        """``[T*N, D]``."""
        return self.observations.reshape(-1, self.observations.shape[-1])

    def with_resets(self) -> Recording:
        """The same with more ends: a policy that never falls must begin anew somewhere, too."""
        ended = self.ended.copy()
        ended[len(ended) // 2, ::3] = True
        ended[0, -1] = True
        return Recording(self.observations, ended)


@dataclass(frozen=True)
class Answers:
    """What a policy answered, row by row; ``hidden`` and ``hidden_next`` only with a memory.

    Attributes:
        observation: ``[K, D]``.
        mean: ``[K, A]``.
        log_std: ``[K, A]``.
        hidden: ``[K, H]`` before each step.
        hidden_next: ``[K, H]`` after it, before any reset.
    """

    observation: Float32
    mean: Float32
    log_std: Float32
    hidden: Float32 | None = None
    hidden_next: Float32 | None = None

    def golden(self, count: int) -> Golden:
        """So many of the rows, spread over all."""
        chosen = np.linspace(0, len(self.mean) - 1, count).round().astype(np.intp)
        memories = (None if x is None else x[chosen] for x in (self.hidden, self.hidden_next))
        return Golden(self.observation[chosen], self.mean[chosen], self.log_std[chosen], *memories)


@torch.no_grad()
def ask(module: nn.Module, observations: Float32) -> Answers:
    """Ask a policy without a memory about ``[K, D]`` observations."""
    mean, log_std = module(torch.from_numpy(observations))
    return Answers(observations, mean.numpy().copy(), log_std.numpy().copy())


@torch.no_grad()
def ask_in_order(module: nn.Module, recording: Recording, initial: Float32) -> Answers:
    """Let a policy with a memory live through a recording.

    Args:
        module: ``[N, D]``, hidden ``[N, H]`` -> mean, log_std, next hidden.
        recording: T steps of N worlds.
        initial: ``[H]`` what it remembers when an episode begins.
    """
    num = recording.ended.shape[1]
    hidden = np.tile(initial, (num, 1))
    steps: list[tuple[Float32, ...]] = []
    for obs, ended in zip(recording.observations, recording.ended, strict=True):
        given = torch.from_numpy(obs), torch.from_numpy(hidden)
        mean, log_std, following = (x.numpy().copy() for x in module(*given))
        steps.append((obs, mean, log_std, hidden, following))
        hidden = np.where(ended[:, None], initial, following)
    return Answers(*(np.concatenate(column) for column in zip(*steps, strict=True)))


def largest_difference(policy: OnnxPolicy, expected: Answers) -> float:
    """Over all rows, each step alone, in several batch sizes; NaN if any number is."""
    worst = 0.0
    for size in (*BATCHES, len(expected.mean)):
        part = slice(size)
        wanted: list[Float32] = [expected.mean[part], expected.log_std[part]]
        if expected.hidden is None or expected.hidden_next is None:
            found: tuple[Float32, ...] = policy.infer(expected.observation[part])
        else:
            found = policy.advance(expected.observation[part], expected.hidden[part])
            wanted.append(expected.hidden_next[part])
        for x, y in zip(found, wanted, strict=True):
            # max() of numpy keeps NaN, Python's may lose it.
            worst = float(np.max([worst, np.abs(x - y).max()]))
    return worst


def largest_drift(
    policy: OnnxPolicy, recording: Recording, *, expected: Answers, initial: Float32
) -> float:
    """Of a policy with a memory that lives through a recording by itself, from torch's own life.

    Each begins anew with ``initial [H]`` where the recording says so. Differences may add up over
    a life; that they do not is what this shows.
    """
    worst = 0.0
    num = recording.ended.shape[1]
    hidden = np.tile(initial, (num, 1))
    for t, (obs, ended) in enumerate(zip(recording.observations, recording.ended, strict=True)):
        mean, _, following = policy.advance(obs, hidden)
        worst = float(np.max([worst, np.abs(mean - expected.mean[t * num : (t + 1) * num]).max()]))
        hidden = np.where(ended[:, None], initial, following)
    return worst
