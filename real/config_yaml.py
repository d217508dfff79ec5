"""YAML 1.2 text to plain values with the line of every key, and back.

The node tree is read directly, not through a constructor: every line number survives, duplicate
keys are seen, and only the plain types of the YAML 1.2 core schema come out. So `1e-3` is a number,
`on`, `yes` and `2026-01-01` are strings, and no tag can build an object.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from ruamel.yaml import YAML, MappingNode, ScalarNode, SequenceNode
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from real.errors import ConfigError

KeyPath = tuple[str | int, ...]
"""Where a value sits: mapping keys and list indices from the top."""

# Nested aliases can make a small file expand without end ("a billion laughs").
_MAX_VALUES = 100_000


def read_yaml(text: str, *, source: str) -> tuple[Any, dict[KeyPath, str]]:
    """Read one YAML document.

    Args:
        text: The YAML text.
        source: What to call it in messages, a file path or a command line option.

    Returns:
        The plain value (mapping keys are always strings), and "source:line" of each key path.

    Raises:
        ConfigError: If the text is not YAML, repeats a key, or uses merge keys or tags.
    """
    try:
        node = cast("Any", YAML(typ="safe", pure=True)).compose(text)
    except MarkedYAMLError as error:
        details: Any = error
        mark = details.problem_mark or details.context_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{source}{line}: not valid YAML: {details.problem}") from error
    except YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {error}") from error
    if node is None:
        return None, {(): source}
    reader = _Reader(source)
    value = reader.plain(node, ())
    if reader.problems:
        raise ConfigError("\n".join(reader.problems))
    return value, reader.lines


def read_yaml_file(path: Path) -> tuple[Any, dict[KeyPath, str]]:
    """Read one YAML file; see `read_yaml`.

    Raises:
        ConfigError: If the file cannot be read, is not UTF-8, or is not plain YAML 1.2.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file in UTF-8 ({error.reason})") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    return read_yaml(text, source=str(path))


def write_yaml_file(data: Mapping[str, Any], path: Path) -> None:
    """Write a mapping so that a reader sees the old file or the new one, never half of one.

    Args:
        data: Plain values: mappings, lists, strings, numbers, booleans, None.
        path: The file to write; its folder is created.
    """
    writer: Any = YAML(typ="rt", pure=True)
    writer.default_flow_style = False
    writer.width = 4096  # one line per value: easy to diff
    stream = io.StringIO()
    writer.dump(_quoted(data), stream)

    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(stream.getvalue())
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes the file private; a configuration is as public as its folder.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _quoted(value: Any) -> Any:
    """The same value with text that holds line breaks or control characters in double quotes.

    Outside double quotes YAML folds line breaks, and it counts U+0085 and U+2028 among them.
    """
    if isinstance(value, str):
        return value if value.isprintable() else DoubleQuotedScalarString(value)
    if isinstance(value, Mapping):
        mapping = cast("Mapping[str, Any]", value)
        return {_quoted(key): _quoted(part) for key, part in mapping.items()}
    if isinstance(value, list):
        return [_quoted(item) for item in cast("list[Any]", value)]
    return value


class _Reader:
    """Turns one node tree into plain values and collects what is wrong with it.

    The nodes are ruamel.yaml's, which declares no types for their attributes.
    """

    def __init__(self, source: str) -> None:
        self.lines: dict[KeyPath, str] = {}
        self.problems: list[str] = []
        self._source = source
        self._open: set[int] = set()
        self._count = 0

    def plain(self, node: Any, path: KeyPath) -> Any:
        self.lines.setdefault(path, self._where(node))
        self._count += 1
        if self._count > _MAX_VALUES:
            raise ConfigError(f"{self._source}: more than {_MAX_VALUES} values")
        if id(node) in self._open:
            raise ConfigError(f"{self._where(node)}: an alias that contains itself")
        self._open.add(id(node))
        try:
            if isinstance(node, MappingNode):
                return self._mapping(node, path)
            if isinstance(node, SequenceNode):
                return self._sequence(node, path)
            return self._scalar(node)
        finally:
            self._open.discard(id(node))

    def _sequence(self, node: Any, path: KeyPath) -> list[Any]:
        return [self.plain(item, (*path, index)) for index, item in enumerate(node.value)]

    def _mapping(self, node: Any, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            where = self._where(key_node)
            if not isinstance(key_node, ScalarNode):
                self.problems.append(f"{where}: a key must be a single word, not a list or mapping")
                continue
            key = str(cast("Any", key_node).value)
            key_path = (*path, key)
            if str(cast("Any", key_node).tag).endswith(":merge"):
                self.problems.append(f"{where}: merge keys ('<<') are not read; write the values")
            elif key in result:
                first = self.lines[key_path]
                self.problems.append(f"{where}: key {key!r} appears twice; it is also at {first}")
            else:
                self.lines[key_path] = where
                result[key] = self.plain(value_node, key_path)
        return result

    def _scalar(self, node: Any) -> Any:
        tag = str(node.tag).removeprefix("tag:yaml.org,2002:")
        reader = _SCALARS.get(tag)
        if reader is None:
            self.problems.append(f"{self._where(node)}: the tag {str(node.tag)!r} is not read")
            return None
        try:
            return reader(node.value)
        except ValueError:
            self.problems.append(f"{self._where(node)}: {node.value!r} is not of type {tag}")
            return None

    def _where(self, node: Any) -> str:
        return f"{self._source}:{node.start_mark.line + 1}"


def _integer(text: str) -> int:
    # YAML 1.2 writes octal as 0o17; a leading zero alone does not change the base.
    digits = text.replace("_", "").lstrip("+-").lower()
    base = {"0o": 8, "0x": 16, "0b": 2}.get(digits[:2], 10)
    return int(digits, base) * (-1 if text.startswith("-") else 1)


def _real(text: str) -> float:
    # `.inf` and `.nan` are YAML's spelling, `inf` and `nan` Python's.
    return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))


def _boolean(text: str) -> bool:
    # `yes` and `on` come here only under an explicit `%YAML 1.1` line.
    return text.lower() in {"true", "yes", "on"}


_SCALARS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "timestamp": str,
    "int": _integer,
    "float": _real,
    "bool": _boolean,
    "null": lambda _: None,
}
