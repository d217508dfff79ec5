"""Recordings against real disks: slow, full and killed; and against their standard reader."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest
from mcap.exceptions import McapError
from mcap.reader import NonSeekingReader, make_reader

from deploy import recording
from deploy.message_buffer import ROW_BYTES
from deploy.recording import Recording, RecordingSettings
from real.errors import FerryError
from real.log import read_log
from real.log_parts import part_path, parts_of
from real.log_writer import LogWriter

PATIENCE_S = 60.0
TOPICS = {"/n": ("std_msgs/msg/String", "string data\n"), "/m": ("std_msgs/msg/String", "")}
TOPICS["/m"] = TOPICS["/n"]
T0 = 1_700_000_000 * 10**9


def text(value: str) -> bytes:
    """CDR of a std_msgs/String: encapsulation, length with the zero, characters, zero."""
    body = value.encode() + b"\0"
    return b"\0\1\0\0" + len(body).to_bytes(4, "little") + body


def until(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def numbers(log, topic="/n"):
    return [int(t.split()[0]) for t in log[topic].text]


@pytest.mark.slow
def test_a_recording_into_a_folder_goes_on_in_the_next_file_and_is_read_as_one(tmp_path):
    settings = RecordingSettings(split_bytes=10_000)
    rng = np.random.default_rng(0)  # what zstd cannot shrink
    made = Recording(tmp_path / "walk", TOPICS, metadata={"ferry": {"a": "b"}}, settings=settings)
    for i in range(30):
        made.put(("/n", "/m")[i % 2], text(f"{i} {rng.bytes(2000).hex()}"), T0 + i)
        if i % 10 == 9:
            until(lambda begun=i // 10 + 2: made.status().parts == begun, "the next file is begun")
    assert made.close() == ""
    assert made.status().received == {"/n": 15, "/m": 15}
    assert made.status().dropped == {}
    files, absent = parts_of(tmp_path / "walk")
    assert absent == ""
    assert [f.name for f in files] == [f"walk_{i:04d}.mcap" for i in range(made.parts)]
    assert made.parts == 4
    log = read_log(tmp_path / "walk")
    assert numbers(log, "/n") == list(range(0, 30, 2))
    assert numbers(log, "/m") == list(range(1, 30, 2))
    assert log.damage is None
    told = []
    for file in files:
        with file.open("rb") as stream:
            reader = make_reader(stream)
            assert reader.get_summary() is not None
            assert [m.metadata for m in reader.iter_metadata()] == [{"a": "b"}]
            told += [m.log_time - T0 for _, _, m in reader.iter_messages()]
    assert told == list(range(30))


def test_a_file_is_one_file_and_age_splits_a_folder(tmp_path):
    settings = RecordingSettings(split_bytes=1, split_s=0.0)
    made = Recording(tmp_path / "one.mcap", TOPICS, settings=settings)
    made.put("/n", text("1"), T0)
    until(lambda: not made.status().waiting_bytes, "the buffer is emptied")
    made.put("/n", text("2"), T0)
    assert made.close() == ""
    assert numbers(read_log(tmp_path / "one.mcap")) == [1, 2]
    aged = Recording(tmp_path / "aged", TOPICS, settings=RecordingSettings(split_s=0.0))
    for i in range(3):
        aged.put("/n", text(str(i)), T0)
        until(lambda wanted=i + 2: aged.status().parts == wanted, "the next file is begun")
    assert aged.close() == ""
    assert numbers(read_log(tmp_path / "aged")) == [0, 1, 2]


def test_parts_are_ordered_by_number_and_what_is_no_recording_is_named(tmp_path):
    folder = tmp_path / "walk"
    folder.mkdir()
    with pytest.raises(FerryError, match="holds no recording"):
        read_log(folder)
    for number in (10, 9, 12):
        with LogWriter(folder / f"walk_{number}.mcap") as log:
            log.add_topic("/n", *TOPICS["/n"])
            log.write("/n", text(str(number)), log_ns=T0 + number)
    (folder / "metadata.yaml").write_text("of rosbag2\n")
    log = read_log(folder)
    assert numbers(log) == [9, 10, 12]
    assert log.damage == "parts are absent: 0 to 8, 11"
    whole = (folder / "walk_9.mcap").read_bytes()
    (folder / "walk_9.mcap").write_bytes(whole[:-20])
    damaged = read_log(folder)
    assert numbers(damaged) == [9, 10, 12], "what follows a torn file is read"
    assert "walk_9.mcap is damaged at byte" in damaged.damage
    with pytest.raises(FerryError, match="no messages on '/q'"):
        read_log(folder, topics=["/q"])
    (folder / "run_1.mcap").write_bytes(whole)
    with pytest.raises(FerryError, match=r"more than one recording: run_1\.mcap, walk_10"):
        read_log(folder)


def test_parts_that_are_lost_at_the_beginning_are_missed(tmp_path):
    for present, absent in (
        (["walk"], ""),
        (["walk_0000"], ""),
        (["walk_0001"], "parts are absent: 0"),
        (["walk_0002", "walk_0003"], "parts are absent: 0 to 1"),
        (["walk_0000", "walk_0002", "walk_0006"], "parts are absent: 1, 3 to 5"),
    ):
        folder = tmp_path / "-".join(present)
        folder.mkdir()
        for name in reversed(present):
            (folder / f"{name}.mcap").touch()
        files, told = parts_of(folder)
        assert ([f.stem for f in files], told) == (present, absent)


class Odd(LogWriter):
    """A file whose flush fails as long as it is told to, by what nobody thought of."""

    broken, synced = False, None

    def flush(self):
        if self.broken:
            raise ValueError("by hand")
        super().flush()

    def sync(self):
        super().sync()
        Odd.synced[self.path] = self.path.stat().st_size


@pytest.fixture
def odd(monkeypatch):
    monkeypatch.setattr(Odd, "synced", {})
    return monkeypatch


@pytest.mark.slow
def test_whatever_writing_fails_by_is_named_and_tried_again(tmp_path, odd):
    made = Recording(tmp_path / "one.mcap", TOPICS, open_log=Odd)
    odd.setattr(Odd, "broken", True)
    made.put("/nobody", b"", T0)  # no file takes it; the others are kept
    for i in range(3):
        made.put("/n", text(str(i)), T0 + i)
    until(lambda: made.status().problem == "ValueError: by hand", "the problem is named")
    made.put("/n", text("3"), T0 + 3)
    odd.setattr(Odd, "broken", False)
    until(lambda: not made.status().problem, "it goes on")
    assert made.close() == ""
    assert made.status().dropped == {"/nobody": 1}
    assert numbers(read_log(tmp_path / "one.mcap")) == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_latched_message_that_no_file_takes_costs_itself_alone(tmp_path):
    settings = RecordingSettings(split_s=0.0)
    made = Recording(tmp_path / "walk", TOPICS, latched=["/mode", "/m"], settings=settings)
    made.put("/mode", b"", T0)
    made.put("/m", text("0"), T0 + 1)
    for i in range(3):
        made.put("/n", text(str(i)), T0 + 2 + i)
        until(lambda wanted=i + 2: made.status().parts >= wanted, "the next file is begun")
    assert made.close() == ""
    assert made.status().dropped == {"/mode": 1}
    log = read_log(tmp_path / "walk")
    assert (numbers(log), numbers(log, "/m")) == ([0, 1, 2], [0])


def test_what_cannot_be_said_again_is_told_once_and_costs_nothing_else(tmp_path):
    one = tmp_path / "one.mcap"
    # Of the first three messages only the last finds room: the others were said, and lost.
    settings = RecordingSettings(buffer_bytes=len(text("0")) + ROW_BYTES)
    made = Recording(one, TOPICS, latched=["/mode", "/m"], settings=settings)
    with made._lock:
        made._buffer.put("/mode", b" ", T0)
        made._buffer.put("/m", text("0"), T0 + 1)
        made._buffer.put("/n", text("0"), T0 + 2)
    until(lambda: not made.status().waiting_bytes, "it was taken")
    made.put("/n", text("1"), T0 + 3)
    assert made.close() == ""
    assert made.status().dropped == {"/mode": 1, "/m": 1}
    assert (numbers(read_log(one)), numbers(read_log(one), "/m")) == ([0, 1], [0])
    with one.open("rb") as stream:
        told = [m.metadata for m in make_reader(stream).iter_metadata()]
    assert told == [{"/mode": str(T0), "/m": str(T0 + 1)}]


@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_message_that_no_file_takes_costs_itself_alone_at_the_end_too(
    tmp_path, monkeypatch, place
):
    # The thread looks for the first time when it is told to finish.
    monkeypatch.setattr(recording, "LOOK_S", 60.0)
    made = Recording(tmp_path / "one.mcap", TOPICS)
    for i in range(3):
        if i == place:
            made.put("/nobody", b"", T0 + i)
        made.put("/n", text(str(i)), T0 + i)
    if place == 3:
        made.put("/nobody", b"", T0 + 3)
        made.put("/nobody", b"", T0 + 3)
    assert made.close() == ""
    assert made.status().dropped == {"/nobody": 2 if place == 3 else 1}
    assert numbers(read_log(tmp_path / "one.mcap")) == [0, 1, 2]


def test_what_still_waits_at_the_end_is_told(tmp_path, odd):
    made = Recording(tmp_path / "one.mcap", TOPICS, open_log=Odd)
    odd.setattr(Odd, "broken", True)
    made.put("/n", text("0"), T0)
    until(lambda: made.status().problem, "the problem is named")
    until(lambda: not made.status().waiting_bytes, "it was taken")
    made.put("/n", bytes(2 * recording.MIB), T0)
    made.put("/n", text("1"), T0)
    told = made.close()
    assert told.startswith("ValueError: by hand; 1 messages in the buffer, and what was not")


def test_every_file_is_on_the_disk_before_it_is_closed(tmp_path, odd):
    settings = RecordingSettings(split_s=0.0)
    made = Recording(tmp_path / "walk", TOPICS, settings=settings, open_log=Odd)
    for i in range(2):
        made.put("/n", text(str(i)), T0)
        until(lambda wanted=i + 2: made.status().parts == wanted, "the next file is begun")
    assert made.close() == ""
    files, _ = parts_of(tmp_path / "walk")
    assert Odd.synced == {file: file.stat().st_size for file in files}
    assert len(files) == 3


class Played:
    """A writing thread whose every half second is played by hand.

    Args:
        made: its recording.
        takes_every: half seconds that it needs for a message; 0: it takes nothing more.
    """

    def __init__(self, made, takes_every):
        self.now, self._calls, self._made, self._every = 0.0, 0, made, takes_every

    def is_alive(self):
        return bool(self._made._buffer.rows)

    def join(self, timeout):
        self.now += 0.5
        self._calls += 1
        if self._every and self._calls % self._every == 0:
            self._made._buffer.take(1)

    def monotonic(self):
        return self.now


@pytest.mark.parametrize(
    ("takes_every", "seconds", "told"),
    [
        (3, 12.0, ""),
        (0, 2.0, "one.mcap has taken nothing for 2 s; 8 messages in the buffer, and what was"),
    ],
)
def test_closing_waits_as_long_as_the_disk_takes_anything(
    tmp_path, monkeypatch, takes_every, seconds, told
):
    made = Recording(tmp_path / "one.mcap", TOPICS)
    made.close()
    for i in range(8):
        made.put("/n", text(str(i)), T0 + i)
    played = Played(made, takes_every)
    monkeypatch.setattr(made, "_thread", played)
    monkeypatch.setattr(recording, "time", played)
    said = made.close(timeout_s=2.0)
    assert told in said
    assert bool(told) == bool(said)
    assert played.now == seconds


def test_what_exists_is_not_written_over(tmp_path):
    (tmp_path / "walk").mkdir()
    for name in ("walk", "no_folder/walk", "no_folder/walk.mcap"):
        with pytest.raises(FerryError, match=r"exists already|cannot be"):
            Recording(tmp_path / name, TOPICS)
    assert part_path(tmp_path / "walk", 12).name == "walk_0012.mcap"


def test_a_disk_that_stalls_costs_the_oldest_messages_and_they_are_counted(tmp_path, monkeypatch):
    """A pipe that nobody reads takes 64 KiB and then nothing, as a disk that stalls."""
    monkeypatch.setattr(recording, "STALLED_S", 0.05)
    pipe = tmp_path / "stalled.mcap"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    size = len(text(f"{10**6:07d} " + "0" * 20_000))
    settings = RecordingSettings(buffer_bytes=50 * (size + ROW_BYTES), sync=False)
    opened = partial(LogWriter, overwrite=True)
    made = Recording(pipe, TOPICS, settings=settings, open_log=opened)
    rng, sent = np.random.default_rng(0), 0

    def send():
        nonlocal sent
        made.put("/n", text(f"{sent:07d} " + rng.bytes(10_000).hex()), T0 + sent)
        sent += 1

    def stalls():
        send()
        return "has not answered for" in made.status().problem

    until(stalls, "the pipe is full")
    for _ in range(200):
        send()
    now = made.status()
    assert now.waiting_bytes <= settings.buffer_bytes
    dropped = now.dropped["/n"]
    assert dropped >= 150
    content = bytearray()

    def drain():
        while block := os.read(reader, 65536):
            content.extend(block)

    draining = threading.Thread(target=drain)
    draining.start()
    until(lambda: not made.status().waiting_bytes, "the disk takes it all")
    assert made.close(timeout_s=PATIENCE_S) == ""
    draining.join(PATIENCE_S)
    os.close(reader)
    (tmp_path / "copy.mcap").write_bytes(content)
    log = read_log(tmp_path / "copy.mcap")
    assert log.damage is None
    kept = numbers(log)
    assert len(kept) == sent - made.status().dropped["/n"]
    (gap,) = np.flatnonzero(np.diff(kept) != 1)  # one gap, before the newest
    assert kept[-1] == sent - 1
    assert kept[gap + 1] - kept[gap] - 1 == dropped


CHILD = """
import json, sys, time
from pathlib import Path
from deploy.recording import Recording
from tests.deploy.test_recording import TOPICS, text
made = Recording(Path(sys.argv[1]), TOPICS)
i = 0
while True:
    made.put("/n", text(f"{i} {time.time_ns()}"), time.time_ns())
    i += 1
    time.sleep(0.002)
    if i % 25 == 0:
        print(json.dumps({"sent": i, "problem": made.status().problem}), flush=True)
