"""What a robot reports beyond motion, on the wire: motors' temperatures, battery, height.

* ``/motor_temperatures``, sensor_msgs/Temperature: one motor per message, in turn; ``frame_id``
  names its joint.
* ``/battery_state``, sensor_msgs/BatteryState: ``voltage``; the rest is NaN, which means there that
  it is not measured.
* ``/base_height``, geometry_msgs/PointStamped: where the base is in ``base_footprint``, its
  projection on the ground (REP 120); only z is meant.

Each comes where the robot reports it and not at all where it does not. What has been reported once
and stops coming is a fault: a sensor that died must not switch off the limit it served.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from geometry_msgs.msg import PointStamped
from numpy.typing import NDArray
from sensor_msgs.msg import BatteryState, Temperature

from deploy.convert import set_stamp
from deploy.vitals import VitalSettings
from real.contract import RobotContract
from real.errors import nearest
from real.signals import RobotState

Array = NDArray[np.float64]

TEMPERATURES, BATTERY, HEIGHT = "/motor_temperatures", "/battery_state", "/base_height"
#: What has been reported and then is not heard of for so long is missed [s]. Thirty motors in turn
#: at 50 Hz are each heard of every 0.6 s; single messages may get lost.
SILENT_S = 3.0


class VitalsOut:
    """RobotState -> the vitals' topics; one of each per control period.

    Args:
        robot: names and period.
        publish_on: makes a publisher on a topic of the wire.
    """

    def __init__(self, robot: RobotContract, publish_on: Callable[[str], Any]) -> None:
        self._names = robot.joints
        self._period_ns = round(robot.control_dt_s * 1e9)
        self._sent_ns: int | None = None
        self._turn = 0
        self._out = {topic: publish_on(topic) for topic in (TEMPERATURES, BATTERY, HEIGHT)}
        self._temperature: Any = Temperature()
        self._battery: Any = BatteryState()
        for field in ("temperature", "current", "charge", "capacity", "percentage"):
            setattr(self._battery, field, math.nan)
        self._battery.design_capacity = math.nan
        self._battery.present = True
        self._height: Any = PointStamped()
        self._height.header.frame_id = "base_footprint"

    def publish(self, state: RobotState, stamp_ns: int) -> None:
        """Publish what row 0 of a state reports, once in every control period."""
        if self._sent_ns is not None and 0 <= stamp_ns - self._sent_ns < self._period_ns:
            return
        self._sent_ns = stamp_ns
        if state.temperature is not None:
            self._next_temperature(state.temperature[0], stamp_ns)
        if state.voltage is not None and not math.isnan(state.voltage[0]):
            self._battery.voltage = float(state.voltage[0])
            self._send(BATTERY, self._battery, stamp_ns)
        if state.height is not None and not math.isnan(state.height[0]):
            self._height.point.z = float(state.height[0])
            self._send(HEIGHT, self._height, stamp_ns)

    def _next_temperature(self, values: Array, stamp_ns: int) -> None:
        """The next motor that reports one: a burst of all would overrun a queue of one message."""
        reported = np.flatnonzero(~np.isnan(values))
        if not reported.size:
            return
        later = reported[reported > self._turn]
        self._turn = int(later[0] if later.size else reported[0])
        self._temperature.header.frame_id = self._names[self._turn]
        self._temperature.temperature = float(values[self._turn])
        self._send(TEMPERATURES, self._temperature, stamp_ns)

    def _send(self, topic: str, message: Any, stamp_ns: int) -> None:
        set_stamp(message.header.stamp, stamp_ns)
        self._out[topic].publish(message)


class VitalsIn:
    """The vitals' topics -> what they add to a RobotState.

    Only signals with a limit are looked at: what is disabled may say and miss what it likes.

    Args:
        joints: joint order of the states.
        settings: the limits.
        clock: nanoseconds of a clock that never goes back; measures silence.
    """

    def __init__(
        self,
        joints: Sequence[str],
        settings: VitalSettings,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._joints = tuple(joints)
        self._clock = clock
        limits = {
            TEMPERATURES: (settings.temperature_max, settings.temperature_soft),
            BATTERY: (settings.voltage_min, settings.voltage_soft),
            HEIGHT: (settings.height_min, settings.height_soft),
        }
        self._wanted = {t for t, bounds in limits.items() if any(b is not None for b in bounds)}
        self.forget()

    def forget(self) -> None:
        """Another robot, or the same one started anew: nothing has been reported yet."""
        self._temperature: Array = np.full((1, len(self._joints)), np.nan)
        self._voltage: Array | None = None
        self._height: Array | None = None
        self._unknown = ""
        #: When what was reported was last heard [ns].
        self._heard_ns: dict[str, int] = {}

    def listen_on(self, listen: Callable[[str, Callable[[Any], None]], None]) -> None:
        """Subscribe to what is looked at."""
        callbacks = {
            TEMPERATURES: self.on_temperature,
            BATTERY: self.on_battery,
            HEIGHT: self.on_height,
        }
        for topic in sorted(self._wanted):
            listen(topic, callbacks[topic])

    def on_temperature(self, message: Any) -> None:
        """Take a sensor_msgs/Temperature."""
        name = str(message.header.frame_id)
        if name not in self._joints:
            self._unknown = f"{TEMPERATURES}: no joint {name!r}{nearest(name, self._joints)}"
        elif self._heard(f"temperature of {name}", message.temperature, none=-math.inf):
            # A new array: a state that is being decided on keeps the old one.
            self._temperature = self._temperature.copy()
            self._temperature[0, self._joints.index(name)] = message.temperature

    def on_battery(self, message: Any) -> None:
        """Take a sensor_msgs/BatteryState."""
        if self._heard("voltage of the battery", message.voltage, none=math.inf):
            self._voltage = np.array([message.voltage], dtype=np.float64)

    def on_height(self, message: Any) -> None:
        """Take a geometry_msgs/PointStamped."""
        if self._heard("height of the base", message.point.z, none=math.inf):
            self._height = np.array([message.point.z], dtype=np.float64)

    def add_to(self, state: RobotState) -> RobotState:
        """The state (N = 1) with what was reported last."""
        if not self._heard_ns:
            return state
        hot = None if np.isnan(self._temperature).all() else self._temperature
        return dataclasses.replace(
            state, temperature=hot, voltage=self._voltage, height=self._height
        )

    def problems(self) -> list[str]:
        """What is wrong with the reports themselves."""
        now = self._clock()
        missed = [
            f"no {what} for {(now - at) * 1e-9:.0f} s, which was reported before"
            for what, at in self._heard_ns.items()
            if now - at > SILENT_S * 1e9
        ]
        return [self._unknown] if self._unknown else missed

    def _heard(self, what: str, value: float, *, none: float) -> bool:
        """Note that a value came.

        NaN is none, and so is the infinity that no limit would ever stop: a sensor that says it is
        broken, and missed as one that is silent. The other infinity is beyond every limit.
        """
        if math.isnan(value) or value == none:
            return False
        self._heard_ns[what] = self._clock()
        return True
