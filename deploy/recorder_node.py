"""Writes the whole wire to one MCAP file: the exact bytes, as they come.

The file opens in standard tools, and a killed recorder loses at most the last second: every
quarter of a second what came is handed to the operating system as a complete chunk.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

from geometry_msgs.msg import Twist, TwistStamped

from deploy.convert import LATCHED, TOPICS
from deploy.lifecycle import ManagedNode
from deploy.node_base import LATCH, RECORD, run_node
from real.errors import FerryError
from real.log import LogWriter

#: How often what came is made safe [s].
FLUSH_S = 0.25
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
    """All topics of the wire -> one MCAP file while it is active; see the module."""

    def __init__(self) -> None:
        super().__init__("recorder_node")
        self.text("path", "", "file to write, .mcap")
        self._about = self.text(
            "metadata", "{}", "what the recording is of, a JSON object of texts"
        )
        self._stamped = self.flag("twist_stamped", False, "/cmd_vel is a TwistStamped")
        self._counts: Counter[str] = Counter()
        self._open = False

    def configure(self) -> None:
        """Open the file and subscribe."""
        path, metadata, stamped = self.given("path"), self._metadata(), self._stamped
        self._log = LogWriter(path, metadata={"ferry": metadata}, flush_s=FLUSH_S)
        self._open = True
        types = {**TOPICS, "/cmd_vel": TwistStamped if stamped else Twist}
        for topic, type_ in types.items():
            package, name = type_.__module__.split(".")[0], type_.__name__
            self._log.add_topic(topic, f"{package}/msg/{name}", message_definition(package, name))
            qos = LATCH if topic in LATCHED else RECORD
            self.listen_raw(topic, self._recorder_of(topic), qos=qos, type_=type_)
        self.every(FLUSH_S, self._log.flush)

    def activate(self) -> None:
        """Record from now on."""
        self.report("ready", path=str(self._log.path))

    def deactivate(self) -> None:
        """What came until now is written down."""
        self._log.flush()

    def cleanup(self) -> None:
        """Write the index and close the file; another recording needs another path."""
        if self._open:
            self._open = False
            self._log.close()

    def _metadata(self) -> dict[str, str]:
        try:
            values: Any = json.loads(self._about)
        except json.JSONDecodeError as error:
            raise FerryError(f"recorder_node: metadata is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise FerryError("recorder_node: metadata must be a JSON object")
        return {k: str(v) for k, v in cast("dict[str, Any]", values).items()}

    def _recorder_of(self, topic: str) -> Callable[[bytes], None]:
        return partial(self._record, topic)

    def _record(self, topic: str, data: bytes) -> None:
        if not self.active and topic not in LATCHED:
            return
        self._log.write(topic, data, log_ns=time.time_ns())
        self._counts[topic] += 1

    def describe(self) -> None:
        """Publish diagnostics: how many messages of which topic."""
        self.diagnose({"messages": self._log.count, **self._counts}, message="recording")

    def close(self) -> None:
        """Close the file and say what is in it."""
        self.cleanup()
        self.report(
            "summary", path=str(self.get_parameter("path").value), counts=dict(self._counts)
        )


def main() -> None:
    """Entry point of ``python -m deploy.recorder_node``."""
    sys.exit(run_node(RecorderNode))


if __name__ == "__main__":
    main()
