"""The border to a robot: what a driver, simulated or not, must offer.

A plug-in is a class named ``module:Class``; the robot node builds it with the
:class:`~real.spec.RobotSpec` and the plug-in's own options, and is the only one to call it.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from real.domain import DomainSample
from real.errors import FerryError, nearest
from real.plugin_options import is_number, require_kinds
from real.signals import JointCommand, RobotState
from real.spec import RobotSpec

Array = NDArray[np.float64]


@dataclass(frozen=True)
class GroundTruth:
    """What only a simulated robot knows; for scorers, never for anything that acts.

    Attributes:
        stamp_ns: time of the sample [ns].
        position_w: ``[3]`` base position [m].
        quat_wb: ``[4]`` wxyz.
        lin_vel_b: ``[3]`` base linear velocity in the base frame [m/s].
        ang_vel_b: ``[3]`` base angular velocity in the base frame [rad/s].
    """

    stamp_ns: int
    position_w: Array
    quat_wb: Array
    lin_vel_b: Array
    ang_vel_b: Array


@runtime_checkable
class RobotIO(Protocol):
    """One robot (N = 1).

    To build one touches nothing: one is built to look at what it declares, and closed, before the
    graph starts. :meth:`start` opens the connection.

    Attributes:
        period_s: how often the robot node must call :meth:`exchange` [s]. For a simulated robot
            it is the time that each call advances.
        command_timeout_s: after how long without :meth:`exchange` the robot stops by itself,
            in firmware, not in Python. None where the driver cannot: it is refused on hardware.
        simulated: whether this is a simulation (decides discovery range and domain defaults).
    """

    period_s: float
    command_timeout_s: float | None
    simulated: bool

    def start(self) -> RobotState:
        """Open the connection and return the first state (N = 1). Must not move the robot."""
        ...

    def exchange(self, command: JointCommand) -> RobotState:
        """Hand over one command (N = 1) and return the newest state. Called every ``period_s``."""
        ...

    def ground_truth(self) -> GroundTruth | None:
        """The truth behind the newest state, or None where nobody knows it."""
        ...

    def close(self) -> None:
        """Stop safely and release everything. May be called twice, and before :meth:`start`."""
        ...


def require_firmware_timeout(robot: RobotIO, plugin: str) -> None:
    """Refuse hardware that nothing stops if Python hangs.

    Args:
        robot: built from the plug-in; a simulated one passes.
        plugin: what to call it.

    Raises:
        FerryError: it declares no time-out, or one that is no time.
    """
    timeout_s: object = robot.command_timeout_s
    if robot.simulated is True or (is_number(timeout_s) and 0.0 < timeout_s < math.inf):
        return
    found = "no command_timeout_s" if timeout_s is None else f"command_timeout_s = {timeout_s!r}"
    raise FerryError(
        f"robot plug-in {plugin!r} declares {found}: if robot_node hangs, nothing stops the "
        "robot. Use a driver with a time-out in firmware and declare it in seconds, or set "
        "robot_node's parameter allow_no_firmware_timeout (a parameter file: --params)"
    )


@runtime_checkable
class DrawnWorld(Protocol):
    """What a simulated robot may offer beside :class:`RobotIO`, if it may be known."""

    def domain_sample(self) -> DomainSample | None:
        """What was drawn for its world; None from one whose truth is hidden."""
        ...


def drawn_world(robot: RobotIO) -> DomainSample | None:
    """What was drawn for a simulated robot's world; None for hardware, and where it is hidden.

    A stand-in for hardware, with which identification is tried, hides it: a recording that told
    the answer would make the trial worthless.
    """
    if not robot.simulated or not isinstance(robot, DrawnWorld):
        return None
    return robot.domain_sample()


@runtime_checkable
class PlannedWorld(Protocol):
    """What the class of a simulated robot may offer: its world, said before one is built."""

    def planned_world(self, robot: RobotSpec, options: Mapping[str, Any], /) -> str:
        """What a robot with these options of the plug-in would stand in, for people.

        Raises:
            FerryError: the options do not make a world.
        """
        ...


def load_plugin(path: str, robot: RobotSpec, *, options: Mapping[str, Any]) -> RobotIO:
    """Build the RobotIO plug-in ``module:Class``.

    Args:
        path: where it lives, e.g. ``sim.sim_robot:PyBulletRobot``.
        robot: what it shall be.
        options: keyword arguments of the class.

    Raises:
        FerryError: the module or class does not exist, the options do not fit, or the class says
            otherwise than what it builds whether that is simulated.
    """
    module_name, colon, class_name = path.partition(":")
    if not colon or not module_name or not class_name:
        raise FerryError(f"robot plug-in {path!r}: expected 'module:Class'")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise FerryError(
            f"robot plug-in {path!r}: module {module_name!r} cannot be imported ({error})"
        ) from error
    except SystemExit as error:
        raise asked_to_exit(path, f"importing {module_name!r}", error) from error
    factory = getattr(module, class_name, None)
    if factory is None:
        raise FerryError(
            f"robot plug-in {path!r}: {module_name} has no {class_name!r}"
            f"{nearest(class_name, [n for n in dir(module) if not n.startswith('_')])}"
        )
    require_kinds(factory, options, path)
    try:
        plugin = factory(robot, **options)
    except TypeError as error:
        raise FerryError(f"robot plug-in {path!r}: options {dict(options)}: {error}") from error
    except SystemExit as error:
        raise asked_to_exit(path, f"building {class_name!r}", error) from error
    if not isinstance(plugin, RobotIO):
        raise FerryError(f"robot plug-in {path!r} does not implement real.robot_io.RobotIO")
    _require_same_kind(plugin, path)
    return plugin


def asked_to_exit(plugin: str, when: str, error: SystemExit) -> FerryError:
    """What to say of a vendor's code that wants the whole process to end, which is not its own.

    Args:
        plugin: what to call the plug-in.
        when: what it did then.
        error: what it raised.
    """
    return FerryError(f"robot plug-in {plugin!r}: {when} asked the process to exit ({error.code})")


def _require_same_kind(robot: RobotIO, plugin: str) -> None:
    """Refuse a robot that is hardware where its class says that nothing real moves, or the reverse.

    The class is asked before anything is built: for the reach of the network, and for who may arm.
    """
    declared: object = getattr(type(robot), "simulated", False)
    found: object = robot.simulated
    if found is not (declared is True):
        raise FerryError(
            f"robot plug-in {plugin!r}: its class says simulated = {declared!r}, what it builds "
            f"says {found!r}; expected True of both for a simulation, else False of both: set it "
            "in the class alone"
        )
