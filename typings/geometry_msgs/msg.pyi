"""For the type checker only: the types of `geometry_msgs` Ferry uses, as in ROS 2 Jazzy.

A name not listed here is `Any`. The packages themselves ship no types.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from std_msgs.msg import Header

class Vector3:
    x: float
    y: float
    z: float
    def __init__(self, *, x: float = ..., y: float = ..., z: float = ...) -> None: ...

class Quaternion:
    x: float
    y: float
    z: float
    w: float
    def __init__(
        self, *, x: float = ..., y: float = ..., z: float = ..., w: float = ...
    ) -> None: ...

class Point:
    x: float
    y: float
    z: float
    def __init__(self, *, x: float = ..., y: float = ..., z: float = ...) -> None: ...

class Pose:
    position: Point
    orientation: Quaternion
    def __init__(self, *, position: Point = ..., orientation: Quaternion = ...) -> None: ...

class PoseWithCovariance:
    pose: Pose
    @property
    def covariance(self) -> NDArray[np.float64]: ...
    @covariance.setter
    def covariance(self, value: Sequence[float] | NDArray[Any]) -> None: ...
    def __init__(
        self, *, pose: Pose = ..., covariance: Sequence[float] | NDArray[Any] = ...
    ) -> None: ...

class Twist:
    linear: Vector3
    angular: Vector3
    def __init__(self, *, linear: Vector3 = ..., angular: Vector3 = ...) -> None: ...

class TwistStamped:
    header: Header
    twist: Twist
    def __init__(self, *, header: Header = ..., twist: Twist = ...) -> None: ...

class TwistWithCovariance:
    twist: Twist
    @property
    def covariance(self) -> NDArray[np.float64]: ...
    @covariance.setter
    def covariance(self, value: Sequence[float] | NDArray[Any]) -> None: ...
    def __init__(
        self, *, twist: Twist = ..., covariance: Sequence[float] | NDArray[Any] = ...
    ) -> None: ...

def __getattr__(name: str) -> Any: ...
