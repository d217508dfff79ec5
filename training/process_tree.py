"""Processes below this one: who they are, and how much memory all of them hold."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")
#: Proportional sizes of memory that is a process's own, and of memory that is meant to be shared.
_OWN = ("Pss_Anon:", "Pss_Shmem:")


def descendants(pid: int | None = None) -> list[int]:
    """Processes below one (this one if None), those that only wait to be reaped not counted."""
    parents: dict[int, int] = {}
    for stat in _PROC.glob("[0-9]*/stat"):
        try:
            # The name in parentheses may hold anything, also spaces and parentheses.
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            parents[int(stat.parent.name)] = int(parent)
    found: list[int] = []
    level = {os.getpid() if pid is None else pid}
    while level:
        level = {child for child, parent in parents.items() if parent in level}
        found += sorted(level)
    return found


def with_title(title: str, below: int | None = None) -> list[int]:
    """Descendants whose command line begins so; Ray names workers after their class."""
    found = []
    for pid in descendants(below):
        try:
            line = (_PROC / str(pid) / "cmdline").read_bytes()
        except OSError:
            continue
        if line.startswith(title.encode()):
            found.append(pid)
    return found


def memory_bytes() -> int:
    """Memory of this process and all below it that no file backs; what several share counts once.

    The sum of proportional set sizes (proc_pid_smaps_rollup(5)): a page that n processes have
    mapped counts 1/n for each, shared memory included. Pages of files, which are code for the most
    part, are left out: how many others have them mapped would change the sum.
    """
    total = 0
    for pid in [os.getpid(), *descendants()]:
        try:
            lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
        except OSError:  # it ended meanwhile
            continue
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith(_OWN))
    return total
