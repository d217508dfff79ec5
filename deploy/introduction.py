"""What a robot says of itself to the graph, on a computer with or without its description file."""

from __future__ import annotations

from dataclasses import replace

from real.contract import RobotContract
from real.description import link_rotation
from real.errors import FerryError
from real.frames import multiply
from real.spec import RobotSpec, load_robot


def load_here(name: str) -> RobotSpec:
    """Load a robot, with the limits of its description where that file is on this computer."""
    spec = load_robot(name, read_limits=False)
    return load_robot(name) if has_description(spec) else spec


def has_description(spec: RobotSpec) -> bool:
    """Whether the robot's description lies on this computer."""
    try:
        spec.description_file()
    except FerryError:
        return False
    return True


def contract_of(spec: RobotSpec) -> RobotContract:
    """What the robot says of itself, with the IMU's rotation where its description gives it."""
    contract = RobotContract.from_spec(spec)
    if spec.imu_link is None or not has_description(spec):
        return contract
    in_file = link_rotation(spec.description_file(), link=spec.imu_link, base_link=spec.base_link)
    w, x, y, z = multiply(spec.base_rotation, in_file).tolist()
    return replace(contract, imu_rotation=(w, x, y, z))
