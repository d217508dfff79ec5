"""What the two engines should agree on, and how far apart they are on a robot.

Every quantity is measured on three worlds that differ, turned and moving where that can matter.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import mujoco
import numpy as np
from numpy.typing import NDArray

from real.frames import from_rpy, to_matrix
from real.signals import JointCommand
from real.spec import RobotSpec
from sim.engine import Engine, InitialState
from sim.mujoco_engine import MujocoEngine
from sim.pybullet_engine import PyBulletEngine

Array = NDArray[np.float64]
Pair = tuple[MujocoEngine, PyBulletEngine]

WORLDS = 3


@dataclass(frozen=True)
class Quantity:
    """Something that both engines should agree on.

    Attributes:
        name: what, and under which circumstances.
        unit: of the difference.
        applies: whether a robot has it.
        measure: largest difference between the engines.
    """

    name: str
    unit: str
    applies: Callable[[RobotSpec], bool]
    measure: Callable[[RobotSpec], float]


@contextmanager
def engines(robot: RobotSpec, num: int = WORLDS) -> Iterator[Pair]:
    """The robot in both, closed afterwards."""
    one, two = MujocoEngine(robot, num, threads=1), PyBulletEngine(robot, num)
    try:
        yield one, two
    finally:
        one.close()
        two.close()


def spread_start(robot: RobotSpec, *, height_m: float, moving: bool) -> InitialState:
    """Three worlds, joints and base off their defaults, differently turned; the same every time."""
    rng = np.random.default_rng(0)
    default = InitialState.default(robot, WORLDS)
    joints = len(robot.joints)
    low, high = _range(robot)
    q = np.clip(default.q + rng.uniform(-0.2, 0.2, (WORLDS, joints)), low, high)
    turned = np.array([0.0, 0.0, math.pi / 2.0])
    quat = from_rpy(turned + rng.uniform(-1.0, 1.0, (WORLDS, 3)))
    share = 1.0 if moving else 0.0
    return InitialState(
        q=q,
        dq=share * rng.uniform(-1.0, 1.0, (WORLDS, joints)),
        position_w=default.position_w + np.array([0.0, 0.0, height_m]),
        quat_wb=quat,
        lin_vel_b=share * rng.uniform(-1.0, 1.0, (WORLDS, 3)),
        ang_vel_b=share * rng.uniform(-2.0, 2.0, (WORLDS, 3)),
    )


def _range(robot: RobotSpec) -> tuple[Array, Array]:
    """``[J]`` position limits, infinite where there is none."""
    low = np.array([-np.inf if math.isnan(j.q_min) else j.q_min for j in robot.joints])
    high = np.array([np.inf if math.isnan(j.q_max) else j.q_max for j in robot.joints])
    return low, high


def _limp(robot: RobotSpec, engine: Engine) -> JointCommand:
    joints = len(robot.actuated)
    return JointCommand.damping(np.zeros(engine.num, dtype=np.int64), joints, damping_kd=0.0)


def _held(robot: RobotSpec) -> RobotSpec:
    """The robot hung up by its base, high enough to touch nothing."""
    return replace(robot, base="fixed", base_height_m=robot.base_height_m + 5.0)


def _apart(one: Array, two: Array) -> float:
    return float(np.abs(one - two).max(initial=0.0))


# ------------------------------------------------------------------ what the file became


def _composite(mass: Array, com_w: Array, axes: Array, moments: Array) -> tuple[Array, Array]:
    """Centre of mass ``[3]`` and inertia about it ``[3, 3]`` of rigid parts, all in the world."""
    centre = mass @ com_w / mass.sum()
    inertia = np.zeros((3, 3))
    for m, place, turn, own in zip(mass, com_w, axes, moments, strict=True):
        # I + m (|d|^2 1 - d d^T)
        d = place - centre
        inertia += turn @ np.diag(own) @ turn.T + m * (d @ d * np.eye(3) - np.outer(d, d))
    return centre, inertia


Facts = dict[str, Array]


def as_built(one: MujocoEngine, two: PyBulletEngine) -> list[tuple[Facts, Facts]]:
    """What each engine made of the robot's bodies and joints, as they stand, world by world.

    ``mass [1]`` of all that moves, its centre ``com [3]`` and ``inertia [3, 3]`` about it in the
    world; ``joint_inertia [J, J]``, without armature; ``limits [J, 2]``.
    """
    return [(_in_mujoco(one, row), _in_pybullet(two, row)) for row in range(one.num)]


def _in_mujoco(engine: MujocoEngine, row: int) -> Facts:
    model, dof = copy.copy(engine.built.model), engine.built.joint_dof_adr
    for name, values in engine.fields.items():
        getattr(model, name)[...] = values[row]
    data = mujoco.MjData(model)
    mujoco.mj_setConst(model, data)
    mujoco.mj_setState(model, data, engine.batch.state[row], mujoco.mjtState.mjSTATE_INTEGRATION)
    mujoco.mj_forward(model, data)
    matrix = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, matrix)
    matrix -= np.diag(model.dof_armature)
    moving = np.flatnonzero((model.body_mass > 0.0) & (model.body_weldid != 0))
    centre, inertia = _composite(
        model.body_mass[moving],
        data.xipos[moving],
        data.ximat[moving].reshape(-1, 3, 3),
        model.body_inertia[moving],
    )
    joints = model.dof_jntid[dof]
    limited = model.jnt_limited[joints, None]
    return {
        "mass": np.array([model.body_mass[moving].sum()]),
        "com": centre,
        "inertia": inertia,
        "joint_inertia": matrix[np.ix_(dof, dof)],
        "limits": np.where(limited, model.jnt_range[joints], [-np.inf, np.inf]),
    }


def _in_pybullet(engine: PyBulletEngine, row: int) -> Facts:
    facts = engine.facts(row)
    axes = np.array([to_matrix(quat) for quat in facts["quat_w"]])
    centre, inertia = _composite(facts["mass"], facts["com_w"], axes, facts["moments"])
    return {
        "mass": np.array([facts["mass"].sum()]),
        "com": centre,
        "inertia": inertia,
        "joint_inertia": facts["joint_inertia"],
        "limits": facts["limits"],
    }


def _fact(name: str, *, relative: bool = False) -> Callable[[RobotSpec], float]:
    def measure(robot: RobotSpec) -> float:
        worst = 0.0
        with engines(robot) as pair:
            start = spread_start(robot, height_m=1.0, moving=False)
            for engine in pair:
                engine.reset(np.arange(WORLDS), start)
            built = as_built(*pair)
        for one, two in built:
            scale = float(np.abs(one[name]).max()) if relative else 1.0
            other = one[name] != two[name]  # infinities are equal, but their difference is NaN
            worst = max(worst, _apart(one[name][other], two[name][other]) / scale)
        return worst

    return measure


# ------------------------------------------------------------------ how it moves


def _free_fall(robot: RobotSpec) -> float:
    """Position of a limp, tumbling robot after 0.3 s in the air."""
    with engines(robot) as pair:
        return _apart(*(_thrown(engine, 0.3)[0] for engine in pair))


def _spin(robot: RobotSpec) -> float:
    """Base velocities in the base's own frame after 0.1 s of the same flight."""
    with engines(robot) as pair:
        return _apart(*(_thrown(engine, 0.1)[1] for engine in pair))


