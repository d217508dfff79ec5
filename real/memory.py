"""What a policy's network remembers from one step to the next, said in its contract."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class HiddenState:
    """A state outside the weights that whoever runs the network keeps, per robot, and feeds back.

    Attributes:
        input: name of the graph's input that takes it, ``[N, H]``.
        output: name of the graph's output that gives the next one, ``[N, H]``.
        initial: ``[H]`` its values when a robot begins to run.
    """

    input: str
    output: str
    initial: tuple[float, ...]

    @property
    def size(self) -> int:
        """H."""
        return len(self.initial)

    @staticmethod
    def zeros(size: int) -> HiddenState | None:
        """A state of so many zeros under the usual names; None for a size of 0."""
        return HiddenState("hidden", "hidden_next", (0.0,) * size) if size else None

    def problems(self, taken: tuple[str, ...]) -> list[str]:
        """What is wrong with it; ``taken`` are the names of the graph's other ports."""
        bad: list[str] = []
        names = (self.input, self.output, *taken)
        if not all(names) or len(set(names)) < len(names):
            bad.append(f"state names {self.input!r} and {self.output!r} are not of their own")
        if not self.initial:
            bad.append("state has no numbers")
        if not all(math.isfinite(value) for value in self.initial):
            bad.append("state.initial is not finite")
        return bad

    def __str__(self) -> str:
        """Names, size and beginning, for people."""
        same = len(set(self.initial)) == 1
        start = f"{self.initial[0]:g}" if same else "values of its own"
        return f"{self.input}[{self.size}] -> {self.output}[{self.size}], begins with {start}"
