"""Imperfect sensors: noise, bias, drift, delay and more, on signals, before anything observes them.

In a task file::

    sensors:
      q: {noise: 0.01, bias: 0.01}          # rad
      gyro: {noise: 0.05}                   # rad/s
      orientation: {noise: 0.02, bias: 0.02, walk: 0.001}    # rad, a small tilt
      dq: {quantum: 0.01, delay_s: [0.0, 0.01], jitter_s: 0.002, dropout: 0.01}
      acc: {rate_hz: 25}                    # measured every other step of 20 ms
      imu_frame: 0.02                       # rad, how well the IMU is mounted

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
from real.frames import multiply, normalize, rotate_inverse, turn_slightly
from real.signals import RobotState
from sim.engine import Array, Ids
from sim.transport import Transport

State = dict[str, NDArray[np.generic]]
NotNegative = Annotated[float, Field(ge=0.0)]

#: Control steps whose noise is drawn at once.
BLOCK = 32


#: Signals in the order of their columns.
SIGNALS = ("q", "dq", "gyro", "acc", "orientation")


class SignalConfig(Config):
    """Errors of one signal, in its unit."""

    noise: NotNegative = Field(default=0.0, description="standard deviation in each step")
    bias: NotNegative = Field(
        default=0.0, description="constant within an episode, uniform in +-bias"
    )
    walk: NotNegative = Field(
        default=0.0, description="drift of the bias: standard deviation after a second"
    )
    quantum: NotNegative = Field(default=0.0, description="step of the sensor's scale")
    delay_s: tuple[NotNegative, NotNegative] = Field(
        default=(0.0, 0.0), description="age of what is reported, low and high of an episode's [s]"
    )
    jitter_s: NotNegative = Field(default=0.0, description="up to so much older in each step [s]")
    rate_hz: float | None = Field(
        default=None, gt=0.0, description="measurements per second; null for one in each step"
    )
    dropout: float = Field(
        default=0.0, ge=0.0, lt=1.0, description="share of measurements lost; the last one stays"
    )

    @property
    def travels(self) -> bool:
        """Whether something happens to it that lasts longer than a step."""
        errors = (self.walk, self.quantum, self.delay_s[1], self.jitter_s, self.dropout)
        return any(errors) or self.rate_hz is not None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.delay_s[0] > self.delay_s[1]:
            raise ConfigError(f"delay_s {self.delay_s} is empty: the low end is above the high end")
        return self


class SensorConfig(Config):
    """The ``sensors`` section of a task. What is not given is perfect."""

    q: SignalConfig | None = Field(default=None, description="joint positions [rad or m]")
    dq: SignalConfig | None = Field(default=None, description="joint velocities [rad/s or m/s]")
    gyro: SignalConfig | None = Field(default=None, description="angular velocity [rad/s]")
    acc: SignalConfig | None = Field(default=None, description="specific force [m/s^2]")
    orientation: SignalConfig | None = Field(default=None, description="tilt and heading [rad]")
    imu_frame: NotNegative = Field(
        default=0.0,
        description="IMU turned in its mount, each axis uniform in +-this, per episode [rad]",
    )

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        for name in SIGNALS:
            signal: SignalConfig | None = getattr(self, name)
            if signal is not None and signal.noise == signal.bias == 0.0 and not signal.travels:
                raise ConfigError(
                    f"sensors.{name} has neither noise nor bias: it changes nothing; remove it"
                )
        if self.orientation is not None and self.orientation.quantum:
            raise ConfigError("sensors.orientation has no scale that a quantum could be a step of")
        return self


_FIELDS = {"q": "q", "dq": "dq", "gyro": "gyro_b", "acc": "acc_b", "orientation": "quat_wb"}


class Sensors:
    """What the sensors of N robots report, given what is true.

    A world's errors come from its own generator and do not depend on what other worlds do.

    Args:
        config: errors by signal, also as a mapping from YAML; None for perfect sensors.
        num: N.
        rngs: one generator per world.
        joints: J.
        control_dt_s: control period [s], between two calls of :meth:`sense`.

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
        control_dt_s: float = 0.02,
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
        paths: dict[str, tuple[str, SignalConfig, int]] = {}
        for name in SIGNALS:
            signal: SignalConfig | None = None if config is None else getattr(config, name)
            if signal is not None:
                size = joints if name in ("q", "dq") else 3
                if signal.travels:
                    paths[name] = (_FIELDS[name], signal, size)
                self._columns[name] = slice(len(std), len(std) + size)
                std += [signal.noise] * size
                bias += [signal.bias] * size
        self._transport = Transport(paths, num, rngs, dt=control_dt_s) if paths else None
        self._frame_max = 0.0 if config is None else config.imu_frame
        self._frame: Array = np.tile([1.0, 0.0, 0.0, 0.0], (num, 1))
        self._perfect = not self._columns and not self._frame_max
        # Of what has errors: a quaternion has one number more than its errors.
        self._width = len(std) + ("orientation" in self._columns)
        self._std: Array = np.array(std)
        self._bias_max: Array = np.array(bias)
        self._bias: Array = np.zeros((num, len(std)), order="F")
        self._first: Array = np.zeros((num, len(std)))
        self._noise: NDArray[np.float32] = np.zeros((num, BLOCK, len(std)), dtype=np.float32)
        # How much of its block a world has used up. Every episode begins a new one, so that its
        # noise follows from where the generator stood, whatever the other worlds do.
        self._next: NDArray[np.intp] = np.full(num, BLOCK)
        self._soonest = 0  # control steps before the first world has used up its block
        self._everyone: Ids = np.arange(num)
        self._blocks: Ids = BLOCK * self._everyone  # where each world's block begins

    def reset(self, rows: Ids) -> None:
        """Draw biases for new episodes of worlds ``rows``, and the noise of their first states."""
        if self._perfect:
            return
        size = self._std.size
        for row in rows.tolist():
            rng = self._rngs[row]
            self._bias[row] = self._bias_max * rng.uniform(-1.0, 1.0, size)
            self._first[row] = self._std * rng.standard_normal(size)
            if self._frame_max:
                half = 0.5 * self._frame_max * rng.uniform(-1.0, 1.0, 3)
                self._frame[row] = normalize(np.concatenate([[1.0], half])[None])[0]
        self._next[rows] = BLOCK
        self._soonest = 0
        if self._transport is not None:
            self._transport.reset(rows)

    def sense(self, state: RobotState) -> RobotState:
        """What is reported of a control step; to be called once per step.

        Args:
            state: the true signals of N robots; returned as it is by perfect sensors.
        """
        if self._perfect:
            return state
        if self._soonest == 0:
            self._draw_blocks(np.flatnonzero(self._next == BLOCK))
            self._soonest = BLOCK - int(self._next.max())
        # One row of each world's block: a flat take is twice as fast as two lists of indices.
        flat = self._noise.reshape(BLOCK * self._next.size, self._std.size)
        now = flat.take(self._blocks + self._next, axis=0)
        errors = np.empty(self._bias.shape, order="F")  # as signals are summed up
        errors[...] = now
        errors += self._bias
        self._next += 1
        self._soonest -= 1
        return self._report(state, errors, self._everyone)

    def sense_rows(self, state: RobotState, rows: Ids, before: RobotState) -> RobotState:
        """What is reported once worlds ``rows`` are reset; does not count as a step.

        Args:
            state: the true signals of N robots after the reset.
            rows: n worlds that were reset, here too by :meth:`reset`.
            before: what was reported before the reset, which stays true of all others.

        Returns:
            N robots, in new arrays or those of ``state``.
        """
        if self._perfect:
            return state
        fresh = self._report(state.of(rows), self._bias[rows] + self._first[rows], rows)
        merged = before.reported()
        for name, value in merged.items():
            if value is not getattr(state, name):  # of which the reset has renewed the rows
                merged[name] = value.copy()
                merged[name][rows] = getattr(fresh, name)
        return RobotState(**merged)

    def _draw_blocks(self, rows: Ids) -> None:
        std = self._std.astype(np.float32)
        for row in rows.tolist():
            noise = self._noise[row]
            self._rngs[row].standard_normal(out=noise, dtype=np.float32)
            noise *= std
        self._next[rows] = 0

    def _report(self, state: RobotState, errors: Array, rows: Ids) -> RobotState:
        """What the sensors of worlds ``rows`` report of their n robots, errors ``[n, K]``."""
        if self._frame_max:
            frame = self._frame[rows]  # of the IMU in the base: v_imu = R^T v_b
            state = replace(
                state,
                gyro_b=rotate_inverse(frame, state.gyro_b),
                acc_b=rotate_inverse(frame, state.acc_b),
                quat_wb=multiply(state.quat_wb, frame),
            )
        if self._columns:
            state = self._disturb(state, errors)
        return state if self._transport is None else self._transport.pass_on(state, rows)

    def _disturb(self, state: RobotState, errors: Array) -> RobotState:
        """Signals of n robots with errors ``[n, K]`` added, all in one block of memory."""
        changed = vars(state).copy()
        block, start = np.empty((self._width, len(errors))), 0
        for name, where in self._columns.items():
            field, error = _FIELDS[name], errors[:, where]
            true: Array = changed[field]
            out = block[start : start + true.shape[1]].T
            start += true.shape[1]
            if name == "orientation":
                out[...] = turn_slightly(true, error)
            else:
                np.add(true, error, out=out)
            changed[field] = out
        return RobotState(**changed)

    def state_dict(self) -> State:
        """Errors drawn in advance, and biases, copied. Generators are saved by their owner."""
        travel = {} if self._transport is None else self._transport.state_dict()
        frame = {"frame": self._frame.copy()} if self._frame_max else {}
        return (
            travel
            | frame
            | {
                "bias": self._bias.copy(),
                "first": self._first.copy(),
                "noise": self._noise.copy(),
                "next": self._next.copy(),
            }
        )

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
        self._soonest = 0
        if self._frame_max:
            self._frame[...] = state["frame"]
        if self._transport is not None:
            self._transport.load_state_dict(state)
