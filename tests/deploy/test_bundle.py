from __future__ import annotations

import dataclasses
import json
import os

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from deploy.bundle import (
    CONTRACT_KEY,
    DIGEST_KEY,
    GOLDEN_KEY,
    MAX_BYTES,
    Bundle,
    BundleError,
    golden_json,
    parse_bundle,
    read_bundle,
)
from deploy.contract_check import contract_problems
from deploy.onnx_file import read_onnx, with_metadata
from real.contract import Golden, PolicyContract
from real.errors import FerryError
from tests.deploy.stand_bundle import stand_contract

CONTRACT = stand_contract()
D, A = CONTRACT.observation.dim, CONTRACT.action.dim
RNG = np.random.default_rng(4)
WEIGHT = RNG.normal(size=(D, A)).astype(np.float32)
LOG_STD = RNG.normal(size=(1, A)).astype(np.float32)


def network(*, batch="N", outputs=("mean", "log_std"), operator="MatMul", domain=""):
    """mean = observation @ WEIGHT; log_std = LOG_STD for every row."""
    mean, log_std = outputs
    graph = helper.make_graph(
        [
            helper.make_node(operator, ["observation", "weight"], [mean], domain=domain),
            helper.make_node("Mul", [mean, "zero"], ["nothing"]),
            helper.make_node("Add", ["nothing", "spread"], [log_std]),
        ],
        "linear",
        [helper.make_tensor_value_info("observation", TensorProto.FLOAT, [batch, D])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [batch, A]) for n in outputs],
        [
            numpy_helper.from_array(WEIGHT, "weight"),
            numpy_helper.from_array(np.zeros(1, dtype=np.float32), "zero"),
            numpy_helper.from_array(LOG_STD, "spread"),
        ],
    )
    opsets = [helper.make_opsetid("", 18)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def golden(rows=5, **changes) -> Golden:
    observation = np.random.default_rng(1).normal(size=(rows, D)).astype(np.float32)
    made = Golden(observation, observation @ WEIGHT, np.repeat(LOG_STD, rows, axis=0))
    return dataclasses.replace(made, **changes)


def bundle_bytes(model=None, *, contract=CONTRACT, vectors=None, **metadata) -> bytes:
    model = network() if model is None else model
    data = model if isinstance(model, bytes) else model.SerializeToString()
    text = contract if isinstance(contract, str) else contract.to_json()
    entries = {CONTRACT_KEY: text, GOLDEN_KEY: golden_json(vectors or golden()), **metadata}
    data = with_metadata(data, {k: v for k, v in entries.items() if v is not None})
    return with_metadata(data, {DIGEST_KEY: read_onnx(data).digest})


GOOD = bundle_bytes()


def refused(data: bytes) -> str:
    with pytest.raises(BundleError) as error:
        parse_bundle(data, source="p.onnx")
    message = str(error.value)
    assert message.startswith("p.onnx: ")
    assert "\n" not in message
    return message


# ------------------------------------------------------------------ what passes


def test_a_good_bundle_gives_back_contract_golden_vectors_and_the_very_bytes(tmp_path):
    path = tmp_path / "p.onnx"
    path.write_bytes(GOOD)
    bundle = read_bundle(path)
    assert isinstance(bundle, Bundle)
    assert bundle.contract == CONTRACT
    assert np.array_equal(bundle.golden.observation, golden().observation)
    assert bundle.model_bytes == GOOD
    assert (bundle.opset, bundle.source) == (18, str(path))


def test_the_file_is_read_once_so_that_a_later_change_cannot_reach_the_runtime(tmp_path):
    path = tmp_path / "p.onnx"
    path.write_bytes(GOOD)
    bundle = read_bundle(path)
    path.write_bytes(b"something else")
    assert bundle.model_bytes == GOOD


def test_golden_vectors_survive_json_exactly():
    again = json.loads(golden_json(golden()))
    assert list(again) == ["observation", "mean", "log_std"]  # no state: not even an empty one
    for name, value in again.items():
        assert np.array_equal(np.array(value, dtype=np.float32), getattr(golden(), name))


# ------------------------------------------------------------------ files that are none


def test_a_missing_file_and_a_folder_are_refused_by_name(tmp_path):
    for path in (tmp_path / "none.onnx", tmp_path):
        with pytest.raises(BundleError, match="cannot be read") as error:
            read_bundle(path)
        assert str(path) in str(error.value)


def test_bundle_errors_are_user_errors():
    assert issubclass(BundleError, FerryError)


def test_empty_and_huge_files_are_refused_by_size():
    assert "empty" in refused(b"")
    assert "larger than" in refused(bytes(MAX_BYTES + 1))


def test_text_and_other_formats_are_refused():
    for data in (b"hello world", b"\x7fELF" + bytes(100), b"{}", bytes(1000), b"\xff" * 1000):
        refused(data)


def test_an_onnx_model_without_a_contract_is_told_how_bundles_are_made():
    message = refused(network().SerializeToString())
    assert "ferry_contract" in message
    assert "ferry export" in message


@pytest.mark.parametrize("key", [CONTRACT_KEY, GOLDEN_KEY])
def test_each_missing_part_is_named(key):
    assert key in refused(bundle_bytes(**{key: None}))


# ------------------------------------------------------------------ altered files


def test_a_changed_weight_is_noticed_even_where_outputs_hardly_change():
    data = bytearray(GOOD)
    place = GOOD.index(WEIGHT.tobytes()[:64])
    data[place] ^= 1  # the last bit of one weight
    assert "altered" in refused(bytes(data))


def test_a_changed_contract_is_noticed():
    assert "altered" in refused(GOOD.replace(b'"damping_kd": 3.0', b'"damping_kd": 9.0'))


def test_metadata_given_twice_is_refused():
    again = with_metadata(GOOD, {CONTRACT_KEY: CONTRACT.to_json()})
    assert "twice" in refused(again)


def test_every_truncation_is_refused_and_nothing_else_escapes():
    for size in np.linspace(0, len(GOOD) - 1, 400).astype(int):
        refused(GOOD[:size])


@pytest.mark.slow
@settings(max_examples=300)
@given(
    places=st.lists(st.integers(0, len(GOOD) - 1), min_size=1, max_size=5),
    value=st.integers(1, 255),
)
def test_every_bit_flip_is_refused_and_nothing_else_escapes(places, value):
    data = bytearray(GOOD)
    for place in set(places):
        data[place] ^= value
    refused(bytes(data))


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused_and_nothing_else_escapes(data):
    refused(data)


# Without the digest in the way, so that the later checks meet the damage, too.
@pytest.mark.slow
@pytest.mark.usefixtures("same_process")
@settings(max_examples=200)
@given(place=st.integers(0, len(GOOD) - 1), value=st.integers(1, 255))
def test_damage_under_a_fitting_digest_loads_a_working_bundle_or_is_refused(place, value):
    data = bytearray(GOOD[: GOOD.index(DIGEST_KEY.encode()) - 4])
    data[place % len(data)] ^= value
    try:
        stamped = with_metadata(bytes(data), {DIGEST_KEY: read_onnx(bytes(data)).digest})
        bundle = parse_bundle(stamped, source="x")
    except BundleError:
        return
    assert contract_problems(bundle.contract) == []


# ------------------------------------------------------------------ what must not be in it


#: What a tensor says whose numbers lie in another file.
ELSEWHERE = {"location": "weights.bin", "length": str(WEIGHT.nbytes)}


def without_weights(folder, monkeypatch):
    """A model in a folder that is now the current one, and its tensor, whose numbers lie there."""
    monkeypatch.chdir(folder)
    (folder / "weights.bin").write_bytes(WEIGHT.tobytes())
    model = network()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    return model, tensor


def test_weights_in_another_file_are_refused_although_the_runtime_would_read_them(
    tmp_path, monkeypatch
):
    model, tensor = without_weights(tmp_path, monkeypatch)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in ELSEWHERE.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    import onnxruntime

    onnxruntime.InferenceSession(model.SerializeToString())  # it does read them
    with pytest.raises(BundleError, match="another file"):
        read_onnx(model.SerializeToString())
    assert os.listdir(tmp_path) == ["weights.bin"]


def test_weights_in_another_file_are_refused_under_a_number_that_the_runtime_cuts_off(
    tmp_path, monkeypatch
):
    # A tag of 34 bits, of which the runtime reads 32: to it the fields are the usual ones.
    model, tensor = without_weights(tmp_path, monkeypatch)
    hidden = _field(14 | 1 << 30, TensorProto.EXTERNAL)
    for key, value in ELSEWHERE.items():
        entry = _field(1, key.encode()) + _field(2, value.encode())
        hidden += _field(13 | 1 << 30, entry)
    content = tensor.SerializeToString() + hidden
    del model.graph.initializer[0]
    graph = model.graph.SerializeToString() + _field(5, content)
    model.ClearField("graph")
    data = model.SerializeToString() + _field(7, graph)
    import onnxruntime

    onnxruntime.InferenceSession(data)  # it does read them
    with pytest.raises(BundleError, match="a number that none can have"):
        read_onnx(data)


def _field(number, value):
    """A field of a protobuf message: a number, or bytes."""
    whole = isinstance(value, int)
    out = bytearray()
    for n in (number << 3 | (0 if whole else 2), value if whole else len(value)):
        while n >= 0x80:
            out.append(n & 0x7F | 0x80)
            n >>= 7
        out.append(n)
    return bytes(out) + (b"" if whole else value)


@pytest.mark.parametrize("again", ["", "ai.onnx"])
def test_an_operator_set_that_is_named_twice_is_refused(again):
    model = network()
    model.opset_import.append(helper.make_opsetid(again, 21))
    with pytest.raises(BundleError, match="its operator set 2 times"):
        read_onnx(model.SerializeToString())


def test_operators_of_other_domains_are_refused_although_the_runtime_knows_them():
    model = network(operator="FusedMatMul", domain="com.microsoft")
    with pytest.raises(BundleError, match=r"unknown domain 'com\.microsoft'"):
        read_onnx(model.SerializeToString())
    # Also if only the node names it.
    del model.opset_import[1:]
    with pytest.raises(BundleError, match="unknown domain"):
        read_onnx(model.SerializeToString())


@pytest.mark.parametrize("operator", ["RandomNormalLike", "Dropout", "BatchNormalization", "If"])
def test_operators_that_could_answer_differently_each_time_are_refused(operator):
    with pytest.raises(BundleError, match=operator):
        read_onnx(network(operator=operator).SerializeToString())


def test_graphs_inside_operators_functions_and_sparse_weights_are_refused():
    model = network()
    inner = helper.make_graph([], "inner", [], [])
    model.graph.node[0].attribute.append(helper.make_attribute("then_branch", inner))
    with pytest.raises(BundleError, match="graph of its own"):
        read_onnx(model.SerializeToString())
    model = network()
    model.functions.add().name = "f"
    with pytest.raises(BundleError, match="functions"):
        read_onnx(model.SerializeToString())
    model = network()
    model.graph.sparse_initializer.add()
    with pytest.raises(BundleError, match="sparse"):
        read_onnx(model.SerializeToString())


def test_two_graphs_in_one_file_are_refused():
    data = network().SerializeToString()
    with pytest.raises(BundleError, match="2 graphs"):
        read_onnx(data + data)


def test_the_reader_finds_what_the_onnx_package_finds():
    model = network()
    helper.set_model_props(model, {"b": "2", "a": "ä"})
    found = read_onnx(model.SerializeToString())
    assert found.metadata == {"b": "2", "a": "ä"}
    assert found.operators == ("Add", "MatMul", "Mul")
    assert found.opset == 18


def test_added_metadata_is_read_by_the_onnx_package():
    data = with_metadata(network().SerializeToString(), {"key": "x" * 300})
    model = onnx.load_from_string(data)
    assert [(p.key, p.value) for p in model.metadata_props] == [("key", "x" * 300)]
    onnx.checker.check_model(model)


# ------------------------------------------------------------------ graph against contract


def test_an_operator_set_from_another_age_is_refused():
    model = network()
    model.opset_import[0].version = 7
    assert "operator set 7" in refused(bundle_bytes(model))


def test_other_names_of_outputs_are_refused():
    assert "'action'" in refused(bundle_bytes(network(outputs=("action", "log_std"))))


def test_outputs_in_another_order_are_refused():
    model = network()
    outputs = list(model.graph.output)[::-1]
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    assert "expected ['observation'] -> ['mean', 'log_std']" in refused(bundle_bytes(model))


def test_a_fixed_batch_is_refused():
    for batch in (1, 5):
        assert f"fixed batch of {batch}" in refused(bundle_bytes(network(batch=batch)))


def test_golden_vectors_that_this_computer_does_not_reproduce_are_refused():
    wrong = golden()
    mean = wrong.mean.copy()
    mean[3, 7] += 1e-3
    message = refused(bundle_bytes(vectors=golden(mean=mean)))
    assert "mean is off by 0.001" in message
    log_std = wrong.log_std.copy()
    log_std[4, 0] -= 0.5
    assert "log_std is off by 0.5" in refused(bundle_bytes(vectors=golden(log_std=log_std)))


def test_a_network_that_answers_nan_is_refused():
    model = network()
    weight = WEIGHT.copy()
    weight[0, 0] = np.nan
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "weight"))
    assert "off by nan" in refused(bundle_bytes(model))


