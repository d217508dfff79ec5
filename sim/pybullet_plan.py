"""What a PyBullet world needs to know of its robot, in words and numbers, made from a RobotSpec."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from real.spec import RobotSpec
from sim.rotors import add_rotors
from sim.urdf import BASE_FRAME, PreparedUrdf, imu_position, urdf_text

Array = NDArray[np.float64]

#: What differs between worlds, by name; see :func:`own_parameters`.
Parameters = dict[str, Array]


@dataclass(frozen=True)
class Blueprint:
    """All that a world needs to know of its robot: words and numbers, ready for another process.

    J joints, A actuated ones, F feet, B moving bodies.

    Attributes:
        source: the robot file, for messages.
        description: its description file, for messages.
        urdf: the prepared file with rotors.
        fixed: whether the base is.
        base_height_m: where a fixed base is [m].
        joints: J names in order.
        actuated: ``[A]`` which of them have a motor.
        feet: F links.
        bodies: B lists of links that are rigidly one.
        geared: joints that have a rotor.
        q_default: ``[J]``.
        tau_max: ``[A]``.
        damping: ``[A]`` largest velocity gain that a servo may be given.
        armature: ``[J]`` least reflected inertia that a world may have.
        imu: ``[3]`` its position in the base frame [m].
        physics_dt_s: physics step [s].
        delay_slots: physics steps of the longest delay.
        terrain: the table of :class:`sim.terrain.TerrainConfig`; None for a plane.
    """

    source: str
    description: str
    urdf: str
    fixed: bool
    base_height_m: float
    joints: list[str]
    actuated: list[int]
    feet: list[str]
    bodies: list[list[str]]
    geared: list[str]
    q_default: list[float]
    tau_max: list[float]
    damping: list[float]
    armature: list[float]
    imu: list[float]
    physics_dt_s: float
    delay_slots: int
    terrain: dict[str, Any] | None = None

    @property
    def motors(self) -> list[str]:
        """A names."""
        return [self.joints[i] for i in self.actuated]


def own_parameters(robot: RobotSpec, bodies: int, friction: float) -> dict[str, Array]:
    """What a world may have of its own, ``[K]`` nominal values each.

    ``friction`` of the floor; ``mass``, a factor on each of B bodies and their inertias;
    ``payload`` [kg] at the base's centre of mass; ``com``, ``[3]`` how far that is shifted [m];
    ``kp_scale``, ``kd_scale``, ``strength`` of A motors; ``armature``, ``damping``,
    ``dry_friction`` of J joints; ``delay_s`` of targets.
    """
    motors = len(robot.actuated)
    return {
        "friction": np.array([friction]),
        "mass": np.ones(bodies),
        "payload": np.zeros(1),
        "com": np.zeros(3),
        "kp_scale": np.ones(motors),
        "kd_scale": np.ones(motors),
        "strength": np.ones(motors),
        "armature": np.array([joint.armature for joint in robot.joints]),
        "damping": np.array([joint.damping for joint in robot.joints]),
        "dry_friction": np.array([joint.friction for joint in robot.joints]),
        "delay_s": np.zeros(1),
    }


def delay_slots(robot: RobotSpec, delay_max_s: float) -> int:
    """Physics steps of the longest delay."""
    return math.ceil(delay_max_s / robot.physics_dt_s - 1e-9)


def moving_bodies(robot: RobotSpec, urdf: PreparedUrdf) -> tuple[tuple[str, ...], list[list[str]]]:
    """Names of moving bodies, and which links of the prepared file each is made of."""
    links: dict[str, list[str]] = {}
    for link, carrier in urdf.carrier.items():
        if carrier != urdf.root:
            links.setdefault(carrier, []).append(link)
    if robot.base == "floating":
        # The base frame carries the mass of all that is fixed to the base.
        return (robot.base_link, *links), [[BASE_FRAME], *links.values()]
    return tuple(links), list(links.values())


def make_blueprint(
    robot: RobotSpec,
    urdf: PreparedUrdf,
    bodies: list[list[str]],
    least_armature: Array | None,
    delay_max_s: float,
) -> Blueprint:
    """Everything about a robot that its worlds share.

    Args:
        robot: the robot.
        urdf: its prepared description.
        bodies: links of each moving body, see :func:`moving_bodies`.
        least_armature: ``[J]``, or None for the robot's own; see
            :class:`sim.pybullet_engine.PyBulletEngine`.
        delay_max_s: longest delay of targets [s].
    """
    own = np.array([joint.armature for joint in robot.joints])
    geared = own > 0.0 if least_armature is None else np.ones(len(own), dtype=bool)
    turning = {joint.name for joint, turns in zip(robot.joints, geared, strict=True) if turns}
    tree = ElementTree.fromstring(urdf.xml(visuals=False))
    # In the order of the file: the solver goes through gears in theirs, and joints of the same
    # robot in another order shall move the same.
    names = [name for e in tree.findall("joint") if (name := e.get("name", "")) in turning]
    add_rotors(tree, names)
    kd = np.maximum(robot.actuated_array("kd"), robot.damping_kd)
    return Blueprint(
        source=str(robot.source),
        description=str(robot.description_file()),
        urdf=urdf_text(tree),
        fixed=robot.base == "fixed",
        base_height_m=robot.base_height_m,
        joints=list(robot.joint_names),
        actuated=[int(i) for i in robot.actuated_ids],
        feet=list(robot.feet),
        bodies=bodies,
        geared=names,
        q_default=robot.q_default.tolist(),
        tau_max=robot.actuated_array("tau_max").tolist(),
        damping=kd.tolist(),
        armature=(own if least_armature is None else np.asarray(least_armature)).tolist(),
        imu=imu_position(robot, urdf).tolist(),
        physics_dt_s=robot.physics_dt_s,
        delay_slots=delay_slots(robot, delay_max_s),
    )
