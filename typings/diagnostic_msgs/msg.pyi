"""For the type checker only: the types of `diagnostic_msgs` Ferry uses, as in ROS 2 Jazzy.

A name not listed here is `Any`. The packages themselves ship no types.
"""

from typing import Any, ClassVar

from std_msgs.msg import Header

class KeyValue:
    key: str
    value: str
    def __init__(self, *, key: str = ..., value: str = ...) -> None: ...

class DiagnosticStatus:
    ERROR: ClassVar[bytes]
    OK: ClassVar[bytes]
    STALE: ClassVar[bytes]
    WARN: ClassVar[bytes]
    level: bytes
    name: str
    message: str
    hardware_id: str
    values: list[KeyValue]
    def __init__(
        self,
        *,
        level: bytes = ...,
        name: str = ...,
        message: str = ...,
        hardware_id: str = ...,
        values: list[KeyValue] = ...,
    ) -> None: ...

class DiagnosticArray:
    header: Header
    status: list[DiagnosticStatus]
    def __init__(self, *, header: Header = ..., status: list[DiagnosticStatus] = ...) -> None: ...

def __getattr__(name: str) -> Any: ...
