"""Runs a bundle's graphs in a process of its own with little to take.

The policy is run on its golden vectors, and a learned actuator, if there is one, on zeros.

A file of a few KB can ask for gigabytes (an array that is expanded), for hours, or for a fault of
the runtime; here that ends a process which nobody misses. The process imports nothing of Ferry and
reads one archive from its standard input, see :mod:`deploy.reproduction`.
"""

from __future__ import annotations

import io
import json
import os
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Ports = Mapping[str, int]

#: The largest batch that is tried; suites have up to 36 episodes by default.
MANY_ROWS = 128


def open_session(data: bytes) -> Any:
    """An ONNX Runtime session on one thread: a small network gains nothing from more.

    The bytes are read as ONNX, whatever else the runtime may see in them.
    """
    options: Any = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors come as exceptions; do not print them, too
    options.add_session_config_entry("session.load_model_format", "ONNX")
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def problem_of(
    data: bytes,
    takes: Ports,
    gives: Ports,
    given: Sequence[Float32],
    wanted: Sequence[Float32],
    tolerance: float,
) -> str:
    """In what a graph is not the expected one, in one sentence; empty if in nothing.

    It is run on all rows, on the first one, and on :data:`MANY_ROWS` in which they come again.

    Args:
        data: the ONNX file.
        takes: names of its inputs, in order, and how many numbers of a robot each takes.
        gives: the same of its outputs.
        given: ``[rows, size]`` for every input.
        wanted: ``[rows, size]`` for every output.
        tolerance: largest difference that is none.
    """
    session = open_session(data)
    inputs, outputs = session.get_inputs(), session.get_outputs()
    if [i.name for i in inputs] != list(takes) or [o.name for o in outputs] != list(gives):
        found = f"{[i.name for i in inputs]} -> {[o.name for o in outputs]}"
        state = "no state" if len(takes) == 1 else "a state"
        return (
            f"its graph is {found}; expected {list(takes)} -> {list(gives)}, since its contract "
            f"has {state}"
        )
    sizes = [*takes.values(), *gives.values()]
    for port, size in zip([*inputs, *outputs], sizes, strict=True):
        shape = port.shape
        if port.type != "tensor(float)" or len(shape) != 2 or shape[1] not in {size, None}:
            return f"{port.name!r} is {port.type} {shape}; expected tensor(float) [batch, {size}]"
        if isinstance(shape[0], int):
            return f"{port.name!r} has a fixed batch of {shape[0]}; export it dynamic"
    # All at once and one alone: a batch size that was baked in shows in one of them. And so many as
    # an evaluation may have: what grows with the square of a batch is small in a small one.
    for rows in (slice(None), slice(0, 1), np.arange(MANY_ROWS) % len(given[0])):
        known = {name: array[rows] for name, array in zip(takes, given, strict=True)}
        for name, got, array in zip(gives, session.run(list(gives), known), wanted, strict=True):
            expected = array[rows]
            if got.shape != expected.shape:
                return f"{name} comes out as {got.shape}; expected {expected.shape}"
            error = float(np.abs(got - expected).max())
            if not error <= tolerance:  # also where it is NaN
                return (
                    f"this computer does not reproduce its golden vectors: {name} is off by "
                    f"{error:.2g}, allowed {tolerance:.0e}"
                )
    return ""


def actuator_problem_of(data: bytes, card_key: str, takes: Sequence[str], gives: str) -> str:
    """In what a graph is no learned actuator, in one sentence; empty if in nothing.

    It is run on zeros, for one world and for :data:`MANY_ROWS`; what it was fitted for says the
    other sizes. What it gives for them must be finite.

    Args:
        data: the ONNX file.
        card_key: the metadata that say what it was fitted for, as JSON.
        takes: names of its inputs, ``[N, H, A]`` each.
        gives: name of its output, ``[N, A]``.
    """
    session = open_session(data)
    inputs = {port.name: port.type for port in session.get_inputs()}
    outputs = [port.name for port in session.get_outputs()]
    if sorted(inputs) != sorted(takes) or gives not in outputs:
        return f"its graph is {list(inputs)} -> {outputs}; expected {list(takes)} -> {[gives]}"
    types = {"tensor(float)": np.float32, "tensor(double)": np.float64}
    (kind, *others) = set(inputs.values())
    if others or kind not in types:
        return f"it takes {', '.join(inputs.values())}; expected all of {' or '.join(types)}"
    text = session.get_modelmeta().custom_metadata_map.get(card_key, "null")
    try:
        card: Any = json.loads(text)
        history, joints = int(card["history"]), len(card["joints"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return f"its metadata {card_key!r} do not say 'history' and 'joints'; found {text:.60}"
    for rows in (1, MANY_ROWS):
        zeros = np.zeros((rows, history, joints), dtype=types[kind])
        (got,) = session.run([gives], dict.fromkeys(takes, zeros))
        if got.shape != (rows, joints) or not np.isfinite(got).all():
            return (
                f"{gives} for inputs of zeros, {list(zeros.shape)}, is not finite or has the shape "
                f"{list(got.shape)}; expected {[rows, joints]}"
            )
    return ""


# ------------------------------------------------------------------ the process


def _limit(memory_bytes: int, cpu_s: int) -> None:
    """Take no more than this from here on; what is more ends in an exception or in a signal."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _at_most(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + cpu_s, grace=1)
    _at_most(resource.RLIMIT_CORE, 0)
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[0])
    except OSError:  # not Linux, where such a limit may count for nothing
        return
    _at_most(resource.RLIMIT_AS, pages * os.sysconf("SC_PAGE_SIZE") + memory_bytes)


def _at_most(kind: int, value: int, *, grace: int = 0) -> None:
    """Lower a limit, which may already be lower; its hard one is so much higher.

    At the soft limit of time comes a signal that says why, at the hard one SIGKILL.
    """
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (_lower(value, soft), _lower(value + grace, hard)))


def _lower(wanted: int, now: int) -> int:
    """The lower of two limits, of which the present one may be none (-1)."""
    return wanted if now < 0 else min(wanted, now)


def _main() -> None:
    archive: Any = np.load(io.BytesIO(sys.stdin.buffer.read()), allow_pickle=False)
    told = json.loads(archive["told"].tobytes())
    data = archive["model"].tobytes()
    arrays = {
        name: [archive[f"{name}/{k}"] for k in range(count)]
        for name, count in told["arrays"].items()
    }
    kinds: dict[str, Callable[..., str]] = {
        "policy": problem_of,
        "learned actuator": actuator_problem_of,
    }
    _limit(told["memory_bytes"], told["cpu_s"])
    try:
        problem = kinds[told["kind"]](data, **told["options"], **arrays)
    except MemoryError:
        problem = "MemoryError"
    except Exception as error:  # the runtime has many
        problem = f"{type(error).__name__}: {error}"
    sys.stdout.write(json.dumps({"problem": " ".join(problem.split())}))


if __name__ == "__main__":
    _main()
