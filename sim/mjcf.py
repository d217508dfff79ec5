"""An MJCF file as the URDF elements that every engine builds from.

MuJoCo compiles the file, with all its defaults, classes and inertias from geometry; what it made of
it is written down link by link. So an MJCF takes the same checks as a URDF, and PyBullet, whose own
MJCF reader ignores much, builds the same robot.
"""

# The names of MuJoCo come from compiled modules, which the type checker cannot see.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import logging
from pathlib import Path
from xml.etree import ElementTree

import mujoco
import numpy as np
from numpy.typing import NDArray

from real.chain import moved
from real.errors import FerryError
from real.frames import Pose, to_matrix
from sim.inertia import Inertial, write_inertial, write_origin
from sim.meshes import mesh_folder, write_stl

log = logging.getLogger(__name__)

Array = NDArray[np.float64]

_JOINT, _GEOM = mujoco.mjtJoint, mujoco.mjtGeom
_IDENTITY = np.array([1.0, 0.0, 0.0, 0.0])
_STILL = Pose(np.zeros(3), _IDENTITY)


def compile_mjcf(path: Path) -> mujoco.MjModel:
    """The model that MuJoCo makes of a file.

    Raises:
        FerryError: naming the file, in MuJoCo's words.
    """
    try:
        return mujoco.MjModel.from_xml_path(str(path))
    except ValueError as error:
        raise FerryError(f"{path}: MuJoCo cannot read it: {error}") from error


def unread(model: mujoco.MjModel) -> list[str]:
    """What a model has that the robot will not have: couplings that engines do not share."""
    parts = [
        (model.neq, "equality constraints"),
        (model.ntendon, "tendons"),
        (model.nflex, "flexible bodies"),
        (model.nmocap, "mocap bodies"),
    ]
    return [f"{count} {what}" for count, what in parts if count]


def to_urdf(path: Path, *, visuals: bool = False) -> ElementTree.Element:
    """The ``<robot>`` of an MJCF file; mesh files are absolute and live as long as this process.

    Every body is a link. Named sites are links too, and so are the colliding geoms of a body that
    has several, since a foot is often one of them; without a name of their own they are called
    ``<body>/<i>``, i counting all geoms of the body from 0.

    Args:
        path: the file.
        visuals: with geoms that are only for the eye.

    Raises:
        FerryError: naming file and place: MuJoCo refuses it, there is not one robot in it, or a
            joint or shape that has no counterpart.
    """
    model = compile_mjcf(path)
    lost = unread(model)
    if lost:
        log.warning("%s: %s are not carried over: no engine has all of them", path, ", ".join(lost))
    writer = _Writer(model, path, visuals=visuals)
    writer.write()
    return writer.element


