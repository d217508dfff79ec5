"""What is wrong with a configuration, one sentence per mistake.

Pydantic says which value failed which rule. This module adds what a reader needs to mend it: the
file and line, the whole permitted range and unit, the nearest key, and the section where a
misplaced key belongs.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Union, cast, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from real.config_yaml import KeyPath
from real.errors import ConfigError, nearest


@dataclass(frozen=True)
class Slot:
    """One place in a model where a value may stand: its type, its constraints, its field."""

    annotation: Any
    constraints: tuple[Any, ...] = ()
    field: FieldInfo | None = None


def report(
    error: ValidationError,
    *,
    model: type[BaseModel],
    data: Any,
    lines: Mapping[KeyPath, str],
) -> str:
    """Describe every mistake pydantic found.

    Args:
        error: What pydantic raised.
        model: The model it validated against.
        data: The plain value it validated.
        lines: "source:line" for each key path in `data`; at least one for the empty path.

    Returns:
        One line per mistake, in the order of the model's fields.
    """
    found: dict[KeyPath, list[dict[str, Any]]] = {}
    for detail in cast("list[dict[str, Any]]", error.errors(include_url=False)):
        found.setdefault(_data_path(detail, data), []).append(detail)
    return "\n".join(
        f"{where(lines, path)}: {_sentence(model, path, details)}"
        for path, details in found.items()
        if not _explained_deeper(path, details, found)
    )


def where(lines: Mapping[KeyPath, str], path: KeyPath) -> str:
    """The source and line of a key path, or of the nearest section around it."""
    for length in range(len(path), -1, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return "configuration"


def dotted(path: KeyPath) -> str:
    """A key path as `--set` spells it, "a.b.0"."""
    return ".".join(str(key) for key in path)


def slots(model: type[BaseModel], path: KeyPath) -> list[Slot]:
    """Every place in the model a key path can mean; several if there are unions, [] if none."""
    current = [Slot(model)]
    for key in path:
        current = [inner for slot in current for inner in _inside(slot, key)]
    return current


def models_at(model: type[BaseModel], path: KeyPath) -> list[type[BaseModel]]:
    """The models that may stand at a key path."""
    alternatives = [option for slot in slots(model, path) for option in _options(slot)]
    return [slot.annotation for slot in alternatives if _is_model(slot.annotation)]


def _options(slot: Slot) -> Iterator[Slot]:
    """The members of a union, without their `Annotated` wrappers but with what those said."""
    origin = get_origin(slot.annotation)
    arguments = get_args(slot.annotation)
    if origin is Annotated:
        extra: list[Any] = []
        for item in arguments[1:]:
            extra += item.metadata if isinstance(item, FieldInfo) else [item]
        inner = Slot(arguments[0], (*slot.constraints, *extra), slot.field)
        yield from _options(inner)
    elif origin in {Union, types.UnionType}:
        for argument in arguments:
            yield from _options(Slot(argument, slot.constraints, slot.field))
    else:
        yield slot


def _inside(slot: Slot, key: str | int) -> Iterator[Slot]:
    for option in _options(slot):
        annotation = option.annotation
        origin = get_origin(annotation)
        arguments = get_args(annotation)
        if _is_model(annotation):
            field = cast("type[BaseModel]", annotation).model_fields.get(str(key))
            if field is not None:
                yield Slot(field.annotation, tuple(field.metadata), field)
        elif isinstance(origin, type) and issubclass(origin, Mapping):
            yield Slot(arguments[1], (), option.field)
        elif isinstance(key, int) and arguments:
            fixed = origin is tuple and arguments[-1] is not Ellipsis
            # A tuple of fixed length gives each place its own type.
            if not fixed or key < len(arguments):
                yield Slot(arguments[key if fixed else 0], (), option.field)


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _data_path(detail: Mapping[str, Any], data: Any) -> KeyPath:
    """Pydantic's location without the union members it names on the way."""
    path: list[str | int] = []
    node = data
    for part in detail["loc"]:
        if isinstance(node, Mapping) and part in node:
            node = cast("Mapping[str, Any]", node)[part]
        elif (
            isinstance(node, list | tuple)
            and isinstance(part, int)
            and part < len(cast("list[Any]", node))
        ):
            node = cast("list[Any]", node)[part]
        else:
            continue
        path.append(part)
    if detail["type"] == "missing":
        path.append(detail["loc"][-1])
    return (*path, *_inner_key(detail))


def _inner_key(detail: Mapping[str, Any]) -> KeyPath:
    """The rest of the way, where a validator of a whole section knows which of its values it is."""
    error = detail.get("ctx", {}).get("error")
    return error.key if isinstance(error, ConfigError) else ()


def _explained_deeper(
    path: KeyPath, details: list[dict[str, Any]], found: Mapping[KeyPath, Any]
) -> bool:
    """Whether another union member got further into this value, so that its complaint is the one.

    Only a location longer than its data path names a union member.
    """
    if any(len(detail["loc"]) <= len(path) for detail in details):
        return False
    return any(len(other) > len(path) and other[: len(path)] == path for other in found)


def _sentence(model: type[BaseModel], path: KeyPath, details: list[dict[str, Any]]) -> str:
    first = details[0]
    kind = first["type"]
    name = dotted(path)
    if kind == "extra_forbidden":
        return _unknown_key(model, path)
    if kind == "missing":
        return f"{name} is missing{_unit(model, path)}"
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        return _kind_of_section(name, first)
    if kind in {"value_error", "assertion_error"}:
        subject = f"{name} = {_shown(_value(first))}: " if name else ""
        return f"{subject}{first['ctx']['error']}"
    expected = list(dict.fromkeys(_expectation(model, path, detail) for detail in details))
    subject = f"{name} is" if name else "found"
    return (
        f"{subject} {_shown(first['input'])}, expected {' or '.join(expected)}{_unit(model, path)}"
    )


