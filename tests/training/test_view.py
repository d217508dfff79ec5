from __future__ import annotations

import numpy as np
import pytest

from real.config import config_path
from real.errors import FerryError
from sim.env import make_env
from training.view import load_scene, record, view

BUNDLE = str(config_path("bundles/a1_walk.onnx"))


def test_without_a_display_the_way_out_is_said(monkeypatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(FerryError, match=r"no display.*--out"):
        view("cartpole_balance")


def test_what_cannot_be_watched_or_written_is_refused(tmp_path) -> None:
    with pytest.raises(FerryError, match=r"expected FILE\.gif"):
        view("cartpole_balance", out=tmp_path / "a.mp4")
    with pytest.raises(FerryError, match="has no robot"):
        view("gym", out=tmp_path / "a.gif")
    with pytest.raises(FerryError, match="no_such_task"):
        view("no_such_task", out=tmp_path / "a.gif")


def test_a_bundle_walks_on_and_a_task_alone_stands() -> None:
    moved = {}
    for source in (BUNDLE, "a1_walk"):
        scene = load_scene(source, overrides=["command.standing_share=0"])
        env = make_env(scene.config, num=1, threads=1, randomize=False)
        poses = record(env, scene, seconds=1.0)
        env.close()
        assert poses.q.shape == (50, 12)
        assert poses.time_s[-1] == pytest.approx(0.98)
        moved[source] = np.ptp(poses.q[25:], axis=0).max()
    assert moved[BUNDLE] > 0.2
    # It settles on its legs; nothing swings.
    assert moved["a1_walk"] < 0.5 * moved[BUNDLE]


@pytest.mark.slow
def test_an_animation_is_written(tmp_path) -> None:
    path = view("cartpole_balance", out=tmp_path / "pole.gif", seconds=0.5)
    assert path is not None
    assert path.read_bytes()[:6] == b"GIF89a"
