"""What a learned actuator is like, for people: what it belongs to, and what it brakes with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from real.spec import RobotSpec
from sim.actuator_file import ActuatorNetwork

#: Of the columns of :meth:`ActuatorReport.rows`: gain of the robot file; loss of torque per speed
#: that lasts, and per speed of the newest sample; what was fitted; share of variance explained.
HEADER = ("joint", "kd", "damping", "newest", "errors", "speeds", "explained")


@dataclass(frozen=True)
class ActuatorReport:
    """A network beside the robot it belongs to.

    Attributes:
        network: the network.
        robot: the robot.
        explained: ``[A]`` share of the torque's variance that a fit explained, where known.
    """

    network: ActuatorNetwork
    robot: RobotSpec
    explained: NDArray[np.float64] | None = None

    def summary(self) -> dict[str, str]:
        """Names and values."""
        card = self.network.card
        return {
            "file": str(self.network.path),
            "robot": card.robot,
            "fitted to": card.source,
            "history": f"{card.history} samples of {card.dt_s:g} s",
        }

    def header(self) -> list[str]:
        """Of :meth:`rows`."""
        return list(HEADER[: len(HEADER) - (self.explained is None)])

    def rows(self) -> list[list[str]]:
        """One for each joint, in the order of the robot."""
        card, damping = self.network.card, self.network.damping
        out = list[list[str]]()
        for a, joint in enumerate(self.robot.actuated):
            at = card.joints.index(joint.name)
            ranges = (card.error_range[at], card.velocity_range[at])
            row = [
                joint.name,
                f"{joint.kd:.3g}",
                f"{damping.steady[a]:.3g}",
                f"{damping.newest[a]:.3g}",
                *(f"{low:.1f}..{high:.1f}" for low, high in ranges),
            ]
            out.append(row + ([] if self.explained is None else [f"{self.explained[a]:.3f}"]))
        return out
