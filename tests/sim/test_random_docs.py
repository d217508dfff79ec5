"""The documentation of random terms is that of the registry."""

from pathlib import Path

from sim.random_docs import put
from sim.random_terms import TERMS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "randomisation.md"


def test_the_documented_table_is_that_of_today():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert put(text) == text, "run `python -m sim.random_docs docs/randomisation.md`"
    assert all(f"| {name} |" in text for name in TERMS)
