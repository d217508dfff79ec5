"""For the type checker only: the types of `nav_msgs` Ferry uses, as in ROS 2 Jazzy.

A name not listed here is `Any`. The packages themselves ship no types.
"""

from typing import Any

from geometry_msgs.msg import PoseWithCovariance, TwistWithCovariance
from std_msgs.msg import Header

class Odometry:
    header: Header
    child_frame_id: str
    pose: PoseWithCovariance
    twist: TwistWithCovariance
    def __init__(
        self,
        *,
        header: Header = ...,
        child_frame_id: str = ...,
        pose: PoseWithCovariance = ...,
        twist: TwistWithCovariance = ...,
    ) -> None: ...

def __getattr__(name: str) -> Any: ...
