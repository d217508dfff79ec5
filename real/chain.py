"""Where a link is, for given joint positions: forward kinematics of one chain, in numpy.

Enough for a robot computer to know where its hand would be, without a physics engine.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError, nearest
from real.frames import from_rpy, to_matrix
from real.spec import RobotSpec

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ChainJoint:
    """A movable joint and the fixed transform before it.

    Attributes:
        column: its place among the robot's joints.
        slide: whether it slides; it turns otherwise.
        axis: ``[3]`` unit vector in its own frame.
        rotation: ``[3, 3]`` from its frame at zero to the frame of the joint before.
        offset: ``[3]`` of its frame in the frame of the joint before [m].
    """

    column: int
    slide: bool
    axis: Array
    rotation: Array
    offset: Array


@dataclass(frozen=True)
class Chain:
    """The way from a base link to another link.

    Attributes:
        link: where it ends.
        joints: movable ones, from the base on.
        offset: ``[3]`` of the link in the frame of the last of them [m].
    """

    link: str
    joints: tuple[ChainJoint, ...]
    offset: Array

    def position(self, q: Array) -> Array:
        """Where the link is: ``[N, J]`` joint positions [rad or m] -> ``[N, 3]`` [m], base frame.

        Rotation about a unit vector with cross matrix K, by Rodrigues' formula:
        R = I + sin(q) K + (1 - cos(q)) K^2.
        """
        turned: Array = np.broadcast_to(np.eye(3), (q.shape[0], 3, 3))
        at = np.zeros((q.shape[0], 3))
        for joint in self.joints:
            at = at + turned @ joint.offset
            turned = turned @ joint.rotation
            value = q[:, joint.column]
            if joint.slide:
                at = at + value[:, None] * (turned @ joint.axis)
                continue
            cross = _cross(joint.axis)
            sine, cosine = np.sin(value)[:, None, None], np.cos(value)[:, None, None]
            turned = turned @ (np.eye(3) + sine * cross + (1.0 - cosine) * (cross @ cross))
        return at + turned @ self.offset


def read_chain(robot: RobotSpec) -> Chain:
    """The chain from a robot's base link to its end effector.

    Raises:
        FerryError: the robot names no end effector, its description cannot be read, or a joint on
            the way is none of the robot's.
    """
    if robot.end_effector is None:
        raise FerryError(
            f"{robot.source}: robot {robot.name!r} names no end_effector: which link's place is "
            "meant?"
        )
    return chain_of(
        robot.description_file(),
        link=robot.end_effector,
        base_link=robot.base_link,
        joints=robot.joint_names,
    )


def chain_of(path: Path, *, link: str, base_link: str, joints: Sequence[str]) -> Chain:
    """The chain between two links of a URDF file.

    Args:
        path: the file.
        link: where it ends.
        base_link: where it begins.
        joints: names of all joints, in the order of the columns.

    Raises:
        FerryError: not readable, the links are not connected, or a joint has no column.
    """
    try:
        root = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, OSError) as error:
        raise FerryError(f"{path}: not readable as XML ({error})") from error
    above = {
        child.get("link", ""): joint
        for joint in root.findall("joint")
        if (child := joint.find("child")) is not None
    }
    way: list[ElementTree.Element] = []
    at = link
    while at != base_link:
        if at not in above or len(way) > len(above):
            raise FerryError(f"{path}: link {link!r} does not hang on {base_link!r}")
        way.insert(0, above[at])
        parent = above[at].find("parent")
        at = "" if parent is None else parent.get("link", "")
    found: list[ChainJoint] = []
    rotation, offset = np.eye(3), np.zeros(3)
    for joint in way:
        turn, shift = _origin(joint, path)
        offset, rotation = offset + rotation @ shift, rotation @ turn
        if joint.get("type") == "fixed":
            continue
        column, axis = _column(joint, joints, path), _axis(joint, path)
        slide = joint.get("type") == "prismatic"
        found.append(ChainJoint(column, slide, axis, rotation, offset))
        rotation, offset = np.eye(3), np.zeros(3)
    return Chain(link, tuple(found), offset)


def _column(joint: ElementTree.Element, joints: Sequence[str], path: Path) -> int:
    name, kind = joint.get("name", ""), joint.get("type")
    if kind not in {"revolute", "continuous", "prismatic"} or joint.find("mimic") is not None:
        raise FerryError(f"{path}: joint {name!r} ({kind}) cannot be part of a chain")
    if name not in joints:
        raise FerryError(f"{path}: the robot has no joint {name!r}{nearest(name, joints)}")
    return list(joints).index(name)


def _origin(joint: ElementTree.Element, path: Path) -> tuple[Array, Array]:
    origin = joint.find("origin")
    rpy = "0 0 0" if origin is None else origin.get("rpy", "0 0 0")
    xyz = "0 0 0" if origin is None else origin.get("xyz", "0 0 0")
    return to_matrix(from_rpy(_three(rpy, joint, path))), _three(xyz, joint, path)


def _axis(joint: ElementTree.Element, path: Path) -> Array:
    element = joint.find("axis")
    # The URDF specification's default.
    axis = _three("1 0 0" if element is None else element.get("xyz", "1 0 0"), joint, path)
    length = float(np.linalg.norm(axis))
    if length == 0.0:
        raise FerryError(f"{path}: joint {joint.get('name')!r}: its axis has no length")
    return axis / length


def _three(text: str, joint: ElementTree.Element, path: Path) -> Array:
    try:
        values = np.array([float(x) for x in text.split()])
    except ValueError:
        values = np.zeros(0)
    if values.shape != (3,) or not np.isfinite(values).all():
        raise FerryError(f"{path}: joint {joint.get('name')!r}: {text!r} is not three numbers")
    return values


def _cross(axis: Array) -> Array:
    x, y, z = axis
    return np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
