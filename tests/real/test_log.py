from __future__ import annotations

import math
import struct
from types import SimpleNamespace as Msg

import numpy as np
import pytest
from mcap.reader import make_reader
from mcap_ros2._dynamic import serialize_dynamic
from mcap_ros2.decoder import DecoderFactory
from rosbags.rosbag2 import Reader
from rosbags.typesys import Stores, get_typestore

from real.errors import FerryError
from real.log import read_log
from real.log_writer import LogWriter

LINE = "=" * 80 + "\n"
TIME = LINE + "MSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n"
HEADER = LINE + "MSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n" + TIME
DEFINITIONS = {
    "sensor_msgs/msg/JointState": (
        "std_msgs/Header header\nstring[] name\nfloat64[] position\nfloat64[] velocity\n"
        "float64[] effort\n" + HEADER
    ),
    "std_msgs/msg/String": "string data\n",
    "geometry_msgs/msg/Twist": (
        "geometry_msgs/Vector3 linear\ngeometry_msgs/Vector3 angular\n"
        + LINE
        + "MSG: geometry_msgs/Vector3\nfloat64 x\nfloat64 y\nfloat64 z\n"
    ),
    "std_msgs/msg/Float64MultiArray": (
        "std_msgs/MultiArrayLayout layout\nfloat64[] data\n"
        + LINE
        + "MSG: std_msgs/MultiArrayLayout\nstd_msgs/MultiArrayDimension[] dim\n"
        + "uint32 data_offset\n"
        + LINE
        + "MSG: std_msgs/MultiArrayDimension\nstring label\nuint32 size\nuint32 stride\n"
    ),
    "nobody_msgs/msg/Secret": "int32 x\n",
}
T0 = 1_700_000_000 * 10**9
JOINTS = ["hip", "knee", "ankle"]


def encode(type_name, message):
    return serialize_dynamic(type_name, DEFINITIONS[type_name])[type_name](message)


def joint_state(stamp_ns, names, position, velocity=(), effort=()):
    stamp = Msg(sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9)
    return encode(
        "sensor_msgs/msg/JointState",
        Msg(
            header=Msg(stamp=stamp, frame_id=""),
            name=list(names),
            position=list(position),
            velocity=list(velocity),
            effort=list(effort),
        ),
    )


def write(path, messages, topics=None, metadata=None):
    """Write ``(topic, log_ns, bytes)`` rows."""
    topics = topics or {"/joint_states": "sensor_msgs/msg/JointState"}
    with LogWriter(path, metadata=metadata) as log:
        for topic, type_name in topics.items():
            log.add_topic(topic, type_name, DEFINITIONS[type_name])
        for topic, log_ns, data in messages:
            log.write(topic, data, log_ns=log_ns)
    return path


def states(count):
    """``count`` joint states 5 ms apart; joint j of message i is at i + j / 10."""
    return [
        (
            "/joint_states",
            T0 + i * 5_000_000 + 70_000,
            joint_state(T0 + i * 5_000_000, JOINTS, [i + j / 10 for j in range(3)]),
        )
        for i in range(count)
    ]


def test_what_is_written_is_read_back_as_arrays(tmp_path):
    path = write(tmp_path / "a.mcap", states(4), metadata={"ferry": {"bundle_sha256": "abc"}})
    log = read_log(path)
    topic = log["/joint_states"]
    assert topic.names == ("hip", "knee", "ankle")
    np.testing.assert_array_equal(
        topic.values["position"],
        [[0.0, 0.1, 0.2], [1.0, 1.1, 1.2], [2.0, 2.1, 2.2], [3.0, 3.1, 3.2]],
    )
    np.testing.assert_array_equal(topic.stamp_ns - T0, [0, 5_000_000, 10_000_000, 15_000_000])
    np.testing.assert_array_equal(topic.log_ns - topic.stamp_ns, [70_000] * 4)
    assert log.metadata["ferry"] == {"bundle_sha256": "abc"}
    assert log.damage is None
    assert log.skipped == {}


def test_standard_readers_open_the_file_and_see_the_same_numbers(tmp_path):
    path = write(tmp_path / "a.mcap", states(3))
    with path.open("rb") as stream:
        reader = make_reader(stream, decoder_factories=[DecoderFactory()])
        decoded = [message.position for _, _, _, message in reader.iter_decoded_messages()]
    np.testing.assert_array_equal(decoded[2], [2.0, 2.1, 2.2])
    store = get_typestore(Stores.ROS2_JAZZY)
    with Reader(path) as bag:
        bag_rows = [
            store.deserialize_cdr(raw, connection.msgtype).position
            for connection, _, raw in bag.messages()
        ]
    np.testing.assert_array_equal(bag_rows, decoded)


