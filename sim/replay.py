"""Steps a world that diverged again, from the file that :mod:`sim.black_box` wrote.

::

    from sim.replay import replay
    print(replay("runs/a1/diverged/actor-0-00.npz"))

The model beside the file is all that is needed: neither the task nor the robot's files are read.
"""

# The names of MuJoCo come from compiled modules, which the type checker cannot see.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from mujoco import batch as mujoco_batch
from numpy.typing import NDArray

from real.errors import FerryError
from sim.black_box import FORMAT, broken_fields
from sim.engine import Array

_STAGE_VEL = int(mujoco.mjtStage.mjSTAGE_VEL)


@dataclass(frozen=True)
class Record:
    """What a file says.

    Attributes:
        path: the file.
        model: the nominal one.
        actor: whose world it was.
        world: which of its worlds.
        broken: what was not finite, in words.
        sample: fields of the ``DomainSample`` that the world drew for its episode.
        states: ``[k, S]`` inputs of the last k steps, ``mjSTATE_INTEGRATION`` rows with the
            targets in them, oldest first. They are control steps, of which the last diverged; under
            a learned actuator physics steps, of which one of the last control step did.
        after: ``[S]`` what the last step left.
        substeps: physics steps of a step.
        fields: of the model, as this world had them.
        changing: fields that differ from step to step, ``[k, ...]`` each.
        arrays: everything else by name, e.g. ``world/q``, ``sensed/gyro_b``, ``action``.
    """

    path: Path
    model: mujoco.MjModel
    actor: str
    world: int
    broken: str
    sample: Mapping[str, Any]
    states: Array
    after: Array
    substeps: int
    fields: Mapping[str, NDArray[Any]]
    changing: Mapping[str, NDArray[Any]]
    arrays: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Replay:
    """What happened when a record was stepped again.

    Attributes:
        record: what was stepped.
        diverged_at: the step, 0 to k - 1, whose result is not finite or which MuJoCo warned
            of; None if the physics stayed sound: what broke then lies outside of it.
        moved: steps before which something else had changed the state, such as a push.
        same: whether the end is that of the run, bit for bit.
        states: ``[n, S]`` what each of the n steps left.
        broken: what is not finite at the end, and what MuJoCo warned of.
    """

    record: Record
    diverged_at: int | None
    moved: tuple[int, ...]
    same: bool
    states: Array
    broken: tuple[str, ...]

    def __str__(self) -> str:
        """For people."""
        record, count = self.record, len(self.record.states)
        if self.diverged_at is None:
            found = f"the physics stays sound in all {count} steps: what broke lies outside of it"
        else:
            found = (
                f"diverges again in step {self.diverged_at + 1} of {count}: "
                f"{', '.join(self.broken)}"
            )
        lines = [
            f"{record.path}: world {record.world} of {record.actor}",
            f"in the run: {record.broken}",
            f"replayed: {found}",
            "bit for bit as in the run" if self.same else "NOT bit for bit as in the run",
        ]
        if self.moved:
            steps = ", ".join(str(step + 1) for step in self.moved)
            lines.append(f"state changed from outside (a push, say) before step {steps}")
        return "\n".join(lines)


def read_record(path: str | Path) -> Record:
    """Read a file and the model beside it.

    Raises:
        FerryError: either is missing, cut short, or of another version.
    """
    file = Path(path)
    try:
        with np.load(file) as archive:
            content = {name: archive[name] for name in archive.files}
        if not 1 <= int(content["format"]) <= FORMAT:
            raise FerryError(f"{file} has format {content['format']}; expected 1 to {FORMAT}")
        return Record(
            path=file,
            model=_model(file, content),
            fields=_fields(content, "field/"),
            changing=_fields(content, "step/"),
            actor=str(content["actor"]),
            world=int(content["world"]),
            broken=str(content["broken"]),
            sample=json.loads(str(content["sample"])),
            states=content["states"],
            after=content["after"],
            substeps=int(content["substeps"]),
            arrays={n: v for n, v in content.items() if v.dtype.kind != "U"},
        )
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise FerryError(
            f"{file} is no record of a diverged world ({error}); expected a file of the folder "
            "`diverged` of a run"
        ) from error


