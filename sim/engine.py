"""The border to a physics engine: N worlds of one robot, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from real.frames import projected_gravity
from real.signals import JointCommand, RobotState
from real.spec import RobotSpec
from sim.terrain import Terrain

Array = NDArray[np.float64]
Ids = NDArray[np.intp]
State = dict[str, NDArray[np.generic]]

GRAVITY = 9.81
"""Standard gravity to three digits [m/s^2], the same in every engine."""

FLOOR_FRICTION = 0.8
"""Nominal sliding friction of a foot on the floor: rubber on dry, smooth ground."""


@dataclass(frozen=True)
class WorldState:
    """Everything true about N worlds after a step. Arrays may be views: copy what you keep.

    Attributes:
        robot: the signals a perfect sensor would report (``tau`` is the applied effort).
        position_w: ``[N, 3]`` base position [m].
        lin_vel_b: ``[N, 3]`` base linear velocity in the base frame [m/s].
        foot_position_w: ``[N, F, 3]`` [m], in the order of ``RobotSpec.feet``.
        foot_velocity_w: ``[N, F, 3]`` [m/s].
        foot_contact: ``[N, F]`` whether a foot touches the ground.
        body_contact: ``[N]`` whether anything but a foot touches the ground.
        diverged: ``[N]`` whether the engine found this world non-finite or unstable.
        ground_w: ``[N, 1 + F]`` height of the ground below base and feet [m]; None where it is
            level, at zero.
        gravity_b: ``[N, 3]`` direction of gravity in the base frame, unit length, where the engine
            has it at hand; else None.
    """

    robot: RobotState
    position_w: Array
    lin_vel_b: Array
    foot_position_w: Array
    foot_velocity_w: Array
    foot_contact: NDArray[np.bool_]
    body_contact: NDArray[np.bool_]
    diverged: NDArray[np.bool_]
    ground_w: Array | None = None
    gravity_b: Array | None = None

    @property
    def height(self) -> Array:
        """``[N]`` of the base above the ground below it [m]."""
        above = self.position_w[:, 2]
        return above if self.ground_w is None else above - self.ground_w[:, 0]

    @property
    def down_b(self) -> Array:
        """``[N, 3]`` direction of gravity in the base frame, unit length."""
        return projected_gravity(self.robot.quat_wb) if self.gravity_b is None else self.gravity_b

    @property
    def foot_over_ground(self) -> Array:
        """``[N, F, 3]`` foot positions with z above the ground below each foot [m]."""
        if self.ground_w is None:
            return self.foot_position_w
        out = self.foot_position_w.copy()
        out[:, :, 2] -= self.ground_w[:, 1:]
        return out

    def of(self, rows: Ids) -> WorldState:
        """The state of worlds ``rows``, copied."""
        return WorldState(robot=self.robot.of(rows), **{k: v[rows] for k, v in self._arrays()})

    def put(self, rows: Ids, state: WorldState) -> None:
        """Write the state of n worlds into the arrays of this one, as worlds ``rows``."""
        for name, value in self._arrays():
            value[rows] = getattr(state, name)
        for name, value in self.robot.reported().items():
            value[rows] = getattr(state.robot, name)

    def _arrays(self) -> list[tuple[str, NDArray[Any]]]:
        """What is there of its own arrays: on a plane no height of the ground."""
        found = vars(self).items()
        return [(name, value) for name, value in found if name != "robot" and value is not None]


@dataclass(frozen=True)
class InitialState:
    """Where n worlds start. Shapes as in :class:`WorldState` with n rows.

    Attributes:
        q: ``[n, J]``.
        dq: ``[n, J]``.
        position_w: ``[n, 3]``.
        quat_wb: ``[n, 4]``.
        lin_vel_b: ``[n, 3]``.
        ang_vel_b: ``[n, 3]``.
    """

    q: Array
    dq: Array
    position_w: Array
    quat_wb: Array
    lin_vel_b: Array
    ang_vel_b: Array

    @staticmethod
    def default(robot: RobotSpec, num: int) -> InitialState:
        """Default pose, upright, at rest, feet about on the ground."""
        position = np.zeros((num, 3))
        position[:, 2] = robot.base_height_m
        quat = np.zeros((num, 4))
        quat[:, 0] = 1.0
        joints = len(robot.joints)
        return InitialState(
            q=np.tile(robot.q_default, (num, 1)),
            dq=np.zeros((num, joints)),
            position_w=position,
            quat_wb=quat,
            lin_vel_b=np.zeros((num, 3)),
            ang_vel_b=np.zeros((num, 3)),
        )


class Engine(Protocol):
    """N worlds of one robot on a plane, or all on the same terrain.

    What differs between worlds (friction, masses, gains, delay and so on) is written through the
    targets of :func:`sim.engine_terms.target_maker`, a random term each.

    Attributes:
        robot: the robot in every world.
        num: N.
        terrain: what they stand on; None for a plane.
    """

    robot: RobotSpec
    num: int
    terrain: Terrain | None

    def reset(self, rows: Ids, start: InitialState) -> None:
        """Re-initialise worlds ``rows`` whole (warm starts, delays and time included).

        Derived quantities of these rows are current afterwards; other rows are untouched.
        """
        ...

    def step(self, q_des: Array, *, substeps: int | None = None) -> None:
        """Track joint targets ``[N, A]`` with the robot's gains.

        Args:
            q_des: [rad or m].
            substeps: physics steps; one control period's worth if None.
        """
        ...

    def apply(self, command: JointCommand, *, substeps: int | None = None) -> None:
        """As :meth:`step`, but with the gains, velocities and feed-forward of ``command``.

        This is how damping reaches a simulated robot. Gains of the command hold until the next
        call of :meth:`step` or :meth:`apply`.
        """
        ...

    def add_velocity(self, rows: Ids, lin_w: Array, ang_b: Array) -> None:
        """Change the velocity of the floating base at once, as a short, hard push would.

        Args:
            rows: n worlds.
            lin_w: ``[n, 3]`` world frame [m/s].
            ang_b: ``[n, 3]`` base frame [rad/s].

        Raises:
            FerryError: the base is fixed.
        """
        ...

    def refresh_constants(self, rows: Ids) -> None:
        """Derive what follows from changed masses and inertias of worlds ``rows``."""
        ...

    def state(self) -> WorldState:
        """The state after the last step or reset, derived quantities current."""
        ...

    def renew_state(self, world: WorldState, rows: Ids) -> WorldState:
        """As :meth:`state` after worlds ``rows`` were reset and no others.

        Args:
            world: what :meth:`state` gave since the last step; may be written to.
            rows: n worlds.
        """
        ...

    def state_dict(self) -> State:
        """Everything a bit-exact continuation needs, as flat arrays, copied."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Continue where :meth:`state_dict` was taken, in an engine of the same robot and N.

        Raises:
            FerryError: the state is of another engine, robot or number of worlds.
        """
        ...

    def close(self) -> None:
        """Release threads, processes and engine handles. May be called twice."""
        ...
