"""State that a bit-exact continuation needs: flat arrays by name, kept and restored by part."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

State = dict[str, NDArray[np.generic]]


class Stateful(Protocol):
    """Whatever remembers something from step to step."""

    def state_dict(self) -> State:
        """What a continuation needs, copied."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Restore what :meth:`state_dict` gave."""
        ...


def under(state: State, part: str) -> State:
    """The entries of one part, without its name."""
    prefix = f"{part}."
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
