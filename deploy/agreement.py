"""Whether policy, robot and bundle agree, difference by difference, before anything moves."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from real.contract import PolicyContract, RobotContract
from real.errors import ContractMismatch, FerryError

#: Where a policy is from; it may differ without any difference to the robot.
_ORIGIN = {"physics_dt_s", "config_hash", "git_sha", "policy_version", "provenance", "world"}


def agree(policy: PolicyContract, robot: RobotContract) -> tuple[PolicyContract, list[str]]:
    """The contract to enforce: the policy's, under the tighter of its and the robot's limits.

    A limit that the robot gives wider than the policy, or not at all, changes nothing: the policy
    was never tried beyond its own.

    Returns:
        The contract, and one line for each limit in which the two differ.

    Raises:
        FerryError: the robot is not the one of the policy, or has a floating base without an IMU.
    """
    policy.require_match(robot)
    require_imu(policy)
    columns = {
        "q_min": (robot.q_min, max),
        "q_max": (robot.q_max, min),
        "dq_max": (robot.dq_max, min),
        "tau_max": (robot.tau_max, min),
    }
    place = {name: i for i, name in enumerate(robot.actuated)}
    joints, notes = list(policy.joints), list[str]()
    for name, (values, tighter) in columns.items():
        if not values:
            continue
        if len(values) != len(robot.actuated):
            raise ContractMismatch(
                f"robot contract: {len(values)} values of {name} for {len(robot.actuated)} joints"
            )
        for i, joint in enumerate(joints):
            theirs = values[place[joint.name]] if joint.actuated else None
            ours = float(getattr(joint, name))
            if theirs is None or math.isnan(theirs) or theirs == ours:
                continue
            kept = tighter(ours, theirs)
            joints[i] = dataclasses.replace(joint, **{name: kept})
            notes.append(
                f"{name} of {joint.name}: policy has {ours:g}, robot reports {theirs:g}; "
                f"{kept:g} is enforced"
            )
    return dataclasses.replace(policy, joints=tuple(joints)), notes


def require_imu(policy: PolicyContract) -> None:
    """Refuse a floating base that nobody can see fall.

    Raises:
        FerryError: the robot floats and has no IMU.
    """
    if policy.base == "floating" and policy.imu_link is None:
        raise FerryError(
            f"robot {policy.robot!r} has a floating base and no imu_link: a fall would go "
            "unnoticed; name the link of its IMU in the robot file and export the policy again"
        )


def changes(running: PolicyContract, offered: PolicyContract) -> list[str]:
    """Everything in which a policy differs from the one that runs, but for where it is from."""
    out: list[str] = []
    before, after = _facts(running), _facts(offered)
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old != new:
            out.append(f"{name}: running {old!r}, new {new!r}")
    return out


def _facts(contract: PolicyContract) -> dict[str, object]:
    facts: dict[str, object] = {
        f.name: getattr(contract, f.name)
        for f in dataclasses.fields(contract)
        if f.name not in {*_ORIGIN, "joints"}
    }
    facts["joints"] = contract.joint_names
    for joint in contract.joints:
        for key, value in dataclasses.asdict(joint).items():
            # NaN, a limit of a passive joint that nobody knows, must equal itself.
            known = not (isinstance(value, float) and math.isnan(value))
            facts[f"joint {joint.name!r} {key}"] = value if known else None
    return facts


def not_numbers(contract: PolicyContract) -> list[str]:
    """Names of numbers that are NaN (never allowed) in a contract."""
    bad: list[str] = []
    for joint in contract.joints:
        for field in dataclasses.fields(joint):
            value = getattr(joint, field.name)
            if isinstance(value, float) and math.isnan(value) and joint.actuated:
                bad.append(f"{joint.name}.{field.name}")
    for key, values in (
        ("action.scale", contract.action.scale),
        ("action.offset", contract.action.offset),
    ):
        if not np.isfinite(values).all():
            bad.append(key)
    return bad
