"""What a robot's plug-in is told, and what it says of itself, before anything moves."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from real.errors import FerryError
from real.loopback import LoopbackRobot
from real.plugin_options import is_number, require_kinds
from real.robot_io import load_plugin
from real.spec import load_robot

A1 = load_robot("a1")


class Hinted:
    """One hint of each kind."""

    def __init__(
        self,
        robot: object,
        *,
        flag: bool = True,
        count: int = 1,
        rate: float = 1.0,
        port: str | None = None,
        side: Literal["left", "right"] = "left",
        start: Mapping[str, float] | None = None,
        order: Sequence[str] = (),
        file: Path = Path(),
        anything: Any = None,
        unhinted=None,
    ) -> None:
        pass


GOOD = [
    {"flag": False, "count": -3, "rate": 2, "port": "usb", "side": "right"},
    {"rate": np.float32(0.5), "port": None, "start": {"a": 1, "b": 0.5}, "order": ["a", "b"]},
    {"start": None, "order": (), "file": "x", "anything": [{}], "unhinted": {1: 2}, "other": 3},
]
BAD = [
    ("flag", 1, "expected true or false"),
    ("flag", "yes", "expected true or false"),
    ("count", 1.5, "expected a whole number"),
    ("count", True, "expected a whole number"),
    ("count", "abc", "expected a whole number"),
    ("rate", True, "expected a number"),
    ("rate", [1.0], "expected a number"),
    ("port", 5, "expected a text or nothing"),
    ("side", "up", "expected one of left, right"),
    ("start", [0.1], "expected a table or nothing"),
    ("start", {"a": "x"}, "expected a table or nothing"),
    ("order", "abc", "expected a list of a text each"),
    ("order", ["a", 1], "expected a list of a text each"),
    ("order", None, "expected a list of a text each"),
]


@pytest.mark.parametrize("options", GOOD)
def test_what_fits_the_hints_or_has_none_passes(options):
    require_kinds(Hinted, options, "mine:Hinted")


@pytest.mark.parametrize(("name", "value", "words"), BAD)
def test_another_kind_is_refused_by_name_with_what_was_expected(name, value, words):
    options = {"unhinted": 1, name: value}
    with pytest.raises(FerryError) as raised:
        require_kinds(Hinted, options, "mine:Hinted")
    assert str(raised.value) == f"robot plug-in 'mine:Hinted': option {name}={value!r}: {words}"


def test_hints_that_cannot_be_resolved_say_nothing():
    class Odd:
        def __init__(self, robot, *, port: NotThere = None):  # noqa: F821
            pass

    require_kinds(Odd, {"port": 3}, "mine:Odd")
    require_kinds(lambda robot, port: None, {"port": 3}, "mine:odd")


def test_numbers_are_those_of_python_and_numpy_and_no_flags():
    assert all(map(is_number, (0, 1.5, np.float32(2), np.int8(3), float("nan"))))
    assert not any(map(is_number, (True, np.True_, "1", None, [1.0], np.ones(1), 1j)))


@pytest.mark.parametrize("engine", ["sim.sim_robot:MujocoRobot", "sim.sim_robot:PyBulletRobot"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": "abc"}, "option seed='abc': expected a whole number"),
        ({"level": 1.5}, "option level=1.5: expected a whole number or nothing"),
        ({"tile": 3}, "option tile=3: expected a text or nothing"),
        ({"plane": "yes"}, "option plane='yes': expected true or false"),
        ({"terrain": "hills"}, "option terrain='hills': expected a table or nothing"),
        ({"friction": "much"}, "option friction='much': expected a number"),
        ({"friction": -0.1}, "option friction=-0.1: expected a finite number"),
        ({"friction": float("nan")}, "option friction=nan: expected a finite number"),
        ({"seed": -1}, "option seed=-1: expected 0 or more"),
    ],
)
def test_options_of_simulated_robots_are_refused_one_by_one(engine, options, words):
    pytest.importorskip("mujoco" if "Mujoco" in engine else "pybullet")
    with pytest.raises(FerryError, match=words):
        load_plugin(engine, A1, options=options)


def test_options_of_the_loopback_robot_too():
    for options in ({"quat_wb": ["a", 0, 0, 0]}, {"start": {"FR_hip_joint": "x"}}):
        with pytest.raises(FerryError, match=r"option .*: expected a"):
            load_plugin("real.loopback:LoopbackRobot", A1, options=options)


# ---------------------------------------------------------------- what it says of itself


class Moving(LoopbackRobot):
    """Its class says that nothing real moves."""

    def __init__(self, robot, *, simulated):
        super().__init__(robot)
        self.simulated = simulated


class Silent(Moving):
    """Its class says that it is hardware."""

    simulated = False


class Worded(Moving):
    """Its class says no flag."""

    simulated = "no"  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("kind", "simulated", "fits"),
    [
        (Moving, True, True),
        (Moving, False, False),
        (Moving, 1, False),
        (Moving, None, False),
        (Silent, False, True),
        (Silent, True, False),
        (Silent, 0, False),
        (Silent, "no", False),
        (Worded, False, True),
        (Worded, "no", False),
        (Worded, True, False),
    ],
)
def test_class_and_robot_must_agree_whether_it_is_simulated(kind, simulated, fits):
    path = f"{__name__}:{kind.__name__}"
    if fits:
        assert load_plugin(path, A1, options={"simulated": simulated}).simulated is simulated
        return
    with pytest.raises(FerryError, match=rf"what it builds says {simulated!r}; expected"):
        load_plugin(path, A1, options={"simulated": simulated})


class Exiting(LoopbackRobot):
    """It ends the process where it is built."""

    def __init__(self, robot):
        sys.exit("no licence")


def test_a_driver_that_wants_the_process_to_exit_is_refused(tmp_path, monkeypatch):
    with pytest.raises(FerryError, match=r"building 'Exiting' asked the process to exit \(no lic"):
        load_plugin(f"{__name__}:Exiting", A1, options={})
    (tmp_path / "exiting_driver.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(FerryError, match=r"importing 'exiting_driver' asked the .* exit \(0\)"):
        load_plugin("exiting_driver:Robot", A1, options={})
