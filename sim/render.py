"""Pictures of a robot from recorded poses: for reports and for looking, never for a policy.

Rendering may be impossible on a computer (no OpenGL, no display) and must not end a run for that,
so it happens in a process of its own, first with MuJoCo's renderer, then with PyBullet's in
software, and what fails is logged.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from real.spec import RobotSpec
from sim.draw import Request
from sim.terrain import TerrainConfig

log = logging.getLogger(__name__)

Array = NDArray[np.float64]
Frame = NDArray[np.uint8]

RENDERERS: tuple[tuple[str, str], ...] = (("mujoco", "egl"), ("mujoco", "osmesa"), ("pybullet", ""))
"""Renderer and OpenGL driver, in the order in which they are tried."""

# Longer than any software renderer needs for a minute of video, short enough to wait for.
_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Poses:
    """A recorded motion of one robot.

    Attributes:
        time_s: ``[T]`` ascending [s].
        position_w: ``[T, 3]`` base position [m].
        quat_wb: ``[T, 4]`` base orientation, wxyz.
        q: ``[T, J]`` joint positions in the order of the RobotSpec [rad or m].
    """

    time_s: Array
    position_w: Array
    quat_wb: Array
    q: Array


def render_frames(
    robot: RobotSpec,
    poses: Poses,
    *,
    width: int = 320,
    height: int = 240,
    fps: float = 20.0,
    renderers: Sequence[tuple[str, str]] = RENDERERS,
    terrain: TerrainConfig | None = None,
) -> list[Frame] | None:
    """Draw a motion, the camera following the base.

    Args:
        robot: the robot.
        poses: where it was; frames show the newest pose at their time.
        width: of a frame [pixels].
        height: of a frame [pixels].
        fps: frames per second of recorded time.
        renderers: what to try; see :data:`RENDERERS`.
        terrain: what it stands on; a plane if None.

    Returns:
        Frames ``[height, width, 3]``, or None if nothing can render here. Never raises: the
        reason is logged.
    """
    try:
        request = _request(robot, poses, width=width, height=height, fps=fps)
        request = replace(request, terrain=terrain)
        with tempfile.TemporaryDirectory(prefix="ferry_") as folder:
            source = Path(folder) / "request.npz"
            request.save(source)
            for renderer, driver in renderers:
                target = Path(folder) / f"{renderer}{driver}.npy"
                if _run(renderer, driver, source, target):
                    return list(np.load(target))
        log.warning("no picture: none of the renderers %s works here", list(renderers))
    except Exception:  # a picture is never worth a run
        log.warning("no picture: rendering failed", exc_info=True)
    return None


def save_gif(frames: Sequence[Frame], path: Path, *, fps: float = 20.0) -> Path | None:
    """Write an animated GIF that repeats for ever; returns its path, or None (logged)."""
    try:
        from PIL import Image

        # One palette for all frames: without it colours flicker and the file is larger.
        sample = frames[:: max(1, len(frames) // 8)]
        palette = Image.fromarray(np.concatenate(sample)).quantize(colors=128)
        images = [
            Image.fromarray(f).quantize(palette=palette, dither=Image.Dither.NONE) for f in frames
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        images[0].save(
            path,
            save_all=True,
            append_images=images[1:],
            # GIF counts in hundredths of a second.
            duration=10 * round(100.0 / fps),
            loop=0,
            optimize=False,
        )
    except Exception:  # a picture is never worth a run
        log.warning("no GIF written to %s", path, exc_info=True)
        return None
    return path


def _request(robot: RobotSpec, poses: Poses, *, width: int, height: int, fps: float) -> Request:
    """The poses at the times of the frames: the newest one at or before each."""
    time = np.asarray(poses.time_s, dtype=np.float64)
    frames = max(1, int(np.floor((time[-1] - time[0]) * fps + 1e-9)) + 1)
    wanted = time[0] + np.arange(frames) / fps
    index = np.clip(np.searchsorted(time, wanted + 1e-9, side="right") - 1, 0, len(time) - 1)
    return Request(
        robot=robot,
        position_w=np.asarray(poses.position_w, dtype=np.float64)[index],
        quat_wb=np.asarray(poses.quat_wb, dtype=np.float64)[index],
        q=np.asarray(poses.q, dtype=np.float64)[index],
        width=width,
        height=height,
    )


def _run(renderer: str, driver: str, source: Path, target: Path) -> bool:
    """Whether the process of one renderer drew everything."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    if driver:
        environment["MUJOCO_GL"] = driver
    name = f"{renderer} {driver}".strip()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "sim.draw", renderer, str(source), str(target)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        log.info("renderer %s: no picture after %.0f s", name, _TIMEOUT_S)
        return False
    if done.returncode != 0 or not target.is_file():
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        log.info("renderer %s does not work here (exit %d): %s", name, done.returncode, last[0])
        return False
    return True
