"""Whether gyroscope and orientation of an IMU speak of the same motion.

A gyroscope in degrees per second, with an axis turned round or stuck at zero, reports numbers that
are finite and look plausible one by one. Its integral does not: it must be the turn that the
orientation shows.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from deploy.checks import Check, Fault
from deploy.safety_settings import SafetySettings
from real.contract import PolicyContract
from real.signals import RobotState

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Stamps = NDArray[np.int64]
Rows = NDArray[np.intp] | Mask | None

#: Older turns are forgotten with this time constant [s], so that a constant error b of the
#: gyroscope counts as a turn by b times this and no more.
MEMORY_S = 2.0

#: conj(p) q as a matrix on q = (w, x, y, z), whose entries are those of p.
_ENTRY = np.array([[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0]])
_SIGN: Array = np.array([[1.0, 1, 1, 1], [-1, 1, 1, -1], [-1, -1, 1, 1], [-1, 1, -1, 1]])


class GyroCheck:
    """Compares the recent turns of N robots.

    With the default settings (half of the turn, and 0.3 rad) degrees per second are found once the
    base has turned 0.011 rad, an axis the wrong way round at 0.2 rad, a gyroscope that reports
    nothing at 0.6 rad; one that is off by less than 0.3 rad/s is not.

    Args:
        num: N.
        share: by how much of the larger turn the two may differ.
        slack: and by how much more, for noise [rad].
        gap_ns: states further apart than this are not integrated over [ns].
    """

    def __init__(self, num: int, *, share: float, slack: float, gap_ns: int) -> None:
        self._share, self._slack, self._gap_ns = share, slack, gap_ns
        #: No component this far apart: no robot can be beyond the slack, and none is NaN.
        self._near = slack / math.sqrt(3.0)
        self._quat: Array = np.full((num, 4), np.nan)
        self._gyro: Array = np.zeros((num, 3))
        self._turned: Array = np.zeros((num, 2, 3))
        #: The same three of one robot that :meth:`agrees` took in, newer than the arrays.
        self._one: tuple[list[float], list[float], list[float], list[float]] | None = None

    @property
    def turned(self) -> Array:
        """``[N, 2, 3]`` recent turn of the orientation and integral of the gyroscope [rad]."""
        self._settle()
        return self._turned

    def reset(self, rows: Rows = None) -> None:
        """Forget what robots ``rows`` (ids or mask; None for all) have turned."""
        self._settle()
        chosen = slice(None) if rows is None else rows
        self._quat, self._turned = self._quat.copy(), self._turned.copy()
        self._quat[chosen] = np.nan
        self._turned[chosen] = 0.0

    def update(self, state: RobotState, elapsed_ns: Stamps) -> Fault | None:
        """Take the next states.

        Args:
            state: the states; may be NaN, which is another fault.
            elapsed_ns: ``[N]`` since the states before [ns].

        Returns:
            Robots whose gyroscope and orientation differ, or None.
        """
        if self._quat.shape[0] == 1 and self.agrees(state, elapsed_ns):
            return None
        self._settle()
        dt = (np.maximum(elapsed_ns, 0) * 1e-9)[:, None]
        with np.errstate(invalid="ignore", over="ignore"):
            turned = self._integrate(state, dt)
            apart = turned[:, 0] - turned[:, 1]
        self._turned = turned
        self._quat, self._gyro = state.quat_wb.copy(), state.gyro_b.copy()
        near = np.abs(apart) < self._near
        if near.all() and (elapsed_ns <= self._gap_ns).all():
            return None
        return self._compare(turned, apart, elapsed_ns > self._gap_ns)

    def agrees(self, state: RobotState, elapsed_ns: Stamps) -> bool:
        """One robot whose turns agree, as nearly always: the same sums, ten times as fast.

        True once the state is taken in; False changes nothing and leaves it to :meth:`update`. The
        numbers are those of its arrays to the last digits, not bit by bit.

        Args:
            state: the state, N = 1.
            elapsed_ns: ``[1]`` since the state before [ns].
        """
        elapsed = elapsed_ns.item()
        if elapsed > self._gap_ns:
            return False
        if self._one is None:
            turns = self._turned[0].tolist()
            self._one = (self._quat[0].tolist(), self._gyro[0].tolist(), turns[0], turns[1])
        (pw, px, py, pz), (lx, ly, lz), (ax, ay, az), (bx, by, bz) = self._one
        quat, gyro = state.quat_wb[0].tolist(), state.gyro_b[0].tolist()
        (qw, qx, qy, qz), (gx, gy, gz) = quat, gyro
        dt = max(elapsed, 0) * 1e-9
        side = 2.0 if pw * qw + px * qx + py * qy + pz * qz >= 0.0 else -2.0
        left, half = max(1.0 - dt / MEMORY_S, 0.0), 0.5 * dt
        ax = left * ax + side * (pw * qx - px * qw - py * qz + pz * qy)
        ay = left * ay + side * (pw * qy + px * qz - py * qw - pz * qx)
        az = left * az + side * (pw * qz - px * qy + py * qx - pz * qw)
        bx = left * bx + half * (lx + gx)
        by = left * by + half * (ly + gy)
        bz = left * bz + half * (lz + gz)
        near = self._near
        # False for NaN as well, of a first state or a broken one.
        if not (abs(ax - bx) < near and abs(ay - by) < near and abs(az - bz) < near):
            return False
        self._one = (quat, gyro, [ax, ay, az], [bx, by, bz])
        return True

    def _settle(self) -> None:
        """Bring the arrays up to date."""
        if self._one is not None:
            quat, gyro, turn, integral = self._one
            self._quat, self._gyro = np.array([quat]), np.array([gyro])
            self._turned = np.array([[turn, integral]])
            self._one = None

    def _compare(self, turned: Array, apart: Array, late: Mask) -> Fault | None:
        with np.errstate(invalid="ignore", over="ignore"):
            largest = np.sqrt((turned * turned).sum(axis=2).max(axis=1))
            differ = np.sqrt((apart * apart).sum(axis=1))
        # NaN is the first state or another fault; a state after a gap shows what nobody followed.
        unsure = ~(largest < np.inf) | late
        self._turned = np.where(unsure[:, None, None], 0.0, turned)
        allowed = self._share * largest + self._slack
        bad = (differ > allowed) & ~unsure
        if not bad.any():
            return None
        return Fault(Check.GYRO, bad, True, lambda: (bad, differ, allowed))

    def _integrate(self, state: RobotState, dt: Array) -> Array:
        change = ((self._quat[:, _ENTRY] * _SIGN) @ state.quat_wb[:, :, None])[:, :, 0]
        both = self._turned * np.maximum(1.0 - dt / MEMORY_S, 0.0)[:, :, None]
        # Twice the vector part is the turn, to 1 % up to 0.5 rad; q and -q are one orientation.
        both[:, 0] += change[:, 1:] * np.where(change[:, :1] < 0.0, -2.0, 2.0)
        # The mean of both ends: a gyroscope samples, an orientation has been through all of it.
        both[:, 1] += (self._gyro + state.gyro_b) * (0.5 * dt)
        return both


def gyro_check(contract: PolicyContract, num: int, *, settings: SafetySettings) -> GyroCheck | None:
    """None where it is disabled, or the base stands still and needs no IMU."""
    if settings.gyro_slack is None or contract.base != "floating":
        return None
    gap_ns = round(2.5 * contract.control_dt_s * 1e9)
    return GyroCheck(num, share=settings.gyro_share, slack=settings.gyro_slack, gap_ns=gap_ns)
