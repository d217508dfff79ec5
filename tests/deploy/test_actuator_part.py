"""The learned actuator inside a bundle: the one that the contract names, whole, or a refusal."""

from __future__ import annotations

import base64
import json
import resource
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from deploy import golden_run
from deploy.actuator_part import MAX_BYTES, actuator_text, read_actuator_part, why_outside
from deploy.bundle import BundleError, read_bundle
from deploy.contract_check import contract_problems
from real.world import ACTUATOR_CARD_KEY, ActuatorFile, TrainingWorld
from tests.deploy.stand_bundle import stand_contract, write_bundle

#: H and A of the card.
HISTORY, JOINTS = 2, ["a", "b", "c"]
CARD = {"history": HISTORY, "joints": JOINTS}


def network(
    *,
    outside: bool = False,
    more: Sequence[onnx.NodeProto] = (),
    card: object = CARD,
    worlds: int | str = "N",
    kind: int = TensorProto.FLOAT,
    names: Sequence[str] = ("error", "velocity", "torque"),
) -> bytes:
    """A small learned actuator: torque = sum over the history of weight error + weight velocity.

    Its weights are in another file if asked for; ``more`` makes ``add`` of ``sum``, which is ``[N,
    A]``, for the torque.
    """
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    weight = onnx.numpy_helper.from_array(np.arange(3).astype(dtype), "w")
    axis = onnx.numpy_helper.from_array(np.array([1]), "axis")
    if outside:
        onnx.external_data_helper.set_external_data(weight, "elsewhere.bin")
        weight.ClearField("raw_data")
    sizes = [[worlds, HISTORY, 3], [worlds, HISTORY, 3], None]
    ports = [helper.make_tensor_value_info(n, kind, s) for n, s in zip(names, sizes, strict=True)]
    nodes = [
        helper.make_node("Add", list(names[:2]), ["both"]),
        helper.make_node("Mul", ["both", "w"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted", "axis"], ["sum"], keepdims=0),
        *(more or [helper.make_node("Identity", ["sum"], ["add"])]),
        helper.make_node("Add", ["sum", "add"], [names[2]]),
    ]
    graph = helper.make_graph(nodes, "n", ports[:2], ports[2:], [weight, axis])
    opset = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=9)
    if card is not None:
        text = card if isinstance(card, str) else json.dumps(card)
        helper.set_model_props(model, {ACTUATOR_CARD_KEY: text})
    return model.SerializeToString()


NETWORK = network()


def trained_with(data: bytes | None, *, name: str = "motors.onnx"):
    used = None if data is None else ActuatorFile.of(name, data)
    return replace(stand_contract(), world=TrainingWorld({}, {}, actuator=used))


@pytest.mark.slow
def test_it_comes_out_as_it_went_in_and_people_are_told(tmp_path):
    contract = trained_with(NETWORK)
    inside = read_bundle(write_bundle(tmp_path / "a.onnx", contract, actuator=NETWORK))
    assert inside.actuator == NETWORK
    assert inside.contract == contract
    assert inside.rows()["learned actuator"].startswith("inside, sha256 ")
    named = read_bundle(write_bundle(tmp_path / "b.onnx", contract))
    assert named.actuator is None
    assert "named by its hash" in named.rows()["learned actuator"]
    servos = read_bundle(write_bundle(tmp_path / "c.onnx", trained_with(None)))
    assert servos.rows()["trained on"] == "a plane; servos"
    old = read_bundle(write_bundle(tmp_path / "d.onnx", stand_contract()))
    assert old.rows()["trained on"].startswith("not said")


@pytest.mark.parametrize(
    ("contract", "part", "words"),
    [
        (trained_with(None), NETWORK, "a learned actuator that its contract does not name"),
        (stand_contract(), NETWORK, "a learned actuator that its contract does not name"),
        (trained_with(NETWORK), network() + b"\0", "not the motors.onnx that its contract names"),
        (trained_with(NETWORK), "?!", "its learned actuator is not readable"),
        (trained_with(NETWORK), actuator_text(NETWORK)[:-2], "is not readable"),
        (trained_with(b"none"), b"none", "its learned actuator motors.onnx: it is no ONNX model"),
        (trained_with(network(outside=True)), network(outside=True), "lie in another file"),
        (trained_with(bytes(MAX_BYTES + 1)), bytes(MAX_BYTES + 1), "are more than 1 MiB"),
    ],
)
def test_another_one_or_none_at_all_is_refused_in_one_sentence(tmp_path, contract, part, words):
    with pytest.raises(BundleError, match=words) as error:
        read_bundle(write_bundle(tmp_path / "p.onnx", contract, actuator=part))
    assert "\n" not in str(error.value)


NAMING = trained_with(NETWORK)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(NETWORK) - 1), st.integers(1, 255)), min_size=1))
def test_damage_to_it_is_refused_however_little(places):
    data = bytearray(NETWORK)
    for place, value in dict(places).items():
        data[place] ^= value
    with pytest.raises(BundleError, match="another sha256"):
        read_actuator_part(actuator_text(bytes(data)), NAMING)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80))
