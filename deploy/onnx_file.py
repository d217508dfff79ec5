"""What an ONNX file holds, read from its bytes before any runtime sees them.

ONNX Runtime happily follows references to other files in the working directory, also when it is
given bytes, and accepts its own private operators. So a bundle is first read here, by the rules of
the protobuf wire format (https://protobuf.dev/programming-guides/encoding) and the field numbers of
``onnx.proto3``, and refused unless it is one self-contained file of ordinary operators. This also
spares a robot computer the ``onnx`` package.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from real.errors import FerryError

#: Operators of a feed-forward or recurrent network. None of them draws random numbers, has a
#: training mode or contains another graph, so the same input always gives the same output.
OPERATORS = frozenset(
    {"Add", "Cast", "Clip", "Concat", "Constant", "Div", "Elu", "Erf", "Exp", "Expand", "Flatten"}
    | {"GRU", "Gather", "Gelu", "Gemm", "HardSwish", "Identity", "LSTM", "LayerNormalization"}
    | {"LeakyRelu", "MatMul", "Max", "Min", "Mul", "Neg", "Pow", "Reciprocal", "ReduceMean", "Relu"}
    | {"Reshape", "Selu", "Shape", "Sigmoid", "Slice", "Softplus", "Softsign", "Split", "Sqrt"}
    | {"Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze"}
)

#: What ``Cast`` may make, by their numbers in ``onnx.proto3``: float, float16, double, bfloat16. A
#: whole number that is made of an observation could decide how large an array becomes, and then no
#: trial would tell how much memory a policy takes. The one other operator above that makes whole
#: numbers of floats is ``Pow``, of a whole base: its exponents must be constant.
FLOATS = frozenset({1, 10, 11, 16})

#: Domains of the standard operators; the empty name is the usual spelling.
DOMAINS = frozenset({"", "ai.onnx"})

#: What stands in bytes 4 to 8 of ONNX Runtime's own format, by which it knows it.
_OTHER_FORMAT = b"ORTM"

#: Metadata written after the digest, which therefore does not cover it.
STAMPS = frozenset({"ferry_digest", "ferry_evaluation"})


class BundleError(FerryError):
    """A file that is no bundle this version can trust; one sentence says why."""


@dataclass(frozen=True)
class OnnxFile:
    """What was found in a file that passed.

    Attributes:
        opset: version of the standard operators.
        operators: names in use, sorted.
        metadata: the file's own key-value pairs.
        digest: SHA-256 (hex) of everything but the metadata of :data:`STAMPS`.
    """

    opset: int
    operators: tuple[str, ...]
    metadata: dict[str, str]
    digest: str


def read_onnx(data: bytes, *, operators: frozenset[str] | None = OPERATORS) -> OnnxFile:
    """Look through the bytes of an ONNX file.

    Args:
        data: the whole file.
        operators: what its graph may consist of; None for any standard operator.

    Raises:
        BundleError: not an ONNX file, also one that the runtime takes for another format, or one
            with external data, unknown operators or domains, nested graphs, functions, or a
            metadata key or operator set given twice.
    """
    # A file can be both, with a graph in each: the runtime would then run one that nobody read.
    if data[4:8] == _OTHER_FORMAT:
        raise BundleError("it is in ONNX Runtime's own format (ORT); expected ONNX")
    opsets: list[tuple[str, int]] = []
    metadata: dict[str, str] = {}
    graphs: list[memoryview] = []
    digest = hashlib.sha256()
    view = memoryview(data)
    for number, value, raw in _fields(view):
        if number == 7:  # ModelProto.graph
            graphs.append(_message(value))
        elif number == 8:  # .opset_import
            opsets.append((_text(value, 1), _number(value, 2)))
        elif number == 14:  # .metadata_props
            key, text = _text(value, 1), _text(value, 2)
            if key in metadata:
                raise BundleError(f"the metadata has {key!r} twice")
            metadata[key] = text
            if key in STAMPS:
                continue
        elif number in {20, 25}:  # .training_info, .functions
            raise BundleError("it contains functions or training steps, which no policy needs")
        digest.update(raw)
    if len(graphs) != 1:
        raise BundleError(f"it is no ONNX model: it has {len(graphs)} graphs; expected 1")
    foreign = sorted({domain for domain, _ in opsets} - DOMAINS)
    if foreign:
        raise BundleError(f"it needs operators of the unknown domain {foreign[0]!r}")
    if not opsets:
        raise BundleError("it is no ONNX model: it names no operator set")
    if len(opsets) > 1:  # both names of DOMAINS are of the same one
        raise BundleError(f"it names its operator set {len(opsets)} times")
    found = _check_graph(graphs[0], operators)
    return OnnxFile(
        opset=opsets[0][1],
        operators=tuple(sorted(found)),
        metadata=metadata,
        digest=digest.hexdigest(),
    )


def with_metadata(data: bytes, entries: dict[str, str]) -> bytes:
    """The same model with metadata added; protobuf allows fields to be appended."""
    out = bytearray(data)
    for key, text in entries.items():
        entry = b"".join(_delimited(n, t.encode()) for n, t in ((1, key), (2, text)))
        out += _delimited(14, entry)
    return bytes(out)


def without_metadata(data: bytes, key: str) -> bytes:
    """The same model without the metadata of this key."""
    out = bytearray()
    for number, value, raw in _fields(memoryview(data)):
        if number != 14 or _text(value, 1) != key:
            out += raw
    return bytes(out)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, with the folders it is in.

    Raises:
        FerryError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}_{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        raise FerryError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


# ------------------------------------------------------------------ the graph


def _check_graph(graph: memoryview, allowed: frozenset[str] | None) -> set[str]:
    operators: set[str] = set()
    constants: set[str] = set()
    computed: set[str] = set()
    exponents: set[str] = set()
    for number, value, _ in _fields(graph):
        if number == 1:  # GraphProto.node
            name = _check_node(_message(value), allowed)
            operators.add(name)
            made = constants if name == "Constant" else computed
            made.update(_texts(value, 2))  # NodeProto.output
            if name == "Pow":
                exponents.update(_texts(value, 1)[1:])  # .input: base and exponent
        elif number == 5:  # .initializer
            _check_tensor(_message(value))
            constants.add(_text(value, 8))
        elif number == 11:  # .input; what is one beside being a constant may be given, too
            computed.add(_text(value, 1))
        elif number == 15:  # .sparse_initializer
            raise BundleError("it contains sparse weights, which are not supported")
    found = sorted(exponents - (constants - computed))
    if allowed is not None and found:
        raise BundleError(
            f"operator 'Pow' has the exponent {found[0]!r:.60}, which is computed; expected a "
            "constant"
        )
    return operators


def _check_node(node: memoryview, allowed: frozenset[str] | None) -> str:
    name, domain = "", ""
    made: set[int] = set()
    for number, value, _ in _fields(node):
        if number == 4:  # NodeProto.op_type
            name = _decoded(value)
        elif number == 7:  # .domain
            domain = _decoded(value)
        elif number == 5:  # .attribute
            if _text(value, 1) == "to":
                made.add(_number(value, 3))
            for inner, content, _ in _fields(_message(value)):
                if inner in {6, 11}:  # AttributeProto.g, .graphs
                    raise BundleError(f"operator {name!r} contains a graph of its own")
                if inner in {5, 10}:  # .t, .tensors
                    _check_tensor(_message(content))
                elif inner in {22, 23}:  # .sparse_tensor, .sparse_tensors
                    raise BundleError(f"operator {name!r} contains sparse numbers")
    if domain not in DOMAINS:
        raise BundleError(f"operator {name!r} is of the unknown domain {domain!r}")
    if allowed is not None and name not in allowed:
        raise BundleError(f"operator {name!r} is none that a policy needs")
    if allowed is not None and name == "Cast" and not (made and made <= FLOATS):
        raise BundleError("operator 'Cast' makes other numbers than floats, which no policy needs")
    return name


def _check_tensor(tensor: memoryview) -> None:
    for number, value, _ in _fields(tensor):
        # TensorProto.external_data, and .data_location other than 0 (inside).
        if number == 13 or (number == 14 and value != 0):
            raise BundleError("its weights lie in another file; a bundle is one file")


# ------------------------------------------------------------------ the wire format

_Value = int | memoryview


def _fields(data: memoryview) -> Iterator[tuple[int, _Value, memoryview]]:
    """Number, value and raw bytes of every field of a message; views, not copies."""
    position, size = 0, len(data)
    while position < size:
        start = position
        tag, position = _varint(data, position)
        # Protobuf's readers cut a tag off at 32 bits: a longer one would be another field to them.
        if not 8 <= tag < 1 << 32:
            raise BundleError("it is no ONNX model: a field in it has a number that none can have")
        kind = tag & 7
        if kind == 0:
            value, position = _varint(data, position)
            yield tag >> 3, value, data[start:position]
            continue
        if kind == 2:
            length, position = _varint(data, position)
        elif kind in {1, 5}:
            length = 8 if kind == 1 else 4
        else:
            raise BundleError("it is no ONNX model: its bytes are not a protobuf message")
        end = position + length
        if end > size:
            raise BundleError("it is no ONNX model, or it is cut short")
        yield tag >> 3, data[position:end], data[start:end]
        position = end


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise BundleError("it is no ONNX model, or it is cut short")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise BundleError("it is no ONNX model: a number in it is too long")


def _delimited(number: int, content: bytes) -> bytes:
    return _encode(number << 3 | 2) + _encode(len(content)) + content


def _encode(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _message(value: _Value) -> memoryview:
    if isinstance(value, int):
        raise BundleError("it is no ONNX model: a number where a message is expected")
    return value


def _decoded(value: _Value) -> str:
    try:
        return str(_message(value), "utf-8")
    except UnicodeDecodeError:
        raise BundleError("it is no ONNX model: a text in it is not UTF-8") from None


def _text(value: _Value, number: int) -> str:
    """The text of one field of a message, empty if absent; of several, the last counts."""
    found = _texts(value, number)
    return found[-1] if found else ""


def _texts(value: _Value, number: int) -> list[str]:
    """The texts of all fields of this number."""
    return [_decoded(v) for n, v, _ in _fields(_message(value)) if n == number]


def _number(value: _Value, number: int) -> int:
    found = [v for n, v, _ in _fields(_message(value)) if n == number]
    last = found[-1] if found else 0
    if not isinstance(last, int):
        raise BundleError("it is no ONNX model: a message where a number is expected")
    return last
