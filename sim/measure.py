"""What happened in a control step, as rewards and critics read it.

Quantities that several terms share are computed once here; the memory that some of them need
(previous velocities and actions, how long a foot has been in the air) lives here too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from real.kinematics import Kinematics
from real.spec import RobotSpec
from sim.arm_terms import ReachMeasure
from sim.engine import WorldState
from sim.reward_terms import RewardInput

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Ids = NDArray[np.intp]


class Measure:
    """Turns successive world states into :class:`~sim.reward_terms.RewardInput`.

    Args:
        robot: limits, default pose, number of feet.
        num: N.
        feet_b: ``[F, 3]`` where the feet are in the default pose [m]; zeros if None.
        soft_limit: share of the position range that counts as inside, in (0, 1].
        kinematics: of the end effector, where poses are commanded.

    Attributes:
        action_1: ``[N, A]`` clipped action of the last step, zero after a reset.
        foot_air_s: ``[N, F]`` how long each foot has been in the air, 0 on the ground [s].
    """

    def __init__(
        self,
        robot: RobotSpec,
        num: int,
        *,
        feet_b: Array | None = None,
        soft_limit: float = 0.9,
        kinematics: Kinematics | None = None,
    ) -> None:
        feet_b = np.zeros((len(robot.feet), 3)) if feet_b is None else feet_b
        self._diagonals = diagonal_pairs(feet_b)
        actions = len(robot.actuated)
        self._dt = robot.control_dt_s
        self._q_default: Array = robot.q_default
        self._q_soft = soft_limits(robot, soft_limit)
        self._actuated = robot.actuated_ids
        self._passive_hinges = passive_hinges(robot)
        self.action_1: Array = np.zeros((num, actions))
        self._action_2: Array = np.zeros((num, actions))
        self._dq: Array = np.zeros((num, len(robot.joints)))
        self.foot_air_s: Array = np.zeros((num, len(robot.feet)))
        self._reach = None if kinematics is None else ReachMeasure(kinematics, num, dt=self._dt)

    def reset(self, rows: Ids, dq: Array) -> None:
        """Forget the past of worlds ``rows``, which start with joint velocities ``dq [n, J]``."""
        self.action_1[rows] = 0.0
        self._action_2[rows] = 0.0
        self.foot_air_s[rows] = 0.0
        self._dq[rows] = dq
        if self._reach is not None:
            self._reach.reset(rows)

    def step(
        self,
        world: WorldState,
        action: Array,
        *,
        command: Array,
        gravity_b: Array,
        fallen: Mask,
        clamped: Mask | None = None,
    ) -> RewardInput:
        """Measure one control step; to be called once per step.

        Args:
            world: the state after the step.
            action: ``[N, A]`` the clipped action of the step; kept, so do not write to it.
            command: ``[N, C]`` the command it answered.
            gravity_b: ``[N, 3]`` direction of gravity in the base frame.
            fallen: ``[N]``, or strayed.
            clamped: ``[N, A]`` whether limits moved a target; nowhere if None.
        """
        robot = world.robot
        contact = world.foot_contact.astype(np.float64)
        air = self.foot_air_s
        # A foot that touches and was in the air has landed; its swing includes this step.
        lifted = 1.0 - contact
        landed = contact * (air > 0.0)
        air = air + self._dt * (lifted + landed)
        ddq = robot.dq - self._dq
        ddq /= self._dt
        measured = self._input(
            world,
            command=command,
            gravity_b=gravity_b,
            ddq=ddq,
            action=action,
            action_1=self.action_1,
            action_2=self._action_2,
            foot_contact=contact,
            foot_landed=landed,
            foot_air_s=air,
            fallen=fallen,
            clamped=np.zeros(action.shape, dtype=bool) if clamped is None else clamped,
            reach=None if self._reach is None else self._reach.step(robot.q, command),
        )
        # New arrays, not writes: `measured` keeps what it was given.
        self.foot_air_s = air * lifted
        self._action_2, self.action_1 = self.action_1, action
        self._dq = robot.dq.copy()
        return measured

    def at_rest(self, world: WorldState, *, command: Array, gravity_b: Array) -> RewardInput:
        """A state without what led to it: actions and differences are zero; remembers nothing.

        Args:
            world: the state.
            command: ``[N, C]`` the command in force.
            gravity_b: ``[N, 3]`` direction of gravity in the base frame.
        """
        no_action, no_air = np.zeros_like(self.action_1), np.zeros_like(self.foot_air_s)
        return self._input(
            world,
            command=command,
            gravity_b=gravity_b,
            ddq=np.zeros_like(world.robot.dq),
            action=no_action,
            action_1=no_action,
            action_2=no_action,
            foot_contact=world.foot_contact.astype(np.float64),
            foot_landed=no_air,
            foot_air_s=no_air,
            fallen=np.zeros(len(command), dtype=bool),
            clamped=np.zeros(no_action.shape, dtype=bool),
            reach=None if self._reach is None else self._reach.at_rest(world.robot.q, command),
        )

    def _input(
        self, world: WorldState, *, command: Array, gravity_b: Array, **history: Any
    ) -> RewardInput:
        robot = world.robot
        across = world.foot_velocity_w[:, :, :2]
        return RewardInput(
            dt=self._dt,
            command=command,
            moving=np.add.reduce(np.abs(command), axis=1) > 0.0,
            lin_vel_b=world.lin_vel_b,
            ang_vel_b=robot.gyro_b,
            gravity_b=gravity_b,
            height=world.height,
            q=robot.q,
            q_offset=robot.q - self._q_default,
            q_soft=self._q_soft,
            dq=robot.dq,
            tau=robot.tau,
            actuated=self._actuated,
            passive_hinges=self._passive_hinges,
            diagonals=self._diagonals,
            foot_position_w=world.foot_over_ground,
            foot_speed=np.sqrt(np.add.reduce(across * across, axis=2)),
            body_contact=world.body_contact,
            **history,
        )

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """Memory of the last steps, copied."""
        return {
            "action_1": self.action_1.copy(),
            "action_2": self._action_2.copy(),
            "dq": self._dq.copy(),
            "foot_air_s": self.foot_air_s.copy(),
            **({} if self._reach is None else self._reach.state_dict()),
        }

    def load_state_dict(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore what :meth:`state_dict` gave."""
        self.action_1 = np.array(state["action_1"], dtype=np.float64)
        self._action_2 = np.array(state["action_2"], dtype=np.float64)
        self._dq = np.array(state["dq"], dtype=np.float64)
        self.foot_air_s = np.array(state["foot_air_s"], dtype=np.float64)
        if self._reach is not None:
            self._reach.load_state_dict(state)


