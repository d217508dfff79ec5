"""``KEY=VALUE`` options of ``ferry deploy``: read and checked before anything starts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from deploy.safety import SafetySettings
from real.config import load_config, save_config
from real.config_yaml import read_yaml
from real.errors import ConfigError, FerryError


def read_options(pairs: Sequence[str], *, mapping: str = "{}") -> dict[str, object]:
    """Options of a robot plug-in.

    Args:
        pairs: ``key=value``, the value in YAML.
        mapping: more of them, as one YAML mapping.

    Raises:
        FerryError: not of that form, given twice, or a value that JSON cannot carry to the node.
    """
    found: Any = read_yaml(mapping, source="robot options")[0]
    if not isinstance(found, dict):
        raise FerryError(f"robot options {mapping!r}: expected a YAML mapping such as {{port: 3}}")
    out = cast("dict[str, object]", found)
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise FerryError(f"--option {pair}: expected KEY=VALUE such as port=/dev/ttyUSB0")
        if name in out:
            raise FerryError(f"--option {name} is given twice")
        out[name] = read_yaml(text, source=f"--option {name}")[0]
    try:
        json.dumps(out, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise FerryError(f"robot options {out}: {error}; expected what JSON can hold") from error
    return out


def safety_file(pairs: Sequence[str], folder: Path, *, base: Path | None = None) -> Path | None:
    """A file of safety settings with some values replaced.

    Args:
        pairs: ``key=value`` of :class:`~deploy.safety.SafetySettings`, sections with dots.
        folder: where the file is written, if any is needed.
        base: file to start from; the defaults if None.

    Returns:
        ``base`` where nothing is replaced, else the new file.

    Raises:
        ConfigError: a key or value that the settings do not have, or the file is wrong.
    """
    if not pairs:
        if base is not None:
            load_config(SafetySettings, base)
        return base
    out = folder / "safety.yaml"
    if base is None:
        out.write_text("{}\n")
    try:
        settings = load_config(SafetySettings, base or out, overrides=pairs)
    except ConfigError as error:
        raise ConfigError(str(error).replace("--set ", "--safety ")) from error
    save_config(settings, out)
    return out
