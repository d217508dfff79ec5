"""For the type checker only: the types of `sensor_msgs` Ferry uses, as in ROS 2 Jazzy.

A name not listed here is `Any`. The packages themselves ship no types.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from geometry_msgs.msg import Quaternion, Vector3
from numpy.typing import NDArray
from std_msgs.msg import Header

class JointState:
    header: Header
    name: list[str]
    @property
    def position(self) -> array[float]: ...
    @position.setter
    def position(self, value: Sequence[float] | NDArray[Any]) -> None: ...
    @property
    def velocity(self) -> array[float]: ...
    @velocity.setter
    def velocity(self, value: Sequence[float] | NDArray[Any]) -> None: ...
    @property
    def effort(self) -> array[float]: ...
    @effort.setter
    def effort(self, value: Sequence[float] | NDArray[Any]) -> None: ...
    def __init__(
        self,
        *,
        header: Header = ...,
        name: list[str] = ...,
        position: Sequence[float] | NDArray[Any] = ...,
        velocity: Sequence[float] | NDArray[Any] = ...,
        effort: Sequence[float] | NDArray[Any] = ...,
    ) -> None: ...

class Imu:
    header: Header
    orientation: Quaternion
    @property
    def orientation_covariance(self) -> NDArray[np.float64]: ...
    @orientation_covariance.setter
    def orientation_covariance(self, value: Sequence[float] | NDArray[Any]) -> None: ...
    angular_velocity: Vector3
    @property
    def angular_velocity_covariance(self) -> NDArray[np.float64]: ...
    @angular_velocity_covariance.setter
    def angular_velocity_covariance(self, value: Sequence[float] | NDArray[Any]) -> None: ...
    linear_acceleration: Vector3
    @property
    def linear_acceleration_covariance(self) -> NDArray[np.float64]: ...
    @linear_acceleration_covariance.setter
    def linear_acceleration_covariance(self, value: Sequence[float] | NDArray[Any]) -> None: ...
    def __init__(
        self,
        *,
        header: Header = ...,
        orientation: Quaternion = ...,
        orientation_covariance: Sequence[float] | NDArray[Any] = ...,
        angular_velocity: Vector3 = ...,
        angular_velocity_covariance: Sequence[float] | NDArray[Any] = ...,
        linear_acceleration: Vector3 = ...,
        linear_acceleration_covariance: Sequence[float] | NDArray[Any] = ...,
    ) -> None: ...

def __getattr__(name: str) -> Any: ...
