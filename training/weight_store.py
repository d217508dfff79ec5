"""The weight store: newest version wins. It holds references, the bytes lie beside it."""

from __future__ import annotations

from typing import Any


class WeightStore:
    """Where actors find the newest weights; the engine runs it as a process of its own.

    In a file without torch and simulators, so that one that died is back in a second.
    """

    def __init__(self) -> None:
        self._version = -1
        self._refs: list[Any] = []

    def publish(self, version: int, refs: list[Any]) -> None:
        """Keep a version, unless a newer one is there."""
        if version >= self._version:
            self._version, self._refs = version, refs

    def newer_than(self, version: int) -> list[Any]:
        """Where the newest weights are; empty if they are no newer than ``version``."""
        return self._refs if self._version > version else []
