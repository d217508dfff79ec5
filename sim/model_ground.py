"""The floor of a MuJoCo model: how it looks, and height fields."""

# The names of MuJoCo come from compiled modules, which the type checker cannot see.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import mujoco

from sim.height_field import HeightField

#: MuJoCo wants some ground below the lowest point [m].
_BELOW_M = 0.5


def lay_field(spec: mujoco.MjSpec, geom: Any, field: HeightField) -> None:
    """Make a floor of ``geom`` that is as high as ``field`` everywhere.

    MuJoCo keeps heights as shares, from the lowest point 0 to the highest 1, of the size that the
    asset states, so the geom stands at the lowest.
    """
    low, high = float(field.heights.min()), float(field.heights.max())
    rise = max(high - low, 1e-6)  # it refuses a field without any
    rows, columns = field.heights.shape
    spec.add_hfield(
        name=geom.name,
        nrow=rows,
        ncol=columns,
        size=[*field.half_m.tolist(), rise, _BELOW_M],
        userdata=((field.heights - low) / rise).ravel().tolist(),
    )
    geom.type = mujoco.mjtGeom.mjGEOM_HFIELD
    geom.hfieldname = geom.name
    geom.pos = [0.0, 0.0, low]
    geom.size = [0.0, 0.0, 0.0]


def paint(spec: mujoco.MjSpec, geom: Any) -> None:
    """A sky, a light, and a floor ``geom`` in tiles of two greys, so that motion can be seen."""
    spec.add_texture(
        name="sky",
        type=mujoco.mjtTexture.mjTEXTURE_SKYBOX,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        rgb1=[0.95, 0.97, 1.0],
        rgb2=[0.70, 0.80, 0.90],
        width=128,
        height=128,
    )
    spec.add_texture(
        name=geom.name,
        type=mujoco.mjtTexture.mjTEXTURE_2D,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
        rgb1=[0.80, 0.83, 0.86],
        rgb2=[0.62, 0.66, 0.70],
        width=256,
        height=256,
    )
    material = spec.add_material(name=geom.name, texrepeat=[1.0, 1.0], texuniform=True)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = geom.name
    geom.material = geom.name
    spec.worldbody.add_light(
        pos=[0.0, 0.0, 4.0], dir=[0.2, 0.3, -1.0], type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL
    )
