"""ONNX graphs of actuators: a linear filter for each joint, and a network that all joints share.

Inputs and output are those of :mod:`sim.actuator_file`. Nodes and weights are written by hand, so
neither needs a training library, and each runs on any number of worlds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from sim.actuator_file import INPUTS, OUTPUT

Array = NDArray[np.float64]

#: Of the models written here; every ONNX Runtime that Ferry runs with knows it.
_OPSET, _IR = 17, 8


def linear_model(error: Array, velocity: Array, *, double: bool = False) -> onnx.ModelProto:
    """torque[n, a] = sum_h error[n, h, a] E[h, a] + velocity[n, h, a] V[h, a].

    Args:
        error: ``[H, A]`` E [N m/rad], oldest sample first.
        velocity: ``[H, A]`` V [N m s/rad].
        double: computed in 64 bits; in 32, as usual, if False.
    """
    history, joints = error.shape
    nodes = [helper.make_node("Mul", [name, f"{name}_weight"], [f"{name}_part"]) for name in INPUTS]
    nodes += [
        helper.make_node("Add", [f"{name}_part" for name in INPUTS], ["parts"]),
        helper.make_node("ReduceSum", ["parts", "over_history"], [OUTPUT], keepdims=0),
    ]
    weights = {"error_weight": error, "velocity_weight": velocity}
    return _model(
        nodes, weights, {"over_history": [1]}, history=history, joints=joints, double=double
    )


def shared_model(layers: Sequence[tuple[Array, Array]], *, joints: int) -> onnx.ModelProto:
    """One network for every joint: 2 H numbers of it to its torque.

    x = (H errors, H velocities), oldest first; x <- softsign(x W + b) but for the last layer,
    whose one output is the torque. Softsign, x / (1 + |x|), is what Hwangbo et al. (2019) use.

    Args:
        layers: ``(W [in, out], b [out])`` each; first in 2 H, last out 1.
        joints: A.
    """
    history = len(layers[0][0]) // 2
    nodes = [
        helper.make_node("Concat", list(INPUTS), ["samples"], axis=1),  # [N, 2 H, A]
        helper.make_node("Transpose", ["samples"], ["x0"], perm=[0, 2, 1]),  # [N, A, 2 H]
    ]
    weights: dict[str, Array] = {}
    last = len(layers) - 1
    for k, (matrix, bias) in enumerate(layers):
        weights |= {f"w{k}": matrix, f"b{k}": bias}
        nodes.append(helper.make_node("MatMul", [f"x{k}", f"w{k}"], [f"m{k}"]))
        nodes.append(helper.make_node("Add", [f"m{k}", f"b{k}"], [f"a{k}"]))
        if k < last:
            nodes.append(helper.make_node("Softsign", [f"a{k}"], [f"x{k + 1}"]))
    nodes.append(helper.make_node("Squeeze", [f"a{last}", "the_one"], [OUTPUT]))
    return _model(nodes, weights, {"the_one": [2]}, history=history, joints=joints, double=False)


def _model(
    nodes: Sequence[Any],
    weights: Mapping[str, Array],
    axes: Mapping[str, list[int]],
    *,
    history: int,
    joints: int,
    double: bool,
) -> onnx.ModelProto:
    kind = TensorProto.DOUBLE if double else TensorProto.FLOAT
    dtype = np.float64 if double else np.float32
    constants = {name: w.astype(dtype) for name, w in weights.items()}
    constants |= {name: np.array(at, dtype=np.int64) for name, at in axes.items()}
    graph = helper.make_graph(
        list(nodes),
        "actuator",
        [helper.make_tensor_value_info(name, kind, ["N", history, joints]) for name in INPUTS],
        [helper.make_tensor_value_info(OUTPUT, kind, ["N", joints])],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
    )
    opset = [helper.make_opsetid("", _OPSET)]
    return helper.make_model(graph, opset_imports=opset, ir_version=_IR, producer_name="ferry")