def _model(file: Path, content: Mapping[str, NDArray[Any]]) -> mujoco.MjModel:
    """The model beside the file."""
    path = file.parent / str(content["model"])
    try:
        return mujoco.MjModel.from_binary_path(str(path))
    except ValueError as error:
        raise FerryError(
            f"{path} cannot be loaded: {str(error).strip()}; it was written by MuJoCo "
            f"{content['mujoco']}, this is {mujoco.__version__}"
        ) from error


def _fields(content: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {n.removeprefix(prefix): v for n, v in content.items() if n.startswith(prefix)}


def replay(path: str | Path | Record) -> Replay:
    """Step a record again until it diverges: each step from its recorded input.

    On the same machine and with the same MuJoCo each input is what the step before left, but where
    something else changed the state in between: a push, or a hand.

    Raises:
        FerryError: see :func:`read_record`.
    """
    record = path if isinstance(path, Record) else read_record(path)
    batch = mujoco_batch.Batch(record.model, 1, 1, persistent=True)
    for name, values in record.fields.items():
        batch.expand(name)[0] = values
    batch.set_const()
    ctrl = _columns(batch, "ctrl")
    left: list[Array] = []
    moved: list[int] = []
    same, broken = True, list[str]()
    for step, given in enumerate(record.states):
        if left and not same:
            moved.append(step)
        batch.state[0] = given
        for name, values in record.changing.items():
            batch.expand(name)[0] = values[step]
        try:
            batch.step(nstep=record.substeps, stage=_STAGE_VEL)
        except mujoco_batch.SimulationError as error:
            broken.append(str(error))
        left.append(batch.state[0].copy())
        last = step + 1 == len(record.states)
        wanted = (record.after if last else record.states[step + 1]).copy()
        wanted[ctrl] = left[-1][ctrl]  # the next targets
        same = np.array_equal(left[-1], wanted, equal_nan=True)
        broken += _broken(batch)
        if broken:
            now = {name: values[step] for name, values in record.changing.items()}
            broken = broken_fields(record.model, {**record.fields, **now}) + broken
            break
    return Replay(
        record=record,
        diverged_at=len(left) - 1 if broken else None,
        moved=tuple(moved),
        same=same,
        states=np.stack(left),
        broken=tuple(broken),
    )


def _columns(batch: mujoco_batch.Batch, name: str) -> NDArray[np.intp]:
    """Where a field stands in a row of the state."""
    batch.state[0] = np.arange(batch.state.shape[1])
    return batch.bind(name)[0].astype(np.intp).ravel()


def _broken(batch: mujoco_batch.Batch) -> list[str]:
    """Time and joints whose numbers are not finite, and what MuJoCo warned of."""
    model = batch.model
    found = [] if np.isfinite(batch.bind("time")).all() else ["time"]
    for what, values, owner in (
        ("position", batch.bind("qpos")[0], _owners(model, model.jnt_qposadr, model.nq)),
        ("velocity", batch.bind("qvel")[0], model.dof_jntid),
    ):
        bad = np.unique(owner[~np.isfinite(values)])
        found += [f"{what} of {model.joint(int(j)).name or 'base'}" for j in bad]
    numbers = batch.warning[0, :, 1]
    return found + [mujoco.mjtWarning(int(w)).name for w in np.flatnonzero(numbers)]


def _owners(model: mujoco.MjModel, starts: NDArray[Any], size: int) -> NDArray[np.intp]:
    """Which joint each of ``size`` numbers belongs to."""
    return np.searchsorted(starts, np.arange(size), side="right") - 1
