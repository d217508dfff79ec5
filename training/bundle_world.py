"""The world that a bundle was trained in, ready to be simulated: its own, or one that is named."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from deploy.bundle import Bundle
from real.errors import FerryError
from sim.actuator_file import read_actuator
from sim.motors import ActuatorsConfig
from sim.task import load_env_config
from sim.world_config import WorldConfig, world_of_contract, world_of_task

#: What helps a bundle that does not say its world.
REMEDY = "name its task with --task, e.g. runs/NAME/config.yaml, or export it again"


@contextlib.contextmanager
def bundle_world(
    bundle: Bundle, *, task: str | Path | None = None, actuator: Path | None = None
) -> Iterator[WorldConfig | None]:
    """What suites need to evaluate a bundle where it was trained.

    A learned actuator that the bundle carries is a file for as long as the context is open.

    Args:
        bundle: the bundle.
        task: a task by name or file, such as the ``config.yaml`` of a run, to take in place of
            what the bundle says; None for its own.
        actuator: the learned actuator, where the bundle names it without carrying it, or where
            the task's is not at its place.

    Yields:
        The world; None where nobody says it: on a plane with servos, as ever.

    Raises:
        FerryError: the task is wrong or has servos, or the actuator is missing or another one.
    """
    kept = bundle.contract.world
    if task is not None:
        world = world_of_task(load_env_config(task))
        yield world if actuator is None else _moved_by(world, actuator, task)
        return
    _require_named(bundle, actuator)
    if kept is None:
        if actuator is not None:
            raise FerryError(
                f"{bundle.source} was exported before bundles carried their world, so --actuator "
                f"does not suffice: {REMEDY}"
            )
        yield None
    else:
        with tempfile.TemporaryDirectory(prefix="ferry-") as folder:
            file = _actuator_file(bundle, actuator, Path(folder))
            yield world_of_contract(
                kept, bundle.contract.robot, actuators=file, source=bundle.source
            )


def require_bundle(
    run: Path, *, task: str | Path | None = None, actuator: Path | None = None
) -> None:
    """Refuse what only a bundle takes.

    Raises:
        FerryError: a task or actuator is given for a run folder.
    """
    for name, given in (("task", task), ("actuator", actuator)):
        if given is not None:
            raise FerryError(
                f"{run} is a run folder, whose config.yaml says its world; --{name} is for bundles"
            )


def _require_named(bundle: Bundle, actuator: Path | None) -> None:
    """Refuse an actuator that is not the one of the training."""
    world = bundle.contract.world
    if actuator is None or world is None:
        return
    named = world.actuator
    if named is None:
        raise FerryError(f"{bundle.source} was trained with servos; --actuator {actuator} is none")
    if not named.is_of(read_actuator(actuator)):
        raise FerryError(
            f"--actuator {actuator} is not what {bundle.source} was trained with: expected "
            f"{named.name} of sha256 {named.sha256}"
        )


def _actuator_file(bundle: Bundle, given: Path | None, folder: Path) -> Path | None:
    world = bundle.contract.world
    named = None if world is None else world.actuator
    if named is None or given is not None:
        return given
    if bundle.actuator is None:
        raise FerryError(
            f"{bundle.source} was trained with the learned actuator {named.name} (sha256 "
            f"{named.sha256}), which it names but does not carry: give the file with --actuator"
        )
    file = folder / named.name
    file.write_bytes(bundle.actuator)
    return file


def _moved_by(world: WorldConfig, actuator: Path, task: str | Path) -> WorldConfig:
    if world.actuators is None:
        raise FerryError(
            f"task {task} has servos, no learned actuator: leave out --actuator {actuator}"
        )
    return world.model_copy(update={"actuators": ActuatorsConfig(network=str(actuator))})
