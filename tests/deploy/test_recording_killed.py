"""Recordings that nobody closed, or not as planned: whole files for every reader all the same."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import numpy as np
import pytest
from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory
from rosbags.highlevel import AnyReader

from deploy import recording
from deploy.message_buffer import ROW_BYTES, MessageBuffer
from deploy.recording import Recording, RecordingSettings
from real import log_writer
from real.errors import FerryError
from real.log import read_log
from real.log_parts import parts_of
from real.log_spool import Spool
from real.log_writer import ENDING, LogWriter
from tests.deploy.test_recording import T0, TOPICS, numbers, text, until

NOT_CLOSED = "not closed: what came last before its writer ended may be lacking"
#: Blanks, letters of two bytes, one beyond 16 bits, and what has a meaning in YAML.
NAME = "wälk 😀 #1: a"
MODES = {"/mode": TOPICS["/n"], **TOPICS}

CHILD = """
import json, sys, threading, time
from pathlib import Path
from deploy.recording import Recording, RecordingSettings
from tests.deploy.test_recording_killed import MODES, text
path, split_s = Path(sys.argv[1]), float(sys.argv[2])
settings = RecordingSettings(split_s=split_s)
made = Recording(path, MODES, latched=["/mode"], settings=settings)
told = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), told.set()), daemon=True).start()
made.put("/mode", text("DAMP"), time.time_ns())
i = 0
while not told.is_set():
    made.put("/n", text(str(i)), time.time_ns())
    i += 1
    time.sleep(0.002)
    if i % 10 == 0:
        print(json.dumps({"sent": i, "problem": made.status().problem}), flush=True)
print(json.dumps({"sent": i, "problem": "", "closed": made.close()}), flush=True)
"""


class Recorder:
    """A process that records; what it says is what comes out of ``said``."""

    def __init__(self, path, split_s=1e9):
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path), str(split_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.said = map(json.loads, self.process.stdout)

    def limit(self, size):
        """The size of a file that it may write, in place of a disk's."""
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, hard))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def by_rosbags(path):
    """Texts by topic, as rosbags decodes them; of a file or of a folder."""
    found = {}
    with AnyReader([path]) as bag:
        for connection, _, raw in bag.messages():
            message = bag.deserialize(raw, connection.msgtype)
            found.setdefault(connection.topic, []).append(message.data)
    return found


def by_mcap(path):
    """The same of a file, by the reader of the format's own makers."""
    found = {}
    with path.open("rb") as stream:
        reader = make_reader(stream, decoder_factories=[DecoderFactory()])
        for _, channel, _, message in reader.iter_decoded_messages():
            found.setdefault(channel.topic, []).append(message.data)
    return found


def of_all(files):
    """Texts of a topic in several files, one after the other."""
    found = {}
    for file in files:
        for topic, texts in by_mcap(file).items():
            found.setdefault(topic, []).extend(texts)
    return found


@pytest.mark.slow
def test_a_folder_whose_recorder_was_killed_while_it_split_opens_in_every_tool(tmp_path):
    folder = tmp_path / NAME
    with Recorder(folder, split_s=0.0) as recorder:
        fifth = folder / f"{NAME}_0004.mcap"
        until(lambda: fifth.exists() and fifth.stat().st_size, "the next part is begun")
        recorder.process.kill()
        recorder.process.wait()
    files, absent = parts_of(folder)
    assert (len(files) >= 5, absent) == (True, "")
    log = read_log(folder)
    kept = numbers(log)
    assert kept == list(range(len(kept)))
    assert len(kept) > 10
    assert log["/mode"].text == ("DAMP",)
    assert log.damage == f"{files[-1].name} is {NOT_CLOSED}"
    others = by_rosbags(folder)
    assert [int(t) for t in others["/n"]] == kept
    assert set(others["/mode"]) == {"DAMP"}
    assert of_all(files) == others


def test_a_file_is_one_from_its_first_moment_on(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "FLUSH_S", float("inf"))  # not by its age
    made = Recording(tmp_path / "walk", MODES, settings=RecordingSettings(split_s=0.0))

    def opens(part):
        file = tmp_path / "walk" / f"walk_000{part}.mcap"
        if not file.exists() or not file.stat().st_size:
            return False
        assert read_log(file).damage == NOT_CLOSED
        assert by_rosbags(file) == by_mcap(file)
        return True

    until(lambda: opens(0), "the first one is there")
    made.put("/n", text("0"), T0)
    until(lambda: opens(1), "the next one")
    assert made.close() == ""


