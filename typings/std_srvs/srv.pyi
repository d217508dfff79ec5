"""For the type checker only: the types of `std_srvs` Ferry uses, as in ROS 2 Jazzy.

A name not listed here is `Any`. The packages themselves ship no types.
"""

from typing import Any

class Trigger:
    class Request:
        def __init__(self) -> None: ...

    class Response:
        success: bool
        message: str
        def __init__(self, *, success: bool = ..., message: str = ...) -> None: ...

class SetBool:
    class Request:
        data: bool
        def __init__(self, *, data: bool = ...) -> None: ...

    class Response:
        success: bool
        message: str
        def __init__(self, *, success: bool = ..., message: str = ...) -> None: ...

class Empty:
    class Request:
        def __init__(self) -> None: ...

    class Response:
        def __init__(self) -> None: ...

def __getattr__(name: str) -> Any: ...
