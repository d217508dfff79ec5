"""Temperature, voltage and height of the base: checked where a robot reports them.

Each limit is one of three things:

* **absent**: the robot does not report the signal (None, or NaN for one motor). It is not checked,
  and nothing stands in for it.
* **zero**: a number like any other: a highest temperature of 0 °C stops every robot that is not
  freezing.
* **disabled**: the limit is None. The signal is not looked at, whatever it says.

Between the soft and the hard limit lies a zone in which the robot still runs and says that it is
there; hot motors get less torque the hotter they are, so that they may cool before they stop it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from deploy.checks import Check, Fault
from real.config import Config
from real.joint_limits import JointLimits
from real.signals import RobotState

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Columns = slice | NDArray[np.intp]


class VitalSettings(Config):
    """How hot, how empty and how low a robot may get."""

    temperature_max: float | None = 80.0
    """A motor this hot stops the robot [°C]; None: disabled.

    Careful rather than right: the drive's data sheet knows better, and its firmware must have a
    limit of its own.
    """

    temperature_soft: float | None = 65.0
    """From here on a motor gets less torque, and none at ``temperature_max`` [°C]; None: all of
    it until the end."""

    voltage_min: Annotated[float, Field(ge=0.0)] | None = None
    """A battery this low stops the robot [V]; None: disabled.

    No number fits every robot: 18 V are an empty battery of six cells and a full one of four.
    """

    voltage_soft: Annotated[float, Field(ge=0.0)] | None = None
    """Of a battery below this it is said [V]; None: disabled."""

    height_min: Annotated[float, Field(ge=0.0)] | None = None
    """A base lower than this above the ground has fallen [m]; None: disabled, tilt alone counts."""

    height_soft: Annotated[float, Field(ge=0.0)] | None = None
    """Of a base below this it is said [m]; None: disabled."""


def vital_faults(state: RobotState, settings: VitalSettings, columns: Columns) -> list[Fault]:
    """What is wrong with what N robots report of themselves beyond motion.

    Args:
        state: the states.
        settings: the limits.
        columns: the actuated ones among the joints.
    """
    found: list[Fault] = []
    if state.temperature is not None:
        hot, soft = settings.temperature_max, settings.temperature_soft
        _beyond(
            found, Check.TEMPERATURE, state.temperature[:, columns], np.greater_equal, hot, soft
        )
    if state.voltage is not None:
        low, soft = settings.voltage_min, settings.voltage_soft
        _beyond(found, Check.VOLTAGE, state.voltage, np.less_equal, low, soft)
    if state.height is not None:
        low, soft = settings.height_min, settings.height_soft
        _beyond(found, Check.HEIGHT, state.height, np.less, low, soft)
    return found


def derated(
    limits: JointLimits, state: RobotState, settings: VitalSettings, columns: Columns
) -> JointLimits:
    """The limits with less torque for motors in the soft zone of temperature.

    Their share of the torque falls on a line from all at ``temperature_soft`` to nothing at
    ``temperature_max``.

    Returns:
        ``limits`` itself where no motor is hot; else with ``[N, A]`` in place of ``[A]``.
    """
    hard, soft = settings.temperature_max, settings.temperature_soft
    if state.temperature is None or hard is None or soft is None or not soft < hard:
        return limits
    temperature = state.temperature[:, columns]
    if not (temperature > soft).any():
        return limits
    share = np.clip((hard - temperature) / (hard - soft), 0.0, 1.0)
    share = np.where(np.isnan(share), 1.0, share)
    return dataclasses.replace(limits, tau_max=limits.tau_max * share, reach=limits.reach * share)


def _beyond(
    found: list[Fault],
    kind: Check,
    value: Array,
    worse: Callable[[Array, float], Mask],
    hard: float | None,
    soft: float | None,
) -> None:
    """Add what lies beyond the hard limit, and what only beyond the soft one; NaN is neither."""
    stopped = np.zeros(value.shape, dtype=bool)
    if hard is not None:
        stopped = worse(value, hard)
        _add(found, kind, value, stopped, hard, stops=True)
    if soft is not None:
        _add(found, kind, value, worse(value, soft) & ~stopped, soft, stops=False)


def _add(
    found: list[Fault], kind: Check, value: Array, mask: Mask, limit: float, *, stops: bool
) -> None:
    if mask.any():
        rows = mask if mask.ndim == 1 else np.logical_or.reduce(mask, axis=1)
        bound = np.array(limit)
        found.append(Fault(kind, rows, stops, lambda: (mask, value, bound), warns=not stops))
