"""The only owner of "index -> meaning": builds the policy's observation.

The same builder runs in the training env, in evaluation and on the robot. Noise, bias and delay
act on the :class:`~real.signals.RobotState` before it gets here, never on the vector after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError, nearest
from real.frames import projected_gravity
from real.kinematics import Kinematics, pose_error
from real.signals import RobotState
from real.spec import RobotSpec

Float32 = NDArray[np.float32]
Array = NDArray[np.float64]
Ids = NDArray[np.intp]
Rows = Ids | NDArray[np.bool_] | None


@dataclass(frozen=True)
class ObsTerm:
    """One part of the observation: ``clip(scale * signal)``, repeated over ``history`` steps.

    Attributes:
        name: key of :data:`SOURCES`.
        dim: numbers per step, before history.
        unit: of the signal before scaling.
        scale: factor on the signal.
        clip: symmetric bound after scaling, or None.
        history: steps kept. Layout is term-major: all steps of a term, oldest first, then the
            next term.
        source: the signal it reads.
    """

    name: str
    dim: int
    unit: str
    scale: float
    clip: float | None
    history: int
    source: str

    @property
    def size(self) -> int:
        """Numbers this term takes in the observation vector."""
        return self.dim * self.history


@dataclass(frozen=True)
class ObservationSpec:
    """Terms in the order in which they stand in the vector."""

    terms: tuple[ObsTerm, ...]

    @property
    def dim(self) -> int:
        """Length of the observation vector, D."""
        return sum(t.size for t in self.terms)

    def slices(self) -> dict[str, slice]:
        """Where each term stands in the vector."""
        out: dict[str, slice] = {}
        start = 0
        for term in self.terms:
            out[term.name] = slice(start, start + term.size)
            start += term.size
        return out


@dataclass(frozen=True)
class ObservationInput:
    """Everything a term may read.

    Attributes:
        state: signals of N robots, as sensed.
        command: ``[N, C]`` command, e.g. (vx, vy, wz) in the base frame [m/s, m/s, rad/s].
        prev_action: ``[N, A]`` clipped action of the previous control step, zero after a reset.
        q_default: ``[J]`` or ``[1, J]`` default pose [rad or m].
        kinematics: of the end effector, or None where no pose is commanded.
        gravity_b: ``[N, 3]`` direction of gravity in the base frame, where it is known already.
    """

    state: RobotState
    command: Array
    prev_action: Array
    q_default: Array
    kinematics: Kinematics | None = None
    gravity_b: Array | None = None


@dataclass(frozen=True)
class Source:
    """A signal that a term can read: its unit, size for a robot, and how to get it."""

    unit: str
    doc: str
    dim: Callable[[RobotSpec, int], int]
    read: Callable[[ObservationInput], Array]


def _down(x: ObservationInput) -> Array:
    return projected_gravity(x.state.quat_wb) if x.gravity_b is None else x.gravity_b


def _pose_error(x: ObservationInput) -> Array:
    if x.kinematics is None:
        raise FerryError("observation term 'pose_error' needs a commanded pose; the task has none")
    return pose_error(x.command, *x.kinematics.pose(x.state.q))


def _pose_step(x: ObservationInput) -> Array:
    if x.kinematics is None:
        raise FerryError("observation term 'pose_step' needs a commanded pose; the task has none")
    return x.kinematics.step_towards(x.command, x.state.q)


#: name -> (unit, meaning, size(robot, command size), reader). The vocabulary of observations.
SOURCES: dict[str, Source] = {
    "base_ang_vel": Source(
        "rad/s",
        "angular velocity in the base frame",
        lambda r, c: 3,
        lambda x: x.state.gyro_b,
    ),
    "projected_gravity": Source(
        "1",
        "direction of gravity in the base frame",
        lambda r, c: 3,
        _down,
    ),
    "command": Source("m/s, rad/s", "the command", lambda r, c: c, lambda x: x.command),
    "pose_error": Source(
        "m, rad",
        "what the end effector lacks to the commanded pose: translation, then rotation vector",
        lambda r, c: 6,
        _pose_error,
    ),
    "pose_step": Source(
        "rad or m",
        "joint motion that removes that error to first order (damped least squares)",
        lambda r, c: len(r.joints),
        _pose_step,
    ),
    "joint_pos": Source(
        "rad or m",
        "joint positions minus the default pose",
        lambda r, c: len(r.joints),
        lambda x: x.state.q - x.q_default,
    ),
    "joint_vel": Source(
        "rad/s or m/s",
        "joint velocities",
        lambda r, c: len(r.joints),
        lambda x: x.state.dq,
    ),
    "prev_action": Source(
        "1",
        "previous clipped action",
        lambda r, c: len(r.actuated),
        lambda x: x.prev_action,
    ),
}


#: Those that need a commanded pose and the way to the end effector.
POSE_SOURCES = frozenset({"pose_error", "pose_step"})


def make_term(
    name: str,
    robot: RobotSpec,
    *,
    command_dim: int,
    scale: float = 1.0,
    clip: float | None = None,
    history: int = 1,
) -> ObsTerm:
    """A term of the vocabulary, sized for a robot.

    Raises:
        FerryError: the name is not in :data:`SOURCES`, or ``history`` is below 1.
    """
    if name not in SOURCES:
        raise FerryError(
            f"observation term {name!r} is not known{nearest(name, SOURCES)}; "
            f"known: {', '.join(SOURCES)}"
        )
    if history < 1:
        raise FerryError(f"observation term {name!r}: history is {history}; expected >= 1")
    source = SOURCES[name]
    return ObsTerm(
        name=name,
        dim=source.dim(robot, command_dim),
        unit=source.unit,
        scale=scale,
        clip=clip,
        history=history,
        source=name,
    )


class ObservationBuilder:
    """Builds observations for N robots and owns the history buffers.

    Args:
        spec: the terms.
        q_default: ``[J]`` default pose of all joints.
        num: N.
        kinematics: of the end effector; ``pose_error`` needs it.
    """

    def __init__(
        self,
        spec: ObservationSpec,
        q_default: Sequence[float] | Array,
        num: int,
        *,
        kinematics: Kinematics | None = None,
    ) -> None:
        for term in spec.terms:
            if term.source not in SOURCES:
                raise FerryError(
                    f"observation reads {term.source!r}, which this version does not "
                    f"know{nearest(term.source, SOURCES)}"
                )
        self.spec = spec
        self.num = num
        self._kinematics = kinematics
        # [1, J] and not [J]: arrays of one shape, as of one robot, spare numpy the broadcasting.
        self._q_default: Array = np.asarray(q_default, dtype=np.float64)[None]
        self._slices = spec.slices()
        # Asked for in every tick, and the same in all of them.
        self._dim = spec.dim
        self._reads = [(t, SOURCES[t.source].read, self._slices[t.name]) for t in spec.terms]
        self._history: dict[str, Float32] = {
            t.name: np.zeros((num, t.history, t.dim), dtype=np.float32)
            for t in spec.terms
            if t.history > 1
        }
        self._fresh: NDArray[np.bool_] = np.ones(num, dtype=bool)
        sizes = [t.size for t in spec.terms]
        bounds = [np.inf if t.clip is None else t.clip for t in spec.terms]
        self._high: Float32 = np.repeat(np.array(bounds, dtype=np.float32), sizes)
        self._low: Float32 = -self._high

    def reset(self, rows: Rows = None) -> None:
        """Forget the history of ``rows`` (ids or mask; None for all).

        The next observation of those rows repeats its first sample over the whole history.
        """
        self._fresh[slice(None) if rows is None else rows] = True

    def build(
        self,
        state: RobotState,
        command: Array,
        prev_action: Array,
        *,
        rows: Ids | None = None,
        out: Float32 | None = None,
        commit: bool = True,
        gravity_b: Array | None = None,
    ) -> Float32:
        """Observe N robots, or some of them.

        Args:
            state: signals, ``[N, ...]``.
            command: ``[N, C]``.
            prev_action: ``[N, A]``.
            rows: n robots that everything given is about, ``[n, ...]``; only to look. None for all.
            out: array to fill, ``[N, D]`` float32; a new one if None.
            commit: whether this sample enters the history. ``False`` looks without advancing,
                which is how the final observation of an episode is built beside the next first.
            gravity_b: ``[N, 3]`` direction of gravity in the base frame, where it is known better
                or already; from the attitude if None.

        Returns:
            ``[N, D]`` float32.
        """
        if commit and rows is not None:
            raise ValueError("a sample of some robots cannot enter the history of all")
        num = self.num if rows is None else rows.size
        result = np.empty((num, self._dim), dtype=np.float32) if out is None else out
        inputs = ObservationInput(
            state, command, prev_action, self._q_default, self._kinematics, gravity_b
        )
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and clipped
            for term, read, place in self._reads:
                value = read(inputs)
                if value.shape != (num, term.dim):
                    raise FerryError(
                        f"observation term {term.name!r}: got shape {value.shape}, expected "
                        f"{(num, term.dim)}"
                    )
                target = result[:, place]
                if term.history == 1:
                    target[...] = value if term.scale == 1.0 else term.scale * value
                else:
                    self._with_history(term, value, target, rows=rows, commit=commit)
        # Rounding to float32 keeps order, so clipping after it gives the same as before.
        np.maximum(result, self._low, out=result)
        np.minimum(result, self._high, out=result)
        if commit:
            self._fresh[:] = False
        return result

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """History and freshness, copied: state that a checkpoint must carry."""
        out: dict[str, NDArray[np.generic]] = {
            f"history.{k}": v.copy() for k, v in self._history.items()
        }
        out["fresh"] = self._fresh.copy()
        return out

    def load_state_dict(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore what :meth:`state_dict` gave."""
        for name, buffer in self._history.items():
            buffer[...] = state[f"history.{name}"]
        self._fresh[...] = state["fresh"]

    def _with_history(
        self, term: ObsTerm, value: Array, out: Float32, *, rows: Ids | None, commit: bool
    ) -> None:
        newest = (term.scale * value).astype(np.float32)
        if term.clip is not None:
            np.clip(newest, -term.clip, term.clip, out=newest)
        buffer, at = self._history[term.name], slice(None) if rows is None else rows
        fresh = self._fresh[at]
        shifted = np.concatenate([buffer[at, 1:], newest[:, None]], axis=1)  # [N, H, dim]
        shifted[fresh] = newest[fresh, None]
        out[...] = shifted.reshape(len(value), -1)
        if commit:
            buffer[...] = shifted
