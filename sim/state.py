"""The state of an env: what its parts remember, in one flat mapping of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError

State = dict[str, NDArray[np.generic]]


class Stateful(Protocol):
    """A part with a memory."""

    def state_dict(self) -> State:
        """What a continuation needs, copied."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Restore what :meth:`state_dict` gave."""
        ...


def pack(parts: Mapping[str, State]) -> State:
    """States of parts as one, with keys ``part.key``; :func:`part_of` takes one out again."""
    return {f"{n}.{key}": value for n, part in parts.items() for key, value in part.items()}


def pack_parts(parts: Mapping[str, Stateful]) -> State:
    """States of parts by name, as :func:`pack` does it."""
    return pack({name: part.state_dict() for name, part in parts.items()})


def unpack_parts(parts: Mapping[str, Stateful], state: State) -> None:
    """Restore what :func:`pack_parts` gave, part by part in their order."""
    for name, part in parts.items():
        part.load_state_dict(part_of(state, name))


def part_of(state: State, name: str) -> State:
    """The entries of one part, without its name; empty if it has none."""
    prefix = f"{name}."
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def require_parts(state: State, *names: str) -> None:
    """Refuse what is not the state of an env.

    Raises:
        FerryError: naming the parts that it lacks.
    """
    lacking = [name for name in names if not part_of(state, name)]
    if lacking:
        raise FerryError(f"this is not the state of an env: it lacks {', '.join(lacking)}")
