"""A learner of a group besides the first: what it is made of, is asked, and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from real.rollout import Rollout
from training.learner import Learner
from training.networks import ActorCritic, NetworkConfig
from training.parallel import ALONE, LearnerLostError, join_learners, leave_learners
from training.ppo_config import PpoConfig
from training.probe import policy_digest
from training.shares import of_worlds
from training.snapshot import Arrays
from training.staging import DeviceName, chosen_device
from training.symmetry import Mirror

#: How far apart the size of a parameter may be in two learners after an update [relative]. All
#: step by the same gradients, to the bit; what they make of them may be rounded otherwise on
#: another CPU, by 1e-7 in each step.
_ROUNDING = 1e-3


@dataclass(frozen=True)
class LearnerSpec:
    """What makes a :class:`Learner`, the same in every process."""

    policy_dim: int
    critic_dim: int
    action_dim: int
    network: NetworkConfig
    ppo: PpoConfig
    seed: int
    mirror: Mirror | None
    threads: int
    device: DeviceName

    def arguments(self, *, rank: int) -> dict[str, Any]:
        """What the :class:`Learner` of a rank is made with."""
        found = {name: value for name, value in vars(self).items() if name != "threads"}
        return found | {"device": chosen_device(self.device, rank=rank)}

    def make(self, *, rank: int = 0) -> Learner:
        """A learner that is alone, as yet."""
        return Learner(**self.arguments(rank=rank))


@dataclass(frozen=True)
class LearnerState:
    """Everything that a learner continues with.

    Attributes:
        policy: as in a snapshot.
        learner: see :meth:`training.learner.Learner.state_dict`.
    """

    policy: Arrays
    learner: Arrays

    @staticmethod
    def of(learner: Learner) -> LearnerState:
        """A copy of a learner's."""
        return LearnerState(learner.snapshot().state, learner.state_dict())

    def give(self, learner: Learner) -> None:
        """Make a learner continue with it."""
        learner.load_state_dict(dict(self.policy), dict(self.learner))


@dataclass(frozen=True)
class Meeting:
    """Where and as whom a learner meets the others, and what it continues with.

    Attributes:
        address: see :func:`training.parallel.join_learners`; so for rank, size and timeout_s.
        state: of the first learner.
    """

    address: str
    rank: int
    size: int
    timeout_s: float
    state: LearnerState


@dataclass(frozen=True)
class Learned:
    """How an update ended in one learner.

    Attributes:
        version: of its policy now.
        digest: of its policy now, see :func:`training.probe.policy_digest`.
        sizes: Euclidean norm of each of its policy's parameters and buffers, by name.
        lost: what it says of another learner's end, None if the update was done.
    """

    version: int
    digest: str
    sizes: tuple[float, ...]
    lost: str | None = None

    @staticmethod
    def of(learner: Learner, lost: str | None = None) -> Learned:
        """How it ended in this learner."""
        policy = learner.policy
        return Learned(learner.version, policy_digest(policy), _sizes(policy), lost)

    def agrees(self, other: Learned) -> bool:
        """Whether two learners went the same way, up to how their CPUs round."""
        return self.version == other.version and np.allclose(
            self.sizes, other.sizes, rtol=_ROUNDING, atol=_ROUNDING, equal_nan=False
        )


def _sizes(policy: ActorCritic) -> tuple[float, ...]:
    tensors = [tensor.detach().double() for _, tensor in sorted(policy.state_dict().items())]
    return tuple(float(tensor.norm()) for tensor in tensors)


class LearnerMember:
    """One :class:`training.learner.Learner`, in a process of its own.

    Args:
        spec: of every learner of the group.
        rank: its number, 1 to L - 1.
    """

    def __init__(self, spec: LearnerSpec, rank: int) -> None:
        torch.set_num_threads(spec.threads)
        self._learner = spec.make(rank=rank)

    def meet(self, meeting: Meeting) -> None:
        """Leave the others, if there were any, and meet those of now."""
        leave_learners()
        meeting.state.give(self._learner)
        self._learner.join(
            join_learners(
                meeting.address,
                rank=meeting.rank,
                size=meeting.size,
                timeout_s=meeting.timeout_s,
            )
        )

    def learn(
        self, rollouts: list[Rollout], weights: list[float], anew: LearnerState | None
    ) -> Learned:
        """Take part in an update.

        Args:
            rollouts: this learner's share; may be read-only.
            weights: one for each.
            anew: what to continue with in place of its own; None for its own.
        """
        own = [of_worlds(rollout, 0, rollout.num_envs) for rollout in rollouts]
        lost = None
        try:
            if anew is not None:
                anew.give(self._learner)
            self._learner.update(own, weights=weights)
        except BaseException as error:
            # Whoever waits for this one on a line hears that it will not come.
            self._learner.join(ALONE)
            leave_learners()
            if not isinstance(error, LearnerLostError):
                raise
            lost = str(error)
        return Learned.of(self._learner, lost)
