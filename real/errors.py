"""Errors a user can mend, and the hint that names what they probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FerryError(Exception):
    """A mistake the user can mend; the command line prints it and exits with code 2.

    The message says what was found, what was expected, and where to fix it.
    """


class ConfigError(FerryError, ValueError):
    """A configuration that cannot be read or used.

    It is a `ValueError` as well, so that a pydantic validator may raise it and the loader adds the
    file and line.

    Args:
        message: What is wrong.
        key: Where inside the value that a validator checks: its keys and indices from the top.
    """

    def __init__(self, message: str = "", *, key: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.key = key


class ContractMismatch(FerryError):
    """A policy, robot, log or simulator that disagree about what they exchange."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Name the known word closest to a misspelt one.

    Letter case and the difference between `-`, `_` and space do not count as a difference.

    Args:
        name: The word that was found.
        known: The words that would have been right.

    Returns:
        A hint ready to append to a message, " (did you mean 'x'?)", or "" if nothing is close.
    """
    by_folded = {_folded(word): word for word in sorted(known)}
    # 0.6 is difflib's own default: two thirds of the letters in common order.
    close = difflib.get_close_matches(_folded(name), by_folded, n=1, cutoff=0.6)
    return f" (did you mean {by_folded[close[0]]!r}?)" if close else ""


def _folded(word: str) -> str:
    return word.casefold().replace("-", "_").replace(" ", "_")
