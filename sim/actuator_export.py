"""Makes learned actuators: files that :mod:`sim.actuator_file` reads.

From known to measured: the robot's own servos, as a check of everything around it
(:func:`servo_network`); a linear filter fitted to samples by least squares (:func:`fit_linear`),
which knows delay, damping and lag of a drive and shows what a network must beat; a network
(:mod:`training.actuator_fit`); or any model of your own with the same inputs and output, to which
:func:`with_card` adds the card.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from real.errors import FerryError
from real.spec import RobotSpec
from sim.actuator_file import CARD_KEY, ActuatorCard
from sim.actuator_models import linear_model

Array = NDArray[np.float64]


def with_card(model: onnx.ModelProto, card: ActuatorCard, path: Path) -> Path:
    """Write a model with what it was fitted for.

    Args:
        model: with inputs, output and joint order as in :mod:`sim.actuator_file`.
        card: what it was fitted for.
        path: the file to write.
    """
    kept = {p.key: p.value for p in model.metadata_props} | {CARD_KEY: card.model_dump_json()}
    helper.set_model_props(model, kept)
    onnx.checker.check_model(model, full_check=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def robot_card(
    robot: RobotSpec,
    *,
    history: int,
    error_range: Array,
    velocity_range: Array,
    source: str,
    joints: tuple[str, ...] | None = None,
) -> ActuatorCard:
    """The card of a network for a robot as its file describes it.

    Args:
        robot: gives name, gains and the physics step.
        history: H.
        error_range: ``[A, 2]`` least and largest error fitted, in the order of ``joints``.
        velocity_range: ``[A, 2]`` the same of velocities.
        source: what it was fitted to.
        joints: order of the network's joints; the robot's if None.
    """
    names = tuple(joint.name for joint in robot.actuated) if joints is None else joints
    by_name = {joint.name: joint for joint in robot.actuated}

    def pairs(values: Array) -> tuple[tuple[float, float], ...]:
        return tuple((float(low), float(high)) for low, high in values)

    return ActuatorCard(
        robot=robot.name,
        joints=names,
        kp=tuple(by_name[name].kp for name in names),
        kd=tuple(by_name[name].kd for name in names),
        dt_s=robot.physics_dt_s,
        history=history,
        error_range=pairs(error_range),
        velocity_range=pairs(velocity_range),
        source=source,
    )


def servo_network(
    robot: RobotSpec,
    path: Path,
    *,
    late: int = 0,
    joints: tuple[str, ...] | None = None,
    double: bool = False,
) -> Path:
    """Write the robot's own servos as a network: tau = kp error - kd velocity.

    Its ranges are what the joints can do at all. A drive that is ``late`` answers the error and
    velocity of so many physics steps ago, as one with a slow field bus does.

    Args:
        robot: the robot.
        path: the file to write.
        late: physics steps.
        joints: order of the network's joints; the robot's if None.
        double: see :func:`linear_model`.
    """
    names = tuple(joint.name for joint in robot.actuated) if joints is None else joints
    by_name = {joint.name: joint for joint in robot.actuated}
    own = [by_name[name] for name in names]
    error, velocity = np.zeros((2, late + 1, len(names)))
    error[0] = [joint.kp for joint in own]
    velocity[0] = [-joint.kd for joint in own]
    reach = np.array([joint.q_max - joint.q_min for joint in own])
    speed = np.array([joint.dq_max for joint in own])
    card = robot_card(
        robot,
        history=late + 1,
        error_range=np.stack([-reach, reach], axis=1),
        velocity_range=np.stack([-speed, speed], axis=1),
        source=f"the servos of {robot.source}" + (f", {late} physics steps late" if late else ""),
        joints=names,
    )
    return with_card(linear_model(error, velocity, double=double), card, path)


@dataclass(frozen=True)
class Fit:
    """A linear actuator fitted to samples.

    Attributes:
        error: ``[H, A]`` weights of errors [N m/rad], oldest first.
        velocity: ``[H, A]`` weights of velocities [N m s/rad].
        explained: ``[A]`` share of the torque's variance that it explains, on samples it was not
            fitted to.
        error_range: ``[A, 2]`` of errors in the log.
        velocity_range: ``[A, 2]`` of velocities in it.
    """

    error: Array
    velocity: Array
    explained: Array
    error_range: Array
    velocity_range: Array

    def write(self, robot: RobotSpec, path: Path, *, source: str) -> Path:
        """Write it for the robot whose log it was; see :func:`robot_card`."""
        card = robot_card(
            robot,
            history=len(self.error),
            error_range=self.error_range,
            velocity_range=self.velocity_range,
            source=source,
        )
        return with_card(linear_model(self.error, self.velocity), card, path)


def fit_linear(
    q_des: Array, q: Array, dq: Array, tau: Array, *, history: int, ridge: float = 1e-6
) -> Fit:
    """Fit torque to the last samples of position error and velocity, joint by joint.

    Least squares with a small penalty on weights, in units of each input's spread. The last fifth
    of the log is kept to measure on, in one piece: neighbouring samples know each other.

    Args:
        q_des: ``[T, A]`` targets in force, sampled at the rate of the physics.
        q: ``[T, A]`` positions at the same times.
        dq: ``[T, A]`` velocities.
        tau: ``[T, A]`` torques that the motors then gave.
        history: H, samples that each torque may depend on.
        ridge: penalty.

    Raises:
        FerryError: too few samples, some that are not finite, or a joint that never moved.
    """
    steps, motors = q.shape
    least = 10 * 2 * history
    if steps < least or history < 1:
        raise FerryError(f"{steps} samples for a history of {history}; expected {least} or more")
    if not all(np.isfinite(values).all() for values in (q_des, q, dq, tau)):
        raise FerryError("the log has samples that are not finite; cut them out")
    error = q_des - q
    still = [a for a in range(motors) if np.ptp(error[:, a]) == 0.0 or np.ptp(dq[:, a]) == 0.0]
    if still:
        raise FerryError(f"joints {still} never moved in the log, which says nothing of them")
    rows = steps - history + 1
    fitted, tested = slice(0, rows * 4 // 5), slice(rows * 4 // 5 + history, rows)
    weights, explained = np.zeros((2, history, motors)), np.zeros(motors)
    for a in range(motors):
        seen = np.concatenate(
            [
                np.lib.stride_tricks.sliding_window_view(values[:, a], history)
                for values in (error, dq)
            ],
            axis=1,
        )  # [rows, 2 H], oldest first
        spread = seen.std(axis=0)
        x, y = (seen / spread)[fitted], tau[history - 1 :, a][fitted]
        penalty = np.sqrt(ridge * len(x)) * np.eye(2 * history)
        found = np.linalg.lstsq(
            np.concatenate([x, penalty]), np.concatenate([y, np.zeros(2 * history)]), rcond=None
        )[0]
        weights[:, :, a] = (found / spread).reshape(2, history)
        truth = tau[history - 1 :, a][tested]
        missed = truth - seen[tested] @ (found / spread)
        explained[a] = 1.0 - missed.var() / max(truth.var(), 1e-300)
    ranges = [np.stack([v.min(axis=0), v.max(axis=0)], axis=1) for v in (error, dq)]
    return Fit(weights[0], weights[1], explained, ranges[0], ranges[1])
