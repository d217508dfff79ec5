"""What the runs of an ablation say: tables with intervals, as markdown."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from training.scores import Interval, mean_interval

Order = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Point:
    """An evaluation in the course of a run.

    Attributes:
        step: control steps so far.
        seconds: wall time until the policy was there, evaluation before it included [s].
        score: of the policy at that time.
    """

    step: int
    seconds: float
    score: float


@dataclass(frozen=True)
class Record:
    """A finished run.

    Attributes:
        cell: value of each factor.
        seed: of the run.
        fingerprint: of all its settings.
        curve: its evaluations in order.
        stats: metrics of its data, by name.
    """

    cell: Mapping[str, str]
    seed: int
    fingerprint: str
    curve: tuple[Point, ...]
    stats: Mapping[str, float]


@dataclass(frozen=True)
class Effect:
    """What a value of a factor changes against the factor's first value.

    Attributes:
        factor: its name.
        value: the value.
        reference: the first value.
        pairs: runs compared: same seed, same values of all other factors.
        difference: of the score, with its interval.
    """

    factor: str
    value: str
    reference: str
    pairs: int
    difference: Interval

    @property
    def verdict(self) -> str:
        """In a word."""
        if self.difference.low > 0.0:
            return "better"
        return "worse" if self.difference.high < 0.0 else "no difference shown"


Axis = Callable[[Point], float]
#: What two runs may have spent alike, and how it is written.
AXES: Mapping[str, tuple[Axis, str]] = {
    "samples": (lambda point: float(point.step), "{:,.0f} control steps"),
    "wall clock": (lambda point: point.seconds, "{:,.1f} s"),
}


def score_at(curve: Sequence[Point], limit: float, axis: Axis) -> float:
    """Score of the newest policy that was evaluated within a limit; NaN if none was."""
    within = [point.score for point in curve if axis(point) <= limit]
    return within[-1] if within else math.nan


def common_limit(records: Sequence[Record], axis: Axis) -> float:
    """How far the run that got least far got; NaN if one was never evaluated."""
    ends = [max((axis(p) for p in record.curve), default=math.nan) for record in records]
    return float(np.min(ends)) if ends else math.nan


def cell_scores(
    records: Sequence[Record], *, order: Order, axis: Axis
) -> list[tuple[Mapping[str, str], list[Record], Interval | None]]:
    """Every cell with its runs and mean score at the common limit, best first.

    The interval is None where no run of the cell was evaluated within the limit.
    """
    limit = common_limit(records, axis)
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record.cell[name] for name in order), []).append(record)
    out = []
    for values, runs in groups.items():
        scores = _finite([score_at(run.curve, limit, axis) for run in runs])
        interval = mean_interval(scores, **_range(records)) if scores.size else None
        out.append((dict(zip(order, values, strict=True)), runs, interval))
    return sorted(out, key=lambda row: -math.inf if row[2] is None else row[2].mean, reverse=True)


def effects(records: Sequence[Record], *, order: Order, axis: Axis) -> list[Effect]:
    """Differences between runs that differ in one factor alone.

    Paired by seed and by all other factors. Pairs of one seed share its luck, so the interval is
    over the seeds' mean differences. Many effects are looked at together and each has its own 95 %:
    one in twenty would seem to be there by chance.
    """
    limit = common_limit(records, axis)
    scores = {
        (tuple(r.cell[name] for name in order), r.seed): score_at(r.curve, limit, axis)
        for r in records
    }
    found = []
    for place, (factor, values) in enumerate(order.items()):
        reference = values[0]
        for value in values[1:]:
            by_seed: dict[int, list[float]] = {}
            for (cell, seed), score in scores.items():
                twin = (*cell[:place], reference, *cell[place + 1 :])
                if cell[place] == value and (twin, seed) in scores:
                    by_seed.setdefault(seed, []).append(score - scores[twin, seed])
            pairs = {seed: _finite(found_there) for seed, found_there in by_seed.items()}
            means = [
                float(found_there.mean()) for found_there in pairs.values() if found_there.size
            ]
            if means:
                interval = mean_interval(np.array(means), low=-math.inf, high=math.inf)
                number = sum(found_there.size for found_there in pairs.values())
                found.append(Effect(factor, value, reference, number, interval))
    return found


def write_report(
    path: Path, records: Sequence[Record], *, order: Order, title: str, total: int
) -> None:
    """Write the report whole or not at all.

    Args:
        path: the file.
        records: finished runs.
        order: values of each factor, the reference first.
        title: of the ablation.
        total: runs there will be.
    """
    seeds = len({record.seed for record in records})
    lines = [
        f"# Ablation: {title}",
        "",
        f"{len(records)} of {total} runs are finished, {seeds} seeds. Written by `ferry ablate`.",
        "Scores are those of the newest policy that was evaluated within the limit, on episodes",
        "kept for selection. Brackets are 95 % intervals over seeds (Student's t); with one seed",
        "there is none.",
        "",
    ]
    for name, (axis, written) in AXES.items():
        limit = common_limit(records, axis)
        if math.isnan(limit):
            lines += [f"## At equal {name}", "", "Nothing to compare yet.", ""]
            continue
        lines += [f"## At equal {name}: {written.format(limit)}", ""]
        lines += _cell_table(records, order, axis)
        lines += ["", f"What one setting changes at equal {name}, all others alike:", ""]
        lines += _effect_table(effects(records, order=order, axis=axis))
        lines += ["", *_conclusions(effects(records, order=order, axis=axis), order), ""]
    temporary = path.with_name(f".{path.name}_{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    os.replace(temporary, path)


# ------------------------------------------------------------------ tables


def _finite(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    return array[np.isfinite(array)]


def _range(records: Sequence[Record]) -> dict[str, float]:
    """Bounds of scores: [0, 1], where all are inside."""
    inside = all(0.0 <= point.score <= 1.0 for record in records for point in record.curve)
    return {"low": 0.0, "high": 1.0} if inside else {"low": -math.inf, "high": math.inf}


def _written(interval: Interval | None, runs: int) -> str:
    if interval is None:
        return "not evaluated by then"
    if runs == 1:
        return f"{interval.mean:.3f}"
    return f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def _cell_table(records: Sequence[Record], order: Order, axis: Axis) -> list[str]:
    stats = sorted({name for record in records for name in record.stats})
    rows = []
    for cell, runs, interval in cell_scores(records, order=order, axis=axis):
        ends = [run.curve[-1] for run in runs if run.curve]
        rate = float(np.mean([end.step / end.seconds for end in ends])) if ends else math.nan
        values = [[run.stats[name] for run in runs if name in run.stats] for name in stats]
        shown = [f"{np.mean(found):.2f}" if found else "-" for found in values]
        score = _written(interval, len(runs))
        rows.append([*cell.values(), str(len(runs)), score, f"{rate:,.0f}", *shown])
    return _table([*order, "runs", "score", "steps/s", *stats], rows)


def _effect_table(found: Sequence[Effect]) -> list[str]:
    if not found:
        return ["No two runs differ in one setting alone yet."]
    rows = [
        [e.factor, e.value, e.reference, str(e.pairs), _written(e.difference, e.pairs), e.verdict]
        for e in found
    ]
    return _table(["setting", "value", "against", "pairs", "difference of score", "verdict"], rows)


def _conclusions(found: Sequence[Effect], order: Order) -> list[str]:
    """What follows for the defaults: nothing, unless an interval leaves zero out."""
    lines = []
    for factor in order:
        own = [e for e in found if e.factor == factor and e.pairs > 1]
        better = [e for e in own if e.verdict == "better"]
        if better:
            best = max(better, key=lambda e: e.difference.mean)
            lines.append(f"* **{factor}**: {best.value} is better than {best.reference}.")
        elif own and all(e.verdict == "worse" for e in own):
            lines.append(f"* **{factor}**: {own[0].reference} is better than all others.")
        elif own:
            lines.append(f"* **{factor}**: no value is shown to be better than {own[0].reference}.")
    return lines
