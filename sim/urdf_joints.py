"""Joints of a URDF: locked where they shall not move, completed by what the robot file knows."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from real.chain import KINDS, moved, read_axis, read_origin
from real.errors import FerryError
from real.spec import JointSpec, RobotSpec
from sim.inertia import write_origin

log = logging.getLogger(__name__)

UNLIMITED = 1e9
"""Stands for "no limit" in files and engines, which take no infinity."""

Array = NDArray[np.float64]
Joints = dict[str, ElementTree.Element]


def lock_joints(robot: RobotSpec, joints: Joints, path: Path) -> None:
    """Turn the joints that the robot file locks, and what mimics them, into fixed ones.

    A fixed joint is the same in every engine. A gear between two moving joints is not: MuJoCo has
    an equality constraint and PyBullet another one, both soft in their own way.

    Args:
        robot: names the joints and where they stand.
        joints: by name; changed in place.
        path: the file, for messages.

    Raises:
        FerryError: a joint is of a kind that cannot be locked, or mimics one that moves.
    """
    at = dict(robot.locked)
    listed = set(robot.joint_names)
    for name, joint in joints.items():
        mimic = joint.find("mimic")
        if mimic is None or name in at or name in listed:
            continue
        leader = mimic.get("joint", "")
        if leader not in at:
            raise FerryError(
                f"{path}: joint {name!r} mimics {leader!r}, which moves, and engines couple joints "
                f"each in their own way; expected in {robot.source} either `locked: {{{leader}: "
                f"POSITION}}`, and both stand still, or {name!r} among `joints`, as a joint of "
                "its own"
            )
        # q = multiplier q_leader + offset, as the URDF specification says
        at[name] = float(mimic.get("multiplier", "1")) * at[leader] + float(
            mimic.get("offset", "0")
        )
    for name, position in at.items():
        _lock(joints[name], position, path)


def _lock(joint: ElementTree.Element, position: float, path: Path) -> None:
    kind = joint.get("type", "")
    if kind not in KINDS:
        raise FerryError(
            f"{path}: joint {joint.get('name')!r} is of type {kind!r}, which cannot be locked; "
            "expected revolute, continuous or prismatic"
        )
    place = moved(KINDS[kind], read_axis(joint, path), position)
    write_origin(joint, read_origin(joint, path).then(place))
    joint.set("type", "fixed")
    for tag in ("axis", "limit", "dynamics", "mimic", "safety_controller"):
        for old in joint.findall(tag):
            joint.remove(old)


def complete_joints(robot: RobotSpec, joints: Joints, path: Path) -> None:
    """Write what the RobotSpec knows about its joints into the file's.

    Args:
        robot: limits, friction and damping.
        joints: by name; changed in place.
        path: the file, for messages.

    Raises:
        FerryError: a joint is of an unsupported type, or is not among those of the robot file.
    """
    named = {j.name: j for j in robot.joints}
    for name, element in joints.items():
        kind = element.get("type", "")
        if kind == "fixed":
            continue
        if kind not in {"revolute", "continuous", "prismatic"}:
            raise FerryError(
                f"{path}: joint {name!r} is of type {kind!r}; expected revolute, continuous, "
                "prismatic or fixed"
            )
        if name not in named:
            raise FerryError(
                f"{path}: joint {name!r} is not among the joints of {robot.source}; list it "
                "there, with `actuated: false` if it has no motor"
            )
        limit = element.find("limit")
        if kind == "continuous" and limit is not None and {"lower", "upper"} & limit.attrib.keys():
            log.warning("%s: joint %r is continuous: its position limits are ignored", path, name)
        _complete(element, named[name])
        # PyBullet takes an axis of length 2 as a joint that moves twice as far, in part.
        axis = read_axis(element, path)
        for old in element.findall("axis"):
            element.remove(old)
        ElementTree.SubElement(element, "axis", xyz=" ".join(repr(float(v)) for v in axis))


def _complete(element: ElementTree.Element, joint: JointSpec) -> None:
    for tag in ("limit", "dynamics", "mimic", "safety_controller"):
        for old in element.findall(tag):
            element.remove(old)
    ElementTree.SubElement(
        element, "dynamics", damping=repr(joint.damping), friction=repr(joint.friction)
    )
    limit = {
        "effort": repr(_finite_or(joint.tau_max, UNLIMITED)),
        "velocity": repr(_finite_or(joint.dq_max, UNLIMITED)),
    }
    if limited(joint):
        low, high = position_range(joint)
        limit |= {"lower": repr(low), "upper": repr(high)}
        element.set("type", "prismatic" if joint.kind == "slide" else "revolute")
    elif joint.kind == "hinge":
        element.set("type", "continuous")
    else:  # lower > upper is PyBullet's "no limit"; MuJoCo's range is set from the RobotSpec
        limit |= {"lower": "1", "upper": "-1"}
    ElementTree.SubElement(element, "limit", limit)


def limited(joint: JointSpec) -> bool:
    """Whether a joint has position limits; NaN (a passive joint without any) counts as none."""
    return math.isfinite(joint.q_min) or math.isfinite(joint.q_max)


def position_range(joint: JointSpec) -> tuple[float, float]:
    """Lower and upper limit [rad or m], a large number on a side without one."""
    return _finite_or(joint.q_min, -UNLIMITED), _finite_or(joint.q_max, UNLIMITED)


def _finite_or(value: float, other: float) -> float:
    return value if math.isfinite(value) else other
