"""Terrain as a table: tiles of several shapes in several levels, laid out as one height field.

In a task file::

    terrain:
      levels: 6
      tiles:
        flat: {shape: flat}
        hollow: {shape: slope, easiest: 0.05, hardest: 0.4}       # rad; uphill from the start
        hill: {shape: slope, easiest: -0.05, hardest: -0.4}       # downhill
        stairs: {shape: steps, easiest: 0.02, hardest: 0.12}      # m; up from the start
        rubble: {shape: rough, easiest: 0.01, hardest: 0.06}      # m
      curriculum: {measure: reward/track_lin_vel, up_at: 1.2, down_at: 0.6}

All worlds stand on the same field, since an engine's height field cannot differ between them; they
differ by the tile in which an episode begins. It ends, truncated, when the base leaves that tile.
Tiles meet at height zero and begin with a level platform in their middle, but for rough ones.
``docs/terrain.md`` shows a section of each shape.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from real.config import Config
from real.errors import ConfigError
from sim.height_field import HeightField

Array = NDArray[np.float64]
Ids = NDArray[np.intp]
Mask = NDArray[np.bool_]
Positive = Annotated[float, Field(gt=0.0)]
Shape = Literal["flat", "slope", "steps", "rough"]

#: Level ground that a robot needs to start on, to each side [m]: the largest shipped robot stands
#: on 0.45 m by 0.35 m, turned as it may be.
FOOTPRINT_M = 0.5

#: What ``easiest`` and ``hardest`` mean, and how far they may go either way.
SHAPES: dict[Shape, tuple[str, float]] = {
    "flat": ("nothing", 0.0),
    "slope": ("angle of the ground [rad], positive: uphill from the start", 0.8),
    "steps": ("height of a step [m], positive: up from the start", 0.5),
    "rough": ("how far grains stand out and in at most [m]", 0.5),
}


class TileConfig(Config):
    """One shape of ground; a level's number lies between ``easiest`` and ``hardest``."""

    shape: Shape = Field(description="flat, slope, steps or rough")
    easiest: float = Field(default=0.0, description="at level 0; see the shapes")
    hardest: float = Field(default=0.0, description="at the last level")
    tread_m: Positive = Field(default=0.3, description="steps: depth of a step, in whole cells [m]")
    grain_m: Positive = Field(
        default=0.2, description="rough: distance of the grains, in whole cells [m]"
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        meaning, most = SHAPES[self.shape]
        if self.shape == "flat" and (self.easiest or self.hardest):
            raise ConfigError("a flat tile is as flat at every level: remove easiest and hardest")
        if self.shape != "flat" and self.easiest == self.hardest == 0.0:
            raise ConfigError(f"a {self.shape} tile of 0 is flat; expected the {meaning}")
        low = 0.0 if self.shape == "rough" else -most
        for name in ("easiest", "hardest"):
            found = getattr(self, name)
            if not low <= found <= most:
                raise ConfigError(
                    f"{name} is {found:g}; expected the {meaning}, from {low:g} to {most:g}",
                    key=(name,),
                )
        return self


class LevelConfig(Config):
    """When a world goes to the next level of a tile, and when back."""

    measure: str = Field(
        default="return",
        description="performance of an episode: return, or reward/TERM, per second it could last",
    )
    up_at: float = Field(description="from this performance on the next level is harder")
    down_at: float = Field(description="up to this one it is easier; so it is after a fall")
    start: int = Field(default=0, ge=0, description="level of every tile at first")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.down_at >= self.up_at:
            raise ConfigError(
                f"terrain.curriculum.down_at is {self.down_at:g}; expected less than up_at, "
                f"{self.up_at:g}"
            )
        return self


class TerrainConfig(Config):
    """The ``terrain`` section of a task."""

    tiles: dict[str, TileConfig] = Field(min_length=1, description="name -> shape, along x")
    levels: int = Field(default=5, ge=1, le=50, description="of each tile, along y")
    tile_m: Positive = Field(default=8.0, description="side of a tile, in whole cells [m]")
    platform_m: Positive = Field(
        default=2.0, description="side of the level square in its middle, in whole cells [m]"
    )
    border_m: Positive = Field(
        default=1.0, description="ground beyond the tile that an episode is in [m]"
    )
    cell_m: Positive = Field(default=0.05, description="distance of points of the field [m]")
    seed: int = Field(default=0, ge=0, description="of rough tiles")
    curriculum: LevelConfig | None = Field(
        default=None, description="levels go with success; null: each as often"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        sizes = {"tile_m": self.tile_m, "platform_m": self.platform_m, "border_m": self.border_m}
        for name, tile in self.tiles.items():
            sizes |= {f"tiles.{name}.tread_m": tile.tread_m} if tile.shape == "steps" else {}
            sizes |= {f"tiles.{name}.grain_m": tile.grain_m} if tile.shape == "rough" else {}
        for name, size in sizes.items():
            count = size / self.cell_m
            if count < 0.5 or abs(count - round(count)) > 1e-6:
                raise ConfigError(
                    f"terrain.{name} is {size:g} m; expected a whole number of cells of "
                    f"{self.cell_m:g} m (cell_m)",
                    key=tuple(name.split(".")),
                )
        if self.platform_m < 2.0 * FOOTPRINT_M or self.tile_m < self.platform_m + 2.0 * self.cell_m:
            raise ConfigError(
                f"terrain: a platform of {self.platform_m:g} m in tiles of {self.tile_m:g} m; "
                f"expected {2.0 * FOOTPRINT_M:g} m at least, to stand on, and ground around it"
            )
        if round((self.tile_m - self.platform_m) / self.cell_m) % 2:
            raise ConfigError(
                f"terrain: tile_m - platform_m is {self.tile_m - self.platform_m:g} m; expected an "
                f"even number of cells of {self.cell_m:g} m, so that the platform is in the middle"
            )
        if self.curriculum is not None and self.curriculum.start >= self.levels:
            raise ConfigError(
                f"terrain.curriculum.start is {self.curriculum.start}; expected a level from 0 to "
                f"{self.levels - 1}",
                key=("curriculum", "start"),
            )
        return self


class Terrain:
    """A table laid out: tile k of level l is column k along x, row l along y.

    Args:
        config: the table, or what JSON kept of it.

    Attributes:
        config: the table.
        names: K names of tiles.
        levels: L.
        field: the ground.
    """

    def __init__(self, config: TerrainConfig | dict[str, Any]) -> None:
        if not isinstance(config, TerrainConfig):
            config = TerrainConfig.model_validate(config)
        self.config = config
        self.names: tuple[str, ...] = tuple(config.tiles)
        self.levels: int = config.levels
        self.field = HeightField(_lay(config), cell_m=config.cell_m)

    def centre(self, tile: Ids, level: Ids) -> Array:
        """``[n, 2]`` middles of tiles ``[n]`` of levels ``[n]`` [m]."""
        place = np.stack([tile, level], axis=-1) - 0.5 * np.array(
            [len(self.names) - 1, self.levels - 1]
        )
        return place * self.config.tile_m

    def tile_at(self, xy: Array) -> tuple[Ids, Ids]:
        """Tile and level ``[n]`` that ``xy [n, 2]`` lie in, or are nearest to."""
        size = np.array([len(self.names), self.levels])
        place = np.floor(xy / self.config.tile_m + 0.5 * size)
        place = np.clip(np.nan_to_num(place), 0, size - 1).astype(np.intp)
        return place[:, 0], place[:, 1]

    def outside(self, xy: Array, centre: Array) -> Mask:
        """``[n]`` whether ``xy [n, 2]`` left the tiles about ``centre [n, 2]``; NaN has not."""
        return np.abs(xy - centre).max(axis=1) > 0.5 * self.config.tile_m

    def ground(self, position_w: Array, foot_position_w: Array) -> Array:
        """``[N, 1 + F]`` height of the ground below bases ``[N, 3]`` and feet ``[N, F, 3]``."""
        everything = np.concatenate([position_w[:, None, :2], foot_position_w[:, :, :2]], axis=1)
        return self.field.at(everything)

    def amount(self, tile: int, level: int) -> float:
        """How steep, high or rough a tile is at a level; see :data:`SHAPES`."""
        return _amount(self.config.tiles[self.names[tile]], level, self.levels)


def _amount(tile: TileConfig, level: int, levels: int) -> float:
    share = level / max(1, levels - 1)
    return tile.easiest + share * (tile.hardest - tile.easiest)


def _lay(config: TerrainConfig) -> Array:
    """``[Y, X]`` heights of the whole field; neighbouring tiles share their edge, at zero."""
    side, border = round(config.tile_m / config.cell_m), round(config.border_m / config.cell_m)
    shape = [count * side + 1 + 2 * border for count in (config.levels, len(config.tiles))]
    out = np.zeros(shape)
    for column, tile in enumerate(config.tiles.values()):
        for level in range(config.levels):
            y, x = border + level * side, border + column * side
            out[y : y + side + 1, x : x + side + 1] = _tile(config, tile, column, level)
    return out


def _tile(config: TerrainConfig, tile: TileConfig, column: int, level: int) -> Array:
    """``[S + 1, S + 1]`` heights of one tile of S by S cells."""
    side = round(config.tile_m / config.cell_m)
    amount = _amount(tile, level, config.levels)
    if tile.shape == "flat":
        return np.zeros((side + 1, side + 1))
    if tile.shape == "rough":
        # A tile is the same whatever else is in the table.
        rng = np.random.default_rng([config.seed, column, level])
        return _rough(rng, side, every=round(tile.grain_m / config.cell_m), amount=amount)
    # Cells from the platform to each point, and to the edge: squares about the middle.
    off = np.abs(2 * np.arange(side + 1) - side)  # in half cells
    platform = round(config.platform_m / config.cell_m)
    away = np.maximum(np.maximum(off[:, None], off[None, :]) - platform, 0) // 2
    whole = (side - platform) // 2
    if tile.shape == "slope":
        return math.tan(amount) * config.cell_m * (away - whole)
    # A riser takes one cell: the point at the foot of it is still below, the next one above.
    tread = round(tile.tread_m / config.cell_m)
    return amount * (-(-away // tread) - -(-whole // tread))


def _rough(rng: np.random.Generator, side: int, *, every: int, amount: float) -> Array:
    """Grains of heights uniform in +-amount, straight lines between them, zero at the edge."""
    count = math.ceil(side / every)
    grains = rng.uniform(-amount, amount, (count + 1, count + 1))
    grains[[0, -1]] = 0.0
    grains[:, [0, -1]] = 0.0
    # The last grain stands on the edge, also where the side is no multiple of the distance.
    at = np.minimum(np.arange(count + 1) * every, side)
    cells = np.arange(side + 1)
    along = np.array([np.interp(cells, at, line) for line in grains])
    return np.array([np.interp(cells, at, line) for line in along.T]).T
