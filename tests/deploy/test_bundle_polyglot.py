"""A file that is one graph to a reader of ONNX and another one to ONNX Runtime: refused."""

from __future__ import annotations

import struct

import onnxruntime
import pytest

from deploy.bundle import BundleError
from deploy.golden_run import open_session
from deploy.onnx_file import read_onnx
from tests.deploy.test_bundle import GOOD, _field, network, refused

#: The runtime's own format begins with the place of its root table, of four bytes, and "ORTM". To
#: protobuf these are ir_version 9, producer_name "O", and a field 10, which ONNX does not have, of
#: 84 ("T") bytes. So the root is at 18 MB.
ROOT_BYTES = b"\x08\x09\x12\x01"
(ROOT,) = struct.unpack("<I", ROOT_BYTES)


def in_own_format(model, folder) -> bytes:
    """The model as ONNX Runtime writes it down for itself."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "model.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    return (folder / "model.ort").read_bytes()


def moved_root(data: bytes, body: int) -> bytes:
    """The root table for :data:`ROOT`, and nothing up to ``body``, where the data will be.

    A table begins with the distance to the list of its fields; the fields of this one are
    distances to what lies further behind.
    """
    (old,) = struct.unpack_from("<I", data)
    fields = old - struct.unpack_from("<i", data, old)[0]
    size, length = struct.unpack_from("<HH", data, fields)
    table = bytearray(data[old : old + length])
    for (place,) in struct.iter_unpack("<H", data[fields + 4 : fields + size]):
        if place:
            (distance,) = struct.unpack_from("<I", table, place)
            struct.pack_into("<I", table, place, old + distance + body - ROOT)
    table += bytes(-len(table) % 4)
    struct.pack_into("<i", table, 0, -len(table))
    table += data[fields : fields + size]
    return bytes(table).ljust(body - ROOT, b"\0")


def two_graphs(shown, hidden, folder) -> bytes:
    """ONNX with one graph, the runtime's own format with the other."""
    own = in_own_format(hidden, folder)
    start = ROOT_BYTES + b"ORTM" + bytes(83) + shown.SerializeToString()
    gap = bytes(ROOT - len(start) - 6)  # of the tag and length of the field that it is in
    return start + _field(30, gap + moved_root(own, ROOT + 64) + own)


@pytest.fixture(scope="module")
def polyglot(tmp_path_factory) -> bytes:
    folder = tmp_path_factory.mktemp("polyglot")
    return two_graphs(network(), network(outputs=("mean", "hidden")), folder)


def outputs(session) -> list[str]:
    return [port.name for port in session.get_outputs()]


def test_the_runtime_left_to_itself_runs_the_graph_that_no_reader_of_onnx_sees(polyglot):
    assert outputs(onnxruntime.InferenceSession(polyglot)) == ["mean", "hidden"]


def test_a_file_with_two_graphs_is_refused_by_what_the_runtime_knows_it_by(polyglot, tmp_path):
    for data in (polyglot, in_own_format(network(), tmp_path)):
        with pytest.raises(BundleError, match=r"own format \(ORT\); expected ONNX"):
            read_onnx(data)
    assert "own format (ORT); expected ONNX" in refused(polyglot)
    assert read_onnx(GOOD).opset == 18


def test_a_session_reads_onnx_whatever_else_is_in_the_file(polyglot, tmp_path):
    assert outputs(open_session(polyglot)) == ["mean", "log_std"]
    with pytest.raises(Exception, match="INVALID_PROTOBUF"):
        open_session(in_own_format(network(), tmp_path))
