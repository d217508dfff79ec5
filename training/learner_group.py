"""Learners 0 to L-1 as one: rank 0 in this process, the others wherever a host runs them.

Rank 0 decides: it takes the rollouts, shares them out, publishes and checkpoints. If another one
dies, the update under way is not applied anywhere; the group is then formed again, from what rank
0 holds, with a replacement. The arithmetic is in :mod:`training.parallel`.

All step by the same gradients, but CPUs of other kinds may round a step otherwise, and small
differences grow. So every version is that of rank 0: whoever ended an update with other bits gets
rank 0's weights and moments before the next.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from real.rollout import Rollout
from training.learner import Learner
from training.learner_member import Learned, LearnerSpec, LearnerState, Meeting
from training.parallel import ALONE, LearnerLostError, join_learners, leave_learners
from training.roles import RestartBudget, RoleFailed
from training.run_config import RuntimeConfig
from training.shares import shares
from training.snapshot import PolicySnapshot

log = logging.getLogger(__name__)

#: How long after the others a learner may answer before it counts as hung [s].
_GRACE_S = 10.0
#: How long the others may take to end their part of an update once the run shall stop [s].
_STOP_S = 2.0
#: How long to wait for an answer before looking whether the run shall stop [s].
_LOOK_S = 0.1


class LearnerHost(Protocol):
    """Runs learners 1 to L-1 as processes; :mod:`training.cluster_learners` has one on Ray.

    Handles and tickets are its own. A ticket stands for an answer: of :meth:`start` and
    :meth:`meet` None, of :meth:`learn` a :class:`Learned`.
    """

    def start(self, rank: int) -> tuple[Any, Any]:
        """Begin to start a learner; its handle, and a ticket that is ready when it is."""
        ...

    def free_address(self) -> str:
        """``HOST:PORT`` of this process that the others can reach, and nobody uses yet."""
        ...

    def meet(self, handle: Any, meeting: Meeting) -> Any:
        """Ask a learner to join the others; a ticket."""
        ...

    def learn(
        self,
        handle: Any,
        rollouts: list[Rollout],
        weights: list[float],
        *,
        anew: LearnerState | None,
    ) -> Any:
        """Ask a learner to take part in an update, see :class:`LearnerMember`; a ticket."""
        ...

    def ready(self, ticket: Any, timeout_s: float) -> bool:
        """Whether the answer is there, after waiting for it so long at most."""
        ...

    def fetch(self, ticket: Any) -> Any:
        """The answer of a ready ticket.

        Raises:
            RoleFailed: the process died or raised.
        """
        ...

    def kill(self, handle: Any) -> None:
        """End a process now, whatever it does."""
        ...


@dataclass
class _Member:
    """Another learner.

    Attributes:
        rank: its number, 1 to L-1.
        handle: the host's.
        ticket: what it was asked last; None once the answer was read.
        since: when it was asked.
        started: whether it has ever answered.
    """

    rank: int
    handle: Any
    ticket: Any
    since: float
    started: bool = False


class LeadLearner(Learner):
    """Rank 0 of a group of learners; to a runtime it is a learner like any other.

    Args:
        spec: of every learner of the group.
        host: runs the others.
        config: L, time-outs.
        budget: of restarts.
        clock: monotonic time [s].
    """

    def __init__(
        self,
        spec: LearnerSpec,
        host: LearnerHost,
        *,
        config: RuntimeConfig,
        budget: RestartBudget,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(**spec.arguments(rank=0))
        self._host = host
        self._config = config
        self._budget = budget
        self._clock = clock
        self._together = False
        self._stop: threading.Event | None = None
        self._stop_seen_s: float | None = None
        self._arrived = 0
        self._unlike: set[int] = set()  # ranks whose last update ended with other bits
        self._members = [self._started(rank) for rank in range(1, config.learners)]

    def heed(self, stop: threading.Event | None) -> None:
        """See :class:`Learner`: others that hang are then ended, and not awaited any longer."""
        self._stop = stop

    def expect(self, rollout: Rollout) -> None:
        """See :class:`Learner`. One rollout in L is brought near, since one in L is learned from.

        :meth:`update` gives this learner those first.
        """
        self._arrived += 1
        if self._arrived % (1 + len(self._members)) == 0:
            super().expect(rollout)

    def ready(self, timeout_s: float) -> bool:
        """Mend the group, as far as that goes without waiting for long; whether it is whole.

        Raises:
            RestartBudgetExceeded: learners had to be replaced too often.
        """
        if self._together:
            return True
        for member in self._members:
            self._attend(member, timeout_s)
        if all(member.ticket is None for member in self._members):
            self._meet()
        return self._together

    def update(
        self, rollouts: Sequence[Rollout], *, weights: Sequence[float] | None = None
    ) -> tuple[PolicySnapshot, dict[str, float]]:
        """See :class:`Learner`: one update of all learners, each with its share of the rollouts.

        Raises:
            LearnerLostError: nothing has changed; call again once :meth:`ready` says so.
        """
        if not self._together:
            raise LearnerLostError("the learners are not together; call ready() until they are")
        given = [1.0] * len(rollouts) if weights is None else list(weights)
        # Those that are on this learner's device already come first, and so become its share.
        order = sorted(range(len(rollouts)), key=lambda i: not self._staging.holds(rollouts[i]))
        own, *others = shares(
            [rollouts[i] for i in order], [given[i] for i in order], size=1 + len(self._members)
        )
        try:
            self._require_same_policy()
            anew = LearnerState.of(self) if self._unlike else None
            for member, (part, of_part) in zip(self._members, others, strict=True):
                state = anew if member.rank in self._unlike else None
                self._ask(member, self._host.learn(member.handle, part, of_part, anew=state))
            snapshot, metrics = super().update(own[0], weights=own[1])
        except LearnerLostError as error:
            log.warning("an update of version %d is not applied: %s", self.version, error)
            self._separate()
            raise
        except BaseException:
            self._separate()
            raise
        version = self.version - (0 if metrics["learner/refused"] else 1)
        lags = [version - rollout.policy_version for rollout in rollouts]
        self._budget.note_work()
        return snapshot, metrics | {
            "learner/lag": sum(lags) / len(lags),
            "learner/restarts": float(self._budget.spent),
            "learner/realigned": float(len(self._unlike)),
        }

    def close(self) -> None:
        """End the other learners."""
        self._separate()
        for member in self._members:
            self._host.kill(member.handle)

    def _started(self, rank: int) -> _Member:
        handle, ticket = self._host.start(rank)
        return _Member(rank, handle, ticket, self._clock())

    def _ask(self, member: _Member, ticket: Any) -> None:
        member.ticket, member.since = ticket, self._clock()

    def _given_up(self) -> bool:
        """Whether the run shall stop, and the others have had their time to end what they do."""
        if self._stop is None or not self._stop.is_set():
            self._stop_seen_s = None
            return False
        now = self._clock()
        if self._stop_seen_s is None:
            self._stop_seen_s = now
        return now - self._stop_seen_s > _STOP_S

    def _separate(self) -> None:
        """Close the lines: whoever waits for this learner on one of them notices at once."""
        self._together = False
        if self._given_up():
            # A line to somebody who hangs is closed by nothing but the end of one of the two.
            for member in self._members:
                self._host.kill(member.handle)
        leave_learners()
        self.join(ALONE)

    def _attend(self, member: _Member, timeout_s: float) -> None:
        """Read a member's answer if it is there, or replace who is dead or hangs."""
        if member.ticket is None:
            return
        if self._host.ready(member.ticket, timeout_s):
            try:
                self._host.fetch(member.ticket)
            except RoleFailed as failure:
                self._replace(member, str(failure))
                return
            member.ticket, member.started = None, True
            return
        config = self._config
        limit = config.learner_timeout_s + _GRACE_S if member.started else config.start_timeout_s
        if self._clock() - member.since > limit:
            self._replace(member, f"no answer within {limit:g} s: it hangs, or there is no CPU")

    def _replace(self, member: _Member, cause: str) -> None:
        self._host.kill(member.handle)
        self._budget.spend(f"learner {member.rank}", cause)
        log.warning("learner %d is replaced: %s", member.rank, cause)
        fresh = self._started(member.rank)
        self._members[self._members.index(member)] = fresh

    def _meet(self) -> None:
        """Join all learners, with everything that rank 0 knows."""
        size, timeout_s = 1 + len(self._members), self._config.learner_timeout_s
        meeting = Meeting(self._host.free_address(), 0, size, timeout_s, LearnerState.of(self))
        self._unlike = set()
        for member in self._members:
            own = replace(meeting, rank=member.rank)
            self._ask(member, self._host.meet(member.handle, own))
        try:
            self.join(
                join_learners(
                    meeting.address,
                    rank=0,
                    size=size,
                    timeout_s=timeout_s,
                    given_up=self._given_up,
                )
            )
            self._answers()
        except LearnerLostError as error:
            log.warning("the learners do not come together: %s", error)
            self._separate()
            if not self._given_up():
                self._budget.spend("the group of learners", str(error))
            return
        self._together = True

    def _answers(self) -> dict[int, Any]:
        """What the others say to what they were asked, by rank.

        Raises:
            LearnerLostError: one of them died or hangs; :meth:`_attend` finds out who.
        """
        found: dict[int, Any] = {}
        deadline = self._clock() + self._config.learner_timeout_s
        for member in self._members:
            if member.ticket is None:
                continue
            while not self._host.ready(member.ticket, _LOOK_S):
                if self._given_up() or self._clock() > deadline:
                    raise LearnerLostError(f"learner {member.rank} does not answer")
            try:
                found[member.rank] = self._host.fetch(member.ticket)
            except RoleFailed as failure:
                raise LearnerLostError(f"learner {member.rank} failed: {failure}") from failure
            member.ticket = None
        return found

    def _require_same_policy(self) -> None:
        """Compare with how the last update ended in the others; by now they have finished it.

        Raises:
            LearnerLostError: one of them went another way, or is no more.
        """
        answers = {r: a for r, a in self._answers().items() if isinstance(a, Learned)}
        if not answers:
            return
        mine = Learned.of(self)
        for rank, answer in answers.items():
            if answer.lost is not None or not mine.agrees(answer):
                why = answer.lost or f"its policy of version {answer.version} is another one"
                raise LearnerLostError(
                    f"learner {rank} did not end the last update as this one: {why}"
                )
        unlike = {rank for rank, answer in answers.items() if answer.digest != mine.digest}
        for rank in sorted(unlike - self._unlike):
            log.info("learner %d rounds otherwise than this one, whose weights it now gets", rank)
        self._unlike = unlike
