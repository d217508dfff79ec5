"""What a policy and its critic remember in each of N worlds while it acts in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from real.errors import FerryError
from training.networks import ActorCritic
from training.symmetry import Mirror

Arrays = dict[str, NDArray[Any]]


class Memory:
    """The hidden states of N worlds; of no size, and of no cost, for a policy without a memory.

    It belongs to the episodes and not to the weights, so it goes on when new weights are loaded:
    zeros in the middle of an episode are something that no robot ever meets, while a state that
    the version before has left is met at every change, is recorded with the rollout, and is what
    the learner starts from. Kapturowski et al., "Recurrent experience replay in distributed
    reinforcement learning", 2019, compare both: the stored state is better than zeros.

    Args:
        policy: who remembers; asked with the weights it has at the time.
        num: N.
        mirror: if the learner uses mirror images: then it is also kept what the policy would
            remember, had it seen the mirror image of everything since the episode began. It is
            the only right beginning for a mirrored sequence.
    """

    def __init__(self, policy: ActorCritic, num: int, *, mirror: Mirror | None = None) -> None:
        self._policy = policy
        self._mirror = mirror
        self._hidden: dict[str, Tensor] = {}
        if policy.gru is not None:
            self._hidden["hidden"] = policy.gru.initial(num)
            if mirror is not None:
                self._hidden["mirror_hidden"] = policy.gru.initial(num)
        if policy.critic_gru is not None:
            self._hidden["critic_hidden"] = policy.critic_gru.initial(num)

    @torch.no_grad()
    def mean(self, obs: Tensor, critic_obs: Tensor | None = None) -> Tensor:
        """The policy's answer to this step's observations, which are remembered.

        Args:
            obs: ``[N, D]`` raw.
            critic_obs: ``[N, C]`` raw, which a critic's memory needs; None to leave that.

        Returns:
            Mean of the action ``[N, A]``.
        """
        policy, hidden = self._policy, self._hidden
        if not hidden:
            return policy.mean(obs)
        if policy.critic_gru is not None and critic_obs is not None:
            seen = policy.critic_norm(critic_obs)
            hidden["critic_hidden"] = policy.critic_gru(seen, hidden["critic_hidden"])
        if policy.gru is None:
            return policy.mean(obs)
        if self._mirror is not None:
            _, image = policy.advance(self._mirror.obs(obs), hidden["mirror_hidden"])
            hidden["mirror_hidden"] = image
        mean, hidden["hidden"] = policy.advance(obs, hidden["hidden"])
        return mean

    def forget(self, ended: NDArray[Any]) -> None:
        """Begin anew in worlds whose episode ended: ``[N]``, true where one did."""
        if self._hidden and ended.any():
            # As booleans: as numbers they would be indices of worlds.
            rows = torch.from_numpy(np.asarray(ended, dtype=bool))
            for name, hidden in self._hidden.items():
                self._hidden[name] = hidden.masked_fill(rows.unsqueeze(1), 0.0)

    def arrays(self) -> Arrays:
        """Copies of all of it, by the names of the fields of :class:`real.rollout.Rollout`."""
        return {name: hidden.numpy().copy() for name, hidden in self._hidden.items()}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on with what :meth:`arrays` gave.

        Raises:
            FerryError: a part is missing or of another size.
        """
        for name, hidden in self._hidden.items():
            found = arrays.get(name)
            if found is None or found.shape != tuple(hidden.shape):
                shape = None if found is None else found.shape
                raise FerryError(
                    f"actor state has {name} of shape {shape}, expected {tuple(hidden.shape)}: it "
                    "belongs to another network or number of worlds"
                )
            self._hidden[name] = torch.from_numpy(np.array(found, dtype=np.float32))
