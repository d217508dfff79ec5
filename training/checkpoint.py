"""Checkpoints: complete, written whole or not at all, checked when read, and never pickled.

``checkpoints/step_00614400/`` holds arrays in safetensors files and ``state.json`` with counters
and the SHA-256 of everything. ``checkpoints/latest`` and ``checkpoints/best`` are text files that
name one of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as parse_arrays
from safetensors.numpy import save as pack_arrays

from real.errors import FerryError

Arrays = Mapping[str, NDArray[Any]]
Pointer = Literal["latest", "best"]

log = logging.getLogger(__name__)

#: Raised when files or keys change their meaning.
CHECKPOINT_VERSION = 1

_STATE = "state.json"

#: Prefix of a checkpoint that makes way for another of the same step.
_REPLACED = ".replaced_"


class CheckpointError(FerryError):
    """A checkpoint that cannot be read, written or trusted."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything a run needs to go on as if it had never stopped.

    Attributes:
        step: env steps taken.
        policy: parameters, normalisers and their counts, as in a snapshot.
        learner: optimiser, step size, generator, version.
        actor: generator and env of the serial runtime's actor, or how often each actor of the
            asynchronous one was started.
        episodes: statistics of finished episodes.
        probe: observations and what the policy answered, see :mod:`training.probe`.
        counters: everything that JSON can hold: iteration, times, best score, sizes, digest.
    """

    step: int
    policy: Arrays
    learner: Arrays
    actor: Arrays
    episodes: Arrays
    probe: Arrays
    counters: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of its folder."""
        return checkpoint_name(self.step)


def checkpoint_name(step: int) -> str:
    """Name of the folder of the checkpoint after ``step`` env steps."""
    return f"step_{step:08d}"


#: field of :class:`Checkpoint` -> file.
_FILES = {
    "policy": "policy.safetensors",
    "learner": "optimizer.safetensors",
    "actor": "env.safetensors",
    "episodes": "episodes.safetensors",
    "probe": "probe.safetensors",
}


def save_checkpoint(root: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint and point ``latest`` at it.

    All files are written and synced in a temporary folder, which is then renamed: whenever the
    machine stops, the folder is there whole or not at all.

    Args:
        root: the run's ``checkpoints`` folder.
        checkpoint: what to write.

    Raises:
        CheckpointError: the disk is full or not writable; earlier checkpoints are as they were.
    """
    final = root / checkpoint.name
    temporary = root / f".writing_{checkpoint.name}_{os.getpid()}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(temporary, _replaced(final))
        temporary.mkdir()
        digests: dict[str, str] = {}
        for field, file in _FILES.items():
            content = _packed(getattr(checkpoint, field), file)
            digests[file] = hashlib.sha256(content).hexdigest()
            _write_synced(temporary / file, content)
        body = {
            "schema_version": CHECKPOINT_VERSION,
            "step": checkpoint.step,
            "counters": dict(checkpoint.counters),
            "sha256": digests,
        }
        text = json.dumps({**body, "digest": _digest(body)}, indent=1)
        _write_synced(temporary / _STATE, text.encode())
        _sync_folder(temporary)
        _put_in_place(temporary, final)
        _sync_folder(root)
        set_pointer(root, "latest", final.name)
    except OSError as error:
        raise _cannot_write(root, final, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint and check every byte of it.

    Raises:
        CheckpointError: a file is missing, cut short or changed.
    """
    try:
        body = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        digest = body.pop("digest")
        version = body["schema_version"]
        if version != CHECKPOINT_VERSION:
            raise CheckpointError(
                f"checkpoint {folder} has schema version {version}; this Ferry reads "
                f"{CHECKPOINT_VERSION}"
            )
        if digest != _digest(body):
            raise CheckpointError(f"checkpoint {folder}: {_STATE} was changed after writing")
        arrays: dict[str, Arrays] = {}
        for field, file in _FILES.items():
            content = (folder / file).read_bytes()
            if hashlib.sha256(content).hexdigest() != body["sha256"][file]:
                raise CheckpointError(f"checkpoint {folder}: {file} is damaged or incomplete")
            arrays[field] = parse_arrays(content)
        return Checkpoint(step=body["step"], counters=body["counters"], **arrays)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"checkpoint {folder} is not readable: {error}") from error


def newest_checkpoint(root: Path) -> Checkpoint:
    """The newest checkpoint that is intact.

    Every newer one that is not is named in a warning.

    Raises:
        CheckpointError: there is none.
    """
    folders = checkpoint_folders(root)[::-1]
    if not folders:
        raise CheckpointError(f"{root.parent} has no checkpoints: {root} holds none")
    for folder in folders:
        try:
            return load_checkpoint(folder)
        except CheckpointError as error:
            log.warning("%s; trying the one before it", error)
    raise CheckpointError(
        f"{root.parent} has no intact checkpoint: {', '.join(f.name for f in folders)} are damaged"
    )


