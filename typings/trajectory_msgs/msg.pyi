"""For the type checker only: the types of `trajectory_msgs` Ferry uses, as in ROS 2 Jazzy.

A name not listed here is `Any`. The packages themselves ship no types.
"""

from typing import Any

from builtin_interfaces.msg import Duration
from std_msgs.msg import Header

class JointTrajectoryPoint:
    positions: Any
    velocities: Any
    accelerations: Any
    effort: Any
    time_from_start: Duration
    def __init__(self) -> None: ...

class JointTrajectory:
    header: Header
    joint_names: list[str]
    points: list[JointTrajectoryPoint]
    def __init__(self) -> None: ...

def __getattr__(name: str) -> Any: ...
