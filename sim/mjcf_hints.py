"""What an MJCF file proposes for a robot file beyond its joints: a pose, gains, motors.

Position servos and key frames are how such files say what a robot is usually controlled with and
how it stands. The model that engines build has neither: gains and pose are the robot file's.
"""

# The names of MuJoCo come from compiled modules, which the type checker cannot see.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import mujoco

from sim.mjcf import compile_mjcf

_GAIN, _BIAS = mujoco.mjtGain, mujoco.mjtBias
#: Transmissions to one joint; for hinges and slides the two are the same.
_JOINT = {int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_JOINTINPARENT)}
_TENDON, _WRAP_JOINT = int(mujoco.mjtTrn.mjTRN_TENDON), int(mujoco.mjtWrap.mjWRAP_JOINT)

_ONE_NUMBER = {int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE)}

#: Names of key frames in which a robot stands, the likeliest first; else it is the first one.
STANDING = ("home", "stand", "standing", "default", "init")


@dataclass(frozen=True)
class Hints:
    """What a file proposes.

    Attributes:
        key: name of the key frame that ``q`` is from; empty for none.
        q: joint -> position in it [rad or m].
        gains: joint -> kp and kd of the position servo at it, if it has exactly one.
        motors: joints with an actuator of any kind; empty if the file does not say which: it has no
            actuators at all, or one that acts on bodies and sites, and so on joints unnamed.
    """

    key: str = ""
    q: dict[str, float] = field(default_factory=dict[str, float])
    gains: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    motors: frozenset[str] = frozenset()


def read_hints(path: Path) -> Hints:
    """Ask MuJoCo, which has applied all defaults and worked out damping ratios.

    Raises:
        FerryError: MuJoCo cannot read the file.
    """
    model = compile_mjcf(path)
    names = {j: model.joint(j).name or f"joint_{j}" for j in range(model.njnt)}
    gains: dict[str, tuple[float, float]] = {}
    motors: set[str] = set()
    unnamed = False
    for actuator in range(model.nu):
        joints = _driven(model, actuator)
        unnamed |= joints is None
        at_joint = int(model.actuator_trntype[actuator]) in _JOINT
        for name in (names[j] for j in joints or ()):
            found = _servo(model, actuator) if at_joint else None
            if found is not None and name not in motors:
                gains[name] = found
            else:
                gains.pop(name, None)
            motors.add(name)
    if unnamed:
        motors.clear()
    key = _key(model)
    if key < 0:
        return Hints(gains=gains, motors=frozenset(motors))
    q = {
        name: float(model.key_qpos[key, model.jnt_qposadr[j]])
        for j, name in names.items()
        if int(model.jnt_type[j]) in _ONE_NUMBER
    }
    return Hints(model.key(key).name or f"key {key}", q, gains, frozenset(motors))


def _driven(model: mujoco.MjModel, actuator: int) -> tuple[int, ...] | None:
    """The joints that an actuator drives; None if it acts on something else than joints."""
    kind, target = int(model.actuator_trntype[actuator]), int(model.actuator_trnid[actuator, 0])
    if kind in _JOINT:
        return (target,)
    if kind != _TENDON:
        return None
    first, count = int(model.tendon_adr[target]), int(model.tendon_num[target])
    wraps = range(first, first + count)
    # A tendon through sites pulls at whatever joints lie between them.
    if any(int(model.wrap_type[wrap]) != _WRAP_JOINT for wrap in wraps):
        return None
    return tuple(int(model.wrap_objid[wrap]) for wrap in wraps)


def _servo(model: mujoco.MjModel, actuator: int) -> tuple[float, float] | None:
    """Gains at the joint of a position servo; None if it is another actuator.

    Its force is kp (u - l) - kv dl/dt in the length l = gear q, and the joint feels gear times it.
    """
    gain, bias = model.actuator_gainprm[actuator], model.actuator_biasprm[actuator]
    if (
        int(model.actuator_gaintype[actuator]) != int(_GAIN.mjGAIN_FIXED)
        or int(model.actuator_biastype[actuator]) != int(_BIAS.mjBIAS_AFFINE)
        or not gain[0] > 0.0
        or bias[1] != -gain[0]
    ):
        return None
    square = float(model.actuator_gear[actuator, 0]) ** 2
    return square * float(gain[0]), square * max(0.0, -float(bias[2]))


def _key(model: mujoco.MjModel) -> int:
    """The key frame to stand in; -1 without any."""
    names = [model.key(k).name.lower() for k in range(model.nkey)]
    for wanted in STANDING:
        if wanted in names:
            return names.index(wanted)
    return 0 if names else -1
