"""Whether a contract can be run at all, whatever robot it is for."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from deploy.agreement import not_numbers
from deploy.ports import INPUT, OUTPUTS
from real.contract import PolicyContract
from real.observation import POSE_SOURCES, SOURCES
from real.reach import POSE_NAMES

#: Most steps that an observation term may remember.
MAX_HISTORY = 1000


def contract_problems(contract: PolicyContract) -> list[str]:
    """Everything that is wrong with a contract on its own, whatever robot it meets."""
    bad = [f"{name} is not a number" for name in not_numbers(contract)]
    names = [j.name for j in contract.actuated]

    def require(holds: bool, what: str) -> None:
        if not holds:
            bad.append(what)

    require(len(names) > 0, "it has no actuated joint")
    require(len(set(contract.joint_names)) == len(contract.joints), "a joint is listed twice")
    require(
        list(contract.action.joints) == names,
        "action.joints are not the actuated joints in their order",
    )
    require(0.0 < contract.control_dt_s <= 1.0, "control_dt_s is not in (0, 1] s")
    require(
        0.0 < contract.physics_dt_s <= contract.control_dt_s,
        "physics_dt_s is not in (0, control_dt_s]",
    )
    require(contract.base in {"floating", "fixed"}, "base is not floating or fixed")
    require(contract.safe_stop in {"damp", "hold"}, "safe_stop is not damp or hold")
    gains = [contract.damping_kd, *(g for j in contract.actuated for g in (j.kp, j.kd))]
    require(all(math.isfinite(g) and g >= 0.0 for g in gains), "a gain is negative or not finite")
    require(contract.normalizer_in_graph, "its normaliser is not in the graph")
    size = 0 if contract.state is None else contract.state.size
    require(contract.hidden_size == size, f"hidden_size is not the {size} numbers of its state")
    if contract.state is not None:
        bad += contract.state.problems((INPUT, *OUTPUTS))
    command = contract.command
    require(
        len(command.low) == len(command.high) == len(command.units) == command.dim,
        "command names, ranges and units differ in number",
    )
    require(
        all(-1e6 < lo <= hi < 1e6 for lo, hi in zip(command.low, command.high, strict=False)),
        "a command range is empty or not finite",
    )
    bad += _joint_problems(contract)
    bad += _observation_problems(contract)
    bad += _reach_problems(contract)
    bad += [] if contract.world is None else contract.world.problems()
    return bad


def _joint_problems(contract: PolicyContract) -> list[str]:
    """Poses that are none, and limits that leave nothing; a limit that is NaN is named already."""
    bad: list[str] = []
    for joint in contract.joints:
        # The ramp leads to it, and observations count from it, of passive joints, too.
        if not math.isfinite(joint.q_default):
            bad.append(f"{joint.name}.q_default is {joint.q_default}; expected a finite number")
        if not joint.actuated:
            continue
        if joint.q_min > joint.q_max or joint.q_min == math.inf or joint.q_max == -math.inf:
            bad.append(f"{joint.name}: its range is empty: {joint.q_min} to {joint.q_max}")
        bad += [
            f"{joint.name}.{key} is {getattr(joint, key)}; expected >= 0"
            for key in ("dq_max", "tau_max")
            if getattr(joint, key) < 0.0
        ]
    return bad


def _reach_problems(contract: PolicyContract) -> list[str]:
    """What is wrong with the pose command, if there is one."""
    reads = any(term.source in POSE_SOURCES for term in contract.observation.terms)
    if contract.reach is None:
        return ["observation reads a pose error, but no pose is commanded"] if reads else []
    bad: list[str] = []
    if contract.command.names != POSE_NAMES:
        bad.append(f"it reaches for poses, but its command is not {', '.join(POSE_NAMES)}")
    chain = contract.reach.chain
    unknown = [joint.name for joint in chain.joints if joint.name not in contract.joint_names]
    if unknown or not chain.joints:
        bad.append(f"the way to {chain.link!r} has joints it does not know: {unknown}")
    numbers = [*chain.position, *chain.quat, contract.reach.share]
    for joint in chain.joints:
        numbers += [*joint.position, *joint.quat, *joint.axis]
    if not np.isfinite(numbers).all():
        bad.append(f"the way to {chain.link!r} has numbers that are not finite")
    return bad


def _observation_problems(contract: PolicyContract) -> list[str]:
    bad: list[str] = []
    for term in contract.observation.terms:
        source = SOURCES.get(term.source)
        if source is None:
            bad.append(f"observation reads {term.source!r}, which this version does not know")
            continue
        # The sizes need only the joints, which a contract has as a robot has.
        dim = source.dim(cast("Any", contract), contract.command.dim)
        if term.dim != dim:
            bad.append(f"observation term {term.name!r} has {term.dim} numbers; expected {dim}")
        if not 1 <= term.history <= MAX_HISTORY:
            bad.append(f"observation term {term.name!r}: history is {term.history}")
        if not math.isfinite(term.scale) or (term.clip is not None and not term.clip > 0.0):
            bad.append(f"observation term {term.name!r}: scale or clip is no usable number")
    if len(contract.observation.slices()) != len(contract.observation.terms):
        bad.append("an observation term is listed twice")
    return bad


# ------------------------------------------------------------------ golden vectors
