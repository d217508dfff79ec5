"""A first robot file from a URDF or MJCF: what the description says, and proposals for the rest.

Limits, masses and inertias that the description lacks are never made up: the file says where to
write them, and ``ferry robot check`` names what is still missing.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import mujoco
import numpy as np
from numpy.typing import NDArray

from real.description import DescribedJoint, description_path
from real.errors import FerryError
from real.spec import JointSpec
from sim.engine import GRAVITY
from sim.model import MujocoModel
from sim.robot_pose import at_default
from sim.robot_survey import Survey, survey

Array = NDArray[np.float64]

CONTROL_DT_S, PHYSICS_DT_S = 0.02, 0.005

#: Control steps in a period of the servo's own oscillation: fewer, and a policy cannot steer it.
STEPS_PER_PERIOD = 10
#: Damping ratio: 0.7 is the fastest without a noticeable overshoot.
DAMPING_RATIO = 0.7
#: Gravity may move a joint by this much [rad or m], and an error of the other saturates its motor.
SAG, SATURATION = 0.1, 0.25


def propose_gains(
    inertia: Array, tau_max: Array, load: Array, *, control_dt_s: float
) -> tuple[Array, Array]:
    """Gains of position servos from what they must move and what their motors can give.

    A servo on an inertia I is an oscillator: kp = I w^2, kd = 2 zeta sqrt(kp I) (Franklin, Powell,
    Emami-Naeini, "Feedback control of dynamic systems", second-order systems), with a period of ten
    control steps. It shall carry its load with an error of 0.1 rad, kp >= load / 0.1, and use its
    motor up to an error of 0.25 rad, kp <= tau_max / 0.25: steeper would only switch it on and off.

    Args:
        inertia: ``[A]`` that each motor feels in the default pose [kg m^2 or kg].
        tau_max: ``[A]`` effort limits; infinite where unknown [N m or N].
        load: ``[A]`` effort that holds the default pose [N m or N].
        control_dt_s: control period [s].

    Returns:
        kp and kd, ``[A]`` each.
    """
    # w = 2 pi / (10 dt)
    w = 2.0 * math.pi / (STEPS_PER_PERIOD * control_dt_s)
    kp = np.minimum(np.maximum(inertia * w**2, load / SAG), tau_max / SATURATION)
    return kp, 2.0 * DAMPING_RATIO * np.sqrt(kp * inertia)


def felt_inertia(built: MujocoModel) -> Array:
    """``[J]`` inertia at each joint in the default pose, everything else free to move.

    1 / (M^-1)_jj: what an effort at this joint alone accelerates.
    """
    model, data = built.model, at_default(built)
    matrix = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, matrix)
    inverse = np.asarray(np.linalg.inv(matrix), dtype=np.float64)
    return 1.0 / np.diag(inverse)[built.joint_dof_adr]


def holding_effort(built: MujocoModel, feet: int) -> Array:
    """``[J]`` effort that holds the default pose against gravity [N m or N].

    For a floating robot on F feet: that of a foot that carries 2 / F of the weight, as in a trot.
    """
    model, data = built.model, at_default(built)
    own = np.abs(data.qfrc_bias[built.joint_dof_adr])
    if built.base_dof_adr < 0 or not feet:
        return own
    weight = float(model.body_mass.sum()) * GRAVITY * min(1.0, 2.0 / feet)
    out = np.zeros(len(built.joint_dof_adr))
    for body in range(1, model.nbody):  # the ends of limbs push on the ground
        if (model.body_parentid[1:] == body).any():
            continue
        jacobian = np.zeros((3, model.nv))
        geoms = [g for g in range(model.ngeom) if model.geom_bodyid[g] == body]
        if geoms:
            lowest = min(geoms, key=lambda g: float(data.geom_xpos[g, 2]))
            mujoco.mj_jac(model, data, jacobian, None, data.geom_xpos[lowest], body)
            out = np.maximum(out, weight * np.abs(jacobian[2, built.joint_dof_adr]))
    return out


def new_robot(description: str, out: Path, *, name: str | None = None) -> Survey:
    """Write a robot file for a description.

    Args:
        description: a path, or ``package:path`` as in a robot file.
        out: the file to write.
        name: of the robot; the name of the file if None.

    Raises:
        FerryError: the description cannot be read or built, or the file exists.
    """
    if out.exists():
        raise FerryError(f"{out} exists; give --out another file, or remove it first")
    path = description_path(description, base=Path.cwd())
    found = survey(path)
    text = robot_text(found, _reference(description, path, out), name or out.stem)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    return found


def _reference(description: str, path: Path, out: Path) -> str:
    """The description as the robot file names it: relative to that file where it is a path."""
    if ":" in description and not Path(description).exists():
        return description
    return os.path.relpath(path.resolve(), out.resolve().parent)


# ------------------------------------------------------------------ the text


def robot_text(found: Survey, description: str, name: str) -> str:
    """The robot file, commented."""
    built = found.built
    inertia = felt_inertia(built)
    tau = np.array([_known(joint.tau_max) for joint in found.moving])
    load = holding_effort(built, max(len(found.feet), 1))
    kp, kd = _gains(found, *propose_gains(inertia, tau, load, control_dt_s=CONTROL_DT_S), inertia)
    mass = float(built.model.body_mass.sum())
    lines = [
        f"# {name}: {mass:.1f} kg, {len(found.moving)} joints that move. A proposal by",
        "# `ferry robot new`: read it, correct it, then `ferry robot check` this file.",
        "schema_version: 1",
        f"name: {name}",
        f"description: {description}",
        "base:",
        f"  kind: {'floating' if found.floating else 'fixed'}  # {found.why}",
        f"  link: {found.root}",
        f"  height_m: {found.height_m:.4f}  # lowest point on the ground in the default pose",
        "  # Files with y up: rotation_rpy: [1.5708, 0.0, 0.0]",
        f"imu_link: {found.imu_link or 'null'}  # the link of the IMU: a fall is felt there",
    ]
    lines += _stance(found)
    shared = _lacking(found)
    lines += [
        f"control_dt_s: {CONTROL_DT_S}",
        f"physics_dt_s: {PHYSICS_DT_S}",
        f"safe_stop: {'damp' if found.floating else 'hold'}",
        f"damping_kd: {_number(float(np.median(kd)))}  # the median of kd below",
        "defaults:",
        f"  action_scale: {0.25 if found.floating else 0.1}  # rad (m) of one unit of action",
        *_asked(shared, indent="  "),
        "# kp, kd: from inertia felt, effort limit and load; propose_gains in sim/robot_new.py.",
        *([f"# q_default: key frame {found.hints.key!r} of the file."] if found.hints.key else []),
        *([f"# q_default: none of the file's: {found.not_posed}."] if found.not_posed else []),
        "joints:               # this order is the order of every vector",
    ]
    for index, joint in enumerate(found.moving):
        lines += _joint(
            found,
            joint,
            index,
            kp=kp[index],
            kd=kd[index],
            inertia=inertia[index],
            asked=shared is None,
        )
    if found.locked:
        lines += ["locked:               # others mimic these; what follows stands still with them"]
        lines += [f"  {joint}: {_number(at)}" for joint, at in found.locked.items()]
    if found.bare:
        lines += ["# Missing mass or inertia; give each, with its source:", "# links:"]
        lines += [
            f"#   {link}: {{mass: ?, inertia: [ixx, iyy, izz, ixy, ixz, iyz], source: ?}}"
            for link in found.bare
        ]
    return "\n".join(lines) + "\n"


def _stance(found: Survey) -> list[str]:
    if not found.floating:
        effector = found.end_effector or "null"
        return [f"end_effector: {effector}  # the link that reaches for poses; null for none"]
    feet = ", ".join(found.feet)
    return [
        "# The ends of limbs that are lowest in the default pose, with one shape each.",
        f"feet: [{feet}]",
        f"fall_height_m: {0.5 * found.height_m:.3f}  # half of the standing height",
    ]


def _gains(found: Survey, kp: Array, kd: Array, inertia: Array) -> tuple[Array, Array]:
    """Gains with those of the file's own servos in place of proposals.

    A servo without a velocity gain brakes by the joint's damping alone; a safe stop needs more.
    """
    for index, joint in enumerate(found.moving):
        if joint.name in found.hints.gains:
            kp[index], given = found.hints.gains[joint.name]
            kd[index] = given or 2.0 * DAMPING_RATIO * math.sqrt(kp[index] * inertia[index])
    return kp, kd


def _joint(
    found: Survey,
    joint: DescribedJoint,
    index: int,
    *,
    kp: float,
    kd: float,
    inertia: float,
    asked: bool,
) -> list[str]:
    """A joint's lines; ``asked``: with what the file lacks of its limits."""
    spec, hints = found.spec.joints[index], found.hints
    unit = "kg m^2" if joint.kind == "hinge" else "kg"
    lines = [f"  {joint.name}:", f"    q_default: {_position(spec)}"]
    passive = bool(hints.motors) and joint.name not in hints.motors
    if passive:
        lines.append("    actuated: false    # the file has no actuator at it")
    else:
        own = hints.gains.get(joint.name)
        felt = f"{inertia:.3g} {unit} felt"
        lines += [
            f"    kp: {_number(kp)}    # {felt if own is None else 'of the servo in the file'}",
            f"    kd: {_number(kd)}" + ("    # its servo has none" if own and not own[1] else ""),
        ]
    damping, friction, armature = found.dynamics.get(joint.name, (0.0, 0.0, 0.0))
    values = {"damping": damping, "friction": friction, "armature": armature}
    lines += [f"    {key}: {_number(v)}    # of the file" for key, v in values.items() if v]
    return lines + (_asked(_missing(joint), indent="    ") if asked and not passive else [])


