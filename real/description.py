"""What a robot description file states about joints, read with the standard library alone.

The engines read the same file for masses and shapes; this reader exists so that joint limits
have one source (the file) on computers that have no physics engine, too.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError, nearest
from real.frames import IDENTITY, from_rpy, multiply
from real.mjcf import Mjcf

#: Prefixes of ``description:`` that name a Python package which ships the file.
PACKAGE_PREFIXES = {"pybullet_data": "pybullet"}

#: Prefix that names a model of MuJoCo Menagerie, and the package that brings them.
MENAGERIE, MENAGERIE_PACKAGE = "menagerie", "mujoco_menagerie"


@dataclass(frozen=True)
class DescribedJoint:
    """A movable joint as its file describes it; NaN where the file is silent.

    Attributes:
        name: joint name.
        kind: ``hinge`` (revolute, continuous) or ``slide`` (prismatic).
        q_min: lower limit [rad or m].
        q_max: upper limit [rad or m].
        dq_max: velocity limit [rad/s or m/s].
        tau_max: effort limit [N m or N].
        child: link it moves.
        mimics: joint it follows, or None.
    """

    name: str
    kind: str
    q_min: float
    q_max: float
    dq_max: float
    tau_max: float
    child: str
    mimics: str | None


@dataclass(frozen=True)
class Description:
    """Joints and links of a description file, in file order."""

    path: Path
    joints: dict[str, DescribedJoint]
    links: tuple[str, ...]


def description_path(description: str, *, base: Path | None = None) -> Path:
    """Where a description lies.

    Args:
        description: ``package:relative/path`` with a prefix of :data:`PACKAGE_PREFIXES`,
            ``menagerie:name`` or ``menagerie:name/entry`` of MuJoCo Menagerie, or a path.
        base: folder that relative paths start from.

    Raises:
        FerryError: the package is not installed, or there is no such file.
    """
    prefix, colon, rest = description.partition(":")
    if colon and prefix == MENAGERIE:
        return _menagerie_path(rest)
    if colon and prefix in PACKAGE_PREFIXES:
        found = importlib.util.find_spec(prefix)
        if found is None or not found.submodule_search_locations:
            raise FerryError(
                f"description {description!r} needs the package {PACKAGE_PREFIXES[prefix]!r}: "
                f"pip install 'ferry[pybullet]'"
            )
        path = Path(next(iter(found.submodule_search_locations))) / rest
    else:
        path = Path(description)
        if not path.is_absolute() and base is not None:
            path = base / path
    if not path.is_file():
        siblings = [p.name for p in path.parent.glob("*")] if path.parent.is_dir() else []
        raise FerryError(
            f"description {description!r}: no file {path}{nearest(path.name, siblings)}"
        )
    return path


def _menagerie_path(rest: str) -> Path:
    """Where a model of MuJoCo Menagerie lies; the package downloads it on first use."""
    if importlib.util.find_spec(MENAGERIE_PACKAGE) is None:
        raise FerryError(
            f"description 'menagerie:{rest}' needs the package 'mujoco-menagerie': "
            "pip install 'ferry[menagerie]'"
        )
    menagerie: Any = importlib.import_module(MENAGERIE_PACKAGE)
    name, _, entry = rest.partition("/")
    try:
        model = menagerie.get(name)
        return Path(model.xml(entry or model.default_model))
    except menagerie.MenagerieError as error:
        raise FerryError(f"description 'menagerie:{rest}': {error}") from error


def is_mjcf(path: Path) -> bool:
    """Whether a description is in MuJoCo's own format, by its root element.

    Raises:
        FerryError: not readable as XML.
    """
    return _root(path).tag == "mujoco"


def _root(path: Path) -> ElementTree.Element:
    try:
        return ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        raise FerryError(f"{path}: not readable as XML ({error})") from error


def read_description(path: Path) -> Description:
    """Read the joints and links of a URDF or MJCF file.

    An MJCF's named geoms and sites count as links too: they are where its feet and sensors are.

    ``continuous`` joints have no position limits whatever the file says, as the URDF
    specification defines. A ``<limit effort="0" velocity="0">`` is kept as zero: zero means "no
    authority" and :class:`~real.spec.RobotSpec` refuses it, since it nearly always meant "unknown".

    Raises:
        FerryError: not XML, neither URDF nor MJCF, not through xacro yet, or a joint without a
            name or child.
    """
    root = _root(path)
    if root.tag == "mujoco":
        return _of_mjcf(path)
    if root.tag != "robot":
        raise FerryError(
            f"{path}: the root element is <{root.tag}>; expected a URDF <robot> or an MJCF <mujoco>"
        )
    _require_plain(path, root)
    joints: dict[str, DescribedJoint] = {}
    for element in root.findall("joint"):
        joint = _joint(element, path)
        if joint is not None:
            joints[joint.name] = joint
    links = tuple(e.get("name", "") for e in root.findall("link"))
    return Description(path=path, joints=joints, links=links)


def _require_plain(path: Path, root: ElementTree.Element) -> None:
    """Refuse a file that xacro, which writes URDFs, has not been through."""
    for part in (*root.findall("link"), *root.findall("joint")):
        for element in part.iter():
            for key, text in element.attrib.items():
                if "$(" in text or "${" in text:
                    raise FerryError(
                        f"{path}: {part.tag} {part.get('name')!r}: <{element.tag} {key}={text!r}> "
                        "is for xacro to replace; expected a finished URDF: `xacro FILE > my.urdf`"
                    )


def link_rotation(path: Path, *, link: str, base_link: str) -> NDArray[np.float64]:
    """Rotation from a link's frame to the base link's, through fixed joints only.

    Args:
        path: a URDF file.
        link: where to start, e.g. the link that carries the IMU.
        base_link: where to end.

    Returns:
        ``[4]`` wxyz that takes vectors of ``link`` to ``base_link``.

    Raises:
        FerryError: not readable, or a movable joint or nothing at all connects the two.
    """
    root = _root(path)
    if root.tag == "mujoco":
        raise FerryError(
            f"{path}: the frame of the IMU is read from URDF files only; expected imu_link "
            f"{base_link!r}, the base link itself"
        )
    above: dict[str, tuple[str, ElementTree.Element]] = {}
    for joint in root.findall("joint"):
        parent, child = joint.find("parent"), joint.find("child")
        if parent is not None and child is not None:
            above[child.get("link", "")] = (parent.get("link", ""), joint)
    rotation, at = IDENTITY, link
    while at != base_link:
        if at not in above:
            raise FerryError(f"{path}: link {link!r} does not hang on {base_link!r}")
        at, joint = above[at]
        if joint.get("type") != "fixed":
            raise FerryError(
                f"{path}: joint {joint.get('name')!r} ({joint.get('type')}) lies between "
                f"{link!r} and {base_link!r}; expected fixed joints only"
            )
        origin = joint.find("origin")
        text = "0 0 0" if origin is None else origin.get("rpy", "0 0 0")
        rotation = multiply(from_rpy([float(x) for x in text.split()]), rotation)
    return rotation


def _of_mjcf(path: Path) -> Description:
    file = Mjcf(path)
    joints: dict[str, DescribedJoint] = {}
    for joint in file.joints:
        if joint.kind == "ball":
            raise FerryError(
                f"{path}: joint {joint.name!r} is a ball joint; expected hinge, slide or free"
            )
        if joint.kind != "free":
            joints[joint.name] = DescribedJoint(
                name=joint.name,
                kind=joint.kind,
                q_min=joint.q_min,
                q_max=joint.q_max,
                dq_max=math.nan,  # MJCF has no velocity limits
                tau_max=joint.effort,
                child=joint.body,
                mimics=None,
            )
    return Description(path=path, joints=joints, links=("world", *file.bodies, *file.frames))


def _joint(element: ElementTree.Element, path: Path) -> DescribedJoint | None:
    kinds = {"revolute": "hinge", "continuous": "hinge", "prismatic": "slide"}
    kind = kinds.get(element.get("type", ""))
    if kind is None:  # fixed, floating and planar joints are no joints of a RobotSpec
        return None
    name = element.get("name")
    child = element.find("child")
    if name is None or child is None:
        raise FerryError(f"{path}: joint {name!r} lacks a name or a <child>")
    limit = element.find("limit")
    mimic = element.find("mimic")
    continuous = element.get("type") == "continuous"

    def number(key: str) -> float:
        text = None if limit is None else limit.get(key)
        try:
            return math.nan if text is None else float(text)
        except ValueError as error:
            raise FerryError(
                f"{path}: joint {name!r}: <limit {key}={text!r}> is not a number"
            ) from error

    return DescribedJoint(
        name=name,
        kind=kind,
        q_min=-math.inf if continuous else number("lower"),
        q_max=math.inf if continuous else number("upper"),
        dq_max=number("velocity"),
        tau_max=number("effort"),
        child=child.get("link", ""),
        mimics=None if mimic is None else mimic.get("joint"),
    )
