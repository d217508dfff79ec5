"""Makes learned actuators: files that :mod:`sim.actuator_file` reads.

From known to measured: the robot's own servos, as a check of everything around it
(:func:`servo_network`); a linear filter fitted to samples by least squares (:func:`fit_linear`),
which knows delay, damping and lag of a drive and shows what a network must beat; a network
(:mod:`training.actuator_fit`); or any model of your own with the same inputs and output, to which
:func:`with_card` adds the card.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from sim.actuator_samples import Samples, windows

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
    """An actuator fitted to samples.

    Attributes:
        model: the network.
        history: H.
        explained: ``[A]`` share of the torque's variance that it explains, on the last fifth of
            the samples, to which it was not fitted.
        error_range: ``[A, 2]`` of the errors in the samples.
        velocity_range: ``[A, 2]`` of their velocities.
    """

    model: onnx.ModelProto
    history: int
    explained: Array
    error_range: Array
    velocity_range: Array

    def write(self, robot: RobotSpec, path: Path, *, source: str) -> Path:
        """Write it for the robot whose samples they were; see :func:`robot_card`."""
        card = robot_card(
            robot,
            history=self.history,
            error_range=self.error_range,
            velocity_range=self.velocity_range,
            source=source,
        )
        return with_card(self.model, card, path)


@dataclass(frozen=True)
class Split:
    """Samples to fit to, and the last fifth of them, in one piece, to measure on.

    Neighbouring samples know each other, so between the two one history is left out.

    Attributes:
        x: ``[M, A, 2 H]``, see :func:`sim.actuator_samples.windows`.
        y: ``[M, A]`` torques.
        fitted: rows to fit to.
        kept: rows to measure on.
    """

    x: Array
    y: Array
    fitted: slice
    kept: slice

    @staticmethod
    def of(samples: Sequence[Samples], history: int) -> Split:
        """Cut samples.

        Raises:
            FerryError: there are too few, or a joint never moved.
        """
        x, y = windows(samples, history)
        if len(x) < (least := 20 * history):
            raise FerryError(f"{len(x)} samples for a history of {history}; expected {least}")
        spread = np.ptp(x[:, :, [history - 1, -1]], axis=0)  # [A, 2] of the newest
        if still := np.flatnonzero((spread == 0.0).any(axis=1)).tolist():
            raise FerryError(f"joints {still} never moved in the log, which says nothing of them")
        first = len(x) * 4 // 5
        return Split(x, y, slice(0, first), slice(min(first + history, len(x) - history), len(x)))

    def explained(self, predicted: Array) -> Array:
        """``[A]`` by predictions of the kept torques."""
        truth = self.y[self.kept]
        return 1.0 - (truth - predicted).var(axis=0) / np.maximum(truth.var(axis=0), 1e-300)

    def fit(self, model: onnx.ModelProto, predicted: Array) -> Fit:
        """What was fitted, with what it predicts of the kept torques."""
        history = self.x.shape[2] // 2
        newest = self.x[:, :, [history - 1, -1]]
        ranges = np.stack([newest.min(axis=0), newest.max(axis=0)], axis=2)  # [A, 2, ends]
        return Fit(model, history, self.explained(predicted), ranges[:, 0], ranges[:, 1])


def fit_linear(samples: Sequence[Samples], *, history: int, ridge: float = 1e-6) -> Fit:
    """Fit torque to the last samples of error and velocity, joint by joint.

    Least squares with a small penalty on weights, in units of each input's spread.

    Args:
        samples: of the motors, pieces without holes.
        history: H, samples that each torque may depend on.
        ridge: penalty.

    Raises:
        FerryError: too few samples, or a joint that never moved.
    """
    split = Split.of(samples, history)
    motors = split.y.shape[1]
    weights = np.zeros((motors, 2 * history))
    for a in range(motors):
        spread = split.x[:, a].std(axis=0)
        x, y = (split.x[:, a] / spread)[split.fitted], split.y[split.fitted, a]
        x = np.concatenate([x, np.sqrt(ridge * len(x)) * np.eye(2 * history)])
        y = np.concatenate([y, np.zeros(2 * history)])
        weights[a] = np.linalg.lstsq(x, y, rcond=None)[0] / spread
    predicted = np.einsum("mai,ai->ma", split.x[split.kept], weights)
    return split.fit(linear_model(weights[:, :history].T, weights[:, history:].T), predicted)