def _lacking(found: Survey) -> tuple[tuple[str, ...], bool] | None:
    """What the file says of no motor at all, to be asked for once; None if they differ."""
    motors = found.hints.motors
    lacks = {_missing(j) for j in found.moving if not motors or j.name in motors}
    return lacks.pop() if len(lacks) == 1 else None


def _missing(joint: DescribedJoint) -> tuple[tuple[str, ...], bool]:
    """Limits that a joint lacks, and whether one of them is 0 in the file."""
    missing = [k for k in ("q_min", "q_max") if math.isnan(getattr(joint, k))]
    zero = [k for k in ("dq_max", "tau_max") if getattr(joint, k) == 0.0]
    missing += [k for k in ("dq_max", "tau_max") if math.isnan(getattr(joint, k))] + zero
    return tuple(missing), bool(zero)


def _asked(lacks: tuple[tuple[str, ...], bool] | None, *, indent: str) -> list[str]:
    missing, zero = lacks or ((), False)
    if not missing:
        return []
    said = " (0 in the file, which means no authority)" if zero else ""
    fields = ", ".join(f"{k}: ?" for k in missing)
    return [
        f"{indent}# Not in the file{said}; give each, with its source:",
        f"{indent}# limits: {{{fields}, source: ?}}",
    ]


def _known(value: float) -> float:
    return value if value > 0.0 else math.inf


def _position(joint: JointSpec) -> str:
    """The default position to 0.1 mrad, or in full where that would be beyond a limit."""
    rounded = round(joint.q_default, 4)
    beyond = rounded < joint.q_min or rounded > joint.q_max
    return repr(joint.q_default if beyond else rounded)


def _number(value: float) -> str:
    """Three digits, and always a number that YAML reads as one."""
    rounded = float(f"{value:.3g}")
    return repr(rounded)
