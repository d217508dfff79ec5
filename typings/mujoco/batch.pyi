"""For the type checker only; see `mujoco/__init__.pyi`."""

from typing import Any

def __getattr__(name: str) -> Any: ...
