"""The vector env with potential-based shaping around its reward; see :mod:`sim.shaping`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from real.errors import ConfigError
from real.frames import projected_gravity
from sim.engine import WorldState
from sim.env import VecEnv
from sim.rewards import TERMS
from sim.shaping import Shaping
from sim.state import Stateful
from sim.task import EnvConfig
from sim.terminations import Conditions

Array = NDArray[np.float64]
Ids = NDArray[np.intp]


class ShapedEnv(VecEnv):
    """A :class:`~sim.env.VecEnv` whose reward has one part more, ``shaping``."""

    def _make_parts(self) -> None:
        config = self.config.shaping
        if config is None:
            raise ConfigError("a shaped env needs `shaping:` in its task")
        self._shaping = Shaping(self.num_envs, gamma=config.gamma)
        self._terms = [
            (TERMS[name], term.weight, dict(term.params))
            for name, term in config.potentials.items()
        ]
        super()._make_parts()

    def _potential(self, world: WorldState) -> Array:
        """Phi of all worlds, ``[N]``, under the commands in force."""
        seen = self._measure.at_rest(
            world,
            command=self._commands.value,
            gravity_b=projected_gravity(world.robot.quat_wb),
        )
        out = np.zeros(self.num_envs)
        for term, weight, params in self._terms:
            out += weight * term(seen, **params)
        return out

    def _score(self, world: WorldState, action: Array, command: Array) -> tuple[Array, Conditions]:
        parts, conditions = super()._score(world, action, command)
        with np.errstate(over="ignore", invalid="ignore"):
            paid = self._shaping.step(self._potential(world), terminated=conditions.terminated)
        parts[-1] = np.where(conditions.diverged, 0.0, paid)
        return parts, conditions

    def _reset_rows(self, rows: Ids) -> WorldState:
        world = super()._reset_rows(rows)
        self._shaping.begin(rows, self._potential(world)[rows])
        return world

    def _stateful(self) -> dict[str, Stateful]:
        return {**super()._stateful(), "shaping": self._shaping}


def env_class(config: EnvConfig) -> type[VecEnv]:
    """Which env a task needs."""
    return VecEnv if config.shaping is None else ShapedEnv
