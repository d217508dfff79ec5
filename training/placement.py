"""Which machine of a cluster each process of a run is on. Pure bookkeeping, no engine in it.

The engine's own spreading is best effort: it may put two actors on one machine while another
machine, which has just joined, idles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """A living machine of the cluster.

    Attributes:
        name: what the engine calls it.
        cpus: how many CPUs it offers.
    """

    name: str
    cpus: float


class Placement:
    """Remembers where everybody is, and says where the next one goes.

    Each actor, each evaluator and each other learner takes one CPU, and so does the first learner
    where it runs. The next one goes where the share of CPUs in use is the smallest with it; among
    equals, where the first learner is not. On one machine everything is on that one.

    Args:
        here: name of the machine with the first learner.
    """

    def __init__(self, here: str) -> None:
        self._here = here
        self._where: dict[Hashable, str] = {}
        self._taken: Counter[str] = Counter()

    def choose(self, machines: Sequence[Machine]) -> str | None:
        """Where the next one goes.

        Args:
            machines: those that live, in any order.

        Returns:
            Its name; None if each CPU has somebody already: whichever is free first takes it.
        """
        # The learner asks the engine for no CPU, so that the last one next to it can be had too.
        free = [m for m in machines if self._taken[m.name] + 1 <= m.cpus]
        if not free:
            return None

        def share(machine: Machine) -> tuple[float, bool, str]:
            here = machine.name == self._here
            return (self._taken[machine.name] + here + 1) / machine.cpus, here, machine.name

        return min(free, key=share).name

    def put(self, who: Hashable, machine: str | None) -> None:
        """Note that somebody was sent to a machine, or anywhere."""
        if machine is not None:
            self._where[who] = machine
            self._taken[machine] += 1

    def remove(self, who: Hashable, *, came: bool) -> None:
        """Note that somebody is gone.

        Args:
            who: somebody that was put, or not.
            came: whether the machine ever had room for it. If not, others use the CPU that it
                was to have: it counts as taken from now on.
        """
        machine = self._where.pop(who, None)
        if machine is not None and came:
            self._taken[machine] -= 1