def _value(detail: Mapping[str, Any]) -> Any:
    """What stands at the place that the error is about."""
    value: Any = detail["input"]
    for key in _inner_key(detail):
        try:
            value = value[key]
        except (TypeError, KeyError, IndexError):
            break  # it is missing
    return value


def _kind_of_section(name: str, detail: Mapping[str, Any]) -> str:
    """A section whose kind is told by one of its keys, and that key is missing or unknown."""
    context = detail["ctx"]
    key = f"{name}.{context['discriminator'].strip(chr(39))}".lstrip(".")
    if "tag" not in context:
        return f"{key} is missing"
    expected = _choice(context["expected_tags"], context["tag"])
    return f"{key} is {_shown(context['tag'])}, expected {expected}"


def _unknown_key(model: type[BaseModel], path: KeyPath) -> str:
    key = str(path[-1])
    section = dotted(path[:-1])
    place = f"in section {section!r}" if section else "at the top level"
    # Another member of a union may know the key; the one chosen does not.
    options = [option for option in models_at(model, path[:-1]) if key not in option.model_fields]
    known = [name for option in options for name in option.model_fields]
    homes = [
        home
        for home in _sections(model, "", ())
        if key in home[1].model_fields
        if home[0] != section
    ]
    if homes:
        names = " or ".join(repr(prefix) if prefix else "the top level" for prefix, _ in homes)
        return f"unknown key {key!r} {place}; it belongs in {names}"
    return f"unknown key {key!r} {place}{nearest(key, known) or f'; known: {_list(known)}'}"


def _sections(
    model: type[BaseModel], prefix: str, above: tuple[type[BaseModel], ...]
) -> Iterator[tuple[str, type[BaseModel]]]:
    """Every section of a model with its dotted name; `*` stands for any name or index."""
    yield prefix, model
    for name, field in model.model_fields.items():
        inner = f"{prefix}.{name}" if prefix else name
        for option in _options(Slot(field.annotation)):
            direct = _is_model(option.annotation)
            candidates = (option.annotation,) if direct else get_args(option.annotation)
            for candidate in candidates:
                if _is_model(candidate) and candidate not in (*above, model):
                    label = inner if direct else f"{inner}.*"
                    yield from _sections(candidate, label, (*above, model))


# What pydantic's error types mean to somebody who writes YAML.
_EXPECTED = {
    "float_type": "a number",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "path_type": "a path",
    "none_required": "null",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "model_type": "a section of keys",
    "dict_type": "a section of keys",
    "mapping_type": "a section of keys",
    "model_attributes_type": "a section of keys",
}
_NUMBER_TYPES = {"float_type", "int_type", "int_from_float", "finite_number"}
_RANGE_TYPES = {
    "greater_than",
    "greater_than_equal",
    "less_than",
    "less_than_equal",
    "multiple_of",
}


def _expectation(model: type[BaseModel], path: KeyPath, detail: Mapping[str, Any]) -> str:
    kind = detail["type"]
    if kind in {"literal_error", "enum"}:
        return _choice(str(detail["ctx"]["expected"]), detail["input"])
    if kind in _NUMBER_TYPES | _RANGE_TYPES:
        options = [option for slot in slots(model, path) for option in _options(slot)]
        integer = kind in {"int_type", "int_from_float"} or any(
            o.annotation is int for o in options
        )
        noun = _EXPECTED.get(kind, "an integer" if integer else "a number")
        limits = next((text for option in options if (text := _limits(option))), "")
        return f"{noun} {limits}" if limits else noun
    if kind in _EXPECTED:
        return _EXPECTED[kind]
    # "Input should be a date", "List should have at most 2 items after validation, not 3"
    message = str(detail["msg"]).removeprefix("Input should be ")
    return re.sub(r"^\w+ should ", "to ", message)


def _choice(expected: str, found: Any) -> str:
    known = [word.strip("'") for word in expected.replace(" or ", ", ").split(", ")]
    return expected + (nearest(found, known) if isinstance(found, str) else "")


def _limits(slot: Slot) -> str:
    """The permitted range, "> 0 and <= 1"."""
    parts: list[str] = []
    for constraint in slot.constraints:
        match constraint:
            case annotated_types.Gt():
                parts.append(f"> {constraint.gt}")
            case annotated_types.Ge():
                parts.append(f">= {constraint.ge}")
            case annotated_types.Lt():
                parts.append(f"< {constraint.lt}")
            case annotated_types.Le():
                parts.append(f"<= {constraint.le}")
            case annotated_types.MultipleOf():
                parts.append(f"a multiple of {constraint.multiple_of}")
            case _:
                pass
    return " and ".join(parts)


def _unit(model: type[BaseModel], path: KeyPath) -> str:
    """The unit a field declares, by `json_schema_extra={"unit": ...}` or by its description."""
    for slot in slots(model, path):
        if slot.field is None:
            continue
        extra = slot.field.json_schema_extra
        if isinstance(extra, dict) and "unit" in extra:
            return f" [{extra['unit']}]"
        if slot.field.description:
            # The first sentence or line says what it is; the rest says why.
            first = slot.field.description.strip().splitlines()[0].split(". ")[0]
            return f" ({first.rstrip('.')})"
    return ""


def _shown(value: Any) -> str:
    """A value as YAML would spell it, cut to fit a line."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    text = text.replace("NaN", ".nan").replace("Infinity", ".inf")
    return text if len(text) <= 80 else f"{text[:77]}..."


def _list(names: list[str]) -> str:
    return ", ".join(names) if names else "none"
