"""Settings of PPO. What each is good for stands beside its value in `configs/`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from real.config import Config
from training.schedules import Schedules


class PpoConfig(Config):
    """Settings of the learner."""

    gamma: float = Field(default=0.99, ge=0.0, le=1.0, description="discount per control step")
    lam: float = Field(default=0.95, ge=0.0, le=1.0, description="lambda of GAE and V-trace")
    returns: Literal["gae", "vtrace", "decoupled"] = Field(
        default="gae",
        description="what corrects for data of older policies: gae = PPO's ratio to the policy "
        "that acted and nothing else; vtrace = also its targets and advantages; decoupled = the "
        "ratio is bounded about the policy before the update, see training.losses",
    )
    rho_bar: float = Field(default=1.0, gt=0.0, description="V-trace: bound on the ratio")
    c_bar: float = Field(default=1.0, gt=0.0, description="V-trace: bound on the trace")
    proximal_bar: float | None = Field(
        default=2.0, gt=0.0, description="decoupled: bound on the weight of a sample; null for none"
    )
    clip: float = Field(default=0.2, gt=0.0, lt=1.0, description="bound on ratio - 1")
    value_clip: float | None = Field(
        default=0.2,
        gt=0.0,
        description="bound on a value's change per update, in units of the critic's output; "
        "null for none",
    )
    value_coef: float = Field(
        default=1.0, gt=0.0, description="weight of the value loss, before its gradient is bounded"
    )
    entropy_coef: float = Field(default=0.005, ge=0.0, description="weight of the entropy")
    advantage_norm: Literal["batch", "minibatch", "none"] = Field(
        default="batch", description="over what advantages get mean 0 and deviation 1"
    )
    epochs: int = Field(default=5, ge=1, description="passes over a batch")
    minibatches: int = Field(default=4, ge=1, description="steps per pass")
    learning_rate: float = Field(
        default=1e-3, gt=0.0, description="initial step size of the actor's Adam"
    )
    critic_learning_rate: float = Field(
        default=1e-3, gt=0.0, description="step size of the critic's Adam"
    )
    min_learning_rate: float = Field(default=1e-5, gt=0.0, description="lower bound")
    max_learning_rate: float = Field(default=1e-2, gt=0.0, description="upper bound")
    desired_kl: float | None = Field(
        default=0.01,
        gt=0.0,
        description="KL the actor's step size aims at [nat]; null keeps it fixed or on a schedule",
    )
    stop_kl: float | None = Field(
        default=None,
        gt=0.0,
        description="the actor skips the rest of an update once the KL exceeds this [nat]",
    )
    schedules: Schedules = Schedules()
    max_grad_norm: float = Field(
        default=1.0, gt=0.0, description="bound on the gradient's norm, of each network"
    )
    bf16: bool = Field(
        default=False, description="losses' matrix products in bfloat16; slower on most CPUs"
    )
    compile: bool = Field(
        default=False, description="compile the networks; needs a C++ compiler and a minute"
    )

    autograd: bool = Field(
        default=False,
        description="gradients by autograd also where they are known in closed form; slower",
    )

    @model_validator(mode="after")
    def _one_master_per_rate(self) -> Self:
        if self.desired_kl is not None and self.schedules.learning_rate is not None:
            raise ValueError(
                "two controllers on one rate: desired_kl adapts learning_rate and so does "
                "schedules.learning_rate; set desired_kl: null, or remove the schedule"
            )
        if not self.min_learning_rate <= self.max_learning_rate:
            raise ValueError(
                f"min_learning_rate {self.min_learning_rate} is above max_learning_rate "
                f"{self.max_learning_rate}"
            )
        return self
