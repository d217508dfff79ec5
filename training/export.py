"""From torch to a bundle: one ONNX file that gives the same numbers, or no file at all."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import nn

from deploy.bundle import (
    CONTRACT_KEY,
    DIGEST_KEY,
    GOLDEN_KEY,
    INPUT,
    OUTPUTS,
    TOLERANCE,
    golden_json,
    parse_bundle,
)
from deploy.onnx_file import read_onnx, with_metadata
from deploy.policy import OnnxPolicy
from real.contract import Golden, PolicyContract
from real.errors import FerryError
from sim.env import make_env
from training.checkpoint import Pointer
from training.contract import run_contract
from training.networks import ActorCritic
from training.normalizer import Normalizer
from training.run_config import RunConfig
from training.run_folder import load_policy

Float32 = NDArray[np.float32]

#: Operator set of the file: what torch's exporter writes natively and every ONNX Runtime from
#: 1.14 on runs.
OPSET = 18

#: So many recorded observations at least are compared.
MIN_OBSERVATIONS = 1000

#: So many of them travel in the bundle, spread over the recording.
GOLDEN_ROWS = 16

#: Batch sizes tried besides all at once: a size that was baked in shows in one of them.
BATCHES = (1, 2, 7)


class ExportError(FerryError):
    """A policy that must not leave: it would not be the same on the other side."""


@dataclass(frozen=True)
class ExportReport:
    """What was written.

    Attributes:
        path: the bundle.
        max_error: largest difference between torch and ONNX Runtime over all observations.
        size_bytes: of the file.
        sha256: of the file (hex).
        observations: how many were compared.
    """

    path: Path
    max_error: float
    size_bytes: int
    sha256: str
    observations: int


def export_policy(
    module: nn.Module, contract: PolicyContract, *, observations: Float32, path: str | Path
) -> ExportReport:
    """Write a policy as one bundle and prove that it gives the numbers that torch gives.

    Args:
        module: called with ``[N, D]`` raw observations it returns mean and log_std, ``[N, A]``
            each; its normaliser is ``obs_norm``, as in :class:`training.networks.ActorCritic`.
        contract: what it was trained for.
        observations: ``[K, D]`` recorded from the task, K >= 1000.
        path: file to write; it is written whole or not at all.

    Raises:
        ExportError: no normaliser or one that has seen nothing, too few observations, or torch and
            ONNX Runtime differ by more than 1e-5.
        BundleError: the result is no valid bundle, e.g. the contract does not fit the network.
    """
    _require_statistics(module)
    rows = observations.shape[0]
    if observations.shape != (rows, contract.observation.dim) or rows < MIN_OBSERVATIONS:
        raise ExportError(
            f"{observations.shape} recorded observations; expected at least {MIN_OBSERVATIONS} "
            f"of {contract.observation.dim} numbers"
        )
    if not np.isfinite(observations).all():
        raise ExportError("recorded observations hold numbers that are not finite")
    observations = np.ascontiguousarray(observations, dtype=np.float32)
    own = copy.deepcopy(module).cpu().eval()
    # Asked before the statistics lose their double precision, which the file does not have.
    mean, log_std = _ask(own, observations)
    frozen = own.float()
    chosen = np.linspace(0, rows - 1, GOLDEN_ROWS).round().astype(np.intp)
    golden = Golden(observations[chosen], mean[chosen], log_std[chosen])
    data = with_metadata(
        _graph(frozen, contract.observation.dim),
        {CONTRACT_KEY: contract.to_json(), GOLDEN_KEY: golden_json(golden)},
    )
    data = with_metadata(data, {DIGEST_KEY: read_onnx(data).digest})
    bundle = parse_bundle(data, source=str(path))
    error = _compare(OnnxPolicy(bundle), observations, mean=mean, log_std=log_std)
    if not error <= TOLERANCE:  # also where it is NaN
        raise ExportError(
            f"torch and ONNX Runtime differ by {error:.2g} over {rows} observations; "
            f"allowed {TOLERANCE:.0e}; nothing was written"
        )
    _write(Path(path), data)
    return ExportReport(Path(path), error, len(data), bundle.sha256, rows)


def export_run(run: str | Path, out: str | Path, *, which: Pointer = "best") -> ExportReport:
    """Write the policy of a run folder as a bundle.

    Args:
        run: the run folder.
        out: file to write.
        which: ``best`` or ``latest`` checkpoint.

    Raises:
        FerryError: see :func:`training.run_folder.load_policy` and :func:`export_policy`.
    """
    loaded = load_policy(run, which)
    contract = run_contract(loaded.config, loaded.meta)
    observations = record_observations(loaded.config, loaded.module)
    return export_policy(loaded.module, contract, observations=observations, path=out)


def record_observations(
    config: RunConfig, module: ActorCritic, *, rows: int = MIN_OBSERVATIONS
) -> Float32:
    """What the policy sees while it acts in its own, randomised task.

    Samples actions as in training, so that the recording spreads beyond the gait itself.

    Args:
        config: the task.
        module: the policy.
        rows: K, how many at least.

    Returns:
        ``[K, D]``.
    """
    worlds, every = 32, 4  # neighbouring steps look alike
    steps = every * -(-rows // worlds)
    noise = torch.Generator().manual_seed(config.training.seed)
    seen: list[Float32] = []
    env = make_env(config, num=worlds, threads=1, seed=config.training.seed)
    with contextlib.closing(env), torch.no_grad():
        obs = env.reset()["policy"]
        for step in range(steps):
            if step % every == 0:
                seen.append(obs)
            given = torch.from_numpy(obs)
            drawn = torch.randn((worlds, module.action_dim), generator=noise)
            action, _ = module.act(given, noise=drawn)
            obs = env.step(action.numpy()).obs["policy"]
    return np.concatenate(seen)


def _require_statistics(module: nn.Module) -> None:
    """A policy without its normaliser looks fine and walks into walls: never guess a name."""
    normalizer = getattr(module, "obs_norm", None)
    if not isinstance(normalizer, Normalizer):
        raise ExportError(
            f"{type(module).__name__} has no observation normaliser `obs_norm`; a bundle takes "
            "raw observations, so its statistics must be inside"
        )
    if float(normalizer.count) <= 0.0:
        raise ExportError(
            "the observation normaliser has seen no samples: this policy was never trained, or its "
            "statistics were lost"
        )


@torch.no_grad()
def _ask(module: nn.Module, observations: Float32) -> tuple[Float32, Float32]:
    mean, log_std = module(torch.from_numpy(observations))
    return mean.numpy().copy(), log_std.numpy().copy()


class _Named(nn.Module):
    """Puts a prefix before the names of parameters: one called ``log_std`` is an output, too."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.policy = module

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.policy(observation)


def _graph(module: nn.Module, dim: int) -> bytes:
    """The network as ONNX, without the notes that the exporter leaves (paths of this computer)."""
    batch = torch.export.Dim("batch", min=1, max=1 << 20)
    with _quiet():
        program = torch.onnx.export(
            _Named(module),
            # Three rows: a batch of 1 would be taken for a constant.
            (torch.zeros(3, dim),),
            input_names=[INPUT],
            output_names=list(OUTPUTS),
            dynamic_shapes=({0: batch},),
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


def _compare(
    policy: OnnxPolicy, observations: Float32, *, mean: Float32, log_std: Float32
) -> float:
    """Largest difference from torch, over all observations and several batch sizes."""
    worst = 0.0
    for size in (*BATCHES, observations.shape[0]):
        got = policy.infer(observations[:size])
        for found, expected in zip(got, (mean[:size], log_std[:size]), strict=True):
            # max() of numpy keeps NaN, Python's may lose it.
            worst = float(np.max([worst, np.abs(found - expected).max()]))
    return worst


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}_{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        raise ExportError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
