"""A policy as one file: read once, checked whole, and the checked bytes are the bytes that run.

A bundle is an ONNX model (normaliser inside) whose metadata hold the contract and golden vectors.
:func:`read_bundle` answers with a bundle that works on this computer, or with one sentence.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from deploy.onnx_file import BundleError, read_onnx
from real.contract import Golden, PolicyContract
from real.errors import FerryError
from real.observation import POSE_SOURCES, SOURCES
from real.reach import POSE_NAMES

Float32 = NDArray[np.float32]

#: Metadata keys.
CONTRACT_KEY, GOLDEN_KEY, DIGEST_KEY = "ferry_contract", "ferry_golden", "ferry_digest"

#: Names in the graph.
INPUT, OUTPUTS = "observation", ("mean", "log_std")

#: Operator sets that ONNX Runtime 1.20 and later run; exports use one of them.
OPSETS = range(17, 24)

#: A policy network is under 1 MB; more than this is something else.
MAX_BYTES = 32 * 1024 * 1024

#: Largest difference from the golden vectors. Runtimes add up in different orders, which gives
#: differences of about 1e-6 for actions of order 1.
TOLERANCE = 1e-5


#: Most steps that an observation term may remember.
MAX_HISTORY = 1000

_GOLDEN_FIELDS = tuple(f.name for f in dataclasses.fields(Golden))


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
    """

    contract: PolicyContract
    golden: Golden
    model_bytes: bytes
    sha256: str
    digest: str
    opset: int
    source: str

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
            "takes": ", ".join(f"{n} {low:g}..{high:g} {u}" for n, low, high, u in ranges),
            "policy version": str(contract.policy_version),
            "commit": contract.git_sha,
            "config hash": contract.config_hash,
            **contract.provenance,
            "sha256": self.sha256,
        }


def read_bundle(path: str | Path) -> Bundle:
    """Read and verify a bundle.

    Raises:
        BundleError: anything is wrong with it, in one sentence that names the file.
    """
    file = Path(path)
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise BundleError(f"{file}: cannot be read: {error.strerror or error}") from error
    return parse_bundle(data, source=str(file))


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
    return json.dumps({k: v.tolist() for k, v in vars(golden).items()})


def open_session(data: bytes) -> Any:
    """An ONNX Runtime session on one thread: a small network gains nothing from more."""
    options: Any = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors come as exceptions; do not print them, too
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


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
    contract = _contract(file.metadata[CONTRACT_KEY])
    golden = _golden(file.metadata[GOLDEN_KEY], contract)
    _reproduce(data, contract, golden)
    return Bundle(
        contract=contract,
        golden=golden,
        model_bytes=data,
        sha256=hashlib.sha256(data).hexdigest(),
        digest=file.digest,
        opset=file.opset,
        source=source,
    )


# ------------------------------------------------------------------ contract


def _contract(text: str) -> PolicyContract:
    contract = PolicyContract.from_json(text)
    problems = contract_problems(contract)
    if problems:
        raise BundleError("contract: " + "; ".join(problems))
    return contract


def contract_problems(contract: PolicyContract) -> list[str]:
    """Everything that is wrong with a contract on its own, whatever robot it meets."""
    bad = [f"{name} is not a number" for name in not_numbers(contract)]
    names = [j.name for j in contract.actuated]

    def require(holds: bool, what: str) -> None:
        if not holds:
            bad.append(what)

    require(len(names) > 0, "it has no actuated joint")
    require(len(set(contract.joint_names)) == len(contract.joints), "a joint is listed twice")
    require(
        list(contract.action.joints) == names,
        "action.joints are not the actuated joints in their order",
    )
    require(0.0 < contract.control_dt_s <= 1.0, "control_dt_s is not in (0, 1] s")
    require(
        0.0 < contract.physics_dt_s <= contract.control_dt_s,
        "physics_dt_s is not in (0, control_dt_s]",
    )
    require(contract.base in {"floating", "fixed"}, "base is not floating or fixed")
    require(contract.safe_stop in {"damp", "hold"}, "safe_stop is not damp or hold")
    gains = [contract.damping_kd, *(g for j in contract.actuated for g in (j.kp, j.kd))]
    require(all(math.isfinite(g) and g >= 0.0 for g in gains), "a gain is negative or not finite")
    require(contract.normalizer_in_graph, "its normaliser is not in the graph")
    require(contract.hidden_size == 0, "it needs a hidden state, which this version cannot keep")
    command = contract.command
    require(
        len(command.low) == len(command.high) == len(command.units) == command.dim,
        "command names, ranges and units differ in number",
    )
    require(
        all(-1e6 < lo <= hi < 1e6 for lo, hi in zip(command.low, command.high, strict=False)),
        "a command range is empty or not finite",
    )
    bad += _observation_problems(contract)
    bad += _reach_problems(contract)
    return bad


