"""The robot's plug-in, looked at before a node starts: is it there, does it fit, is it safe."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from typing import Any, cast

from deploy.graph import SIMULATORS, RobotChoice
from real.errors import FerryError, nearest
from real.plugin_options import require_kinds
from real.robot_io import PlannedWorld, load_plugin, require_firmware_timeout
from real.spec import RobotSpec


def is_installed(name: str) -> bool:
    """Whether a module can be found."""
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


def check_plugin(
    choice: RobotChoice, spec: RobotSpec, *, unguarded: bool = False
) -> tuple[RobotChoice, str]:
    """Find the plug-in; its class also says whether it simulates, and in which world.

    Args:
        choice: what was asked for.
        spec: the robot.
        unguarded: whether hardware may come without a time-out in firmware.

    Returns:
        The plug-in, with ``simulated`` as its class declares it, and in words what a simulated
        robot will stand in; empty where nobody says it.

    Raises:
        FerryError: there is none, it does not take the options, or nothing stops the robot.
    """
    module_name, _, class_name = choice.plugin.partition(":")
    try:
        found = importlib.util.find_spec(module_name)
    except ImportError as error:
        raise FerryError(f"robot plug-in {choice.plugin!r}: {error}") from error
    if found is None:
        raise FerryError(
            f"robot plug-in {choice.plugin!r}: there is no module {module_name!r}; install it, or "
            "start where it lies"
        )
    if choice.simulated:
        _check_simulator(choice)
    try:
        module = importlib.import_module(module_name)
    # A driver's import runs a vendor's code; whatever it raises, the answer is the same.
    except (Exception, SystemExit) as error:
        raise FerryError(
            f"robot plug-in {choice.plugin!r}: importing {module_name!r} failed "
            f"({type(error).__name__}: {error})"
        ) from error
    kind = getattr(module, class_name, None)
    if kind is None:
        known = [n for n, value in vars(module).items() if isinstance(value, type)]
        raise FerryError(
            f"robot plug-in {choice.plugin!r}: {module_name} has no {class_name!r}"
            f"{nearest(class_name, known)}"
        )
    if not isinstance(kind, type):
        raise FerryError(
            f"robot plug-in {choice.plugin!r}: {class_name!r} is a {type(kind).__name__}; expected "
            "a class with the methods of real.robot_io.RobotIO"
        )
    _check_options(choice, cast("type[Any]", kind))
    simulated = getattr(kind, "simulated", False) is True
    found_out = RobotChoice(choice.plugin, simulated=simulated, options=choice.options)
    if simulated:
        return found_out, _planned_world(found_out, kind, spec)
    if not unguarded:
        _check_timeout(found_out, spec)
    return found_out, ""


def _planned_world(choice: RobotChoice, kind: object, spec: RobotSpec) -> str:
    """What a simulated robot will stand in; empty where its class does not say it."""
    if not isinstance(kind, PlannedWorld):
        return ""
    try:
        return kind.planned_world(spec, choice.options)
    except FerryError:
        raise
    # A simulator of the user's own may raise anything.
    except (Exception, SystemExit) as error:
        raise FerryError(
            f"robot plug-in {choice.plugin!r}: options {dict(choice.options)}: planned_world "
            f"failed ({type(error).__name__}: {error})"
        ) from error


def _check_options(choice: RobotChoice, kind: type[Any]) -> None:
    """Refuse options that the plug-in's class does not take, or lacks."""
    try:
        parameters = inspect.signature(kind).parameters
    except (TypeError, ValueError):
        return  # of a compiled class, say; the robot node will see
    named = {
        name: parameter.default is inspect.Parameter.empty
        for name, parameter in list(parameters.items())[1:]  # the first is the robot
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in choice.options:
        if name not in named and not anything:
            raise FerryError(
                f"robot plug-in {choice.plugin!r} has no option {name!r}{nearest(name, named)}; "
                f"it has: {', '.join(named) or 'none'}"
            )
    require_kinds(kind, choice.options, choice.plugin)
    lacking = [name for name, must in named.items() if must and name not in choice.options]
    if lacking:
        raise FerryError(
            f"robot plug-in {choice.plugin!r} needs the option {lacking[0]}: add "
            f"--option {lacking[0]}=..."
        )


def _check_timeout(choice: RobotChoice, spec: RobotSpec) -> None:
    """Build the driver, which opens nothing, and see whether its robot stops by itself."""
    try:
        robot = load_plugin(choice.plugin, spec, options=choice.options)
        try:
            require_firmware_timeout(robot, choice.plugin)
        finally:
            robot.close()
    except FerryError:
        raise
    # A driver runs a vendor's code; whatever it raises, the answer is the same.
    except (Exception, SystemExit) as error:
        raise FerryError(
            f"robot plug-in {choice.plugin!r} cannot be built and closed before the start "
            f"({type(error).__name__}: {error})"
        ) from error


def _check_simulator(choice: RobotChoice) -> None:
    for engine, extra in (("pybullet", "pybullet"), ("mujoco", "train")):
        if SIMULATORS[engine] == choice.plugin and not is_installed(engine):
            raise FerryError(f"{engine} is not installed: pip install 'ferry[{extra}]'")
