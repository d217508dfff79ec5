"""The learned actuator inside a bundle: the one that the contract names, whole, or a refusal."""

from __future__ import annotations

import base64
from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from deploy.actuator_part import MAX_BYTES, actuator_text, read_actuator_part, why_outside
from deploy.bundle import BundleError, read_bundle
from deploy.contract_check import contract_problems
from real.world import ActuatorFile, TrainingWorld
from tests.deploy.stand_bundle import stand_contract, write_bundle


def network(*, outside: bool = False) -> bytes:
    """A small model; its weights in another file if asked for."""
    weight = onnx.numpy_helper.from_array(np.arange(3, dtype=np.float32), "w")
    if outside:
        onnx.external_data_helper.set_external_data(weight, "elsewhere.bin")
        weight.ClearField("raw_data")
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 3]) for n in ("x", "y")]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"])], "n", ports[:1], ports[1:], [weight]
    )
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()


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
