"""The world that a simulated robot stands in: by default the one that its policy was trained in.

A bundle carries the table of its ground and its learned actuator; they reach the simulated robot as
options of its plug-in, as everything does that it needs, so no simulator is imported here. Random
terms and errors of sensors stay behind: a robot is simulated as it nominally is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from deploy.bundle import Bundle
from deploy.graph import SIMULATORS, RobotChoice
from real.errors import FerryError
from real.world import ActuatorFile


@dataclass(frozen=True)
class WorldWish:
    """What is asked for of the world.

    Attributes:
        task: a task by name or file whose ground and motors to take in place of the bundle's.
        actuator: the learned actuator, where the bundle names it without carrying it, or where the
            task's is not at its place.
        plane: whether to leave out the terrain.
        seed: that draws the tile where a robot begins.
    """

    task: str | None = None
    actuator: Path | None = None
    plane: bool = False
    seed: int = 0

    @property
    def asked(self) -> str:
        """The first option that was given; empty if none was."""
        given = {
            "task": self.task is not None,
            "actuator": self.actuator is not None,
            "plane": self.plane,
        }
        return next((f"--{name}" for name, is_given in given.items() if is_given), "")


def in_its_world(
    bundle: Bundle, choice: RobotChoice, wish: WorldWish, *, folder: Path | None
) -> RobotChoice:
    """A robot with the options of its world; itself where it is not one of our simulated ones.

    Options that were given for the plug-in by name stay what they are; a task among them is as
    good as one in the wish.

    Args:
        bundle: whose world it is.
        choice: the robot.
        wish: what is asked for.
        folder: where a learned actuator that the bundle carries is written, for as long as the
            robot is; made if it is needed, a temporary one if None.

    Raises:
        FerryError: a world is asked for that the robot or the bundle does not have, or the learned
            actuator is missing or another one.
    """
    if choice.plugin not in SIMULATORS.values():
        if wish.asked:
            raise FerryError(
                f"{wish.asked} is for robots that Ferry simulates: "
                f"{', '.join('sim:' + name for name in SIMULATORS)}; {choice.plugin} has a world "
                "of its own"
            )
        return choice
    task = choice.options.get("task", wish.task)
    if wish.task not in (None, task):
        raise FerryError(f"--task {wish.task} and --option task={task}: expected one of them")
    if task is not None:
        options = _of_task(str(task), wish)
    else:
        options = _of_bundle(bundle, wish, given=choice.options, folder=folder)
    return replace(choice, options={**options, **choice.options})


def _of_task(task: str, wish: WorldWish) -> dict[str, object]:
    file = Path(task)
    out: dict[str, object] = {"task": str(file.absolute()) if file.is_file() else task}
    if wish.actuator is not None:
        out["actuator"] = str(wish.actuator.absolute())
    if wish.plane:
        return {**out, "plane": True}
    return {**out, "seed": wish.seed}


def _of_bundle(
    bundle: Bundle, wish: WorldWish, *, given: Mapping[str, object], folder: Path | None
) -> dict[str, object]:
    world = bundle.contract.world
    if world is None:
        if wish.actuator is not None:
            raise FerryError(
                f"{bundle.source} was exported before bundles carried their world, so --actuator "
                "does not suffice: name its task with --task, or export it again"
            )
        return {}
    out: dict[str, object] = {}
    if world.terrain is not None and not wish.plane:
        out |= {"terrain": dict(world.terrain), "seed": wish.seed}
    if world.actuator is None:
        if wish.actuator is not None:
            raise FerryError(
                f"{bundle.source} was trained with servos; --actuator {wish.actuator} is none"
            )
    elif "actuator" not in given:
        file = _actuator_file(bundle, world.actuator, wish.actuator, folder)
        out["actuator"] = str(file.absolute())
    return out


def _actuator_file(
    bundle: Bundle, named: ActuatorFile, given: Path | None, folder: Path | None
) -> Path:
    """The learned actuator as a file: the one that is given, or the bundle's own."""
    if given is not None:
        try:
            data = given.read_bytes()
        except OSError as error:
            raise FerryError(
                f"--actuator {given} cannot be read: {error.strerror or error}"
            ) from error
        if not named.is_of(data):
            raise FerryError(
                f"--actuator {given} is not what {bundle.source} was trained with: expected "
                f"{named.name} of sha256 {named.sha256}"
            )
        return given
    if bundle.actuator is None:
        raise FerryError(
            f"{bundle.source} was trained with the learned actuator {named.name} (sha256 "
            f"{named.sha256}), which it names but does not carry: give the file with --actuator, "
            "or a task with servos with --task"
        )
    place = Path(tempfile.mkdtemp(prefix="ferry-")) if folder is None else folder
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = place / named.name
    file.write_bytes(bundle.actuator)
    return file


def begun_anew(plugin: str, options: Mapping[str, object], times: int) -> Mapping[str, object]:
    """Options of a robot that stands in for one that fell: on terrain on a tile of its own draw.

    Args:
        plugin: of the robot.
        options: of the first one.
        times: how many were before it.
    """
    seed = options.get("seed")
    if plugin not in SIMULATORS.values() or not isinstance(seed, int):
        return options
    return {**options, "seed": seed + times}
