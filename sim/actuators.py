"""The motors of N worlds in MuJoCo: gains, strength, torque limits and delay, native to the engine.

A servo is MuJoCo's affine actuator, force = gain ctrl + bias0 + bias1 q + bias2 dq, clipped to
``forcerange``. Everything a joint drive does is a choice of these numbers, so no Python runs
between substeps.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from real.signals import JointCommand
from sim.engine import Array, Ids
from sim.model import MujocoModel

Field = Callable[[str], Array]
State = dict[str, NDArray[np.generic]]


class Servos:
    """A joint drives in N worlds.

    Effort = strength clip(kp_scale kp (q_des - q) + kd_scale kd (dq_des - dq) + tau_ff, +-tau_max),
    whether the gains kp and kd are the robot's or those of a command. With a no-load speed w0, the
    interval is [-tau_max - c dq, tau_max - c dq] with c = tau_max / w0, both before strength.

    Args:
        built: the model.
        num: N.
        field: gives the live per-world values ``[N, ...]`` of a model field.
        ctrl: ``[N, nu]`` controls, live.
        history: ``[N, H]`` history buffers, live.

    Attributes:
        kp_scale: ``[N, A]`` position gain in force over the one asked for.
        kd_scale: ``[N, A]`` the same of the velocity gain.
        strength: ``[N, A]`` torque a motor gives over the one it should give.
        delay_s: ``[N]`` how late a world hears its targets [s].
        speed_damping: ``[N, A]`` torque that a motor loses per speed, strength left out
            [N m s/rad]; None where no motor has a torque-speed curve.
    """

    def __init__(
        self, built: MujocoModel, num: int, *, field: Field, ctrl: Array, history: Array
    ) -> None:
        robot, model = built.robot, built.model
        self._ids = built.actuator_ids
        self._actuated = robot.actuated_ids
        self._kp: Array = robot.actuated_array("kp")
        self._kd: Array = robot.actuated_array("kd")
        self._delay_max_s = built.delay_max_s
        self._ctrl, self._history, self._field = ctrl, history, field
        self._target = as_index(self._ids)
        self._slots = _history_slots(built)
        self._gain = field("actuator_gainprm")
        self._bias = field("actuator_biasprm")
        self._range = field("actuator_forcerange")
        self._nominal_range: Array = model.actuator_forcerange[self._ids].copy()
        self._everyone = np.arange(num)
        self.kp_scale: Array = np.ones((num, len(self._ids)))
        self.kd_scale: Array = np.ones((num, len(self._ids)))
        self.strength: Array = np.ones((num, len(self._ids)))
        self.delay_s: Array = np.zeros(num)
        self.speed_damping: Array | None = None
        self._commanded = False  # whether gains of a command are in force

    # -------------------------------------------------------------- what a drive is told

    def track(self, q_des: Array) -> None:
        """Targets ``[N, A]`` under the robot's own gains."""
        self._check(q_des.shape)
        if self._commanded:
            self._commanded = False
            self._use_own_gains(self._everyone)
        self._ctrl[:, self._target] = q_des

    def command(self, command: JointCommand) -> None:
        """Targets, gains, velocities and feed-forward of a command of N robots."""
        self._check(command.q_des.shape)
        damping = command.kd * self.kd_scale
        kp = self.strength * (command.kp * self.kp_scale)
        kd = self.strength * damping
        if self.speed_damping is not None:
            kd -= self.strength * self.speed_damping
        # kp q_des is the servo's own; what else does not depend on the state is its constant.
        constant = self.strength * (damping * command.dq_des + command.tau_ff)
        self._gain[:, self._ids, 0] = kp
        self._bias[:, self._ids, :3] = np.stack([constant, -kp, -kd], axis=2)
        self._commanded = True
        self._ctrl[:, self._target] = command.q_des

    def hold(self, rows: Ids, q: Array) -> None:
        """Hold joint positions ``q [n, J]`` in worlds ``rows``, also in targets still under way."""
        if self._commanded:
            self._use_own_gains(rows)
        pose = q[:, self._actuated]
        self._ctrl[rows[:, None], self._ids] = pose
        self._history[rows[:, None, None], self._slots] = pose[:, :, None]

    def _check(self, shape: tuple[int, ...]) -> None:
        if shape != self.strength.shape:
            raise ValueError(f"targets have shape {shape}; expected {self.strength.shape}")

    # -------------------------------------------------------------- what a drive is like

    def bend(
        self,
        rows: Ids,
        *,
        kp_scale: Array | None = None,
        kd_scale: Array | None = None,
        strength: Array | None = None,
    ) -> None:
        """Make the servos of n worlds differ from what they are told to be.

        Args:
            rows: n worlds.
            kp_scale: ``[n, A]``; None keeps the present one, as for the others.
            kd_scale: ``[n, A]``.
            strength: ``[n, A]``; scales the torque limit too.
        """
        if kp_scale is not None:
            self.kp_scale[rows] = kp_scale
        if kd_scale is not None:
            self.kd_scale[rows] = kd_scale
        if strength is not None:
            self.strength[rows] = strength
            self._range[rows[:, None], self._ids] = (
                self.strength[rows][:, :, None] * self._nominal_range
            )
        if self._commanded:
            return  # the next `track` writes the robot's gains anyway
        if kp_scale is not None or strength is not None:
            self._write_kp(rows)
        if kd_scale is not None or strength is not None:
            self._write_kd(rows)

    def set_delay(self, rows: Ids, seconds: Array) -> None:
        """Let worlds ``rows`` hear targets ``seconds [n]`` late.

        Delayed targets are held, so a delay acts as the next multiple of the physics step. Gains,
        velocities and feed-forward of a command are not delayed.

        Raises:
            FerryError: a delay is negative or longer than the history; MuJoCo itself would cap
                it silently.
        """
        if seconds.size and not (seconds.min() >= 0.0 and seconds.max() <= self._delay_max_s):
            raise FerryError(
                f"actuator delay of {seconds.min():g} to {seconds.max():g} s; expected 0 to "
                f"{self._delay_max_s:g} s, the delay_max_s that the engine was made with"
            )
        self.delay_s[rows] = seconds
        self._field("actuator_delay")[rows[:, None], self._ids] = seconds[:, None]

    def set_no_load_speed(self, rows: Ids, speed: Array) -> Array:
        """Give the motors of n worlds torque-speed curves.

        The velocity gain falls by c, inside the clip; whoever calls gives the joints that much
        damping, outside of it. The two cancel where the servo does not reach its limit.

        Args:
            rows: n worlds.
            speed: ``[n, A]`` no-load speeds [rad/s]; infinite for no curve.

        Returns:
            ``[n, A]`` damping c of the joints [N m s/rad].
        """
        if self.speed_damping is None:
            self.speed_damping = np.zeros_like(self.strength)
        self.speed_damping[rows] = self._nominal_range[:, 1] / speed
        if not self._commanded:
            self._write_kd(rows)
        return self.strength[rows] * self.speed_damping[rows]

    def lost_to_speed(self, speed: Array, rows: Ids | None = None) -> Array:
        """``[N, A]`` torque that motors at ``speed [N, A]`` have less than their servos give.

        With ``rows``, of these n worlds.
        """
        assert self.speed_damping is not None
        at = slice(None) if rows is None else rows
        return self.strength[at] * self.speed_damping[at] * speed

    def renew(self, rows: Ids) -> None:
        """Forget what makes worlds ``rows`` differ; their model fields are nominal again."""
        if self.speed_damping is not None:
            self.speed_damping[rows] = 0.0
        self.kp_scale[rows] = self.kd_scale[rows] = self.strength[rows] = 1.0
        self.delay_s[rows] = 0.0

    def _use_own_gains(self, rows: Ids) -> None:
        self._bias[rows[:, None], self._ids, 0] = 0.0
        self._write_kp(rows)
        self._write_kd(rows)

    def _write_kp(self, rows: Ids) -> None:
        kp = self.strength[rows] * (self._kp * self.kp_scale[rows])
        at = rows[:, None]
        self._gain[at, self._ids, 0] = kp
        # kp lives in two arrays: changed in one alone, it would pull towards another angle.
        self._bias[at, self._ids, 1] = -kp

    def _write_kd(self, rows: Ids) -> None:
        kd = self.strength[rows] * (self._kd * self.kd_scale[rows])
        if self.speed_damping is not None:
            # The joint's damping brakes by this much, after the clip; see `set_no_load_speed`.
            kd -= self.strength[rows] * self.speed_damping[rows]
        self._bias[rows[:, None], self._ids, 2] = -kd

    # -------------------------------------------------------------- keeping

    def drive(self) -> Array:
        """``[N, A, 4]`` what a command writes to the model: gain, and the three terms of bias."""
        return np.concatenate([self._gain[:, self._ids, :1], self._bias[:, self._ids, :3]], axis=2)

    def fields_of(self, drive: Array, row: int) -> dict[str, Array]:
        """Model fields ``[k, ...]`` of a world under ``drive [k, A, 4]``, as :meth:`drive` gave."""
        gain, bias = (np.repeat(f[row][None], len(drive), axis=0) for f in (self._gain, self._bias))
        gain[:, self._ids, 0] = drive[:, :, 0]
        bias[:, self._ids, :3] = drive[:, :, 1:]
        return {"actuator_gainprm": gain, "actuator_biasprm": bias}

    def state_dict(self) -> State:
        """Drives, copied. Model fields, controls and history are saved by their owner."""
        curve: State = {}
        if self.speed_damping is not None:
            curve["speed_damping"] = self.speed_damping.copy()
        return curve | {
            "kp_scale": self.kp_scale.copy(),
            "kd_scale": self.kd_scale.copy(),
            "strength": self.strength.copy(),
            "delay_s": self.delay_s.copy(),
            "commanded": np.array(self._commanded),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what :meth:`state_dict` gave."""
        self.kp_scale[...] = state["kp_scale"]
        self.kd_scale[...] = state["kd_scale"]
        self.strength[...] = state["strength"]
        self.delay_s[...] = state["delay_s"]
        self._commanded = bool(state["commanded"])
        if "speed_damping" in state:
            self.speed_damping = np.array(state["speed_damping"], dtype=np.float64)


def as_index(ids: Ids) -> slice | Ids:
    """The ids as a slice where they are evenly spaced, which reads and writes without a gather."""
    steps = np.diff(ids)
    if ids.size > 1 and steps[0] > 0 and (steps == steps[0]).all():
        return slice(int(ids[0]), int(ids[-1]) + 1, int(steps[0]))
    return ids


def _history_slots(built: MujocoModel) -> Ids:
    """``[A, n]`` where the n past targets of each servo are in a world's history.

    A buffer is (user, cursor, n times, n values); seen with MuJoCo 4.0, and a test holds it.
    """
    lengths = built.model.actuator_history[built.actuator_ids, 0]
    starts = built.model.actuator_historyadr[built.actuator_ids]
    length = int(lengths.max(initial=0))
    if length == 0:
        return np.zeros((len(starts), 0), dtype=np.intp)
    return (starts[:, None] + 2 + length + np.arange(length)).astype(np.intp)
