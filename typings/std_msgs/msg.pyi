"""For the type checker only: the types of `std_msgs` Ferry uses, as in ROS 2 Jazzy.

A name not listed here is `Any`. The packages themselves ship no types.
"""

from array import array
from collections.abc import Sequence
from typing import Any

from builtin_interfaces.msg import Time
from numpy.typing import NDArray

class Header:
    stamp: Time
    frame_id: str
    def __init__(self, *, stamp: Time = ..., frame_id: str = ...) -> None: ...

class String:
    data: str
    def __init__(self, *, data: str = ...) -> None: ...

class Bool:
    data: bool
    def __init__(self, *, data: bool = ...) -> None: ...

class Float64:
    data: float
    def __init__(self, *, data: float = ...) -> None: ...

class MultiArrayDimension:
    label: str
    size: int
    stride: int
    def __init__(self, *, label: str = ..., size: int = ..., stride: int = ...) -> None: ...

class MultiArrayLayout:
    dim: list[MultiArrayDimension]
    data_offset: int
    def __init__(self, *, dim: list[MultiArrayDimension] = ..., data_offset: int = ...) -> None: ...

class Float64MultiArray:
    layout: MultiArrayLayout
    @property
    def data(self) -> array[float]: ...
    @data.setter
    def data(self, value: Sequence[float] | NDArray[Any]) -> None: ...
    def __init__(
        self, *, layout: MultiArrayLayout = ..., data: Sequence[float] | NDArray[Any] = ...
    ) -> None: ...

def __getattr__(name: str) -> Any: ...
