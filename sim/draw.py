"""Draws recorded poses with one renderer; run as a process of its own by :mod:`sim.render`.

``python -m sim.draw {mujoco|pybullet} REQUEST.npz FRAMES.npy``. A graphics driver that crashes or
hangs then takes nothing with it. MuJoCo's renderer reads ``MUJOCO_GL`` when it is imported, which
is why the choice of driver is the caller's.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from real.errors import FerryError
from real.spec import RobotSpec
from sim.terrain import Terrain, TerrainConfig

Array = NDArray[np.float64]
Frames = NDArray[np.uint8]

# The camera looks at the base from behind and to the right, a little down, as a person beside the
# robot would. Angles in degrees, as both renderers want them.
_AZIMUTH = 130.0
_ELEVATION = -18.0
_FIELD_OF_VIEW = 45.0
_TILE_M = 0.5


@dataclasses.dataclass(frozen=True)
class Request:
    """What to draw.

    Attributes:
        robot: the robot.
        position_w: ``[T, 3]`` base positions [m], one per frame.
        quat_wb: ``[T, 4]`` base orientations, wxyz.
        q: ``[T, J]`` joint positions in the order of the robot [rad or m].
        width: of a frame [pixels].
        height: of a frame [pixels].
        terrain: what it stands on; a plane if None.
    """

    robot: RobotSpec
    position_w: Array
    quat_wb: Array
    q: Array
    width: int
    height: int
    terrain: TerrainConfig | None = None

    def save(self, path: Path) -> None:
        """Write it as numbers and JSON; :meth:`load` reads it back."""
        about = {
            "robot": dataclasses.asdict(self.robot),
            "width": self.width,
            "height": self.height,
            "terrain": self.terrain and self.terrain.model_dump(),
        }
        np.savez(
            path,
            about=np.array(json.dumps(about)),
            position_w=self.position_w,
            quat_wb=self.quat_wb,
            q=self.q,
        )

    @staticmethod
    def load(path: Path) -> Request:
        """Read what :meth:`save` wrote."""
        with np.load(path) as data:
            about: dict[str, Any] = json.loads(str(data["about"]))
            return Request(
                # JSON has no tuples; the adapter knows where they belong.
                robot=TypeAdapter(RobotSpec).validate_python(about["robot"]),
                position_w=data["position_w"],
                quat_wb=data["quat_wb"],
                q=data["q"],
                width=about["width"],
                height=about["height"],
                terrain=TypeAdapter(TerrainConfig | None).validate_python(about["terrain"]),
            )

    def distance(self) -> float:
        """How far the camera stands off [m]: about four times the height of the base."""
        return max(0.8, 4.0 * self._size())

    def look_at(self) -> Array:
        """``[T, 3]`` where the camera looks [m]; bobbing of the base would shake the picture."""
        point = self.position_w.copy()
        point[:, 2] = 0.7 * self._size()
        if self.terrain is not None:
            point[:, 2] += Terrain(self.terrain).field.at(point[:, :2])
        return point

    def _size(self) -> float:
        """Height of the base [m]; of an arm, which stands on the ground, half of its reach."""
        return self.robot.base_height_m or 0.6


def draw_mujoco(request: Request) -> Frames:
    """Draw with MuJoCo's renderer, which needs OpenGL; ``[T, H, W, 3]``."""
    import mujoco

    from sim.model import build_mujoco

    field = None if request.terrain is None else Terrain(request.terrain).field
    built = build_mujoco(request.robot, visuals=True, field=field)
    model, data = built.model, mujoco.MjData(built.model)
    model.vis.global_.fovy = _FIELD_OF_VIEW
    camera, option = mujoco.MjvCamera(), mujoco.MjvOption()
    camera.azimuth, camera.elevation, camera.distance = _AZIMUTH, _ELEVATION, request.distance()
    has_visuals = bool((model.geom_group == 2).any())
    option.geomgroup[3] = not has_visuals  # collision shapes where the file has nothing else
    frames = np.empty((len(request.q), request.height, request.width, 3), dtype=np.uint8)
    base = built.base_qpos_adr
    with mujoco.Renderer(model, request.height, request.width) as renderer:
        for i, target in enumerate(request.look_at()):
            if base >= 0:
                data.qpos[base : base + 3] = request.position_w[i]
                data.qpos[base + 3 : base + 7] = request.quat_wb[i]
            data.qpos[built.joint_qpos_adr] = request.q[i]
            mujoco.mj_forward(model, data)
            camera.lookat[:] = target
            renderer.update_scene(data, camera, option)
            # In software OpenGL, which is what servers have, shadows are slow and speckled.
            renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
            frames[i] = renderer.render()
    return frames


