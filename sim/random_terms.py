"""The vocabulary of domain randomisation: what each random term changes in a MuJoCo world.

A term knows its nominal values, how to write others, and which values make sense. Values are always
computed from the nominal ones, never from what an earlier episode left, so draws cannot compound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from real.errors import FerryError
from sim.engine import Array, Ids
from sim.mujoco_engine import MujocoEngine

Per = Literal["world", "joint", "body"]


class Target:
    """K numbers of each world that a random term changes.

    Args:
        labels: K names, for messages and for the columns of the privileged observation.
        nominal: ``[K]`` values without randomisation.
        low: smallest value that makes sense.
        high: largest.
        derives: whether MuJoCo's derived constants must follow a change.
    """

    def __init__(
        self,
        labels: tuple[str, ...],
        nominal: Array,
        *,
        low: float = 0.0,
        high: float = np.inf,
        derives: bool = False,
    ) -> None:
        self.labels, self.nominal = labels, nominal
        self.low, self.high, self.derives = low, high, derives

    def restore(self, rows: Ids) -> None:
        """Undo what :meth:`write` does not overwrite."""

    def write(self, rows: Ids, values: Array) -> None:
        """Put ``[n, K]`` values in force in n worlds."""
        raise NotImplementedError


class FieldTarget(Target):
    """Numbers in a model field ``[N, K', ...]``.

    Args:
        engine: the worlds.
        labels: K names.
        field: name of the model field.
        where: ``[K]`` positions along the field's first axis after the world's.
        column: position along its second axis, one or ``[K]``; None if it has none.
        low: smallest value that makes sense.
        derives: whether MuJoCo derives constants from the field.
    """

    def __init__(
        self,
        engine: MujocoEngine,
        labels: tuple[str, ...],
        field: str,
        where: Ids,
        *,
        column: int | Ids | None = None,
        low: float = 0.0,
        derives: bool = False,
    ) -> None:
        at = (where,) if column is None else (where, column)
        nominal = np.array(getattr(engine.built.model, field)[at], dtype=np.float64)
        super().__init__(labels, nominal, low=low, derives=derives)
        self._values = engine.field(field)
        self._at = at

    def write(self, rows: Ids, values: Array) -> None:
        """Put ``[n, K]`` values in force in n worlds."""
        self._values[(rows[:, None], *self._at)] = values


class MassTarget(FieldTarget):
    """Masses of bodies; their inertias about their own centres grow in proportion."""

    def __init__(self, engine: MujocoEngine, labels: tuple[str, ...], where: Ids) -> None:
        super().__init__(engine, labels, "body_mass", where, low=_POSITIVE, derives=True)
        self._inertia = engine.field("body_inertia")
        self._where = where
        self._nominal_inertia: Array = engine.built.model.body_inertia[where].copy()

    def write(self, rows: Ids, values: Array) -> None:
        """Put masses ``[n, K]`` [kg] and the inertias that belong to them in force."""
        super().write(rows, values)
        share = (values / self.nominal)[:, :, None]
        self._inertia[rows[:, None], self._where] = share * self._nominal_inertia


class PayloadTarget(Target):
    """A point mass at the base's centre of mass, on top of what the base weighs."""

    def __init__(self, engine: MujocoEngine) -> None:
        super().__init__(("payload",), np.zeros(1), derives=True)
        self._mass = engine.field("body_mass")
        self._base = engine.built.base_body_id
        self._own = float(engine.built.model.body_mass[self._base])

    def restore(self, rows: Ids) -> None:
        """The base as described; ``mass``, if there is such a term, writes its own on it."""
        self._mass[rows, self._base] = self._own

    def write(self, rows: Ids, values: Array) -> None:
        """Add ``[n, 1]`` [kg] to the base as it is."""
        self._mass[rows, self._base] += values[:, 0]


class CentreTarget(FieldTarget):
    """Centre of mass of the base, in the base frame."""

    def __init__(self, engine: MujocoEngine) -> None:
        base = engine.built.base_body_id
        super().__init__(
            engine,
            ("x", "y", "z"),
            "body_ipos",
            np.full(3, base),
            column=np.arange(3),
            low=-np.inf,
            derives=True,
        )


class DriveTarget(Target):
    """A property of the motors that :class:`sim.actuators.Servos` keeps."""

    def __init__(self, engine: MujocoEngine, name: Literal["kp", "kd", "strength"]) -> None:
        robot = engine.robot
        labels = tuple(joint.name for joint in robot.actuated)
        ratio = name == "strength"
        super().__init__(labels, np.ones(len(labels)) if ratio else robot.actuated_array(name))
        self._servos = engine.servos
        self._argument = name if ratio else f"{name}_scale"
        self._unit: Array = np.where(self.nominal > 0.0, self.nominal, 1.0)

    def write(self, rows: Ids, values: Array) -> None:
        """Put ``[n, A]`` gains or strengths in force."""
        # The servos keep ratios, so that they also bend the gains of a command.
        zero = (self.nominal == 0.0) & (values != 0.0)
        if zero.any():
            names = [n for n, bad in zip(self.labels, zero.any(axis=0), strict=True) if bad]
            raise FerryError(f"the nominal gain of {', '.join(names)} is 0; nothing scales it")
        scale = np.where(self.nominal == 0.0, 1.0, values / self._unit)
        self._servos.bend(rows, **{self._argument: scale})


class DelayTarget(Target):
    """How late a world hears its targets."""

    def __init__(self, engine: MujocoEngine) -> None:
        super().__init__(("delay",), np.zeros(1), high=engine.built.delay_max_s)
        self._servos = engine.servos

    def write(self, rows: Ids, values: Array) -> None:
        """Put delays ``[n, 1]`` [s] in force."""
        self._servos.set_delay(rows, values[:, 0])


# ------------------------------------------------------------------ the table


@dataclass(frozen=True)
class TermKind:
    """A random term.

    Attributes:
        doc: what it changes.
        unit: of the nominal value, and of draws under ``=`` and ``+``.
        ops: what a draw may do to the nominal value.
        per: what may have a draw of its own; the first is the default.
        make: builds the target in an engine; None for what happens within an episode.
    """

    doc: str
    unit: str
    ops: str
    per: tuple[Per, ...]
    make: Callable[[MujocoEngine], Target] | None


_POSITIVE = 1e-9


def _friction(engine: MujocoEngine) -> Target:
    floor = engine.built.floor_geom_id
    # The floor has priority over the feet, so its friction is that of every contact.
    return FieldTarget(
        engine, ("floor",), "geom_friction", np.array([floor]), column=0, low=_POSITIVE
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


#: In the order in which they are written, whatever the order of the file.
TERMS: dict[str, TermKind] = {
    "friction": TermKind("sliding friction of the floor", "1", "=*+", ("world",), _friction),
    "mass": TermKind("masses, and inertias with them", "kg", "*+", ("body", "world"), _mass),
    "payload": TermKind("point mass on the base", "kg", "=+", ("world",), _payload),
    "com": TermKind("centre of mass of the base, each axis", "m", "+", ("body",), _centre),
    "kp": TermKind(
        "position gains of the motors",
        "N m/rad",
        "=*+",
        ("joint", "world"),
        _drive("kp"),
    ),
    "kd": TermKind(
        "velocity gains of the motors",
        "N m s/rad",
        "=*+",
        ("joint", "world"),
        _drive("kd"),
    ),
    "motor_strength": TermKind(
        "torque a motor gives over the one it should give; scales its limit too",
        "1",
        "=*",
        ("joint", "world"),
        _drive("strength"),
    ),
    "armature": TermKind(
        "reflected rotor inertia",
        "kg m^2",
        "=*+",
        ("joint", "world"),
        _joints("dof_armature", derives=True),
    ),
    "joint_friction": TermKind(
        "dry friction of the joints", "N m", "=*+", ("joint", "world"), _joints("dof_frictionloss")
    ),
    "joint_damping": TermKind(
        "viscous friction of the joints",
        "N m s/rad",
        "=*+",
        ("joint", "world"),
        _joints("dof_damping"),
    ),
    "delay": TermKind("how late targets are heard", "s", "=+", ("world",), DelayTarget),
    "push": TermKind(
        "sudden change of the base's velocity, x and y of the world", "m/s", "=+", ("world",), None
    ),
}
