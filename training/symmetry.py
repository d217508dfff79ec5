"""Left-right symmetry: the mirror image of an observation and of an action, from joint names.

A robot that is its own mirror image has, for every motion, the mirrored motion with the same
reward. Each sample can so be learned from on either side. The mirror plane is the base's x-z plane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from real.action import ActionSpec
from real.config import Config
from real.errors import ConfigError, FerryError
from real.observation import ObservationSpec, ObsTerm
from real.spec import RobotSpec


class SymmetryConfig(Config):
    """Which joints mirror each other, said by their names."""

    enabled: bool = Field(default=False, description="learn from mirror images too")
    pairs: tuple[tuple[str, str], ...] = Field(
        default=(), description="name parts that change places, e.g. [FR_, FL_]"
    )
    flip: tuple[str, ...] = Field(
        default=(),
        description="name parts of joints whose sign changes: axes in the mirror plane",
    )


#: Signs of the mirrored signals with 3 numbers, for a reflection y -> -y. A velocity or direction
#: flips its y; a rate is a pseudovector and flips x and z.
_VECTOR = (1.0, -1.0, 1.0)
_PSEUDOVECTOR = (-1.0, 1.0, -1.0)
_VELOCITY_COMMAND = (1.0, -1.0, -1.0)  # vx, vy, wz
_SPATIAL = {
    "base_ang_vel": _PSEUDOVECTOR,
    "projected_gravity": _VECTOR,
    "command": _VELOCITY_COMMAND,
}


@dataclass(frozen=True)
class SignedPermutation:
    """``y[i] = sign[i] * x[index[i]]``.

    Attributes:
        index: ``[D]`` where each number of the image comes from.
        sign: ``[D]`` +1 or -1.
    """

    index: tuple[int, ...]
    sign: tuple[float, ...]

    def repeated(self, times: int) -> SignedPermutation:
        """The same for ``times`` copies in a row, such as a history."""
        size = len(self.index)
        index = tuple(i + k * size for k in range(times) for i in self.index)
        return SignedPermutation(index, self.sign * times)


def joined(parts: Sequence[SignedPermutation]) -> SignedPermutation:
    """One after the other."""
    index: list[int] = []
    for part in parts:
        start = len(index)
        index.extend(i + start for i in part.index)
    return SignedPermutation(tuple(index), tuple(s for part in parts for s in part.sign))


class Mirror:
    """Mirror images of raw observations and of actions.

    Args:
        observation: of the policy's observation, D numbers.
        action: of the action, A numbers.
    """

    def __init__(self, observation: SignedPermutation, action: SignedPermutation) -> None:
        self._obs_index = torch.tensor(observation.index)
        self._obs_sign = torch.tensor(observation.sign)
        self._action_index = torch.tensor(action.index)
        self._action_sign = torch.tensor(action.sign)

    @staticmethod
    def of(
        config: SymmetryConfig,
        robot: RobotSpec,
        *,
        observation: ObservationSpec,
        action: ActionSpec,
    ) -> Mirror:
        """The mirror of a robot and task.

        Raises:
            ConfigError: a name part fits no joint or fits ambiguously, or the default pose or the
                action scale is not symmetric.
            FerryError: an observation term has no known mirror image.
        """
        joints = mirror_joints(config, [j.name for j in robot.joints])
        _require_symmetric("q_default", joints, robot.q_default, [j.name for j in robot.joints])
        actuated = mirror_joints(config, list(action.joints), part_of_robot=True)
        scale = np.asarray(action.scale)
        unsigned = SignedPermutation(actuated.index, (1.0,) * len(actuated.index))
        _require_symmetric("action_scale", unsigned, scale, list(action.joints))
        by_source = {"joint_pos": joints, "joint_vel": joints, "prev_action": actuated}
        terms = [_mirror_term(term, by_source) for term in observation.terms]
        return Mirror(joined(terms), actuated)

    @staticmethod
    def of_env(config: SymmetryConfig, env: Any) -> Mirror | None:
        """The mirror of a robot's env, or None where the run uses none."""
        if not config.enabled:
            return None
        # Only a robot's env has these.
        specs = {"observation": env.observation_spec, "action": env.action_spec}
        return Mirror.of(config, env.robot, **specs)

    def obs(self, obs: Tensor) -> Tensor:
        """``[..., D] -> [..., D]``, raw observations."""
        return _image(obs, self._obs_index, self._obs_sign)

    def action(self, action: Tensor) -> Tensor:
        """``[..., A] -> [..., A]``."""
        return _image(action, self._action_index, self._action_sign)


def _image(x: Tensor, index: Tensor, sign: Tensor) -> Tensor:
    return x.index_select(-1, index.to(x.device)) * sign.to(x.device)


def mirror_joints(
    config: SymmetryConfig, names: Sequence[str], *, part_of_robot: bool = False
) -> SignedPermutation:
    """Where each joint of the mirror image comes from, and its sign.

    Args:
        config: pairs and flips.
        names: joints, in order.
        part_of_robot: whether name parts may fit none of these joints.

    Raises:
        ConfigError: a name part fits no joint, a joint fits two pairs, or has no partner.
    """
    parts = [part for pair in config.pairs for part in pair] + list(config.flip)
    for part in parts:
        if not part_of_robot and not any(part in name for name in names):
            raise ConfigError(
                f"training.symmetry: no joint's name has {part!r} in it; joints: {', '.join(names)}"
            )
    index: list[int] = []
    for name in names:
        images = {
            name.replace(here, there)
            for a, b in config.pairs
            for here, there in ((a, b), (b, a))
            if here in name
        }
        image = images.pop() if images else name
        if images or image not in names:
            raise ConfigError(
                f"training.symmetry: joint {name!r} mirrors to "
                f"{', '.join(sorted({image, *images}))}; expected exactly one of the joints "
                f"{', '.join(names)}"
            )
        index.append(names.index(image))
    sign = tuple(-1.0 if any(part in name for part in config.flip) else 1.0 for name in names)
    return SignedPermutation(tuple(index), sign)


def _require_symmetric(
    what: str, mirror: SignedPermutation, values: np.ndarray, names: Sequence[str]
) -> None:
    image = np.asarray(mirror.sign) * values[list(mirror.index)]
    for i in np.flatnonzero(~np.isclose(image, values)).tolist():
        other = names[mirror.index[i]]
        raise ConfigError(
            f"training.symmetry: {what} of {names[i]!r} is {values[i]}, but the mirror image of "
            f"{other!r} has {image[i]}: the robot is not its own mirror image"
        )


def _mirror_term(term: ObsTerm, by_source: dict[str, SignedPermutation]) -> SignedPermutation:
    if term.source in by_source:
        return by_source[term.source].repeated(term.history)
    sign = _SPATIAL.get(term.source)
    if sign is None or len(sign) != term.dim:
        raise FerryError(
            f"training.symmetry: the mirror image of observation term {term.name!r} (source "
            f"{term.source!r}, {term.dim} numbers) is not known; add it to training/symmetry.py "
            "or set training.symmetry.enabled: false"
        )
    return SignedPermutation(tuple(range(term.dim)), sign).repeated(term.history)
