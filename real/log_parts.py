"""The parts of a recording that was split: their names, and their order.

A recording into a folder is ``walk/walk_0000.mcap``, ``walk/walk_0001.mcap`` and so on, as rosbag2
numbers its files too. Each part is a complete MCAP file that opens alone.
"""

from __future__ import annotations

import re
from pathlib import Path

from real.errors import FerryError

#: Ending of a log's name.
SUFFIX = ".mcap"
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
        between the first and the last, in words; or nothing.

    Raises:
        FerryError: there is none, or they belong to several recordings.
    """
    files = list(folder.glob(f"*{SUFFIX}"))
    if not files:
        raise FerryError(f"{folder} holds no recording: there is no {SUFFIX} file in it")
    if len(files) == 1:
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
    missing = sorted(set(range(min(numbered), max(numbered) + 1)) - set(numbered))
    absent = f"parts are absent: {', '.join(map(str, missing))}" if missing else ""
    return [numbered[n] for n in sorted(numbered)], absent
