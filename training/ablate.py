"""Ablations: a grid of settings times seeds, each a training run, and a report of what they change.

A run that is finished is one line of ``results.jsonl`` and is never repeated, so an ablation goes
on where it was stopped. All cells of one seed come before the next seed: what is there at any time
compares all cells.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from real.config import Config, config_hash, load_config
from real.errors import FerryError
from training.ablate_report import Point, Record, write_report
from training.progress import ProgressFn, silent
from training.roles import Evaluate, MakeEnv
from training.run_config import RunConfig, RuntimeConfig, load_run_config, side_by_side_config
from training.train import train

log = logging.getLogger(__name__)

#: Metrics that say how a run got its data, averaged over its updates.
STATS = ("lag/mean", "lag/max", "queue/dropped_share", "learner/idle_share", "actors/idle_share")


class Factor(Config):
    """One thing that is varied."""

    key: str = Field(min_length=1, description="what is set, a.b.c of the task file")
    values: tuple[Any, ...] = Field(
        min_length=2, description="its values; the first is what the others are compared with"
    )


class AblationConfig(Config):
    """An ablation file, ``configs/ablations/*.yaml``."""

    schema_version: Literal[1]
    runtime: Literal["serial", "ray"] = "serial"
    steps: int = Field(ge=1, description="control steps of every run")
    minutes: float | None = Field(default=None, gt=0.0, description="limit on every run [min]")
    set: tuple[str, ...] = Field(default=(), description="a.b.c=value, the same in every run")
    over: dict[str, Factor] = Field(min_length=1, description="what is varied, by its short name")


@dataclass(frozen=True)
class Cell:
    """One combination.

    Attributes:
        labels: value of each factor, as text.
        overrides: what they set.
    """

    labels: Mapping[str, str]
    overrides: tuple[str, ...]

    def name(self, seed: int) -> str:
        """Of the folder of a run."""
        words = [f"{factor}_{value}" for factor, value in self.labels.items()]
        text = "-".join([*words, f"seed_{seed}"])
        return "".join(c if c.isalnum() or c in "_-." else "_" for c in text)


@dataclass(frozen=True)
class AblationResult:
    """How far an ablation is.

    Attributes:
        report: the written report.
        finished: runs with a result.
        total: runs in all.
    """

    report: Path
    finished: int
    total: int


def cells(config: AblationConfig) -> list[Cell]:
    """All combinations, the last factor changing fastest."""
    found = []
    for values in itertools.product(*(factor.values for factor in config.over.values())):
        pairs = list(zip(config.over.items(), values, strict=True))
        found.append(
            Cell(
                labels={name: _text(value) for (name, _), value in pairs},
                overrides=tuple(f"{factor.key}={json.dumps(v)}" for (_, factor), v in pairs),
            )
        )
    return found


def ablate(
    task: str | Path,
    over: str | Path,
    *,
    seeds: int,
    out: Path,
    report: Path | None = None,
    overrides: Sequence[str] = (),
    progress: ProgressFn | None = None,
    evaluate: Evaluate | None = None,
    env_factory: MakeEnv | None = None,
) -> AblationResult:
    """Run what is missing of an ablation, and write its report after every run.

    Args:
        task: a task file or shipped name.
        over: an ablation file, or a shipped name.
        seeds: K, runs of every cell, with seeds 0 to K - 1.
        out: folder of the runs and of ``results.jsonl``.
        report: the file to write; ``report.md`` in ``out`` if None.
        overrides: ``"a.b.c=value"`` for every run, before the file's own.
        progress: told how far it is, in runs.
        evaluate: see :func:`training.train.train`.
        env_factory: see there.

    Raises:
        FerryError: a file or value is wrong, before anything runs; or the results in ``out`` are
            of other settings.
    """
    if seeds < 1:
        raise FerryError(f"{seeds} seeds; expected at least 1")
    plan = load_config(AblationConfig, over, folder="ablations")
    jobs: list[tuple[Cell, int, RunConfig]] = []
    for seed, cell in itertools.product(range(seeds), cells(plan)):
        given = [*overrides, *plan.set, *cell.overrides, f"training.seed={seed}"]
        jobs.append((cell, seed, load_run_config(task, given)))
    _require_effect(jobs, plan)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FerryError(f"cannot make the folder of the runs {out}: {error}") from error
    report = out / "report.md" if report is None else report
    results = out / "results.jsonl"
    known = _match(read_results(results), jobs, plan, results)
    title = f"{jobs[0][2].name} over {', '.join(plan.over)}"
    order = {name: tuple(map(_text, factor.values)) for name, factor in plan.over.items()}
    tell = progress or silent
    for index, (cell, seed, config) in enumerate(jobs):
        if cell.name(seed) in known:
            continue
        folder = out / "runs" / cell.name(seed)
        shutil.rmtree(folder, ignore_errors=True)  # of a run that did not get to its end
        result = train(
            config,
            folder,
            steps=plan.steps,
            minutes=plan.minutes,
            runtime=plan.runtime,
            evaluate=evaluate,
            env_factory=env_factory,
            progress=_share_of(tell, index, len(jobs), cell.name(seed)),
        )
        if result.interrupted:
            break
        record = _record(cell, seed, _fingerprint(config, plan), folder)
        _append(results, record)
        known[cell.name(seed)] = record
        write_report(report, list(known.values()), order=order, title=title, total=len(jobs))
    write_report(report, list(known.values()), order=order, title=title, total=len(jobs))
    return AblationResult(report=report, finished=len(known), total=len(jobs))


def read_results(path: Path) -> list[Record]:
    """Finished runs; a last line that a crash cut short is left out.

    Raises:
        FerryError: any other line is no result.
    """
    if not path.exists():
        return []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise FerryError(f"{path}: results of runs cannot be read from it: {error}") from error
    lines = text.split("\n")
    found = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            data = json.loads(line)
            data["cell"] = dict(data["cell"])
            data["curve"] = tuple(Point(**point) for point in data["curve"])
            found.append(Record(**data))
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines):  # without a line's end
                log.warning("%s: its last line is cut short and left out", path)
                lines.pop()
                break
            raise FerryError(f"{path}:{number}: this is no result of a run: {error}") from error
    if text and not text.endswith("\n"):
        _rewrite(path, lines)  # what is appended next must begin a line
    return found


# ------------------------------------------------------------------ one run


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _fingerprint(config: RunConfig, plan: AblationConfig) -> str:
    """Of everything that decides about a result."""
    return f"{config_hash(config)}-{plan.runtime}-{plan.steps}-{plan.minutes}"


def _require_effect(jobs: list[tuple[Cell, int, RunConfig]], plan: AblationConfig) -> None:
    """Refuse a factor that changes nothing: cells that are the same run would be compared.

    A fixed ``set`` may hide it, or another key may rule over it in this runtime.
    """
    first: dict[str, Cell] = {}
    for cell, seed, config in jobs:
        if seed != jobs[0][1]:
            continue
        read = side_by_side_config(config) if plan.runtime == "ray" else config
        twin = first.setdefault(config_hash(_read_by(read, plan.runtime)), cell)
        if twin is not cell:
            # The same labels: one value is given twice.
            names = [n for n, value in cell.labels.items() if twin.labels[n] != value] or plan.over
            keys = ", ".join(f"over.{name}.key ({plan.over[name].key})" for name in names)
            raise FerryError(
                f"{dict(cell.labels)} and {dict(twin.labels)} are the same run in the runtime "
                f"{plan.runtime}; see {keys}"
                + (": training.runtime.returns rules there" if plan.runtime == "ray" else "")
            )


def _read_by(config: RunConfig, runtime: str) -> RunConfig:
    """Without what the runtime does not read."""
    if runtime == "ray":
        return config
    training = config.training.model_copy(update={"runtime": RuntimeConfig()})
    return config.model_copy(update={"training": training})


def _match(
    found: list[Record],
    jobs: list[tuple[Cell, int, RunConfig]],
    plan: AblationConfig,
    path: Path,
) -> dict[str, Record]:
    """The results that belong to the jobs, by name; more seeds than asked for are left out."""
    by_key = {(json.dumps(dict(r.cell)), r.seed): r for r in found}
    known: dict[str, Record] = {}
    for cell, seed, config in jobs:
        record = by_key.get((json.dumps(dict(cell.labels)), seed))
        if record is None:
            continue
        if record.fingerprint != _fingerprint(config, plan):
            raise FerryError(
                f"{path}: the result of {cell.name(seed)} is of other settings than those given "
                "now; choose another folder with --out, or remove the line"
            )
        known[cell.name(seed)] = record
    return known


def _record(cell: Cell, seed: int, fingerprint: str, folder: Path) -> Record:
    metrics = _lines(folder / "metrics.jsonl")
    # Of the update that made a policy. Its score may come much later, where evaluators are beside.
    made_s = {int(m["step"]): m["time/training_s"] for m in metrics if "time/training_s" in m}
    curve = tuple(
        Point(
            step=int(r["step"]),
            seconds=float(made_s.get(int(r["step"]), r["training_s"])),
            score=float(r["score"]),
        )
        for r in _lines(folder / "evaluations.jsonl")
    )
    stats: dict[str, float] = {}
    for name in STATS:
        values = [float(m[name]) for m in metrics if m.get(name) is not None]
        if values:
            stats[name] = max(values) if name.endswith("/max") else statistics.fmean(values)
    return Record(
        cell=dict(cell.labels), seed=seed, fingerprint=fingerprint, curve=curve, stats=stats
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _append(path: Path, record: Record) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(record)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _rewrite(path: Path, lines: list[str]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(f"{line}\n" for line in lines if line), encoding="utf-8")
    os.replace(temporary, path)


def _share_of(tell: ProgressFn, index: int, total: int, name: str) -> ProgressFn:
    runs = total

    def progress(done: float, total: float, note: str = "") -> None:
        tell(index + done / total, runs, f"{name}: {note}" if note else name)

    return progress
