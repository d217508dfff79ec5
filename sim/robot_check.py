"""What both engines made of a robot file, side by side, and what is missing or differs."""

# The names of MuJoCo come from compiled modules, which the type checker cannot see.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from real.spec import JointSpec, RobotSpec, load_robot
from sim.model import MujocoModel, build_mujoco
from sim.urdf import prepare

Array = NDArray[np.float64]

#: Engines may differ by this share in a mass or inertia; more is another robot.
_SAME = 1e-3


@dataclass(frozen=True)
class EngineView:
    """What an engine says of a robot, its base bolted down.

    Attributes:
        mass: [kg].
        order: joints in the engine's own order.
        limits: by joint, low and high [rad or m]; infinite where there is none.
        inertia: by joint, the diagonal of the joint-space inertia in the default pose, without
            rotors [kg m^2 or kg].
        shapes: by link, number of collision shapes.
    """

    mass: float
    order: tuple[str, ...]
    limits: dict[str, tuple[float, float]]
    inertia: dict[str, float]
    shapes: dict[str, int]


@dataclass
class RobotCheck:
    """The result of a check.

    Attributes:
        file: the robot file.
        robot: what it says; None if it does not even load.
        engines: what each engine made of it.
        problems: why it cannot run.
        notes: what was changed, ignored or left out on the way.
    """

    file: str
    robot: RobotSpec | None = None
    engines: dict[str, EngineView] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the robot can run."""
        return not self.problems

    def summary(self) -> dict[str, str]:
        """Names and values for people."""
        robot = self.robot
        if robot is None:
            return {"file": self.file}
        rows = {
            "file": self.file,
            "description": robot.description,
            "base": f"{robot.base}, link {robot.base_link}, height {robot.base_height_m:g} m",
            "joints": f"{len(robot.joints)}, of them {len(robot.actuated)} actuated",
            "feet": ", ".join(robot.feet) or "none",
            "end effector": robot.end_effector or "none",
            "IMU": robot.imu_link or "in the base frame",
            "safe stop": robot.safe_stop,
        }
        if robot.locked:
            rows["locked"] = ", ".join(f"{name} at {at:g}" for name, at in robot.locked)
        if robot.links:
            rows["links given"] = ", ".join(link.name for link in robot.links)
        for name, view in self.engines.items():
            rows[f"{name}: mass"] = f"{view.mass:.4g} kg"
            rows[f"{name}: order"] = ", ".join(view.order)
            shapes = (f"{link} {n}" if n > 1 else link for link, n in view.shapes.items())
            rows[f"{name}: shapes"] = ", ".join(shapes) or "none"
        return rows

    def header(self) -> list[str]:
        """Headings of :meth:`rows`."""
        columns = ["joint", "kind", "kp", "kd", "speed", "effort"]
        return columns + [f"{n}: {what}" for n in self.engines for what in ("limits", "inertia")]

    def rows(self) -> list[list[str]]:
        """A row for each joint, in the order of the robot file."""
        if self.robot is None:
            return []
        out: list[list[str]] = []
        for joint in self.robot.joints:
            motor = f"{joint.kp:g} {joint.kd:g}".split() if joint.actuated else ["-", "-"]
            row = [joint.name, joint.kind, *motor, _shown(joint.dq_max), _shown(joint.tau_max)]
            for view in self.engines.values():
                low, high = view.limits[joint.name]
                row += [f"{low:.3g} .. {high:.3g}", f"{view.inertia[joint.name]:.3g}"]
            out.append(row)
        return out

    def as_json(self) -> dict[str, Any]:
        """What JSON holds of it; keys are stable."""
        return {
            "file": self.file,
            "ok": self.ok,
            "problems": self.problems,
            "notes": self.notes,
            "engines": {
                name: {
                    "mass": view.mass,
                    "order": list(view.order),
                    "limits": {j: [_finite(v) for v in ends] for j, ends in view.limits.items()},
                    "inertia": view.inertia,
                    "shapes": view.shapes,
                }
                for name, view in self.engines.items()
            },
        }


def check_robot(name: str | Path) -> RobotCheck:
    """Load a robot file, build it in both engines, and compare.

    Args:
        name: a name in ``configs/robots`` or a path.

    Returns:
        The check; what is wrong with the robot is in it and never raised.
    """
    check = RobotCheck(str(name))
    with _heard(check.notes):
        try:
            robot = check.robot = load_robot(name)
            check.file = robot.source
            robot.require_complete()
            # On feet or free, the same robot: bolted down, engines give joint inertias alike.
            robot = replace(
                robot,
                base="fixed",
                joints=tuple(replace(j, armature=0.0) for j in robot.joints),
            )
            built = build_mujoco(robot)
            check.engines["MuJoCo"] = _mujoco_view(built)
            if importlib.util.find_spec("pybullet") is None:
                check.notes.append("PyBullet is not installed: pip install 'ferry[pybullet]'")
            else:
                check.engines["PyBullet"] = _pybullet_view(robot)
        except FerryError as error:
            check.problems.append(str(error))
            return check
    check.problems += _differences(check.engines)
    check.notes += _advice(check.robot)
    check.notes[:] = list(dict.fromkeys(check.notes))
    return check


@contextlib.contextmanager
def _heard(notes: list[str]) -> Iterator[None]:
    """Keep warnings of the loader as notes instead of printing them."""

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            notes.append(record.getMessage())

    logger, keep = logging.getLogger("sim"), Keep(logging.WARNING)
    passed_on = logger.propagate
    logger.addHandler(keep)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(keep)
        logger.propagate = passed_on


# ------------------------------------------------------------------ the engines


def _mujoco_view(built: MujocoModel) -> EngineView:
    model, robot = built.model, built.robot
    data = mujoco.MjData(model)
    data.qpos[built.joint_qpos_adr] = robot.q_default
    mujoco.mj_forward(model, data)
    matrix = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, matrix)
    shapes: dict[str, int] = {}
    for geom in range(model.ngeom):
        link = model.geom(geom).name.rpartition("/")[0]
        if link and model.geom_contype[geom]:
            shapes[link] = shapes.get(link, 0) + 1
    diagonal = np.diag(matrix)[built.joint_dof_adr]
    names = [j.name for j in robot.joints]
    return EngineView(
        mass=float(model.body_mass.sum()),
        order=tuple(model.joint(j).name for j in range(model.njnt)),
        limits={
            n: _ends(*model.joint(n).range, limited=bool(model.joint(n).limited[0])) for n in names
        },
        inertia={n: float(v) for n, v in zip(names, diagonal, strict=True)},
        shapes=shapes,
    )


def _pybullet_view(robot: RobotSpec) -> EngineView:
    import pybullet  # an extra of its own

    client = pybullet.connect(pybullet.DIRECT)
    try:
        with tempfile.TemporaryDirectory(prefix="ferry_") as folder:
            file = Path(folder) / "robot.urdf"
            file.write_text(prepare(robot).xml(visuals=False), encoding="utf-8")
            body = pybullet.loadURDF(
                str(file),
                useFixedBase=True,
                flags=pybullet.URDF_USE_INERTIA_FROM_FILE,
                physicsClientId=client,
            )
        count = pybullet.getNumJoints(body, physicsClientId=client)
        infos = [pybullet.getJointInfo(body, i, physicsClientId=client) for i in range(count)]
        moving = [info for info in infos if info[2] != pybullet.JOINT_FIXED]
        order = tuple(info[1].decode() for info in moving)
        default = dict(zip(robot.joint_names, robot.q_default, strict=True))
        matrix = np.array(
            pybullet.calculateMassMatrix(body, [default[n] for n in order], physicsClientId=client)
        )
        links = {i: info[12].decode() for i, info in enumerate(infos)} | {-1: robot.base_link}
        shapes = {
            name: len(pybullet.getCollisionShapeData(body, i, physicsClientId=client))
            for i, name in links.items()
        }
        mass = sum(pybullet.getDynamicsInfo(body, i, physicsClientId=client)[0] for i in links)
    except pybullet.error as error:
        raise FerryError(f"{robot.source}: PyBullet cannot load it: {error}") from error
    finally:
        pybullet.disconnect(client)
    return EngineView(
        mass=float(mass),
        order=order,
        limits={
            info[1].decode(): _ends(info[8], info[9], limited=info[8] < info[9]) for info in moving
        },
        inertia=dict(zip(order, np.diag(matrix).tolist(), strict=True)),
        shapes={name: n for name, n in shapes.items() if n},
    )


def _ends(low: float, high: float, *, limited: bool) -> tuple[float, float]:
    """Limits; a large number stands for none in both engines."""
    if not limited:
        return -math.inf, math.inf
    return (-math.inf if low < -1e8 else float(low)), (math.inf if high > 1e8 else float(high))


# ------------------------------------------------------------------ what is wrong


def _differences(engines: dict[str, EngineView]) -> list[str]:
    if len(engines) < 2:
        return []
    (first, a), (second, b) = engines.items()
    out: list[str] = []

    def compare(what: str, one: float, two: float) -> None:
        if not (one == two or math.isclose(one, two, rel_tol=_SAME, abs_tol=1e-6)):
            out.append(f"{what}: {first} has {one:.5g}, {second} has {two:.5g}")

    compare("mass [kg]", a.mass, b.mass)
    for joint in a.limits:
        for end, one, two in zip(("low", "high"), a.limits[joint], b.limits[joint], strict=True):
            compare(f"joint {joint!r}: {end} limit", one, two)
        compare(f"joint {joint!r}: inertia", a.inertia[joint], b.inertia[joint])
    return out


def _advice(robot: RobotSpec) -> list[str]:
    """What runs, but not as well as it could."""
    out: list[str] = []
    if robot.base == "floating" and not robot.feet:
        out.append("a floating robot without feet: rewards for steps and slip mean nothing")
    if robot.base == "floating" and robot.fall_height_m is None:
        out.append("no fall_height_m: lying down is no fall, only tilting is")
    if any(_light(j) for j in robot.actuated):
        out.append(
            "kd is 0 for an actuated joint: a servo without damping swings, and damping mode "
            "cannot be told from letting go"
        )
    if any(j.armature for j in robot.joints):
        out.append("PyBullet knows no rotor inertia (armature); MuJoCo adds it")
    return out


def _light(joint: JointSpec) -> bool:
    return joint.kd == 0.0


def _shown(value: float) -> str:
    return "missing" if math.isnan(value) else f"{value:g}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
