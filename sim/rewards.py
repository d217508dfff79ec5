"""The reward: the terms of a task, weighted and added up.

The reward of a step is ``control_dt_s * sum(weight * term)``, so weights are rates per second and
do not change their meaning with the control rate.
"""

from __future__ import annotations

import inspect

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from real.config import Config
from real.errors import ConfigError, nearest
from sim.arm_terms import ARM_TERMS
from sim.reward_terms import FOUR_FEET, RewardInput
from sim.reward_terms import TERMS as COMMON_TERMS

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Every reward term: the vocabulary of ``rewards:``.
TERMS = {**COMMON_TERMS, **ARM_TERMS}


class RewardConfig(Config):
    """Weight and parameters of one term."""

    weight: float = Field(description="reward per second and unit of the term")
    params: dict[str, float] = Field(default={}, description="keyword arguments of the term")


def parameters(name: str) -> dict[str, float]:
    """Parameters of a term and their defaults."""
    signature = inspect.signature(TERMS[name]).parameters.values()
    return {p.name: p.default for p in signature if p.kind is inspect.Parameter.KEYWORD_ONLY}


def check_rewards(rewards: dict[str, RewardConfig]) -> dict[str, RewardConfig]:
    """Refuse terms and parameters that do not exist; returns what it was given.

    Raises:
        ConfigError: naming what was found, the nearest name and all that are known.
    """
    for name, config in rewards.items():
        if name not in TERMS:
            raise ConfigError(
                f"reward term {name!r} is not known{nearest(name, TERMS)}; "
                f"known: {', '.join(TERMS)}",
                key=(name,),
            )
        known = parameters(name)
        for key in config.params:
            if key not in known:
                raise ConfigError(
                    f"reward term {name!r} has no parameter {key!r}{nearest(key, known)}; "
                    f"it has: {', '.join(known) or 'none'}",
                    key=(name, "params", key),
                )
        sigma = config.params.get("sigma", 1.0)
        if sigma <= 0.0:
            # The width of a kernel: zero divides by it, and a negative one rewards the error.
            said = f"reward term {name!r}: sigma is {sigma:g}, expected a number > 0"
            raise ConfigError(said, key=(name, "params", "sigma"))
    return rewards


class RewardTable:
    """The terms of a task with their weights.

    Terms of weight zero are not computed.

    Args:
        rewards: weight and parameters by name.
        control_dt_s: control period [s].
        feet: F, number of feet of the robot.
        extra: parts that :meth:`compute` leaves at zero for somebody else to fill in, at the end.

    Raises:
        ConfigError: a term is unknown, or means nothing for a robot of so many feet.
    """

    def __init__(
        self,
        rewards: dict[str, RewardConfig],
        *,
        control_dt_s: float,
        feet: int = 4,
        extra: tuple[str, ...] = (),
    ) -> None:
        check_rewards(rewards)
        used = {name: config for name, config in rewards.items() if config.weight != 0.0}
        for name in used:
            if name in FOUR_FEET and feet != 4:
                raise ConfigError(
                    f"reward term {name!r} needs a robot on four feet; this one has {feet}: give "
                    "the term weight 0 or remove it"
                )
        self.names: tuple[str, ...] = (*used, *extra)
        self._terms = [(TERMS[name], dict(config.params)) for name, config in used.items()]
        # reward = dt * sum(weight * term)
        self._factors: Array = control_dt_s * np.array([c.weight for c in used.values()])

    def compute(self, x: RewardInput, diverged: Mask) -> Array:
        """Weighted parts of the reward; their sum over the first axis is the reward.

        Args:
            x: what was measured.
            diverged: ``[N]`` worlds whose numbers mean nothing. They get the part of
                ``termination`` and zero for everything else.

        Returns:
            ``[K, N]``, K parts in the order of :attr:`names`. A part that is not finite stays so:
            the env ends that world.
        """
        parts = np.zeros((len(self.names), x.height.shape[0]))
        rows = parts[: len(self._terms)]
        for row, (term, params) in enumerate(self._terms):
            rows[row] = term(x, **params)
        rows *= self._factors[:, None]
        if np.count_nonzero(diverged):
            self.void(parts, diverged)
        return parts

    def void(self, parts: Array, diverged: Mask) -> None:
        """Replace the parts ``[K, N]`` of diverged worlds in place; see :meth:`compute`."""
        parts[:, diverged] = 0.0
        if "termination" in self.names:
            index = self.names.index("termination")
            parts[index, diverged] = self._factors[index]