@pytest.mark.parametrize(
    ("vectors", "words"),
    [
        (golden(observation=np.zeros((5, D - 1), dtype=np.float32)), "observation is"),
        (golden(mean=np.zeros((4, A), dtype=np.float32)), "mean is"),
        (golden(log_std=np.full((5, A), np.nan, dtype=np.float32)), "not finite"),
        (golden(rows=0), "expected"),
    ],
)
def test_golden_vectors_of_the_wrong_shape_or_not_finite_are_refused(vectors, words):
    assert words in refused(bundle_bytes(vectors=vectors))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"observation": "x"}', "[" * 100_000])
def test_golden_text_that_is_none_is_refused(text):
    refused(bundle_bytes(**{GOLDEN_KEY: text}))


# ------------------------------------------------------------------ contracts


def changed(**changes) -> PolicyContract:
    return dataclasses.replace(CONTRACT, **changes)


@pytest.mark.parametrize(
    ("contract", "words"),
    [
        (changed(control_dt_s=0.0), "control_dt_s"),
        (changed(control_dt_s=float("inf")), "control_dt_s"),
        (changed(physics_dt_s=1.0), "physics_dt_s"),
        (changed(damping_kd=float("nan")), "gain"),
        (changed(damping_kd=-1.0), "gain"),
        (changed(safe_stop="sit"), "safe_stop"),
        (changed(base="flying"), "base"),
        (changed(normalizer_in_graph=False), "normaliser"),
        (changed(hidden_size=64), "hidden"),
        (changed(joints=CONTRACT.joints[::-1]), "action.joints"),
        (changed(joints=(*CONTRACT.joints, CONTRACT.joints[0])), "listed twice"),
        (
            changed(action=dataclasses.replace(CONTRACT.action, scale=(float("nan"),) * A)),
            "action.scale",
        ),
        (
            changed(command=dataclasses.replace(CONTRACT.command, low=(2.0, -0.4, -1.0))),
            "command range",
        ),
        (
            changed(command=dataclasses.replace(CONTRACT.command, units=("m/s",))),
            "differ in number",
        ),
    ],
)
def test_a_contract_that_makes_no_sense_is_refused_and_says_why(contract, words):
    assert words in refused(bundle_bytes(contract=contract))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q_default": float("inf")}, "q_default is inf"),
        ({"q_min": float("inf")}, "range is empty: inf to"),
        ({"q_max": -9.0}, "range is empty"),
        ({"dq_max": -1.0}, "dq_max is -1.0; expected >= 0"),
        ({"tau_max": -float("inf")}, "tau_max is -inf; expected >= 0"),
    ],
)
def test_a_joint_whose_pose_or_limits_make_no_sense_is_refused_by_name(change, words):
    joints = list(CONTRACT.joints)
    joints[4] = dataclasses.replace(joints[4], **change)
    message = refused(bundle_bytes(contract=changed(joints=tuple(joints))))
    assert words in message
    assert joints[4].name in message


