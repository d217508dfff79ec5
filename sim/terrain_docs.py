"""The tables of ``docs/terrain.md``: ``python -m sim.terrain_docs FILE``.

Made from the models of the section and from the terrain that ``a1_terrain`` lays, so that they
cannot say what is not so; a test compares.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from real.config import Config
from sim.document_tables import write_table
from sim.task import load_env_config
from sim.terrain import SHAPES, LevelConfig, Terrain, TerrainConfig, TileConfig

NAME = "sim.terrain_docs"

#: Where the section through a tile is looked at, from its middle towards its edge [m].
SECTION_M = (0.0, 1.0, 1.05, 1.3, 1.35, 2.0, 3.0, 4.0)


def tables() -> str:
    """The keys, the shapes, and the ground of ``a1_terrain``, in Markdown."""
    lines = _row("key of `terrain`", "what it is", "default") + _line(3)
    for name, model in (
        ("", TerrainConfig),
        ("tiles.NAME.", TileConfig),
        ("curriculum.", LevelConfig),
    ):
        lines += _keys(name, model)
    lines += ["", *_row("shape", "`easiest` and `hardest` are", "at most"), *_line(3)]
    lines += [
        line for name, (what, most) in SHAPES.items() for line in _row(name, what, f"{most:g}")
    ]
    ground = load_env_config("a1_terrain").terrain
    assert ground is not None  # the task is there for it
    return "\n".join([*lines, "", *_levels(Terrain(ground)), "", *_section(Terrain(ground))])


def _keys(prefix: str, model: type[Config]) -> list[str]:
    lines: list[str] = []
    for name, field in model.model_fields.items():
        default = "needed" if field.is_required() else f"{field.default}"
        lines += _row(f"`{prefix}{name}`", field.description or "", default.replace("None", "null"))
    return lines


def _levels(terrain: Terrain) -> list[str]:
    """How difficult every tile is at every level."""
    names = [f"level {level}" for level in range(terrain.levels)]
    lines = _row("tile of `a1_terrain`", "shape", *names) + _line(2 + terrain.levels)
    for index, (name, tile) in enumerate(terrain.config.tiles.items()):
        amounts = [f"{terrain.amount(index, level):.3f}" for level in range(terrain.levels)]
        lines += _row(name, tile.shape, *amounts)
    return lines


def _section(terrain: Terrain) -> list[str]:
    """Heights along x from the middle of every tile of the last level."""
    last = terrain.levels - 1
    lines = _row(f"height [m] at level {last}, from the middle", *(f"{x:g} m" for x in SECTION_M))
    lines += _line(1 + len(SECTION_M))
    for index, name in enumerate(terrain.names):
        centre = terrain.centre(np.array([index]), np.array([last]))[0]
        along = centre + np.stack([np.array(SECTION_M), np.zeros(len(SECTION_M))], axis=1)
        lines += _row(name, *(f"{height:.3f}" for height in terrain.field.at(along) + 0.0))
    return lines


def _row(*cells: Any) -> list[str]:
    return [f"| {' | '.join(str(cell) for cell in cells)} |"]


def _line(columns: int) -> list[str]:
    return [f"|{'---|' * columns}"]


if __name__ == "__main__":
    write_table(Path(sys.argv[1]), NAME, tables())
