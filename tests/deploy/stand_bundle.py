"""A policy that stands: zero output, so that every target is the default pose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from deploy.actuator_part import ACTUATOR_KEY, actuator_text
from deploy.bundle import CONTRACT_KEY, DIGEST_KEY, GOLDEN_KEY, golden_json
from deploy.onnx_file import read_onnx, with_metadata
from real.action import ActionSpec
from real.contract import CommandLimits, Golden, PolicyContract
from real.observation import POSE_SOURCES, SOURCES, ObservationSpec, make_term
from real.spec import RobotSpec, load_robot

LIMITS = CommandLimits(
    names=("vx", "vy", "wz"),
    low=(-0.8, -0.4, -1.0),
    high=(1.2, 0.4, 1.0),
    units=("m/s", "m/s", "rad/s"),
)


def stand_contract(robot: RobotSpec | None = None, *, history: int = 1) -> PolicyContract:
    """The contract of a policy for A1, or for another robot."""
    spec = load_robot("a1") if robot is None else robot
    terms = [
        make_term(name, spec, command_dim=3, history=history if name == "joint_pos" else 1)
        for name in SOURCES
        if name not in POSE_SOURCES
    ]
    return PolicyContract.of_robot(
        spec,
        observation=ObservationSpec(terms=tuple(terms)),
        action=ActionSpec.from_robot(spec, clip=4.0),
        command=LIMITS,
        policy_version=7,
    )


def write_bundle(
    path: Path,
    contract: PolicyContract | None = None,
    *,
    gain: float = 0.0,
    actuator: bytes | str | None = None,
) -> Path:
    """A bundle whose mean is ``gain`` times the first A numbers of the observation.

    ``actuator`` is the learned actuator inside it, or the text that stands for it.
    """
    contract = stand_contract() if contract is None else contract
    size, actions = contract.observation.dim, contract.action.dim
    weight = np.zeros((size, actions), dtype=np.float32)
    weight[:actions, :actions] = gain * np.eye(actions, dtype=np.float32)
    log_std = np.full((1, actions), -1.0, dtype=np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["observation", "weight"], ["mean"]),
            helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
            helper.make_node("Add", ["nothing", "spread"], ["log_std"]),
        ],
        "stand",
        [helper.make_tensor_value_info("observation", TensorProto.FLOAT, ["N", size])],
        [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", actions])
            for n in ("mean", "log_std")
        ],
        [
            onnx.numpy_helper.from_array(weight, "weight"),
            onnx.numpy_helper.from_array(np.zeros(1, dtype=np.float32), "zero"),
            onnx.numpy_helper.from_array(log_std, "spread"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    observation = np.random.default_rng(0).normal(size=(3, size)).astype(np.float32)
    golden = Golden(observation, observation @ weight, np.repeat(log_std, 3, axis=0))
    data = with_metadata(
        model.SerializeToString(),
        {CONTRACT_KEY: contract.to_json(), GOLDEN_KEY: golden_json(golden)},
    )
    if actuator is not None:
        text = actuator if isinstance(actuator, str) else actuator_text(actuator)
        data = with_metadata(data, {ACTUATOR_KEY: text})
    path.write_bytes(with_metadata(data, {DIGEST_KEY: read_onnx(data).digest}))
    return path


def other_gain(contract: PolicyContract, kp: float) -> PolicyContract:
    """The same contract with another gain at the fourth joint."""
    joints = list(contract.joints)
    joints[3] = replace(joints[3], kp=kp)
    return replace(contract, joints=tuple(joints))
