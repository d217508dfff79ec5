"""A run's folder: what is in it, when it may be written to, and how to read a policy from it.

``config.yaml`` (resolved), ``config_hash.txt``, ``run.json`` (command, seed, commit, versions),
``metrics.jsonl``, ``evaluations.jsonl``, ``tensorboard/``, ``checkpoints/``, and ``diverged/`` if a
world did, see :mod:`sim.black_box`.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from real.config import config_hash, save_config
from real.errors import FerryError
from training.checkpoint import (
    Checkpoint,
    CheckpointError,
    Pointer,
    checkpoint_folders,
    load_checkpoint,
    newest_checkpoint,
    pointed,
    recover_checkpoints,
)
from training.gym_run import load_any_run_config
from training.metrics import drop_records_after
from training.networks import ActorCritic
from training.probe import verify_policy
from training.run_config import RunConfig, differences
from training.snapshot import load_snapshot

if TYPE_CHECKING:  # which brings the worlds, and whoever reads a run needs none
    from training.loop import Runtime

log = logging.getLogger(__name__)

#: Packages whose versions a run depends on.
_PACKAGES = ("torch", "mujoco", "numpy", "safetensors")


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy read from a run folder.

    Attributes:
        config: the run's configuration.
        module: the policy, in evaluation mode, verified to be the one that was stored.
        meta: ``run_dir``, ``checkpoint`` (folder name), ``which``, ``step``, ``iteration``,
            ``version``, ``training_s``, ``best_score``, ``config_hash``, and from ``run.json``
            ``command``, ``seed`` and ``git_sha``.
    """

    config: RunConfig
    module: ActorCritic
    meta: Mapping[str, Any]


def new_run_dir(name: str) -> Path:
    """A folder under ``runs`` that does not exist yet, named after the task and the time."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = Path("runs", f"{name}-{stamp}")
    suffix = 1
    while folder.exists():
        suffix += 1
        folder = Path("runs", f"{name}-{stamp}-{suffix}")
    return folder


def checkpoints_of(run_dir: Path) -> Path:
    """The folder of a run's checkpoints."""
    return run_dir / "checkpoints"


def diverged_of(run_dir: Path) -> Path:
    """The folder of the last steps of worlds that diverged; absent if none did."""
    return run_dir / "diverged"


def begin_run(run_dir: Path, config: RunConfig) -> None:
    """Make the folder of a new run and write what it is.

    Raises:
        FerryError: a run with checkpoints is there already, or the folder cannot be written.
    """
    recover_checkpoints(checkpoints_of(run_dir))
    if checkpoint_folders(checkpoints_of(run_dir)):
        raise FerryError(
            f"{run_dir} holds a run with checkpoints: go on with it by --resume, or choose another "
            "folder with --out"
        )
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        # Left by a run that ended before its first checkpoint.
        for name in ("metrics.jsonl", "evaluations.jsonl"):
            (run_dir / name).unlink(missing_ok=True)
        _write_config(run_dir, config)
        entry = _provenance(config)
        _write_json(run_dir / "run.json", {**entry, "resumed": []})
    except OSError as error:
        raise FerryError(f"cannot write run folder {run_dir}: {error}") from error


def resume_run(run_dir: Path, config: RunConfig, runtime: Runtime) -> None:
    """Give a runtime the state of the run in a folder, and note there that it goes on.

    Raises:
        FerryError: there is nothing to resume, the configuration differs in more than the length of
            the run, the state does not fit, or the folder cannot be written.
    """
    stored = _resumable(run_dir, config)
    runtime.restore(stored)
    _note_resumed(run_dir, config, stored)  # only now: until here it may be refused
    drop_records_after(run_dir / "evaluations.jsonl", runtime.progress.steps)


def _resumable(run_dir: Path, config: RunConfig) -> Checkpoint:
    """Check that a run may go on with ``config``, and read its newest intact checkpoint.

    Nothing is written: what was read may still be refused.

    Raises:
        FerryError: there is nothing to resume, or the configuration differs in more than the
            length of the run.
    """
    root = checkpoints_of(run_dir)
    recover_checkpoints(root)
    if not checkpoint_folders(root):
        raise FerryError(
            f"{run_dir} has no checkpoints, so there is nothing to resume; train without --resume"
        )
    stored = load_any_run_config(run_dir / "config.yaml")
    found = differences(stored, config)
    if found:
        raise FerryError(
            f"{run_dir} was trained with another configuration; resume with its own "
            f"{run_dir / 'config.yaml'}, or train anew with another --out. It differs in:\n  "
            + "\n  ".join(found)
        )
    return newest_checkpoint(root)


