"""What random terms write to: numbers of N MuJoCo worlds, their nominal values and bounds.

Values are always computed from the nominal ones, never from what an earlier episode left, so draws
cannot compound.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from sim.engine import Array, Ids
from sim.mujoco_engine import MujocoEngine

#: Masses, rates and speeds of nothing at all make no sense.
POSITIVE = 1e-9


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
        super().__init__(engine, labels, "body_mass", where, low=POSITIVE, derives=True)
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
        self._zero: NDArray[np.bool_] = self.nominal == 0.0
        self._some_zero = bool(self._zero.any())

    def write(self, rows: Ids, values: Array) -> None:
        """Put ``[n, A]`` gains or strengths in force."""
        # The servos keep ratios, so that they also bend the gains of a command.
        scale = values / self._unit
        if self._some_zero:
            bad = self._zero & (values != 0.0).any(axis=0)
            if bad.any():
                names = [n for n, each in zip(self.labels, bad, strict=True) if each]
                raise FerryError(f"the nominal gain of {', '.join(names)} is 0; nothing scales it")
            scale[:, self._zero] = 1.0
        self._servos.bend(rows, **{self._argument: scale})


class DelayTarget(Target):
    """How late a world hears its targets."""

    def __init__(self, engine: MujocoEngine) -> None:
        super().__init__(("delay",), np.zeros(1), high=engine.built.delay_max_s)
        self._servos = engine.servos

    def write(self, rows: Ids, values: Array) -> None:
        """Put delays ``[n, 1]`` [s] in force."""
        self._servos.set_delay(rows, values[:, 0])


class ContactFrictionTarget(Target):
    """Friction of the floor against turning: on the spot (column 1) or by rolling (column 2).

    MuJoCo computes it only in contacts of enough dimensions, which these worlds then have.

    Args:
        engine: the worlds.
        column: of ``geom_friction``.
    """

    _DIMENSIONS = {1: 4, 2: 6}

    def __init__(self, engine: MujocoEngine, column: Literal[1, 2]) -> None:
        self._floor, self._column = engine.built.floor_geom_id, column
        nominal = engine.built.model.geom_friction[self._floor, column]
        super().__init__(("floor",), np.array([nominal], dtype=np.float64))
        self._values, self._size = engine.field("geom_friction"), engine.field("geom_condim")

    def write(self, rows: Ids, values: Array) -> None:
        """Put ``[n, 1]`` [m] in force."""
        self._values[rows, self._floor, self._column] = values[:, 0]
        # Rolling needs more dimensions than spinning, whichever of the two is written last.
        needed = self._DIMENSIONS[self._column]
        self._size[rows, self._floor] = np.maximum(self._size[rows, self._floor], needed)


class ContactTarget(Target):
    """Stiffness (column 0) or damping (column 1) of contacts with the floor, in ``solref``.

    Written in MuJoCo's direct form (-stiffness, -damping). Its usual form (time constant t, damping
    ratio r) is the same with stiffness 1 / (t r)^2 and damping 2 / t ("Solver parameters" in its
    manual), and is capped at t = 2 dt; the direct form is not, so what lies beyond is refused.

    Args:
        engine: the worlds.
        column: of ``geom_solref``.
    """

    def __init__(self, engine: MujocoEngine, column: Literal[0, 1]) -> None:
        self._floor, self._column = engine.built.floor_geom_id, column
        time, ratio = engine.built.model.geom_solref[self._floor].tolist()
        shortest = 2.0 * engine.robot.physics_dt_s
        self._own: Array = -np.array([1.0 / (time * ratio) ** 2, 2.0 / time])
        high = (1.0 / shortest**2, 2.0 / shortest)[column]
        super().__init__(("floor",), -self._own[[column]], low=POSITIVE, high=high)
        self._values = engine.field("geom_solref")

    def restore(self, rows: Ids) -> None:
        """The nominal contact in the direct form; the two columns must be of the same form."""
        self._values[rows, self._floor] = self._own

    def write(self, rows: Ids, values: Array) -> None:
        """Put ``[n, 1]`` [1/s^2 or 1/s] in force."""
        self._values[rows, self._floor, self._column] = -values[:, 0]


class GravityTarget(Target):
    """Which way things fall: a floor that is not level, while a level one is drawn.

    The IMU's attitude is that against the floor, as everywhere here; what it feels of gravity, and
    so the accelerometer, is tilted.
    """

    def __init__(self, engine: MujocoEngine) -> None:
        super().__init__(("roll", "pitch"), np.zeros(2), low=-0.5, high=0.5)
        self._values = engine.gravity()
        self._size = -float(engine.built.model.opt.gravity[2])

    def write(self, rows: Ids, values: Array) -> None:
        """Tilt the floor by ``[n, 2]`` [rad] about x, then about the new y."""
        roll, pitch = values[:, 0], values[:, 1]
        # Gravity in the frame of the floor: (Rx Ry)^T (0, 0, -g).
        self._values[rows, 0] = self._size * np.sin(pitch) * np.cos(roll)
        self._values[rows, 1] = -self._size * np.sin(roll)
        self._values[rows, 2] = -self._size * np.cos(pitch) * np.cos(roll)


class SpeedTarget(Target):
    """No-load speeds of the motors: how much torque is left when they turn.

    A motor on a limited voltage gives at speed w between -T - c w and T - c w, where T is its
    stalled torque and c = T / no-load speed: what its own voltage takes away. The engine computes
    that in every physics step, as clip(u + c w, +-T) - c w: the servo's clip and joint damping c.
    """

    def __init__(self, engine: MujocoEngine) -> None:
        robot = engine.robot
        labels = tuple(joint.name for joint in robot.actuated)
        super().__init__(labels, np.full(len(labels), np.inf), low=POSITIVE)
        endless = [joint.name for joint in robot.actuated if not np.isfinite(joint.tau_max)]
        if endless:
            raise FerryError(
                f"random term 'no_load_speed' needs the torque limit of {', '.join(endless)}, "
                f"which is not known; give tau_max in {robot.source}"
            )
        self._servos = engine.servos
        self._damping = engine.field("dof_damping")
        self._dof = engine.built.joint_dof_adr[robot.actuated_ids]
        self._own: Array = engine.built.model.dof_damping[self._dof].copy()

    def restore(self, rows: Ids) -> None:
        """The joints' own damping; ``joint_damping``, if there is such a term, writes another."""
        self._damping[rows[:, None], self._dof] = self._own

    def write(self, rows: Ids, values: Array) -> None:
        """Put ``[n, A]`` [rad/s] in force."""
        self._damping[rows[:, None], self._dof] += self._servos.set_no_load_speed(rows, values)
