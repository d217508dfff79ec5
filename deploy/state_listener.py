"""A node that lives from the robot's states, and notices when they cannot come."""

from __future__ import annotations

from typing import Any

from deploy.lifecycle import ManagedNode
from deploy.links import Links
from deploy.punctual import PRIORITY, take_priority
from deploy.state_stream import StateStream


class StateNode(ManagedNode):
    """A node that lives from the robot's states: what the robot is, then joints and IMU in pairs.

    Args:
        name: see :class:`ManagedNode`.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        take_priority(self.number("realtime_priority", 0.0, PRIORITY, low=0, high=98))
        #: Pairs what comes; None until a robot has introduced itself that fits.
        self._stream: StateStream | None = None

    def listen_to_robot(self, links: Links) -> None:
        """Subscribe; to be called when everything that the callbacks need is there."""
        self._stream = None
        self.listen("/robot/contract", self._on_contract, links=links)
        self.listen_raw("/imu/data", self._on_imu, links=links)
        self.listen_raw("/joint_states", self._on_joints, links=links)

    @property
    def introduced(self) -> bool:
        """Whether a robot has said what it is, and fits."""
        return self._stream is not None

    @property
    def newest_ns(self) -> int | None:
        """Stamp of the newest complete state [ns]; None before the first."""
        return None if self._stream is None else self._stream.stamp_ns

    def _on_contract(self, message: Any) -> None:
        """A robot introduces itself: make a stream for its states, or refuse it."""
        raise NotImplementedError

    def _on_state(self, stream: StateStream) -> None:
        """A state is complete."""
        raise NotImplementedError

    def _on_imu(self, data: bytes) -> None:
        if self._stream is not None and self._stream.on_imu(data):
            self._on_state(self._stream)

    def _on_joints(self, data: bytes) -> None:
        if self._stream is not None and self._stream.on_joints(data):
            self._on_state(self._stream)