def _thrown(engine: Engine, seconds: float) -> tuple[Array, Array]:
    robot = engine.robot
    engine.reset(np.arange(WORLDS), spread_start(robot, height_m=3.0, moving=True))
    steps = round(seconds / robot.physics_dt_s)
    engine.apply(_limp(robot, engine), substeps=steps)
    state = engine.state()
    return state.position_w, np.concatenate([state.lin_vel_b, state.robot.gyro_b], axis=1)


def _swing(robot: RobotSpec) -> float:
    """Joint positions of a limp robot hung up by its base, within 0.25 s."""
    with engines(_held(robot)) as pair:
        return _apart(*(_followed(engine, None) for engine in pair))


def _servo_step(robot: RobotSpec) -> float:
    """Joint positions while servos go to another pose, hung up by the base, within 0.4 s."""
    with engines(_held(robot)) as pair:
        return _apart(*(_followed(engine, 0.2) for engine in pair))


def _followed(engine: Engine, offset: float | None) -> Array:
    """Path ``[T, N, J]`` of joints under servos whose targets jump by an offset; None for limp."""
    robot = engine.robot
    engine.reset(np.arange(WORLDS), spread_start(robot, height_m=0.0, moving=False))
    path: list[Array] = []
    low, high = (limit[robot.actuated_ids] for limit in _range(robot))
    signs = np.where(np.arange(len(robot.actuated)) % 2 == 0, 1.0, -1.0)
    for _ in range(round((0.25 if offset is None else 0.4) / robot.physics_dt_s)):
        if offset is None:
            engine.apply(_limp(robot, engine), substeps=1)
        else:
            share = np.array([[1.0], [-0.7], [0.4]])  # another jump in each world
            goal = robot.actuated_array("q_default") + offset * share * signs
            engine.step(np.clip(goal, low, high), substeps=1)
        path.append(engine.state().robot.q)
    return np.array(path)


