"""The documentation of terrain is that of the models and of what ``a1_terrain`` lays."""

from pathlib import Path

from sim.document_tables import read_table
from sim.random_terms import TERMS
from sim.terrain_docs import NAME, tables

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_documented_tables_are_those_of_today():
    text = (DOCS / "terrain.md").read_text(encoding="utf-8")
    assert read_table(text, NAME) == tables(), "run `python -m sim.terrain_docs docs/terrain.md`"
    # By hand: tan(0.4) over 3 m of slope, ten steps of 0.12 m, and the first of them over one cell.
    assert "| hollow | -1.268 | -1.268 | -1.247 |" in text
    assert "| stairs_down | 1.200 | 1.200 | 1.080 | 1.080 | 0.960 |" in text


def test_every_random_term_is_named_where_the_engines_are_compared():
    text = (DOCS / "engines.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
    named = {name.strip() for row in rows for name in row.split(",")}
    assert set(TERMS) <= named
