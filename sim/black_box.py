"""Keeps the last steps of every world, and writes those of a world that diverged to a file.

A file ``diverged/actor-0-00.npz`` of a run folder holds the inputs of the last control steps of one
world, bit for bit, the model that this world had, and what it drew; :func:`sim.replay.replay` steps
it again until it diverges again. Under a learned actuator, whose torques change in every physics
step, they are the inputs of the physics steps of as many control steps.
"""

# The names of MuJoCo come from compiled modules, which the type checker cannot see.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from operator import attrgetter
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from sim.engine import Array, Engine, Ids
from sim.mujoco_engine import MujocoEngine
from sim.observe import View
from sim.randomize import Randomizer

Mask = NDArray[np.bool_]

log = logging.getLogger(__name__)

#: Control steps of each world that are kept.
STEPS = 8
#: Files in one folder, whoever writes them; what diverges later is counted only.
LIMIT = 10
#: Of the file; another number is another meaning. 1 had no fields that change between steps.
FORMAT = 2


class BlackBox:
    """Remembers what N worlds were given in their last control steps.

    That is one copy of the batch's states before each step, in which the targets already stand:
    0.6 MB for 256 A1, which takes well below 1 % of a step of ``a1_walk``; 5 MB in all. After
    :meth:`keep_single_steps` there are ``substeps`` copies in a control step, and as many of the
    drives: 4 of 0.6 + 0.1 MB for these, 22 MB in all.

    Args:
        engine: the worlds; it sees their steps once it is the engine's ``recorder``.
        files: their folder, which is made with the first of them, and what their names begin
            with: ``diverged/actor-0`` for ``diverged/actor-0-00.npz``.
        steps: control steps that are kept.
        limit: files in the folder beyond which nothing is written.
    """

    def __init__(
        self,
        engine: MujocoEngine,
        files: Path,
        *,
        steps: int = STEPS,
        limit: int = LIMIT,
    ) -> None:
        self._engine, self._folder, self._name = engine, files.parent, files.name
        self._limit = limit
        self._ring: Array = np.zeros((steps, *engine.batch.state.shape))
        self._noted = 0
        self._age: NDArray[np.int64] = np.zeros(engine.num, dtype=np.int64)
        self._full = False
        self._substeps = engine.robot.substeps
        self._drives: Array | None = None

    def keep_single_steps(self) -> None:
        """Somebody steps the physics one by one, under torques that change in between.

        Then every physics step is kept, of as many control steps, and what the drives were told in
        it, which stands in fields of the model and not in the states.
        """
        steps = len(self._ring) * self._substeps
        self._ring = np.zeros((steps, *self._ring.shape[1:]))
        self._drives = np.zeros((steps, *self._engine.servos.drive().shape))
        self._substeps = 1

    def note(self, state: Array, /) -> None:
        """Keep the states ``[N, S]`` that the next step begins with."""
        at = self._noted % len(self._ring)
        self._ring[at] = state
        if self._drives is not None:
            self._drives[at] = self._engine.servos.drive()
        self._noted += 1
        self._age += 1

    def forget(self, rows: Ids, /) -> None:
        """Worlds ``rows`` begin anew: what came before does not lead to what follows."""
        self._age[rows] = 0

    def last(self, row: int) -> Array:
        """``[k, S]`` what the last steps of a world's episode began with, oldest first."""
        return self._ring[self._kept(row), row]

    def _kept(self, row: int) -> Ids:
        """Where the last k steps of a world's episode stand in the ring, oldest first."""
        count = min(int(self._age[row]), len(self._ring))
        return np.arange(self._noted - count, self._noted) % len(self._ring)

    def write(self, diverged: Mask, view: View, randomizer: Randomizer) -> None:
        """Write a file for each world that diverged, as far as the limit allows.

        See :func:`retire`. A disk that is full is one warning.
        """
        if self._full:
            return
        try:
            for row in np.flatnonzero(diverged).tolist():
                if self._count() >= self._limit:
                    self._full = True  # no need to look again
                    return
                sample = json.dumps(asdict(randomizer.sample(row)))
                kept = {**self._describe(view, row), "sample": sample}
                path = self._write(row, kept)
                log.warning(
                    "world %d of %s diverged: %s; see %s", row, self._name, kept["broken"], path
                )
        # Training does not end because a disk is full.
        except OSError as error:
            self._full = True
            log.warning("cannot write what diverged to %s: %s", self._folder, error)

    def _describe(self, view: View, row: int) -> dict[str, Any]:
        """Signals of a world, and ``broken``: what is not finite in it, in words."""
        kept: dict[str, Any] = {}
        seen = (("world", view.world), ("world", view.world.robot), ("sensed", view.sensed))
        for name, signals in seen:
            for field in fields(signals):
                values = getattr(signals, field.name)
                if isinstance(values, np.ndarray):
                    kept[f"{name}/{field.name}"] = values[row].copy()
        kept |= {"command": view.command[row].copy(), "action": view.prev_action[row].copy()}
        engine = self._engine
        broken = broken_fields(
            engine.built.model, {name: values[row] for name, values in engine.fields.items()}
        )
        broken += [name for name, values in kept.items() if not np.isfinite(values).all()]
        if not broken:
            warned = view.world.diverged[row]
            broken = ["the physics warns" if warned else "a part of the reward"]
        return {**kept, "broken": ", ".join(broken)}

    def _count(self) -> int:
        return len(list(self._folder.glob("*.npz"))) if self._folder.is_dir() else 0

    def _write(self, row: int, about: Mapping[str, Any]) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        engine = self._engine
        content: dict[str, Any] = {
            "format": FORMAT,
            "model": self._write_model(),
            "mujoco": mujoco.__version__,
            "robot": engine.robot.name,
            "actor": self._name,
            "world": row,
            "substeps": self._substeps,
            "states": self.last(row),
            "after": engine.batch.state[row].copy(),
            "warnings": engine.batch.warning[row].copy(),
            **{f"field/{name}": values[row] for name, values in engine.fields.items()},
            **self._changing(row),
            **about,
        }
        for path in self._names():
            if not path.exists():  # an earlier session of the run had the same name
                _replace(path, content)
                return path
        raise AssertionError("names are endless")

    def _changing(self, row: int) -> dict[str, Array]:
        """``step/NAME [k, ...]``: fields of the model in each of the steps that are kept."""
        if self._drives is None:
            return {}
        told = self._engine.servos.fields_of(self._drives[self._kept(row), row], row)
        return {f"step/{name}": values for name, values in told.items()}

    def _names(self) -> Iterator[Path]:
        number = 0
        while True:
            yield self._folder / f"{self._name}-{number:02d}.npz"
            number += 1

    def _write_model(self) -> str:
        """Write the nominal model once; returns its file's name, which tells models apart."""
        model = self._engine.built.model
        buffer = np.zeros(mujoco.mj_sizeModel(model), dtype=np.uint8)
        mujoco.mj_saveModel(model, None, buffer)
        path = self._folder / f"model-{zlib.crc32(buffer.tobytes()):08x}.mjb"
        if not path.exists():
            part = path.with_suffix(f".{os.getpid()}.part")
            part.write_bytes(buffer.tobytes())
            part.replace(path)
        return path.name


