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


def policy_digest(policy: ActorCritic) -> str:
    """SHA-256 over names, types, shapes and bytes of all parameters and buffers."""
    sha = hashlib.sha256()
    for name, tensor in sorted(policy.state_dict().items()):
        array = tensor.detach().cpu().numpy()
        sha.update(f"{name} {array.dtype} {array.shape}\n".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()


@torch.no_grad()
def make_probe(
    policy: ActorCritic, obs: NDArray[np.float32], *, critic_obs: NDArray[np.float32]
) -> Arrays:
    """Ask the policy about some observations and keep the answers.

    Args:
        policy: who is asked.
        obs: ``[K, D]`` raw observations.
        critic_obs: ``[K, C]``.

    Returns:
        Arrays for a checkpoint: ``obs``, ``critic_obs``, ``mean [K, A]``, ``log_std [A]``,
        ``value [K]``.
    """
    device = policy.log_std.device
    mean = policy.mean(torch.from_numpy(obs).to(device))
    value = policy.value(torch.from_numpy(critic_obs).to(device))
    return {
        "obs": obs.copy(),
        "critic_obs": critic_obs.copy(),
        "mean": mean.cpu().numpy().copy(),
        "log_std": policy.log_std.cpu().numpy().copy(),
        "value": value.cpu().numpy().copy(),
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
    answers = make_probe(policy, probe["obs"], critic_obs=probe["critic_obs"])
    for name in ("mean", "log_std", "value"):
        stored, found = probe[name], answers[name]
        if stored.shape != found.shape or not np.allclose(
            found, stored, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=False
        ):
            raise FerryError(
                f"{source}: on {len(stored)} stored observations the policy's {name} is not what "
                "it was when it was stored; refusing to act"
            )
