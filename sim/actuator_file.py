"""A learned actuator as a file: past position errors and velocities to torque, with a card.

After Hwangbo et al., "Learning agile and dynamic motor skills for legged robots" (2019): what
motor, gear and firmware make of a target is measured and fitted, not modelled. Such a network
belongs to one robot with one set of gains at one rate. The file says which, in its metadata, and is
refused where it does not belong.

The model has inputs ``error`` and ``velocity``, ``[N, H, A]`` each: the last H physics steps,
oldest first, of target minus position [rad or m] and of velocity [rad/s or m/s]; and the output
``torque [N, A]`` [N m or N]. N is free. All are of one type, float or double.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from real.config import Config
from real.errors import FerryError, nearest
from real.spec import RobotSpec
from real.world import ACTUATOR_CARD_KEY, ACTUATOR_INPUTS, ACTUATOR_OUTPUT

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Metadata of the model under which the card stands, as JSON, and names of inputs and output.
CARD_KEY, INPUTS, OUTPUT = ACTUATOR_CARD_KEY, ACTUATOR_INPUTS, ACTUATOR_OUTPUT
#: Relative difference of gains and rates that counts as none: they went through text.
_SAME = 1e-6
#: Points at which damping is measured, and how far apart as a share of the fitted range.
_POINTS, _STEP = 64, 1e-3

Range = tuple[float, float]


class ActuatorCard(Config):
    """What a learned actuator was fitted for; lists are in the order of ``joints``."""

    schema_version: Literal[1] = 1
    robot: str = Field(description="name of the robot")
    joints: tuple[str, ...] = Field(min_length=1, description="names; the order of axis A")
    kp: tuple[float, ...] = Field(description="position gains of the drives [N m/rad]")
    kd: tuple[float, ...] = Field(description="velocity gains of the drives [N m s/rad]")
    dt_s: Annotated[float, Field(gt=0.0)] = Field(description="time between two samples [s]")
    history: int = Field(ge=1, description="H, samples that it sees")
    error_range: tuple[Range, ...] = Field(description="least and largest error fitted [rad]")
    velocity_range: tuple[Range, ...] = Field(description="of velocities fitted [rad/s]")
    source: str = Field(min_length=3, description="what it was fitted to")


@dataclass(frozen=True)
class Damping:
    """What a learned actuator brakes with, ``[A]`` each, in the robot's order [N m s/rad].

    Attributes:
        newest: loss of torque per velocity of the newest sample alone. MuJoCo integrates this
            part implicitly, as it does the damping of its own servos.
        steady: the same of all samples together, as when a joint keeps its speed: the equivalent
            damping.
    """

    newest: Array
    steady: Array


class ActuatorNetwork:
    """A file that fits a robot. Made by :func:`load_actuators`.

    Args:
        path: the file, for messages.
        card: its card.
        session: of ONNX Runtime.
        robot: the robot; what goes in and comes out is in the order of its A actuated joints.

    Attributes:
        path: see above.
        card: see above.
        history: H.
        damping: measured within the fitted ranges.
    """

    def __init__(self, path: Path, card: ActuatorCard, session: Any, robot: RobotSpec) -> None:
        self.path, self.card, self.history = path, card, card.history
        self._session = session
        double = session.get_inputs()[0].type == "tensor(double)"
        self._dtype: type[np.floating[Any]] = np.float64 if double else np.float32
        names = [joint.name for joint in robot.actuated]
        # Where each joint of the file is among the robot's, and the other way round.
        self._ours = np.array([names.index(name) for name in card.joints])
        self._theirs = np.array([card.joints.index(name) for name in names])
        # [2, A, 2]: of errors and velocities, low and high end
        ranges = np.array([card.error_range, card.velocity_range])[:, self._theirs]
        self._low, self._high = ranges[..., 0], ranges[..., 1]
        self._check_shapes()
        self.damping = self._measured_damping()

    def torque(self, error: Array, velocity: Array) -> Array:
        """``[N, H, A]`` each, oldest first -> ``[N, A]``; one inference for all worlds."""
        with np.errstate(over="ignore", invalid="ignore"):  # of a world that diverges
            given = {
                name: np.ascontiguousarray(values[..., self._ours], dtype=self._dtype)
                for name, values in zip(INPUTS, (error, velocity), strict=True)
            }
        (out,) = self._session.run([OUTPUT], given)
        return np.asarray(out, dtype=np.float64)[..., self._theirs]

    def outside(self, error: Array, velocity: Array) -> Mask:
        """``[N, A]`` whether the network never saw such a sample: what it says is a guess."""
        mask = (error < self._low[0]) | (error > self._high[0])
        return mask | (velocity < self._low[1]) | (velocity > self._high[1])

    def _check_shapes(self) -> None:
        joints = len(self.card.joints)
        for num in (1, 3):  # a model may have been made for one world only
            zeros = np.zeros((num, self.history, joints))
            try:
                found = self.torque(zeros, zeros)
            except Exception as error:  # ONNX Runtime has its own for everything
                raise FerryError(
                    f"{self.path}: the model does not run on inputs [{num}, {self.history}, "
                    f"{joints}] (worlds, history, joints): {error}"
                ) from error
            if found.shape != (num, joints) or not np.isfinite(found).all():
                raise FerryError(
                    f"{self.path}: {OUTPUT} for inputs of zeros has shape {found.shape} or is not "
                    f"finite; expected [{num}, {joints}]"
                )

    def _measured_damping(self) -> Damping:
        """By central differences, always at the same points.

        There all samples of a joint are alike, as when it keeps its speed, and within the inner
        half of what was fitted: unlike ones drawn independently, such histories do happen.
        """
        rng = np.random.default_rng(0)
        shape = (_POINTS, 1, len(self._ours))
        middle, half = 0.5 * (self._high + self._low), 0.5 * (self._high - self._low)
        error, velocity = (
            np.repeat(m + h * rng.uniform(-0.5, 0.5, shape), self.history, axis=1)
            for m, h in zip(middle, half, strict=True)
        )
        step = _STEP * (self._high[1] - self._low[1])

        def slope(at: slice) -> Array:
            above, below = velocity.copy(), velocity.copy()
            above[:, at] += step
            below[:, at] -= step
            change = self.torque(error, above) - self.torque(error, below)
            return -(change / (2.0 * step)).mean(axis=0)

        return Damping(slope(slice(-1, None)), slope(slice(None)))


def read_actuator(path: str | Path) -> bytes:
    """The bytes of a learned actuator.

    Raises:
        FerryError: the file cannot be read.
    """
    file = Path(path).expanduser()
    try:
        return file.read_bytes()
    except OSError as error:
        raise FerryError(
            f"actuators.network: cannot read {file}: {error.strerror or error}"
        ) from error


def load_actuators(name: str | Path, robot: RobotSpec) -> ActuatorNetwork:
    """Read a learned actuator and refuse it where it does not belong to the robot.

    Args:
        name: the file.
        robot: the robot, with the gains and the physics step that it will be simulated with.

    Raises:
        FerryError: there is no such file, it is no learned actuator, or it was fitted for another
            robot, other joints, gains or another rate; every difference is named.
    """
    path = Path(name).expanduser()
    data = read_actuator(path)
    options: Any = onnxruntime.SessionOptions()
    # Small networks gain nothing from more threads, and actors share a machine.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    # Its own format, which it would know by itself, holds what no reader of ONNX finds.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    try:
        session: Any = onnxruntime.InferenceSession(
            data, options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise FerryError(f"{path}: ONNX Runtime cannot load it: {error}") from error
    card = _card(path, session)
    _require_match(path, card, robot)
    return ActuatorNetwork(path, card, session, robot)


def _card(path: Path, session: Any) -> ActuatorCard:
    text = session.get_modelmeta().custom_metadata_map.get(CARD_KEY)
    if text is None:
        raise FerryError(
            f"{path} is no learned actuator: it has no {CARD_KEY!r} in its metadata; "
            "docs/actuators.md says how to make one"
        )
    try:
        card = ActuatorCard.model_validate_json(text)
    except (ValidationError, FerryError) as error:
        raise FerryError(f"{path}: the metadata {CARD_KEY!r} is wrong: {error}") from error
    lists = ("kp", "kd", "error_range", "velocity_range")
    wrong = [
        f"{n} {len(getattr(card, n))}" for n in lists if len(getattr(card, n)) != len(card.joints)
    ]
    wrong += [
        f"{name}[{i}] {low:g} to {high:g}"
        for name in lists[2:]
        for i, (low, high) in enumerate(getattr(card, name))
        if not low < high
    ]
    if wrong or len(set(card.joints)) < len(card.joints):
        raise FerryError(
            f"{path}: the metadata {CARD_KEY!r} has {len(card.joints)} joints, but: "
            f"{', '.join(wrong) or 'a name comes twice'}; expected as many of each, and ranges in "
            "order"
        )
    inputs = {found.name: found.type for found in session.get_inputs()}
    outputs = [found.name for found in session.get_outputs()]
    if sorted(inputs) != sorted(INPUTS) or OUTPUT not in outputs or len({*inputs.values()}) > 1:
        raise FerryError(
            f"{path}: the model has inputs {', '.join(inputs)} and outputs {', '.join(outputs)}; "
            f"expected {' and '.join(INPUTS)}, of one type, and {OUTPUT}"
        )
    return card


def _require_match(path: Path, card: ActuatorCard, robot: RobotSpec) -> None:
    """Refuse a network of another robot, other joints, gains or another rate."""
    names = [joint.name for joint in robot.actuated]
    wrong: list[str] = []
    if card.robot != robot.name:
        wrong.append(f"robot: fitted for {card.robot!r}, this is {robot.name!r}")
    wrong += [
        f"joint {name!r}: the network does not have it{nearest(name, card.joints)}"
        for name in names
        if name not in card.joints
    ]
    wrong += [
        f"joint {name!r}: the robot has no such motor{nearest(name, names)}"
        for name in card.joints
        if name not in names
    ]
    for joint in robot.actuated:
        if joint.name not in card.joints:
            continue
        at = card.joints.index(joint.name)
        for gain, fitted, own in (("kp", card.kp[at], joint.kp), ("kd", card.kd[at], joint.kd)):
            if not np.isclose(fitted, own, rtol=_SAME, atol=0.0):
                wrong.append(
                    f"joint {joint.name!r}: fitted with {gain} {fitted:g}, the robot has {own:g}"
                )
    if not np.isclose(card.dt_s, robot.physics_dt_s, rtol=_SAME, atol=0.0):
        wrong.append(
            f"rate: fitted for samples every {card.dt_s:g} s, physics_dt_s is "
            f"{robot.physics_dt_s:g} s"
        )
    if wrong:
        raise FerryError(
            f"{path} does not belong to robot {robot.name!r} ({robot.source}):\n  "
            + "\n  ".join(wrong)
            + "\n  fit it anew, or give the robot file what the motors really had"
        )
