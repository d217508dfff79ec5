"""How well a robot follows velocity commands, or keeps its balance: the definitions used for every
engine and every log.

Pure functions over arrays of T control steps and N episodes; evaluation feeds them simulated truth,
the demonstration the ground truth of a ROS log.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, stdtrit

from real.errors import FerryError
from real.fall import FALL_TILT_RAD, low_steps

Array = NDArray[np.float64]
Steps = NDArray[np.intp]

#: Width of both kernels [(m/s)^2 and (rad/s)^2]: an error of 0.5 scores exp(-1).
KERNEL = 0.25

#: Time at the start of an episode that does not count: the robot takes up its load [s].
SETTLE_S = 1.0

#: A passive hinge that leans less counts as upright [rad].
BALANCED_RAD = 0.2

#: In arrays of fall steps: did not fall.
NEVER = -1

_LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval.

    Attributes:
        mean: estimate.
        low: lower end.
        high: upper end.
    """

    mean: float
    low: float
    high: float


def fall_steps(
    tilt_rad: Array, height_m: Array | None, *, fall_height_m: float | None, dt_s: float
) -> Steps:
    """The step at which each robot fell.

    What a fall is stands in :mod:`real.fall`. NaN counts as one: nobody knows where such a
    robot is.

    Args:
        tilt_rad: ``[T, N]`` angle between the base's z axis and the world's [rad].
        height_m: ``[T, N]`` height of the base above the ground [m], or None where unknown.
        fall_height_m: the robot's; None where height means nothing.
        dt_s: control period [s].

    Returns:
        ``[N]`` first fallen step, :data:`NEVER` if none.
    """
    fallen = ~(tilt_rad <= FALL_TILT_RAD)
    if height_m is not None and fall_height_m is not None:
        low = ~(height_m >= fall_height_m)
        need = low_steps(dt_s)
        # Low now and in the need - 1 steps before: a running count that a high step sets to zero.
        count = np.zeros(low.shape[1], dtype=np.intp)
        for step in range(low.shape[0]):
            count = (count + 1) * low[step]
            fallen[step] |= count >= need
    return np.where(fallen.any(axis=0), fallen.argmax(axis=0), NEVER)


def step_scores(command: Array, lin_vel_b: Array, yaw_rate: Array) -> Array:
    """How well each step tracks its command, in [0, 1].

    lin = exp(-(ex^2 + ey^2) / 0.25), yaw = exp(-ewz^2 / 0.25), score = (2 lin + yaw) / 3.

    Args:
        command: ``[..., 3]`` vx, vy [m/s], wz [rad/s] in the base frame.
        lin_vel_b: ``[..., 2 or 3]`` base velocity in the base frame [m/s].
        yaw_rate: ``[...]`` angular velocity about the base's z axis [rad/s].

    Returns:
        ``[...]``; zero where a velocity is not finite.
    """
    error = command[..., :2] - lin_vel_b[..., :2]
    lin = np.exp(-(error * error).sum(axis=-1) / KERNEL)
    yaw = np.exp(-((command[..., 2] - yaw_rate) ** 2) / KERNEL)
    return np.nan_to_num((2.0 * lin + yaw) / 3.0, nan=0.0)


def tracking(
    command: Array,
    lin_vel_b: Array,
    ang_vel_b: Array,
    *,
    fallen_at: Steps,
    dt_s: float,
    counted: Steps | None = None,
) -> Array:
    """Tracking score of N episodes of equal length.

    The mean of :func:`step_scores` over all steps after the first second. A fallen robot scores
    zero from its fall to the end that the episode would have had, so falling early costs more.

    Args:
        command: ``[T, N, 3]``, in force during each step.
        lin_vel_b: ``[T, N, 3]`` at the end of each step [m/s].
        ang_vel_b: ``[T, N, 3]`` [rad/s].
        fallen_at: ``[N]`` step of the fall, or :data:`NEVER`.
        dt_s: control period [s].
        counted: ``[N]`` steps that count, for robots that then left their ground; all if None.

    Returns:
        ``[N]`` in [0, 1].

    Raises:
        FerryError: the episodes are not longer than the second that does not count.
    """
    total = command.shape[0]
    # Step i ends at (i + 1) dt; it counts if that is after the first second.
    first = math.floor(SETTLE_S / dt_s + 1e-9)
    if total <= first:
        raise FerryError(
            f"{total} steps of {dt_s} s: nothing is left after the first {SETTLE_S:g} s, which "
            "does not count; score longer runs"
        )
    scores = step_scores(command, lin_vel_b, ang_vel_b[..., 2])
    upright = np.where(fallen_at == NEVER, total, fallen_at)
    scores = np.where(np.arange(total)[:, None] < upright, scores, 0.0)
    if counted is None:
        return scores[first:].mean(axis=0)
    scores = np.where(np.arange(total)[:, None] < counted, scores, 0.0)
    # Who was gone within the first second has done nothing that counts.
    return scores[first:].sum(axis=0) / np.maximum(counted - first, 1)


