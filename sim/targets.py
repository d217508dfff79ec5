"""From actions to the joint targets that the engine gets, if wanted through the robot's own limits.

In a task file::

    filter: on                                            # the limits of the robot's safety filter
    filter: {enabled: true, limits: {target_rate: 8.0}}   # with the margins given there

The limits are those of :mod:`real.limits`, which the safety filter on the robot applies too: to the
same sensed state and with the same time step, so both let through the same target. What that filter
makes of a broken state, a fall or a late command is not repeated here: the episode ends, or the
fault does not exist in a simulator.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from real.action import ActionDecoder, ActionSpec
from real.config import Config
from real.errors import ConfigError, FerryError
from real.joint_limits import JointLimits, LimitSettings
from real.limits import limit_targets
from real.signals import RobotState
from real.spec import RobotSpec

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Ids = NDArray[np.intp]
State = dict[str, NDArray[np.generic]]


class FilterConfig(Config):
    """The ``filter`` section of a task; ``filter: on`` is short for ``{enabled: true}``."""

    enabled: bool = Field(default=False, description="whether targets pass the robot's limits")
    limits: LimitSettings = Field(
        default=LimitSettings(), description="margins, as in the safety settings of the robot"
    )

    @model_validator(mode="before")
    @classmethod
    def _read_word(cls, value: Any) -> Any:
        if isinstance(value, bool) or value in ("on", "off"):
            return {"enabled": value in (True, "on")}
        if isinstance(value, FilterConfig | dict):
            return cast("Any", value)
        raise ConfigError(f"filter is {value!r}; expected on, off, or a mapping with `enabled`")


class Targets:
    """Decodes the actions of N worlds and remembers what it sent.

    Args:
        spec: meaning of an action.
        robot: its limits and gains.
        num: N.
        config: whether and how closely targets are limited.

    Attributes:
        filtered: whether targets are limited.
        sent: ``[N, A]`` targets of the last step [rad or m].
        clamped: ``[N, A]`` which of them the limits moved; all False without a filter.

    Raises:
        FerryError: a limit is absent; see :class:`real.joint_limits.JointLimits`.
    """

    def __init__(
        self, spec: ActionSpec, robot: RobotSpec, num: int, *, config: FilterConfig | None = None
    ) -> None:
        self._decoder = ActionDecoder(spec)
        self._limits: JointLimits | None = None
        if config is not None and config.enabled:
            self._limits = JointLimits.from_joints(robot.actuated, settings=config.limits)
        self._dt = robot.control_dt_s
        every = len(robot.actuated) == len(robot.joints)
        # A slice where all joints have motors, which is faster than a list of columns.
        self._columns: slice | Ids = slice(None) if every else robot.actuated_ids
        self.filtered: bool = self._limits is not None
        self.sent: Array = np.zeros((num, spec.dim))
        self.clamped: Mask = np.zeros((num, spec.dim), dtype=bool)
        self._speed: Array = np.zeros((num, spec.dim))  # of the targets, see limit_targets
        self._fresh: Mask = np.ones(num, dtype=bool)  # nothing sent yet in this episode

    def clip(self, actions: NDArray[np.floating]) -> Array:
        """The actions as executed and observed; a policy that gives NaN stops here.

        Raises:
            FerryError: wrong shape, or an action that is NaN.
        """
        if actions.shape != self.sent.shape:
            raise FerryError(f"actions have shape {actions.shape}; expected {self.sent.shape}")
        action = self._decoder.clip(actions)
        # A sum is finite only if all its parts are: one look at all worlds.
        total = float(np.add.reduce(action, axis=None))
        if not math.isfinite(total) and not np.isfinite(action).all():
            rows = np.flatnonzero(np.isnan(action).any(axis=1)).tolist()
            raise FerryError(
                f"actions of worlds {rows[:8]} are not finite; the policy's output is broken"
            )
        return action

    def decode(self, action: Array, sensed: RobotState) -> Array:
        """Joint targets of one control step; to be called once per step.

        Args:
            action: ``[N, A]`` as clipped. The policy goes on seeing this, not what the limits made
                of it: on the robot, too, the filter stands behind the policy and reports nothing
                back.
            sensed: the signals that the policy answered.

        Returns:
            ``[N, A]`` [rad or m].
        """
        target = self._decoder.decode(action, sensed.q[:, self._columns])
        if self._limits is not None:
            q, dq = sensed.q[:, self._columns], sensed.dq[:, self._columns]
            # The first target of an episode starts from the measured pose, as after arming.
            previous = (
                np.where(self._fresh[:, None], q, self.sent) if self._fresh.any() else self.sent
            )
            limited = limit_targets(
                self._limits,
                target,
                q=q,
                dq=dq,
                previous=previous,
                dt_s=self._dt,
                velocity=self._speed,
            )
            target, self.clamped = limited.target, limited.changed
            self._speed = (target - previous) / self._dt
            self._fresh = np.zeros_like(self._fresh)
        self.sent = target
        return target

    def by_joint(self) -> dict[str, Mask]:
        """Joint -> ``[N]`` whether the limits moved its last target; empty without a filter."""
        if self._limits is None:
            return {}
        return dict(zip(self._limits.names, self.clamped.T, strict=True))

    def reset(self, rows: Ids) -> None:
        """Begin episodes in worlds ``rows``; their next target starts from where the joints are."""
        self._fresh[rows] = True
        self._speed[rows] = 0.0

    def state_dict(self) -> State:
        """What was sent last, copied; nothing without a filter, which needs no memory."""
        if self._limits is None:
            return {}
        return {
            "sent": self.sent.copy(),
            "speed": self._speed.copy(),
            "fresh": self._fresh.copy(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what :meth:`state_dict` gave.

        Raises:
            FerryError: the state is of a task without a filter.
        """
        if self._limits is None:
            return
        if "sent" not in state:
            raise FerryError(
                "the env's state knows no joint targets: it is of a task with `filter: off`"
            )
        self.sent = np.array(state["sent"], dtype=np.float64)
        self._speed = np.array(state["speed"], dtype=np.float64)
        self._fresh = np.array(state["fresh"], dtype=bool)
