"""The engine that a task asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from real.errors import FerryError
from real.spec import RobotSpec
from sim.black_box import BlackBox
from sim.engine import Array, Engine
from sim.engine_terms import EngineName, require_supported
from sim.mujoco_engine import MujocoEngine
from sim.randomize import delay_max_s, least_value
from sim.terrain import Terrain, TerrainConfig


def make_engine(
    name: EngineName,
    robot: RobotSpec,
    num: int,
    *,
    threads: int | None,
    randomize: Mapping[str, Any],
    diverged: Path | None = None,
    terrain: TerrainConfig | None = None,
) -> Engine:
    """N worlds of a robot, ready for a table of random terms.

    Args:
        name: which physics.
        robot: the robot in every world.
        num: N.
        threads: threads of MuJoCo, worker processes of PyBullet; 0 for the CPUs this process may
            use, None for no process but this one.
        randomize: the table, for what an engine must provide for: the longest delay, rotors.
        diverged: how names of files of worlds that diverge begin, see :mod:`sim.black_box`; None
            for no files. PyBullet writes none: its state is no array that could be kept.
        terrain: what the robots stand on; a plane if None.

    Raises:
        FerryError: the robot or a number is wrong, a term cannot be simulated, or PyBullet is not
            installed.
    """
    delay = delay_max_s(randomize)
    if terrain is not None and robot.base == "fixed":
        raise FerryError(
            f"robot {robot.name!r} has a fixed base and stands on no terrain: remove `terrain`"
        )
    ground = None if terrain is None else Terrain(terrain)
    if name == "mujoco":
        engine = MujocoEngine(robot, num, threads=threads or 0, delay_max_s=delay, terrain=ground)
        if diverged is not None:
            engine.recorder = BlackBox(engine, diverged)
        return engine
    require_supported(name, randomize)
    try:
        from sim.pybullet_engine import PyBulletEngine  # an extra of its own
    except ModuleNotFoundError as error:
        if error.name != "pybullet":
            raise
        raise FerryError(
            "sim.engine is pybullet, which is not installed here: pip install 'ferry[pybullet]'"
        ) from error
    return PyBulletEngine(
        robot,
        num,
        delay_max_s=delay,
        least_armature=_least_armature(robot, randomize),
        processes=threads,
        terrain=ground,
    )


def _least_armature(robot: RobotSpec, randomize: Mapping[str, Any]) -> Array | None:
    nominal = np.array([joint.armature for joint in robot.joints])
    return least_value(randomize, "armature", nominal)
