"""What a suite needs of a task beside the robot: where episodes start, and what surrounds them.

It comes from a task file, or from the contract of a bundle, which holds the same sections; see
:class:`real.world.TrainingWorld`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from real.config import Config, parse_config
from real.world import ActuatorFile, TrainingWorld
from sim.actuator_file import read_actuator
from sim.motors import ActuatorsConfig
from sim.randomize import RandomizeConfig
from sim.sensors import SensorConfig
from sim.task import EnvConfig, StartConfig
from sim.terrain import TerrainConfig

#: Sections that are the same in a task file and in a contract.
_SECTIONS = ("start", "randomize", "sensors", "terrain")


class WorldConfig(Config):
    """Sections of a task file; see :class:`sim.task.EnvConfig`."""

    robot: str = Field(description="name in configs/robots, or a file")
    start: StartConfig = StartConfig()
    randomize: RandomizeConfig = Field(default={}, description="table of random terms")
    sensors: SensorConfig | None = Field(default=None, description="errors; null for perfect")
    terrain: TerrainConfig | None = Field(default=None, description="ground; null for a plane")
    actuators: ActuatorsConfig | None = Field(default=None, description="null for servos")


def world_of_task(config: EnvConfig) -> WorldConfig:
    """Of a task."""
    names = ("robot", *_SECTIONS, "actuators")
    return WorldConfig.model_construct(**{name: getattr(config, name) for name in names})


def training_world(config: EnvConfig) -> TrainingWorld:
    """What the contract of a policy of this task keeps of it.

    Raises:
        FerryError: the learned actuator cannot be read.
    """
    sections = config.model_dump(mode="json", include=set(_SECTIONS))
    used = config.actuators
    if used is None:
        return TrainingWorld(**sections)
    return TrainingWorld(
        **sections, actuator=ActuatorFile.of(Path(used.network).name, read_actuator(used.network))
    )


def world_of_contract(
    world: TrainingWorld, robot: str, *, actuators: Path | None, source: str
) -> WorldConfig:
    """Of a bundle.

    Args:
        world: from its contract.
        robot: from its contract.
        actuators: where its learned actuator lies; None if it has none.
        source: what to call the bundle in messages.

    Raises:
        FerryError: a section says what this version cannot simulate.
    """
    body: dict[str, Any] = {name: getattr(world, name) for name in _SECTIONS}
    network = None if actuators is None else {"network": str(actuators)}
    body |= {"robot": robot, "actuators": network}
    return parse_config(WorldConfig, body, source=f"{source}: the world in its contract")
