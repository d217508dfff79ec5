"""Worlds, learner and evaluation whose cost is emulated: they last as long as asked, on no core.

On a computer with few cores real work would measure the cores. What lasts by sleeping measures the
runtime: who waits for whom. Every duration can be changed while a run goes on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from real.rollout import Rollout
from sim.result import StepResult
from training.learner import Learner
from training.networks import ActorCritic, NetworkConfig
from training.ppo_config import PpoConfig
from training.roles import Stream
from training.run_config import RunConfig
from training.snapshot import PolicySnapshot
from training.toy_env import PointEnv


class Paces:
    """Durations of a control step, one per actor, and of an evaluation, in a file.

    Processes on one machine see a change of it at their next step.

    Args:
        path: the file, which :meth:`create` made.
    """

    def __init__(self, path: Path) -> None:
        self._seconds = np.memmap(path, dtype=np.float64, mode="r+")

    @staticmethod
    def create(path: Path, *, actors: int, step_s: float, evaluation_s: float) -> Paces:
        """A new file in which all actors are alike."""
        path.write_bytes(np.array([step_s] * actors + [evaluation_s]).tobytes())
        return Paces(path)

    def step_s(self, actor: int) -> float:
        """Duration of a control step [s]."""
        return float(self._seconds[actor])

    def set_step_s(self, actor: int, seconds: float) -> None:
        """Change it from the next step on."""
        self._seconds[actor] = seconds

    @property
    def evaluation_s(self) -> float:
        """Duration of an evaluation [s]."""
        return float(self._seconds[-1])


class PacedEnv(PointEnv):
    """Points whose control step lasts as long as ``paces`` says, its own work included."""

    def __init__(self, num: int, *, seed: int, stream: Stream, paces: Paces) -> None:
        super().__init__(num, seed=seed, stream=stream)
        self._paces = paces
        self._worker = stream[0]

    def step(self, actions: NDArray[np.floating], /) -> StepResult:
        """See :class:`training.toy_env.PointEnv`."""
        begun = time.monotonic()
        result = super().step(actions)
        _rest(begun, self._paces.step_s(self._worker))
        return result


@dataclass(frozen=True)
class MakePacedEnv:
    """See :data:`training.roles.MakeEnv`; an object, since it carries where the paces are."""

    path: Path

    def __call__(self, config: RunConfig, stream: Stream) -> PacedEnv:
        """The worlds of one actor."""
        return PacedEnv(
            config.sim.worlds, seed=config.training.seed, stream=stream, paces=Paces(self.path)
        )


@dataclass(frozen=True)
class PacedEvaluate:
    """See :data:`training.roles.Evaluate`; every policy is worth 0."""

    path: Path

    def __call__(self, policy: ActorCritic) -> Mapping[str, float]:
        """Take the time of an evaluation."""
        time.sleep(Paces(self.path).evaluation_s)
        return {"score": 0.0}


@dataclass(frozen=True)
class Update:
    """One update of the learner.

    Attributes:
        done_s: when it was done, on the monotonic clock [s].
        took_s: how long it lasted [s].
        lags: of its rollouts [versions].
    """

    done_s: float
    took_s: float
    lags: tuple[int, ...]


class PacedLearner(Learner):
    """Learns, and then rests until ``update_s`` has passed; keeps a record of its updates."""

    def __init__(self, *, network: NetworkConfig, ppo: PpoConfig, seed: int) -> None:
        super().__init__(
            PointEnv.policy_dim,
            PointEnv.critic_dim,
            action_dim=PointEnv.action_dim,
            network=network,
            ppo=ppo,
            seed=seed,
        )
        self.update_s = 0.0
        self.updates: list[Update] = []

    def update(
        self, rollouts: Sequence[Rollout], *, weights: Sequence[float] | None = None
    ) -> tuple[PolicySnapshot, dict[str, float]]:
        """See :class:`training.learner.Learner`."""
        begun = time.monotonic()
        lags = tuple(self.version - rollout.policy_version for rollout in rollouts)
        result = super().update(rollouts, weights=weights)
        _rest(begun, self.update_s)
        done = time.monotonic()
        self.updates.append(Update(done, done - begun, lags))
        return result


def _rest(begun: float, seconds: float) -> None:
    left = begun + seconds - time.monotonic()
    if left > 0.0:
        time.sleep(left)