def retire(engine: Engine, diverged: Mask, view: View, randomizer: Randomizer) -> None:
    """Write down worlds that diverged, if the engine has a black box, and give them a sound model.

    To be called after every step, before anything is reset and drawn anew.

    Args:
        engine: the worlds; nothing is done in PyBullet, which has neither.
        diverged: ``[N]``.
        view: what was true, sensed and wanted after the step.
        randomizer: knows what they drew for their episodes.
    """
    if not np.count_nonzero(diverged) or not isinstance(engine, MujocoEngine):
        return
    if isinstance(engine.recorder, BlackBox):
        engine.recorder.write(diverged, view, randomizer)
    engine.renew_model(np.flatnonzero(diverged))


def _replace(path: Path, content: Mapping[str, Any]) -> None:
    """Write an archive whole or not at all."""
    part = path.with_suffix(f".{os.getpid()}.part")
    with part.open("wb") as file:
        np.savez(file, **content)
    part.replace(path)


def broken_fields(nominal: mujoco.MjModel, values: Mapping[str, NDArray[Any]]) -> list[str]:
    """Model fields of a world, as ``model/<field>``, that are not finite where they should be."""
    return [
        f"model/{name}"
        for name, found in values.items()
        if (np.isfinite(attrgetter(name)(nominal)) & ~np.isfinite(found)).any()
    ]
