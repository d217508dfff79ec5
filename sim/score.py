"""What a step was worth, and how it ended: measuring, terms and terminations in their order."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from real.signals import RobotState
from sim.engine import WorldState
from sim.measure import Measure
from sim.rewards import RewardTable
from sim.state import State
from sim.terminations import Conditions, Terminations, all_finite, finite_rows

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Ids = NDArray[np.intp]


class Scorer:
    """Scores the steps of N worlds.

    Args:
        measure: what happened.
        rewards: the reward's terms.
        terminations: what ends an episode.

    Attributes:
        measure: the same; so are the others.
        rewards: see there.
        terminations: see there.
    """

    def __init__(
        self, measure: Measure, *, rewards: RewardTable, terminations: Terminations
    ) -> None:
        self.measure = measure
        self.rewards = rewards
        self.terminations = terminations

    def score(
        self,
        world: WorldState,
        sensed: RobotState,
        *,
        action: Array,
        command: Array,
        clamped: Mask,
    ) -> tuple[Array, Conditions]:
        """Reward parts ``[K, N]`` and what happened, with every broken world marked diverged.

        Args:
            world: the state after the step.
            sensed: what the sensors made of it.
            action: ``[N, A]`` as clipped.
            command: ``[N, C]`` that the action answered.
            clamped: ``[N, A]`` whether limits moved a target.
        """
        # Broken numbers are expected here and are found below, so they need no warnings.
        with np.errstate(over="ignore", invalid="ignore"):
            gravity_b = world.down_b
            diverged = world.diverged
            if not all_finite(world, sensed):
                diverged = diverged | ~finite_rows(world, sensed)
            conditions = self.terminations.check(
                gravity_b,
                world.height,
                q=world.robot.q,
                body_contact=world.body_contact,
                diverged=diverged,
            )
            measured = self.measure.step(
                world,
                action,
                command=command,
                gravity_b=gravity_b,
                fallen=conditions.failed,
                clamped=clamped,
            )
            parts = self.rewards.compute(measured, diverged)
            rewards = np.add.reduce(parts, axis=0)
            total = float(np.add.reduce(rewards))  # finite only if all its parts are
        if not math.isfinite(total):
            broken = ~np.isfinite(rewards)
            self.rewards.void(parts, broken)
            conditions = conditions.with_diverged(broken)
        return parts, conditions

    def begin(self, rows: Ids, world: WorldState) -> None:
        """New episodes in worlds ``rows``, of all worlds' states; nothing is remembered here."""

    def state_dict(self) -> State:
        """What is remembered from step to step: nothing here."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Restore what :meth:`state_dict` gave."""
