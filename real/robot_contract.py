"""What a robot says of itself over the wire, and how contracts are read from JSON without loss."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from real.errors import ContractMismatch
from real.spec import RobotSpec

T = TypeVar("T")


@dataclass(frozen=True)
class RobotContract:
    """What a robot says of itself on ``/robot/contract``; checked before arming.

    Attributes:
        robot: name.
        joints: all joints in the robot's order.
        actuated: the actuated ones, in order.
        kp: ``[A]`` gains the robot applies.
        kd: ``[A]``.
        control_dt_s: control period [s].
        base_link: link whose frame is the base frame.
        imu_link: link whose frame the IMU reports in, or None.
        safe_stop: ``damp`` or ``hold``.
        damping_kd: gain of the damping mode.
        imu_rotation: wxyz, takes vectors of the IMU link's frame to the base frame. A fact of the
            robot alone: policies see the base frame.
        q_min, q_max, dq_max, tau_max: ``[A]`` limits as in :class:`~real.spec.JointSpec`; None
            where the robot does not know one, an empty tuple where it knows none.
    """

    robot: str
    joints: tuple[str, ...]
    actuated: tuple[str, ...]
    kp: tuple[float, ...]
    kd: tuple[float, ...]
    control_dt_s: float
    base_link: str
    imu_link: str | None
    safe_stop: str
    damping_kd: float
    imu_rotation: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)
    q_min: tuple[float | None, ...] = ()
    q_max: tuple[float | None, ...] = ()
    dq_max: tuple[float | None, ...] = ()
    tau_max: tuple[float | None, ...] = ()

    @staticmethod
    def from_spec(robot: RobotSpec) -> RobotContract:
        """The contract of a robot file."""

        def known(values: Iterable[float]) -> tuple[float | None, ...]:
            return tuple(None if math.isnan(v) else v for v in values)

        return RobotContract(
            robot=robot.name,
            joints=robot.joint_names,
            actuated=tuple(j.name for j in robot.actuated),
            kp=tuple(j.kp for j in robot.actuated),
            kd=tuple(j.kd for j in robot.actuated),
            control_dt_s=robot.control_dt_s,
            base_link=robot.base_link,
            imu_link=robot.imu_link,
            safe_stop=robot.safe_stop,
            damping_kd=robot.damping_kd,
            q_min=known(j.q_min for j in robot.actuated),
            q_max=known(j.q_max for j in robot.actuated),
            dq_max=known(j.dq_max for j in robot.actuated),
            tau_max=known(j.tau_max for j in robot.actuated),
        )

    def to_json(self) -> str:
        """JSON text with a hash of itself."""
        body = dataclasses.asdict(self)
        return json.dumps({**body, "hash": _sha(body)})

    @staticmethod
    def from_json(text: str) -> RobotContract:
        """Read what :meth:`to_json` wrote.

        Raises:
            ContractMismatch: not such a text, or its hash does not fit.
        """
        try:
            body = cast("dict[str, Any]", json.loads(text))
            claimed = body.pop("hash")
            if _sha(body) != claimed:
                raise ContractMismatch("robot contract: its hash does not fit its content")
            return parse_json(RobotContract, body)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ContractMismatch(f"robot contract is not readable: {error}") from error


@functools.cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def parse_json(kind: type[T], body: Mapping[str, Any]) -> T:
    """Build a contract from JSON and refuse whatever would not be written back the same.

    That one comparison finds unknown fields, text in place of numbers, and any loss.
    """
    try:
        parsed = cast("T", _adapter(kind).validate_python(body))
    except ValidationError as error:
        # pydantic's own text is for programmers: it spans lines and ends in a link.
        wrong = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ValueError("; ".join(wrong)) from error
    again = json.loads(json.dumps(dataclasses.asdict(cast("Any", parsed))))
    for key, value in body.items():
        if json.dumps(again.get(key), sort_keys=True) != json.dumps(value, sort_keys=True):
            raise ValueError(f"field {key!r} is not one this version writes: {value!r:.200}")
    return parsed


def _sha(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
