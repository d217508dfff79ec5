"""Learning with a memory: truncated back-propagation in time over the fragments of rollouts.

A sample of a policy with a memory is worth nothing alone, so minibatches take whole *sequences*,
the T steps of one world in one rollout. Each begins with what the actor remembered there (the
stored state, see :class:`training.memory.Memory`), begins anew wherever an episode ended, and the
gradient goes back to its beginning and no further.

:class:`SequenceBatch` and :class:`RecurrentPpo` differ from what they inherit in nothing but that:
the losses, the steps and the order of random numbers are those of :mod:`training.ppo`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from real.errors import FerryError
from real.rollout import Rollout
from training.batch import ActorBatch, Batch, CriticBatch
from training.gru import Gru
from training.mlp import outputs
from training.networks import ActorCritic
from training.ppo import Ppo


@dataclass(frozen=True)
class Run:
    """Sequences of the same length, side by side.

    Attributes:
        ended: ``[T, b]`` whether an episode ended with the step.
        hidden: ``[b, H]`` what is remembered before the first.
    """

    ended: Tensor
    hidden: Tensor


@dataclass(frozen=True)
class Unrolled:
    """Inputs of a network with a memory: takes the place of a batch's observations.

    Attributes:
        inputs: ``[B, D]`` normalised; run after run, and in each step after step.
        runs: what belongs together.
    """

    inputs: Tensor
    runs: tuple[Run, ...]

    def through(self, gru: Gru) -> Tensor:
        """``[B, H]`` what is remembered after each of the inputs."""
        out: list[Tensor] = []
        sizes = [run.ended.numel() for run in self.runs]
        for run, part in zip(self.runs, self.inputs.split(sizes), strict=True):
            x = part.view(*run.ended.shape, -1)  # [T*b, D] -> [T, b, D]
            hidden, ended = run.hidden.to(x.device), run.ended.to(x.device)
            out.append(gru.sequence(x, hidden, ended=ended).flatten(0, 1))
        return out[0] if len(out) == 1 else torch.cat(out)


@dataclass(frozen=True)
class Sequences:
    """The S worlds of several rollouts, whose samples stand one ``[T, N]`` after the other.

    On the CPU, wherever the samples are: these are few numbers, and most of them are counted with.

    Attributes:
        first: ``[S]`` row of the first sample of each sequence.
        stride: ``[S]`` rows from one of its samples to the next.
        steps: ``[S]`` its length.
        ended: ``[B]`` of all samples.
        memories: name of a rollout's field -> ``[S, .]`` what is remembered at the beginning.
    """

    first: Tensor
    stride: Tensor
    steps: Tensor
    ended: Tensor
    memories: dict[str, Tensor]

    @staticmethod
    def of(rollouts: Sequence[Rollout], names: Sequence[str]) -> Sequences:
        """The sequences of rollouts, with these memories.

        Raises:
            FerryError: a rollout lacks a memory.
        """
        starts = list(itertools.accumulate((r.log_probs.size for r in rollouts), initial=0))
        sizes = torch.tensor([r.num_envs for r in rollouts])
        first = [torch.arange(r.num_envs) + s for r, s in zip(rollouts, starts, strict=False)]
        return Sequences(
            first=torch.cat(first),
            stride=sizes.repeat_interleave(sizes),
            steps=torch.tensor([r.num_steps for r in rollouts]).repeat_interleave(sizes),
            ended=torch.cat([ends(r).flatten() for r in rollouts]),
            memories={n: torch.cat([memory(r, n) for r in rollouts]) for n in names},
        )

    def rows(self, chosen: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Samples of the sequences ``chosen [b]``, run after run, and which run each is in.

        Returns:
            Rows ``[B']`` of samples, and the positions in ``chosen`` of each run's sequences.
        """
        rows: list[Tensor] = []
        places: list[Tensor] = []
        steps = self.steps[chosen]
        for length in torch.unique(steps).tolist():  # one, unless rollouts differ
            place = torch.nonzero(steps == length).squeeze(1)
            picked = chosen[place]
            later = torch.arange(length).unsqueeze(1) * self.stride[picked]
            rows.append((self.first[picked] + later).flatten())  # [T, b] -> [T*b]
            places.append(place)
        return torch.cat(rows) if rows else chosen, places

    def runs(
        self, chosen: Tensor, rows: Tensor, places: list[Tensor], hidden: Tensor
    ) -> tuple[Run, ...]:
        """The runs of :meth:`rows`, beginning with ``hidden [b, H]``."""
        runs: list[Run] = []
        start = 0
        for place in places:
            length = int(self.steps[chosen[place[0]]])
            stop = start + length * len(place)
            ended = self.ended[rows[start:stop]].view(length, len(place))
            runs.append(Run(ended, hidden[place]))
            start = stop
        return tuple(runs)


