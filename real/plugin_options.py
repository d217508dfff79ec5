"""Options of a robot plug-in against what its class says of them, before anything is built.

They come as YAML or JSON, so a value is a text, a number, true or false, a list, a table or none.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, Literal, TypeGuard, Union, cast, get_args, get_origin, get_type_hints

from real.errors import FerryError

#: What a hint is called in messages.
_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    type(None): "nothing",
}


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is one real number, of Python or NumPy; True and False are none."""
    return not isinstance(value, bool) and isinstance(value, Real)


def require_kinds(factory: Callable[..., Any], options: Mapping[str, Any], plugin: str) -> None:
    """Refuse an option of another kind than the class's hint for it.

    Hints that YAML has no value for (a path, a class) and those that cannot be resolved say
    nothing: the class must see for itself.

    Args:
        factory: the plug-in's class.
        options: its keyword arguments.
        plugin: what to call it.

    Raises:
        FerryError: one has the wrong kind; the first is named.
    """
    made: Any = factory.__init__ if inspect.isclass(factory) else factory
    try:
        hints = get_type_hints(made)
    # A hint is code of the plug-in's module, which may name what is imported for type checkers.
    except Exception:
        return
    for name, value in options.items():
        hint = hints.get(name, Any)
        if not _fits(value, hint):
            raise FerryError(
                f"robot plug-in {plugin!r}: option {name}={value!r}: expected {_words(hint)}"
            )


def _fits(value: object, hint: Any) -> bool:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if hint is None or hint is type(None):
        return value is None
    if hint is bool or hint is str:
        return isinstance(value, hint)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is float:
        return is_number(value)
    kind = hint if origin is None else origin
    if not inspect.isclass(kind):
        return True
    if issubclass(kind, Mapping):
        table = cast("Mapping[str, object]", value)
        inner = parts[-1] if parts else Any
        return isinstance(value, Mapping) and all(_fits(v, inner) for v in table.values())
    if issubclass(kind, Sequence):
        items = cast("list[object]", value)
        inner = parts[0] if parts else Any
        return isinstance(value, list | tuple) and all(_fits(v, inner) for v in items)
    return True


def _words(hint: Any) -> str:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(part) for part in parts)
    if origin is Literal:
        return "one of " + ", ".join(map(str, parts))
    if hint in _NAMES:
        return _NAMES[hint]
    kind = hint if origin is None else origin
    if inspect.isclass(kind) and issubclass(kind, Mapping):
        return "a table"
    inner = f" of {_NAMES[parts[0]]} each" if parts and parts[0] in _NAMES else ""
    return f"a list{inner}"
