"""How a setting changes with the updates: constant, linear or cosine, or led by the KL."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from real.config import Config


class Schedule(Config):
    """From the setting's own value to ``end`` over so many updates; then it stays there."""

    kind: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="shape of the way"
    )
    end: float = Field(default=0.0, ge=0.0, description="value at the end")
    updates: int = Field(default=1000, ge=1, description="updates until the end is reached")

    def value(self, start: float, *, update: int) -> float:
        """The setting at an update.

        Args:
            start: its value at update 0.
            update: learner updates done; past the end it stays at ``end``.
        """
        if self.kind == "constant":
            return start
        done = min(1.0, update / self.updates)
        if self.kind == "cosine":
            # Loshchilov and Hutter, "SGDR", 2017, equation 5, one period
            done = 0.5 * (1.0 - math.cos(math.pi * done))
        return start + (self.end - start) * done


class Schedules(Config):
    """Which settings of PPO follow a schedule; null keeps one fixed, or leaves it to the KL."""

    learning_rate: Schedule | None = Field(
        default=None,
        description="of the actor; needs desired_kl: null, since one rate has one master",
    )
    critic_learning_rate: Schedule | None = Field(default=None, description="of the critic")
    entropy_coef: Schedule | None = Field(default=None, description="weight of the entropy")
    clip: Schedule | None = Field(
        default=None, description="bound on ratio - 1; its end is above 0 and below 1, as it is"
    )

    @model_validator(mode="after")
    def _clip_ends_where_it_may_be(self) -> Self:
        clip = self.clip
        if clip is not None and clip.kind != "constant" and not 0.0 < clip.end < 1.0:
            raise ValueError(
                f"schedules.clip.end is {clip.end:g}, expected above 0 and below 1 as for clip "
                "itself: with 0 nothing is learned, and from 1 on nothing is bounded below"
            )
        return self


def scheduled(schedule: Schedule | None, start: float, *, update: int) -> float:
    """The setting at an update: ``start`` where there is no schedule."""
    return start if schedule is None else schedule.value(start, update=update)


#: After an update the step size changes by this factor, if the KL is outside this band about the
#: desired one. Small and slow: the KL of one update is a noisy measure of what the step size does.
_RATE_FACTOR, _KL_BAND = 1.2, 1.3
#: Within an update the step size is cut by this factor in every minibatch whose KL is so many times
#: the desired one: one update must not wreck a policy, for instance the first with a bold start.
_BRAKE_FACTOR, _KL_BRAKE = 1.5, 4.0


def kl_adapted(rate: float, *, kl: float, desired: float, low: float, high: float) -> float:
    """The step size after an update that moved the policy by ``kl``.

    A KL of exactly zero or below says that nothing was learned, and one that is not finite that
    something broke; neither is a reason to step further.

    Args:
        rate: present step size.
        kl: KL(policy before the update || policy at its end) [nat].
        desired: KL to aim at [nat].
        low: lower bound of the step size.
        high: upper bound.
    """
    if not math.isfinite(kl) or kl > _KL_BAND * desired:
        return max(low, rate / _RATE_FACTOR)
    if 0.0 < kl < desired / _KL_BAND:
        return min(high, rate * _RATE_FACTOR)
    return rate


def kl_braked(rate: float, *, kl: float, desired: float, low: float) -> float:
    """The step size within an update, after minibatches that moved the policy by ``kl``."""
    if kl <= _KL_BRAKE * desired:
        return rate
    return max(low, rate / _BRAKE_FACTOR)  # NaN ends here too
