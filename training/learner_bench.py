"""The learner's speed, and that of others' PPO on the same machine in the same run."""

from __future__ import annotations

import logging
import os
import statistics
import time
from typing import Any

import numpy as np
import torch

from real.rollout import Rollout
from training.learner import Learner
from training.learner_peers import PEERS, PeerMissing, Sizes, Update
from training.networks import NetworkConfig
from training.ppo import Ppo
from training.ppo_config import PpoConfig
from training.prepare import Preparation
from training.progress import ProgressFn, silent
from training.staging import DeviceName, chosen_device

log = logging.getLogger(__name__)

#: An update, and the number of torch's threads that it is timed with.
Contender = tuple[Update, int]


def bench_learner(
    *,
    seconds: float = 20.0,
    sizes: Sizes | None = None,
    compiled: bool = False,
    progress: ProgressFn | None = None,
) -> dict[str, Any]:
    """Sample passes per second of an update: epochs times samples over its time.

    Ours is timed whole, from rollouts to the snapshot: values, targets and statistics included,
    which peers compute elsewhere. ``like_for_like`` has the epochs alone. Learners take turns, so
    that a machine that slows down slows all of them, and the median of the rounds counts. Peers
    run with the number of threads of torch that is best for them, one or all CPUs.

    Args:
        seconds: how long to measure, about [s].
        sizes: of batch and networks; those of A1, 6144 samples and 256-128-64, if None.
        compiled: measure torch.compile too; it needs a C++ compiler and about a minute before.
        progress: told how far it is.

    Returns:
        ``sample_passes_per_s``, ``peers`` (name -> the same, None where it is not installed),
        ``ratio_to_best_peer`` (None without peers), ``device``, ``skipped`` (name -> why) and
        ``switches``: our rate with ``ppo.bf16`` and with ``ppo.compile`` (None if not asked for);
        ``like_for_like``: rate and ratio of our epochs alone, which is what peers are timed for;
        ``gpu_sample_passes_per_s``: ours on a GPU, None where there is none;
        ``rates``: what `ferry plan --rates` reads of it, for the GPU where there is one.
    """
    sizes = sizes or Sizes()
    before = torch.get_num_threads()
    theirs, skipped = _theirs(sizes)
    contenders = _ours_in_all_ways(sizes, compiled=compiled) | theirs
    try:
        times = _take_turns(contenders, seconds=seconds, progress=progress or silent)
    finally:
        torch.set_num_threads(before)
    passes = sizes.epochs * sizes.samples
    rates = {name: passes / statistics.median(values) for name, values in times.items()}
    return _result(rates, sizes, skipped)


def _ours_in_all_ways(sizes: Sizes, *, compiled: bool) -> dict[str, Contender]:
    """Our updates, by name; each on one thread."""
    contenders = {
        "ours": (_ours(sizes), 1),
        "epochs": (_epochs(sizes), 1),
        "bf16": (_ours(sizes, bf16=True), 1),
    }
    if torch.cuda.is_available():
        contenders["gpu"] = (_ours(sizes, device="cuda"), 1)
    if compiled:
        contenders["compile"] = (_ours(sizes, compile=True), 1)
    return contenders


def _theirs(sizes: Sizes) -> tuple[dict[str, Contender], dict[str, str]]:
    """Updates of peers, by name and number of threads; and why which of them are missing."""
    contenders: dict[str, Contender] = {}
    skipped: dict[str, str] = {}
    for name, make in PEERS.items():
        try:
            update = make(sizes)
        except PeerMissing as error:
            skipped[name] = str(error)
            log.warning("no comparison with %s: %s", name, error)
            continue
        for threads in sorted({1, os.cpu_count() or 1}):
            contenders[f"{name}/{threads}"] = (update, threads)
    return contenders, skipped


def _result(rates: dict[str, float], sizes: Sizes, skipped: dict[str, str]) -> dict[str, Any]:
    """What :func:`bench_learner` returns, from sample passes per second of all contenders."""
    peers = {
        name: max((r for n, r in rates.items() if n.startswith(f"{name}/")), default=None)
        for name in PEERS
    }
    best = max((rate for rate in peers.values() if rate is not None), default=None)
    return {
        "sample_passes_per_s": rates["ours"],
        "peers": peers,
        "ratio_to_best_peer": _ratio(rates["ours"], best),
        "device": "cpu",
        "skipped": skipped,
        "like_for_like": {
            "sample_passes_per_s": rates["epochs"],
            "ratio_to_best_peer": _ratio(rates["epochs"], best),
        },
        "gpu_sample_passes_per_s": rates.get("gpu"),
        "switches": {name: rates.get(name) for name in ("bf16", "compile")},
        # s/sample = epochs / (sample passes/s): every sample is passed over once in each epoch
        "rates": {"update_s_per_sample": sizes.epochs / rates.get("gpu", rates["ours"])},
    }


