"""The chain of joints from a robot's base to its end effector, read from its description."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np

from real.errors import FerryError
from real.kinematics import Chain, ChainJoint
from real.spec import RobotSpec
from sim.inertia import Pose, read_origin
from sim.urdf import WORLD_LINK, PreparedUrdf, prepare


def end_effector_chain(robot: RobotSpec) -> Chain:
    """The way to ``robot.end_effector``.

    Raises:
        FerryError: the robot file names no end effector, or it does not hang on a joint.
    """
    if robot.end_effector is None:
        raise FerryError(
            f"{robot.source}: robot {robot.name!r} has no end_effector, and its task commands a "
            "pose of it; name the link"
        )
    urdf = prepare(robot)
    joints = {j.find("child").get("link"): j for j in urdf.element.findall("joint")}  # pyright: ignore[reportOptionalMemberAccess]
    chain: list[ChainJoint] = []
    tip = urdf.in_carrier[robot.end_effector]
    at = urdf.carrier[robot.end_effector]
    kinds = {j.name: j.kind for j in robot.joints}
    while at != urdf.root:
        joint = joints[at]
        parent = joint.find("parent").get("link", "")  # pyright: ignore[reportOptionalMemberAccess]
        parent = "world" if parent == WORLD_LINK else parent
        before, place = _in_frame_before(urdf, parent, read_origin(joint))
        axis = joint.find("axis")
        name = joint.get("name", "")
        chain.append(_joint(name, kinds[name], place, axis))
        at = before
    if not chain:
        raise FerryError(
            f"{robot.source}: end_effector {robot.end_effector!r} is fixed to the base; expected a "
            "link that joints move"
        )
    return Chain(robot.end_effector, tuple(reversed(chain)), *_tuples(tip))


def _in_frame_before(urdf: PreparedUrdf, parent: str, origin: Pose) -> tuple[str, Pose]:
    """The moving link a joint hangs on, and the joint's place in its frame, or in the base's."""
    carrier = urdf.carrier[parent]
    place = urdf.in_carrier[parent].then(origin)
    return carrier, urdf.base_to_root.then(place) if carrier == urdf.root else place


def _joint(name: str, kind: str, place: Pose, axis: ElementTree.Element | None) -> ChainJoint:
    text = "1 0 0" if axis is None else axis.get("xyz", "1 0 0")
    x, y, z = (float(v) for v in text.split())
    return ChainJoint(name, kind, *_tuples(place), (x, y, z))


def _tuples(
    pose: Pose,
) -> tuple[tuple[float, float, float], tuple[float, float, float, float]]:
    x, y, z = np.asarray(pose.position).tolist()
    w, a, b, c = np.asarray(pose.quat).tolist()
    return (x, y, z), (w, a, b, c)
