"""Whoever skips a test for want of a package names an extra that exists and brings it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.extras import EXTRAS, need, reason

ROOT = Path(__file__).resolve().parents[1]


def test_every_extra_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS) <= set(project["optional-dependencies"])


def test_the_reason_says_what_to_install():
    assert reason("mujoco") == "mujoco is not installed: pip install 'ferry[train]'"
    assert reason("rclpy").endswith("'ferry[ros]', or a normal ROS 2 installation")
    with pytest.raises(KeyError, match="numpyy"):
        reason("numpyy")


def test_who_needs_what_is_there_gets_it_and_else_is_skipped(monkeypatch):
    assert need("mujoco").__name__ == "mujoco"
    monkeypatch.setitem(EXTRAS, "peers", "no_such_package")
    with pytest.raises(pytest.skip.Exception, match=r"no_such_package .*ferry\[peers\]"):
        need("no_such_package.part")


def test_no_test_is_skipped_without_a_word():
    files = sorted((ROOT / "tests").rglob("*.py"))
    calls = [c for f in files for c in re.findall(r"importorskip\(\S*(?: \w+=|\))", f.read_text())]
    assert calls and [call for call in calls if not call.endswith(" reason=")] == []