@pytest.mark.slow
def test_a_disk_that_is_full_leaves_a_whole_file_to_whoever_reads_it_then(tmp_path):
    record = tmp_path / "walk.mcap"
    with Recorder(record) as recorder:
        next(now for now in recorder.said if record.stat().st_size > 2000)
        recorder.limit(record.stat().st_size + 301)  # odd, so that a chunk is torn
        next(now for now in recorder.said if now["problem"])
        recorder.process.kill()
        recorder.process.wait()
    log = read_log(record)
    kept = numbers(log)
    assert log.damage == NOT_CLOSED
    assert kept == list(range(len(kept)))
    assert (
        by_rosbags(record) == by_mcap(record) == {"/mode": ["DAMP"], "/n": [str(i) for i in kept]}
    )


@pytest.mark.slow
def test_a_disk_that_is_full_to_the_end_costs_what_it_did_not_take(tmp_path):
    record = tmp_path / "walk.mcap"
    with Recorder(record) as recorder:
        next(now for now in recorder.said if record.stat().st_size > 2000)
        recorder.limit(record.stat().st_size + 301)
        next(now for now in recorder.said if now["problem"])
        recorder.process.stdin.close()
        closed = next(now["closed"] for now in recorder.said if "closed" in now)
        assert recorder.process.wait() == 0
    assert closed.startswith(f"{record} cannot be written: File too large; ")
    log = read_log(record)
    assert log.damage == NOT_CLOSED
    assert [int(t) for t in by_rosbags(record)["/n"]] == numbers(log) != []


def test_what_a_disk_takes_in_part_is_cut_off_and_given_anew(tmp_path):
    class Torn:
        """A file on a disk with room for so many bytes."""

        def __init__(self, path, room):
            self.file, self.room = path.open("wb", buffering=0), room

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, data):
            left = self.room - self.file.tell()
            if left <= 0:
                raise OSError(28, "No space left on device")
            return self.file.write(data[:left])

    path = tmp_path / "a"
    torn = Torn(path, 10)
    spool = Spool(torn, b"END")
    spool.write(b"first")
    spool.drain()
    assert path.read_bytes() == b"firstEND"
    spool.drain()  # nothing to do
    spool.write(b"second")
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            spool.drain()
        assert path.read_bytes() == b"firstEND"
    torn.room = 13  # enough for what waits, and not for the ending
    with pytest.raises(OSError, match="No space"):
        spool.drain()
    assert path.read_bytes() == b"firstEND"
    torn.room = 100
    spool.write(b"third")
    spool.drain()
    assert path.read_bytes() == b"firstsecondthirdEND"
    spool.write(b"index, longer than an ending")
    spool.drain(last=True)
    spool.drain(last=True)
    assert path.read_bytes() == b"firstsecondthirdindex, longer than an ending"
    assert spool.size == spool.tell() == path.stat().st_size
    torn.file.close()


def test_nothing_is_lost_to_a_device_that_takes_nothing():
    with open("/dev/full", "wb", buffering=0) as full, open(os.devnull, "wb", buffering=0) as room:
        spool = Spool(full, ENDING)
        spool.write(b"abc")
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                spool.drain()
        spool._file = room
        spool.drain()
        assert not spool._waiting


def test_an_empty_part_costs_itself_and_a_folder_without_any_log_is_refused(tmp_path):
    folder = tmp_path / "walk"
    folder.mkdir()
    with LogWriter(folder / "walk_0000.mcap") as log:
        log.add_topic("/n", *TOPICS["/n"])
        log.write("/n", text("1"), log_ns=T0)
    # What a power failure leaves of a file whose first bytes never reached the disk.
    (folder / "walk_0001.mcap").touch()
    found = read_log(folder)
    assert numbers(found) == [1]
    assert found.damage.startswith(f"{folder}/walk_0001.mcap is not an MCAP file")
    (folder / "walk_0000.mcap").write_bytes(b"")
    with pytest.raises(FerryError, match=r"walk_0000\.mcap is not an MCAP file"):
        read_log(folder)


def test_a_closed_log_of_another_writer_without_an_index_is_not_called_damaged(tmp_path):
    with LogWriter(tmp_path / "a.mcap", flush_s=0.0) as log:
        log.add_topic("/n", *TOPICS["/n"])
        log.write("/n", text("1"), log_ns=T0)
        going_on = (tmp_path / "a.mcap").read_bytes()
        assert read_log(tmp_path / "a.mcap").damage == NOT_CLOSED
    assert read_log(tmp_path / "a.mcap").damage is None
    ours = len(b"ferry").to_bytes(4, "little") + b"ferry"
    assert going_on.count(ours) == 1
    (tmp_path / "b.mcap").write_bytes(going_on.replace(ours, ours[:4] + b"other"))
    assert numbers(read_log(tmp_path / "b.mcap")) == [1]
    assert read_log(tmp_path / "b.mcap").damage is None