def _note_resumed(run_dir: Path, config: RunConfig, checkpoint: Checkpoint) -> None:
    """Write into a run's folder that it goes on, from which checkpoint and with what settings.

    Raises:
        FerryError: the folder cannot be written.
    """
    try:
        _write_config(run_dir, config)
        path = run_dir / "run.json"
        record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        entry = {**_provenance(config), "step": checkpoint.step}
        record["resumed"] = [*record.get("resumed", []), entry]
        _write_json(path, record)
    except (OSError, ValueError) as error:
        raise FerryError(f"cannot update run folder {run_dir}: {error}") from error


def record_evaluation(run_dir: Path, record: Mapping[str, Any]) -> None:
    """Append one evaluation to ``evaluations.jsonl``.

    Raises:
        FerryError: the file cannot be written.
    """
    path = run_dir / "evaluations.jsonl"
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(record)) + "\n")
    except OSError as error:
        raise FerryError(f"cannot write {path}: {error}") from error


def load_policy(run_dir: str | Path, which: Pointer = "best") -> LoadedPolicy:
    """Read a policy from a run folder and prove that it is the stored one.

    Args:
        run_dir: the run folder.
        which: ``best`` by evaluation score (the newest, if nothing was evaluated), or ``latest``.

    Raises:
        FerryError: no run folder, no checkpoints, or a checkpoint that cannot be trusted.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise FerryError(f"there is no run folder {run_dir}")
    root = checkpoints_of(run_dir)
    recover_checkpoints(root)
    if not (run_dir / "config.yaml").is_file() or not checkpoint_folders(root):
        raise FerryError(
            f"{run_dir} is no run folder with checkpoints: expected config.yaml and at least one "
            "checkpoints/step_*; `ferry train` writes them"
        )
    config = load_any_run_config(run_dir / "config.yaml")
    folder = pointed(root, which)
    if folder is None and which == "best":
        log.info("%s was never evaluated; taking its newest checkpoint", run_dir)
    checkpoint = newest_checkpoint(root) if folder is None else load_checkpoint(folder)
    counters = checkpoint.counters
    module = ActorCritic(
        counters["policy_dim"],
        counters["critic_dim"],
        action_dim=counters["action_dim"],
        config=config.training.network,
    )
    load_snapshot(module, checkpoint.policy)
    source = f"{run_dir}/checkpoints/{checkpoint.name}"
    verify_policy(module, digest=counters["policy_digest"], probe=checkpoint.probe, source=source)
    meta = {
        "run_dir": str(run_dir),
        "checkpoint": checkpoint.name,
        "which": which,
        "step": checkpoint.step,
        **{k: counters[k] for k in ("iteration", "version", "training_s", "best_score")},
        "config_hash": config_hash(config),
        **_origin(run_dir),
    }
    return LoadedPolicy(config=config, module=module.eval(), meta=meta)


def git_sha() -> str:
    """Commit of this code, ``-dirty`` if it was changed since; ``unknown`` outside a clone."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10.0,
            check=True,
        ).stdout.strip()

    try:
        sha = git("rev-parse", "HEAD")
        return f"{sha}-dirty" if git("status", "--porcelain", "--untracked-files=no") else sha
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _provenance(config: RunConfig) -> dict[str, Any]:
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "seed": config.training.seed,
        "git_sha": git_sha(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "config_hash": config_hash(config),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        **{package: _version(package) for package in _PACKAGES},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _origin(run_dir: Path) -> dict[str, Any]:
    try:
        record = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
        return {name: record[name] for name in ("command", "seed", "git_sha")}
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{run_dir / 'run.json'} is not readable: {error}; it says what made the policy"
        ) from error


def _write_config(run_dir: Path, config: RunConfig) -> None:
    save_config(config, run_dir / "config.yaml")
    _write_text(run_dir / "config_hash.txt", config_hash(config) + "\n")


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    _write_text(path, json.dumps(dict(content), indent=1) + "\n")


def _write_text(path: Path, text: str) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".{path.name}_{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