def lean(off: Array) -> Array:
    """How far passive hinges are from upright: the largest angle to the default pose.

    Args:
        off: ``[..., P]`` q - q_default of the passive hinges [rad]; full turns do not count.

    Returns:
        ``[...]`` in [0, pi], 0 without passive hinges [rad].
    """
    with np.errstate(invalid="ignore"):  # NaN and infinity stay NaN: nobody knows where that is
        wrapped = np.abs(np.remainder(off + np.pi, 2.0 * np.pi) - np.pi)
    return wrapped.max(axis=-1, initial=0.0)


def balance(lean_rad: Array, *, fallen_at: Steps) -> Array:
    """Share of episode time upright, of N episodes of equal length.

    A step counts if every passive hinge leans by at most :data:`BALANCED_RAD`. After a fall nothing
    counts: a pole that passes through the upright is not balanced.

    Args:
        lean_rad: ``[T, N]``, see :func:`lean`; NaN counts as not upright.
        fallen_at: ``[N]`` step of the fall, or :data:`NEVER`.

    Returns:
        ``[N]`` in [0, 1].
    """
    total = lean_rad.shape[0]
    before = np.where(fallen_at == NEVER, total, fallen_at)
    up = (lean_rad <= BALANCED_RAD) & (np.arange(total)[:, None] < before)
    return up.mean(axis=0)


def upright_minutes(fallen_at: Steps, *, steps: int | Steps, dt_s: float) -> Array:
    """``[N]`` how long each robot was on its feet [min], in episodes of so many steps."""
    return np.where(fallen_at == NEVER, steps, fallen_at) * dt_s / 60.0


def mean_interval(values: Array, *, low: float = 0.0, high: float = 1.0) -> Interval:
    """Mean over episodes with its 95 % t interval, cut to the possible range.

    mean +- t(0.975, n - 1) s / sqrt(n); Student, "The probable error of a mean", Biometrika 6,
    1908. A single episode says nothing about spread, so its interval is the whole range.

    Args:
        values: ``[n]`` one number per episode; every episode counts once, however long.
        low: lowest possible value.
        high: highest possible value.

    Raises:
        FerryError: there is no episode.
    """
    n = values.shape[0]
    if n == 0:
        raise FerryError("no episodes to average")
    mean = float(values.mean())
    if n == 1:
        return Interval(mean, low, high)
    quantile = float(stdtrit(n - 1, 0.5 + 0.5 * _LEVEL))
    half = quantile * float(values.std(ddof=1)) / math.sqrt(n)
    return Interval(mean, max(low, mean - half), min(high, mean + half))


def rate_interval(events: int, exposure: float) -> Interval:
    """Events per unit of exposure with the exact 95 % Poisson interval.

    [chi2(0.025, 2 k) / 2, chi2(0.975, 2 k + 2) / 2] / exposure; Garwood, "Fiducial limits for the
    Poisson distribution", Biometrika 28, 1936. Also right for no event at all: 20 upright episodes
    of 20 s still allow 0.55 falls per minute.

    Args:
        events: k, e.g. falls.
        exposure: e.g. minutes on its feet, > 0.

    Raises:
        FerryError: there is no exposure.
    """
    if not exposure > 0.0:
        raise FerryError(f"a rate over {exposure} min; expected a positive time")
    tail = 0.5 * (1.0 - _LEVEL)
    # chi2(p, 2 a) / 2 is the quantile p of the gamma distribution of shape a.
    low = float(gammaincinv(events, tail)) if events else 0.0
    high = float(gammaincinv(events + 1, 1.0 - tail))
    return Interval(events / exposure, low / exposure, high / exposure)


def falls_per_minute(fallen_at: Steps, *, steps: int | Steps, dt_s: float) -> Interval:
    """Falls per minute on the feet, over all episodes.

    Time on the ground is no exposure: a robot that falls at once and lies for the rest of its
    episode falls more often, not more rarely, than one that falls at the end.

    Args:
        fallen_at: ``[N]`` step of the fall, or :data:`NEVER`.
        steps: T, length of the episodes; ``[N]`` where they differ.
        dt_s: control period [s].
    """
    minutes = float(upright_minutes(fallen_at, steps=steps, dt_s=dt_s).sum())
    # Fallen within the first step: it was up for that step.
    minutes = max(minutes, dt_s / 60.0)
    return rate_interval(int((fallen_at != NEVER).sum()), minutes)
