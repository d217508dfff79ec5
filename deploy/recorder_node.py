"""Writes the whole wire to MCAP: the exact bytes, as they come.

The files open in standard tools, and a killed recorder loses at most the last second. Receiving
and writing are apart (:mod:`deploy.recording`): while a disk is slow or full, messages wait in a
buffer of limited size, diagnostics say so, and the robot goes on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, cast

from geometry_msgs.msg import Twist, TwistStamped

from deploy.convert import LATCHED, TOPICS, type_name
from deploy.lifecycle import ManagedNode
from deploy.node_base import RECORD, RECORD_LATCH, run_node
from deploy.recording import MIB, Recording, RecordingSettings
from deploy.records import ERROR, OK, WARN
from real.errors import FerryError

_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_PRIMITIVES = {"bool", "byte", "char", "float32", "float64", "string", "wstring"} | _INTEGERS
_SEPARATOR = "=" * 80


def message_definition(package: str, name: str) -> str:
    """Text of a message type and of all types in it, as MCAP's schema encoding ``ros2msg``.

    Args:
        package: e.g. ``sensor_msgs``.
        name: e.g. ``JointState``.

    Raises:
        FerryError: a definition file is not installed.
    """
    text = _msg_file(package, name)
    seen, waiting = {(package, name)}, _types_in(text, package)
    while waiting:
        key = waiting.pop(0)
        if key in seen:
            continue
        seen.add(key)
        part = _msg_file(*key)
        text += f"\n{_SEPARATOR}\nMSG: {key[0]}/{key[1]}\n{part}"
        waiting += _types_in(part, key[0])
    return text


def _msg_file(package: str, name: str) -> str:
    """A definition from an installation of ROS (AMENT_PREFIX_PATH) or its wheels (sys.prefix)."""
    prefixes = [p for p in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if p]
    tried = [Path(p, "share", package, "msg", f"{name}.msg") for p in [*prefixes, sys.prefix]]
    for path in tried:
        if path.is_file():
            return path.read_text()
    raise FerryError(
        f"definition of {package}/msg/{name} is not installed; looked for "
        + ", ".join(map(str, tried))
    )


def _types_in(text: str, package: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        base = words[0].split("[")[0].split("<")[0]  # array and string bounds
        if base not in _PRIMITIVES:
            owner, slash, name = base.rpartition("/")
            found.append((owner.split("/")[0], name) if slash else (package, name))
    return found


class RecorderNode(ManagedNode):
    """All topics of the wire -> MCAP while it is active; see the module."""

    def __init__(self) -> None:
        super().__init__("recorder_node")
        self.text(
            "path", "", "file to write, .mcap, or folder to make for several", read_only=False
        )
        self._about = self.text(
            "metadata", "{}", "what the recording is of, a JSON object of texts"
        )
        self._stamped = self.flag("twist_stamped", False, "/cmd_vel is a TwistStamped")
        self._settings = self._sizes()
        self._recording: Recording | None = None
        self._end: dict[str, object] = {}
        self._reported_lost = 0

    # ------------------------------------------------------------ lifecycle

    def configure(self) -> None:
        """Open the file and subscribe."""
        types = {**TOPICS, "/cmd_vel": TwistStamped if self._stamped else Twist}
        recording = self._recording = Recording(
            Path(self.given("path")),
            {topic: _described(type_) for topic, type_ in types.items()},
            metadata={"ferry": self._metadata()},
            latched=LATCHED,
            settings=self._settings,
        )
        self._reported_lost = 0
        for topic, type_ in types.items():
            qos = RECORD_LATCH if topic in LATCHED else RECORD
            record = partial(self._record, recording, topic)
            self.listen_raw(topic, record, qos=qos, type_=type_)

    def activate(self) -> None:
        """Record from now on; what came until a deactivation is written within a second."""
        # Not the parameter, which may name the next one by now.
        self.report("ready", path=str(self._recording.path) if self._recording else "")

    def cleanup(self) -> None:
        """Write what waits and the index, and close; another recording needs another path."""
        recording, self._recording = self._recording, None
        if recording is None:
            return
        failure = recording.close()
        if failure:
            self.get_logger().error(failure)
        now = recording.status()
        self._end = {
            "path": str(recording.path),
            "counts": now.received,
            "dropped": now.dropped,
            "files": now.parts,
            "failure": failure,
        }

    def _sizes(self) -> RecordingSettings:
        buffer = self.number(
            "buffer_mib", 64.0, "messages that wait for the disk [MiB]", low=0.01, high=4096.0
        )
        size = self.number(
            "split_mib", 512.0, "size of each file in a folder [MiB]", low=0.01, high=65536.0
        )
        age = self.number("split_s", 600.0, "length of each file [s]", low=1.0, high=86400.0)
        return RecordingSettings(
            buffer_bytes=round(buffer * MIB), split_bytes=round(size * MIB), split_s=age
        )

    def _metadata(self) -> dict[str, str]:
        try:
            values: Any = json.loads(self._about)
        except json.JSONDecodeError as error:
            raise FerryError(f"recorder_node: metadata is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise FerryError("recorder_node: metadata must be a JSON object")
        return {k: str(v) for k, v in cast("dict[str, Any]", values).items()}

    def _record(self, recording: Recording, topic: str, data: bytes) -> None:
        if self.active or topic in LATCHED:
            recording.put(topic, data, time.time_ns())

    # ------------------------------------------------------------ reports

    def describe(self) -> None:
        """Publish diagnostics: how many messages of which topic, and what keeps them from disk."""
        if self._recording is None:
            return
        now = self._recording.status()
        lost, total = sum(now.dropped.values()), sum(now.received.values())
        level, message = OK, "recording"
        if now.problem:
            level, message = ERROR, f"nothing is written: {now.problem}"
        elif lost > self._reported_lost:
            level, message = WARN, f"the disk is too slow: {lost - self._reported_lost} lost"
        self._reported_lost = lost
        values = {
            "messages": total,
            "dropped": lost,
            "waiting_mib": now.waiting_bytes / MIB,
            "files": now.parts,
            **now.received,
            **{f"dropped {topic}": count for topic, count in now.dropped.items()},
        }
        self.diagnose(values, level=level, message=message)

    def close(self) -> None:
        """Close the file and say what is in it."""
        self.cleanup()
        self.report("summary", **self._end)


def _described(type_: type) -> tuple[str, str]:
    name = type_name(type_)
    package, _, short = name.split("/")
    return name, message_definition(package, short)


def main() -> None:
    """Entry point of ``python -m deploy.recorder_node``."""
    sys.exit(run_node(RecorderNode))


if __name__ == "__main__":
    main()
