"""For the type checker only: the types of `trajectory_msgs` Ferry uses, as in ROS 2 Jazzy.

A name not listed here is `Any`. The packages themselves ship no types.
"""

from array import array
from collections.abc import Sequence
from typing import Any

from builtin_interfaces.msg import Duration
from numpy.typing import NDArray
from std_msgs.msg import Header

class JointTrajectoryPoint:
    @property
    def positions(self) -> array[float]: ...
    @positions.setter
    def positions(self, value: Sequence[float] | NDArray[Any]) -> None: ...
    @property
    def velocities(self) -> array[float]: ...
    @velocities.setter
    def velocities(self, value: Sequence[float] | NDArray[Any]) -> None: ...
    @property
    def accelerations(self) -> array[float]: ...
    @accelerations.setter
    def accelerations(self, value: Sequence[float] | NDArray[Any]) -> None: ...
    @property
    def effort(self) -> array[float]: ...
    @effort.setter
    def effort(self, value: Sequence[float] | NDArray[Any]) -> None: ...
    time_from_start: Duration
    def __init__(
        self,
        *,
        positions: Sequence[float] | NDArray[Any] = ...,
        velocities: Sequence[float] | NDArray[Any] = ...,
        accelerations: Sequence[float] | NDArray[Any] = ...,
        effort: Sequence[float] | NDArray[Any] = ...,
        time_from_start: Duration = ...,
    ) -> None: ...

class JointTrajectory:
    header: Header
    joint_names: list[str]
    points: list[JointTrajectoryPoint]
    def __init__(
        self,
        *,
        header: Header = ...,
        joint_names: list[str] = ...,
        points: list[JointTrajectoryPoint] = ...,
    ) -> None: ...

def __getattr__(name: str) -> Any: ...