def passive_hinges(robot: RobotSpec) -> Ids:
    """``[P]`` which of the J joints are hinges without a motor."""
    return np.flatnonzero([j.kind == "hinge" and not j.actuated for j in robot.joints])


def diagonal_pairs(feet_b: Array) -> Ids:
    """The two diagonals of four feet, whatever their order.

    Going round the feet about their middle, every other foot belongs to the same diagonal.

    Args:
        feet_b: ``[F, 3]`` where the feet are in the default pose, base frame [m].

    Returns:
        ``[2, 2]`` columns; ``[0, 2]`` unless there are four feet.
    """
    if feet_b.shape[0] != 4:
        return np.empty((0, 2), dtype=np.intp)
    x, y = (feet_b - feet_b.mean(axis=0))[:, :2].T
    around = np.argsort(np.arctan2(y, x), kind="stable")
    return np.stack([around[::2], around[1::2]])


def soft_limits(robot: RobotSpec, share: float) -> Array:
    """Position limits shrunk about their middle to ``share`` of the range.

    Returns:
        ``[2, J]`` low and high [rad or m]; infinite for joints without a stop.
    """
    low = np.array([j.q_min for j in robot.joints])
    high = np.array([j.q_max for j in robot.joints])
    with np.errstate(invalid="ignore"):
        margin = 0.5 * (1.0 - share) * (high - low)
    margin = np.where(np.isfinite(margin), margin, 0.0)
    # A joint without a limit (NaN) is never outside it.
    low = np.where(np.isnan(low), -np.inf, low)
    high = np.where(np.isnan(high), np.inf, high)
    return np.stack([low + margin, high - margin])
