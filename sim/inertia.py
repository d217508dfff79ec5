"""Masses and inertias of a URDF's links: read, checked, moved between frames and fused."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from real.chain import read_origin
from real.errors import FerryError
from real.frames import Pose, to_matrix, to_rpy
from real.spec import RobotSpec

log = logging.getLogger(__name__)

Array = NDArray[np.float64]

# By which share of the largest moment the two smaller ones may fall short of it: numbers of a few
# digits do by rounding, and CAD exports of real robots by some percent. More is a mistake.
_ROUNDING = 1e-7
_CORRECTABLE = 0.2
_KEYS = ("ixx", "iyy", "izz", "ixy", "ixz", "iyz")


@dataclass(frozen=True)
class Inertial:
    """Mass properties in some frame.

    Attributes:
        mass: [kg].
        com: ``[3]`` centre of mass [m].
        inertia: ``[3, 3]`` about the centre of mass, in the axes of the frame [kg m^2].
    """

    mass: float
    com: Array
    inertia: Array

    def seen_from(self, pose: Pose) -> Inertial:
        """The same in the frame in which this frame has ``pose``."""
        turn = to_matrix(pose.quat)
        # I' = R I R^T
        return Inertial(self.mass, pose.position + turn @ self.com, turn @ self.inertia @ turn.T)


MASSLESS = Inertial(0.0, np.zeros(3), np.zeros((3, 3)))
"""What a frame without a body weighs."""


def fuse(parts: list[Inertial]) -> Inertial:
    """One rigid body of several, all given in the same frame (parallel-axis theorem)."""
    mass = sum(part.mass for part in parts)
    if mass == 0.0:
        return MASSLESS
    com = sum((part.mass * part.com for part in parts), np.zeros(3)) / mass
    inertia = np.zeros((3, 3))
    for part in parts:
        # I + m (|d|^2 1 - d d^T), d from the common centre of mass
        d = part.com - com
        inertia += part.inertia + part.mass * (d @ d * np.eye(3) - np.outer(d, d))
    return Inertial(mass, com, inertia)


def read_inertials(
    links: dict[str, ElementTree.Element], path: Path, *, robot: RobotSpec
) -> dict[str, Inertial]:
    """The inertial of every link, in the axes of the link; massless where there is none.

    What the robot file says under ``links`` replaces the description's, which is then not checked.

    A link without ``<inertial>`` gets mass 0 written into it: PyBullet would give it 1 kg. An
    inertia that slightly violates the triangle inequality is corrected in the file, with a warning
    that tells link, before and after.

    Raises:
        FerryError: naming file and link: an inertial is incomplete or no body can have it.
    """
    inertials: dict[str, Inertial] = {}
    replaced = {given.name for given in robot.links if given.inertia is not None}
    for name, link in links.items():
        inertial = link.find("inertial")
        if inertial is None:
            inertials[name] = MASSLESS
            write_inertial(link, MASSLESS)
            continue
        try:
            inertials[name], change = _read(inertial, check=name not in replaced)
        except FerryError as error:
            raise FerryError(f"{path}: link {name!r}: {error}") from error
        if change:
            log.warning("%s: link %r: %s", path, name, change)
        write_inertial(link, inertials[name])
    return _replaced(inertials, links, robot)


def check_moving(
    inertials: dict[str, Inertial],
    carrier: dict[str, str],
    *,
    fixed_root: str | None,
    path: Path,
) -> None:
    """Refuse a moving body without mass or without inertia.

    Args:
        inertials: by link.
        carrier: the moving link that each link is rigidly part of.
        fixed_root: the root link of a robot that is bolted down; it needs no mass.
        path: the file, for the message.

    Raises:
        FerryError: naming file and link.
    """
    mass = dict.fromkeys(carrier.values(), 0.0)
    moments = dict.fromkeys(carrier.values(), 0.0)
    for name, inertial in inertials.items():
        mass[carrier[name]] += inertial.mass
        moments[carrier[name]] += float(np.trace(inertial.inertia))
    for name in mass:
        if name == fixed_root:
            continue
        if mass[name] <= 0.0:
            raise FerryError(
                f"{path}: link {name!r} moves but has no mass (no <inertial>, or mass 0, on it and "
                "on what is fixed to it); expected an <inertial> with mass > 0, or mass, com and "
                f"inertia with their source in the robot file, links.{name}"
            )
        if moments[name] <= 0.0:
            raise FerryError(
                f"{path}: link {name!r} moves with a mass of {mass[name]} kg but no inertia: ixx, "
                "iyy and izz are 0; expected the moments of the real body, in the file or with "
                f"their source in the robot file, links.{name}.inertia"
            )


def _replaced(
    inertials: dict[str, Inertial], links: dict[str, ElementTree.Element], robot: RobotSpec
) -> dict[str, Inertial]:
    """The inertials with what the robot file's ``links`` say in place of the description's."""
    out = dict(inertials)
    for given in robot.links:
        was = out[given.name]
        inertia = was.inertia
        if given.inertia is not None:
            xx, yy, zz, xy, xz, yz = given.inertia
            inertia = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
        try:
            inertia, change = _possible(inertia)
        except FerryError as error:
            raise FerryError(f"{robot.source}: links.{given.name}: {error}") from error
        if change:
            log.warning("%s: links.%s: %s", robot.source, given.name, change)
        out[given.name] = Inertial(
            mass=was.mass if given.mass is None else given.mass,
            com=was.com if given.com is None else np.array(given.com),
            inertia=inertia,
        )
        write_inertial(links[given.name], out[given.name])
    return out


def _read(element: ElementTree.Element, *, check: bool) -> tuple[Inertial, str]:
    """The inertial in the axes of its link, and what was corrected, if anything."""
    mass_element, inertia_element = element.find("mass"), element.find("inertia")
    if mass_element is None or inertia_element is None:
        lacking = "<mass>" if mass_element is None else "<inertia>"
        raise FerryError(f"<inertial> has no {lacking}; expected both")
    try:
        mass = float(mass_element.get("value", "nan"))
        xx, yy, zz, xy, xz, yz = (
            float(inertia_element.get(key, "nan" if key[1] == key[2] else "0")) for key in _KEYS
        )
        origin = read_origin(element, "inertial")
    except ValueError as error:
        raise FerryError(f"<inertial>: {error}") from error
    inertia = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
    if not (np.isfinite(inertia).all() and np.isfinite(mass) and mass >= 0.0):
        raise FerryError(
            f"<inertial> has mass {mass} and ixx, iyy, izz {xx}, {yy}, {zz}; expected finite "
            "numbers and mass >= 0"
        )
    if mass == 0.0:
        return MASSLESS, ""
    change = ""
    if check:
        inertia, change = _possible(inertia)
    return Inertial(mass, np.zeros(3), inertia).seen_from(origin), change


def _possible(inertia: Array) -> tuple[Array, str]:
    """An inertia that a body can have, and what was changed to get it, if anything.

    Raises:
        FerryError: no small change will do.
    """
    moments, axes = np.linalg.eigh(inertia)
    a, b, c = (float(m) for m in moments)
    # Principal moments of any body, a <= b <= c: 0 <= a and a + b >= c.
    excess = c - (a + b)
    if a >= 0.0 and excess < -_ROUNDING * c:
        return inertia, ""
    found = f"principal moments of inertia {a:.4g}, {b:.4g}, {c:.4g} kg m^2"
    if a < -_ROUNDING * c or excess > _CORRECTABLE * c:
        raise FerryError(
            f"{found}; expected none negative and the two smaller ones to sum to at least the "
            "largest, as for every real body; correct the file"
        )
    # The nearest possible moments, and a hair more against rounding: each takes or gives a third.
    moments = moments + (excess + _ROUNDING * c) / 3.0 * np.array([1.0, 1.0, -1.0])
    corrected = axes @ np.diag(moments) @ axes.T
    if excess <= _ROUNDING * c:
        return corrected, ""
    changed = ", ".join(f"{m:.4g}" for m in moments)
    return corrected, f"{found}, which no body has; taken as {changed}"


def write_inertial(link: ElementTree.Element, inertial: Inertial) -> None:
    """Replace the ``<inertial>`` of a link by one in the axes of the link."""
    for old in link.findall("inertial"):
        link.remove(old)
    element = ElementTree.SubElement(link, "inertial")
    ElementTree.SubElement(element, "origin", xyz=" ".join(repr(float(v)) for v in inertial.com))
    ElementTree.SubElement(element, "mass", value=repr(float(inertial.mass)))
    inertia = inertial.inertia
    where = {"ixx": (0, 0), "iyy": (1, 1), "izz": (2, 2), "ixy": (0, 1), "ixz": (0, 2)}
    values = {key: repr(float(inertia[at])) for key, at in where.items()}
    values["iyz"] = repr(float(inertia[1, 2]))
    ElementTree.SubElement(element, "inertia", values)


def write_origin(element: ElementTree.Element, pose: Pose) -> None:
    """Replace the ``<origin>`` of an element."""
    for old in element.findall("origin"):
        element.remove(old)
    xyz = " ".join(repr(float(v)) for v in pose.position)
    rpy = " ".join(repr(v) for v in to_rpy(pose.quat))
    ElementTree.SubElement(element, "origin", xyz=xyz, rpy=rpy)
