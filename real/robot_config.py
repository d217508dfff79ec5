"""The robot file: the strict form of ``configs/robots/*.yaml``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from real.config import Config, InOrder

Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]


class LimitsConfig(Config):
    """Limits that the description lacks or gets wrong, and where the better number is from."""

    q_min: float | None = Field(default=None, description="lower position limit [rad or m]")
    q_max: float | None = Field(default=None, description="upper position limit [rad or m]")
    dq_max: Positive | None = Field(default=None, description="velocity limit [rad/s or m/s]")
    tau_max: Positive | None = Field(default=None, description="effort limit [N m or N]")
    source: str = Field(min_length=3, description="where the numbers are from")


class JointDefaults(Config):
    """Values for every actuated joint that does not say otherwise."""

    kp: NotNegative | None = Field(default=None, description="position gain [N m/rad or N/m]")
    kd: NotNegative | None = Field(default=None, description="velocity gain [N m s/rad or N s/m]")
    action_scale: Positive | None = Field(default=None, description="[rad or m per unit action]")
    armature: NotNegative = Field(default=0.0, description="reflected rotor inertia [kg m^2]")
    damping: NotNegative = Field(default=0.0, description="viscous friction [N m s/rad]")
    friction: NotNegative = Field(default=0.0, description="dry friction [N m]")
    limits: LimitsConfig | None = None


class JointConfig(Config):
    """One joint of the robot file. Everything not given is taken from ``defaults``."""

    q_default: float | None = Field(default=None, description="default position [rad or m]")
    actuated: bool = True
    kp: NotNegative | None = Field(default=None, description="position gain [N m/rad or N/m]")
    kd: NotNegative | None = Field(default=None, description="velocity gain [N m s/rad or N s/m]")
    action_scale: Positive | None = Field(default=None, description="[rad or m per unit action]")
    armature: NotNegative | None = Field(default=None, description="rotor inertia [kg m^2]")
    damping: NotNegative | None = Field(default=None, description="viscous friction [N m s/rad]")
    friction: NotNegative | None = Field(default=None, description="dry friction [N m]")
    limits: LimitsConfig | None = None


class LinkConfig(Config):
    """Mass properties that the description lacks or gets wrong; what is not given is the file's.

    Everything is about the link's own frame: the centre of mass in it, the moments about that
    centre in its axes.
    """

    mass: Positive | None = Field(default=None, description="[kg]")
    com: tuple[float, float, float] | None = Field(default=None, description="centre of mass [m]")
    inertia: tuple[float, float, float, float, float, float] | None = Field(
        default=None, description="ixx, iyy, izz, ixy, ixz, iyz [kg m^2]"
    )
    source: str = Field(min_length=3, description="where the numbers are from")


class BaseConfig(Config):
    """The base link and how it is held."""

    kind: Literal["floating", "fixed"]
    link: str
    height_m: float = Field(default=0.0, description="height of the base at the default pose [m]")
    rotation_rpy: tuple[float, float, float] = Field(
        default=(0.0, 0.0, 0.0),
        description="turns the file's base frame so that z is up [rad] (Y-up files: [pi/2, 0, 0])",
    )


class RobotConfig(Config):
    """A robot file, ``configs/robots/*.yaml``."""

    schema_version: Literal[1]
    name: str
    description: str = Field(
        description="URDF or MJCF: a path, pybullet_data:<path> or menagerie:<name>"
    )
    base: BaseConfig
    imu_link: str | None = Field(description="link that carries the IMU, or null")
    feet: tuple[str, ...] = ()
    end_effector: str | None = None
    control_dt_s: Positive = Field(description="control period [s]")
    physics_dt_s: Positive = Field(description="physics step [s]")
    safe_stop: Literal["damp", "hold"]
    damping_kd: NotNegative = Field(description="gain of the damping mode [N m s/rad]")
    fall_height_m: float | None = Field(default=None, description="base below this has fallen [m]")
    defaults: JointDefaults = JointDefaults()
    joints: Annotated[dict[str, JointConfig], InOrder()] = Field(min_length=1)
    locked: dict[str, float] = Field(
        default={},
        description="joints that shall not move, and where they stand [rad or m]; what mimics one "
        "of them stands still with it",
    )
    links: dict[str, LinkConfig] = Field(default={}, description="mass properties, by link")
