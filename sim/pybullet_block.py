"""Some PyBullet worlds in one process: the calls an engine divides among its processes, as arrays.

Calls take and give mappings of plain arrays only, so that they can be sent to another process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from real.signals import RobotState
from sim.engine import InitialState, WorldState
from sim.pybullet_plan import Blueprint
from sim.pybullet_world import PyBulletWorld, Targets
from sim.terrain import Terrain

Arrays = dict[str, NDArray[np.generic]]
Given = Mapping[str, NDArray[np.generic]]


class Block:
    """N worlds of one robot.

    Args:
        plan: the robot.
        parameters: ``[N, K]`` of each world, by name.

    Raises:
        FerryError: the robot cannot be loaded.
    """

    #: What :meth:`call` may be asked for.
    CALLS = ("reset", "run", "push", "apply", "facts", "save", "load")

    def __init__(self, plan: Blueprint, parameters: Given) -> None:
        self._plan = plan
        self._folder = tempfile.TemporaryDirectory(prefix="ferry_")
        self._worlds: list[PyBulletWorld] = []
        terrain = None if plan.terrain is None else Terrain(plan.terrain)
        try:
            for row in range(len(parameters["friction"])):
                world = PyBulletWorld(
                    plan,
                    Path(self._folder.name),
                    _row(parameters, row),
                    name=f"world{row}",
                    terrain=terrain,
                )
                self._worlds.append(world)
        except BaseException:
            self.close()
            raise

    def call(self, name: str, arrays: Given) -> Arrays:
        """One of :data:`CALLS`."""
        if name not in self.CALLS:
            raise ValueError(f"no call {name!r}; expected one of {', '.join(self.CALLS)}")
        answer: Arrays = getattr(self, name)(arrays)
        return answer

    def reset(self, arrays: Given) -> Arrays:
        """Reset worlds ``rows [n]`` to ``start.*``, ``parameters.*``; their state, n rows."""
        rows = arrays["rows"].tolist()
        start = InitialState(**_floats(arrays, "start."))
        own = _floats(arrays, "parameters.")
        for i, row in enumerate(rows):
            self._worlds[row].reset(start, i, _row(own, i))
        return self._read(rows)

    def run(self, arrays: Given) -> Arrays:
        """``steps`` physics steps under ``targets.* [N, A]``; the state of all N."""
        targets = _floats(arrays, "targets.")
        steps = int(arrays["steps"])
        for i, world in enumerate(self._worlds):
            world.run(Targets(**{name: values[i] for name, values in targets.items()}), steps)
        return self._read(range(len(self._worlds)))

    def push(self, arrays: Given) -> Arrays:
        """Add ``lin_w`` and ``ang_b`` ``[n, 3]`` to base velocities of worlds ``rows``."""
        rows = arrays["rows"].tolist()
        motion = _floats(arrays, "")
        for i, row in enumerate(rows):
            self._worlds[row].push(motion["lin_w"][i], motion["ang_b"][i])
        return self._read(rows)

    def apply(self, arrays: Given) -> Arrays:
        """Put ``parameters.* [n, K]`` of worlds ``rows`` in force within an episode."""
        own = _floats(arrays, "parameters.")
        for i, row in enumerate(arrays["rows"].tolist()):
            self._worlds[row].apply(_row(own, i))
        return {}

    def facts(self, arrays: Given) -> Arrays:
        """See :meth:`sim.pybullet_world.PyBulletWorld.facts`; of world ``row``."""
        return {**self._worlds[int(arrays["row"])].facts()}

    def save(self, arrays: Given) -> Arrays:
        """``bullet``, files one after the other, their ``sizes [N]``, and ``beside [N, .]``."""
        kept = [world.save() for world in self._worlds]
        return {
            "bullet": np.frombuffer(b"".join(content for content, _ in kept), dtype=np.uint8),
            "sizes": np.array([len(content) for content, _ in kept], dtype=np.int64),
            "beside": np.stack([beside for _, beside in kept]),
        }

    def load(self, arrays: Given) -> Arrays:
        """Put back what :meth:`save` gave, under ``parameters.* [N, K]``; the state of all N."""
        content, own = arrays["bullet"].tobytes(), _floats(arrays, "parameters.")
        beside = np.asarray(arrays["beside"], dtype=np.float64)
        ends = np.cumsum(arrays["sizes"]).tolist()
        for i, world in enumerate(self._worlds):
            first = ends[i - 1] if i else 0
            world.load(content[first : ends[i]], beside[i], _row(own, i))
        return self._read(range(len(self._worlds)))

    def _read(self, rows: list[int] | range) -> Arrays:
        state = blank_state(len(rows), len(self._plan.joints), len(self._plan.feet))
        for i, row in enumerate(rows):
            self._worlds[row].read(state, i)
        return state_arrays(state)

    def close(self) -> None:
        """Disconnect every world and remove its files. May be called twice."""
        for world in self._worlds:
            world.close()
        self._folder.cleanup()


def _floats(arrays: Given, prefix: str) -> dict[str, NDArray[np.float64]]:
    """The entries that begin with a prefix, without it."""
    return {
        name.removeprefix(prefix): np.asarray(values, dtype=np.float64)
        for name, values in arrays.items()
        if name.startswith(prefix)
    }


def _row(parameters: Given, row: int) -> dict[str, NDArray[np.float64]]:
    return {n: np.asarray(v[row], dtype=np.float64) for n, v in parameters.items()}


# ------------------------------------------------------------------ states as arrays

#: Of a state, without those of the robot. The ground below it is the engine's to know,
#: and the direction of gravity follows from the attitude.
_ARRAYS = [f.name for f in fields(WorldState) if f.name not in ("robot", "ground_w", "gravity_b")]


def blank_state(num: int, joints: int, feet: int) -> WorldState:
    """A state of zeros of N worlds with J joints and F feet."""
    return WorldState(
        robot=RobotState.zeros(num, joints),
        position_w=np.zeros((num, 3)),
        lin_vel_b=np.zeros((num, 3)),
        foot_position_w=np.zeros((num, feet, 3)),
        foot_velocity_w=np.zeros((num, feet, 3)),
        foot_contact=np.zeros((num, feet), dtype=bool),
        body_contact=np.zeros(num, dtype=bool),
        diverged=np.zeros(num, dtype=bool),
    )


def state_arrays(state: WorldState) -> Arrays:
    """The arrays of a state by name, those of the robot with ``robot.`` in front; not copied."""
    out = {name: getattr(state, name) for name in _ARRAYS}
    return out | {f"robot.{name}": values for name, values in state.robot.reported().items()}


def copied(state: WorldState) -> WorldState:
    """A state in arrays of its own."""
    robot = {name: values.copy() for name, values in state.robot.reported().items()}
    own = {name: getattr(state, name).copy() for name in _ARRAYS}
    return replace(state, robot=RobotState(**robot), **own)
