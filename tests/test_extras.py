"""Whoever skips a test for want of a package names an extra that exists and brings it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from deploy.preflight import WHEELS
from tests.extras import EXTRAS, need, reason

ROOT = Path(__file__).resolve().parents[1]


def test_every_extra_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS) <= set(project["optional-dependencies"])


def test_either_distribution_of_ros_brings_the_same_packages_and_has_its_pins():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names: dict[str, set[str]] = {}
    for distribution, extra in WHEELS.items():
        listed = project["optional-dependencies"][extra]
        wheels = {re.split(r"[>;]", line)[0] for line in listed}
        names[distribution] = {w.removeprefix(f"ros-{distribution}-") for w in wheels}
        assert not wheels & names[distribution], "a wheel of another distribution"
        suffix = "" if extra == "ros" else f"-{distribution}"
        pinned = (ROOT / f"constraints{suffix}.txt").read_text(encoding="utf-8")
        assert wheels <= set(re.findall(r"^([\w-]+)==", pinned, flags=re.MULTILINE))
    assert names["jazzy"] == names["kilted"]


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
