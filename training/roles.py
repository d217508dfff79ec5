"""Who takes part in a run besides actors and learner, and what they hand each other.

Everything here is plain data or a protocol: the serial runtime fills the roles in turn in one
process, the asynchronous one with processes on one or many machines.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from real.errors import FerryError
from training.actor import VectorEnv
from training.networks import ActorCritic, NetworkConfig
from training.run_config import RunConfig
from training.snapshot import PolicySnapshot, load_snapshot

#: (worker, restart): tells actors of one run apart, see :func:`sim.streams.world_seeds`.
Stream = tuple[int, int]
#: Makes the worlds of an actor. Other processes call it too, so it is a function of a module.
MakeEnv = Callable[[RunConfig, Stream], VectorEnv]
#: Scores a policy on seeds kept for selection: a mapping for ``evaluations.jsonl`` that has at
#: least ``score`` in it, higher is better.
Evaluate = Callable[[ActorCritic], Mapping[str, Any]]


def actor_id(stream: Stream) -> str:
    """Name of an actor in its rollouts; whoever replaces it has another one."""
    worker, restart = stream
    return f"actor-{worker}" if restart == 0 else f"actor-{worker}-restart-{restart}"


@dataclass(frozen=True)
class Task:
    """What every process needs to know of the run; it travels to other machines.

    Attributes:
        config: the run.
        make_env: makes an actor's worlds.
        evaluate: what evaluators score with; None if there are none.
    """

    config: RunConfig
    make_env: MakeEnv
    evaluate: Evaluate | None


@dataclass(frozen=True)
class ScoreRequest:
    """A version of the policy that waits for its score.

    Attributes:
        snapshot: the policy.
        sizes: D, C and A of its network.
        network: the other sizes.
        checkpoint: folder name of the checkpoint that holds the same policy.
        step: control steps behind it.
        iteration: updates behind it.
    """

    snapshot: PolicySnapshot
    sizes: tuple[int, int, int]
    network: NetworkConfig
    checkpoint: str
    step: int
    iteration: int

    def policy(self) -> ActorCritic:
        """The policy in a module of its own: nobody can train or spoil it by accident."""
        policy_dim, critic_dim, action_dim = self.sizes
        module = ActorCritic(policy_dim, critic_dim, action_dim=action_dim, config=self.network)
        load_snapshot(module, self.snapshot.state)
        return module.eval()


class RoleFailed(Exception):
    """A process died, or what it ran raised; the message has the traceback if there is one."""


class Engine(Protocol):
    """Runs actors and evaluators as processes somewhere; :mod:`training.cluster` has one.

    Handles and tickets are its own: nobody else looks into them.
    """

    def start_actor(self, worker: int, restart: int, snapshot: PolicySnapshot) -> Any:
        """Begin to start an actor that knows ``snapshot``; returns its handle at once."""
        ...

    def collect(self, actor: Any) -> Any:
        """Ask for one more fragment; returns a ticket at once."""
        ...

    def start_evaluator(self) -> Any:
        """Begin to start an evaluator; returns its handle at once."""
        ...

    def score(self, evaluator: Any, request: ScoreRequest) -> Any:
        """Ask for a score; returns a ticket at once."""
        ...

    def wait(self, tickets: Sequence[Any], timeout_s: float) -> list[Any]:
        """Those of the tickets that are ready, after waiting for the first so long at most."""
        ...

    def fetch(self, ticket: Any) -> Any:
        """What a ready ticket stands for: ``(Rollout, busy seconds)``, or ``(record, seconds)``.

        Raises:
            RoleFailed: the process died or raised.
        """
        ...

    def kill(self, handle: Any) -> None:
        """End a process now, whatever it does."""
        ...

    def publish(self, snapshot: PolicySnapshot) -> None:
        """Hand weights to the store, where actors find them; never waits, also if it is gone."""
        ...

    def tend_store(self) -> None:
        """Give the newest weights to a store that came back without them; never waits."""
        ...


class RestartBudgetExceeded(FerryError):
    """Actors died more often than a run puts up with."""


class RestartBudget:
    """Allows so many restarts within a window of time, so that a broken task ends the run.

    A rate and not a total: a run of weeks on many machines loses processes now and then, and goes
    on. But a restart is forgotten only if something came of the work since: what fails so slowly
    that a window never sees enough of it, such as one actor that hangs for minutes at each start,
    ends the run too.

    Args:
        limit: restarts within the window, or since the last work that was done.
        window_s: its length [s].
        clock: monotonic time [s].
    """

    def __init__(self, limit: int, window_s: float, *, clock: Callable[[], float]) -> None:
        self.limit = limit
        self.window_s = window_s
        self.spent = 0
        self._clock = clock
        self._times: deque[float] = deque()
        self._worked_s = -math.inf

    def note_work(self) -> None:
        """Somebody whose restarts are counted here has delivered what it is there for."""
        self._worked_s = self._clock()

    def spend(self, who: str, cause: str) -> None:
        """Account for one restart.

        Args:
            who: what is to be restarted.
            cause: why, with the traceback if there is one.

        Raises:
            RestartBudgetExceeded: it was one too many; the message ends with the cause.
        """
        forgotten_s = min(self._clock() - self.window_s, self._worked_s)
        while self._times and self._times[0] < forgotten_s:
            self._times.popleft()
        if len(self._times) >= self.limit:
            raise RestartBudgetExceeded(
                f"{who} failed, and {len(self._times)} restarts within {self.window_s:g} s, or "
                "without any work done since, are used up (training.runtime.max_restarts is "
                f"{self.limit}). The cause:\n{cause}"
            )
        self._times.append(self._clock())
        self.spent += 1