def table_rows(result: dict[str, Any]) -> dict[str, str]:
    """What :func:`bench_learner` found, for a table on the terminal."""
    rows = {"ours": f"{result['sample_passes_per_s']:,.0f} on {result['device']}"}
    for name, rate in result["peers"].items():
        absent = f"not compared: {result['skipped'].get(name, 'not measured')}"
        rows[name] = absent if rate is None else f"{rate:,.0f}"
    best, like = result["ratio_to_best_peer"], result["like_for_like"]
    rows["over the better peer"] = "-" if best is None else f"{best:.2f} (goal >= 1.30)"
    epochs, ratio = like["sample_passes_per_s"], like["ratio_to_best_peer"]
    rows["epochs alone"] = f"{epochs:,.0f}" + ("" if ratio is None else f", {ratio:.2f} of it")
    gpu = result["gpu_sample_passes_per_s"]
    rows["on a GPU"] = "not measured" if gpu is None else f"{gpu:,.0f}"
    for switch, rate in result["switches"].items():
        rows[f"with {switch}"] = "not measured" if rate is None else f"{rate:,.0f}"
    return rows


def _take_turns(
    contenders: dict[str, Contender], *, seconds: float, progress: ProgressFn
) -> dict[str, list[float]]:
    """Seconds per update; the first round warms up and does not count, three do at least."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    start, rounds = time.perf_counter(), 0
    while rounds < 4 or time.perf_counter() - start < seconds:
        for name, (update, threads) in contenders.items():
            torch.set_num_threads(threads)
            begin = time.perf_counter()
            update()
            if rounds:
                times[name].append(time.perf_counter() - begin)
        rounds += 1
        progress(min(seconds, time.perf_counter() - start), seconds)
    return times


def _ratio(rate: float, best: float | None) -> float | None:
    return None if best is None else rate / best


def _learner(sizes: Sizes, *, device: DeviceName = "cpu", **switches: bool) -> Learner:
    return Learner(
        sizes.obs_dim,
        sizes.obs_dim,
        action_dim=sizes.action_dim,
        network=NetworkConfig(hidden=sizes.hidden, critic_hidden=sizes.hidden),
        ppo=PpoConfig.model_validate(
            {"epochs": sizes.epochs, "minibatches": sizes.minibatches, **switches}
        ),
        seed=0,
        device=chosen_device(device),
    )


def _ours(sizes: Sizes, *, device: DeviceName = "cpu", **switches: bool) -> Update:
    """A whole update, from a rollout to the snapshot."""
    learner = _learner(sizes, device=device, **switches)
    rollout = made_up_rollout(learner, sizes)
    return lambda: learner.update([rollout])


def _epochs(sizes: Sizes) -> Update:
    """The part of an update that has gradients."""
    learner = _learner(sizes)
    prepare = Preparation(learner.policy, learner.config)
    batch = prepare([made_up_rollout(learner, sizes)]).batch
    generator = torch.Generator().manual_seed(0)
    ppo = Ppo(learner.policy, learner.config, generator=generator)
    return lambda: ppo.update(batch)


@torch.no_grad()
def made_up_rollout(learner: Learner, sizes: Sizes) -> Rollout:
    """A rollout of random observations and rewards, with actions and densities of the policy."""
    rng = np.random.default_rng(0)
    steps, num = sizes.steps, sizes.worlds
    obs = rng.normal(size=(steps + 1, num, sizes.obs_dim)).astype(np.float32)
    noise = rng.normal(size=(steps, num, sizes.action_dim)).astype(np.float32)
    device = learner.policy.log_std.device
    actions, log_probs = learner.policy.act(
        torch.from_numpy(obs[:-1]).to(device), noise=torch.from_numpy(noise).to(device)
    )
    ended = rng.random((steps, num))
    index = np.argwhere(ended < 0.005)
    return Rollout(
        obs=obs,
        critic_obs=obs,
        actions=actions.cpu().numpy(),
        log_probs=log_probs.cpu().numpy(),
        rewards=rng.normal(size=(steps, num)).astype(np.float32),
        terminated=(ended >= 0.005) & (ended < 0.01),
        truncated=ended < 0.005,
        final_index=index,
        final_critic_obs=rng.normal(size=(len(index), sizes.obs_dim)).astype(np.float32),
        policy_version=learner.version,
        actor_id="made-up",
    )
