"""From the network's output to joint targets: one decoding, in simulation and on the robot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from real.spec import RobotSpec

Array = NDArray[np.float64]
ActionKind = Literal["joint_position", "joint_position_delta"]


@dataclass(frozen=True)
class ActionSpec:
    """q_des = offset + scale * clip(action, -clip, clip), and + q for a ``joint_position_delta``.

    Attributes:
        kind: ``joint_position`` counts from the default pose, ``joint_position_delta`` from the
            joint positions that the policy has just observed. Either way targets are absolute.
        joints: names of the A actuated joints, in the order of the action vector.
        scale: ``[A]`` [rad or m per unit of action].
        offset: ``[A]`` default pose, zero for a delta [rad or m].
        clip: bound on the action before scaling; also bounds the previous action that the
            policy sees, so that an outlier cannot feed back on itself.
    """

    kind: ActionKind
    joints: tuple[str, ...]
    scale: tuple[float, ...]
    offset: tuple[float, ...]
    clip: float

    def __post_init__(self) -> None:
        sizes = {len(self.joints), len(self.scale), len(self.offset)}
        if len(sizes) != 1:
            raise FerryError(
                f"action: {len(self.joints)} joints, {len(self.scale)} scales and "
                f"{len(self.offset)} offsets; expected one of each per actuated joint"
            )
        if not self.clip > 0.0:
            raise FerryError(f"action.clip is {self.clip}; expected a number > 0")

    @staticmethod
    def from_robot(
        robot: RobotSpec, *, clip: float, kind: ActionKind = "joint_position"
    ) -> ActionSpec:
        """Position offsets about the default or the present pose, in the robot's joint order."""
        joints = robot.actuated
        delta = kind == "joint_position_delta"
        return ActionSpec(
            kind=kind,
            joints=tuple(j.name for j in joints),
            scale=tuple(j.action_scale for j in joints),
            offset=tuple(0.0 if delta else j.q_default for j in joints),
            clip=clip,
        )

    @property
    def dim(self) -> int:
        """Length of the action vector, A."""
        return len(self.joints)


class ActionDecoder:
    """Decodes actions of N robots; the arrays of the spec are made once."""

    def __init__(self, spec: ActionSpec) -> None:
        self.spec = spec
        self.scale: Array = np.asarray(spec.scale, dtype=np.float64)
        self.offset: Array = np.asarray(spec.offset, dtype=np.float64)
        # [1, A] and not [A]: arrays of one shape, as of one robot, spare numpy the broadcasting.
        self._scale, self._offset = self.scale[None], self.offset[None]
        self._high: Array = np.full((1, spec.dim), spec.clip)
        self._low: Array = -self._high

    def clip(self, action: NDArray[np.floating]) -> Array:
        """The action as executed and as fed back to the policy; ``[N, A] -> [N, A]``.

        NaN stays NaN: only the safety filter may decide what happens to it.
        """
        return np.minimum(np.maximum(action, self._low), self._high)

    def decode(self, clipped: Array, q: Array | None = None) -> Array:
        """Joint targets [rad or m] of a clipped action; ``[N, A] -> [N, A]``.

        Args:
            clipped: the action.
            q: ``[N, A]`` positions of the actuated joints as observed; only a delta needs them.
        """
        return self._origin(q) + self._scale * clipped

    def encode(self, q_des: Array, q: Array | None = None) -> Array:
        """The action whose target is ``q_des``: the inverse of :meth:`decode`."""
        return (q_des - self._origin(q)) / self._scale

    def _origin(self, q: Array | None) -> Array:
        if self.spec.kind == "joint_position":
            return self._offset
        if q is None:
            raise ValueError("a joint_position_delta counts from the observed joint positions")
        return self._offset + q
