"""Configurations that extend another: only what differs is written down again.

``extends: a1_walk`` at the top of a file begins with everything `a1_walk` says. Sections are merged
key by key; any other value, a list too, takes the place of the other file's. ``null`` inside a
section drops a key of the other file, so that its default holds. The order is that of the extended
file, then what is new: observation terms keep their places.

What comes out is one plain mapping, as if it had been written in one file: its hash, its overrides
and what a run folder saves know nothing of where a value was from. Messages do: each key keeps the
file and line it stands on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from real.config_yaml import KeyPath, read_yaml_file
from real.errors import ConfigError

KEY = "extends"

Lines = dict[KeyPath, str]
Find = Callable[[str, Path], Path]


def read_extended(path: Path, *, find: Find) -> tuple[Any, Lines]:
    """Read a YAML file and what it extends.

    Args:
        path: the file.
        find: from what stands at `extends` and the file it stands in to a file.

    Returns:
        The plain value without `extends`, and "source:line" of each key path, as
        `real.config_yaml.read_yaml`.

    Raises:
        ConfigError: If a file is wrong, `extends` is no text, or files extend each other in a ring.
    """
    return _read(path, find, ())


def _read(path: Path, find: Find, seen: tuple[Path, ...]) -> tuple[Any, Lines]:
    data, lines = read_yaml_file(path)
    own = cast("dict[str, Any]", data)
    if not isinstance(data, dict) or KEY not in own:
        return own, lines
    where = lines.pop((KEY,))
    name = own.pop(KEY)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}: {KEY} is {name!r}; expected the name or path of a file")
    try:
        other = find(name, path)
    except ConfigError as error:
        raise ConfigError(f"{where}: {KEY}: {error}") from error
    chain = (*seen, path.resolve())
    if other.resolve() in chain:
        ring = " -> ".join(str(file) for file in (*chain, other.resolve()))
        raise ConfigError(f"{where}: {KEY}: files extend each other in a ring: {ring}")
    base, base_lines = _read(other, find, chain)
    if not isinstance(base, dict):
        raise ConfigError(f"{where}: {KEY}: {other} is not a mapping of keys to values")
    merged = cast("dict[str, Any]", base)
    _merge(merged, base_lines, own, lines, ())
    base_lines[()] = lines[()]
    return merged, base_lines


def _merge(
    base: dict[str, Any], base_lines: Lines, own: dict[str, Any], lines: Lines, path: KeyPath
) -> None:
    """Put what a file says over what it extends, in place."""
    for key, value in own.items():
        here = (*path, key)
        old = base.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            mine, theirs = cast("dict[str, Any]", value), cast("dict[str, Any]", old)
            _merge(theirs, base_lines, mine, lines, here)
            continue
        for stale in [p for p in base_lines if p[: len(here)] == here]:
            del base_lines[stale]
        if value is None and key in base and path:
            del base[key]  # its default, or a table without it
            continue
        base[key] = value
        base_lines.update({p: line for p, line in lines.items() if p[: len(here)] == here})
