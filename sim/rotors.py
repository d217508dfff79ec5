"""Rotors for an engine that knows no reflected inertia: small bodies geared to the joints.

A motor's rotor turns n times as fast as its joint, so the joint feels n^2 times the rotor's inertia
(``JointSpec.armature``). Where an engine has no such number, the rotor itself does the same: a link
of inertia armature / n^2 on the joint's axis, carried by the joint's parent, and a gear between.

Adding the armature to the child link instead would be wrong: the child's inertia resists every
turning of the robot, a rotor's only the joint's. What a rotor does to its parent shrinks with n:
its angular momentum is armature / n times the joint's velocity. MuJoCo leaves that out.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from xml.etree import ElementTree

GEAR = 100.0
"""Turns of a rotor per turn of its joint (per metre of a slide); larger than in real drives."""

SMALLEST = 1e-7
"""Least armature of a joint with a rotor [kg m^2 or kg]: a body without inertia has no equations of
motion. A tenth of a thousandth of what the smallest joints of robots have."""

_MASS_KG = 1e-6
"""Of a rotor; nobody notices, but a link without mass would not be loaded with its inertia."""


def rotor_of(joint: str) -> str:
    """Name of the rotor's joint and link."""
    return f"{joint}/rotor"


def rotor_inertia(armature: float) -> float:
    """Inertia of the rotor about its axis that gives a joint its armature [kg m^2]."""
    return max(armature, SMALLEST) / GEAR**2


def add_rotors(robot: ElementTree.Element, joints: Collection[str]) -> None:
    """Hang a rotor beside each of the joints; inertias are for the engine to set.

    Args:
        robot: the ``<robot>`` of a URDF, changed in place.
        joints: names of joints that move.
    """
    by_name = {element.get("name"): element for element in robot.findall("joint")}
    for name in joints:
        rotor = rotor_of(name)
        link = ElementTree.SubElement(robot, "link", name=rotor)
        inertial = ElementTree.SubElement(link, "inertial")
        ElementTree.SubElement(inertial, "mass", value=repr(_MASS_KG))
        moment = repr(rotor_inertia(0.0))
        moments = {"ixx": moment, "iyy": moment, "izz": moment}
        ElementTree.SubElement(inertial, "inertia", moments, ixy="0", ixz="0", iyz="0")
        # A hinge, also for a slide: the drum of a cable, the pinion of a rack.
        joint = ElementTree.SubElement(robot, "joint", name=rotor, type="continuous")
        for part in by_name[name]:
            if part.tag in ("origin", "parent", "axis"):
                joint.append(copy.deepcopy(part))
        ElementTree.SubElement(joint, "child", link=rotor)
