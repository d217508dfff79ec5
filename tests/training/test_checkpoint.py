"""Checkpoints are whole, checked, replaceable by the one before, and free of code."""

from __future__ import annotations

import json
import logging
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from training.checkpoint import (
    Checkpoint,
    CheckpointError,
    checkpoint_folders,
    load_checkpoint,
    newest_checkpoint,
    pointed,
    prune_checkpoints,
    recover_checkpoints,
    save_checkpoint,
    set_pointer,
)

FILES = ("policy", "optimizer", "env", "episodes", "probe")


def checkpoint(step: int) -> Checkpoint:
    rng = np.random.default_rng(step)
    return Checkpoint(
        step=step,
        policy={"w": rng.normal(size=(3, 4)).astype(np.float32), "count": np.array(7.0)},
        learner={"generator": rng.integers(0, 256, 50, dtype=np.uint8), "version": np.array(step)},
        actor={
            "rng": rng.integers(0, 2**64, (3, 6), dtype=np.uint64),
            "fresh": np.array([True, False, True]),
            # Not in C order: what is stored must be the numbers, not the memory as it lies.
            "turned": np.arange(6.0).reshape(2, 3).T,
            "none": np.empty((0, 4)),
        },
        episodes={"total": np.array(3)},
        probe={"obs": rng.normal(size=(8, 4)).astype(np.float32)},
        counters={"iteration": 12, "best_score": None, "training_s": 0.1 + 0.2, "name": "ä"},
    )


def assert_equal(a: Checkpoint, b: Checkpoint) -> None:
    assert (a.step, dict(a.counters)) == (b.step, dict(b.counters))
    for field in ("policy", "learner", "actor", "episodes", "probe"):
        x, y = getattr(a, field), getattr(b, field)
        assert x.keys() == y.keys()
        for name in x:
            assert x[name].dtype == y[name].dtype
            assert x[name].shape == y[name].shape
            np.testing.assert_array_equal(x[name], y[name], err_msg=name)


def test_what_is_written_is_read_back_bit_by_bit(tmp_path):
    folder = save_checkpoint(tmp_path, checkpoint(1200))
    assert folder.name == "step_00001200"
    assert_equal(load_checkpoint(folder), checkpoint(1200))
    assert pointed(tmp_path, "latest") == folder
    assert pointed(tmp_path, "best") is None


def test_there_is_nothing_but_arrays_and_json(tmp_path):
    folder = save_checkpoint(tmp_path, checkpoint(1))
    names = {path.name for path in folder.iterdir()}
    assert names == {"state.json", *(f"{name}.safetensors" for name in FILES)}
    json.loads((folder / "state.json").read_text())
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "gone"])
@pytest.mark.parametrize("file", [*(f"{name}.safetensors" for name in FILES), "state.json"])
def test_a_damaged_newest_gives_way_to_the_one_before_with_a_notice(tmp_path, caplog, file, damage):
    for step in (100, 200, 300):
        save_checkpoint(tmp_path, checkpoint(step))
    path = tmp_path / "step_00000300" / file
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    path.unlink()
    if damage != "gone":
        path.write_bytes({"cut": content[:-3], "empty": b"", "flipped": content}[damage])

    with pytest.raises(CheckpointError, match="step_00000300"):
        load_checkpoint(path.parent)
    with caplog.at_level(logging.WARNING):
        assert_equal(newest_checkpoint(tmp_path), checkpoint(200))
    assert "step_00000300" in caplog.text
    assert "trying the one before" in caplog.text


def test_a_number_changed_by_hand_is_noticed(tmp_path):
    path = save_checkpoint(tmp_path, checkpoint(5)) / "state.json"
    path.write_text(path.read_text().replace('"iteration": 12', '"iteration": 13'))
    with pytest.raises(CheckpointError, match="changed after writing"):
        load_checkpoint(path.parent)


def test_without_an_intact_checkpoint_there_is_one_clear_error(tmp_path):
    with pytest.raises(CheckpointError, match="has no checkpoints"):
        newest_checkpoint(tmp_path)
    folder = save_checkpoint(tmp_path, checkpoint(5))
    (folder / "state.json").unlink()
    with pytest.raises(CheckpointError, match="no intact checkpoint: step_00000005"):
        newest_checkpoint(tmp_path)


def test_another_schema_version_is_refused(tmp_path):
    path = save_checkpoint(tmp_path, checkpoint(5)) / "state.json"
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 2'))
    with pytest.raises(CheckpointError, match="schema version 2; this Ferry reads 1"):
        load_checkpoint(path.parent)


def test_the_newest_is_the_one_with_the_most_steps_also_past_eight_digits(tmp_path):
    for step in (99_999_999, 100_000_000, 5):
        save_checkpoint(tmp_path, checkpoint(step))
    assert [int(f.name[5:]) for f in checkpoint_folders(tmp_path)] == [5, 99_999_999, 100_000_000]
    assert newest_checkpoint(tmp_path).step == 100_000_000


def test_the_newest_few_the_latest_and_the_best_are_kept(tmp_path):
    for step in range(1, 7):
        save_checkpoint(tmp_path, checkpoint(step))
    set_pointer(tmp_path, "best", "step_00000002")
    (tmp_path / ".writing_step_00000009_1").mkdir()  # left by a process that was killed
    prune_checkpoints(tmp_path, keep=3)
    assert [int(f.name[5:]) for f in checkpoint_folders(tmp_path)] == [2, 4, 5, 6]
    assert not list(tmp_path.glob(".*"))


