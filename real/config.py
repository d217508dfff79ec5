"""Strict YAML into frozen models: reading, overriding, hashing and saving.

Every configuration of the project is a `Config`. A key nobody knows, a value of the wrong type, a
key given twice and a file of another schema version are errors that name the file and line; nothing
is ignored and nothing is converted from text.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, to_jsonable_python

from real.config_base import read_extended
from real.config_report import dotted, models_at, report
from real.config_yaml import KeyPath, read_yaml, write_yaml_file
from real.errors import ConfigError, nearest

M = TypeVar("M", bound="Config")


def _make_scalars_strict(schema: Any) -> None:
    """Set `strict` on number, boolean and text nodes; stands here for the first model to find."""
    if isinstance(schema, dict):
        node = cast("dict[str, Any]", schema)
        if node.get("type") in {"int", "float", "bool", "str"}:
            node.setdefault("strict", True)
        for name, part in node.items():
            # Mapping keys are text in YAML and JSON, also where the model wants integers.
            if name not in {"keys_schema", "metadata", "serialization"}:
                _make_scalars_strict(part)
    elif isinstance(schema, list | tuple):
        for part in cast("list[Any]", schema):
            _make_scalars_strict(part)


class InOrder:
    """Marks a mapping whose order of keys means something: ``Annotated[dict[str, T], InOrder()]``.

    Two configurations that differ in that order are two, also to `config_hash`.
    """


class Config(BaseModel):
    """Base of every configuration model: unknown keys refused, values frozen and checked.

    An integer is accepted where a number is wanted (`kp: 40`). Text is never read as a number and
    a boolean never counts as one. NaN and infinity are refused unless the field says
    `Field(allow_inf_nan=True)`. A list is accepted for a tuple, a string for an enum or a path.

    A model with a field `schema_version: Literal[N] = N` refuses files of another version, and may
    say in `migrations` what to change, keyed by the old version.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
        # JSON has no NaN; Python's reader and writer agree on the constant, so it survives.
        ser_json_inf_nan="constants",
        use_attribute_docstrings=True,
    )

    migrations: ClassVar[Mapping[int, str]] = {}
    """What to change in a file of an older schema version, by that version."""

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler, /
    ) -> CoreSchema:
        """Make numbers, booleans and text strict, and nothing else.

        Pydantic's own `strict=True` would also refuse a list for a tuple and a string for an enum,
        which is how YAML spells them.
        """
        schema = handler(source)
        _make_scalars_strict(schema)
        return schema

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy with some fields replaced; unlike pydantic's own, the result is checked.

        Raises:
            ConfigError: If a replaced field is unknown or its value is not valid.
        """
        if not update:
            return super().model_copy(deep=deep)
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        source = f"{type(self).__name__}.model_copy"
        return parse_config(type(self), {**fields, **update}, source=source)


def config_path(name: str | Path, *, folder: str = "") -> Path:
    """Find a configuration by file path or by the name it ships under.

    Args:
        name: An existing file, or a name in the shipped `configs` with or without `.yaml`.
        folder: The folder of `configs` to look in, such as "robots".

    Returns:
        The path of an existing file.

    Raises:
        ConfigError: If there is no such file.
    """
    given = Path(name).expanduser()
    if given.is_file():
        return given
    root = _shipped()
    # "configs/a1_walk.yaml", "robots/a1" and "a1" are all names people use.
    parts = [part for part in given.parts if part != "."]
    if parts[:1] == ["configs"]:
        parts = parts[1:]
    if folder and parts[:1] == [folder]:
        parts = parts[1:]
    relative = Path(folder, *parts)
    if not given.is_absolute() and ".." not in parts and parts:
        for candidate in (root / relative, root / f"{relative}.yaml"):
            if candidate.is_file():
                return candidate
    shipped = sorted(
        file.relative_to(root / folder).with_suffix("").as_posix()
        for file in (root / folder).rglob("*.yaml")
    )
    wanted = Path(*parts).as_posix().removesuffix(".yaml")
    same_name = [other for other in shipped if other.rpartition("/")[2] == wanted]
    hint = f" (did you mean {same_name[0]!r}?)" if same_name else nearest(wanted, shipped)
    raise ConfigError(
        f"no configuration {str(name)!r}: there is no file {given.absolute()}, and none of that "
        f"name is shipped in {root / folder}{hint}; shipped: {', '.join(shipped) or 'none'}"
    )


def load_config(
    model: type[M], path: str | Path, *, overrides: Sequence[str] = (), folder: str = ""
) -> M:
    """Read a YAML file, and what it extends (`real.config_base`), into a model.

    Args:
        model: The model to fill.
        path: A file, or the name of a shipped configuration; see `config_path`.
        overrides: Replacements "a.b.c=value" applied before checking, the value in YAML; a number
            in the path is a list index. A section the file leaves out starts from its default.
        folder: The folder of the shipped `configs` to look in.

    Raises:
        ConfigError: If the file or an override is wrong; one line per mistake, each with file and
            line, or with the override it came from.
    """
    file = config_path(path, folder=folder)
    data, lines = read_extended(file, find=lambda name, within: _beside(name, within, folder))
    if not isinstance(data, dict):
        found = "nothing" if data is None else f"a {type(data).__name__}"
        raise ConfigError(f"{file}: expected a mapping of keys to values, found {found}")
    settings = cast("dict[str, Any]", data)
    for override in overrides:
        _apply_override(model, settings, lines, override)
    return _validated(model, settings, lines, source=str(file))


def parse_config(model: type[M], data: Mapping[str, Any], *, source: str) -> M:
    """Check a mapping that was read from elsewhere, such as the JSON of a run folder.

    Args:
        model: The model to fill.
        data: The mapping.
        source: What to call it in messages.

    Raises:
        ConfigError: If the mapping does not fit the model; one line per mistake.
    """
    return _validated(model, dict(data), {(): source}, source=source)


def config_dict(cfg: Config) -> dict[str, Any]:
    """The configuration as lists, mappings, text, numbers, booleans and None, every field given.

    `parse_config` turns it back into an equal configuration.
    """
    return cfg.model_dump(mode="json")


def config_hash(cfg: Config) -> str:
    """SHA-256 (hex) of the resolved values.

    Spelling does not matter, nor does the order of keys but where a field is `InOrder`.
    """
    values = _with_order(cfg, config_dict(cfg))
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _with_order(value: Any, plain: Any) -> Any:
    """Plain values of a configuration, with mappings whose order counts as lists of pairs."""
    if isinstance(value, Config):
        out: dict[str, Any] = {}
        for name, field in type(value).model_fields.items():
            inner = _with_order(getattr(value, name), plain[name])
            ordered = any(isinstance(mark, InOrder) for mark in field.metadata)
            out[name] = list(inner.items()) if ordered else inner
        return out
    if isinstance(value, Mapping):
        items = zip(cast("Mapping[Any, Any]", value).values(), plain.items(), strict=True)
        return {key: _with_order(inner, bare) for inner, (key, bare) in items}
    if isinstance(value, list | tuple):
        pairs = zip(cast("Sequence[Any]", value), plain, strict=True)
        return [_with_order(inner, bare) for inner, bare in pairs]
    return plain


def save_config(cfg: Config, path: Path) -> None:
    """Write the resolved configuration as YAML, whole or not at all, for `load_config` to read."""
    write_yaml_file(config_dict(cfg), path)


def _beside(name: str, within: Path, folder: str) -> Path:
    """A file that another extends: beside it, or a shipped one."""
    for candidate in (within.parent / name, within.parent / f"{name}.yaml"):
        if candidate.is_file():
            return candidate
    return config_path(name, folder=folder)


def _shipped() -> Path:
    return Path(str(importlib.resources.files("configs")))


def _validated(
    model: type[M], data: dict[str, Any], lines: Mapping[KeyPath, str], *, source: str
) -> M:
    _check_schema_version(model, data, source)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(report(error, model=model, data=data, lines=lines)) from error


def _check_schema_version(model: type[Config], data: Mapping[str, Any], source: str) -> None:
    """Refuse another schema version first: every other message would be about the old keys."""
    field = model.model_fields.get("schema_version")
    if field is None:
        return
    literal = get_origin(field.annotation) is Literal
    current = get_args(field.annotation)[-1] if literal else field.default
    found = data.get("schema_version")
    if found is None:
        raise ConfigError(
            f"{source}: schema_version is missing; expected schema_version: {current}. "
            "Compare the file with a shipped one of that version, then add the line"
        )
    if found == current and not isinstance(found, bool):
        return
    if isinstance(found, int) and not isinstance(found, bool) and found > current:
        hint = "the file was written by a newer version; upgrade, or use a file of this version"
    elif isinstance(found, int) and not isinstance(found, bool):
        steps = [text for old, text in sorted(model.migrations.items()) if found <= old < current]
        hint = "; ".join(steps) or "see the changelog for what was renamed since"
    else:
        hint = "a whole number is expected"
    raise ConfigError(
        f"{source}: schema_version is {found!r}, expected {current}: to migrate, {hint}"
    )


def _apply_override(
    model: type[Config], data: dict[str, Any], lines: dict[KeyPath, str], override: str
) -> None:
    name, equals, text = override.partition("=")
    name = name.strip()
    source = f"--set {name}"
    keys = name.split(".")
    if not equals or not all(keys):
        raise ConfigError(f"--set {override}: expected KEY=VALUE such as a.b.c=0.5")
    value, _ = read_yaml(text, source=source)
    node: Any = data
    path: KeyPath = ()
    for key in keys[:-1]:
        step = _step(node, key, path, source)
        path = (*path, step)
        child: Any = node[step] if isinstance(step, int) else node.get(step)
        if child is None:
            # Start from the default, so that setting one reward does not drop the others.
            child = node[step] = _default(model, path)
            lines[path] = source
        node = child
    last = _step(node, keys[-1], path, source)
    node[last] = value
    path = (*path, last)
    for old in [old for old in lines if old[: len(path)] == path]:
        del lines[old]
    lines[path] = source


def _step(node: Any, key: str, path: KeyPath, source: str) -> str | int:
    """One key of an override as it indexes the section or list it applies to."""
    if isinstance(node, dict):
        return key
    if isinstance(node, list):
        size = len(cast("list[Any]", node))
        if key.isdecimal() and int(key) < size:
            return int(key)
        indices = f"indices 0 to {size - 1}" if size else "no items"
        raise ConfigError(f"{source}: {dotted(path)} has {indices}, not {key!r}")
    raise ConfigError(f"{source}: {dotted(path)} is {node!r}, a single value without keys")


def _default(model: type[Config], path: KeyPath) -> Any:
    for section in models_at(model, path[:-1]):
        field = section.model_fields.get(str(path[-1]))
        if field is not None and not field.is_required():
            default = field.get_default(call_default_factory=True, validated_data={})
            return {} if default is None else to_jsonable_python(default, inf_nan_mode="constants")
    return {}
