"""What the safety filter counts as a fault, and how a robot is started: numbers and reasons."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from deploy.checks import CommandBounds, StateBounds
from deploy.vitals import VitalSettings
from deploy.workspace import WorkspaceSettings
from real.config import Config
from real.contract import PolicyContract
from real.joint_limits import FREE, JointLimits, LimitSettings

Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]


class SafetySettings(Config):
    """What counts as a fault, and how the robot is started."""

    limits: LimitSettings = LimitSettings()

    state_periods: Positive = 3.0
    """Oldest acceptable state [control periods]."""

    command_periods: Positive = 3.0
    """Oldest acceptable command, counted from the state it answers [control periods]."""

    hold_ticks: Annotated[int, Field(ge=0)] = 3
    """So many bad commands in a row are bridged by holding the last safe target."""

    tilt_rad: Annotated[float, Field(gt=0.0, lt=3.1416)] | None = 1.0
    """A floating base that tilts more has fallen [rad]; None: disabled, the robot may lie over."""

    tilt_soft_rad: Annotated[float, Field(gt=0.0, lt=3.1416)] | None = 0.7
    """Of a base that tilts more it is said, and nothing done [rad]; None: disabled."""

    vitals: VitalSettings = VitalSettings()

    workspace: WorkspaceSettings | None = None
    """Box that an arm's hand must not leave; None: none, the joints' limits alone count."""

    gyro_slack: Positive | None = 0.3
    """Gyroscope and orientation may have turned differently by this [rad]; None: disabled.

    The attitude filter of a walking robot's IMU is off by some hundredths of a radian. At 50 Hz,
    vibration of 1 rad/s that falls between the samples adds up to 0.14 rad within 2 s.
    """

    gyro_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.5
    """And by this share of the turn; see :class:`deploy.gyro_check.GyroCheck`."""

    outside: NotNegative | None = 0.25
    """A joint further outside its range than this is not believed [rad or m]; None: disabled.

    Real stops give a little and calibration is off a little; a quarter radian is neither.
    """

    jump_factor: Positive | None = 2.0
    """A joint that moves faster than this times its speed limit has jumped; None: disabled."""

    jump_slack: NotNegative = 0.1
    """Allowance on that, for noise and for stamps that are not exact [rad or m]."""

    implausible: Positive = 10.0
    """A target further outside the range than this is a defect and not clipped [rad or m]."""

    ramp_s: NotNegative = 2.0
    """Time in which the robot moves from the pose it is armed in to its default pose [s]."""

    ramp_reach: Positive = 0.3
    """A joint further than this from its default position at the ramp's end is a fault [rad or m].

    It is blocked, without power, or not the joint it is taken for, and the policy must not find
    out. Legs sag under the robot's weight, by the holding torque divided by kp; an A1 was at most
    0.21 rad off in either simulator.
    """


def bounds_of(
    contract: PolicyContract, limits: JointLimits, settings: SafetySettings
) -> tuple[StateBounds, CommandBounds]:
    """The numbers that states and commands of a robot are held against."""
    period = contract.control_dt_s
    falls = contract.base == "floating" and settings.tilt_rad is not None
    # No speed limit, no notion of a jump; written into the slack, since infinity times no time
    # at all would be NaN.
    blind = limits.dq_max >= FREE
    if settings.jump_factor is None:
        blind = np.ones_like(blind)
    speed = np.where(blind, 0.0, limits.dq_max)
    outside = np.inf if settings.outside is None else settings.outside
    state = StateBounds(
        state_age_ns=round(settings.state_periods * period * 1e9),
        ahead_ns=round(period * 1e9),
        min_upright=float(np.cos(settings.tilt_rad or 0.0)) if falls else None,
        soft_upright=_soft_upright(settings) if falls else None,
        q_min=limits.q_min - outside,
        q_max=limits.q_max + outside,
        jump_rate=(settings.jump_factor or 0.0) * speed,
        jump_slack=np.where(blind, np.inf, settings.jump_slack),
    )
    command = CommandBounds(
        command_age_ns=round(settings.command_periods * period * 1e9),
        ahead_ns=round(period * 1e9),
        low=limits.q_min - settings.implausible,
        high=limits.q_max + settings.implausible,
    )
    return state, command


def _soft_upright(settings: SafetySettings) -> float | None:
    soft = settings.tilt_soft_rad
    return None if soft is None else float(np.cos(min(soft, settings.tilt_rad or soft)))
