"""For the type checker only: onnxruntime is mostly compiled; every name is `Any`."""

from typing import Any

def __getattr__(name: str) -> Any: ...
