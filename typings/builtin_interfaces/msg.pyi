"""For the type checker only: the types of `builtin_interfaces` Ferry uses, as in ROS 2 Jazzy.

A name not listed here is `Any`. The packages themselves ship no types.
"""

from typing import Any

class Time:
    sec: int
    nanosec: int
    def __init__(self, *, sec: int = ..., nanosec: int = ...) -> None: ...

class Duration:
    sec: int
    nanosec: int
    def __init__(self, *, sec: int = ..., nanosec: int = ...) -> None: ...

def __getattr__(name: str) -> Any: ...
