"""What is written as YAML is read back by YAML's own reader, whatever stands in it."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from deploy.yaml_text import yaml_scalar

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(st.one_of(TEXTS, st.lists(TEXTS, max_size=3), st.booleans(), st.integers(), st.none()))
def test_every_text_survives(value):
    assert yaml.safe_load(yaml_scalar(value)) == value


@pytest.mark.parametrize(
    "text", ["1e-07", "yes", "~", "a: b #c", "\x7f\x80\x85\x9f\uffff", "\U0001f600"]
)
def test_awkward_ones_do_too(text):
    assert yaml.safe_load(f"key: {yaml_scalar(text)}") == {"key": text}


def test_a_path_that_is_no_utf8_is_written_with_a_mark_for_it():
    path = b"/tmp/\xff.mcap".decode(errors="surrogateescape")
    assert yaml.safe_load(yaml_scalar(path)) == "/tmp/\ufffd.mcap"
    yaml_scalar(path).encode()
