"""For the type checker only: MuJoCo's classes and functions are compiled and ship no types.

Every attribute is `Any`; what the project promises about them is in its own annotations.
"""

from typing import Any

def __getattr__(name: str) -> Any: ...
