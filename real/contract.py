"""Everything needed to run a policy, generated once by the exporter and checked by every consumer.

Numbers are written as JSON with Python's shortest round-trip representation, so reading gives
back the same doubles: nothing is rounded.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from real.action import ActionSpec
from real.errors import ContractMismatch, FerryError
from real.memory import HiddenState
from real.observation import ObservationSpec
from real.reach import Reach
from real.robot_contract import RobotContract, parse_json
from real.spec import JointSpec, RobotSpec
from real.world import TrainingWorld

Float32 = NDArray[np.float32]

#: Raised when the meaning of a field changes; readers refuse what they do not know.
CONTRACT_VERSION = 1


@dataclass(frozen=True)
class CommandLimits:
    """Names and ranges of the command the policy was trained on.

    Attributes:
        names: e.g. ``("vx", "vy", "wz")``.
        low: lowest value of each.
        high: highest value of each.
        units: unit of each.
    """

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    units: tuple[str, ...]

    @property
    def dim(self) -> int:
        """Length of the command vector, C."""
        return len(self.names)


@dataclass(frozen=True)
class Golden:
    """Recorded inputs and outputs of the network that every runtime must reproduce.

    Attributes:
        observation: ``[K, D]``.
        mean: ``[K, A]``.
        log_std: ``[K, A]``.
        hidden: ``[K, H]`` what was remembered before each; None without a memory.
        hidden_next: ``[K, H]`` what was after it.
    """

    observation: Float32
    mean: Float32
    log_std: Float32
    hidden: Float32 | None = None
    hidden_next: Float32 | None = None


@dataclass(frozen=True)
class PolicyContract:
    """What a policy was trained for and how to feed and read its network.

    Attributes:
        schema_version: :data:`CONTRACT_VERSION`.
        robot: name of the robot.
        joints: all joints in order with limits, gains and default pose.
        base: ``floating`` or ``fixed``.
        base_link: link whose frame is the base frame.
        imu_link: link that carries the IMU, or None.
        safe_stop: ``damp`` or ``hold``.
        damping_kd: gain of the damping mode.
        control_dt_s: control period [s].
        physics_dt_s: physics step it was trained with [s].
        observation: what the network reads.
        action: what its output means.
        command: names and ranges of the command.
        normalizer_in_graph: whether the graph takes raw observations (always True here).
        hidden_size: size of the recurrent state, 0 for none.
        config_hash: hash of the resolved training config.
        git_sha: commit of the code that trained it, with ``-dirty`` if it had changes.
        policy_version: learner updates behind the weights.
        provenance: command, seed and other words on where it is from.
        state: the recurrent state, None for none.
        reach: of a policy that is commanded poses: the way to the end effector; else None.
        world: what it was trained in, for evaluations; None in contracts from before it was kept.
    """

    schema_version: int
    robot: str
    joints: tuple[JointSpec, ...]
    base: str
    base_link: str
    imu_link: str | None
    safe_stop: str
    damping_kd: float
    control_dt_s: float
    physics_dt_s: float
    observation: ObservationSpec
    action: ActionSpec
    command: CommandLimits
    normalizer_in_graph: bool
    hidden_size: int
    config_hash: str
    git_sha: str
    policy_version: int
    provenance: Mapping[str, str]
    state: HiddenState | None = None
    reach: Reach | None = None
    world: TrainingWorld | None = None

    @staticmethod
    def of_robot(
        robot: RobotSpec,
        *,
        observation: ObservationSpec,
        action: ActionSpec,
        command: CommandLimits,
        reach: Reach | None = None,
        config_hash: str = "",
        git_sha: str = "",
        policy_version: int = 0,
        provenance: Mapping[str, str] | None = None,
        state: HiddenState | None = None,
        world: TrainingWorld | None = None,
    ) -> PolicyContract:
        """The contract of a policy for ``robot``; limits must be complete."""
        robot.require_complete()
        return PolicyContract(
            schema_version=CONTRACT_VERSION,
            robot=robot.name,
            joints=robot.joints,
            base=robot.base,
            base_link=robot.base_link,
            imu_link=robot.imu_link,
            safe_stop=robot.safe_stop,
            damping_kd=robot.damping_kd,
            control_dt_s=robot.control_dt_s,
            physics_dt_s=robot.physics_dt_s,
            observation=observation,
            action=action,
            command=command,
            normalizer_in_graph=True,
            hidden_size=0 if state is None else state.size,
            config_hash=config_hash,
            git_sha=git_sha,
            policy_version=policy_version,
            provenance=dict(provenance or {}),
            state=state,
            reach=reach,
            world=world,
        )

    @property
    def actuated(self) -> tuple[JointSpec, ...]:
        """The A joints with a motor, in order."""
        return tuple(j for j in self.joints if j.actuated)

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Names of all J joints, in order."""
        return tuple(j.name for j in self.joints)

    def to_json(self) -> str:
        """Lossless JSON text. Limits of joints without a stop are written as +-Infinity."""
        return json.dumps(dataclasses.asdict(self), allow_nan=True)

    @staticmethod
    def from_json(text: str) -> PolicyContract:
        """Read what :meth:`to_json` wrote.

        Raises:
            ContractMismatch: unreadable, another schema version, or a field missing or unknown.
        """
        try:
            body = cast("dict[str, Any]", json.loads(text))
            version = body.get("schema_version")
            if version != CONTRACT_VERSION:
                raise ContractMismatch(
                    f"policy contract has schema version {version!r}; this Ferry reads "
                    f"{CONTRACT_VERSION}; export the policy again with this version"
                )
            return parse_json(PolicyContract, body)
        except (ValueError, AttributeError, FerryError) as error:
            if isinstance(error, ContractMismatch):
                raise
            raise ContractMismatch(f"policy contract is not readable: {error}") from error

    def digest(self) -> str:
        """SHA-256 of the contract's JSON."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def differences(self, robot: RobotContract) -> list[str]:
        """Everything in which the robot differs from what the policy was trained for, by name."""
        out: list[str] = []

        def check(what: str, policy: object, reported: object) -> None:
            if policy != reported:
                out.append(f"{what}: policy has {policy!r}, robot reports {reported!r}")

        check("robot", self.robot, robot.robot)
        missing = [n for n in self.joint_names if n not in robot.joints]
        extra = [n for n in robot.joints if n not in self.joint_names]
        out.extend(f"joint {n!r}: the robot does not report it" for n in missing)
        out.extend(f"joint {n!r}: the policy does not know it" for n in extra)
        for what, names in (("joint", robot.joints), ("motor of joint", robot.actuated)):
            twice = sorted({n for n in names if names.count(n) > 1})
            out.extend(f"{what} {n!r}: the robot reports it twice" for n in twice)
        if not len(robot.kp) == len(robot.kd) == len(robot.actuated):
            out.append(
                f"gains: {len(robot.kp)} kp, {len(robot.kd)} kd, {len(robot.actuated)} motors"
            )
        passive = [j.name for j in self.joints if not j.actuated and j.name in robot.actuated]
        out.extend(f"joint {n!r}: passive in the policy, actuated on the robot" for n in passive)
        gains = {n: (p, d) for n, p, d in zip(robot.actuated, robot.kp, robot.kd, strict=False)}
        for joint in self.actuated:
            if joint.name in gains:
                check(f"joint {joint.name!r} kp", joint.kp, gains[joint.name][0])
                check(f"joint {joint.name!r} kd", joint.kd, gains[joint.name][1])
            elif joint.name not in missing:
                out.append(f"joint {joint.name!r}: actuated in the policy, passive on the robot")
        check("control_dt_s", self.control_dt_s, robot.control_dt_s)
        check("base_link", self.base_link, robot.base_link)
        check("imu_link", self.imu_link, robot.imu_link)
        check("safe_stop", self.safe_stop, robot.safe_stop)
        check("damping_kd", self.damping_kd, robot.damping_kd)
        return out

    def require_match(self, robot: RobotContract) -> None:
        """Refuse a robot that differs.

        Raises:
            ContractMismatch: listing every difference by name.
        """
        found = self.differences(robot)
        if found:
            raise ContractMismatch(
                "the policy was not trained for this robot:\n  " + "\n  ".join(found)
            )
