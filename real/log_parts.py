"""The parts of a recording that was split: their names, and their order.

A recording into a folder is ``walk/walk_0000.mcap``, ``walk/walk_0001.mcap`` and so on, as rosbag2
numbers its files too. Each part is a complete MCAP file that opens alone: what a latched topic said
last before it is written again at its beginning, and a record of metadata, :data:`REPEATED`, says
which messages these are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from real.errors import FerryError

#: Ending of a log's name.
SUFFIX = ".mcap"
#: Metadata before the messages of a part: topics whose first message in it is an earlier one
#: again -> when that was received [ns since 1970].
REPEATED = "ferry_repeated"
_NUMBERED = re.compile(r"(?P<stem>.*?)_?(?P<number>\d+)$")


def part_path(folder: Path, index: int) -> Path:
    """File of part ``index``, from 0, of the recording into a folder."""
    return folder / f"{folder.name}_{index:04d}{SUFFIX}"


def parts_of(folder: Path) -> tuple[list[Path], str]:
    """The parts in a folder.

    Args:
        folder: with the files of one recording, numbered at the end of their names.

    Returns:
        The files in the order of their numbers (``_10`` after ``_9``), and which are absent
        from 0 to the last of them, in words; or nothing. A single file without a number is a
        recording that was never split.

    Raises:
        FerryError: there is none, or they belong to several recordings.
    """
    files = list(folder.glob(f"*{SUFFIX}"))
    if not files:
        raise FerryError(f"{folder} holds no recording: there is no {SUFFIX} file in it")
    if len(files) == 1 and _NUMBERED.match(files[0].stem) is None:
        return files, ""
    numbered: dict[int, Path] = {}
    stems: set[str] = set()
    for file in files:
        match = _NUMBERED.match(file.stem)
        stems.add(match["stem"] if match else file.stem)
        number = int(match["number"]) if match else -1 - len(numbered)
        stems |= {file.stem} if number in numbered else set()
        numbered[number] = file
    if len(stems) > 1 or min(numbered) < 0:
        raise FerryError(
            f"{folder} holds more than one recording: {', '.join(sorted(f.name for f in files))}; "
            "give one of the files, or move the others away"
        )
    order = sorted(numbered)
    gaps: list[str] = []
    # By gaps and not one by one: a number may be a date.
    for before, after in zip([-1, *order], order, strict=False):
        if after - before == 2:
            gaps.append(str(before + 1))
        elif after - before > 2:
            gaps.append(f"{before + 1} to {after - 1}")
    return [numbered[n] for n in order], f"parts are absent: {', '.join(gaps)}" if gaps else ""


class Repeats:
    """Which messages of several parts, read one after the other, are repeated ones."""

    def __init__(self) -> None:
        #: When the newest message was received that was read of a topic [ns since 1970].
        self._newest_ns: dict[str, int] = {}
        self._announced: dict[str, int] = {}

    def begin(self) -> None:
        """Another part begins."""
        self._announced = {}

    def announce(self, values: Mapping[str, str]) -> None:
        """Take a part's record :data:`REPEATED`; what is no time in it says nothing."""
        self._announced = {t: int(v) for t, v in values.items() if v.isascii() and v.isdigit()}

    def known(self, topic: str, log_ns: int) -> bool:
        """Whether a message was read before; to be asked once for each, in their order.

        A repeated one whose original is in no part that was read counts as the original.
        """
        original_ns = self._announced.pop(topic, None)
        before_ns = self._newest_ns.get(topic)
        self._newest_ns[topic] = log_ns if original_ns is None else original_ns
        return original_ns is not None and original_ns == before_ns