def test_a_half_written_folder_is_no_checkpoint(tmp_path):
    good = save_checkpoint(tmp_path, checkpoint(1))
    shutil.copytree(good, tmp_path / ".writing_step_00000002_1")
    assert checkpoint_folders(tmp_path) == [good]


def test_a_process_of_the_same_number_writes_what_the_one_before_left_half_written(tmp_path):
    # In a container the run after a kill often has the process id of the run before.
    left = tmp_path / f".writing_step_00000002_{os.getpid()}"
    left.mkdir()
    (left / "policy.safetensors").write_bytes(b"half")
    (left / "stray").write_bytes(b"")
    folder = save_checkpoint(tmp_path, checkpoint(2))
    assert_equal(load_checkpoint(folder), checkpoint(2))
    assert not (folder / "stray").exists()
    assert not left.exists()


def test_writing_the_same_step_again_replaces_it(tmp_path):
    save_checkpoint(tmp_path, checkpoint(8))
    changed = Checkpoint(**{**vars(checkpoint(8)), "counters": {"iteration": 99}})
    folder = save_checkpoint(tmp_path, changed)
    assert load_checkpoint(folder).counters["iteration"] == 99
    assert list(tmp_path.glob(".*")) == []


class Killed(BaseException):
    """What no handler in the code under test may catch."""


def kill_between_the_renames(root: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Replace a checkpoint and end after it made way, before the new one is in its place."""
    rename = Path.rename

    def killed(self: Path, target: Path) -> Path:
        if self.name.startswith(".writing_"):
            raise Killed
        return rename(self, target)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Path, "rename", killed)
        save_checkpoint(root, checkpoint(step))
    assert not (root / f"step_{step:08d}").exists()


@pytest.mark.parametrize(
    "mend", [recover_checkpoints, lambda root: prune_checkpoints(root, keep=2)]
)
def test_a_checkpoint_that_made_way_when_the_process_died_comes_back(tmp_path, monkeypatch, mend):
    for step in (7, 8):
        folder = save_checkpoint(tmp_path, checkpoint(step))
    kill_between_the_renames(tmp_path, monkeypatch, 8)
    mend(tmp_path)
    assert_equal(load_checkpoint(folder), checkpoint(8))
    assert pointed(tmp_path, "latest") == folder
    assert [int(f.name[5:]) for f in checkpoint_folders(tmp_path)] == [7, 8]
    assert list(tmp_path.glob(".*")) == []


def test_leftovers_of_a_killed_process_of_the_same_number_do_not_stop_a_run(tmp_path):
    save_checkpoint(tmp_path, checkpoint(100))
    for name in ("writing", "replaced"):
        leftover = tmp_path / f".{name}_step_00000100_{os.getpid()}"
        leftover.mkdir()
        (leftover / "policy.safetensors").write_bytes(b"half")
    again = replace(checkpoint(100), counters={"iteration": 8})
    save_checkpoint(tmp_path, again)
    assert_equal(newest_checkpoint(tmp_path), again)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step_00000100"]


def test_what_another_running_process_replaces_is_left_to_it(tmp_path):
    folder = save_checkpoint(tmp_path, checkpoint(8))
    theirs = folder.rename(tmp_path / f".replaced_{folder.name}_{os.getppid()}")
    recover_checkpoints(tmp_path)
    assert theirs.is_dir()
    assert not folder.exists()


@pytest.mark.parametrize("content", ["step_00000777", "../elsewhere", ""])
def test_a_pointer_to_no_checkpoint_of_this_run_is_no_pointer(tmp_path, content):
    root = tmp_path / "checkpoints"
    save_checkpoint(root, checkpoint(1))
    (tmp_path / "elsewhere").mkdir()
    (root / "best").write_text(content)
    assert pointed(root, "best") is None


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """The system refuses to write more than so many bytes to a file: a full disk, in small."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_one_clear_error_and_the_last_good_checkpoint_stays(tmp_path):
    save_checkpoint(tmp_path, checkpoint(1))
    with (
        file_size_limit(100),
        pytest.raises(CheckpointError, match=r"cannot write checkpoint .*step_00000002.*MB free"),
    ):
        save_checkpoint(tmp_path, checkpoint(2))
    assert_equal(newest_checkpoint(tmp_path), checkpoint(1))
    assert pointed(tmp_path, "latest") == tmp_path / "step_00000001"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step_00000001"]


def test_a_folder_that_may_not_be_made_is_one_clear_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(CheckpointError, match="none was written before"):
        save_checkpoint(Path(blocked, "checkpoints"), checkpoint(1))


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([object()]), np.array([1j])])
def test_what_is_not_numbers_is_refused_by_name(tmp_path, array):
    odd = Checkpoint(**{**vars(checkpoint(1)), "actor": {"thing": array}})
    with pytest.raises(CheckpointError, match=r"'thing' of type .* in env.safetensors"):
        save_checkpoint(tmp_path, odd)
    assert checkpoint_folders(tmp_path) == []