class _Writer:
    def __init__(self, model: mujoco.MjModel, path: Path, *, visuals: bool) -> None:
        self.element = ElementTree.Element("robot", name=path.stem)
        self._model, self._path, self._visuals = model, path, visuals
        self._links: dict[int, ElementTree.Element] = {}
        self._shift: dict[int, Array] = {0: np.zeros(3)}

    def write(self) -> None:
        model = self._model
        root = self._root()
        inside = [b for b in range(1, model.nbody) if model.body_rootid[b] == root]
        names = {_name(model.body(b).name, "body", b) for b in inside}
        if self._moving(root):
            self._links[0] = ElementTree.SubElement(self.element, "link", name="world")
        for body in inside:
            self._body(body, is_root=body == root)
        for body in inside:
            self._shapes(body, names)
        for site in range(model.nsite):
            name, body = model.site(site).name, int(model.site_bodyid[site])
            if name and body in inside and name not in names:
                names.add(name)
                self._frame(name, body, self._place(body, model.site_pos, model.site_quat, site))

    def _root(self) -> int:
        model = self._model
        moving = sorted({int(model.body_rootid[model.jnt_bodyid[j]]) for j in range(model.njnt)})
        if len(moving) != 1:
            names = [model.body(b).name for b in moving]
            raise FerryError(
                f"{self._path}: bodies with joints that hang on the world: {names}; expected "
                "exactly one robot in the file"
            )
        return moving[0]

    def _moving(self, body: int) -> bool:
        """Whether a body hangs on its parent by a hinge or slide."""
        return self._joint_of(body) is not None

    def _joint_of(self, body: int) -> int | None:
        model = self._model
        first, count = int(model.body_jntadr[body]), int(model.body_jntnum[body])
        joints = list(range(first, first + count))
        kinds = [int(model.jnt_type[j]) for j in joints]
        if kinds == [int(_JOINT.mjJNT_FREE)] or not kinds:
            return None
        if len(joints) > 1 or kinds[0] == int(_JOINT.mjJNT_BALL):
            raise FerryError(
                f"{self._path}: body {model.body(body).name!r} has {len(joints)} joints, the first "
                f"of type {_JOINT(kinds[0]).name}; expected at most one hinge or slide: put a body "
                "with some mass between two joints"
            )
        return joints[0]

    def _body(self, body: int, *, is_root: bool) -> None:
        model = self._model
        name = _name(model.body(body).name, "body", body)
        link = ElementTree.SubElement(self.element, "link", name=name)
        self._links[body] = link
        joint = self._joint_of(body)
        # A URDF joint turns about the origin of its link, an MJCF one about any point of its body.
        shift = np.zeros(3) if joint is None else model.jnt_pos[joint].copy()
        self._shift[body] = shift
        if model.body_mass[body] > 0.0:
            turn = to_matrix(model.body_iquat[body])
            inertia = turn @ np.diag(model.body_inertia[body]) @ turn.T
            write_inertial(
                link, Inertial(float(model.body_mass[body]), model.body_ipos[body] - shift, inertia)
            )
        parent = int(model.body_parentid[body])
        if is_root and joint is None:
            return  # free, or bolted down where it stands
        here = Pose(model.body_pos[body] - self._shift[parent], model.body_quat[body].copy())
        self._connect(joint, name, parent, here.then(Pose(shift, _IDENTITY)))

    def _connect(self, joint: int | None, name: str, parent: int, place: Pose) -> None:
        model = self._model
        if joint is None:
            self._fixed(f"{name}/fixed", parent, name, place)
            return
        slide = int(model.jnt_type[joint]) == int(_JOINT.mjJNT_SLIDE)
        axis, ref = model.jnt_axis[joint], float(model.qpos0[model.jnt_qposadr[joint]])
        # An MJCF shows the pose in which the joint reads `ref`, a URDF that in which it reads 0.
        back = moved("slide" if slide else "hinge", axis, -ref)
        element = ElementTree.SubElement(
            self.element,
            "joint",
            name=_name(model.joint(joint).name, "joint", joint),
            type="prismatic" if slide else "revolute",
        )
        self._ends(element, parent, name)
        write_origin(element, place.then(back))
        ElementTree.SubElement(element, "axis", xyz=_numbers(axis))

    def _fixed(self, joint: str, parent: int, child: str, place: Pose) -> None:
        element = ElementTree.SubElement(self.element, "joint", name=joint, type="fixed")
        self._ends(element, parent, child)
        write_origin(element, place)

    def _ends(self, joint: ElementTree.Element, parent: int, child: str) -> None:
        ElementTree.SubElement(joint, "parent", link=str(self._links[parent].get("name")))
        ElementTree.SubElement(joint, "child", link=child)

    def _frame(self, name: str, body: int, place: Pose) -> ElementTree.Element:
        """A link without mass, fixed to a body."""
        link = ElementTree.SubElement(self.element, "link", name=name)
        self._fixed(f"{name}/fixed", body, name, place)
        return link

    def _place(self, body: int, positions: Array, quats: Array, index: int) -> Pose:
        return Pose(positions[index] - self._shift[body], quats[index].copy())

    def _shapes(self, body: int, names: set[str]) -> None:
        model = self._model
        first, count = int(model.body_geomadr[body]), int(model.body_geomnum[body])
        colliding = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
        several = int(colliding[first : first + count].sum()) > 1
        for geom in range(first, first + count):
            collides = bool(colliding[geom])
            if not collides and not self._visuals:
                continue
            place, link = (
                self._place(body, model.geom_pos, model.geom_quat, geom),
                self._links[body],
            )
            own = str(self._links[body].get("name"))
            name = model.geom(geom).name or f"{own}/{geom - first}"
            if collides and several and name not in names:
                names.add(name)
                link, place = self._frame(name, body, place), _STILL
            shape = ElementTree.SubElement(link, "collision" if collides else "visual")
            write_origin(shape, place)
            self._geometry(ElementTree.SubElement(shape, "geometry"), geom, body)

    def _geometry(self, geometry: ElementTree.Element, geom: int, body: int) -> None:
        model = self._model
        kind, size = int(model.geom_type[geom]), model.geom_size[geom]
        if kind == int(_GEOM.mjGEOM_SPHERE):
            ElementTree.SubElement(geometry, "sphere", radius=repr(float(size[0])))
        elif kind == int(_GEOM.mjGEOM_BOX):
            ElementTree.SubElement(geometry, "box", size=_numbers(2.0 * size))
        elif kind in {int(_GEOM.mjGEOM_CYLINDER), int(_GEOM.mjGEOM_CAPSULE)}:
            tag = "cylinder" if kind == int(_GEOM.mjGEOM_CYLINDER) else "capsule"
            length = repr(2.0 * float(size[1]))
            ElementTree.SubElement(geometry, tag, radius=repr(float(size[0])), length=length)
        elif kind == int(_GEOM.mjGEOM_MESH):
            mesh = int(model.geom_dataid[geom])
            file = _mesh_file(model, mesh, self._path)
            ElementTree.SubElement(geometry, "mesh", filename=str(file))
        else:
            raise FerryError(
                f"{self._path}: body {model.body(body).name!r} has a shape of type "
                f"{_GEOM(kind).name}; expected sphere, capsule, cylinder, box or mesh"
            )


def _name(given: str, kind: str, index: int) -> str:
    return given or f"{kind}_{index}"


def _numbers(values: Array) -> str:
    return " ".join(repr(float(value)) for value in values)


def _mesh_file(model: mujoco.MjModel, mesh: int, path: Path) -> Path:
    """A compiled mesh as binary STL, in the frame to which MuJoCo moved it."""
    file = Path(mesh_folder().name) / f"{path.stem}_{abs(hash(path.resolve()))}_{mesh}.stl"
    first, count = int(model.mesh_faceadr[mesh]), int(model.mesh_facenum[mesh])
    start, vertices = int(model.mesh_vertadr[mesh]), int(model.mesh_vertnum[mesh])
    faces = model.mesh_face[first : first + count]
    write_stl(model.mesh_vert[start : start + vertices][faces], file)  # [F, 3, 3]
    return file
