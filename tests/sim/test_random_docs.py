"""The documentation of random terms is that of the registry."""

from pathlib import Path

from sim.document_tables import read_table
from sim.random_docs import NAME, table
from sim.random_terms import TERMS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "randomisation.md"


def test_the_documented_table_is_that_of_today():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert read_table(text, NAME) == table(), (
        "run `python -m sim.random_docs docs/randomisation.md`"
    )
    assert all(f"| {name} |" in text for name in TERMS)
