"""Which pose an arm's policy is told to reach now: the operator's, or the one that it is in.

A target is a goal and no motion, so it cannot be replaced by zero when it stops coming, as a
velocity can. The rule, which docs/nodes.md tells users:

* While the policy does not run, and until a target comes, the arm is told the pose that it has.
* A target counts for ``timeout_s``; whoever wants more keeps sending. Then the arm is told the pose
  that it had at that moment, brought into the trained range as all are, and stays there. With
  ``timeout_s`` 0 a target counts until another comes.
* When the policy stops running, all of it is forgotten: a robot that is armed again stays where it
  is until somebody sends a target.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from real.contract import PolicyContract
from real.errors import FerryError
from real.reach import ReachSpace

Array = NDArray[np.float64]

#: A quaternion whose length is further from 1 than this is a mistake and not rounding.
UNIT_SLACK = 0.01


class TargetPose:
    """The target of one arm.

    Args:
        contract: of a policy that is commanded poses.
        timeout_s: how long a target counts [s]; 0: until another comes.

    Attributes:
        held: whether the arm is told to stay where it was, for want of a target.
    """

    def __init__(self, contract: PolicyContract, *, timeout_s: float) -> None:
        if contract.reach is None:
            raise FerryError(f"the policy for {contract.robot!r} is not commanded poses")
        box = {"low": contract.command.low, "high": contract.command.high}
        self._space = ReachSpace(contract.reach, contract.joints, **box)
        self._timeout_ns = round(timeout_s * 1e9)
        self._target: tuple[Array, int] | None = None
        self._hold: Array | None = None
        self.held = True

    def take(self, pose: Array, now_ns: int) -> str:
        """Take a target ``[7]`` (position [m] in the base frame, quaternion wxyz).

        A position outside the range that the policy was trained on is brought into it.

        Returns:
            What was clamped, or nothing.

        Raises:
            FerryError: not finite, or the quaternion is not of unit length; the target before
                stays.
        """
        if not np.isfinite(pose).all():
            raise FerryError(f"target pose is not finite: {pose.tolist()}")
        length = math.sqrt(float(pose[3:] @ pose[3:]))
        if abs(length - 1.0) > UNIT_SLACK:
            raise FerryError(
                f"target pose: its quaternion has length {length:.3f}; expected 1 (within "
                f"{UNIT_SLACK})"
            )
        usable = self._space.usable(pose[None])
        self._target, self._hold = (usable, now_ns), None
        off = np.abs(usable[0, :3] - pose[:3])
        far = [f"{n} by {d:.3f} m" for n, d in zip("xyz", off.tolist(), strict=True) if d > 0.0]
        return f"target pose outside the trained range, clamped: {', '.join(far)}" if far else ""

    def forget(self) -> None:
        """Forget targets and what was held: the policy does not run any more."""
        self._target = self._hold = None

    def command(self, q: Array, now_ns: int, *, running: bool) -> Array:
        """``[1, 7]`` what to tell the policy.

        Args:
            q: ``[1, J]`` measured positions of the contract's joints [rad or m].
            now_ns: time, of the clock that :meth:`take` is given [ns].
            running: whether the policy's output is executed.
        """
        if not running:
            self.forget()
        if self._target is not None:
            pose, came_ns = self._target
            if not self._timeout_ns or now_ns - came_ns <= self._timeout_ns:
                self.held = False
                return pose
            self._target = None
        self.held = True
        if self._hold is not None:
            return self._hold
        here = np.concatenate(self._space.kinematics.pose(q), axis=1)
        if running:
            self._hold = here
        return here
