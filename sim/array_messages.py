"""Messages between a process and one it started: a word, a text, and arrays by name.

A message is one line of JSON that says what follows, and the arrays' bytes. Nothing in it is code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.generic]]


def send(
    line: Connection, word: str, arrays: Mapping[str, NDArray[np.generic]], text: str = ""
) -> None:
    """Send a message.

    Args:
        line: to whom.
        word: what it is about.
        arrays: of numbers.
        text: for people, or JSON.

    Raises:
        OSError: nobody is there any more.
    """
    about = [[name, values.dtype.str, list(values.shape)] for name, values in arrays.items()]
    line.send_bytes(json.dumps({"word": word, "text": text, "arrays": about}).encode())
    for values in arrays.values():
        if values.size:
            line.send_bytes(np.ascontiguousarray(values).data.cast("B"))


def receive(line: Connection) -> tuple[str, Arrays, str]:
    """Wait for a message; its word, arrays and text.

    Raises:
        EOFError: nobody is there any more.
        OSError: the same, noticed in another way.
    """
    about = json.loads(line.recv_bytes())
    arrays: Arrays = {}
    for name, dtype, shape in about["arrays"]:
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise ValueError(f"array {name!r} of {kind}; expected numbers")
        count = int(np.prod(shape))
        content = line.recv_bytes() if count else b""
        arrays[name] = np.frombuffer(bytearray(content), dtype=kind, count=count).reshape(shape)
    return about["word"], arrays, about["text"]
