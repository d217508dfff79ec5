"""The shipped task: a run that is resumed in a fresh process is the run that never stopped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from training.checkpoint import newest_checkpoint

ROOT = Path(__file__).resolve().parents[2]

WORLDS, HORIZON = 12, 16

#: Arguments: folder, iterations, "resume" or "", and overrides.
SCRIPT = f"""
import sys
from pathlib import Path
from training.train import load_run_config, train

config = load_run_config("a1_walk", [
    "sim.worlds={WORLDS}", "sim.threads=2", "training.horizon={HORIZON}", "training.seed=2",
    "episode_s=0.4",  # time-outs within the run
    "training.network.hidden=[32, 32]", "training.network.critic_hidden=[32]",
    "training.symmetry.enabled=true", *sys.argv[4:],
])
train(config, Path(sys.argv[1]), steps=int(sys.argv[2]) * {WORLDS * HORIZON},
      resume=bool(sys.argv[3]), evaluate=lambda policy: {{"score": 0.0}})
"""


#: What is remembered crosses the checkpoint, too, of the mirrored life as well.
MEMORY = ("training.network.gru=16", "training.network.critic_gru=8")


def run(out: Path, iterations: int, *overrides: str, resume: bool = False) -> None:
    arguments = [str(out), str(iterations), "resume" if resume else "", *overrides]
    subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        check=True,
        timeout=200,
    )


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [(), MEMORY], ids=["plain", "memory"])
def test_n_and_n_iterations_of_the_walking_task_are_2n_bit_by_bit(tmp_path, overrides):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    run(whole, 8, *overrides)
    run(halves, 4, *overrides)
    run(halves, 8, *overrides, resume=True)
    one = newest_checkpoint(whole / "checkpoints")
    two = newest_checkpoint(halves / "checkpoints")
    assert one.step == two.step == 8 * WORLDS * HORIZON
    assert one.episodes["total"] > WORLDS  # episodes ended: resets are part of it
    different = [
        f"{field}.{name}"
        for field in ("policy", "learner", "actor", "episodes", "probe")
        for name, array in getattr(one, field).items()
        if not np.array_equal(array, getattr(two, field)[name])
    ]
    assert different == []
    remembered = [name for name in one.actor if name.startswith("memory.")]
    assert len(remembered) == (3 if overrides else 0)
    assert all(one.actor[name].any() for name in remembered)