def test_joints_are_mapped_by_name_in_every_message_and_field(tmp_path):
    rows = [
        ("/joint_states", T0, joint_state(T0, JOINTS, [1, 2, 3], [4, 5, 6], [7, 8, 9])),
        (
            "/joint_states",
            T0 + 1,
            joint_state(T0 + 1, ["ankle", "hip", "knee"], [3, 1, 2], [6, 4, 5], [9, 7, 8]),
        ),
    ]
    values = read_log(write(tmp_path / "a.mcap", rows))["/joint_states"].values
    for key, expected in {
        "position": [1, 2, 3],
        "velocity": [4, 5, 6],
        "effort": [7, 8, 9],
    }.items():
        np.testing.assert_array_equal(values[key], [expected, expected])


def test_a_message_with_a_missing_extra_or_doubled_joint_is_refused_and_counted(tmp_path):
    rows = [
        *states(1),
        ("/joint_states", T0 + 1, joint_state(T0 + 1, ["hip", "knee"], [1, 2])),
        ("/joint_states", T0 + 2, joint_state(T0 + 2, [*JOINTS, "toe"], [1, 2, 3, 4])),
        ("/joint_states", T0 + 3, joint_state(T0 + 3, ["hip", "hip", "knee"], [1, 2, 3])),
        ("/joint_states", T0 + 4, joint_state(T0 + 4, JOINTS, [1, 2])),
    ]
    topic = read_log(write(tmp_path / "a.mcap", rows))["/joint_states"]
    assert (len(topic), topic.refused) == (1, 4)


def test_a_safe_stop_is_a_row_of_nan(tmp_path):
    rows = [
        ("/joint_states", T0 + 1, joint_state(T0 + 1, [], [])),
        *states(1),
    ]
    topic = read_log(write(tmp_path / "a.mcap", rows))["/joint_states"]
    assert topic.names == tuple(JOINTS)
    assert np.isnan(topic.values["position"][0]).all()
    np.testing.assert_array_equal(topic.values["position"][1], [0.0, 0.1, 0.2])


@pytest.mark.parametrize("bad_ns", [0, -5 * 10**9])
def test_zero_and_negative_header_stamps_are_dropped_and_counted(tmp_path, bad_ns):
    rows = [*states(2), ("/joint_states", T0, joint_state(bad_ns, JOINTS, [9, 9, 9]))]
    topic = read_log(write(tmp_path / "a.mcap", rows))["/joint_states"]
    assert (len(topic), topic.dropped) == (2, 1)
    assert 9 not in topic.values["position"]


def test_a_message_of_the_year_2554_does_not_make_a_log_of_500_years(tmp_path):
    year_2554 = 2**64 - 1
    rows = [*states(2), ("/joint_states", year_2554, joint_state(T0, JOINTS, [9, 9, 9]))]
    topic = read_log(write(tmp_path / "a.mcap", rows))["/joint_states"]
    assert (len(topic), topic.dropped) == (2, 1)
    assert int(np.ptp(topic.stamp_ns)) == 5_000_000


def test_equal_stamps_keep_file_order_and_steps_back_are_counted(tmp_path):
    stamps = [T0, T0, T0 + 5, T0 + 1, T0 + 6]
    rows = [
        ("/joint_states", T0 + i, joint_state(s, JOINTS, [i, 0, 0])) for i, s in enumerate(stamps)
    ]
    topic = read_log(write(tmp_path / "a.mcap", rows))["/joint_states"]
    np.testing.assert_array_equal(topic.values["position"][:, 0], [0, 1, 2, 3, 4])
    assert topic.backwards == 1


def test_an_unknown_type_is_skipped_and_listed(tmp_path):
    rows = [*states(2), ("/secret", T0, encode("nobody_msgs/msg/Secret", Msg(x=3)))]
    topics = {
        "/joint_states": "sensor_msgs/msg/JointState",
        "/secret": "nobody_msgs/msg/Secret",
    }
    log = read_log(write(tmp_path / "a.mcap", rows, topics))
    assert set(log.topics) == {"/joint_states"}
    assert "nobody_msgs/msg/Secret" in log.skipped["/secret"]
    with pytest.raises(FerryError, match="'/secret' cannot be read"):
        log["/secret"]


def test_a_truncated_definition_skips_its_topic_alone(tmp_path):
    path = tmp_path / "a.mcap"
    with LogWriter(path) as log:
        log.add_topic("/text", "std_msgs/msg/String", "string da ta ta\nstri")
        log.add_topic("/cmd_vel", "geometry_msgs/msg/Twist", DEFINITIONS["geometry_msgs/msg/Twist"])
        vector = Msg(x=1.0, y=2.0, z=3.0)
        log.write("/text", b"\x00\x01\x00\x00\x00", log_ns=T0)
        log.write(
            "/cmd_vel",
            encode("geometry_msgs/msg/Twist", Msg(linear=vector, angular=vector)),
            log_ns=T0,
        )
    read = read_log(path)
    assert list(read.skipped) == ["/text"]
    np.testing.assert_array_equal(read["/cmd_vel"].values["angular"], [[1.0, 2.0, 3.0]])


