"""What a robot is: the one place where joint order, limits, gains and rates are written."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from real.config import config_path, load_config
from real.description import Description, description_path, read_description
from real.errors import FerryError, nearest
from real.frames import from_rpy
from real.robot_config import JointConfig, RobotConfig

Array = NDArray[np.float64]


@dataclass(frozen=True)
class JointSpec:
    """One joint. NaN means "not given", and a robot with NaN limits refuses to run.

    Attributes:
        name: as in the description.
        kind: ``hinge`` [rad] or ``slide`` [m].
        actuated: whether it has a motor.
        q_min: lower limit [rad or m].
        q_max: upper limit [rad or m].
        dq_max: velocity limit [rad/s or m/s].
        tau_max: effort limit [N m or N].
        kp: position gain.
        kd: velocity gain.
        q_default: default position [rad or m].
        action_scale: [rad or m per unit of action].
        armature: reflected rotor inertia [kg m^2 or kg].
        damping: viscous joint friction [N m s/rad].
        friction: dry joint friction [N m].
        limit_source: where the limits are from.
    """

    name: str
    kind: Literal["hinge", "slide"]
    actuated: bool
    q_min: float
    q_max: float
    dq_max: float
    tau_max: float
    kp: float
    kd: float
    q_default: float
    action_scale: float
    armature: float
    damping: float
    friction: float
    limit_source: str


@dataclass(frozen=True)
class LinkSpec:
    """Mass properties of a link that replace the description's; None keeps the description's.

    Attributes:
        name: of the link.
        mass: [kg].
        com: centre of mass in the link's frame [m].
        inertia: ixx, iyy, izz, ixy, ixz, iyz about it, in the link's axes [kg m^2].
        source: where they are from.
    """

    name: str
    mass: float | None
    com: tuple[float, float, float] | None
    inertia: tuple[float, float, float, float, float, float] | None
    source: str


@dataclass(frozen=True)
class RobotSpec:
    """A robot: joints in order, base, sensors, rates and how it stops safely.

    Attributes:
        name: e.g. ``a1``.
        description: as written in the robot file.
        source: the robot file.
        base: ``floating`` or ``fixed``.
        base_link: link whose frame is the base frame.
        base_height_m: height of the base in the default pose [m].
        base_rotation: ``[4]`` wxyz, turns the file's base frame to z-up.
        imu_link: link that carries the IMU, or None.
        feet: links that touch the ground.
        end_effector: link that an arm positions, or None.
        joints: all joints in order, actuated and passive.
        damping_kd: gain of the damping mode [N m s/rad].
        safe_stop: ``damp``, or ``hold`` for arms that would drop.
        fall_height_m: base below this for 0.2 s has fallen [m]; None where height means nothing.
        control_dt_s: control period [s].
        physics_dt_s: physics step [s].
        locked: joints of the description that do not move here, and where they stand [rad or m].
        links: mass properties that replace the description's.
    """

    name: str
    description: str
    source: str
    base: Literal["floating", "fixed"]
    base_link: str
    base_height_m: float
    base_rotation: tuple[float, float, float, float]
    imu_link: str | None
    feet: tuple[str, ...]
    end_effector: str | None
    joints: tuple[JointSpec, ...]
    damping_kd: float
    safe_stop: Literal["damp", "hold"]
    fall_height_m: float | None
    control_dt_s: float
    physics_dt_s: float
    locked: tuple[tuple[str, float], ...] = ()
    links: tuple[LinkSpec, ...] = ()

    @property
    def actuated(self) -> tuple[JointSpec, ...]:
        """The A joints with a motor, in order."""
        return tuple(j for j in self.joints if j.actuated)

    @property
    def actuated_ids(self) -> NDArray[np.intp]:
        """``[A]`` positions of the actuated joints among all joints."""
        return np.flatnonzero([j.actuated for j in self.joints])

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Names of all J joints, in order."""
        return tuple(j.name for j in self.joints)

    @property
    def q_default(self) -> Array:
        """``[J]`` default pose [rad or m]."""
        return np.array([j.q_default for j in self.joints])

    @property
    def substeps(self) -> int:
        """Physics steps per control step."""
        return round(self.control_dt_s / self.physics_dt_s)

    def actuated_array(
        self,
        attribute: Literal["q_min", "q_max", "dq_max", "tau_max", "kp", "kd", "q_default"],
    ) -> Array:
        """``[A]`` one attribute of every actuated joint."""
        return np.array([float(getattr(j, attribute)) for j in self.actuated])

    def description_file(self) -> Path:
        """Where the description lies on this computer."""
        return description_path(self.description, base=Path(self.source).parent)

    def require_complete(self) -> None:
        """Refuse a robot that lacks something it needs to move.

        Raises:
            FerryError: naming every joint and value that is missing.
        """
        missing = [
            f"joint {j.name!r}: {key} is not given by {self.description} nor by its `limits`"
            for j in self.actuated
            for key in ("q_min", "q_max", "dq_max", "tau_max")
            if math.isnan(getattr(j, key))
        ]
        if missing:
            raise FerryError(
                f"{self.source}: robot {self.name!r} cannot run:\n  "
                + "\n  ".join(missing)
                + "\n  give them under joints.<name>.limits, with their source"
            )


