"""A policy as one file: read once, checked whole, and the checked bytes are the bytes that run.

A bundle is an ONNX model (normaliser inside) whose metadata hold the contract and golden vectors.
:func:`read_bundle` answers with a bundle that works on this computer, or with one sentence.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from deploy.actuator_part import ACTUATOR_KEY, read_actuator_part
from deploy.contract_check import contract_problems
from deploy.evaluation_stamp import EVALUATION_KEY, EvaluationStamp, require_score
from deploy.onnx_file import BundleError, read_onnx
from deploy.reproduction import require_reproduced
from deploy.signing import TrustedKeys, require_signature
from real.contract import Golden, PolicyContract
from real.errors import FerryError

#: Metadata keys.
CONTRACT_KEY, GOLDEN_KEY, DIGEST_KEY = "ferry_contract", "ferry_golden", "ferry_digest"

#: Operator sets that ONNX Runtime 1.20 and later run; exports use one of them.
OPSETS = range(17, 24)

#: A policy network is under 1 MB; more than this is something else.
MAX_BYTES = 32 * 1024 * 1024

#: Contract and golden vectors have 10 to 100 kB each. What Python makes of JSON may take 30 times
#: as much memory as its text.
MAX_TEXT_BYTES = 4 * 1024 * 1024

#: The metadata that are JSON, as messages call them.
_TEXTS = {
    CONTRACT_KEY: "contract",
    GOLDEN_KEY: "golden vectors",
    EVALUATION_KEY: "evaluation stamp",
}


@dataclass(frozen=True)
class Bundle:
    """A bundle that passed every check on this computer.

    Attributes:
        contract: what the policy was trained for.
        golden: recorded inputs and outputs, reproduced here.
        model_bytes: the file's content; what was checked is what runs.
        sha256: of the file (hex).
        digest: SHA-256 of model and contract without later stamps (hex).
        opset: version of the operator set.
        source: where it was read from.
        evaluation: that let it through, or None.
        signed_by: name of the trusted key that signed it; None where nobody asked.
        actuator: the learned actuator that it was trained with, if it carries one.
    """

    contract: PolicyContract
    golden: Golden
    model_bytes: bytes
    sha256: str
    digest: str
    opset: int
    source: str
    evaluation: EvaluationStamp | None = None
    signed_by: str | None = None
    actuator: bytes | None = None

    def require_sha256(self, expected: str) -> Bundle:
        """This bundle, if it is the very file that was checked before; empty: any is.

        Raises:
            BundleError: the file has changed in between.
        """
        if expected and expected.lower() != self.sha256:
            raise BundleError(
                f"{self.source}: its sha256 is {self.sha256}, but {expected} was checked before "
                "the start: the file has been replaced since; start again"
            )
        return self

    def require_evaluation(self, minimum: float | None) -> Bundle:
        """This bundle, if the evaluation it carries lets it through; None: any does.

        Raises:
            BundleError: it carries none, or one with a lower score.
        """
        require_score(self.evaluation, minimum, source=self.source)
        return self

    def rows(self) -> dict[str, str]:
        """What the policy was trained for and where it is from, for people."""
        contract, command = self.contract, self.contract.command
        ranges = zip(command.names, command.low, command.high, command.units, strict=True)
        return {
            "robot": contract.robot,
            "control period": f"{contract.control_dt_s} s",
            "joints": ", ".join(contract.joint_names),
            "observation": ", ".join(f"{t.name}[{t.dim}]" for t in contract.observation.terms),
            "action": f"{contract.action.kind}[{contract.action.dim}]",
            **({} if contract.state is None else {"remembers": str(contract.state)}),
            "takes": ", ".join(f"{n} {low:g}..{high:g} {u}" for n, low, high, u in ranges),
            "policy version": str(contract.policy_version),
            "commit": contract.git_sha,
            "config hash": contract.config_hash,
            **contract.provenance,
            **self._world(),
            **({"evaluated on": "never"} if self.evaluation is None else self.evaluation.rows()),
            "signed with": self.signed_by or "not checked: no trusted keys are configured",
            "sha256": self.sha256,
        }

    def _world(self) -> dict[str, str]:
        world = self.contract.world
        if world is None:
            return {"trained on": "not said: exported before bundles carried it"}
        if world.actuator is None:
            return world.rows()
        where = "named by its hash" if self.actuator is None else "inside"
        return {**world.rows(), "learned actuator": f"{where}, sha256 {world.actuator.sha256}"}


def read_bundle(path: str | Path, *, trusted: TrustedKeys | None = None) -> Bundle:
    """Read and verify a bundle.

    Args:
        path: the file.
        trusted: keys with one of which it must be signed, or nothing else of it is looked at; None
            asks for no signature.

    Raises:
        BundleError: anything is wrong with it, in one sentence that names the file.
    """
    file = Path(path)
    if file.is_fifo():  # to open it would wait for somebody who writes
        raise BundleError(f"{file}: is a pipe; expected a file")
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise BundleError(f"{file}: cannot be read: {error.strerror or error}") from error
    signer = None if trusted is None else require_signature(file, data, trusted)
    return dataclasses.replace(parse_bundle(data, source=str(file)), signed_by=signer)


def parse_bundle(data: bytes, *, source: str) -> Bundle:
    """Verify the content of a bundle.

    Args:
        data: the whole file.
        source: what to call it in messages.

    Raises:
        BundleError: anything is wrong with it; never another exception, whatever the bytes.
    """
    try:
        return _verified(data, source)
    except FerryError as error:
        raise BundleError(f"{source}: not a usable bundle: {_one_line(error)}") from error
    except Exception as error:  # the runtime and JSON have many; a bad file must never crash
        kind = type(error).__name__
        raise BundleError(f"{source}: not a usable bundle: {kind}: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]


def golden_json(golden: Golden) -> str:
    """Golden vectors as JSON; float32 numbers survive it exactly."""
    return json.dumps({k: v.tolist() for k, v in vars(golden).items() if v is not None})


def _verified(data: bytes, source: str) -> Bundle:
    if not data:
        raise BundleError("it is empty")
    if len(data) > MAX_BYTES:
        raise BundleError(f"it is larger than {MAX_BYTES // 2**20} MiB, the most a policy may have")
    file = read_onnx(data)
    if file.opset not in OPSETS:
        raise BundleError(
            f"it uses operator set {file.opset}; expected {OPSETS.start} to {OPSETS.stop - 1}"
        )
    for key in (CONTRACT_KEY, GOLDEN_KEY, DIGEST_KEY):
        if key not in file.metadata:
            raise BundleError(
                f"it is an ONNX model without {key!r} in its metadata; make bundles with "
                "`ferry export`"
            )
    if file.metadata[DIGEST_KEY] != file.digest:
        raise BundleError("its content does not fit its digest: it was altered after its export")
    _require_short_texts(file.metadata)
    contract = _contract(file.metadata[CONTRACT_KEY])
    golden = _golden(file.metadata[GOLDEN_KEY], contract)
    actuator = read_actuator_part(file.metadata.get(ACTUATOR_KEY), contract)
    require_reproduced(data, contract, golden)
    stamp = file.metadata.get(EVALUATION_KEY)
    return Bundle(
        contract=contract,
        golden=golden,
        model_bytes=data,
        sha256=hashlib.sha256(data).hexdigest(),
        digest=file.digest,
        opset=file.opset,
        source=source,
        evaluation=None if stamp is None else EvaluationStamp.from_json(stamp, digest=file.digest),
        actuator=actuator,
    )


# ------------------------------------------------------------------ contract


def _require_short_texts(metadata: Mapping[str, str]) -> None:
    """Refuse what is too large to be read as JSON, before it is."""
    for key, name in _TEXTS.items():
        size = len(metadata.get(key, "").encode())
        if size > MAX_TEXT_BYTES:
            raise BundleError(
                f"{name}: a text of {size / 2**20:.2f} MiB; expected at most "
                f"{MAX_TEXT_BYTES // 2**20} MiB"
            )


def _contract(text: str) -> PolicyContract:
    contract = PolicyContract.from_json(text)
    problems = contract_problems(contract)
    if problems:
        raise BundleError("contract: " + "; ".join(problems))
    return contract


def _golden(text: str, contract: PolicyContract) -> Golden:
    body = json.loads(text)
    actions, hidden = contract.action.dim, contract.hidden_size
    sizes = {"observation": contract.observation.dim, "mean": actions, "log_std": actions}
    if contract.state is not None:
        sizes |= {"hidden": hidden, "hidden_next": hidden}
    if not isinstance(body, dict) or set(cast("dict[str, Any]", body)) != set(sizes):
        raise BundleError(f"golden vectors: expected {', '.join(sizes)}")
    arrays = {k: np.array(cast("Any", body[k]), dtype=np.float32) for k in sizes}
    golden = Golden(**arrays)
    rows = golden.observation.shape[0] if golden.observation.ndim else 0
    for name, array in arrays.items():
        expected = (rows, sizes[name])
        if array.shape != expected or rows < 1:
            raise BundleError(f"golden vectors: {name} is {array.shape}; expected {expected}")
        if not np.isfinite(array).all():
            raise BundleError(f"golden vectors: {name} has numbers that are not finite")
    return golden