"""


@pytest.mark.slow
def test_a_full_disk_is_named_and_a_killed_recorder_leaves_what_it_had_written(tmp_path):
    """The limit on the size of a file stands in for the disk's: the same call fails, half done."""
    record = tmp_path / "walk.mcap"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(record)], stdout=subprocess.PIPE, text=True
    )
    try:
        said = map(json.loads, child.stdout)
        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        next(now for now in said if record.stat().st_size > 2000)
        # An odd size, so that a chunk is torn in the middle.
        limit = record.stat().st_size + 301
        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (limit, unlimited[1]))
        full = next(now for now in said if now["problem"])
        assert full["problem"] == f"{record} cannot be written: File too large"
        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, unlimited)
        again = next(now for now in said if not now["problem"])
        # Nobody closes it: what was sent reaches the file by itself.
        until(lambda: numbers(read_log(record))[-1] >= again["sent"], "it is written down")
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    log = read_log(record)
    kept = numbers(log)
    assert kept == list(range(len(kept))), "no gap where the disk was full"
    assert kept[-1] >= again["sent"]
    assert log.damage is not None
    with record.open("rb") as stream:
        seen = _all_of(NonSeekingReader(stream))
    assert seen == len(kept), "the standard reader finds as many"


def _all_of(reader):
    """Messages up to the end, which a killed process leaves without its closing records."""
    count = 0
    try:
        for _ in reader.iter_messages(log_time_order=False):
            count += 1
    except McapError:
        pass
    return count