def with_term(**changes) -> PolicyContract:
    terms = list(CONTRACT.observation.terms)
    terms[3] = dataclasses.replace(terms[3], **changes)
    return changed(observation=dataclasses.replace(CONTRACT.observation, terms=tuple(terms)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source": "joint_positions"}, "does not know"),
        ({"dim": 11}, "11 numbers; expected 12"),
        ({"history": 0}, "history"),
        ({"history": 10**9}, "history"),
        ({"scale": float("nan")}, "scale"),
        ({"clip": -1.0}, "clip"),
        ({"name": "command"}, "listed twice"),
    ],
)
def test_an_observation_that_cannot_be_built_is_refused(change, words):
    assert words in refused(bundle_bytes(contract=with_term(**change)))


def test_every_problem_of_a_contract_comes_at_once():
    assert len(contract_problems(changed(control_dt_s=0.0, safe_stop="sit", base="x"))) >= 3


@pytest.mark.parametrize("text", ["", "{}", "null", "[]", "[" * 100_000, '{"schema_version": 99}'])
def test_contract_text_that_is_none_is_refused(text):
    refused(bundle_bytes(contract=text))


@pytest.mark.parametrize(
    ("key", "value"),
    [("control_dt_s", "0.02"), ("joints", 3), ("observation", []), ("provenance", 1)],
)
def test_a_contract_of_wrong_types_is_refused(key, value):
    body = {**json.loads(CONTRACT.to_json()), key: value}
    refused(bundle_bytes(contract=json.dumps(body)))


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "policy.onnx")
    with pytest.raises(BundleError, match="is a pipe; expected a file"):
        read_bundle(tmp_path / "policy.onnx")