def load_robot(name: str | Path, *, read_limits: bool = True) -> RobotSpec:
    """Load a robot by name (``a1``) or by file.

    Args:
        name: a name in ``configs/robots`` or a path.
        read_limits: fill limits from the description file. A robot computer without that file
            passes False: its limits stay NaN and come with the bundle.

    Raises:
        FerryError: with file, joint and what was expected.
    """
    path = config_path(name, folder="robots")
    config = load_config(RobotConfig, path)
    described = None
    if read_limits:
        described = read_description(description_path(config.description, base=path.parent))
        _check_names(config, described, path)
    ratio = config.control_dt_s / config.physics_dt_s
    if abs(ratio - round(ratio)) > 1e-9 or round(ratio) < 1:
        raise FerryError(
            f"{path}: control_dt_s {config.control_dt_s} s is {ratio:g} physics steps of "
            f"{config.physics_dt_s} s; expected a whole number"
        )
    rotation = from_rpy(config.base.rotation_rpy)
    return RobotSpec(
        name=config.name,
        description=config.description,
        source=str(path),
        base=config.base.kind,
        base_link=config.base.link,
        base_height_m=config.base.height_m,
        base_rotation=(
            float(rotation[0]),
            float(rotation[1]),
            float(rotation[2]),
            float(rotation[3]),
        ),
        imu_link=config.imu_link,
        feet=config.feet,
        end_effector=config.end_effector,
        joints=tuple(_joint(n, j, config, described, path) for n, j in config.joints.items()),
        damping_kd=config.damping_kd,
        safe_stop=config.safe_stop,
        fall_height_m=config.fall_height_m,
        control_dt_s=config.control_dt_s,
        physics_dt_s=config.physics_dt_s,
        locked=tuple(config.locked.items()),
        links=tuple(
            LinkSpec(name, link.mass, link.com, link.inertia, link.source)
            for name, link in config.links.items()
        ),
    )


def _check_names(config: RobotConfig, described: Description, path: Path) -> None:
    for name in (*config.joints, *config.locked):
        if name not in described.joints:
            raise FerryError(
                f"{path}: joint {name!r} is not in {described.path}"
                f"{nearest(name, described.joints)}; its joints: {', '.join(described.joints)}"
            )
        if name in config.joints and name in config.locked:
            raise FerryError(
                f"{path}: joint {name!r} stands under `joints` and under `locked`; expected one"
            )
    listed = config.joints.keys() | config.locked.keys()
    left_out = [n for n, j in described.joints.items() if n not in listed and j.mimics is None]
    if left_out:
        raise FerryError(
            f"{path}: {described.path} has joints that the robot file does not list: "
            f"{', '.join(left_out)}; list each, with `actuated: false` if it has no motor, or "
            "under `locked` with a position if it shall not move"
        )
    if twins := sorted({foot for foot in config.feet if config.feet.count(foot) > 1}):
        raise FerryError(f"{path}: feet: expected every link once, found twice: {', '.join(twins)}")
    named = [config.base.link, *config.feet, *config.links]
    named += [link for link in (config.imu_link, config.end_effector) if link is not None]
    for link in named:
        if link not in described.links:
            raise FerryError(
                f"{path}: link {link!r} is not in {described.path}{nearest(link, described.links)}"
            )


def _joint(
    name: str,
    joint: JointConfig,
    config: RobotConfig,
    described: Description | None,
    path: Path,
) -> JointSpec:
    defaults = config.defaults

    def pick(key: str) -> float:
        own = getattr(joint, key)
        value = getattr(defaults, key) if own is None else own
        if value is None:
            raise FerryError(
                f"{path}: joint {name!r} has no {key}; give joints.{name}.{key} or defaults.{key}"
            )
        return float(value)

    if joint.q_default is None:
        raise FerryError(f"{path}: joint {name!r} has no q_default (default position)")
    found = None if described is None else described.joints[name]
    limits, source = _limits(joint, config, described, name)
    for key in ("dq_max", "tau_max"):
        if joint.actuated and limits[key] == 0.0:
            raise FerryError(
                f"{path}: joint {name!r}: {key} is 0 in {config.description}, which means no "
                f"authority; if it is unknown there, give joints.{name}.limits.{key}"
            )
    if joint.actuated and not math.isnan(limits["q_min"]):
        low, high = limits["q_min"], limits["q_max"]
        if not low <= joint.q_default <= high:
            raise FerryError(
                f"{path}: joint {name!r}: q_default {joint.q_default} is outside its limits "
                f"[{low}, {high}] (from {source})"
            )
    return JointSpec(
        name=name,
        kind="slide" if found is not None and found.kind == "slide" else "hinge",
        actuated=joint.actuated,
        q_min=limits["q_min"],
        q_max=limits["q_max"],
        dq_max=limits["dq_max"],
        tau_max=limits["tau_max"],
        kp=pick("kp") if joint.actuated else 0.0,
        kd=pick("kd") if joint.actuated else 0.0,
        q_default=joint.q_default,
        action_scale=pick("action_scale") if joint.actuated else 1.0,
        armature=pick("armature"),
        damping=pick("damping"),
        friction=pick("friction"),
        limit_source=source,
    )


def _limits(
    joint: JointConfig, config: RobotConfig, described: Description | None, name: str
) -> tuple[dict[str, float], str]:
    """Limits in order of trust: the joint's own, the robot's defaults, the description."""
    sources: list[str] = []
    values: dict[str, float] = {}
    found = None if described is None else described.joints[name]
    for key in ("q_min", "q_max", "dq_max", "tau_max"):
        value = math.nan if found is None else float(getattr(found, key))
        origin = config.description
        for given in (config.defaults.limits, joint.limits):
            if given is not None and getattr(given, key) is not None:
                value, origin = float(getattr(given, key)), given.source
        values[key] = value
        if not math.isnan(value) and origin not in sources:
            sources.append(origin)
    return values, "; ".join(sources)
