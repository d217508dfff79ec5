"""Pictures that show the robot where it was, and failures that stay failures of a picture."""

from __future__ import annotations

import dataclasses
import logging

import numpy as np
import pytest
from PIL import Image

import sim.render
from real.frames import from_rpy
from real.spec import RobotSpec, load_robot
from sim.draw import Request
from sim.render import Poses, render_frames, save_gif

PYBULLET = (("pybullet", ""),)


@pytest.fixture(scope="module")
def robot() -> RobotSpec:
    return load_robot("a1")


def walk(robot: RobotSpec, frames: int, *, dt: float = 0.1) -> Poses:
    time = 3.0 + dt * np.arange(frames)
    position = np.zeros((frames, 3))
    position[:, 0] = 0.3 * np.arange(frames)
    position[:, 2] = robot.base_height_m
    return Poses(
        time_s=time,
        position_w=position,
        quat_wb=from_rpy(np.outer(np.arange(frames), [0.0, 0.0, 0.8])),
        q=np.tile(robot.q_default, (frames, 1)),
    )


def orange(frame: np.ndarray) -> np.ndarray:
    """Where A1's orange legs are in a picture of grey tiles."""
    red, green, blue = (frame[..., i].astype(int) for i in range(3))
    return (red > green + 60) & (green > blue + 20)


@pytest.mark.slow
def test_the_software_renderer_shows_the_robot_in_the_middle_from_all_sides(robot):
    frames = render_frames(
        robot, walk(robot, 3), width=160, height=120, fps=10.0, renderers=PYBULLET
    )
    assert frames is not None
    assert [f.shape for f in frames] == [(120, 160, 3)] * 3
    assert frames[0].dtype == np.uint8
    for frame in frames:
        rows, columns = np.nonzero(orange(frame))
        assert 300 < len(rows) < 6000  # a robot, neither a dot nor a wall
        assert 40 < rows.mean() < 90 and 50 < columns.mean() < 110
        assert len(np.unique(frame[110])) > 5  # tiles in front of it
    # The camera follows, so what differs is the heading.
    assert (orange(frames[0]) ^ orange(frames[2])).sum() > 100


@pytest.mark.slow
def test_where_there_is_opengl_both_renderers_draw_the_same_scene(robot):
    poses, size = walk(robot, 1), {"width": 160, "height": 120}
    mine = render_frames(robot, poses, renderers=(("mujoco", "egl"), ("mujoco", "osmesa")), **size)
    if mine is None:
        pytest.skip("no OpenGL here")
    other = render_frames(robot, poses, renderers=PYBULLET, **size)
    assert other is not None
    # PyBullet textures the trunk, so compare where legs are.
    one, two = (np.argwhere(orange(f[0])).mean(axis=0) for f in (mine, other))
    np.testing.assert_allclose(one, two, atol=12)


def test_frames_show_the_newest_pose_at_their_time(robot):
    poses = walk(robot, 11, dt=0.03)  # 0 to 0.3 s
    request = sim.render._request(robot, poses, width=8, height=6, fps=20.0)
    # Frames at 0, 50, 100, ..., 300 ms show the samples at 0, 30, 90, 150, 180, 240, 300 ms.
    np.testing.assert_allclose(request.position_w[:, 0] / 0.3, [0, 1, 3, 5, 6, 8, 10], atol=1e-9)


def test_a_request_survives_the_way_to_the_other_process(robot, tmp_path):
    request = sim.render._request(robot, walk(robot, 4), width=8, height=6, fps=10.0)
    request.save(tmp_path / "r.npz")
    back = Request.load(tmp_path / "r.npz")
    assert dataclasses.asdict(back.robot) == dataclasses.asdict(robot)
    assert back.robot.joints == robot.joints
    assert (back.width, back.height) == (8, 6)
    for name in ("position_w", "quat_wb", "q"):
        np.testing.assert_array_equal(getattr(back, name), getattr(request, name))


@pytest.mark.slow
def test_nothing_that_fails_in_a_renderer_reaches_the_caller(robot, caplog):
    caplog.set_level(logging.INFO)
    nowhere = dataclasses.replace(robot, description="nowhere.urdf")
    assert render_frames(nowhere, walk(robot, 2), renderers=PYBULLET) is None
    assert "renderer pybullet does not work here" in caplog.text
    assert "no file" in caplog.text
    empty = Poses(np.zeros(0), np.zeros((0, 3)), np.zeros((0, 4)), np.zeros((0, 12)))
    assert render_frames(robot, empty) is None
    assert "rendering failed" in caplog.text


def test_a_renderer_that_hangs_is_given_up(robot, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(sim.render, "_TIMEOUT_S", 0.01)
    assert render_frames(robot, walk(robot, 2), renderers=PYBULLET) is None
    assert "renderer pybullet: no picture after" in caplog.text


def test_a_gif_holds_every_frame_at_the_right_pace(tmp_path):
    frames = [np.full((20, 30, 3), 40 * i, dtype=np.uint8) for i in range(5)]
    path = save_gif(frames, tmp_path / "new" / "a.gif", fps=20.0)
    assert path is not None
    with Image.open(path) as image:
        assert image.n_frames == 5
        assert image.info["duration"] == 50
        assert image.size == (30, 20)
        for i in range(5):
            image.seek(i)
            shown = np.asarray(image.convert("RGB")).astype(int)
            assert abs(shown - 40 * i).max() <= 45


def test_a_file_that_cannot_be_written_is_no_error(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    (tmp_path / "file").write_text("in the way")
    assert save_gif([np.zeros((20, 30, 3), dtype=np.uint8)], tmp_path / "file" / "a.gif") is None
    assert "written to" in caplog.text
