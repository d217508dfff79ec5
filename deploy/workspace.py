"""A box that the hand of an arm must not leave, whatever its joints may do.

Targets whose hand would lie outside are drawn back on the straight way (in joint space) from the
target before, to the last point inside. Only torque yields to that: the drive has its own limit.
A hand that starts outside may only move inwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from deploy.checks import Check, Fault
from real.chain import read_chain
from real.config import Config
from real.contract import PolicyContract
from real.kinematics import Kinematics
from real.spec import load_robot

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Columns = slice | NDArray[np.intp]
Point = tuple[float, float, float]

#: Points on the way from the last target to the next that are looked at. A target moves by a
#: degree or two in a period; a box has no parts that thin.
STEPS = 16

#: A hand nearer to the box than this counts as in it [m].
_EDGE = 1e-9


class WorkspaceSettings(Config):
    """The box, in the frame of the base link."""

    low: Point
    """Corner with the smallest coordinates [m]."""

    high: Point
    """Corner with the largest coordinates [m]; a wall beyond the arm's reach is none."""

    margin: Annotated[float, Field(ge=0.0)] = 0.02
    """Distance that targets keep from its walls [m]: what the arm is off its targets."""

    outside: Annotated[float, Field(ge=0.0)] | None = 0.05
    """A measured hand further outside than this stops the robot [m]; None: disabled."""

    robot: str | None = None
    """Robot file with the arm's description and ``end_effector``; None: what the bundle says of
    them, or its robot's file if it commands no poses."""

    @model_validator(mode="after")
    def _not_empty(self) -> WorkspaceSettings:
        for axis, low, high in zip("xyz", self.low, self.high, strict=True):
            if not high - low > 2.0 * self.margin:
                raise ValueError(
                    f"{axis}: nothing is left of {low} to {high} within a margin of {self.margin}"
                )
        return self


@dataclass(frozen=True)
class Workspace:
    """The box with the kinematics of the arm in it.

    Attributes:
        settings: the box.
        kinematics: from base to hand.
        columns: the actuated ones among the joints.
    """

    settings: WorkspaceSettings
    kinematics: Kinematics
    columns: Columns

    @staticmethod
    def load(
        settings: WorkspaceSettings, contract: PolicyContract, *, columns: Columns
    ) -> Workspace:
        """Take the arm from the bundle, or read its description.

        Raises:
            FerryError: see :func:`real.chain.read_chain`; or the arm has a joint that the policy
                does not know.
        """
        if settings.robot is None and contract.reach is not None:
            chain = contract.reach.chain
        else:
            chain = read_chain(load_robot(settings.robot or contract.robot, read_limits=False))
        # By name: a robot file may list the joints in another order than the bundle.
        return Workspace(settings, Kinematics(chain, contract.joint_names), columns)

    def distance(self, q: Array, *, margin: float) -> Array:
        """``[N, J]`` -> ``[N]`` how far the hand is outside of the box less a margin [m]."""
        hand = self.kinematics.pose(q)[0]
        low, high = np.array(self.settings.low) + margin, np.array(self.settings.high) - margin
        beyond = np.maximum(np.maximum(low - hand, hand - high), 0.0)
        return np.sqrt((beyond * beyond).sum(axis=1))

    def limit(self, target: Array, *, previous: Array, q: Array) -> tuple[Array, list[Fault]]:
        """Draw targets back into the box.

        Args:
            target: ``[N, A]`` within all other limits [rad or m].
            previous: ``[N, A]`` sent last.
            q: ``[N, J]`` measured; passive joints are taken to stay where they are.

        Returns:
            The targets, and who was concerned.
        """
        margin = self.settings.margin
        away = self.distance(self._full(target, q), margin=margin)
        bad = ~(away <= _EDGE)  # also where it is NaN
        if not bad.any():
            return target, []
        share = np.arange(STEPS + 1) / STEPS  # [S + 1]
        way = previous + share[:, None, None] * (target - previous)  # [S + 1, N, A]
        flat = way.reshape(-1, target.shape[1])
        measured = np.tile(q, (STEPS + 1, 1))
        outside = self.distance(self._full(flat, measured), margin=margin)
        outside = outside.reshape(STEPS + 1, -1)
        # Inside all the way up to a point; from outside, nearer with every step up to it.
        with np.errstate(invalid="ignore"):
            nearer = outside[1:] < outside[:-1]
        fine = (outside[1:] <= _EDGE) | nearer
        last = np.cumprod(fine, axis=0).sum(axis=0)  # [N] steps that may be taken
        back = way[last, np.arange(target.shape[0])]
        kept = np.where(bad[:, None], back, target)
        rows = bad & (kept != target).any(axis=1)
        if not rows.any():
            return kept, []
        zero = np.array(0.0)
        drawn = Fault(Check.WORKSPACE, rows, False, lambda: (rows, away, zero), warns=True)
        return kept, [drawn]

    def state_fault(self, q: Array) -> Fault | None:
        """Who has a hand far outside of the box; ``q`` is ``[N, J]`` measured."""
        most = self.settings.outside
        if most is None:
            return None
        away = self.distance(q, margin=0.0)
        rows = away > most
        if not rows.any():
            return None
        return Fault(Check.WORKSPACE, rows, True, lambda: (rows, away, np.array(most)))

    def _full(self, target: Array, q: Array) -> Array:
        out = q.copy()
        out[:, self.columns] = target
        return out
