"""Whether a bundle's graphs do on this computer what they must, tried where they can do no harm.

A policy must reproduce its golden vectors; a learned actuator must give finite torques.
"""

from __future__ import annotations

import functools
import io
import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from deploy import golden_run
from deploy.onnx_file import BundleError
from deploy.ports import inputs_of, outputs_of
from deploy.punctual import ordinarily
from real.contract import Golden, PolicyContract
from real.world import ACTUATOR_CARD_KEY, ACTUATOR_INPUTS, ACTUATOR_OUTPUT

#: Largest difference from the golden vectors. Runtimes add up in different orders, which gives
#: differences of about 1e-6 for actions of order 1.
TOLERANCE = 1e-5

#: What trying a graph may take beside the runtime itself [bytes], [s of a core], [s]. The largest
#: file that is read, 32 MiB, takes four times its size.
MEMORY_BYTES = 512 * 1024 * 1024
CPU_S = 20
PATIENCE_S = 120.0

#: What ONNX Runtime and Python say where there is no memory left.
_NO_MEMORY = ("memoryerror", "bad_alloc", "bad allocation", "allocate memory", "allocation fail")


def require_reproduced(data: bytes, contract: PolicyContract, golden: Golden) -> None:
    """Refuse a graph that has other inputs or outputs, or gives other numbers on this computer.

    Args:
        data: the file, read and found to be one of ordinary operators.
        contract: the contract in it.
        golden: the golden vectors in it.

    Raises:
        BundleError: it differs, takes more memory or time than a policy may, or the runtime fails.
    """
    takes, gives = inputs_of(contract), outputs_of(contract)
    feeds = [golden.observation, *([] if golden.hidden is None else [golden.hidden])]
    wanted = [golden.mean, golden.log_std]
    if golden.hidden_next is not None:
        wanted.append(golden.hidden_next)
    problem = _plain(problem_apart(data, takes, gives, feeds, wanted, TOLERANCE), "policy")
    if problem:
        raise BundleError(problem)


def actuator_problem(data: bytes) -> str:
    """Why nobody should run a learned actuator, in one sentence; empty if there is no reason.

    It has other inputs or outputs, or gives other shapes or no finite numbers for zeros, takes more
    memory or time than a learned actuator may, or the runtime fails.

    Args:
        data: the file, read and found to be self-contained.
    """
    options = {
        "card_key": ACTUATOR_CARD_KEY,
        "takes": ACTUATOR_INPUTS,
        "gives": ACTUATOR_OUTPUT,
    }
    return _plain(_apart("learned actuator", data, options), "learned actuator")


def problem_apart(
    data: bytes,
    takes: golden_run.Ports,
    gives: golden_run.Ports,
    given: list[golden_run.Float32],
    wanted: list[golden_run.Float32],
    tolerance: float,
) -> str:
    """:func:`deploy.golden_run.problem_of` in a process of its own, which may end in any way."""
    options = {"takes": dict(takes), "gives": dict(gives), "tolerance": tolerance}
    return _apart("policy", data, options, given=given, wanted=wanted)


def _plain(problem: str, kind: str) -> str:
    """The same problem, said plainly where it is that there is no memory left."""
    if any(word in problem.lower() for word in _NO_MEMORY):
        return f"it takes more than {MEMORY_BYTES // 2**20} MiB of memory, as no {kind} does"
    return problem


def _apart(
    kind: str, data: bytes, options: Mapping[str, Any], **arrays: list[golden_run.Float32]
) -> str:
    """What is wrong with a graph, by what :mod:`deploy.golden_run` has for its kind."""
    told = {
        "kind": kind,
        "options": options,
        "arrays": {name: len(items) for name, items in arrays.items()},
        "memory_bytes": MEMORY_BYTES,
        "cpu_s": CPU_S,
    }
    archive = io.BytesIO()
    parts: dict[str, Any] = {
        "told": np.frombuffer(json.dumps(told).encode(), dtype=np.uint8),
        "model": np.frombuffer(data, dtype=np.uint8),
    }
    for name, items in arrays.items():
        parts |= {f"{name}/{k}": array for k, array in enumerate(items)}
    np.savez(archive, **parts)
    run = functools.partial(
        subprocess.run,
        # -P: what lies beside the file must not pass for modules of Python's own.
        [sys.executable, "-P", golden_run.__file__],
        input=archive.getvalue(),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    try:
        # From its first moment on: loading the runtime takes long beside a robot's loop.
        ended = ordinarily(run)
    except subprocess.TimeoutExpired:
        return f"what it computes did not come out within {PATIENCE_S:g} s"
    except OSError as error:
        return f"no process to try it in could be started: {error.strerror or error}"
    if ended.returncode == 0:
        return str(json.loads(ended.stdout)["problem"])
    if ended.returncode == -signal.SIGXCPU:
        return f"it takes more than {CPU_S} s to compute, as no {kind} does"
    if ended.returncode < 0:
        name = signal.Signals(-ended.returncode).name
        return f"the process that tried it was killed by {name}"
    said = ended.stderr.decode(errors="replace").strip().splitlines()
    return f"the process that tried it ended: {said[-1] if said else '?'}"
