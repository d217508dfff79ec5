"""From torch to the bytes of an ONNX model: the graph alone, as torch's exporter writes it."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import onnx
import torch
from torch import nn

from deploy.ports import inputs_of, outputs_of
from real.contract import PolicyContract

#: Operator set of the file: what torch's exporter writes natively and every ONNX Runtime from
#: 1.14 on runs.
OPSET = 18


def onnx_graph(module: nn.Module, contract: PolicyContract) -> bytes:
    """A policy as an ONNX model, without the exporter's notes (paths of this computer).

    Args:
        module: in single precision, see :func:`training.export.export_policy`.
        contract: names and sizes of what goes in and comes out.
    """
    batch = torch.export.Dim("batch", min=1, max=1 << 20)
    takes = inputs_of(contract)
    with _quiet():
        program = torch.onnx.export(
            _Named(module),
            # Three rows: a batch of 1 would be taken for a constant.
            tuple(torch.zeros(3, size) for size in takes.values()),
            input_names=list(takes),
            output_names=list(outputs_of(contract)),
            dynamic_shapes=(tuple({0: batch} for _ in takes),),
            opset_version=OPSET,
            external_data=False,
            dynamo=True,
            verbose=False,
        )
    assert program is not None  # always, with dynamo
    model = program.model_proto
    model.ClearField("metadata_props")
    model.ClearField("doc_string")
    _forget(model.graph)
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString(deterministic=True)


def _forget(graph: Any) -> None:
    graph.ClearField("metadata_props")
    graph.ClearField("doc_string")
    for items in (graph.node, graph.initializer, graph.input, graph.output, graph.value_info):
        for item in items:
            item.ClearField("doc_string")
            item.ClearField("metadata_props")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Torch's exporter prints its progress and warns of packages that nobody needs here."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


class _Named(nn.Module):
    """Puts a prefix before the names of parameters: one called ``log_std`` is an output, too."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.policy = module

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.policy(*given)
