"""Is memory flat while actors make ten times what the learner takes?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from training.async_bench import PER_UPDATE, ROLLOUT_S, STEP_S, free_config
from training.async_watch import paced_run
from training.process_tree import memory_bytes
from training.progress import ProgressFn, silent

ACTORS = 4
WORLDS = 512
#: How much more the actors make than the learner takes.
FASTER = 10.0
#: Share of the time that does not count: buffers grow to their size, shared memory is touched.
_WARM = 0.2
#: Growth per minute that is still called flat, of the memory at the start.
FLAT = 0.002
_MIB = 2.0**20


@dataclass(frozen=True)
class Memory:
    """Memory of all processes of a run over time, shared memory counted once.

    Attributes:
        minutes: time of each sample since the first [min].
        mib: memory at each [MiB].
        produced_over_used: rollouts delivered over rollouts learned from.
        held: rollouts that waited in the queue at the end.
    """

    minutes: tuple[float, ...]
    mib: tuple[float, ...]
    produced_over_used: float
    held: int

    @property
    def slope_mib_per_min(self) -> float:
        """Of the line with the least squares through the samples."""
        return slope(self.minutes, self.mib)

    @property
    def flat(self) -> bool:
        """Whether it grows by less than :data:`FLAT` of the start per minute."""
        return self.slope_mib_per_min <= FLAT * self.mib[0]

    def as_json(self) -> dict[str, Any]:
        """What JSON holds of it; keys are stable."""
        return {
            "start_mib": self.mib[0],
            "end_mib": self.mib[-1],
            "max_mib": max(self.mib),
            "slope_mib_per_min": self.slope_mib_per_min,
            "flat": self.flat,
            "minutes": self.minutes[-1],
            "produced_over_used": self.produced_over_used,
            "queue_depth": self.held,
        }

    def rows(self) -> dict[str, str]:
        """For a table on the terminal."""
        return {
            "at the start": f"{self.mib[0]:,.0f} MiB",
            "at the end": f"{self.mib[-1]:,.0f} MiB, {self.minutes[-1]:.1f} min later",
            "at most": f"{max(self.mib):,.0f} MiB",
            "slope": f"{self.slope_mib_per_min:+.2f} MiB per minute: "
            + ("flat" if self.flat else f"NOT FLAT, over {100 * FLAT:g} % of the start"),
            "made over used": f"{self.produced_over_used:.1f}",
            "rollouts that wait": str(self.held),
        }


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """sum((x - mean x)(y - mean y)) / sum((x - mean x)^2); 0 where x does not vary."""
    centred = np.asarray(x) - np.mean(x)
    spread = float(centred @ centred)
    return float(centred @ np.asarray(y)) / spread if spread > 0.0 else 0.0


def soak(
    minutes: float,
    *,
    actors: int = ACTORS,
    sample_s: float | None = None,
    progress: ProgressFn | None = None,
) -> Memory:
    """Let actors outrun the learner, the throttle off, so that the queue overflows all the time.

    Args:
        minutes: how long, after the processes have started.
        actors: K.
        sample_s: time between two looks at memory [s]; 60 looks in all if None.
        progress: told how far it is.
    """
    tell = progress or silent
    seconds = 60.0 * minutes
    pause = sample_s or seconds / 60.0
    tell(0.0, seconds, "starting actors")
    # Rollouts that are too large to travel within a message: they go through shared memory.
    config = free_config(f"sim.worlds={WORLDS}")
    with paced_run(config, actors=actors, step_s=STEP_S) as run:
        run.start(actors=actors)
        run.learner.update_s = FASTER * PER_UPDATE * ROLLOUT_S / actors
        first, begun = run.runtime.totals().counts, time.monotonic()
        at: list[float] = []
        held: list[float] = []
        while (passed := time.monotonic() - begun) < seconds:
            tell(passed, seconds, f"{held[-1]:,.0f} MiB" if held else "")
            run.run(min(pause, seconds - passed))
            at.append((time.monotonic() - begun) / 60.0)
            held.append(memory_bytes() / _MIB)
        last, depth = run.runtime.totals().counts, len(run.runtime.queue)
    tell(seconds, seconds)
    skip = int(_WARM * len(at))
    return Memory(
        minutes=tuple(t - at[skip] for t in at[skip:]),
        mib=tuple(held[skip:]),
        produced_over_used=(last.added - first.added) / max(1, last.taken - first.taken),
        held=depth,
    )
