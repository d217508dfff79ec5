"""What the safety filter has said so far, counted for diagnostics and for the end."""

from __future__ import annotations

from collections import Counter

from deploy.safety import Verdict
from deploy.safety_pipeline import SafetyTick
from deploy.timing import Window


class Tally:
    """Verdicts and violations of one robot, and how long they took.

    Attributes:
        latency: from the arrival of a state to the command that answers it [s].
        tick_time: of one decision [s].
    """

    def __init__(self) -> None:
        self._verdicts: Counter[str] = Counter()
        self._violations: Counter[str] = Counter()
        self.latency, self.tick_time = Window(), Window()

    def add(self, tick: SafetyTick) -> None:
        """Count one decision, of N = 1."""
        verdict = Verdict(int(tick.verdict[0]))
        self._verdicts[verdict.name] += 1
        if verdict is not Verdict.PASS or tick.warned:
            for violation in tick.violations:
                self._violations[f"{violation.kind} {violation.joint or ''}".strip()] += 1

    def summary(self) -> dict[str, object]:
        """All of it, name -> value; times in milliseconds."""
        return {
            **{f"verdict {v.name}": self._verdicts[v.name] for v in Verdict},
            **{f"violation {name}": n for name, n in sorted(self._violations.items())},
            **self.latency.milliseconds("state_to_command"),
            **self.tick_time.milliseconds("tick"),
        }
