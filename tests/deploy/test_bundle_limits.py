"""Bundles that would take the computer's memory or time, or crash the runtime: refused, not met."""

from __future__ import annotations

import dataclasses
import resource
import tracemalloc

import numpy as np
import pytest
from onnx import TensorProto, defs, helper, numpy_helper

from deploy import golden_run, reproduction
from deploy.bundle import (
    CONTRACT_KEY,
    GOLDEN_KEY,
    MAX_TEXT_BYTES,
    OPSETS,
    BundleError,
    parse_bundle,
)
from deploy.evaluation_stamp import EVALUATION_KEY
from deploy.onnx_file import OPERATORS, read_onnx
from tests.deploy.test_bundle import GOOD, WEIGHT, bundle_bytes, network, refused

#: Numbers of an array that has no place in the memory of a trial: 4 GiB.
HUGE = 2**30


def with_nodes(*nodes, initializers=(), adds="extra"):
    """The linear network with more nodes, of which one array is added to the mean, times zero."""
    model = network()
    graph = model.graph
    graph.node[0].output[0] = "plain"
    graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in initializers)
    more = [
        *nodes,
        helper.make_node("ReduceMean", [adds], ["one"], keepdims=0),
        helper.make_node("Mul", ["one", "zero"], ["none"]),
        helper.make_node("Add", ["plain", "none"], ["mean"]),
    ]
    for place, node in enumerate(more, start=1):
        graph.node.insert(place, node)
    return model


def numbers(*values):
    return np.array(values, dtype=np.int64)


def expanded():
    """An array that is a constant, so that the runtime makes it when it reads the file."""
    node = helper.make_node("Expand", ["zero", "many"], ["extra"])
    return with_nodes(node, initializers=[("many", numbers(HUGE))])


def expanded_by_the_observation():
    """One that it makes when it runs."""
    nodes = [
        helper.make_node("ReduceMean", ["plain"], ["seen"], keepdims=1),
        helper.make_node("Expand", ["seen", "many"], ["extra"]),
    ]
    return with_nodes(*nodes, initializers=[("many", numbers(HUGE, 1))])


def outer_products():
    """No operator that sounds like it: a product of a column and a row."""
    column, row = np.ones((2**15, 1), np.float32), np.ones((1, 2**15), np.float32)
    nodes = [
        helper.make_node("ReduceMean", ["plain"], ["seen"], keepdims=1),
        helper.make_node("Mul", ["column", "seen"], ["tall"]),
        helper.make_node("Mul", ["tall", "row"], ["extra"]),
    ]
    return with_nodes(*nodes, initializers=[("column", column), ("row", row)])


@pytest.mark.parametrize("model", [expanded, expanded_by_the_observation, outer_products])
def test_a_small_file_that_takes_gigabytes_is_refused_at_no_cost_to_the_reader(model):
    data = bundle_bytes(model())
    assert len(data) < 2**19
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "takes more than 512 MiB of memory, as no policy does" in refused(data)
    after_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after_kib - before_kib < 64 * 1024


def test_the_same_graphs_with_small_arrays_are_policies(monkeypatch):
    monkeypatch.setitem(globals(), "HUGE", 2**10)
    for model in (expanded, expanded_by_the_observation):
        assert parse_bundle(bundle_bytes(model()), source="x").contract


def grown(power):
    """An array of so many dimensions, each of the size of the batch."""
    nodes = [
        helper.make_node("Shape", ["plain"], ["rows"], start=0, end=1),
        helper.make_node("Concat", ["rows"] * power, ["many"], axis=0),
        helper.make_node("Expand", ["zero", "many"], ["extra"]),
    ]
    return with_nodes(*nodes)


def test_one_that_takes_little_in_a_small_batch_and_gigabytes_in_a_large_one_is_refused():
    message = refused(bundle_bytes(grown(4)))  # 128^4 numbers are 1 GiB
    assert "takes more than 512 MiB of memory, as no policy does" in message
    assert parse_bundle(bundle_bytes(grown(2)), source="x").contract


