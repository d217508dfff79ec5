"""Potential-based shaping: a reward that helps to learn and leaves the best policy the best.

Beside the task's reward a step from s to s' pays F = gamma Phi(s') - Phi(s) for a potential Phi of
the state alone. Along an episode the discounted sum of F telescopes to gamma^T Phi(s_T) - Phi(s_0).
So with Phi = 0 at every terminal state all policies gain the same from a start s_0, and none is
preferred (A. Ng, D. Harada, S. Russell, "Policy invariance under reward transformations: theory and
application to reward shaping", ICML 1999).

Two details decide whether that holds. A *terminated* step has Phi(s') = 0, whatever the state looks
like. A *truncated* one keeps Phi(s'): its episode goes on in the value that is bootstrapped from
the final observation. And gamma must be the learner's.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from real.config import Config
from real.errors import ConfigError, nearest
from sim.rewards import RewardConfig, check_rewards
from sim.state import State

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Ids = NDArray[np.intp]

#: Reward terms of the state and command alone. Others look at actions, or back at earlier states,
#: and the difference of such a thing is no shaping.
POTENTIALS = (
    "track_lin_vel",
    "track_ang_vel",
    "orientation",
    "base_height",
    "default_pose",
    "upright",
    "actuated_pos",
    "reach_distance",
    "reach_angle",
    "reach_position",
    "reach_orientation",
    "reach_pose",
)

#: Name of the reward part that holds F.
PART = "shaping"


class Shaping:
    """F of N worlds, from the potentials before and after a step.

    Args:
        num: N.
        gamma: discount of a control step, in (0, 1].

    Attributes:
        potential: ``[N]`` Phi of the present states.
    """

    def __init__(self, num: int, *, gamma: float) -> None:
        self.potential: Array = np.zeros(num)
        self._gamma = gamma

    def begin(self, rows: Ids, potential: Array) -> None:
        """New episodes in worlds ``rows`` begin at states of potential ``[n]``."""
        self.potential[rows] = potential

    def step(self, potential: Array, *, terminated: Mask) -> Array:
        """F of a step, ``[N]``; to be called once per step.

        Args:
            potential: ``[N]`` Phi of the states after it.
            terminated: ``[N]`` worlds whose state after it is terminal: Phi there is 0.
        """
        after = np.where(terminated, 0.0, potential)
        # F = gamma Phi(s') - Phi(s)
        out = self._gamma * after - self.potential
        self.potential = after
        return out

    def state_dict(self) -> State:
        """The potentials, copied."""
        return {"potential": self.potential.copy()}

    def load_state_dict(self, state: State) -> None:
        """Restore what :meth:`state_dict` gave."""
        self.potential = np.array(state["potential"], dtype=np.float64)


def check_potentials(potentials: dict[str, RewardConfig]) -> dict[str, RewardConfig]:
    """Refuse what is no function of the state; returns what it was given.

    Raises:
        ConfigError: naming the term and those that are.
    """
    check_rewards(potentials)
    for name in potentials:
        if name not in POTENTIALS:
            raise ConfigError(
                f"{name!r} is no potential{nearest(name, POTENTIALS)}: it looks at more than the "
                f"state; potentials: {', '.join(POTENTIALS)}"
            )
    return potentials


class ShapingConfig(Config):
    """Phi as a weighted sum of terms, and the discount it must share with the learner."""

    gamma: float = Field(gt=0.0, le=1.0, description="the learner's, training.ppo.gamma")
    potentials: Annotated[
        dict[str, RewardConfig], Field(min_length=1), AfterValidator(check_potentials)
    ]


def shaping_parts(config: ShapingConfig | None) -> tuple[str, ...]:
    """Names of the reward parts that shaping adds."""
    return () if config is None else (PART,)
