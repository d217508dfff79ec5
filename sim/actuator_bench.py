"""What a learned actuator costs: ``python -m sim.actuator_bench [TASK] [WORLDS]``.

The same env with the engine's servos, with the network of these servos, and with a network of the
usual size that all joints share (32-32-32 over six samples, untrained: its time does not depend on
its weights). Blocks of the three alternate and the median counts, so that a machine that slows
down slows all down. Lines that it prints stand in ``docs/actuators.md``.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from real.spec import RobotSpec, load_robot
from sim.actuator_export import robot_card, servo_network, with_card
from sim.actuator_models import shared_model
from sim.env import make_env
from sim.motors import OF_SERVOS
from sim.task import load_env_config

_HISTORY, _WIDTH = 6, 32
_BLOCK, _BLOCKS = 10, 15


def _usual_network(robot: RobotSpec, path: Path) -> Path:
    rng = np.random.default_rng(0)
    sizes = (2 * _HISTORY, _WIDTH, _WIDTH, _WIDTH, 1)
    layers = [(0.1 * rng.normal(size=(a, b)), np.zeros(b)) for a, b in itertools.pairwise(sizes)]
    wide = np.tile([-10.0, 10.0], (len(robot.actuated), 1))
    card = robot_card(
        robot, history=_HISTORY, error_range=wide, velocity_range=wide, source="nothing"
    )
    return with_card(shared_model(layers, joints=len(robot.actuated)), card, path)


def measure(task: str, worlds: int) -> dict[str, float]:
    """Name of the motors -> control steps of all worlds per second."""
    robot = load_robot(load_env_config(task).robot)
    with tempfile.TemporaryDirectory() as folder:
        files = {
            "servos of the engine": None,
            "network of these servos": servo_network(robot, Path(folder) / "servo.onnx"),
            "network 32-32-32, history 6": _usual_network(robot, Path(folder) / "usual.onnx"),
        }
        without = [f"randomize.{name}=null" for name in OF_SERVOS]
        envs = {
            name: make_env(
                load_env_config(task, without + ([f"actuators.network={file}"] if file else [])),
                num=worlds,
            )
            for name, file in files.items()
        }
    times: dict[str, list[float]] = {name: [] for name in envs}
    for block in range(_BLOCKS + 1):
        for name, env in envs.items():
            action = np.zeros((worlds, env.action_dim))
            start = time.perf_counter()
            for _ in range(_BLOCK):
                env.step(action)
            if block:  # the first one warms up
                times[name].append(time.perf_counter() - start)
    return {name: worlds * _BLOCK / float(np.median(taken)) for name, taken in times.items()}


def main(arguments: list[str]) -> None:
    """Print a table."""
    task, worlds = [*arguments, *("a1_walk", "256")[len(arguments) :]]
    rates = measure(task, int(worlds))
    first = next(iter(rates.values()))
    for name, rate in rates.items():
        line = f"{name:30s} {rate:10,.0f} world-steps/s  {first / rate:5.2f} times as long\n"
        sys.stdout.write(line)


if __name__ == "__main__":
    main(sys.argv[1:])