def test_one_that_gives_other_numbers_in_a_large_batch_is_refused():
    nodes = [
        helper.make_node("Shape", ["plain"], ["rows"], start=0, end=1),
        helper.make_node("Cast", ["rows"], ["count"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["count", "hundred"], ["more"]),
        helper.make_node("Relu", ["more"], ["wrong"]),
        helper.make_node("Add", ["plain", "wrong"], ["mean"]),
    ]
    model = network()
    model.graph.node[0].output[0] = "plain"
    for place, node in enumerate(nodes, start=1):
        model.graph.node.insert(place, node)
    model.graph.initializer.append(numpy_helper.from_array(np.float32([100]), "hundred"))
    assert "mean is off by 28, allowed 1e-05" in refused(bundle_bytes(model))


JSON_KEYS = {
    CONTRACT_KEY: "contract",
    GOLDEN_KEY: "golden vectors",
    EVALUATION_KEY: "evaluation stamp",
}


@pytest.mark.parametrize("key", JSON_KEYS)
def test_a_long_text_is_refused_before_it_becomes_many_times_as_much(key):
    data = bundle_bytes(**{key: "[" + "[]," * (MAX_TEXT_BYTES // 3) + "[]]"})
    read_onnx(data)  # what this takes is not what is measured
    tracemalloc.start()
    try:
        message = refused(data)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert f"{JSON_KEYS[key]}: a text of 4.00 MiB; expected at most 4 MiB" in message
    assert most < 5 * MAX_TEXT_BYTES  # as JSON it would take 25 times its size


@pytest.mark.parametrize("key", JSON_KEYS)
def test_a_text_of_brackets_within_brackets_is_refused(key):
    deep = bundle_bytes(**{key: "[" * MAX_TEXT_BYTES})
    assert "recursion" in refused(deep)


@pytest.mark.slow
def test_one_that_computes_for_ever_is_stopped_by_its_share_of_the_processor(monkeypatch):
    monkeypatch.setattr(reproduction, "CPU_S", 1)
    square = np.eye(1500, dtype=np.float32)
    nodes = [
        helper.make_node("ReduceMean", ["plain"], ["seen"], keepdims=1),
        helper.make_node("ReduceMean", ["seen"], ["number"], keepdims=0),
        helper.make_node("Mul", ["square", "number"], ["x0"]),
        *(helper.make_node("MatMul", [f"x{i}", "square"], [f"x{i + 1}"]) for i in range(2000)),
    ]
    data = bundle_bytes(with_nodes(*nodes, initializers=[("square", square)], adds="x2000"))
    assert "takes more than 1 s to compute" in refused(data)


def test_a_runtime_that_crashes_takes_nobody_with_it(monkeypatch, tmp_path):
    child = tmp_path / "crash.py"
    monkeypatch.setattr(golden_run, "__file__", str(child))
    for code, words in (
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
        ("raise SystemExit('no runtime here')", "ended: no runtime here"),
        ("import time; time.sleep(60)", "did not come out within 0.2 s"),
    ):
        child.write_text(code)
        if "sleep" in code:
            monkeypatch.setattr(reproduction, "PATIENCE_S", 0.2)
        assert words in refused(GOOD)


def test_what_lies_in_the_working_directory_is_not_taken_for_a_module(tmp_path, monkeypatch):
    for name in ("numpy", "json", "onnxruntime", "resource"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken')")
    monkeypatch.chdir(tmp_path)
    assert parse_bundle(GOOD, source="x").model_bytes == GOOD


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL])
def test_an_observation_cannot_decide_how_large_an_array_becomes(kind):
    made = helper.make_node("Cast", ["observation"], ["whole"], to=kind)
    model = network()
    model.graph.node.insert(0, made)
    with pytest.raises(BundleError, match="'Cast' makes other numbers than floats"):
        read_onnx(model.SerializeToString())


def test_a_cast_that_does_not_say_to_what_is_refused():
    model = network()
    model.graph.node.insert(0, helper.make_node("Cast", ["observation"], ["whole"]))
    with pytest.raises(BundleError, match="'Cast' makes other numbers than floats"):
        read_onnx(model.SerializeToString())


def powered(*nodes, initializers=()):
    """2 to the exponent, a whole number, is the size of an array."""
    more = [
        *nodes,
        helper.make_node("Pow", ["two", "exponent"], ["many"]),
        helper.make_node("Expand", ["zero", "many"], ["extra"]),
    ]
    return with_nodes(*more, initializers=[("two", numbers(2)), *initializers])


def test_an_observation_cannot_decide_it_as_an_exponent_either():
    nodes = [
        helper.make_node("ReduceMean", ["observation"], ["seen"], keepdims=1),
        helper.make_node("Squeeze", ["seen", "first"], ["exponent"]),
    ]
    model = powered(*nodes, initializers=[("first", numbers(0))])
    model.graph.output.append(helper.make_empty_tensor_value_info("extra"))
    session = golden_run.open_session(model.SerializeToString())
    for size in (0, 20):  # the runtime does make what the observation says
        observation = np.full((1, len(WEIGHT)), size, np.float32)
        assert session.run(["extra"], {"observation": observation})[0].shape == (2**size,)
    with pytest.raises(BundleError, match="'exponent', which is computed; expected a constant"):
        read_onnx(model.SerializeToString())


@pytest.mark.parametrize("what", ["an input", "a node"])
def test_an_exponent_that_is_computed_beside_being_a_constant_is_refused(what):
    model = powered(initializers=[("exponent", np.float32([3]))])
    if what == "an input":  # then the constant is only what it is where nobody gives another
        given = helper.make_tensor_value_info("exponent", TensorProto.FLOAT, [1])
        model.graph.input.append(given)
    else:
        model.graph.node.insert(0, helper.make_node("Neg", ["zero"], ["exponent"]))
    with pytest.raises(BundleError, match="'Pow' has the exponent 'exponent'"):
        read_onnx(model.SerializeToString())


def makes_whole_numbers_of_floats(schema) -> bool:
    """Whether an output may be of whole numbers, and an input of a type of its own of floats."""
    kinds = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}

    def of(port):
        return kinds.get(port.type_str, {port.type_str})

    return any(
        "tensor(int64)" in of(out)
        and out.type_str != given.type_str
        and "tensor(float)" in of(given)
        for out in schema.outputs
        for given in schema.inputs
    )


def test_no_other_operator_makes_whole_numbers_of_what_is_observed():
    found = {
        name
        for name in OPERATORS
        for opset in OPSETS
        if name != "Gelu" or opset >= 20  # there is none before
        if makes_whole_numbers_of_floats(defs.get_schema(name, opset, ""))
    }
    assert found == {"Cast", "Pow", "Shape"}  # a shape is that of an array, not what is in it


def test_constant_exponents_are_those_of_policies():
    three = np.float32([3])
    node = helper.make_node("Constant", [], ["exponent"], value=numpy_helper.from_array(three))
    for model in (powered(node), powered(initializers=[("exponent", three)])):
        assert parse_bundle(bundle_bytes(model), source="x").contract


@pytest.mark.parametrize("kind", [TensorProto.DOUBLE, TensorProto.FLOAT16])
def test_a_policy_may_compute_with_another_precision(kind):
    model = network()
    model.graph.node[0].output[0] = "plain"
    model.graph.node.insert(1, helper.make_node("Cast", ["plain"], ["other"], to=kind))
    model.graph.node.insert(2, helper.make_node("Cast", ["other"], ["mean"], to=TensorProto.FLOAT))
    vectors = None
    if kind == TensorProto.FLOAT16:
        vectors = _golden_of(lambda mean: mean.astype(np.float16).astype(np.float32))
    assert parse_bundle(bundle_bytes(model, vectors=vectors), source="x").contract


def _golden_of(change):
    from tests.deploy.test_bundle import golden

    made = golden()
    return dataclasses.replace(made, mean=change(made.observation @ WEIGHT))