def _reach_problems(contract: PolicyContract) -> list[str]:
    """What is wrong with the pose command, if there is one."""
    reads = any(term.source in POSE_SOURCES for term in contract.observation.terms)
    if contract.reach is None:
        return ["observation reads a pose error, but no pose is commanded"] if reads else []
    bad: list[str] = []
    if contract.command.names != POSE_NAMES:
        bad.append(f"it reaches for poses, but its command is not {', '.join(POSE_NAMES)}")
    chain = contract.reach.chain
    unknown = [joint.name for joint in chain.joints if joint.name not in contract.joint_names]
    if unknown or not chain.joints:
        bad.append(f"the way to {chain.link!r} has joints it does not know: {unknown}")
    numbers = [*chain.position, *chain.quat, contract.reach.share]
    for joint in chain.joints:
        numbers += [*joint.position, *joint.quat, *joint.axis]
    if not np.isfinite(numbers).all():
        bad.append(f"the way to {chain.link!r} has numbers that are not finite")
    return bad


def _observation_problems(contract: PolicyContract) -> list[str]:
    bad: list[str] = []
    for term in contract.observation.terms:
        source = SOURCES.get(term.source)
        if source is None:
            bad.append(f"observation reads {term.source!r}, which this version does not know")
            continue
        # The sizes need only the joints, which a contract has as a robot has.
        dim = source.dim(cast("Any", contract), contract.command.dim)
        if term.dim != dim:
            bad.append(f"observation term {term.name!r} has {term.dim} numbers; expected {dim}")
        if not 1 <= term.history <= MAX_HISTORY:
            bad.append(f"observation term {term.name!r}: history is {term.history}")
        if not math.isfinite(term.scale) or (term.clip is not None and not term.clip > 0.0):
            bad.append(f"observation term {term.name!r}: scale or clip is no usable number")
    if len(contract.observation.slices()) != len(contract.observation.terms):
        bad.append("an observation term is listed twice")
    return bad


# ------------------------------------------------------------------ golden vectors


def _golden(text: str, contract: PolicyContract) -> Golden:
    body = json.loads(text)
    if not isinstance(body, dict) or set(cast("dict[str, Any]", body)) != set(_GOLDEN_FIELDS):
        raise BundleError(f"golden vectors: expected {', '.join(_GOLDEN_FIELDS)}")
    arrays = {k: np.array(cast("Any", body[k]), dtype=np.float32) for k in _GOLDEN_FIELDS}
    golden = Golden(**arrays)
    rows = golden.observation.shape[0] if golden.observation.ndim else 0
    sizes = {"observation": contract.observation.dim, "mean": contract.action.dim}
    for name, array in arrays.items():
        expected = (rows, sizes.get(name, contract.action.dim))
        if array.shape != expected or rows < 1:
            raise BundleError(f"golden vectors: {name} is {array.shape}; expected {expected}")
        if not np.isfinite(array).all():
            raise BundleError(f"golden vectors: {name} has numbers that are not finite")
    return golden


def _reproduce(data: bytes, contract: PolicyContract, golden: Golden) -> None:
    """Refuse a graph that has other inputs or outputs, or gives other numbers on this computer."""
    session = open_session(data)
    inputs, outputs = session.get_inputs(), session.get_outputs()
    if [i.name for i in inputs] != [INPUT] or [o.name for o in outputs] != list(OUTPUTS):
        found = f"{[i.name for i in inputs]} -> {[o.name for o in outputs]}"
        raise BundleError(f"its graph is {found}; expected [{INPUT!r}] -> {list(OUTPUTS)}")
    sizes = [contract.observation.dim, contract.action.dim, contract.action.dim]
    for port, size in zip([*inputs, *outputs], sizes, strict=True):
        shape = port.shape
        if port.type != "tensor(float)" or len(shape) != 2 or shape[1] not in {size, None}:
            raise BundleError(
                f"{port.name!r} is {port.type} {shape}; expected tensor(float) [batch, {size}]"
            )
        if isinstance(shape[0], int):
            raise BundleError(f"{port.name!r} has a fixed batch of {shape[0]}; export it dynamic")
    # All at once and one alone: a batch size that was baked in shows in one of them.
    for rows in (slice(None), slice(0, 1)):
        mean, log_std = session.run(list(OUTPUTS), {INPUT: golden.observation[rows]})
        for name, got, expected in (
            ("mean", mean, golden.mean[rows]),
            ("log_std", log_std, golden.log_std[rows]),
        ):
            if got.shape != expected.shape:
                raise BundleError(f"{name} comes out as {got.shape}; expected {expected.shape}")
            error = float(np.abs(got - expected).max())
            if not error <= TOLERANCE:  # also where it is NaN
                raise BundleError(
                    f"this computer does not reproduce its golden vectors: {name} is off by "
                    f"{error:.2g}, allowed {TOLERANCE:.0e}"
                )


def not_numbers(contract: PolicyContract) -> list[str]:
    """Names of numbers that are NaN (never allowed) in a contract."""
    bad: list[str] = []
    for joint in contract.joints:
        for field in dataclasses.fields(joint):
            value = getattr(joint, field.name)
            if isinstance(value, float) and math.isnan(value) and joint.actuated:
                bad.append(f"{joint.name}.{field.name}")
    for key, values in (
        ("action.scale", contract.action.scale),
        ("action.offset", contract.action.offset),
    ):
        if not np.isfinite(values).all():
            bad.append(key)
    return bad
