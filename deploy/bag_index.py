"""``metadata.yaml`` of a recording in parts, by which rosbag2 and others take its folder as a bag.

Format: ``rosbag2_bagfile_information``, version 9, as ROS 2 Jazzy writes it
(https://github.com/ros2/rosbag2, rosbag2_storage/yaml.hpp and qos.cpp).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from deploy.yaml_text import yaml_scalar
from real.errors import FerryError

NAME = "metadata.yaml"
VERSION = 9

#: What rosbag2 writes for a time without end, RMW_DURATION_INFINITE.
_FOREVER = {"sec": 9223372036, "nsec": 854775807}


@dataclass
class PartIndex:
    """What is in one file of a recording.

    Attributes:
        name: of the file, in the folder.
        counts: messages by topic, repeated ones included.
        first_ns: smallest time of reception [ns since 1970]; 0 while there is no message.
        last_ns: largest.
    """

    name: str
    counts: Counter[str] = field(default_factory=Counter[str])
    first_ns: int = 0
    last_ns: int = 0

    def add(self, topic: str, log_ns: int) -> None:
        """Count a message that was written."""
        self.first_ns = min(self.first_ns, log_ns) if self.counts else log_ns
        self.last_ns = max(self.last_ns, log_ns)
        self.counts[topic] += 1


def bag_metadata(
    parts: Sequence[PartIndex],
    topics: Mapping[str, tuple[str, str]],
    latched: Collection[str],
    *,
    ros_distro: str,
) -> str:
    """The text of ``metadata.yaml``.

    Args:
        parts: in order; one that is still written is told of as far as it was counted.
        topics: topic -> type name and definition; those without a message are left out.
        latched: topics of them that are transient local, to be played back so.
        ros_distro: name of the ROS distribution, e.g. ``jazzy``; may be empty.
    """
    counts = sum((part.counts for part in parts), Counter[str]())
    filled = [part for part in parts if part.counts]
    start = min((part.first_ns for part in filled), default=0)
    end = max((part.last_ns for part in filled), default=0)
    information: dict[str, Any] = {
        "version": VERSION,
        "storage_identifier": "mcap",
        "duration": {"nanoseconds": end - start},
        "starting_time": {"nanoseconds_since_epoch": start},
        "message_count": counts.total(),
        "topics_with_message_count": [
            {
                "topic_metadata": {
                    "name": topic,
                    "type": type_name,
                    "serialization_format": "cdr",
                    "offered_qos_profiles": [_qos(latched=topic in latched)],
                    "type_description_hash": "",
                },
                "message_count": counts[topic],
            }
            for topic, (type_name, _) in topics.items()
            if counts[topic]
        ],
        "compression_format": "",
        "compression_mode": "",
        "relative_file_paths": [part.name for part in parts],
        "files": [
            {
                "path": part.name,
                "starting_time": {"nanoseconds_since_epoch": part.first_ns or start},
                "duration": {"nanoseconds": part.last_ns - part.first_ns},
                "message_count": part.counts.total(),
            }
            for part in parts
        ],
        "custom_data": None,
        "ros_distro": ros_distro,
    }
    return "\n".join(_yaml({"rosbag2_bagfile_information": information})) + "\n"


def make_folder(path: Path) -> None:
    """Make the folder of a recording, in one that is there.

    Raises:
        FerryError: it exists, or cannot be made.
    """
    try:
        path.mkdir()
    except FileExistsError as error:
        raise FerryError(f"recording {path} exists already; give another name") from error
    except OSError as error:
        raise FerryError(f"recording {path} cannot be made: {error.strerror}") from error


def write_whole(path: Path, text: str, *, sync: bool) -> None:
    """Write a file so that whoever opens it sees the one before or this one, whole.

    Args:
        path: the file; one beside it is written first, and given its name.
        text: what shall be in it.
        sync: wait for the disk before.

    Raises:
        OSError: it cannot be written; the one before is left.
    """
    beside = path.with_name(f"{path.name}.part")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if sync:
            os.fdatasync(file.fileno())
    beside.replace(path)


def offered_qos(*, latched: bool) -> str:
    """The profiles of a topic as rosbag2 keeps them with it in a file: YAML."""
    return "\n".join(_item(_qos(latched=latched), "")) + "\n"


def _qos(*, latched: bool) -> dict[str, Any]:
    """How the wire offers its topics; see docs/nodes.md."""
    return {
        "history": "keep_last",
        "depth": 1,
        "reliability": "reliable",
        "durability": "transient_local" if latched else "volatile",
        "deadline": _FOREVER,
        "lifespan": _FOREVER,
        "liveliness": "automatic",
        "liveliness_lease_duration": _FOREVER,
        "avoid_ros_namespace_conventions": False,
    }


def _yaml(value: Mapping[str, Any], indent: str = "") -> list[str]:
    """Block YAML of mappings, lists of mappings or texts, and scalars, as rosbag2 lays it out."""
    lines: list[str] = []
    for key, content in value.items():
        if isinstance(content, Mapping):
            inner = cast("Mapping[str, Any]", content)
            lines += [f"{indent}{key}:", *_yaml(inner, indent + "  ")]
        elif isinstance(content, list) and content:
            lines.append(f"{indent}{key}:")
            items = cast("list[Any]", content)
            lines += [line for item in items for line in _item(item, indent + "  ")]
        else:
            text = "~" if content is None else yaml_scalar(cast("object", content))
            lines.append(f"{indent}{key}: {text}")
    return lines


def _item(item: Any, indent: str) -> list[str]:
    if not isinstance(item, Mapping):
        return [f"{indent}- {yaml_scalar(item)}"]
    lines = _yaml(cast("Mapping[str, Any]", item), indent + "  ")
    return [f"{indent}- {lines[0].lstrip()}", *lines[1:]]
