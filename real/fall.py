"""What counts as a fall: one definition for training, evaluation and the robot.

A robot has fallen when its base tilts more than :data:`FALL_TILT_RAD`, or has been below its
``fall_height_m`` for :data:`FALL_LOW_S`.
"""

from __future__ import annotations

import math

#: A base that tilts more has fallen [rad].
FALL_TILT_RAD = 1.0

#: So long must a base be low to count as fallen [s]: a crouch or a landing is shorter.
FALL_LOW_S = 0.2


def low_steps(control_dt_s: float, *, low_s: float = FALL_LOW_S) -> int:
    """Successive control steps with a low base that make a fall.

    The fewest that last ``low_s``, and one at least: ``max(1, ceil(low_s / control_dt_s))``.

    Args:
        control_dt_s: control period, > 0 [s].
        low_s: how long the base must be low [s].
    """
    # A quotient that is whole but for rounding must not become one step more.
    return max(1, math.ceil(low_s / control_dt_s - 1e-9))
