"""The learned actuator inside a bundle: the very file that moved the joints in training.

It is only for evaluations: no robot runs it. Its bytes stand in the metadata as text, under the
bundle's digest, and must be those that the contract names. Evaluations run it in their own process,
so it is tried apart before, see :mod:`deploy.reproduction`.
"""

from __future__ import annotations

import base64
import binascii

from deploy.onnx_file import BundleError, read_onnx
from deploy.reproduction import actuator_problem
from real.contract import PolicyContract

ACTUATOR_KEY = "ferry_actuator"

#: Networks that are larger stay outside: the contract names them by their hash. Those that
#: ``ferry robot fit`` writes have 5 to 30 kB.
MAX_BYTES = 1024 * 1024


def why_outside(data: bytes) -> str:
    """Why a learned actuator cannot travel inside a bundle; empty if it can."""
    if len(data) > MAX_BYTES:
        return f"its {len(data) / 2**20:.1f} MiB are more than {MAX_BYTES // 2**20} MiB"
    try:
        # A drive may be modelled by anything; only what could reach out of the file is refused.
        read_onnx(data, operators=None)
    except BundleError as error:
        return str(error)
    return actuator_problem(data)


def actuator_text(data: bytes) -> str:
    """A learned actuator as metadata hold it."""
    return base64.b64encode(data).decode("ascii")


def read_actuator_part(text: str | None, contract: PolicyContract) -> bytes | None:
    """The learned actuator that a bundle carries, checked; None if it carries none.

    Args:
        text: the metadata, or None.
        contract: of the same bundle.

    Raises:
        BundleError: it is not the one that the contract names, no self-contained ONNX file, or one
            that cannot be run here, or only with much memory or time.
    """
    if text is None:
        return None
    named = None if contract.world is None else contract.world.actuator
    if named is None:
        raise BundleError("it carries a learned actuator that its contract does not name")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BundleError(f"its learned actuator is not readable: {error}") from error
    if not named.is_of(data):
        raise BundleError(
            f"its learned actuator is not the {named.name} that its contract names: another sha256"
        )
    refused = why_outside(data)
    if refused:
        raise BundleError(f"its learned actuator {named.name}: {refused}")
    return data
