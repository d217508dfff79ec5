"""What a PyBullet robot stands on: a plane, or the piece of the terrain that its episode is in."""

from __future__ import annotations

import math

import numpy as np
import pybullet
from numpy.typing import NDArray

from sim.terrain import Terrain

Array = NDArray[np.float64]

#: Yaw of a quarter turn, xyzw.
_QUARTER = (0.0, 0.0, math.sqrt(0.5), math.sqrt(0.5))


def lay_floor(client: int, terrain: Terrain | None, centre: Array | None) -> int:
    """Put the floor into an empty client; its index.

    Building a height field takes PyBullet about 1 us a point, and a reset builds everything again,
    so a world has only the tile that its episode is in, and the border beyond it.

    Args:
        client: of PyBullet.
        terrain: None for a plane.
        centre: ``[2]`` middle of the tile [m].
    """
    if terrain is None or centre is None:
        plane = pybullet.createCollisionShape(pybullet.GEOM_PLANE, physicsClientId=client)
        return int(pybullet.createMultiBody(0.0, plane, physicsClientId=client))
    half = 0.5 * terrain.config.tile_m + terrain.config.border_m
    heights, middle = terrain.field.piece(centre, half_m=half)
    # PyBullet divides its cells along the other diagonal: so it is given the field turned by a
    # quarter, and that is turned back.
    turned = np.rot90(heights)
    shape = pybullet.createCollisionShape(
        pybullet.GEOM_HEIGHTFIELD,
        meshScale=[terrain.field.cell_m, terrain.field.cell_m, 1.0],
        heightfieldData=turned.ravel().tolist(),
        numHeightfieldRows=turned.shape[1],  # so it calls the points along x
        numHeightfieldColumns=turned.shape[0],
        physicsClientId=client,
    )
    # Without a shape for the eye it would make one of every triangle.
    speck = pybullet.createVisualShape(pybullet.GEOM_SPHERE, radius=0.01, physicsClientId=client)
    # The origin of the shape lies between its lowest and its highest point.
    level = 0.5 * float(heights.min() + heights.max())
    return int(
        pybullet.createMultiBody(
            0.0,
            shape,
            speck,
            basePosition=[*middle.tolist(), level],
            baseOrientation=_QUARTER,
            physicsClientId=client,
        )
    )
