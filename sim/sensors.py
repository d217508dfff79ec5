"""Imperfect sensors: white noise and a bias per episode, on signals, before anything observes them.

In a task file::

    sensors:
      q: {noise: 0.01, bias: 0.01}          # rad
      gyro: {noise: 0.05}                   # rad/s
      orientation: {noise: 0.02, bias: 0.02}    # rad, a small tilt

Noise of many steps is drawn at once: a call of the generator per world and step would cost more
than the rest of the sensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from real.config import Config, parse_config
from real.errors import ConfigError, FerryError
from real.frames import multiply, normalize
from real.signals import RobotState
from sim.engine import Array, Ids

State = dict[str, NDArray[np.generic]]
NotNegative = Annotated[float, Field(ge=0.0)]

#: Control steps whose noise is drawn at once.
BLOCK = 32


class SignalConfig(Config):
    """Errors of one signal, in its unit."""

    noise: NotNegative = Field(default=0.0, description="standard deviation in each step")
    bias: NotNegative = Field(
        default=0.0, description="constant within an episode, uniform in +-bias"
    )


class SensorConfig(Config):
    """The ``sensors`` section of a task. What is not given is perfect."""

    q: SignalConfig | None = Field(default=None, description="joint positions [rad or m]")
    dq: SignalConfig | None = Field(default=None, description="joint velocities [rad/s or m/s]")
    gyro: SignalConfig | None = Field(default=None, description="angular velocity [rad/s]")
    acc: SignalConfig | None = Field(default=None, description="specific force [m/s^2]")
    orientation: SignalConfig | None = Field(default=None, description="tilt and heading [rad]")

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        for name in type(self).model_fields:
            signal: SignalConfig | None = getattr(self, name)
            if signal is not None and signal.noise == signal.bias == 0.0:
                raise ConfigError(
                    f"sensors.{name} has neither noise nor bias: it changes nothing; remove it"
                )
        return self


_FIELDS = {"q": "q", "dq": "dq", "gyro": "gyro_b", "acc": "acc_b"}


class Sensors:
    """What the sensors of N robots report, given what is true.

    A world's errors come from its own generator and do not depend on what other worlds do.

    Args:
        config: errors by signal, also as a mapping from YAML; None for perfect sensors.
        num: N.
        rngs: one generator per world.
        joints: J.

    Raises:
        ConfigError: a signal is unknown, a number wrong, or an entry changes nothing.
    """

    def __init__(
        self,
        config: SensorConfig | Mapping[str, Any] | None,
        num: int,
        rngs: Sequence[np.random.Generator],
        *,
        joints: int,
    ) -> None:
        if len(rngs) != num:
            raise ValueError(f"{len(rngs)} generators for {num} worlds; expected one each")
        if config is not None and not isinstance(config, SensorConfig):
            config = parse_config(SensorConfig, config, source="sensors")
        self._rngs = rngs
        # Each signal has its columns in the K errors of a world.
        self._columns: dict[str, slice] = {}
        std: list[float] = []
        bias: list[float] = []
        for name in SensorConfig.model_fields:
            signal: SignalConfig | None = None if config is None else getattr(config, name)
            if signal is not None:
                size = joints if name in ("q", "dq") else 3
                self._columns[name] = slice(len(std), len(std) + size)
                std += [signal.noise] * size
                bias += [signal.bias] * size
        self._std: Array = np.array(std)
        self._bias_max: Array = np.array(bias)
        self._bias: Array = np.zeros((num, len(std)))
        self._first: Array = np.zeros((num, len(std)))
        self._noise: NDArray[np.float32] = np.zeros((num, BLOCK, len(std)), dtype=np.float32)
        # How much of its block a world has used up. Every episode begins a new one, so that its
        # noise follows from where the generator stood, whatever the other worlds do.
        self._next: NDArray[np.intp] = np.full(num, BLOCK)
        self._everyone: Ids = np.arange(num)

    def reset(self, rows: Ids) -> None:
        """Draw biases for new episodes of worlds ``rows``, and the noise of their first states."""
        if not self._columns:
            return
        size = self._std.size
        for row in rows.tolist():
            rng = self._rngs[row]
            self._bias[row] = self._bias_max * rng.uniform(-1.0, 1.0, size)
            self._first[row] = self._std * rng.standard_normal(size)
        self._next[rows] = BLOCK

    def sense(self, state: RobotState) -> RobotState:
        """What is reported of a control step; to be called once per step.

        Args:
            state: the true signals of N robots; returned as it is by perfect sensors.
        """
        if not self._columns:
            return state
        used_up = np.flatnonzero(self._next == BLOCK)
        if used_up.size:
            self._draw_blocks(used_up)
        errors = self._bias + self._noise[self._everyone, self._next]
        self._next += 1
        return self._disturb(state, errors)

    def sense_rows(self, state: RobotState, rows: Ids, before: RobotState) -> RobotState:
        """What is reported once worlds ``rows`` are reset; does not count as a step.

        Args:
            state: the true signals of N robots after the reset.
            rows: n worlds that were reset, here too by :meth:`reset`.
            before: what was reported before the reset, which stays true of all others.

        Returns:
            New arrays, N robots.
        """
        if not self._columns:
            return state
        n = {name: value[rows] for name, value in state.reported().items()}
        fresh = self._disturb(RobotState(**n), self._bias[rows] + self._first[rows])
        merged = {name: value.copy() for name, value in before.reported().items()}
        for name, value in merged.items():
            value[rows] = getattr(fresh, name)
        return RobotState(**merged)

    def _draw_blocks(self, rows: Ids) -> None:
        std = self._std.astype(np.float32)
        for row in rows.tolist():
            block = self._noise[row]
            self._rngs[row].standard_normal(out=block, dtype=np.float32)
            block *= std
        self._next[rows] = 0

    def _disturb(self, state: RobotState, errors: Array) -> RobotState:
        """Signals of n robots with errors ``[n, K]`` added."""
        changed: dict[str, Array] = {}
        for name, where in self._columns.items():
            error = errors[:, where]
            if name == "orientation":
                # A small turn by the vector e, in the base frame: q (1, e / 2), normalised.
                turn = np.concatenate([np.ones((len(error), 1)), 0.5 * error], axis=1)
                changed["quat_wb"] = normalize(multiply(state.quat_wb, turn))
            else:
                field = _FIELDS[name]
                changed[field] = getattr(state, field) + error
        return replace(state, **changed)

    def state_dict(self) -> State:
        """Errors drawn in advance, and biases, copied. Generators are saved by their owner."""
        return {
            "bias": self._bias.copy(),
            "first": self._first.copy(),
            "noise": self._noise.copy(),
            "next": self._next.copy(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what :meth:`state_dict` gave.

        Raises:
            FerryError: the state is of other sensors or another number of worlds.
        """
        if state["noise"].shape != self._noise.shape:
            raise FerryError(
                f"sensor state has noise {state['noise'].shape}; expected {self._noise.shape} "
                f"(worlds, steps, numbers); were the sensors changed?"
            )
        self._bias[...] = state["bias"]
        self._first[...] = state["first"]
        self._noise[...] = state["noise"]
        self._next[...] = state["next"]
