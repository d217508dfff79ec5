"""Parts of a recording: each opens alone, all of them are a bag, and nothing counts twice."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import yaml
from mcap.reader import make_reader
from rosbags.rosbag2 import Reader

from deploy.bag_index import NAME, PartIndex, bag_metadata, write_whole
from deploy.message_buffer import ROW_BYTES, MessageBuffer
from deploy.recording import Recording, RecordingSettings
from real.log import read_log
from real.log_parts import Repeats, parts_of
from tests.deploy.test_recording import PATIENCE_S, T0, TOPICS, numbers, text, until

NAMES = ("/contract", "/mode", "/n")
THREE = dict.fromkeys(NAMES, TOPICS["/n"])
LATCHED = NAMES[:2]


@pytest.fixture
def walk(tmp_path):
    """Three parts: the contract comes once and first, the mode twice, the second time in part 1."""
    rng = np.random.default_rng(0)  # what zstd cannot shrink
    settings = RecordingSettings(split_bytes=10_000)
    folder = tmp_path / "walk"
    made = Recording(folder, THREE, latched=LATCHED, settings=settings)
    made.put("/contract", text("a1"), T0)
    made.put("/mode", text("DAMP"), T0 + 1)
    for i in range(30):
        if i == 15:
            made.put("/mode", text("RUN"), T0 + 100 + i)
        made.put("/n", text(f"{i} {rng.bytes(1000).hex()}"), T0 + 100 + i)
        if i in (9, 19):
            until(lambda begun=i // 10 + 2: made.status().parts == begun, "the next file is begun")
    assert made.close() == ""
    assert made.status().parts >= 3
    # The last may have been split once more, when it was closed.
    return folder


def said(path, topic):
    log = read_log(path)
    return log[topic].text, (log[topic].log_ns - T0).tolist()


def test_every_part_alone_begins_with_what_was_latched_and_all_parts_have_it_once(walk):
    files, _ = parts_of(walk)
    assert said(files[0], "/mode") == (("DAMP",), [1])
    for part, mode in ((files[1], ("DAMP", "RUN")), (files[2], ("RUN",))):
        log = read_log(part)
        assert log["/contract"].text == ("a1",)
        assert log["/mode"].text == mode
        first = log["/n"].log_ns[0]
        assert log["/contract"].log_ns[0] == log["/mode"].log_ns[0] == first
        assert log.metadata == {}  # how it is marked is nobody else's business
        with part.open("rb") as stream:
            told = [
                (c.topic, m.publish_time - T0) for _, c, m in make_reader(stream).iter_messages()
            ]
        assert told[0] == ("/contract", 0), "and the standard reader sees it, with its first time"
    assert said(walk, "/contract") == (("a1",), [0])
    assert said(walk, "/mode") == (("DAMP", "RUN"), [1, 115])
    assert numbers(read_log(walk)) == list(range(30))


def test_a_repeated_message_counts_where_its_own_part_is_absent(walk):
    files, _ = parts_of(walk)
    files[0].unlink()
    assert said(walk, "/contract") == (("a1",), [110])
    assert said(walk, "/mode") == (("DAMP", "RUN"), [110, 115])
    files[1].unlink()
    assert said(walk, "/mode") == (("RUN",), [120])


def test_the_marks_of_repeats_are_believed_only_where_they_fit():
    repeats = Repeats()
    repeats.begin()
    assert [repeats.known("/m", 5), repeats.known("/m", 7), repeats.known("/m", 7)] == [False] * 3
    repeats.begin()
    repeats.announce({"/m": "7", "/c": "3", "/x": "-1", "/y": "²"})
    assert repeats.known("/m", 20)  # the newest again
    assert not repeats.known("/m", 20)  # and one of its own
    assert not repeats.known("/c", 20)  # its original was never read
    assert not repeats.known("/x", 20)
    repeats.begin()
    repeats.announce({"/c": "3"})
    assert repeats.known("/c", 30)


def test_what_a_slow_disk_cost_is_said_again_if_it_was_latched():
    buffer = MessageBuffer(20 + 2 * ROW_BYTES, frozenset({"/mode"}))
    buffer.put("/mode", b"m" * 10, 1)
    buffer.put("/n", b"n" * 15, 2)
    assert (dict(buffer.dropped), buffer.size) == ({"/mode": 1}, 15 + ROW_BYTES)
    assert buffer.said == {"/mode": (b"m" * 10, 1)}
    buffer.put("/mode", b"k" * 5, 3)
    assert buffer.said == {"/mode": (b"m" * 10, 1)}, "what waits has not been said"
    assert len(buffer.take(100)) == 2
    assert buffer.said == {"/mode": (b"k" * 5, 3)}


def test_the_folder_is_a_bag_of_rosbag2(walk):
    files, _ = parts_of(walk)
    with Reader(walk) as bag:
        assert bag.start_time == T0
        assert bag.duration == 129 + 1  # that reader counts the end
        counts = {c.topic: c.msgcount for c in bag.connections}
        assert counts["/n"] == 30
        assert sum(1 for _ in bag.messages()) == bag.message_count
        assert sum(counts.values()) == bag.message_count
    body = yaml.safe_load((walk / NAME).read_text())["rosbag2_bagfile_information"]
    assert (body["version"], body["storage_identifier"]) == (9, "mcap")
    assert body["relative_file_paths"] == [f.name for f in files]
    assert [f["path"] for f in body["files"]] == body["relative_file_paths"]
    first = body["files"][0]
    assert first["starting_time"] == {"nanoseconds_since_epoch": T0}
    assert first["duration"] == {"nanoseconds": 109}
    assert first["message_count"] == 12
    assert sum(f["message_count"] for f in body["files"]) == body["message_count"]
    topics = {
        t["topic_metadata"]["name"]: t["topic_metadata"] for t in body["topics_with_message_count"]
    }
    assert topics["/mode"]["offered_qos_profiles"][0]["durability"] == "transient_local"
    assert topics["/n"]["offered_qos_profiles"][0]["durability"] == "volatile"
    assert {t["type"] for t in topics.values()} == {"std_msgs/msg/String"}
    assert not list(walk.glob("*.part"))


def test_the_bag_is_described_while_it_is_recorded_and_one_file_is_not(tmp_path):
    settings = RecordingSettings(split_s=0.0)
    made = Recording(tmp_path / "walk", THREE, latched=LATCHED, settings=settings)

    def described():
        file = tmp_path / "walk" / NAME
        body = yaml.safe_load(file.read_text()) if file.exists() else {}
        return body.get("rosbag2_bagfile_information", {})

    until(lambda: described().get("relative_file_paths") == ["walk_0000.mcap"], "it is a bag")
    assert described()["topics_with_message_count"] == []
    made.put("/n", text("1"), T0)
    until(lambda: len(described()["files"]) == 2, "the next part is named")
    assert described()["message_count"] == 1, "the part before is told of as a whole"
    assert made.close() == ""
    one = Recording(tmp_path / "one.mcap", THREE, latched=LATCHED)
    one.put("/n", text("1"), T0)
    assert one.close() == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one.mcap", "walk"]


@pytest.mark.slow
def test_a_description_that_cannot_be_written_is_named_and_the_messages_are_kept(tmp_path):
    made = Recording(tmp_path / "walk", THREE, settings=RecordingSettings(split_s=0.0))
    until((tmp_path / "walk" / NAME).exists, "it is a bag")
    (tmp_path / "walk" / f"{NAME}.part").mkdir()
    made.put("/n", text("1"), T0)
    until(lambda: "cannot be written: Is a directory" in made.status().problem, "it is named")
    made.put("/n", text("2"), T0)
    until(lambda: not made.status().waiting_bytes, "messages are taken all the same")
    (tmp_path / "walk" / f"{NAME}.part").rmdir()
    until(lambda: not made.status().problem, "it is tried again")
    assert made.close() == ""
    assert numbers(read_log(tmp_path / "walk")) == [1, 2]
    with Reader(tmp_path / "walk") as bag:
        assert bag.message_count == 2


def test_at_the_end_a_description_that_cannot_be_written_is_no_loss_of_messages(tmp_path):
    made = Recording(tmp_path / "walk", THREE)
    until((tmp_path / "walk" / NAME).exists, "it is a bag")
    (tmp_path / "walk" / f"{NAME}.part").mkdir()
    made.put("/n", text("1"), T0)
    told = made.close()
    assert told.endswith(f"{NAME}.part cannot be written: Is a directory")
    log = read_log(tmp_path / "walk")
    assert (numbers(log), log.damage) == ([1], None)


def test_a_part_that_is_full_when_nothing_waits_is_the_last_one(tmp_path):
    made = Recording(tmp_path / "walk", THREE, settings=RecordingSettings(split_s=1e9))
    made.put("/n", text("1"), T0)
    until(lambda: not made.status().waiting_bytes, "it was taken")
    idle = threading.Event()
    made._write = idle.set  # from here on the thread does nothing before it is closed
    assert idle.wait(PATIENCE_S)
    made._opened_s -= 2e9  # it is old now
    assert made.close() == ""
    assert [f.name for f in parts_of(tmp_path / "walk")[0]] == ["walk_0000.mcap"]
    assert numbers(read_log(tmp_path / "walk")) == [1]


def test_names_of_files_and_topics_survive_the_yaml_and_an_empty_bag_is_one(tmp_path):
    odd = PartIndex('a: "b" #_0.mcap')
    odd.add("/t", 50)
    odd.add("/t", 40)
    told = bag_metadata([odd], {"/t": ("x/msg/Y", "")}, (), ros_distro="jazzy")
    body = yaml.safe_load(told)["rosbag2_bagfile_information"]
    assert body["relative_file_paths"] == ['a: "b" #_0.mcap']
    assert body["starting_time"] == {"nanoseconds_since_epoch": 40}
    assert body["duration"] == {"nanoseconds": 10}
    assert (body["ros_distro"], body["custom_data"], body["compression_mode"]) == (
        "jazzy",
        None,
        "",
    )
    assert body["topics_with_message_count"][0]["topic_metadata"]["offered_qos_profiles"][0][
        "deadline"
    ] == {"sec": 9223372036, "nsec": 854775807}
    empty = bag_metadata([PartIndex("a_0.mcap")], {"/t": ("x/msg/Y", "")}, (), ros_distro="")
    assert yaml.safe_load(empty)["rosbag2_bagfile_information"]["message_count"] == 0
    write_whole(tmp_path / NAME, "one\n", sync=True)
    write_whole(tmp_path / NAME, "two\n", sync=False)
    assert (tmp_path / NAME).read_text() == "two\n"