@dataclass(frozen=True)
class SequenceBatch(Batch):
    """A batch whose rows, to those who draw minibatches from it, are sequences.

    Attributes:
        sequences: where they are in the samples.
    """

    sequences: Sequences = field(kw_only=True)

    @staticmethod
    def of(batch: Batch, rollouts: Sequence[Rollout], policy: ActorCritic) -> SequenceBatch:
        """The samples of rollouts, in their order, as sequences for a policy with a memory."""
        names = [name for name, size in sizes_of(policy).items() if size]
        if policy.gru is not None and batch.mirrored:
            names.append("mirror_hidden")
        return SequenceBatch(**vars(batch), sequences=Sequences.of(rollouts, names))

    @property
    def size(self) -> int:
        """S."""
        return len(self.sequences.first)

    def actor_part(self, rows: Tensor, image: Tensor) -> ActorBatch:
        """Whole sequences ``rows [b]``, mirrored where ``image [b]`` is 1, as their samples."""
        sequences, device = self.sequences, rows.device
        rows, image = rows.cpu(), image.cpu()
        samples, places = sequences.rows(rows)
        lengths = [int(sequences.steps[rows[place[0]]]) for place in places]
        # A sequence is mirrored from its beginning to its end, and remembers so.
        images = [image[p].repeat(n) for p, n in zip(places, lengths, strict=True)]
        flat = torch.cat(images) if images else image
        part = self._samples().actor_part(samples.to(device), flat.to(device))
        hidden = sequences.memories.get("hidden")
        if hidden is None:
            return part
        hidden = hidden[rows]
        if self.mirrored:
            mirrored = sequences.memories["mirror_hidden"][rows]
            hidden = torch.where(image.bool().unsqueeze(1), mirrored, hidden)
        return _replaced(part, "obs", sequences.runs(rows, samples, places, hidden))

    def critic_part(self, rows: Tensor) -> CriticBatch:
        """Whole sequences ``rows [b]`` as their samples."""
        device, rows = rows.device, rows.cpu()
        samples, places = self.sequences.rows(rows)
        part = self._samples().critic_part(samples.to(device))
        hidden = self.sequences.memories.get("critic_hidden")
        if hidden is None:
            return part
        runs = self.sequences.runs(rows, samples, places, hidden[rows])
        return _replaced(part, "critic_obs", runs)

    def _samples(self) -> Batch:
        """The same, whose rows are samples."""
        return Batch(**{name: value for name, value in vars(self).items() if name != "sequences"})


class RecurrentPpo(Ppo):
    """:class:`Ppo` for an actor or critic with a memory; give it a :class:`SequenceBatch`.

    With ``ppo.compile`` and ``ppo.bf16`` the layers after the memory are compiled and in bfloat16;
    the memory is in float32, since what it rounds comes back at every step.

    With several learners a minibatch's share is counted in sequences, which is that in samples as
    long as all rollouts are of one length, as those of a run are.
    """

    def __init__(self, policy: ActorCritic, *given: Any, **named: Any) -> None:
        super().__init__(policy, *given, **named)
        self._actor = _through(policy.gru, self._actor)
        self._critic = _through(policy.critic_gru, self._critic)


