"""The report: complete on its own, and honest about what is missing."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from training.report import (
    Curve,
    ReportData,
    Trace,
    curve_figure,
    render_html,
    velocity_figure,
    write_report,
)

#: The smallest valid GIF: one transparent pixel.
PIXEL = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")


def trace(label: str, *, fallen_at_s: float | None = None) -> Trace:
    time_s = np.arange(0.0, 6.0, 0.02)
    command = np.zeros((time_s.size, 3))
    command[:, 0] = np.where(time_s < 3.0, 0.5, -0.25)
    command[:, 2] = np.where(time_s < 2.0, 0.0, 0.8)
    velocity = command + 0.05 * np.sin(7.0 * time_s)[:, None]
    return Trace(label, time_s, command, velocity, fallen_at_s)


@pytest.fixture
def data(tmp_path: Path) -> ReportData:
    picture = tmp_path / "walk.gif"
    picture.write_bytes(PIXEL)
    minutes = np.array([1.0, 2.5, 4.0])
    mean = np.array([0.2, 0.6, 0.83])
    return ReportData(
        title="A1 <walks>",
        summary="60 s & varied commands",
        header=("what", "value"),
        rows=[("tracking", "0.873"), ("falls", "0")],
        curves=[Curve("randomised", minutes, mean, mean - 0.05, mean + 0.04)],
        traces=[trace("randomised"), trace("not randomised", fallen_at_s=4.4)],
        picture=picture,
        notes={"tracking": "one is perfect"},
        origin={"seed": "3"},
    )


class Outline(HTMLParser):
    """Collects the attributes that would make a browser load something."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in {"src", "href", "xlink:href"} and value is not None:
                self.loaded.append(value)


def outline(page: str) -> Outline:
    parser = Outline()
    parser.feed(page)
    return parser


@pytest.mark.slow
def test_the_page_loads_nothing_from_elsewhere(data: ReportData) -> None:
    page = outline(render_html(data))
    assert page.loaded
    outside = [v for v in page.loaded if not v.startswith(("data:", "#"))]
    assert outside == []
    assert page.tags.count("svg") == 2
    assert "script" not in page.tags


@pytest.mark.slow
def test_the_page_carries_the_numbers_and_the_picture_and_escapes_text(data: ReportData) -> None:
    page = render_html(data)
    for cell in ("tracking", "0.873", "falls", "one is perfect", "seed"):
        assert cell in page
    assert "A1 &lt;walks&gt;" in page
    assert "60 s &amp; varied commands" in page
    assert base64.b64encode(PIXEL).decode() in page


def test_every_missing_part_is_replaced_by_a_sentence(data: ReportData, tmp_path: Path) -> None:
    bare = replace(data, curves=[], traces=[], picture=tmp_path / "gone.gif")
    page = render_html(bare)
    assert page.count("Not shown:") == 3
    assert "svg" not in outline(page).tags
    assert "0.873" in page


def test_an_evaluation_less_curve_does_not_hide_the_other_one(data: ReportData) -> None:
    nothing = np.zeros(0)
    curves = [Curve("too short", nothing, nothing, nothing, nothing), data.curves[0]]
    axis = curve_figure(curves).axes[0]
    labels = [str(line.get_label()) for line in axis.lines]
    assert labels == ["randomised"]


def test_velocity_panels_show_the_command_and_every_drive(data: ReportData) -> None:
    panels = velocity_figure(data.traces).axes
    assert len(panels) == 3
    for i, panel in enumerate(panels):
        drawn = [np.asarray(line.get_ydata(), dtype=np.float64) for line in panel.lines]
        np.testing.assert_allclose(drawn[0], data.traces[0].command[:, i])
        np.testing.assert_allclose(drawn[1], data.traces[0].velocity[:, i])
        np.testing.assert_allclose(drawn[2], data.traces[1].velocity[:, i])
        # the fall of the second drive
        np.testing.assert_allclose(np.asarray(panel.lines[3].get_xdata(), dtype=float), 4.4)


@pytest.mark.slow
def test_the_file_is_written_whole_and_twice_gives_the_same_bytes(
    data: ReportData, tmp_path: Path
) -> None:
    first = write_report(data, tmp_path / "new" / "report.html").read_bytes()
    second = write_report(data, tmp_path / "new" / "report.html").read_bytes()
    assert first == second
    assert re.match(rb"<!doctype html>", first)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["report.html"]
