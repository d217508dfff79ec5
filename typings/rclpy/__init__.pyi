"""For the type checker only: every name is `Any`.

The types rclpy ships name generated message types, which have none, so that almost every call would
be "partially unknown".
"""

from typing import Any

def __getattr__(name: str) -> Any: ...