def checkpoint_folders(root: Path) -> list[Path]:
    """Folders of finished checkpoints, oldest first."""
    found = [folder for folder in root.glob("step_*") if folder.is_dir()]
    numbered = [folder for folder in found if folder.name.removeprefix("step_").isdecimal()]
    # By number: more than 8 digits would sort wrongly as text.
    return sorted(numbered, key=lambda folder: int(folder.name.removeprefix("step_")))


def set_pointer(root: Path, pointer: Pointer, name: str) -> None:
    """Make ``latest`` or ``best`` name a checkpoint, atomically."""
    temporary = root / f".{pointer}_{os.getpid()}"
    try:
        _write_synced(temporary, f"{name}\n".encode())
        os.replace(temporary, root / pointer)
        _sync_folder(root)
    except OSError as error:
        raise _cannot_write(root, root / pointer, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def pointed(root: Path, pointer: Pointer) -> Path | None:
    """The checkpoint folder that a pointer names, or None if there is no such pointer or folder."""
    file = root / pointer
    if not file.is_file():
        return None
    folder = root / file.read_text(encoding="utf-8").strip()
    return folder if folder.is_dir() and folder.parent == root else None


def recover_checkpoints(root: Path) -> None:
    """Put back checkpoints that were making way for a new one when their process was killed.

    Those of a process that still runs are in its hands.
    """
    for old in root.glob(f"{_REPLACED}step_*_*"):
        name, _, pid = old.name.removeprefix(_REPLACED).rpartition("_")
        final = root / name
        if not final.exists() and not _runs_elsewhere(pid):
            log.warning("checkpoint %s was being replaced when its process ended; restored", final)
            try:
                old.rename(final)
            except OSError as error:
                raise _cannot_write(root, final, error) from error


def prune_checkpoints(root: Path, *, keep: int, spare: Collection[str] = ()) -> None:
    """Remove all but the newest ``keep`` checkpoints, those that a pointer names, and ``spare``.

    Args:
        root: the run's ``checkpoints`` folder.
        keep: how many of the newest stay, at least one.
        spare: names of folders that stay, since somebody is scoring them.
    """
    recover_checkpoints(root)
    named = {pointed(root, "latest"), pointed(root, "best"), *(root / name for name in spare)}
    for folder in checkpoint_folders(root)[: -max(keep, 1)]:
        if folder not in named:
            shutil.rmtree(folder, ignore_errors=True)
    # Left by a process that was killed while writing.
    for leftover in (*root.glob(".writing_*"), *root.glob(f"{_REPLACED}*")):
        shutil.rmtree(leftover, ignore_errors=True)


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    with _opened(folder, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)


def _put_in_place(temporary: Path, final: Path) -> None:
    """Rename; a folder of the same step makes way.

    Between the two renames there is none: :func:`recover_checkpoints` mends what is left by a
    process that is killed there.
    """
    old = _replaced(final)
    if final.exists():
        final.rename(old)
    temporary.rename(final)
    shutil.rmtree(old, ignore_errors=True)


def _replaced(final: Path) -> Path:
    """Where a checkpoint goes that makes way for another of the same step."""
    return final.with_name(f"{_REPLACED}{final.name}_{os.getpid()}")


def _remove_leftovers(*folders: Path) -> None:
    """Of a process that was killed while writing and had this one's number.

    In a container every process has the same, and a repeatable run comes to the same step again.
    """
    recover_checkpoints(folders[0].parent)
    for folder in folders:
        if folder.exists():
            shutil.rmtree(folder)


def _runs_elsewhere(pid: str) -> bool:
    """Whether another process of this number runs on this computer."""
    if not pid.isdecimal() or int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def _packed(arrays: Arrays, file: str) -> bytes:
    """Bytes of a safetensors file."""
    own: dict[str, NDArray[Any]] = {}
    for name, array in arrays.items():
        # A copy in C order: the format stores memory as it lies. `ascontiguousarray` would turn
        # a single number into a vector.
        own[name] = np.array(array, order="C")
        if own[name].dtype.kind not in "biuf":
            raise CheckpointError(
                f"cannot store {name!r} of type {own[name].dtype} in {file}; expected numbers"
            )
    return pack_arrays(own)


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _cannot_write(root: Path, path: Path, error: OSError) -> CheckpointError:
    try:
        free = f"{shutil.disk_usage(root if root.is_dir() else root.parent).free / 1e6:.0f} MB free"
    except OSError:
        free = "free space unknown"
    last = pointed(root, "latest")
    kept = f"none was written before. Make room in {root.parent}, or choose another --out, and"
    then = "start again"
    if last is not None:
        kept, then = f"the last good one is {last}. Make room and", "go on with --resume"
    return CheckpointError(
        f"cannot write checkpoint {path}: {error.strerror or error} ({free}); {kept} {then}"
    )
