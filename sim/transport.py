"""What happens to a signal between a sensor and who reads it: drift, steps, rate, losses, delay.

Time passes here in control steps, so a delay of a fraction of one lies between two measurements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from real.frames import multiply, normalize
from real.signals import RobotState
from sim.engine import Array, Ids

State = dict[str, NDArray[np.generic]]

#: Control steps whose chances are drawn at once.
BLOCK = 32


class Errors(Protocol):
    """The errors of a signal that belong here; :class:`sim.sensors.SignalConfig` has them."""

    walk: float
    quantum: float
    delay_s: tuple[float, float]
    jitter_s: float
    rate_hz: float | None
    dropout: float


class _Path:
    """The way of one signal in N worlds.

    Args:
        name: of the signal.
        field: where it is in a RobotState.
        errors: what happens on the way.
        num: N.
        size: K numbers of the signal, 3 for an orientation, whose drift is a small turn.
        dt: control period [s].
    """

    def __init__(
        self, name: str, field: str, errors: Errors, *, num: int, size: int, dt: float
    ) -> None:
        self.field, self.errors, self.size, self._dt = field, errors, size, dt
        self._turns = field == "quat_wb"
        self._every = 1 if errors.rate_hz is None else round(1.0 / (errors.rate_hz * dt))
        if errors.rate_hz is not None and (
            self._every < 2 or abs(self._every * errors.rate_hz * dt - 1.0) > 0.01
        ):
            raise FerryError(
                f"sensors.{name}.rate_hz is {errors.rate_hz:g}; signals are read at {1 / dt:g} Hz, "
                f"so expected that divided by 2, 3, ...: {0.5 / dt:g}, {1 / (3 * dt):g}, ..."
            )
        width = 4 if self._turns else size
        slots = math.ceil((errors.delay_s[1] + errors.jitter_s) / dt) + 2
        self.delay: Array = np.zeros(num)
        self.drift: Array = np.zeros((num, size))
        self.past: Array = np.zeros((num, slots, width))  # as measured, newest first
        self._everyone: Ids = np.arange(num)

    def begin(self, row: int, rng: np.random.Generator) -> None:
        low, high = self.errors.delay_s
        self.delay[row] = low + (high - low) * rng.random()
        self.drift[row] = 0.0

    def pass_on(self, true: Array, rows: Ids, *, age: Ids, chance: Array, wander: Array) -> Array:
        """What arrives in n worlds of what was measured in this and earlier control steps.

        Args:
            true: ``[n, K]`` the signal with its noise and bias.
            rows: n worlds.
            age: ``[n]`` control steps since the episode began; 0 is its first measurement.
            chance: ``[n, 2]`` uniform numbers, for loss and jitter.
            wander: ``[n, K]`` standard normal numbers, for the drift.
        """
        errors, first = self.errors, age == 0
        if errors.walk:
            step = errors.walk * math.sqrt(self._dt) * wander
            self.drift[rows] += np.where(first[:, None], 0.0, step)
            true = self._drifted(true, self.drift[rows])
        if errors.quantum:
            true = errors.quantum * np.round(true / errors.quantum)
        past = self.past[rows]
        taken = first | ((age % self._every == 0) & (chance[:, 0] >= errors.dropout))
        past[:, 1:] = past[:, :-1].copy()
        past[taken, 0] = true[taken]
        past[first] = true[first, None]
        self.past[rows] = past
        late = (self.delay[rows] + errors.jitter_s * chance[:, 1]) / self._dt
        whole = np.minimum(late.astype(np.intp), past.shape[1] - 2)
        at = np.arange(rows.size)
        new, old, part = past[at, whole], past[at, whole + 1], (late - whole)[:, None]
        if self._turns:  # q and -q are the same attitude; the way between is the short one
            old = np.where((new * old).sum(axis=1, keepdims=True) < 0.0, -old, old)
            return normalize((1.0 - part) * new + part * old)
        return (1.0 - part) * new + part * old

    def _drifted(self, true: Array, drift: Array) -> Array:
        if not self._turns:
            return true + drift
        turn = np.concatenate([np.ones((len(drift), 1)), 0.5 * drift], axis=1)
        return normalize(multiply(true, turn))


class Transport:
    """The ways of all signals of N robots that have errors on them.

    Args:
        signals: name -> (field of a RobotState, its errors, its size).
        num: N.
        rngs: one generator per world.
        dt: control period [s].

    Raises:
        FerryError: a rate is not below that of the control steps.
    """

    def __init__(
        self,
        signals: Mapping[str, tuple[str, Errors, int]],
        num: int,
        rngs: Sequence[np.random.Generator],
        *,
        dt: float,
    ) -> None:
        self._rngs = rngs
        self._paths = {
            name: _Path(name, field, errors, num=num, size=size, dt=dt)
            for name, (field, errors, size) in signals.items()
        }
        sizes = [path.size if path.errors.walk else 0 for path in self._paths.values()]
        self._ends = np.cumsum([0, *sizes])
        self._age: Ids = np.zeros(num, dtype=np.intp)
        self._next: Ids = np.full(num, BLOCK)
        self._chance: Array = np.zeros((num, BLOCK, len(self._paths), 2))
        self._wander: Array = np.zeros((num, BLOCK, int(self._ends[-1])))

    def reset(self, rows: Ids) -> None:
        """Begin episodes in worlds ``rows``: delays are drawn, nothing was measured yet."""
        for row in rows.tolist():
            for path in self._paths.values():
                path.begin(row, self._rngs[row])
        self._age[rows] = 0
        self._next[rows] = BLOCK

    def pass_on(self, state: RobotState, rows: Ids) -> RobotState:
        """What arrives of the signals of n robots, in this control step of theirs.

        Args:
            state: n robots, with noise and biases.
            rows: which of the N they are.
        """
        for row in rows[self._next[rows] == BLOCK].tolist():
            self._rngs[row].random(out=self._chance[row])
            self._rngs[row].standard_normal(out=self._wander[row])
            self._next[row] = 0
        now = self._next[rows]
        changed: dict[str, Any] = {}
        for i, path in enumerate(self._paths.values()):
            changed[path.field] = path.pass_on(
                getattr(state, path.field),
                rows,
                age=self._age[rows],
                chance=self._chance[rows, now, i],
                wander=self._wander[rows, now, self._ends[i] : self._ends[i + 1]],
            )
        self._next[rows] += 1
        self._age[rows] += 1
        return replace(state, **changed)

    def state_dict(self) -> State:
        """What was measured and what is drawn in advance, copied."""
        out: State = {"age": self._age, "next": self._next}
        out |= {"chance": self._chance, "wander": self._wander}
        for name, path in self._paths.items():
            out |= {f"{name}.delay": path.delay, f"{name}.drift": path.drift}
            out[f"{name}.past"] = path.past
        return {f"transport.{key}": values.copy() for key, values in out.items()}

    def load_state_dict(self, state: State) -> None:
        """Restore what :meth:`state_dict` gave.

        Raises:
            FerryError: the state is of other sensors.
        """
        now = self.state_dict()
        wrong = [k for k in now if k not in state or state[k].shape != now[k].shape]
        if wrong:
            raise FerryError(
                f"sensor state lacks {', '.join(wrong)}, or has it in another shape; were the "
                "sensors changed?"
            )
        self._age[...], self._next[...] = state["transport.age"], state["transport.next"]
        self._chance[...] = state["transport.chance"]
        self._wander[...] = state["transport.wander"]
        for name, path in self._paths.items():
            path.delay[...] = state[f"transport.{name}.delay"]
            path.drift[...] = state[f"transport.{name}.drift"]
            path.past[...] = state[f"transport.{name}.past"]
