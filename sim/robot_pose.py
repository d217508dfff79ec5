"""Poses of a robot nobody has described yet: one to stand in, and what then touches the ground."""

# The names of MuJoCo come from compiled modules, which the type checker cannot see.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from dataclasses import replace

import mujoco
import numpy as np
from numpy.typing import NDArray

from real.spec import RobotSpec
from sim.model import MujocoModel, build_mujoco

Array = NDArray[np.float64]


def with_default_pose(spec: RobotSpec) -> RobotSpec:
    """The robot with a proposed default: limbs of a floating one bent, so that they can yield."""
    if spec.base == "fixed":
        return spec
    built = build_mujoco(spec, floor=False)
    model, data = built.model, mujoco.MjData(built.model)
    limbs: dict[int, list[int]] = {}
    for index, joint in enumerate(spec.joints):
        body = int(model.jnt_bodyid[model.joint(joint.name).id])
        while int(model.body_parentid[body]) not in {0, built.base_body_id}:
            body = int(model.body_parentid[body])
        limbs.setdefault(body, []).append(index)
    q = spec.q_default
    chosen: list[Array] = []
    for columns in limbs.values():
        q[columns] = _bent(built, data, q, columns, chosen)
        chosen.append(q[columns])
    joints = (replace(j, q_default=float(v)) for j, v in zip(spec.joints, q, strict=True))
    return replace(spec, joints=tuple(joints))


def _bent(
    built: MujocoModel, data: mujoco.MjData, q: Array, columns: list[int], chosen: list[Array]
) -> Array:
    """Joint positions of a limb whose end is below where it hangs, at 0.85 of its length.

    One of those already chosen for other limbs, if it is about as good: legs shall look alike.
    """
    spec, model = built.robot, built.model
    first, last = (model.joint(spec.joints[c].name).id for c in (columns[0], columns[-1]))
    end = _end_geom(model, int(model.jnt_bodyid[last]))
    if len(columns) < 2 or end < 0:
        return q[columns]
    joints = [spec.joints[c] for c in columns]
    low = np.array([max(j.q_min, -1.6) for j in joints])
    high = np.array([min(j.q_max, 2.7) for j in joints])
    low, high = np.minimum(low, high - 1e-3), np.maximum(low + 1e-3, high)
    rng = np.random.default_rng(0)
    alike = [given for given in chosen if len(given) == len(columns)]
    tries = rng.uniform(low, high, (3000, len(columns)))
    tries = np.clip(np.concatenate([*[g[None] for g in alike], tries]), low, high)
    tries = np.round(tries, 2)
    # The last row is the pose of zeros: it tells how far to the side the limb stands by itself.
    ways = np.empty((len(tries) + 1, 3))
    for i, candidate in enumerate([*tries, np.zeros(len(columns))]):
        data.qpos[built.joint_qpos_adr] = q
        data.qpos[built.joint_qpos_adr[columns]] = candidate
        mujoco.mj_kinematics(model, data)
        ways[i] = data.geom_xpos[end] - data.xanchor[first]
    length = float(np.linalg.norm(ways, axis=1).max())
    # Below in the plane of walking, as low as asked, and the less turned the better.
    aside = ways[:-1, 1] - ways[-1, 1]
    cost = (ways[:-1, 0] / length) ** 2 + (ways[:-1, 2] / length + 0.85) ** 2
    cost += (aside / length) ** 2 + 0.001 * np.square(tries).sum(axis=1)
    best = int(cost.argmin())
    for index in range(len(alike)):
        if cost[index] <= cost[best] + 0.01:
            return tries[index]
    return tries[best]


def _end_geom(model: mujoco.MjModel, body: int) -> int:
    """The shape of a limb's last body that is farthest from its joint; -1 without shapes."""
    first, count = int(model.body_geomadr[body]), int(model.body_geomnum[body])
    geoms = range(first, first + count)
    return max(geoms, key=lambda g: float(np.linalg.norm(model.geom_pos[g])), default=-1)


def at_default(built: MujocoModel) -> mujoco.MjData:
    """The robot in its default pose, base at the origin, everything derived current."""
    data = mujoco.MjData(built.model)
    if built.base_qpos_adr >= 0:
        data.qpos[built.base_qpos_adr : built.base_qpos_adr + 7] = [0, 0, 0, 1, 0, 0, 0]
    data.qpos[built.joint_qpos_adr] = built.robot.q_default
    mujoco.mj_forward(built.model, data)
    return data


def _reach_down(built: MujocoModel, data: mujoco.MjData, geom: int) -> tuple[float, float]:
    """Lowest and highest point of a shape, by its bounding box, exact for spheres [m]."""
    model = built.model
    if int(model.geom_type[geom]) == int(mujoco.mjtGeom.mjGEOM_SPHERE):
        z, half = float(data.geom_xpos[geom, 2]), float(model.geom_size[geom, 0])
        return z - half, z + half
    rotation = data.geom_xmat[geom].reshape(3, 3)
    middle = float(data.geom_xpos[geom, 2] + rotation[2] @ model.geom_aabb[geom, :3])
    half = float(np.abs(rotation[2]) @ model.geom_aabb[geom, 3:])
    return middle - half, middle + half


def lowest_points(built: MujocoModel) -> dict[str, float]:
    """Lowest point of each link with one shape, in the default pose, base at the origin [m]."""
    model, data = built.model, at_default(built)
    shapes: dict[str, list[int]] = {}
    for geom in range(model.ngeom):
        name = model.geom(geom).name.rpartition("/")[0]
        if model.geom_contype[geom] and name:
            shapes.setdefault(name, []).append(geom)
    return {n: _reach_down(built, data, g[0])[0] for n, g in shapes.items() if len(g) == 1}


def highest_point(built: MujocoModel) -> float:
    """Highest point of all shapes in the default pose, base at the origin [m]."""
    data = at_default(built)
    return max((_reach_down(built, data, g)[1] for g in range(built.model.ngeom)), default=0.0)
