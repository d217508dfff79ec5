"""What surrounds one simulated robot, from the options of its plug-in: ground and motors.

The options come as JSON, so that whoever starts the robot need not import a simulator. Random terms
and errors of sensors are no part of it: nothing is drawn but the tile, and that is said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from real.config import parse_config
from real.domain import DomainSample
from real.errors import FerryError, nearest
from real.spec import RobotSpec
from sim.engine import Array, InitialState, WorldState
from sim.terrain import FOOTPRINT_M, Terrain, TerrainConfig

#: Ground beyond the tile that a robot begins on [m]: nobody ends its episode when it leaves that.
AROUND_M = 8.0
#: So near to the end of the ground a robot is said to have left it, before it falls off [m].
EDGE_M = 0.5


@dataclass(frozen=True)
class RobotWorld:
    """Ground and motors of one robot.

    Attributes:
        terrain: the table of the ground; None for a plane.
        network: file of the learned actuator; None for servos.
        tile: on which the robot begins.
        level: of that tile.
        seed: that drew what of tile and level was not given.
    """

    terrain: TerrainConfig | None = None
    network: str | None = None
    tile: int = 0
    level: int = 0
    seed: int = 0

    def words(self) -> str:
        """What it is, for people."""
        moved = "servos" if self.network is None else f"learned actuator {Path(self.network).name}"
        if self.terrain is None:
            return f"a plane; {moved}"
        name = list(self.terrain.tiles)[self.tile]
        return f"terrain, tile {name} of level {self.level}; {moved}"

    def ground(self) -> Terrain | None:
        """The ground laid out; None for a plane."""
        return None if self.terrain is None else Terrain(self.terrain)

    def start(self, robot: RobotSpec, ground: Terrain | None) -> InitialState:
        """The default pose in the middle of the tile, as much higher as the highest ground near."""
        start = InitialState.default(robot, 1)
        if ground is None:
            return start
        xy = self.middle(ground)[None]
        height = ground.field.highest(xy, within_m=FOOTPRINT_M)
        place = np.concatenate([xy, height[:, None]], axis=1)
        return replace(start, position_w=start.position_w + place)

    def middle(self, ground: Terrain) -> Array:
        """``[2]`` of the tile [m]."""
        return ground.centre(np.array([self.tile]), np.array([self.level]))[0]

    def require_on_ground(self, ground: Terrain, truth: WorldState) -> None:
        """Refuse to go on where the ground ends.

        Both engines have it end at the same distance, though MuJoCo has the whole field.

        Raises:
            FerryError: the robot left it.
        """
        far = np.abs(truth.position_w[0, :2] - self.middle(ground)).max()
        end = 0.5 * ground.config.tile_m + ground.config.border_m
        if far > end - EDGE_M:
            raise FerryError(
                f"the robot walked off the terrain, which ends {end:g} m from the middle of its "
                "tile: drive it for a shorter time, or stand it on a plane with --plane"
            )

    def sample(self, friction: float) -> DomainSample:
        """What was drawn for it, so that ``env.reset(domain=...)`` begins there again."""
        values = {"friction": [friction]}
        if self.terrain is None:
            return DomainSample(seed=0, values=values)
        place = [float(self.tile), float(self.level), 0.0, 0.0]
        return DomainSample(seed=self.seed, values={**values, "terrain": place})


def robot_world(
    robot: RobotSpec,
    *,
    terrain: Mapping[str, Any] | None = None,
    actuator: str | None = None,
    task: str | None = None,
    plane: bool = False,
    tile: str | None = None,
    level: int | None = None,
    seed: int = 0,
) -> RobotWorld:
    """Read the options.

    Args:
        robot: who stands there.
        terrain: table of the ground, as in a task file; None for a plane.
        actuator: file of a learned actuator; None for servos.
        task: a task by name or file, whose ground and motors to take.
        plane: whether to leave out the ground of the task or the table.
        tile: name of the tile to begin on; drawn if None, each as often.
        level: of that tile; drawn if None, each as often.
        seed: of these draws.

    Raises:
        FerryError: an option is wrong, they do not go together, or the actuator is not the robot's.
    """
    if seed < 0:
        raise FerryError(f"option seed={seed}: expected 0 or more")
    found, network = _table(terrain), actuator
    if task is not None:
        if found is not None:
            raise FerryError(f"task {task} and a table `terrain` are given; expected one of them")
        found, network = _of_task(task, actuator)
    if plane:
        found = None
    if network is not None:
        from sim.actuator_file import load_actuators  # ONNX Runtime is for those who need it

        load_actuators(network, robot)
    if found is None:
        _require_no_tile(tile, level)
        return RobotWorld(network=network)
    if robot.base == "fixed":
        raise FerryError(
            f"robot {robot.name!r} has a fixed base and stands on no terrain: leave out `terrain`"
        )
    place = _place(found, tile, level, seed)
    return RobotWorld(_wide(found), network, *place, seed)


def _table(terrain: Mapping[str, Any] | None) -> TerrainConfig | None:
    if terrain is None:
        return None
    return parse_config(TerrainConfig, dict(terrain), source="option terrain")


def _of_task(task: str, actuator: str | None) -> tuple[TerrainConfig | None, str | None]:
    """Ground and network of a task; the network that is given stands for the one it names."""
    try:
        from sim.task import load_env_config
    except ModuleNotFoundError as error:
        raise FerryError(
            f"--task reads a task file, which needs {error.name}: pip install 'ferry[train]'"
        ) from error
    config = load_env_config(task)
    named = None if config.actuators is None else config.actuators.network
    if actuator is not None and named is None:
        raise FerryError(
            f"task {task} has servos, no learned actuator: leave out --actuator {actuator}"
        )
    return config.terrain, actuator or named


def _require_no_tile(tile: str | None, level: int | None) -> None:
    for name, given in (("tile", tile), ("level", level)):
        if given is not None:
            raise FerryError(
                f"option {name}={given}, but the robot stands on a plane; expected a bundle or "
                "--task with terrain, and no --plane"
            )


def _place(
    config: TerrainConfig, tile: str | None, level: int | None, seed: int
) -> tuple[int, int]:
    """Tile and level; both are drawn whatever is given, so that one does not change the other."""
    names = list(config.tiles)
    rng = np.random.default_rng(seed)
    column, row = int(rng.integers(len(names))), int(rng.integers(config.levels))
    if tile is not None:
        if tile not in names:
            raise FerryError(
                f"option tile={tile}: the terrain has no such tile{nearest(tile, names)}; it has: "
                f"{', '.join(names)}"
            )
        column = names.index(tile)
    if level is not None:
        if not 0 <= level < config.levels:
            raise FerryError(f"option level={level}: expected 0 to {config.levels - 1}")
        row = level
    return column, row


def _wide(config: TerrainConfig) -> TerrainConfig:
    """The same ground with room around, for there is no episode that ends with the tile."""
    cells = math.ceil(max(config.border_m, AROUND_M) / config.cell_m - 1e-9)
    return config.model_copy(update={"border_m": cells * config.cell_m, "curriculum": None})
