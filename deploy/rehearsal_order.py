"""The robot's joint order and the policy's, which messages map by name and arrays do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from real.contract import PolicyContract, RobotContract
from real.signals import RobotState

Array = NDArray[np.float64]


class ContractOrder:
    """States of a robot for its policy, and targets of the policy for its robot.

    Args:
        policy: whose joints are wanted in its order.
        robot: with the same joints and motors (:func:`deploy.agreement.agree`), maybe in another.
    """

    def __init__(self, policy: PolicyContract, robot: RobotContract) -> None:
        motors = [joint.name for joint in policy.actuated]
        self._joints = [robot.joints.index(name) for name in policy.joint_names]
        self._motors = [motors.index(name) for name in robot.actuated]

    def state(self, state: RobotState) -> RobotState:
        """The robot's state, ``[N, J]`` in the policy's order."""
        heat = state.temperature
        return replace(
            state,
            q=state.q[:, self._joints],
            dq=state.dq[:, self._joints],
            tau=state.tau[:, self._joints],
            temperature=None if heat is None else heat[:, self._joints],
        )

    def targets(self, q_des: Array) -> Array:
        """Targets ``[A]`` of the policy's motors in the robot's order [rad or m]."""
        return q_des[self._motors]