def test_a_text_that_is_not_it_is_one_kind_of_error(text):
    with pytest.raises(BundleError):
        read_actuator_part(text, NAMING)


def test_names_that_lead_elsewhere_and_hashes_that_are_none_are_problems_of_the_contract():
    for name in ("../motors.onnx", "a/b", "", ".hidden", "a\nb", "x" * 101, "ä", "é" * 90):
        used = ActuatorFile(name, ActuatorFile.of("m", NETWORK).sha256)
        contract = replace(stand_contract(), world=TrainingWorld({}, {}, actuator=used))
        (problem,) = contract_problems(contract)
        assert "world.actuator.name" in problem
        # What the exporter writes is plain, whatever the file was called.
        assert contract_problems(trained_with(NETWORK, name=name or "m")) == []
    used = ActuatorFile("m.onnx", "12")
    contract = replace(stand_contract(), world=TrainingWorld({}, {}, actuator=used))
    assert contract_problems(contract) == [
        "world.actuator.sha256 is no SHA-256 in hexadecimal digits"
    ]


def test_what_may_travel_is_small_and_whole():
    assert why_outside(NETWORK) == ""
    assert "MiB" in why_outside(bytes(MAX_BYTES + 1))
    assert "another file" in why_outside(network(outside=True))
    assert base64.b64decode(actuator_text(NETWORK)) == NETWORK


def constant(name: str, *values: float) -> onnx.NodeProto:
    """Whole numbers are int64."""
    array = np.array(values)
    kind = np.float32 if array.dtype == np.float64 else np.int64
    value = onnx.numpy_helper.from_array(array.astype(kind))
    return helper.make_node("Constant", [], [name], value=value)


ZERO = constant("zero", 0.0)
EXPAND = helper.make_node("Expand", ["zero", "sizes"], ["large"])
ADD = [
    helper.make_node("ReduceSum", ["large"], ["one"]),
    helper.make_node("Squeeze", ["one"], ["add"]),
]
#: 2^30 numbers, which are 4 GiB, made when it is loaded.
HUGE = [ZERO, constant("sizes", 2**30), EXPAND, *ADD]
#: Of N worlds N^4 numbers.
GROWN = [
    ZERO,
    helper.make_node("Shape", ["sum"], ["rows"], end=1),
    helper.make_node("Concat", ["rows"] * 4, ["sizes"], axis=0),
    EXPAND,
    *ADD,
]
INFINITE = [ZERO, helper.make_node("Div", ["sum", "zero"], ["add"])]
WIDE = [ZERO, constant("sizes", 2, 1, 3), helper.make_node("Expand", ["zero", "sizes"], ["add"])]

NO_MEMORY = "takes more than 512 MiB of memory, as no learned actuator does"


@pytest.mark.parametrize("more", [HUGE, GROWN], ids=["loaded", "many worlds"])
def test_one_that_takes_gigabytes_is_refused_at_no_cost_to_the_reader(tmp_path, more):
    data = network(more=more)
    contract = trained_with(data)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BundleError, match=rf"its learned actuator motors\.onnx: it {NO_MEMORY}"):
        read_bundle(write_bundle(tmp_path / "p.onnx", contract, actuator=data))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 64 * 1024
    assert NO_MEMORY in why_outside(data)  # so that it is not put inside either


def test_one_that_computes_for_ever_or_crashes_is_stopped(monkeypatch, tmp_path):
    child = tmp_path / "child.py"
    monkeypatch.setattr(golden_run, "__file__", str(child))
    child.write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert why_outside(NETWORK) == "the process that tried it was killed by SIGSEGV"
    child.write_text("import os, signal; os.kill(os.getpid(), signal.SIGXCPU)")
    assert why_outside(NETWORK) == "it takes more than 20 s to compute, as no learned actuator does"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (network(names=("error", "speed", "torque")), "['error', 'speed'] -> ['torque']"),
        (network(names=("error", "velocity", "force")), "expected ['error', 'velocity'] -> "),
        (network(kind=TensorProto.INT32), "it takes tensor(int32), tensor(int32); expected all of"),
        (network(card=None), "do not say 'history' and 'joints'; found null"),
        (network(card={"joints": JOINTS}), "do not say 'history' and 'joints'"),
        (network(card="{"), "found {"),
        (network(card="[" * 100_000), "found [[["),
        (network(card={"history": 10**12, "joints": JOINTS}), NO_MEMORY),
        (network(card={**CARD, "history": 3}), "INVALID_ARGUMENT"),
        (network(worlds=1), "INVALID_ARGUMENT"),
        (network(more=INFINITE), "torque for inputs of zeros, [1, 2, 3], is not finite"),
        (network(more=WIDE), "or has the shape [2, 1, 3]; expected [1, 3]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_that_evaluations_could_not_run_is_refused(data, words):
    assert words in why_outside(data)


def test_one_in_64_bits_may_travel_too():
    assert why_outside(network(kind=TensorProto.DOUBLE)) == ""