def _through(gru: Gru | None, layers: Any) -> Any:
    """The network as a function of :class:`Unrolled`; as it is without a memory."""
    if gru is None:
        return layers

    def network(inputs: Unrolled) -> Tensor:
        with torch.autocast(inputs.inputs.device.type, enabled=False):
            features = inputs.through(gru)
        return layers(features)

    return network


def _replaced(part: Any, name: str, runs: tuple[Run, ...]) -> Any:
    values = vars(part)
    return type(part)(**{**values, name: Unrolled(values[name], runs)})


# ------------------------------------------------------------------ once per update


def sizes_of(policy: ActorCritic) -> dict[str, int]:
    """Field of a rollout -> how many numbers this policy wants there; 0 for none."""
    return {"hidden": policy.hidden_size, "critic_hidden": policy.critic_hidden_size}


def memory(rollout: Rollout, name: str) -> Tensor:
    """``[N, H]`` what was remembered when the rollout began.

    Raises:
        FerryError: the rollout does not say.
    """
    found: NDArray[np.float32] | None = getattr(rollout, name)
    if found is None:
        raise FerryError(
            f"the rollout of actor {rollout.actor_id!r} has no {name}: whoever acted had no such "
            "memory, but the policy that learns has"
        )
    return torch.from_numpy(found)


def ends(rollout: Rollout) -> Tensor:
    """``[T, N]`` whether an episode ended with the step, in whatever way."""
    return torch.from_numpy(rollout.terminated | rollout.truncated)


def actor_means(
    policy: ActorCritic, obs: Tensor, rollouts: Sequence[Rollout], *, name: str = "hidden"
) -> Tensor:
    """Means of all samples of rollouts, memory or not.

    Args:
        policy: who is asked.
        obs: ``[B, D]`` normalised, in the order of the rollouts.
        rollouts: say where episodes end and what is remembered at the beginning.
        name: of the field that says the latter; ``mirror_hidden`` for mirrored observations.

    Returns:
        ``[B, A]``.
    """
    if policy.gru is None:
        return outputs(policy.actor, obs)
    runs = tuple(Run(ends(r), memory(r, name)) for r in rollouts)
    return policy.actor(Unrolled(obs, runs).through(policy.gru))


def critic_outputs(
    policy: ActorCritic, critic_obs: Tensor, rollout: Rollout, *, final: Tensor
) -> tuple[Tensor, Tensor]:
    """What the critic puts out along a rollout, memory or not.

    Args:
        policy: who is asked.
        critic_obs: ``[(T+1)*N, C]`` normalised.
        rollout: the same one.
        final: ``[K, C]`` raw, in which its episodes were cut.

    Returns:
        Outputs ``[T+1, N]``, and those ``[K]`` at the observations in which episodes were cut,
        which the critic meets with what it remembers of that episode.
    """
    steps, num = rollout.log_probs.shape
    gru, final, device = policy.critic_gru, policy.critic_norm(final), critic_obs.device
    if gru is None:
        found = outputs(policy.critic, critic_obs).view(steps + 1, num)
        return found, outputs(policy.critic, final).squeeze(-1)
    hidden = memory(rollout, "critic_hidden").to(device)
    # What ends after the last step is another rollout's.
    ended = torch.cat((ends(rollout), torch.zeros(1, num, dtype=torch.bool))).to(device)
    features = gru.sequence(critic_obs.view(steps + 1, num, -1), hidden, ended=ended)
    t, n = torch.from_numpy(rollout.final_index).to(device).T
    at_end = gru(final, features[t, n])
    return policy.critic(features).squeeze(-1), policy.critic(at_end).squeeze(-1)
