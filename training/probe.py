"""Proof that a policy was loaded and not built anew: a digest and answers to stored questions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from real.errors import FerryError
from training.networks import ActorCritic

Arrays = dict[str, NDArray[Any]]

#: Observations kept with a checkpoint.
PROBE_ROWS = 8
#: Largest difference of an answer [absolute and relative]. Other processors and thread counts
#: round differently; a policy that is not the stored one is off by orders of magnitude more.
TOLERANCE = 1e-4


_MEMORIES = ("hidden", "critic_hidden")


def policy_digest(policy: ActorCritic) -> str:
    """SHA-256 over names, types, shapes and bytes of all parameters and buffers."""
    sha = hashlib.sha256()
    for name, tensor in sorted(policy.state_dict().items()):
        array = tensor.detach().cpu().numpy()
        sha.update(f"{name} {array.dtype} {array.shape}\n".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()


def _hidden(rows: int, policy: ActorCritic) -> Arrays:
    """Memories to ask with, ``[K, H]`` and ``[K, .]``: full of numbers, as they are in use."""
    rng = np.random.default_rng(0)
    sizes = {"hidden": policy.hidden_size, "critic_hidden": policy.critic_hidden_size}
    return {
        name: rng.uniform(-1.0, 1.0, (rows, size)).astype(np.float32)
        for name, size in sizes.items()
        if size
    }


@torch.no_grad()
def make_probe(
    policy: ActorCritic,
    obs: NDArray[np.float32],
    *,
    critic_obs: NDArray[np.float32],
    memories: Mapping[str, NDArray[np.float32]] | None = None,
) -> Arrays:
    """Ask the policy about some observations and keep the answers.

    Args:
        policy: who is asked.
        obs: ``[K, D]`` raw observations.
        critic_obs: ``[K, C]``.
        memories: ``hidden [K, H]`` and ``critic_hidden [K, .]`` to ask with, where policy or
            critic has a memory; some that are always the same if None.

    Returns:
        Arrays for a checkpoint: ``obs``, ``critic_obs``, ``mean [K, A]``, ``log_std [A]``,
        ``value [K]``, and for a policy with a memory the memories and ``next_hidden [K, H]``.
    """
    kept = _hidden(len(obs), policy) if memories is None else dict(memories)
    device = policy.log_std.device
    none = torch.empty(len(obs), 0, device=device)
    hidden, by_critic = (
        torch.from_numpy(kept[name]).to(device) if name in kept else none for name in _MEMORIES
    )
    mean, following = policy.advance(torch.from_numpy(obs).to(device), hidden)
    value, _ = policy.advance_critic(torch.from_numpy(critic_obs).to(device), by_critic)
    if policy.hidden_size:
        kept["next_hidden"] = following.cpu().numpy().copy()
    return {
        "obs": obs.copy(),
        "critic_obs": critic_obs.copy(),
        "mean": mean.cpu().numpy().copy(),
        "log_std": policy.log_std.cpu().numpy().copy(),
        "value": value.cpu().numpy().copy(),
        **kept,
    }


def verify_policy(
    policy: ActorCritic, *, digest: str, probe: Mapping[str, NDArray[Any]], source: str
) -> None:
    """Refuse a policy that is not the one that was stored.

    Args:
        policy: as loaded.
        digest: :func:`policy_digest` of the stored one.
        probe: :func:`make_probe` of the stored one.
        source: what to call it in messages.

    Raises:
        FerryError: the digest differs, or an answer does.
    """
    if policy_digest(policy) != digest:
        raise FerryError(
            f"{source}: the weights in memory are not those that were stored; refusing to act"
        )
    memories = {name: probe[name] for name in _MEMORIES if name in probe}
    answers = make_probe(policy, probe["obs"], critic_obs=probe["critic_obs"], memories=memories)
    for name in set(answers) - {"obs", "critic_obs", *_MEMORIES}:
        stored, found = probe[name], answers[name]
        if stored.shape != found.shape or not np.allclose(
            found, stored, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=False
        ):
            raise FerryError(
                f"{source}: on {len(stored)} stored observations the policy's {name} is not what "
                "it was when it was stored; refusing to act"
            )