def draw_pybullet(request: Request) -> Frames:
    """Draw with PyBullet's software renderer, which needs nothing; ``[T, H, W, 3]``.

    Raises:
        FerryError: on terrain, which is too many triangles for it.
    """
    import pybullet

    from sim.urdf import prepare

    if request.terrain is not None:
        raise FerryError("terrain is drawn by MuJoCo alone, which finds no OpenGL here")
    client = pybullet.connect(pybullet.DIRECT)
    urdf = prepare(request.robot, visuals=True)
    _checkered_floor(pybullet, client)
    with tempfile.TemporaryDirectory(prefix="ferry_") as folder:
        file = Path(folder) / "robot.urdf"
        file.write_text(urdf.xml(collisions=False), encoding="utf-8")
        body = pybullet.loadURDF(str(file), physicsClientId=client)
    count = pybullet.getNumJoints(body, physicsClientId=client)
    infos = [pybullet.getJointInfo(body, i, physicsClientId=client) for i in range(count)]
    by_name = {info[1].decode(): i for i, info in enumerate(infos)}
    joints = [by_name[j.name] for j in request.robot.joints]
    projection = pybullet.computeProjectionMatrixFOV(
        _FIELD_OF_VIEW, request.width / request.height, 0.05, 20.0
    )
    # The frame of the base link, not of its centre of mass, shall be where the pose says.
    com_position, com_quat = pybullet.getDynamicsInfo(body, -1, physicsClientId=client)[3:5]
    # The floor is finite but repeats, so a robot that walks on is drawn where the pattern is the
    # same.
    shift = np.zeros_like(request.position_w)
    shift[:, :2] = 2.0 * _TILE_M * np.round(request.position_w[:, :2] / (2.0 * _TILE_M))
    frames = np.empty((len(request.q), request.height, request.width, 3), dtype=np.uint8)
    for i, target in enumerate(request.look_at() - shift):
        position, quat = pybullet.multiplyTransforms(
            request.position_w[i] - shift[i],
            request.quat_wb[i][[1, 2, 3, 0]],
            com_position,
            com_quat,
        )
        pybullet.resetBasePositionAndOrientation(body, position, quat, physicsClientId=client)
        for joint, q in zip(joints, request.q[i], strict=True):
            pybullet.resetJointState(body, joint, q, physicsClientId=client)
        view = pybullet.computeViewMatrixFromYawPitchRoll(
            target, request.distance(), _AZIMUTH - 90.0, _ELEVATION, 0.0, 2
        )
        image = pybullet.getCameraImage(
            request.width,
            request.height,
            view,
            projection,
            lightDirection=[1.0, -1.0, 3.0],
            shadow=0,  # a shadow costs as much again as the picture
            renderer=pybullet.ER_TINY_RENDERER,
            flags=pybullet.ER_NO_SEGMENTATION_MASK,
            physicsClientId=client,
        )[2]
        frames[i] = np.reshape(image, (request.height, request.width, 4))[..., :3]
    pybullet.disconnect(physicsClientId=client)
    return frames


def _checkered_floor(pybullet: Any, client: int) -> None:
    """Tiles in two colours, so that motion over the floor can be seen."""
    side, half = _TILE_M, 10
    for colour, parity in (([0.80, 0.83, 0.86, 1.0], 0), ([0.62, 0.66, 0.70, 1.0], 1)):
        vertices: list[list[float]] = []
        indices: list[int] = []
        for x in range(-half, half):
            for y in range(-half, half):
                if (x + y) % 2 != parity:
                    continue
                first = len(vertices)
                corners = ((0, 0), (1, 0), (1, 1), (0, 1))
                vertices += [[side * (x + dx), side * (y + dy), 0.0] for dx, dy in corners]
                indices += [first + k for k in (0, 1, 2, 0, 2, 3)]
        shape = pybullet.createVisualShape(
            pybullet.GEOM_MESH,
            vertices=vertices,
            indices=indices,
            rgbaColor=colour,
            physicsClientId=client,
        )
        pybullet.createMultiBody(0.0, -1, shape, physicsClientId=client)


def main(arguments: list[str]) -> None:
    """Draw one request; see the module's description."""
    renderer, source, target = arguments
    request = Request.load(Path(source))
    draw = {"mujoco": draw_mujoco, "pybullet": draw_pybullet}[renderer]
    np.save(target, draw(request))


if __name__ == "__main__":
    main(sys.argv[1:])