# ---------------------------------------------------------------- files that vanish, or never were


def test_a_part_that_somebody_deletes_is_followed_by_the_next_one(tmp_path):
    folder = tmp_path / "walk"
    made = Recording(folder, TOPICS)
    made.put("/n", text("0"), T0)
    until(lambda: not made.status().waiting_bytes, "it was taken")
    (folder / "walk_0000.mcap").unlink()
    until(lambda: made.status().parts == 2, "the next file is begun")
    made.put("/n", text("1"), T0)
    assert made.close() == ""
    assert [f.name for f in parts_of(folder)[0]] == ["walk_0001.mcap"]
    assert by_rosbags(folder) == {"/n": ["1"]}, "and the bag does not name what is gone"


def test_a_file_that_somebody_deletes_is_a_problem_with_a_name(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "SYNC_S", 0.0)
    record = tmp_path / "walk.mcap"
    made = Recording(record, TOPICS)
    made.put("/n", text("0"), T0)
    until(lambda: not made.status().waiting_bytes, "it was taken")
    record.unlink()
    until(lambda: made.status().problem, "the problem is named")
    assert made.status().problem == f"log {record} was deleted: whatever is written to it is lost"
    assert "was deleted" in made.close()


def test_a_recording_that_cannot_begin_leaves_no_folder(tmp_path):
    # A name that a folder may have and its parts, longer by ten characters, may not.
    folder = tmp_path / ("a" * 250)
    with pytest.raises(FerryError, match="cannot be written: File name too long"):
        Recording(folder, TOPICS)
    assert not folder.exists()


def test_the_name_of_every_new_file_is_on_the_disk_too(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync

    def told(handle):
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(log_writer.os, "fsync", told)
    made = Recording(tmp_path / "walk", TOPICS, settings=RecordingSettings(split_s=0.0))
    for i in range(2):
        made.put("/n", text(str(i)), T0)
        until(lambda wanted=i + 2: made.status().parts == wanted, "the next file is begun")
    assert made.close() == ""
    assert synced == [str(tmp_path / "walk")] * 3


# ---------------------------------------------------------------- large and small messages


def test_a_message_larger_than_the_buffer_costs_itself_alone(tmp_path):
    settings = RecordingSettings(buffer_bytes=4 * 2**20)
    made = Recording(tmp_path / "one.mcap", TOPICS, settings=settings)
    noise = np.random.default_rng(0).bytes(3 * 2**19).hex()  # 3 MiB: larger than a chunk
    with made._lock:  # all of them before the thread looks
        buffer = made._buffer
        buffer.put("/n", text("0"), T0)
        buffer.put("/m", bytes(4 * 2**20), T0 + 1)
        buffer.put("/n", text(f"1 {noise}"), T0 + 2)
    made.put("/n", text("2"), T0 + 3)
    assert made.close() == ""
    assert made.status().dropped == {"/m": 1}
    assert numbers(read_log(tmp_path / "one.mcap")) == [0, 1, 2]
    assert [t.split()[0] for t in by_rosbags(tmp_path / "one.mcap")["/n"]] == ["0", "1", "2"]


def test_a_buffer_of_small_messages_is_bounded_in_memory_and_not_in_their_bytes():
    import tracemalloc

    limit = 2**20
    buffer = MessageBuffer(limit, frozenset())
    tracemalloc.start()
    try:
        for i in range(20_000):
            buffer.put("/clock", bytes(bytearray(12)), T0 + i)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert buffer.dropped["/clock"] == 20_000 - limit // (12 + ROW_BYTES)
    assert taken < 1.2 * limit


def test_a_clock_that_is_set_back_costs_nothing(tmp_path):
    folder = tmp_path / "walk"
    made = Recording(folder, MODES, latched=["/mode"], settings=RecordingSettings(split_s=0.0))
    made.put("/mode", text("DAMP"), T0)
    at = [T0 + 5, T0 + 6, T0 - 3_600_000_000_000, T0 - 3_599_000_000_000]
    for i, log_ns in enumerate(at):
        made.put("/n", text(str(i)), log_ns)
        until(lambda wanted=i + 2: made.status().parts >= wanted, "the next file is begun")
    assert made.close() == ""
    log = read_log(folder)
    assert (numbers(log), log["/mode"].text) == ([0, 1, 2, 3], ("DAMP",))
    assert log["/n"].backwards == 1
    assert log.damage is None
    others = by_rosbags(folder)
    assert sorted(others["/n"]) == ["0", "1", "2", "3"], "that reader puts them in order of time"
