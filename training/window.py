"""MuJoCo's passive viewer as a window that shows one robot in real time, or a reason why not.

MuJoCo opens it in another thread and waits for that: where its window cannot open, it waits for
ever. So whether one can is tried first, in a process of its own.
"""

# The names of MuJoCo come from compiled modules, which the type checker cannot see.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from real.spec import RobotSpec
from sim.height_field import HeightField
from sim.model import build_mujoco

Array = NDArray[np.float64]

#: Opens what the viewer opens, but invisibly; says in one line what does not work.
_PROBE = """
import sys, warnings
warnings.simplefilter("ignore")
import glfw
if not glfw.init():
    sys.exit("no window can be opened")
glfw.window_hint(glfw.VISIBLE, 0)
if not glfw.create_window(64, 64, "", None, None):
    sys.exit("the display has no OpenGL")
glfw.terminate()
"""
# A display at the other end of a slow connection answers within this.
_PATIENCE_S = 30.0
#: A picture at least as often, however late it is [s].
_SLOWEST_S = 0.1


def why_no_window() -> str:
    """Why no window can open here; empty if one can."""
    linux = sys.platform.startswith("linux")
    names = [n for n in ("DISPLAY", "WAYLAND_DISPLAY") if os.environ.get(n)]
    if linux and not names:
        return "there is no display"
    where = ", ".join(f"{n}={os.environ[n]}" for n in names) or "the display"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{where} does not answer"
    if done.returncode == 0:
        return ""
    said = done.stderr.strip().splitlines()[-1:] or [f"exit {done.returncode}"]
    return f"{where} cannot be used ({said[0]})"


class Window:
    """A window of MuJoCo's viewer; a context that closes it.

    Args:
        robot: what it shows.
        field: what the robot stands on; a plane if None.

    Raises:
        FerryError: macOS lets windows open from ``mjpython`` only.
    """

    def __init__(self, robot: RobotSpec, *, field: HeightField | None = None) -> None:
        # Costs a second, and a window library that robot computers may lack.
        import mujoco
        import mujoco.viewer

        self._forward = mujoco.mj_forward
        built = self._built = build_mujoco(robot, visuals=True, field=field)
        self._data = mujoco.MjData(built.model)
        before = set(threading.enumerate())
        try:
            self._viewer: Any = mujoco.viewer.launch_passive(built.model, self._data)
        except RuntimeError as error:
            if "mjpython" not in str(error):
                raise
            raise FerryError(
                "macOS opens MuJoCo's viewer from mjpython only: `mjpython -m ferry view ...`, or "
                "write a file with --out FILE.gif"
            ) from error
        self._threads = set(threading.enumerate()) - before
        if built.base_body_id > 0:
            with self._viewer.lock():
                camera = self._viewer.cam
                camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
                camera.trackbodyid = built.base_body_id
        self._due = self._drawn = time.monotonic()

    def __enter__(self) -> Self:
        """This window."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it, and wait until it is gone: a process that ends before crashes in the driver."""
        self._viewer.close()
        for thread in self._threads:
            thread.join(_PATIENCE_S)

    def show(self, position: Array, quat: Array, q: Array, *, period_s: float) -> bool:
        """Show a pose, not before the time of the one before is over.

        Args:
            position: ``[3]`` of the base [m].
            quat: ``[4]`` of the base, wxyz.
            q: ``[J]`` joint positions [rad or m].
            period_s: how long it is shown [s].

        Returns:
            Whether the window is still open.
        """
        if not self._viewer.is_running():
            return False
        self._due += period_s
        now = time.monotonic()
        # Where drawing is slow, time goes on and pictures are left out.
        if now < self._due or now > self._drawn + _SLOWEST_S:
            self._draw(position, quat, q)
            self._drawn = now = time.monotonic()
        # A pause of the computer, or of the person who moved the window, is not caught up with.
        self._due = max(self._due, now - _SLOWEST_S)
        time.sleep(max(0.0, self._due - now))
        return True

    def _draw(self, position: Array, quat: Array, q: Array) -> None:
        built, data = self._built, self._data
        # The viewer's thread draws from these numbers: never half of them.
        with self._viewer.lock():
            at = built.base_qpos_adr
            if at >= 0:
                data.qpos[at : at + 3], data.qpos[at + 3 : at + 7] = position, quat
            data.qpos[built.joint_qpos_adr] = q
            self._forward(built.model, data)
        self._viewer.sync()
