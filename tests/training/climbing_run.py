"""A run on the A1 whose ranges grow and whose worlds climb: all of its short episodes are good.

Other processes can make its worlds by name; those leave a note of what their actor began with.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sim.env import VecEnv
from sim.terrain_levels import NAME
from tests.training.growing_run import SMALL as GROWING
from tests.training.growing_run import run_env
from training.roles import Stream, actor_id
from training.run_config import RunConfig, load_run_config

SMALL = (
    *GROWING,
    "randomize={friction: '=U(0.4, 1.2)'}",
    # Levels enough that no world passes them all, and draws nothing but the levels it is at.
    "terrain={levels: 50, tile_m: 1.6, platform_m: 1.2, cell_m: 0.2, border_m: 0.4, tiles: "
    "{hill: {shape: slope, hardest: -0.1}, flat: {shape: flat}}, "
    "curriculum: {measure: reward/alive, up_at: 0.1, down_at: -1.0}}",
    "episode_s=0.1",
    "training.symmetry.enabled=false",
    "training.runtime.worlds=null",
)


def climbing_config(*overrides: str) -> RunConfig:
    return load_run_config("a1_walk", [*SMALL, *overrides])


def levels(env: VecEnv) -> np.ndarray:
    """``[N, K]`` that each world meets next on each tile."""
    return np.asarray(env.state_dict()["starts.terrain.level"])


def began(env: VecEnv) -> np.ndarray:
    """``[N, 2]`` tile and level of the present episodes."""
    drawn = env.drawn()
    return drawn.draws[:, drawn.columns[NAME]][:, :2].astype(int)


def noted_env(config: RunConfig, stream: Stream, *, notes: Path) -> VecEnv:
    """When the first step begins, a file named after the actor gets all that it began with."""
    env = run_env(config, stream)
    step = env.step

    def first(actions):
        path = notes / f"{actor_id(stream)}.npz"
        note = {
            "levels": levels(env),
            "began": began(env),
            "friction": env.drawn().draws[:, 0],
            **env.shared.state_dict(),
        }
        np.savez(path.with_suffix(".tmp.npz"), **note)
        path.with_suffix(".tmp.npz").rename(path)
        env.step = step
        return step(actions)

    env.step = first
    return env
