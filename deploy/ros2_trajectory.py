"""Robots behind ``joint_trajectory_controller``; see :mod:`deploy.ros2_control` for the rest.

Every command is a trajectory of one point that is due ``horizon_s`` after it arrives and replaces
the one before: the controller goes there in a straight line (in joints) from where it is. It adds
up to that much delay to what the policy was trained with; ``forward_command_controller`` does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from deploy.convert import shared
from deploy.ros2_control import Ros2ControlRobot
from real.errors import FerryError
from real.spec import RobotSpec

Array = NDArray[np.float64]


class JointTrajectoryRobot(Ros2ControlRobot):
    """Publishes for ``joint_trajectory_controller``, by name and in the controller's order.

    The header's stamp stays zero, which means "now" to the controller: clocks of two computers need
    not agree.

    Args:
        robot: names, order, safe stop.
        controller: name of the controller node.
        horizon_s: time until a target is due [s]; the period of the calls if None.
        options: of :class:`~deploy.ros2_control.Ros2ControlRobot`.
    """

    def __init__(
        self,
        robot: RobotSpec,
        *,
        controller: str = "joint_trajectory_controller",
        horizon_s: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            robot,
            controller=controller,
            command_topic="joint_trajectory",
            command_type=JointTrajectory,
            **options,
        )
        self._horizon_s = self.period_s if horizon_s is None else horizon_s
        if not self._horizon_s > 0.0:
            raise FerryError(f"option horizon_s is {self._horizon_s}; expected > 0 s")

    def _prepare(self) -> None:
        names = self._joints_of_controller()
        place = {joint.name: i for i, joint in enumerate(self._robot.actuated)}
        self._slots = np.array([place[n] for n in names], dtype=np.intp)
        point: Any = JointTrajectoryPoint()
        self._positions = shared(point, "positions", len(names))
        due: Any = point.time_from_start
        due.sec, due.nanosec = divmod(round(self._horizon_s * 1e9), 1_000_000_000)
        self._filled: Any = JointTrajectory()
        self._filled.joint_names = names
        self._filled.points = [point]

    def _message(self, target: Array) -> Any:
        self._positions[:] = target[self._slots]
        return self._filled
