"""The way from a robot's base to its end effector, read from a URDF without any engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from real.description import is_mjcf
from real.errors import FerryError, nearest
from real.frames import IDENTITY, Pose, about, from_rpy
from real.kinematics import Chain, ChainJoint
from real.spec import RobotSpec

Array = NDArray[np.float64]

#: Type of a URDF's joint -> kind of :class:`real.kinematics.ChainJoint`.
KINDS = {"revolute": "hinge", "continuous": "hinge", "prismatic": "slide"}


def read_chain(robot: RobotSpec) -> Chain:
    """The chain from a robot's base frame to its end effector, from its description.

    Raises:
        FerryError: see :func:`named_end_effector` and :func:`chain_of`; or the description is
            MJCF, which only the simulator can read.
    """
    link, path = named_end_effector(robot), robot.description_file()
    if is_mjcf(path):
        raise FerryError(
            f"{path}: the way to {link!r} can be read from a URDF only; for an MJCF take it from "
            "the bundle of a task that commands poses"
        )
    return chain_of(
        ElementTree.parse(path).getroot(),
        link=link,
        base_link=robot.base_link,
        joints=robot.joint_names,
        locked=dict(robot.locked),
        base_rotation=np.array(robot.base_rotation),
        source=path,
    )


def named_end_effector(robot: RobotSpec) -> str:
    """The link that an arm positions.

    Raises:
        FerryError: the robot file names none.
    """
    if robot.end_effector is None:
        raise FerryError(
            f"{robot.source}: robot {robot.name!r} names no end_effector, whose place is "
            "asked for; name the link there"
        )
    return robot.end_effector


def chain_of(
    urdf: ElementTree.Element,
    *,
    link: str,
    base_link: str,
    joints: Sequence[str],
    locked: Mapping[str, float] | None = None,
    base_rotation: Array = IDENTITY,
    source: str | Path,
) -> Chain:
    """The chain from a base frame to a link of a URDF.

    Args:
        urdf: its ``<robot>``.
        link: where it ends.
        base_link: whose frame, turned by ``base_rotation``, is the base frame.
        joints: names of the joints that move.
        locked: those that do not, and where they stand [rad or m].
        base_rotation: ``[4]`` wxyz, turns the file's base frame to z-up.
        source: the file, for messages.

    Raises:
        FerryError: naming the joint: the links are not connected, or a joint on the way is of a
            kind that cannot be part of it, unknown, or no joint moves the link.
    """
    above = {
        child.get("link", ""): joint
        for joint in urdf.findall("joint")
        if (child := joint.find("child")) is not None
    }
    way, root = _way_up(link, above)
    to_base, root_of_base = _way_up(base_link, above)
    links = {element.get("name") for element in urdf.findall("link")}
    if root != root_of_base or root not in links:
        raise FerryError(f"{source}: link {link!r} does not hang on {base_link!r}")
    pose = Pose(np.zeros(3), base_rotation).then(_rigid(to_base, source).inverse())
    found: list[ChainJoint] = []
    for joint in way:
        name, kind = joint.get("name", ""), joint.get("type", "")
        pose = pose.then(read_origin(joint, source))
        if locked and name in locked and kind in KINDS:
            pose = pose.then(moved(KINDS[kind], read_axis(joint, source), locked[name]))
        elif kind != "fixed":
            _require_moving(joint, joints, source)
            place = _tuples(pose)
            x, y, z = read_axis(joint, source).tolist()
            found.append(ChainJoint(name, KINDS[kind], *place, (x, y, z)))
            pose = Pose(np.zeros(3), IDENTITY)
    if not found:
        raise FerryError(
            f"{source}: end effector {link!r} is fixed to the base; expected a link that joints "
            "move"
        )
    return Chain(link, tuple(found), *_tuples(pose))


def _way_up(
    link: str, above: Mapping[str, ElementTree.Element]
) -> tuple[list[ElementTree.Element], str]:
    """Joints from the root to a link, and the root's name; "" for a ring of joints."""
    way: list[ElementTree.Element] = []
    while link in above:
        if len(way) > len(above):
            return way, ""
        way.insert(0, above[link])
        parent = above[link].find("parent")
        link = "" if parent is None else parent.get("link", "")
    return way, link


def _rigid(way: Sequence[ElementTree.Element], source: str | Path) -> Pose:
    """Pose of the base link in the root link."""
    pose = Pose(np.zeros(3), IDENTITY)
    for joint in way:
        if joint.get("type") != "fixed":
            raise FerryError(
                f"{source}: joint {joint.get('name')!r} moves the base link; expected a base link "
                "that is fixed to the root"
            )
        pose = pose.then(read_origin(joint, source))
    return pose


def moved(kind: str, axis: Array, position: float) -> Pose:
    """Where a hinge or slide takes what hangs on it, at a position [rad or m]."""
    if kind == "slide":
        return Pose(position * axis, IDENTITY)
    return Pose(np.zeros(3), about(axis, np.array(position)))


def _require_moving(joint: ElementTree.Element, joints: Sequence[str], source: str | Path) -> None:
    name, kind = joint.get("name", ""), joint.get("type", "")
    if kind not in KINDS or joint.find("mimic") is not None:
        raise FerryError(f"{source}: joint {name!r} ({kind}) cannot be part of a chain")
    if name not in joints:
        raise FerryError(f"{source}: the robot has no joint {name!r}{nearest(name, joints)}")


def read_origin(element: ElementTree.Element, source: str | Path) -> Pose:
    """The ``<origin>`` of an element; zero where there is none, as URDF says.

    Raises:
        FerryError: it is not three finite numbers each.
    """
    origin = element.find("origin")
    if origin is None:
        return Pose(np.zeros(3), IDENTITY)
    xyz = _three(origin.get("xyz", "0 0 0"), element, source)
    return Pose(xyz, from_rpy(_three(origin.get("rpy", "0 0 0"), element, source)))


def read_axis(joint: ElementTree.Element, source: str | Path) -> Array:
    """``[3]`` unit vector of a joint's ``<axis>``; x where there is none, as URDF says.

    Raises:
        FerryError: it is not three finite numbers, or has no length.
    """
    element = joint.find("axis")
    text = "1 0 0" if element is None else element.get("xyz", "1 0 0")
    axis = _three(text, joint, source)
    length = float(np.linalg.norm(axis))
    if length == 0.0:
        raise FerryError(
            f"{source}: joint {joint.get('name')!r}: <axis xyz={text!r}>; expected three numbers "
            "that are not all 0"
        )
    return axis / length


def _three(text: str, element: ElementTree.Element, source: str | Path) -> Array:
    try:
        values = np.array([float(x) for x in text.split()])
    except ValueError:
        values = np.zeros(0)
    if values.shape != (3,) or not np.isfinite(values).all():
        name = f"{element.tag} {element.get('name')!r}"
        raise FerryError(f"{source}: {name}: {text!r} is not three numbers")
    return values


def _tuples(
    pose: Pose,
) -> tuple[tuple[float, float, float], tuple[float, float, float, float]]:
    x, y, z = pose.position.tolist()
    w, a, b, c = pose.quat.tolist()
    return (x, y, z), (w, a, b, c)
