"""The vocabulary of domain randomisation: every random term, its unit and what may be drawn.

A term knows its nominal values, how to write others, and which values make sense; what it writes to
is in :mod:`sim.random_targets` and, where no engine takes part, :mod:`sim.signal_errors`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from real.errors import FerryError
from sim.mujoco_engine import MujocoEngine
from sim.random_targets import (
    POSITIVE,
    CentreTarget,
    ContactFrictionTarget,
    ContactTarget,
    DelayTarget,
    DriveTarget,
    FieldTarget,
    GravityTarget,
    MassTarget,
    PayloadTarget,
    SpeedTarget,
    Target,
)

__all__ = ["REFUSED", "TERMS", "Per", "Target", "TermKind"]

Per = Literal["world", "joint", "body"]


@dataclass(frozen=True)
class TermKind:
    """A random term.

    Attributes:
        doc: what it changes.
        unit: of the nominal value, and of draws under ``=`` and ``+``.
        ops: what a draw may do to the nominal value.
        per: what may have a draw of its own; the first is the default.
        make: builds the target in an engine; None for what no engine needs to know.
        within: whether it may be drawn anew within an episode; not what constants derive from.
        changes: the field, signal or trajectory that a draw changes, for people.
    """

    doc: str
    unit: str
    ops: str
    per: tuple[Per, ...]
    make: Callable[[MujocoEngine], Target] | None
    changes: str
    within: bool = True


def _friction(engine: MujocoEngine) -> Target:
    floor = engine.built.floor_geom_id
    # The floor has priority over the feet, so its friction is that of every contact.
    return FieldTarget(
        engine, ("floor",), "geom_friction", np.array([floor]), column=0, low=POSITIVE
    )


def _mass(engine: MujocoEngine) -> Target:
    model = engine.built.model
    # What is welded to the world never moves, so its mass changes nothing.
    where = np.flatnonzero((model.body_weldid != 0) & (model.body_mass > 0.0))
    return MassTarget(engine, tuple(model.body(int(b)).name for b in where), where)


def _moving_base(engine: MujocoEngine, what: str) -> None:
    if engine.built.base_dof_adr < 0:
        raise FerryError(
            f"random term {what!r} changes the base of {engine.robot.name!r}, which is fixed: it "
            f"would change nothing; remove it from `randomize`"
        )


def _payload(engine: MujocoEngine) -> Target:
    _moving_base(engine, "payload")
    return PayloadTarget(engine)


def _centre(engine: MujocoEngine) -> Target:
    _moving_base(engine, "com")
    return CentreTarget(engine)


def _joints(field: str, *, derives: bool = False) -> Callable[[MujocoEngine], Target]:
    def make(engine: MujocoEngine) -> Target:
        names = engine.robot.joint_names
        return FieldTarget(engine, names, field, engine.built.joint_dof_adr, derives=derives)

    return make


def _drive(name: Literal["kp", "kd", "strength"]) -> Callable[[MujocoEngine], Target]:
    return lambda engine: DriveTarget(engine, name)


def _floor(engine: MujocoEngine, name: str) -> None:
    if engine.built.floor_geom_id < 0 or engine.robot.base == "fixed":
        raise FerryError(
            f"random term {name!r} changes the contact of robot and floor, which "
            f"{engine.robot.name!r} with its fixed base does not depend on: it would change "
            f"nothing; remove it from `randomize`"
        )


def _turning(name: str, column: Literal[1, 2]) -> Callable[[MujocoEngine], Target]:
    def make(engine: MujocoEngine) -> Target:
        _floor(engine, name)
        return ContactFrictionTarget(engine, column)

    return make


def _contact(name: str, column: Literal[0, 1]) -> Callable[[MujocoEngine], Target]:
    def make(engine: MujocoEngine) -> Target:
        _floor(engine, name)
        return ContactTarget(engine, column)

    return make


#: Names that people look for and that no engine here has, and what to do instead.
REFUSED: dict[str, str] = {
    "restitution": "MuJoCo's contacts have none: how far a foot bounces follows from "
    "contact_stiffness and contact_damping; less damping bounces more",
}

_JOINTS: tuple[Per, ...] = ("joint", "world")

#: In the order in which they are written, whatever the order of the file.
TERMS: dict[str, TermKind] = {
    "friction": TermKind(
        "sliding friction of the floor", "1", "=*+", ("world",), _friction, "geom_friction[0]"
    ),
    "friction_spin": TermKind(
        "friction against turning on the spot",
        "m",
        "=*+",
        ("world",),
        _turning("friction_spin", 1),
        "geom_friction[1], geom_condim",
    ),
    "friction_roll": TermKind(
        "friction against rolling",
        "m",
        "=*+",
        ("world",),
        _turning("friction_roll", 2),
        "geom_friction[2], geom_condim",
    ),
    "contact_stiffness": TermKind(
        "stiffness of contacts with the floor, per mass",
        "1/s^2",
        "=*+",
        ("world",),
        _contact("contact_stiffness", 0),
        "geom_solref[0]",
    ),
    "contact_damping": TermKind(
        "damping of contacts with the floor, per mass",
        "1/s",
        "=*+",
        ("world",),
        _contact("contact_damping", 1),
        "geom_solref[1]",
    ),
    "gravity_tilt": TermKind(
        "slope of the floor, about x and y",
        "rad",
        "=+",
        ("body",),
        GravityTarget,
        "opt.gravity; accelerometer",
    ),
    "mass": TermKind(
        "masses, and inertias with them",
        "kg",
        "*+",
        ("body", "world"),
        _mass,
        "body_mass, body_inertia and what derives from them",
        within=False,
    ),
    "payload": TermKind(
        "point mass on the base", "kg", "=+", ("world",), _payload, "body_mass", within=False
    ),
    "com": TermKind(
        "centre of mass of the base, each axis",
        "m",
        "+",
        ("body",),
        _centre,
        "body_ipos",
        within=False,
    ),
    "kp": TermKind(
        "position gains of the motors",
        "N m/rad",
        "=*+",
        _JOINTS,
        _drive("kp"),
        "actuator_gainprm, actuator_biasprm",
    ),
    "kd": TermKind(
        "velocity gains of the motors",
        "N m s/rad",
        "=*+",
        _JOINTS,
        _drive("kd"),
        "actuator_biasprm",
    ),
    "motor_strength": TermKind(
        "torque a motor gives over the one it should give; scales its limit too",
        "1",
        "=*",
        _JOINTS,
        _drive("strength"),
        "gain, bias and actuator_forcerange",
    ),
    "armature": TermKind(
        "reflected rotor inertia",
        "kg m^2",
        "=*+",
        _JOINTS,
        _joints("dof_armature", derives=True),
        "dof_armature",
        within=False,
    ),
    "joint_friction": TermKind(
        "dry friction of the joints",
        "N m",
        "=*+",
        _JOINTS,
        _joints("dof_frictionloss"),
        "dof_frictionloss",
    ),
    "joint_damping": TermKind(
        "viscous friction of the joints",
        "N m s/rad",
        "=*+",
        _JOINTS,
        _joints("dof_damping"),
        "dof_damping",
    ),
    "no_load_speed": TermKind(
        "speed at which a motor has no torque left",
        "rad/s",
        "=",
        _JOINTS,
        SpeedTarget,
        "dof_damping and actuator_biasprm: torque-speed curve",
    ),
    "joint_offset": TermKind(
        "error of the encoders' zero: in what is measured and in what is tracked",
        "rad",
        "=+",
        _JOINTS,
        None,
        "signal q, joint targets",
    ),
    "backlash": TermKind(
        "play between motor and joint: a target moves the joint once it has crossed it",
        "rad",
        "=+",
        _JOINTS,
        None,
        "joint targets",
    ),
    "delay": TermKind(
        "how late targets are heard", "s", "=+", ("world",), DelayTarget, "actuator_delay"
    ),
    "delay_jitter": TermKind(
        "how much later than that at most, anew in every control step",
        "s",
        "=+",
        ("world",),
        None,
        "actuator_delay within the episode",
    ),
    "dropout": TermKind(
        "share of control steps whose targets are lost; the last ones stay",
        "1",
        "=+",
        ("world",),
        None,
        "joint targets",
    ),
    "observation_delay": TermKind(
        "how old all is that is measured when the policy sees it, up to 0.5 s",
        "s",
        "=+",
        ("world",),
        None,
        "all signals",
    ),
    "observation_jitter": TermKind(
        "how much older than that at most, anew in every control step",
        "s",
        "=+",
        ("world",),
        None,
        "all signals",
    ),
    "push": TermKind(
        "sudden change of the base's velocity, x and y of the world",
        "m/s",
        "=+",
        ("world",),
        None,
        "base velocity within the episode",
    ),
}
