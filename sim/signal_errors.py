"""Errors between policy and motors that no engine needs to know of, so every engine has them alike.

An encoder whose zero is wrong reports q + offset, and the drive behind it brings that, not q, to
the target. Play swallows the first part of every turn. Targets are lost, or come late by more than
the world's delay. An IMU on a sloping floor reports its attitude against gravity. What is measured
arrives late, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from real.frames import multiply
from real.signals import RobotState
from sim.engine import Array, Engine, Ids
from sim.late_signals import LateSignals
from sim.random_table import OBSERVED_MAX_S
from sim.random_targets import Target

State = dict[str, NDArray[np.generic]]

#: Control steps whose jitter and losses are drawn at once.
BLOCK = 32

#: The random terms that are simulated here.
SIGNAL_TERMS = (
    "joint_offset",
    "backlash",
    "delay_jitter",
    "dropout",
    "observation_delay",
    "observation_jitter",
)
_OBSERVED = frozenset({"observation_delay", "observation_jitter"})
_BY_CHANCE = frozenset({"delay_jitter", "dropout", "observation_jitter"})


class SignalErrors:
    """What happens to targets on their way to N worlds, and to joint positions on theirs back.

    Args:
        engine: the worlds.
        terms: names of :data:`SIGNAL_TERMS` in use.
        set_delay: lets worlds ``[n]`` hear targets ``[n]`` seconds late.
        delay_max_s: longest delay that the engine has room for [s].
        observed_max_s: longest delay of what is measured [s].
        control_dt_s: control period [s].
    """

    def __init__(
        self,
        engine: Engine,
        terms: Sequence[str],
        *,
        set_delay: Callable[[Ids, Array], None],
        delay_max_s: float,
        observed_max_s: float,
        control_dt_s: float,
    ) -> None:
        robot, num = engine.robot, engine.num
        self._set_delay, self._delay_max_s = set_delay, delay_max_s
        self._joints, self._motors = robot.joint_names, [j.name for j in robot.actuated]
        self._actuated = robot.actuated_ids
        self._everyone: Ids = np.arange(num)
        motors = len(self._motors)
        self._in_use = frozenset(terms)
        self._offset: Array = np.zeros((num, len(self._joints)))
        self._play: Array = np.zeros((num, motors))
        self._jitter: Array = np.zeros((num, 1))
        self._loss: Array = np.zeros((num, 1))
        self._delay: Array = np.zeros(num)
        self._tilt: Array | None = None
        # What the joints were told last, NaN before the first target of an episode.
        self._told: Array = np.full((num, motors), np.nan)
        # One number more only where somebody needs it: the others stay what they were without.
        numbers = 3 if "observation_jitter" in self._in_use else 2
        self._chance: NDArray[np.float32] = np.zeros((num, BLOCK, numbers), dtype=np.float32)
        self._next: Ids = np.full(num, BLOCK)
        self._lost: NDArray[np.bool_] = np.zeros(num, dtype=bool)
        self._by_chance = bool(self._in_use & _BY_CHANCE)
        self._on_targets = bool(self._in_use - _OBSERVED)
        self._age: Array = np.zeros((num, 1))
        self._age_jitter: Array = np.zeros((num, 1))
        self._older: Array = np.zeros(num)  # by chance, in this control step
        self._late: LateSignals | None = None
        if self._in_use & _OBSERVED:
            joints = len(self._joints)
            self._late = LateSignals(
                num, joints, longest_s=observed_max_s, control_dt_s=control_dt_s
            )

    def target(self, name: str) -> Target:
        """What a random term of :data:`SIGNAL_TERMS` writes to."""
        if name == "joint_offset":
            return _Rows(self._joints, self._offset, low=-np.inf)
        if name == "backlash":
            return _Rows(tuple(self._motors), self._play)
        if name == "delay_jitter":
            return _Rows(("delay_jitter",), self._jitter, high=self._delay_max_s)
        if name in _OBSERVED:
            values = self._age if name == "observation_delay" else self._age_jitter
            return _Rows((name,), values, high=OBSERVED_MAX_S)
        return _Rows(("dropout",), self._loss, high=0.99)

    def begin(self, rows: Ids) -> None:
        """Begin an episode in worlds ``rows``: nothing has been told yet."""
        self._told[rows] = np.nan
        self._next[rows] = BLOCK
        self._lost[rows] = False
        self._older[rows] = 0.0
        if self._late is not None:
            self._late.begin(rows)

    def delayed(self, rows: Ids, seconds: Array) -> None:
        """Worlds ``rows`` hear targets ``seconds [n]`` late, and later still with jitter."""
        self._delay[rows] = seconds
        if "delay_jitter" in self._in_use:
            self._set_delay(rows, seconds)

    def tilted(self, rows: Ids, angles: Array) -> None:
        """The floor of worlds ``rows`` slopes by ``[n, 2]`` about x, then about the new y [rad]."""
        if self._tilt is None:
            self._tilt = np.tile([1.0, 0.0, 0.0, 0.0], (len(self._told), 1))
        zero, half = np.zeros(rows.size), 0.5 * angles
        about_x = np.stack([np.cos(half[:, 0]), np.sin(half[:, 0]), zero, zero], axis=1)
        about_y = np.stack([np.cos(half[:, 1]), zero, np.sin(half[:, 1]), zero], axis=1)
        self._tilt[rows] = multiply(about_x, about_y)

    def before_step(self, rngs: Sequence[np.random.Generator]) -> None:
        """Draw what is left to chance in this control step; before :meth:`to_motors`."""
        if not self._by_chance:
            return
        for row in np.flatnonzero(self._next == BLOCK).tolist():
            rngs[row].random(out=self._chance[row], dtype=np.float32)
            self._next[row] = 0
        late, lost, *older = self._chance[self._everyone, self._next].T
        self._next += 1
        self._lost = lost < self._loss[:, 0]
        if older:
            self._older = older[0] * self._age_jitter[:, 0]
        if "delay_jitter" in self._in_use:
            self._set_delay(self._everyone, self._delay + late * self._jitter[:, 0])

    def to_motors(self, q_des: Array) -> Array:
        """Targets ``[N, A]`` as the joints of N worlds are told them."""
        if not self._on_targets:
            return q_des
        out = q_des - self._offset[:, self._actuated]
        fresh = np.isnan(self._told)
        if self._lost.any():
            out = np.where(self._lost[:, None] & ~fresh, self._told, out)
        if "backlash" in self._in_use:
            # A play operator: what it gives follows its input at a distance of half the play.
            before, half = np.where(fresh, out, self._told), 0.5 * self._play
            out = np.clip(before, out - half, out + half)
        self._told = out
        return out

    def sensed(self, state: RobotState) -> RobotState:
        """True signals of N robots as ideal sensors with these errors report them.

        Once per control step, and once more for worlds that begin an episode.
        """
        if "joint_offset" in self._in_use:
            state = replace(state, q=state.q + self._offset)
        if self._tilt is not None:
            state = replace(state, quat_wb=multiply(self._tilt, state.quat_wb))
        if self._late is None:
            return state
        return self._late.report(state, self._age[:, 0] + self._older)

    def state_dict(self) -> State:
        """Everything that lasts longer than a step, copied."""
        out: State = {f"errors.{name}": getattr(self, f"_{name}").copy() for name in _KEPT}
        if self._late is not None:
            out |= {f"errors.{name}": getattr(self, f"_{name}").copy() for name in _KEPT_LATE}
            out |= self._late.state_dict()
        return out if self._tilt is None else out | {"errors.tilt": self._tilt.copy()}

    def load_state_dict(self, state: State) -> None:
        """Restore what :meth:`state_dict` gave."""
        if "errors.told" not in state:
            raise FerryError("randomiser state lacks signal errors; it is of another table")
        for name in _KEPT:  # in place: the targets write to these arrays
            getattr(self, f"_{name}")[...] = state[f"errors.{name}"]
        if self._late is not None:
            self._late.load_state_dict(state)
            for name in _KEPT_LATE:
                getattr(self, f"_{name}")[...] = state[f"errors.{name}"]
        if "errors.tilt" in state:
            self._tilt = np.array(state["errors.tilt"], dtype=np.float64)


_KEPT = ("offset", "play", "jitter", "loss", "delay", "told", "chance", "next", "lost")
_KEPT_LATE = ("age", "age_jitter", "older")


class _Rows(Target):
    """Rows of an array ``[N, K]``, nominally zero."""

    def __init__(
        self, labels: tuple[str, ...], values: Array, *, low: float = 0.0, high: float = np.inf
    ) -> None:
        super().__init__(labels, np.zeros(len(labels)), low=low, high=high)
        self._values = values

    def write(self, rows: Ids, values: Array) -> None:
        """Put ``[n, K]`` in force in n worlds."""
        self._values[rows] = values
