"""For the type checker only: the types of `rosgraph_msgs` Ferry uses, as in ROS 2 Jazzy.

A name not listed here is `Any`. The packages themselves ship no types.
"""

from typing import Any

from builtin_interfaces.msg import Time

class Clock:
    clock: Time
    def __init__(self, *, clock: Time = ...) -> None: ...

def __getattr__(name: str) -> Any: ...
