"""What nodes report about themselves: steps of the policy, ground truth, diagnostics, latency.

Nothing that acts reads these messages; recorders, scorers and people do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from nav_msgs.msg import Odometry
from numpy.typing import NDArray
from std_msgs.msg import Float64MultiArray, MultiArrayDimension

from deploy.convert import set_quaternion, set_stamp, set_vector, shared
from deploy.safety_pipeline import SafetyTick
from deploy.safety_result import Verdict
from real.errors import FerryError
from real.robot_io import GroundTruth

Array = NDArray[np.float64]


@dataclass(frozen=True)
class StepRecord:
    """What the policy saw and did in one tick; the row that fine-tuning learns from.

    Attributes:
        stamp_ns: stamp of the state that was answered.
        observation: ``[D]``.
        mean: ``[A]`` output of the network.
        action: ``[A]`` action before clipping: the mean, or a sample when exploring.
        log_prob: log density of that action under the policy.
        policy_version: learner updates behind the weights.
        explore: whether the action was sampled.
    """

    stamp_ns: int
    observation: NDArray[np.floating[Any]]
    mean: NDArray[np.floating[Any]]
    action: NDArray[np.floating[Any]]
    log_prob: float
    policy_version: int
    explore: bool


class StepWriter:
    """StepRecord -> self-describing Float64MultiArray: the labels and sizes of its layout.

    The layout lists the parts one after the other, each with its own size as stride.
    """

    def __init__(self, observation_dim: int, action_dim: int) -> None:
        sizes = {
            "stamp": 2,
            "observation": observation_dim,
            "mean": action_dim,
            "action": action_dim,
            "log_prob": 1,
            "policy_version": 1,
            "explore": 1,
        }
        self.message: Any = Float64MultiArray()
        self.message.layout.dim = [
            MultiArrayDimension(label=label, size=size, stride=size)
            for label, size in sizes.items()
        ]
        self._data = shared(self.message, "data", sum(sizes.values()))
        self._split = (2 + observation_dim, 2 + observation_dim + action_dim)

    def write(self, step: StepRecord) -> Any:
        """Fill and return :attr:`message`."""
        data, (mean, action) = self._data, self._split
        data[:2] = divmod(step.stamp_ns, 1_000_000_000)
        data[2:mean] = step.observation
        data[mean:action] = step.mean
        data[action:-3] = step.action
        data[-3:] = step.log_prob, step.policy_version, step.explore
        return self.message


class VerdictWriter:
    """What became of a command -> the same kind of message: which state, verdict, mode, reasons.

    ``verdict`` and ``mode`` are the numbers of :class:`deploy.safety_result.Verdict` and
    :class:`deploy.modes.Mode`; ``violations`` counts the reasons, which diagnostics name.
    """

    def __init__(self) -> None:
        sizes = {"stamp": 2, "verdict": 1, "mode": 1, "violations": 1}
        self.message: Any = Float64MultiArray()
        self.message.layout.dim = [
            MultiArrayDimension(label=label, size=size, stride=size)
            for label, size in sizes.items()
        ]
        self._data = shared(self.message, "data", sum(sizes.values()))

    def write(self, stamp_ns: int, tick: SafetyTick) -> Any:
        """Fill and return :attr:`message`; the stamp is that of the state that was answered."""
        verdict = Verdict(int(tick.verdict[0]))
        reasons = len(tick.violations) if verdict is not Verdict.PASS or tick.warned else 0
        self._data[:2] = divmod(stamp_ns, 1_000_000_000)
        self._data[2:] = verdict, tick.mode[0], reasons
        return self.message


def read_step(message: Any) -> StepRecord:
    """What :class:`StepWriter` wrote.

    Raises:
        FerryError: the layout does not fit the data, or a part is missing.
    """
    data = np.asarray(message.data, dtype=np.float64)
    parts: dict[str, Array] = {}
    start = 0
    for dim in message.layout.dim:
        parts[dim.label] = data[start : start + dim.size]
        start += dim.size
    wanted = ("stamp", "observation", "mean", "action", "log_prob", "policy_version", "explore")
    missing = [n for n in wanted if n not in parts]
    if start != data.size or missing:
        raise FerryError(
            f"/policy/step: layout describes {start} of {data.size} numbers; missing: {missing}"
        )
    seconds, nanoseconds = parts["stamp"]
    return StepRecord(
        stamp_ns=int(seconds) * 1_000_000_000 + int(nanoseconds),
        observation=parts["observation"],
        mean=parts["mean"],
        action=parts["action"],
        log_prob=float(parts["log_prob"][0]),
        policy_version=int(parts["policy_version"][0]),
        explore=bool(parts["explore"][0]),
    )


class OdometryWriter:
    """GroundTruth -> Odometry, reused; the twist is in the base frame, as REP 105 asks."""

    def __init__(self, base_link: str) -> None:
        self.message: Any = Odometry()
        self.message.header.frame_id = "world"
        self.message.child_frame_id = base_link

    def write(self, truth: GroundTruth, stamp_ns: int) -> Any:
        """Fill and return :attr:`message`."""
        set_stamp(self.message.header.stamp, stamp_ns)
        set_vector(self.message.pose.pose.position, truth.position_w)
        set_quaternion(self.message.pose.pose.orientation, truth.quat_wb)
        set_vector(self.message.twist.twist.linear, truth.lin_vel_b)
        set_vector(self.message.twist.twist.angular, truth.ang_vel_b)
        return self.message


#: Levels of diagnostic_msgs/DiagnosticStatus.
OK, WARN, ERROR, STALE = (bytes([level]) for level in range(4))


def diagnostics(
    node: str, stamp_ns: int, *, level: bytes, message: str, values: Mapping[str, object]
) -> Any:
    """A DiagnosticArray with one status; floats are written with four digits."""
    status: Any = DiagnosticStatus()
    status.level, status.name, status.message, status.hardware_id = level, node, message, "ferry"
    status.values = [KeyValue(key=k, value=_short(v)) for k, v in values.items()]
    out: Any = DiagnosticArray()
    set_stamp(out.header.stamp, stamp_ns)
    out.status = [status]
    return out


def _short(value: object) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}"
    return str(value)
