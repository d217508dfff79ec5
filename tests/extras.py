"""Packages that an installation may lack: a test that needs one is skipped, and says what to do."""

from __future__ import annotations

from typing import Any

import pytest

from deploy import console

#: By pip extra. The last two are for tests and benchmarks alone, so no command asks for them.
EXTRAS = {
    **console.EXTRAS,
    "peers": "stable_baselines3 rsl_rl envpool imageio",
    "menagerie": "mujoco_menagerie",
}


def reason(package: str) -> str:
    """What to install for a test that needs a package.

    Raises:
        KeyError: no extra brings it, so that the test would be skipped everywhere.
    """
    for extra, packages in EXTRAS.items():
        if package in packages.split():
            ros = ", or a normal ROS 2 installation" if extra == "ros" else ""
            return f"{package} is not installed: pip install 'ferry[{extra}]'{ros}"
    raise KeyError(package)


def need(module: str) -> Any:
    """The module; without it the test is skipped, or at the top of a file all of them."""
    return pytest.importorskip(module, reason=reason(module.partition(".")[0]))
