"""A policy with a memory in the asynchronous runtime: actors go on remembering."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.training.recall_env import RecallEnv
from tests.training.toy_run import toy_config
from training.checkpoint import newest_checkpoint
from training.networks import ActorCritic
from training.roles import Stream
from training.run_config import RunConfig
from training.train import train

pytestmark = pytest.mark.ray
pytest.importorskip("ray", reason="the `cluster` extra is not installed")

WORLDS, HORIZON, UPDATES = 16, 8, 12


def recall_env(config: RunConfig, stream: Stream) -> RecallEnv:
    return RecallEnv(WORLDS, seed=config.training.seed, stream=stream)


def remembered(policy: ActorCritic) -> dict[str, float]:
    return {"score": float(policy.hidden_size)}


def test_it_learns_from_fragments_is_scored_beside_and_resumed(tmp_path):
    config = toy_config(
        f"training.horizon={HORIZON}",
        "training.runtime.actors=2",
        "training.network.gru=6",
        "training.network.critic_gru=5",
    )
    for updates in (UPDATES, 2 * UPDATES):
        steps = updates * 2 * WORLDS * HORIZON
        train(
            config,
            tmp_path,
            steps=steps,
            resume=updates > UPDATES,
            evaluate=remembered,
            env_factory=recall_env,
            runtime="ray",
        )
        checkpoint = newest_checkpoint(tmp_path / "checkpoints")
        assert checkpoint.step == steps
    assert checkpoint.counters["version"] == 2 * UPDATES  # nothing was refused
    assert checkpoint.counters["best_score"] == 6.0
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    error = [line["ppo/ratio_error"] for line in lines if "ppo/ratio_error" in line]
    assert len(error) == 2 * UPDATES
    assert np.isfinite(error).all()
    assert min(error) < 1e-5  # fragments of the newest version: the stored state is the right one
