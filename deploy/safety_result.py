"""What the safety filter answers: a command that is safe to execute, and every reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from deploy.checks import Fault, Violation, name_each
from real.joint_limits import LimitKind
from real.limits import LimitResult
from real.signals import JointCommand

Mask = NDArray[np.bool_]


class Verdict(IntEnum):
    """What became of a command, from harmless to severe."""

    PASS = 0
    """Forwarded unchanged."""
    CLAMPED = 1
    """Forwarded within the limits."""
    HOLD = 2
    """Not forwarded; the last safe target is held."""
    DAMP = 3
    """Not forwarded; the joints resist motion."""


@dataclass(frozen=True)
class SafetyResult:
    """What leaves the filter for N robots, and why.

    Attributes:
        command: safe to execute; stamped as the policy's command or, where none was used, as the
            state; gains are the contract's, or those of damping.
        verdict: ``[N]`` :class:`Verdict` values.
        stop: ``[N]`` whether the robot must stop and stay stopped until it is armed again.
        warned: whether some robot is in a soft zone, of which :attr:`violations` tells even where
            commands pass.
    """

    command: JointCommand
    verdict: NDArray[np.int8]
    stop: Mask
    _faults: tuple[Fault, ...] = ()
    _limited: LimitResult | None = None
    _engaged: Mask | None = None
    warned: bool = False

    @cached_property
    def violations(self) -> list[Violation]:
        """Every reason, built when first read: faults first, then limits of forwarded commands."""
        if self._limited is None or self._engaged is None:
            return []  # nothing was found, and nothing changed
        names = self._limited.limits.names
        found = [v for f in self._faults for v in f.violations(names) if self._engaged[v.world]]
        forwarded = self.verdict == Verdict.CLAMPED
        if forwarded.any():
            for kind in LimitKind:
                clipped = self._limited.clipped(kind)
                mask = clipped.mask & forwarded[:, None]
                if mask.any():
                    found += name_each(kind, mask, clipped.asked, limit=clipped.limit, joints=names)
        return found
