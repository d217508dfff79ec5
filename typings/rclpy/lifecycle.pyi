"""For the type checker only: every name is `Any`."""

from typing import Any

def __getattr__(name: str) -> Any: ...