def test_a_needed_topic_that_is_absent_is_named_with_the_nearest(tmp_path):
    path = write(tmp_path / "a.mcap", states(1))
    with pytest.raises(FerryError) as raised:
        read_log(path, topics=["/joint_state"])
    assert "did you mean '/joint_states'" in str(raised.value)
    assert "topics in it: /joint_states" in str(raised.value)


def test_self_describing_arrays_are_split_by_their_labels(tmp_path):
    dims = [Msg(label=n, size=s, stride=s) for n, s in (("stamp", 2), ("action", 3), ("mode", 1))]

    def array(data):
        return encode(
            "std_msgs/msg/Float64MultiArray",
            Msg(layout=Msg(dim=dims, data_offset=0), data=data),
        )

    rows = [
        ("/policy/step", T0 + 9, array([1_700_000_000.0, 20_000_001.0, 1.0, 2.0, 3.0, 7.0])),
        ("/policy/step", T0 + 9, array([1_700_000_000.0, 20_000_001.0, 1.0, 2.0, 3.0])),
        ("/policy/step", T0 + 9, array([math.nan, 0.0, 1.0, 2.0, 3.0, 7.0])),
    ]
    topic = read_log(
        write(tmp_path / "a.mcap", rows, {"/policy/step": "std_msgs/msg/Float64MultiArray"})
    )["/policy/step"]
    np.testing.assert_array_equal(topic.stamp_ns, [T0 + 20_000_001])
    np.testing.assert_array_equal(topic.values["action"], [[1.0, 2.0, 3.0]])
    np.testing.assert_array_equal(topic.values["mode"], [[7.0]])
    assert (topic.refused, topic.dropped) == (1, 1)


def test_a_file_cut_short_is_read_up_to_the_damage(tmp_path):
    path = tmp_path / "a.mcap"
    log = LogWriter(path, flush_s=0.0)  # one chunk per message
    log.add_topic(
        "/joint_states", "sensor_msgs/msg/JointState", DEFINITIONS["sensor_msgs/msg/JointState"]
    )
    for topic, log_ns, data in states(10):
        log.write(topic, data, log_ns=log_ns)
    # Never closed: what a killed process leaves. Then lose the last bytes as well.
    whole = path.read_bytes()
    (tmp_path / "cut.mcap").write_bytes(whole[:-100])
    killed, cut = read_log(path), read_log(tmp_path / "cut.mcap")
    log.close()
    assert len(killed["/joint_states"]) == 10
    assert killed.damage is not None
    assert len(cut["/joint_states"]) == 9
    assert cut.damage is not None
    assert "damaged at byte" in cut.damage


def test_a_flipped_byte_ends_the_reading_there_and_never_gives_wrong_numbers(tmp_path):
    path = write(tmp_path / "a.mcap", states(200))
    good = read_log(path)["/joint_states"].values["position"]
    whole = bytearray(path.read_bytes())
    rng = np.random.default_rng(3)
    for place in rng.integers(8, len(whole), size=60):
        broken = bytearray(whole)
        broken[place] ^= 0xFF
        (tmp_path / "b.mcap").write_bytes(broken)
        log = read_log(tmp_path / "b.mcap")
        for topic in log.topics.values():
            rows = topic.values["position"]
            np.testing.assert_array_equal(rows, good[: len(rows)])


@pytest.mark.parametrize(
    "content", [b"", b"not a log at all", struct.pack("<8B", *b"\x89MCAP1\r\n")]
)
def test_what_is_no_mcap_is_refused_in_one_sentence(tmp_path, content):
    path = tmp_path / "a.mcap"
    path.write_bytes(content)
    with pytest.raises(FerryError, match="not an MCAP file"):
        read_log(path)


def test_an_existing_log_is_never_overwritten_unasked(tmp_path):
    path = write(tmp_path / "a.mcap", states(2))
    with pytest.raises(FerryError, match="exists already"):
        LogWriter(path)
    assert len(read_log(path)["/joint_states"]) == 2
    LogWriter(path, overwrite=True).close()
    assert read_log(path).topics == {}


def test_a_missing_file_or_folder_is_one_sentence(tmp_path):
    with pytest.raises(FerryError, match="cannot be read"):
        read_log(tmp_path / "none.mcap")
    with pytest.raises(FerryError, match="cannot be written"):
        LogWriter(tmp_path / "no_folder" / "a.mcap")
