"""A run of a few updates on few worlds: enough for everything that follows training."""

from __future__ import annotations

from pathlib import Path

from training.run_config import RunConfig, load_run_config
from training.train import train

WORLDS, HORIZON, UPDATES = 16, 8, 3


def short_config(*overrides: str) -> RunConfig:
    return load_run_config(
        "a1_walk",
        [
            f"sim.worlds={WORLDS}",
            "sim.threads=1",
            f"training.horizon={HORIZON}",
            "training.network.hidden=[16]",
            "training.network.critic_hidden=[16]",
            "training.seed=3",
            *overrides,
        ],
    )


def short_run(folder: Path, *overrides: str) -> Path:
    """Train, scoring with a constant: the tests of evaluation score by themselves."""
    train(
        short_config(*overrides),
        folder,
        steps=WORLDS * HORIZON * UPDATES,
        evaluate=lambda module: {"score": 0.5},
    )
    return folder
