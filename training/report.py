"""One self-contained HTML page about a demo: numbers, curves, velocities, moving picture.

The page has no links to other files, so it can be mailed and opened years later. A part that is
missing (no log, no rendering on this computer) is replaced by a sentence that says so.
"""

from __future__ import annotations

import base64
import html
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

# Colour-blind safe (Okabe and Ito, 2008): commands in grey, runs in blue and vermilion.
COMMAND_COLOUR = "#777777"
RUN_COLOURS = ("#0072b2", "#d55e00", "#009e73")
AXES = ("forward vx [m/s]", "sideways vy [m/s]", "turning wz [rad/s]")


@dataclass(frozen=True)
class Curve:
    """How an evaluation score rose during a training run.

    Attributes:
        label: which run.
        minutes: ``[K]`` training time of each evaluation [min].
        mean: ``[K]`` tracking score.
        low: ``[K]`` lower end of the 95 % interval.
        high: ``[K]`` upper end.
    """

    label: str
    minutes: Array
    mean: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Trace:
    """What was commanded and what the robot did, on one time axis.

    Attributes:
        label: which run.
        time_s: ``[T]`` since the first sample [s].
        command: ``[T, 3]`` vx [m/s], vy [m/s], wz [rad/s] in the base frame.
        velocity: ``[T, 3]`` the same, measured (simulated truth).
        fallen_at_s: when the robot fell or was stopped, or None.
    """

    label: str
    time_s: Array
    command: Array
    velocity: Array
    fallen_at_s: float | None


@dataclass(frozen=True)
class ReportData:
    """Everything a report can show; empty or None where it does not exist.

    Attributes:
        title: heading of the page.
        summary: a sentence below it.
        header: names of the columns of the table.
        rows: one tuple of cells per measured quantity.
        curves: one per training run.
        traces: one per drive.
        picture: a GIF, PNG or MP4 file of the robot.
        notes: how each number is defined.
        origin: where the numbers are from: command, seed, commit, versions.
    """

    title: str
    summary: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    curves: Sequence[Curve]
    traces: Sequence[Trace]
    picture: Path | None
    notes: Mapping[str, str]
    origin: Mapping[str, str]


def write_report(data: ReportData, path: Path) -> Path:
    """Write the page, whole or not at all.

    Args:
        data: what to show.
        path: the HTML file.

    Returns:
        ``path``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(render_html(data), encoding="utf-8")
    os.replace(part, path)
    return path


def render_html(data: ReportData) -> str:
    """The page as text."""
    sections = [
        f"<h1>{html.escape(data.title)}</h1>",
        f"<p class=lead>{html.escape(data.summary)}</p>",
        _table(data.header, data.rows),
        "<h2>The robot, from the log</h2>",
        _picture(data.picture),
        "<h2>Commanded and measured velocity</h2>",
        _figure(velocity_figure(data.traces)) if data.traces else _absent("there is no log"),
        "<h2>Tracking score during training</h2>",
        _figure(curve_figure(data.curves))
        if any(c.minutes.size for c in data.curves)
        else _absent("the run was too short to be evaluated while it trained"),
        "<h2>What the numbers mean</h2>",
        _definitions(data.notes),
        "<h2>Where they are from</h2>",
        _table((), list(data.origin.items())),
    ]
    title = html.escape(data.title)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(sections) + "\n</body></html>\n"
    )


def velocity_figure(traces: Sequence[Trace]) -> Figure:
    """Three panels, one per command, of what was asked and what was done."""
    figure, axes = _panels(3, height=6.2)
    for axis, name, i in zip(axes, AXES, range(3), strict=True):
        first = traces[0]
        axis.step(
            first.time_s,
            first.command[:, i],
            where="post",
            color=COMMAND_COLOUR,
            linewidth=2.5,
            alpha=0.6,
            label="commanded",
        )
        for trace, colour in zip(traces, RUN_COLOURS, strict=False):
            axis.plot(
                trace.time_s, trace.velocity[:, i], color=colour, linewidth=0.9, label=trace.label
            )
            if trace.fallen_at_s is not None:
                axis.axvline(trace.fallen_at_s, color=colour, linestyle="--", linewidth=1.0)
        axis.set_ylabel(name)
        bound = 1.3 * max(0.5, float(np.abs(first.command[:, i]).max(initial=0.0)))
        axis.set_ylim(-bound, bound)
    axes[0].legend(loc="upper right", ncols=len(traces) + 1, frameon=False, fontsize=8)
    axes[-1].set_xlabel("time [s]   (dashed: fell or was stopped)")
    return figure


def curve_figure(curves: Sequence[Curve]) -> Figure:
    """Tracking score against training time, with 95 % intervals over episodes."""
    figure, (axis,) = _panels(1, height=3.2)
    for curve, colour in zip(curves, RUN_COLOURS, strict=False):
        if not curve.minutes.size:
            continue
        axis.fill_between(curve.minutes, curve.low, curve.high, color=colour, alpha=0.2, lw=0)
        axis.plot(curve.minutes, curve.mean, color=colour, marker=".", label=curve.label)
    axis.set_ylim(0.0, 1.0)
    axis.set_xlim(left=0.0)
    axis.set_xlabel("training time [min]")
    axis.set_ylabel("tracking (1 is perfect)")
    axis.legend(loc="lower right", frameon=False, fontsize=8)
    return figure


def _panels(rows: int, *, height: float) -> tuple[Figure, list[Axes]]:
    # The object interface needs no display and leaves no global state behind.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, height), layout="constrained")
    grid = figure.subplots(rows, 1, sharex=True, squeeze=False)
    axes: list[Axes] = [row[0] for row in grid]
    for axis in axes:
        axis.margins(x=0.01)
        axis.grid(visible=True, color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _figure(figure: Figure) -> str:
    from matplotlib import rc_context

    text = io.StringIO()
    # Text stays text: smaller, selectable, and readable by screen readers.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "ferry"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return f"<figure>{svg[svg.index('<svg') :]}</figure>"


def _picture(file: Path | None) -> str:
    if file is None or not file.is_file():
        return _absent("this computer could not render one")
    kind = {".gif": "image/gif", ".png": "image/png", ".mp4": "video/mp4"}.get(file.suffix)
    if kind is None:
        return _absent(f"{file.name} is no GIF, PNG or MP4")
    data = f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"
    if kind == "video/mp4":
        return f'<figure><video src="{data}" autoplay loop muted playsinline></video></figure>'
    return f'<figure><img src="{data}" alt="the robot walking"></figure>'


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["<div class=scroll><table>"]
    if header:
        lines.append("<tr>" + "".join(f"<th>{html.escape(c)}</th>" for c in header) + "</tr>")
    lines += ["<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows]
    return "".join(lines) + "</table></div>"


def _definitions(notes: Mapping[str, str]) -> str:
    items = (f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in notes.items())
    return "<dl>" + "".join(items) + "</dl>"


def _absent(why: str) -> str:
    return f"<p class=absent>Not shown: {html.escape(why)}.</p>"


_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:#222;
background:#fff}
h1{font-size:1.6em}h2{font-size:1.15em;margin-top:2em}.lead{color:#555}.absent{color:#777}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.3em 1.2em .3em 0;border-bottom:1px solid #ddd}
figure{margin:1em 0}svg,img,video{max-width:100%;height:auto}
dt{font-weight:600}dd{margin:0 0 .6em}
"""
