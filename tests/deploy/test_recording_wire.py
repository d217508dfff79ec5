"""The recorder's process and every type of the wire, opened by every tool that reads recordings."""

from __future__ import annotations

import signal
import subprocess
import time
from itertools import count

import numpy as np
import pytest

from tests.extras import reason

pytest.importorskip("rclpy", reason=reason("rclpy"))

import rclpy
from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory
from rosbags.highlevel import AnyReader
from std_msgs.msg import MultiArrayDimension

from deploy.convert import LATCHED, TOPICS
from deploy.graph import NodeSpec
from deploy.node_base import LATCH, PUBLISH
from real.log import read_log
from real.log_parts import parts_of
from real.log_rows import READERS
from tests.deploy.ros_probe import PATIENCE_S

pytestmark = [pytest.mark.ros, pytest.mark.patient, pytest.mark.timeout(300)]

#: So many are waited for.
PARTS = 4
NAME = "wälk 😀 #1: a"
JOINTS = ["hip_ä", "knee", "ankle"]


def type_name(type_):
    return f"{type_.__module__.split('.')[0]}/msg/{type_.__name__}"


def fill(message, number):
    """Give each field of a message values that differ, empty arrays in between."""
    if hasattr(message, "header"):
        message.header.stamp.sec, message.header.stamp.nanosec = 1_700_000_000 + number, 7
        message.header.frame_id = f"frame {number}"
    kind = type(message).__name__
    if kind == "JointState":
        message.name = list(JOINTS)
        # As on the wire: a command has positions alone, and the safe stop has none.
        message.position = [] if number % 3 == 0 else [number + 0.1, number + 0.2, -number]
        message.effort = [1.0, 2.0, 3.0] if number % 3 == 1 else []
    elif kind == "Float64MultiArray":
        message.layout.dim = [MultiArrayDimension(label="a", size=2, stride=2)]
        message.data = [float(number), -0.5]
    elif kind == "String":
        # What zstd cannot shrink, so that parts are full soon.
        message.data = f"{number} ü😀 {np.random.default_rng(number).bytes(400).hex()}"
    elif kind == "Imu":
        message.orientation.w, message.angular_velocity.y = 1.0, number + 0.5
    elif kind == "Temperature":
        message.temperature = 30.0 + number
    elif kind == "BatteryState":
        message.voltage = 24.0
    elif kind == "PointStamped":
        message.point.z = number + 0.25
    elif kind == "PoseStamped":
        message.pose.position.x, message.pose.orientation.z = number + 0.5, 1.0
    elif kind == "Odometry":
        message.pose.pose.position.x, message.twist.twist.linear.y = number + 0.5, -1.0
    elif kind == "Twist":
        message.linear.x, message.angular.z = number + 0.5, -0.25
    elif kind == "DiagnosticArray":
        status = DiagnosticStatus(level=b"\x01", name=f"node {number}")
        message.status = [status, DiagnosticStatus(values=[KeyValue(key="a", value="ü")])]
    elif kind == "Clock":
        message.clock.sec = number
    return message


def same(theirs, ours):
    """Whether a decoded message of another reader has every field of the one that was sent."""
    if hasattr(ours, "get_fields_and_field_types"):
        return all(
            same(getattr(theirs, name), getattr(ours, name))
            for name in ours.get_fields_and_field_types()
        )
    if isinstance(ours, str | bytes):
        return theirs == (ours if isinstance(theirs, type(ours)) else ours[0])  # an octet
    if hasattr(ours, "__len__"):
        return len(theirs) == len(ours) and all(map(same, theirs, ours))
    return bool(np.array_equal(theirs, ours, equal_nan=True))


def by_rosbags(folder):
    with AnyReader([folder]) as bag:
        for connection, _, raw in bag.messages():
            yield connection.topic, bag.deserialize(raw, connection.msgtype)


def by_mcap(file):
    with file.open("rb") as stream:
        reader = make_reader(stream, decoder_factories=[DecoderFactory()])
        for _, channel, _, message in reader.iter_decoded_messages():
            yield channel.topic, message


def test_every_type_of_the_wire_is_one_that_logs_are_read_for():
    assert {type_name(t) for t in TOPICS.values()} <= READERS.keys()


def test_all_that_was_sent_is_in_the_parts_of_a_recorder_told_to_stop_while_it_splits(tmp_path):
    folder = tmp_path / NAME
    spec = NodeSpec(
        "recorder_node", "deploy.recorder_node", {"path": str(folder), "split_mib": 0.01}
    )
    context = rclpy.Context()
    rclpy.init(context=context)
    node = rclpy.create_node("speaker", context=context)
    out = {
        topic: node.create_publisher(type_, topic, LATCH if topic in LATCHED else PUBLISH)
        for topic, type_ in TOPICS.items()
    }
    sent = {topic: [] for topic in TOPICS}
    recorder = subprocess.Popen(spec.command())
    try:
        deadline = time.monotonic() + PATIENCE_S
        for number in count():
            assert time.monotonic() < deadline, "the recorder does not go on"
            if not all(p.get_subscription_count() for p in out.values()):
                time.sleep(0.01)
                continue
            for topic, publisher in out.items():
                message = fill(TOPICS[topic](), number)
                sent[topic].append(message)
                publisher.publish(message)
            time.sleep(0.002)
            if len(list(folder.glob("*.mcap"))) >= PARTS:
                break
        recorder.send_signal(signal.SIGTERM)
        while recorder.poll() is None:  # and it is spoken to all the time
            assert time.monotonic() < deadline, "the recorder does not stop"
            sent["/clock"].append(fill(TOPICS["/clock"](), len(sent["/clock"])))
            out["/clock"].publish(sent["/clock"][-1])
            time.sleep(0.002)
        assert recorder.returncode == 0
    finally:
        recorder.kill()
        recorder.wait()
        node.destroy_node()
        rclpy.shutdown(context=context)
    _check(folder, sent)


def _check(folder, sent):
    files, absent = parts_of(folder)
    assert (len(files) >= PARTS, absent) == (True, "")
    log = read_log(folder)
    assert log.damage is None
    assert log.skipped == {}
    theirs, each = list(by_rosbags(folder)), [said for file in files for said in by_mcap(file)]
    assert len(theirs) == len(each)
    for found in (theirs, each):
        left = {topic: iter(messages) for topic, messages in sent.items()}
        newest = {}
        for topic, message in found:
            # Best effort may lose some. What came is in the order in which it was sent, but for
            # what was latched, which every part begins with.
            if topic in LATCHED and topic in newest and same(message, newest[topic]):
                continue
            if topic == "/diagnostics" and message.status[0].name == "recorder_node":
                continue
            newest[topic] = next((m for m in left[topic] if same(message, m)), None)
            assert newest[topic] is not None, f"{topic}: {message} was not sent, or not then"
        assert newest.keys() == sent.keys()
