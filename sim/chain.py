"""The chain of joints from a robot's base to its end effector, whatever describes the robot."""

from __future__ import annotations

from real.chain import chain_of, named_end_effector
from real.kinematics import Chain
from real.spec import RobotSpec
from sim.urdf import BASE_FRAME, prepare


def end_effector_chain(robot: RobotSpec) -> Chain:
    """The way to ``robot.end_effector``.

    Raises:
        FerryError: the robot file names no end effector, or it does not hang on a joint.
    """
    link = named_end_effector(robot)
    urdf = prepare(robot)
    return chain_of(
        urdf.element,
        link=link,
        base_link=BASE_FRAME,
        joints=robot.joint_names,
        source=robot.source,
    )
