"""A policy that remembers, small enough to compute by hand: half of what was, and what is seen."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from deploy.bundle import CONTRACT_KEY, DIGEST_KEY, GOLDEN_KEY, golden_json
from deploy.onnx_file import read_onnx, with_metadata
from real.contract import Golden, PolicyContract
from real.memory import HiddenState
from tests.deploy.stand_bundle import stand_contract

#: Numbers that are remembered, and what they are when a robot begins: nothing else is like it.
H = 5
START = (0.5, -0.25, 0.0, 0.125, -0.0625)
FADE = 0.5


def memory_contract(**changes) -> PolicyContract:
    state = HiddenState("hidden", "hidden_next", START)
    return dataclasses.replace(stand_contract(), **{"hidden_size": H, "state": state, **changes})


def weights(contract: PolicyContract) -> tuple[np.ndarray, np.ndarray]:
    """``[D, H]`` and ``[H, A]``, so small that no action meets a limit."""
    rng = np.random.default_rng(3)
    into = 0.02 * rng.normal(size=(contract.observation.dim, H))
    out = 0.1 * rng.normal(size=(H, contract.action.dim))
    return into.astype(np.float32), out.astype(np.float32)


def answer(
    contract: PolicyContract, observation: np.ndarray, hidden: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and next state."""
    into, out = weights(contract)
    following = FADE * hidden + observation @ into
    return following @ out, following


def bundle_bytes(
    contract: PolicyContract | None = None, *, remembers: bool = True, **golden
) -> bytes:
    """next = FADE hidden + obs @ into, mean = next @ out; the state is left out if told so."""
    contract = memory_contract() if contract is None else contract
    size, actions = contract.observation.dim, contract.action.dim
    into, out = weights(contract)
    nodes = [
        helper.make_node("MatMul", ["observation", "into"], ["seen"]),
        helper.make_node("Mul", ["hidden", "fade"], ["kept"]),
        helper.make_node("Add", ["kept", "seen"], ["hidden_next"]),
        helper.make_node("MatMul", ["hidden_next", "out"], ["mean"]),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "spread"], ["log_std"]),
    ]
    inputs = {"observation": size, "hidden": H}
    outputs = {"mean": actions, "log_std": actions, "hidden_next": H}
    if not remembers:
        nodes[0] = helper.make_node("MatMul", ["observation", "into"], ["hidden_next"])
        del nodes[1:3], inputs["hidden"], outputs["hidden_next"]
    log_std = np.full((1, actions), -1.0, dtype=np.float32)
    constants = {"into": into, "out": out, "fade": np.float32([FADE]), "zero": np.float32([0])}
    graph = helper.make_graph(
        nodes,
        "memory",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", s]) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", s]) for n, s in outputs.items()],
        [
            onnx.numpy_helper.from_array(value, name)
            for name, value in {**constants, "spread": log_std}.items()
            if remembers or name != "fade"
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    rng = np.random.default_rng(0)
    observation = rng.normal(size=(4, size)).astype(np.float32)
    hidden = rng.normal(size=(4, H)).astype(np.float32) * remembers
    mean, following = answer(contract, observation, hidden)
    vectors = Golden(observation, mean, np.repeat(log_std, 4, axis=0), hidden, following)
    if contract.state is None:
        vectors = dataclasses.replace(vectors, hidden=None, hidden_next=None)
    vectors = dataclasses.replace(vectors, **golden)
    data = with_metadata(
        model.SerializeToString(),
        {CONTRACT_KEY: contract.to_json(), GOLDEN_KEY: golden_json(vectors)},
    )
    return with_metadata(data, {DIGEST_KEY: read_onnx(data).digest})


def write_memory_bundle(path: Path) -> Path:
    path.write_bytes(bundle_bytes())
    return path
