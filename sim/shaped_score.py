"""Scores whose reward has one part more, ``shaping``; see :mod:`sim.shaping`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from real.kinematics import Kinematics
from real.signals import RobotState
from real.spec import RobotSpec
from sim.commands import Commands
from sim.engine import WorldState
from sim.measure import Measure
from sim.rewards import TERMS, RewardTable
from sim.score import Scorer
from sim.shaping import Shaping, ShapingConfig, shaping_parts
from sim.state import State
from sim.task import EnvConfig
from sim.terminations import Conditions, Terminations

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Ids = NDArray[np.intp]


class ShapedScorer(Scorer):
    """A :class:`~sim.score.Scorer` that adds potential-based shaping.

    Args:
        measure: what happened.
        rewards: the reward's terms, with room for the part ``shaping`` at the end.
        terminations: what ends an episode.
        config: the potential.
        commands: those in force, on which potentials may depend.
        num: N.
    """

    def __init__(
        self,
        measure: Measure,
        *,
        rewards: RewardTable,
        terminations: Terminations,
        config: ShapingConfig,
        commands: Commands,
        num: int,
    ) -> None:
        super().__init__(measure, rewards=rewards, terminations=terminations)
        self._commands = commands
        self._shaping = Shaping(num, gamma=config.gamma)
        self._num = num
        self._terms = [
            (TERMS[name], term.weight, dict(term.params))
            for name, term in config.potentials.items()
        ]

    def _potential(self, world: WorldState) -> Array:
        """Phi of all worlds, ``[N]``, under the commands in force."""
        seen = self.measure.at_rest(
            world,
            command=self._commands.value,
            gravity_b=world.down_b,
        )
        out = np.zeros(self._num)
        for term, weight, params in self._terms:
            out += weight * term(seen, **params)
        return out

    def score(
        self, world: WorldState, sensed: RobotState, **given: Any
    ) -> tuple[Array, Conditions]:
        """See :meth:`sim.score.Scorer.score`."""
        parts, conditions = super().score(world, sensed, **given)
        with np.errstate(over="ignore", invalid="ignore"):
            paid = self._shaping.step(self._potential(world), terminated=conditions.terminated)
        parts[-1] = np.where(conditions.diverged, 0.0, paid)
        return parts, conditions

    def begin(self, rows: Ids, world: WorldState) -> None:
        """See :meth:`sim.score.Scorer.begin`."""
        self._shaping.begin(rows, self._potential(world)[rows])

    def state_dict(self) -> State:
        """The potentials of the present states, copied."""
        return self._shaping.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Restore what :meth:`state_dict` gave."""
        self._shaping.load_state_dict(state)


def make_scorer(
    config: EnvConfig,
    robot: RobotSpec,
    num: int,
    *,
    feet_b: Array,
    kinematics: Kinematics | None,
    commands: Commands,
) -> Scorer:
    """The scorer of a task, with all its parts.

    Args:
        config: the task.
        robot: in every world.
        num: N.
        feet_b: ``[F, 3]`` feet in the base frame in the default pose [m].
        kinematics: of the end effector, where the task commands poses.
        commands: those of the worlds.
    """
    measure = Measure(
        robot, num, feet_b=feet_b, soft_limit=config.soft_limit, kinematics=kinematics
    )
    dt = robot.control_dt_s
    extra = shaping_parts(config.shaping)
    rewards = RewardTable(config.rewards, control_dt_s=dt, feet=len(feet_b), extra=extra)
    terminations = Terminations(
        config.terminations,
        num,
        fall_height_m=robot.fall_height_m,
        joints=robot.joint_names,
        q_default=robot.q_default,
        control_dt_s=dt,
    )
    parts = {"rewards": rewards, "terminations": terminations}
    if config.shaping is None:
        return Scorer(measure, **parts)
    return ShapedScorer(measure, **parts, config=config.shaping, commands=commands, num=num)
