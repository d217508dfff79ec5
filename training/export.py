"""From torch to a bundle: one ONNX file that gives the same numbers, or no file at all."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from deploy.actuator_part import ACTUATOR_KEY, actuator_text, why_outside
from deploy.bundle import (
    CONTRACT_KEY,
    DIGEST_KEY,
    GOLDEN_KEY,
    golden_json,
    parse_bundle,
)
from deploy.onnx_file import read_onnx, replace_file, with_metadata
from deploy.policy import OnnxPolicy
from deploy.reproduction import TOLERANCE
from real.contract import PolicyContract
from real.errors import FerryError
from sim.actuator_file import read_actuator
from sim.env import make_env
from training.checkpoint import Pointer
from training.contract import run_contract
from training.memory import Memory
from training.networks import ActorCritic
from training.normalizer import Normalizer
from training.onnx_graph import onnx_graph
from training.parity import (
    Answers,
    Recording,
    ask,
    ask_in_order,
    largest_difference,
    largest_drift,
)
from training.run_config import RunConfig
from training.run_folder import load_policy

Float32 = NDArray[np.float32]

#: So many recorded observations at least are compared.
MIN_OBSERVATIONS = 1000

#: So many of them travel in the bundle, spread over the recording.
GOLDEN_ROWS = 16

#: A policy with a memory is recorded for so many steps in a row: what it remembers has to get away
#: from where it began, and differences have to have the time to add up.
MEMORY_STEPS = 128
#: Worlds that are recorded side by side.
WORLDS = 32


class ExportError(FerryError):
    """A policy that must not leave: it would not be the same on the other side."""


@dataclass(frozen=True)
class ExportReport:
    """What was written.

    Attributes:
        path: the bundle.
        max_error: largest difference between torch and ONNX Runtime over all observations; with a
            memory also over all steps of lives that each has lived by itself.
        size_bytes: of the file.
        sha256: of the file (hex).
        observations: how many were compared.
        actuator: where the learned actuator is, for people; empty if there is none.
    """

    path: Path
    max_error: float
    size_bytes: int
    sha256: str
    observations: int
    actuator: str = ""


def export_policy(
    module: nn.Module,
    contract: PolicyContract,
    *,
    observations: Float32 | Recording,
    path: str | Path,
    actuator: bytes | None = None,
) -> ExportReport:
    """Write a policy as one bundle and prove that it gives the numbers that torch gives.

    Args:
        module: called with ``[N, D]`` raw observations it returns mean and log_std, ``[N, A]``
            each; its normaliser is ``obs_norm``, as in :class:`training.networks.ActorCritic`.
            With a memory it also takes and gives the hidden state, ``[N, H]``.
        contract: what it was trained for.
        observations: ``[K, D]`` recorded from the task, K >= 1000; with a memory a recording of
            as many, in the order of time.
        path: file to write; it is written whole or not at all.
        actuator: the learned actuator that the contract names. It travels inside if it can, see
            :mod:`deploy.actuator_part`; else the contract's hash of it has to do.

    Raises:
        ExportError: no normaliser or one that has seen nothing, too few observations, a memory
            that the contract does not know, or torch and ONNX Runtime differ by more than 1e-5.
        BundleError: the result is no valid bundle, e.g. the contract does not fit the network.
        FerryError: the file cannot be written.
    """
    _require_statistics(module)
    inside, note = _actuator_part(contract, actuator)
    recording = observations if isinstance(observations, Recording) else None
    _require_same_memory(module, contract, recording)
    if isinstance(observations, Recording):
        observations = observations.rows
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
    if recording is None or contract.state is None:
        asked = ask(own, observations)
    else:
        recording = recording.with_resets()
        asked = ask_in_order(own, recording, _initial(contract))
    golden = asked.golden(GOLDEN_ROWS)
    data = with_metadata(
        onnx_graph(own.float(), contract),
        {CONTRACT_KEY: contract.to_json(), GOLDEN_KEY: golden_json(golden), **inside},
    )
    data = with_metadata(data, {DIGEST_KEY: read_onnx(data).digest})
    bundle = parse_bundle(data, source=str(path))
    error = _error(OnnxPolicy(bundle), asked, recording)
    if not error <= TOLERANCE:  # also where it is NaN
        raise ExportError(
            f"torch and ONNX Runtime differ by {error:.2g} over {rows} observations; "
            f"allowed {TOLERANCE:.0e}; nothing was written"
        )
    replace_file(Path(path), data)
    return ExportReport(Path(path), error, len(data), bundle.sha256, rows, note)


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
    observations: Float32 | Recording
    if loaded.module.hidden_size:
        observations = record_steps(loaded.config, loaded.module, steps=MEMORY_STEPS)
    else:
        observations = record_observations(loaded.config, loaded.module)
    used = loaded.config.actuators
    actuator = None if used is None else read_actuator(used.network)
    return export_policy(
        loaded.module, contract, observations=observations, path=out, actuator=actuator
    )


def _actuator_part(contract: PolicyContract, data: bytes | None) -> tuple[dict[str, str], str]:
    """Metadata for the learned actuator, and where it will be, for people."""
    named = None if contract.world is None else contract.world.actuator
    if named is None:
        return {}, ""
    if data is None or not named.is_of(data):
        raise ExportError(
            f"the contract names the learned actuator {named.name} of sha256 {named.sha256}; "
            f"expected these bytes, found {'none' if data is None else 'others'}"
        )
    reason = why_outside(data)
    if reason:
        return {}, f"{named.name} stays outside, evaluations need --actuator: {reason}"
    return {ACTUATOR_KEY: actuator_text(data)}, f"{named.name} is inside"


def record_observations(
    config: RunConfig, module: ActorCritic, *, rows: int = MIN_OBSERVATIONS
) -> Float32:
    """What the policy sees while it acts in its own, randomised task; see :func:`record_steps`.

    Args:
        config: the task.
        module: the policy.
        rows: K, how many at least.

    Returns:
        ``[K, D]``.
    """
    every = 4  # neighbouring steps look alike
    recording = record_steps(config, module, steps=every * -(-rows // WORLDS))
    return np.concatenate(recording.observations[::every])


def record_steps(config: RunConfig, module: ActorCritic, *, steps: int) -> Recording:
    """What the policy sees while it acts in its own, randomised task, step after step.

    Samples actions as in training, so that the recording spreads beyond the gait itself.

    Args:
        config: the task.
        module: the policy.
        steps: T.
    """
    noise = torch.Generator().manual_seed(config.training.seed)
    memory = Memory(module, WORLDS)
    seen: list[Float32] = []
    ended: list[NDArray[np.bool_]] = []
    env = make_env(config, num=WORLDS, threads=1, seed=config.training.seed)
    with contextlib.closing(env), torch.no_grad():
        obs = env.reset()["policy"]
        for _ in range(steps):
            seen.append(obs)
            drawn = torch.randn((WORLDS, module.action_dim), generator=noise)
            mean = memory.mean(torch.from_numpy(obs))
            step = env.step(module.distribution.sample(mean, module.log_std, noise=drawn).numpy())
            obs = step.obs["policy"]
            ended.append(step.terminated | step.truncated)
            memory.forget(ended[-1])
    return Recording(np.stack(seen), np.stack(ended))


def _initial(contract: PolicyContract) -> Float32:
    return np.array(() if contract.state is None else contract.state.initial, dtype=np.float32)


def _error(policy: OnnxPolicy, asked: Answers, recording: Recording | None) -> float:
    """Largest difference from torch, NaN if any number is."""
    error = largest_difference(policy, asked)
    if recording is None or asked.hidden is None:
        return error
    initial = _initial(policy.contract)
    drift = largest_drift(policy, recording, expected=asked, initial=initial)
    return float(np.max([error, drift]))


def _require_same_memory(
    module: nn.Module, contract: PolicyContract, recording: Recording | None
) -> None:
    """A state that is left behind makes a policy that forgets at every step, and no error."""
    remembers = int(getattr(module, "hidden_size", 0))
    if remembers != contract.hidden_size:
        raise ExportError(
            f"the policy remembers {remembers} numbers, its contract says {contract.hidden_size}"
        )
    if remembers and (recording is None or recording.ended.shape[1] < 3):
        raise ExportError(
            "a policy with a memory is compared over lives: expected a Recording of at least 3 "
            "worlds"
        )


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
