"""What a vector environment gives back for a step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sim.observe import Observations

Float32 = NDArray[np.float32]
Mask = NDArray[np.bool_]
Ids = NDArray[np.intp]


@dataclass(frozen=True)
class StepResult:
    """What one step of N worlds gave. All arrays are new; later steps never write to them.

    Attributes:
        obs: ``policy [N, D]`` and ``critic [N, C]``, float32; of worlds that ended, the first
            observation of the new episode.
        reward: ``[N]`` float32.
        terminated: ``[N]`` ended by what happened; nothing follows, so no bootstrap.
        truncated: ``[N]`` ended by the time limit, or because the base left its tile of the
            terrain; bootstrap from ``final_obs``. Never both.
        final_ids: ``[n]`` worlds that ended, ascending.
        final_obs: last observations of their old episodes, ``policy [n, D]``, ``critic [n, C]``;
            zeros where the world diverged.
        reward_parts: ``[N]`` for every reward term, weighted; they add up to the reward.
        episode: ``[n]`` each, of the episodes that ended: ``return``, ``length`` (steps),
            ``fallen``, ``body_contact``, ``diverged``, and ``reward/<term>``, the sum of each part;
            on terrain also ``left`` (its tile) and ``terrain_level``, which it meets next there.
        clamped: joint -> ``[N]`` whether the robot's limits moved its target; empty for a task
            without a filter.
    """

    obs: Observations
    reward: Float32
    terminated: Mask
    truncated: Mask
    final_ids: Ids
    final_obs: Observations
    reward_parts: dict[str, Float32]
    episode: dict[str, NDArray[np.generic]]
    clamped: dict[str, Mask] = field(default_factory=dict[str, Mask])