def _limit_yield(robot: RobotSpec) -> float:
    """How much further one engine lets joints be pressed past their limits by their servos."""
    high = _range(robot)[1]
    limited = np.isfinite(high)
    with engines(_held(robot)) as pair:
        past: list[Array] = []
        for engine in pair:
            # Near the stop already, and asked to go on by what the motor can hold for long.
            start = InitialState.default(engine.robot, WORLDS)
            near = np.where(limited, high - 0.02, start.q)
            engine.reset(np.arange(WORLDS), replace(start, q=near))
            for _ in range(25):
                engine.step(near[:, robot.actuated_ids] + np.array([[0.05], [0.1], [0.2]]))
            past.append((engine.state().robot.q - high)[:, limited])
    return _apart(*past)


def _standing(robot: RobotSpec) -> float:
    """Height of the base after standing for 2 s, turned by three different angles."""
    with engines(robot) as pair:
        heights: list[Array] = []
        for engine in pair:
            start = InitialState.default(robot, WORLDS)
            quat = from_rpy(np.array([[0.0, 0.0, yaw] for yaw in (-2.0, 0.5, 3.0)]))
            engine.reset(np.arange(WORLDS), replace(start, quat_wb=quat))
            for _ in range(round(2.0 / robot.control_dt_s)):
                engine.step(np.tile(robot.actuated_array("q_default"), (WORLDS, 1)))
            heights.append(engine.state().position_w[:, 2])
    return _apart(*heights)


def _any(robot: RobotSpec) -> bool:
    return True


def _floats(robot: RobotSpec) -> bool:
    return robot.base == "floating"


def _stands(robot: RobotSpec) -> bool:
    return _floats(robot) and bool(robot.feet)


def _is_limited(robot: RobotSpec) -> bool:
    return bool(np.isfinite(_range(robot)[1][robot.actuated_ids]).any())


QUANTITIES: tuple[Quantity, ...] = (
    Quantity("mass of all that moves", "kg", _any, _fact("mass")),
    Quantity("centre of mass, posed and turned", "m", _any, _fact("com")),
    Quantity("inertia about it", "share", _any, _fact("inertia", relative=True)),
    Quantity("inertia matrix of the joints", "share", _any, _fact("joint_inertia", relative=True)),
    Quantity("position limits", "rad, m", _any, _fact("limits")),
    Quantity("free fall of 0.3 s, tumbling: position", "m", _floats, _free_fall),
    Quantity("flight of 0.1 s: velocities in the base frame", "m/s, rad/s", _floats, _spin),
    Quantity("limp swing of 0.25 s, base held: joints", "rad, m", _any, _swing),
    Quantity("servo step of 0.4 s, base held: joints", "rad, m", _any, _servo_step),
    Quantity("pressed past a limit: joints", "rad, m", _is_limited, _limit_yield),
    Quantity("standing for 2 s: height of the base", "m", _stands, _standing),
)
