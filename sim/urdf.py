"""A robot's URDF file, checked and completed, so that every engine builds the same robot from it.

Engines read the same file differently: one invents a kilogram for a link without ``<inertial>``,
another refuses it, a third balances a wrong inertia without a word. So the file is checked here
once, everything the :class:`~real.spec.RobotSpec` knows better (limits, friction, damping) is
written into it, mesh paths are made absolute, and both engines get the result.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from real.chain import read_origin
from real.description import is_mjcf
from real.errors import FerryError, nearest
from real.frames import Pose
from real.spec import RobotSpec
from sim.inertia import (
    MASSLESS,
    Inertial,
    check_moving,
    fuse,
    read_inertials,
    write_inertial,
    write_origin,
)
from sim.meshes import resolve_meshes
from sim.urdf_joints import UNLIMITED as UNLIMITED
from sim.urdf_joints import complete_joints, lock_joints

log = logging.getLogger(__name__)

Array = NDArray[np.float64]

BASE_FRAME = "ferry_base_frame"
"""Name of the root link that :func:`prepare` adds: the base frame, z up."""

WORLD_LINK = "world_link"
"""What a link called "world" is called in the prepared file."""


def urdf_text(element: ElementTree.Element) -> str:
    """A URDF as text, a line for each element.

    PyBullet reads a file in lines of 8191 characters: what is longer is cut, in the middle of a
    word or a number.
    """
    # Within attributes both are escaped.
    return ElementTree.tostring(element, encoding="unicode").replace("><", ">\n<")


@dataclass(frozen=True)
class PreparedUrdf:
    """A checked URDF whose root link is the base frame of the robot.

    Attributes:
        path: the file it was read from.
        root: name of the file's root link.
        base_to_root: pose of the file's root link in the base frame.
        carrier: moving link that each link is rigidly part of, the file's root for the base.
        in_carrier: pose of each link in its carrier.
        element: the completed ``<robot>``, mesh paths absolute.
    """

    path: Path
    root: str
    base_to_root: Pose
    carrier: dict[str, str]
    in_carrier: dict[str, Pose]
    element: ElementTree.Element

    def xml(self, *, visuals: bool = True, collisions: bool = True) -> str:
        """The completed file as text.

        Args:
            visuals: with what is only for the eye.
            collisions: with what is only for touching; PyBullet draws it where there is no visual.
        """
        element = copy.deepcopy(self.element)
        left_out = [
            tag for tag, kept in (("visual", visuals), ("collision", collisions)) if not kept
        ]
        for link in element.findall("link"):
            for tag in left_out:
                for shape in link.findall(tag):
                    link.remove(shape)
        return urdf_text(element)

    def in_base(self, link: str) -> Pose | None:
        """Pose of a link in the base frame, or None if a joint lies between them."""
        if self.carrier[link] != self.root:
            return None
        return self.base_to_root.then(self.in_carrier[link])


def prepare(robot: RobotSpec, *, visuals: bool = False) -> PreparedUrdf:
    """Read, check and complete the description of a robot.

    Args:
        robot: its limits, joint friction and damping replace the file's.
        visuals: whether visual meshes are needed; without, missing ones are no error.

    Raises:
        FerryError: naming file, link or joint, what was found and what was expected: a missing
            mesh, a moving link without mass, an inertia that no body can have, a joint that is
            missing or of an unsupported type, a base link that is not rigidly part of the root.
    """
    robot.require_complete()
    path = robot.description_file()
    if is_mjcf(path):
        from sim.mjcf import to_urdf  # MuJoCo, which nothing else here needs

        root_element = to_urdf(path, visuals=visuals)
    else:
        root_element = ElementTree.parse(path).getroot()
    links = {_name(e, path): e for e in root_element.findall("link")}
    joints = {_name(e, path): e for e in root_element.findall("joint")}
    _require_links(robot, links, path)
    lock_joints(robot, joints, path)
    complete_joints(robot, joints, path)
    root, carrier, in_carrier = _tree(joints, links, path)
    base = robot.base_link
    if carrier[base] != root:
        raise FerryError(
            f"{robot.source}: base link {base!r} hangs on the joint of {carrier[base]!r}; expected "
            f"the root link {root!r} of {path} or a link fixed to it"
        )
    turned = Pose(np.zeros(3), np.asarray(robot.base_rotation, dtype=np.float64))
    base_to_root = turned.then(in_carrier[base].inverse())
    for name, link in links.items():
        resolve_meshes(link, name, path, "collision")
        if visuals:
            resolve_meshes(link, name, path, "visual")
    fixed_root = root if robot.base == "fixed" else None
    inertials = read_inertials(links, path, robot=robot)
    check_moving(inertials, carrier, fixed_root=fixed_root, path=path)
    frame = _add_base_frame(root_element, root, base_to_root)
    if robot.base == "floating":
        _carry_base_mass(frame, links, inertials, carrier, in_carrier, root, base_to_root)
    _rename_world(root_element)
    return PreparedUrdf(
        path=path,
        root=root,
        base_to_root=base_to_root,
        carrier=carrier,
        in_carrier=in_carrier,
        element=root_element,
    )


def imu_position(robot: RobotSpec, urdf: PreparedUrdf) -> Array:
    """``[3]`` where the IMU is in the base frame [m]; the base's origin without one.

    Raises:
        FerryError: a joint lies between IMU and base.
    """
    if robot.imu_link is None:
        return np.zeros(3)
    pose = urdf.in_base(robot.imu_link)
    if pose is None:
        raise FerryError(
            f"{robot.source}: imu_link {robot.imu_link!r} hangs on the joint of "
            f"{urdf.carrier[robot.imu_link]!r}; expected a link rigidly fixed to the base "
            f"{robot.base_link!r}, since its orientation is reported as the base's"
        )
    return pose.position


# ------------------------------------------------------------------ the tree


def _require_links(robot: RobotSpec, links: dict[str, ElementTree.Element], path: Path) -> None:
    named = [robot.base_link, *robot.feet, *(link.name for link in robot.links)]
    named += [name for name in (robot.imu_link, robot.end_effector) if name is not None]
    for name in named:
        if name not in links:
            raise FerryError(
                f"{robot.source}: {name!r} is no link of what {path} compiles to"
                f"{nearest(name, links)}; links: {', '.join(links)}"
            )


def _name(element: ElementTree.Element, path: Path) -> str:
    name = element.get("name")
    if not name or name == BASE_FRAME:
        raise FerryError(f"{path}: a <{element.tag}> is named {name!r}; expected a name of its own")
    return name


def _end(joint: ElementTree.Element, end: str, links: dict[str, ElementTree.Element]) -> str:
    element = joint.find(end)
    link = "" if element is None else element.get("link", "")
    if link not in links:
        raise FerryError(f"joint {joint.get('name')!r}: <{end}> is {link!r}, which is no link")
    return link


def _tree(
    joints: dict[str, ElementTree.Element], links: dict[str, ElementTree.Element], path: Path
) -> tuple[str, dict[str, str], dict[str, Pose]]:
    """The root, and for each link the moving link it is rigidly part of and its pose there."""
    parent: dict[str, tuple[str, ElementTree.Element]] = {}
    for joint in joints.values():
        try:
            parent[_end(joint, "child", links)] = (_end(joint, "parent", links), joint)
        except FerryError as error:
            raise FerryError(f"{path}: {error}") from error
    roots = [link for link in links if link not in parent]
    if len(roots) != 1:
        raise FerryError(f"{path}: root links {roots}; expected exactly one")
    carrier: dict[str, str] = {}
    in_carrier: dict[str, Pose] = {}
    for link in links:
        pose, here = Pose(np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0])), link
        for _ in range(len(links)):  # bounded: a loop of joints must not hang the loader
            if here not in parent or parent[here][1].get("type") != "fixed":
                break
            here, joint = parent[here]
            pose = read_origin(joint, path).then(pose)
        carrier[link], in_carrier[link] = here, pose
    return roots[0], carrier, in_carrier


def _add_base_frame(
    root_element: ElementTree.Element, root: str, base_to_root: Pose
) -> ElementTree.Element:
    """Hang the file's root under a link that is the base frame: z up, origin at the base link."""
    frame = ElementTree.SubElement(root_element, "link", name=BASE_FRAME)
    write_inertial(frame, MASSLESS)
    joint = ElementTree.SubElement(root_element, "joint", name=f"{BASE_FRAME}_fixed", type="fixed")
    ElementTree.SubElement(joint, "parent", link=BASE_FRAME)
    ElementTree.SubElement(joint, "child", link=root)
    write_origin(joint, base_to_root)
    return frame


def _rename_world(root_element: ElementTree.Element) -> None:
    """Give a link called "world" another name: MuJoCo takes it for the world itself."""
    for link in root_element.findall("link"):
        if link.get("name") == "world":
            link.set("name", WORLD_LINK)
    for tag in ("joint/parent", "joint/child"):
        for end in root_element.findall(tag):
            if end.get("link") == "world":
                end.set("link", WORLD_LINK)


def _carry_base_mass(
    frame: ElementTree.Element,
    links: dict[str, ElementTree.Element],
    inertials: dict[str, Inertial],
    carrier: dict[str, str],
    in_carrier: dict[str, Pose],
    root: str,
    base_to_root: Pose,
) -> None:
    """Move the mass of all that is fixed to the base to the base frame.

    PyBullet nails a robot down whose root link has no mass, as the added frame would have.
    """
    rigid = [name for name in links if carrier[name] == root]
    parts = [inertials[n].seen_from(base_to_root.then(in_carrier[n])) for n in rigid]
    write_inertial(frame, fuse(parts))
    for name in rigid:
        write_inertial(links[name], MASSLESS)
