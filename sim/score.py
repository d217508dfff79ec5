"""What a step was worth, and how it ended: measuring, terms and terminations in their order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from real.frames import projected_gravity
from real.signals import RobotState
from sim.engine import WorldState
from sim.measure import Measure
from sim.rewards import RewardTable
from sim.terminations import Conditions, Terminations, finite_rows

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Scorer:
    """Scores the steps of N worlds.

    Args:
        measure: what happened.
        rewards: the reward's terms.
        terminations: what ends an episode.
    """

    def __init__(
        self, measure: Measure, *, rewards: RewardTable, terminations: Terminations
    ) -> None:
        self._measure = measure
        self._rewards = rewards
        self._terminations = terminations

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
            gravity_b = projected_gravity(world.robot.quat_wb)
            diverged = world.diverged | ~finite_rows(world, sensed)
            conditions = self._terminations.check(
                gravity_b,
                world.position_w[:, 2],
                q=world.robot.q,
                body_contact=world.body_contact,
                diverged=diverged,
            )
            measured = self._measure.step(
                world,
                action,
                command=command,
                gravity_b=gravity_b,
                fallen=conditions.failed,
                clamped=clamped,
            )
            parts = self._rewards.compute(measured, diverged)
            broken = ~np.isfinite(parts.sum(axis=0))
        if broken.any():
            self._rewards.void(parts, broken)
            conditions = conditions.with_diverged(broken)
        return parts, conditions
