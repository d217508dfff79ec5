"""Drift, scale, rate, losses, delays and a turned IMU do to signals what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from real.config import parse_config
from real.errors import ConfigError, FerryError
from real.frames import from_rpy, rotate
from real.signals import RobotState
from sim.sensors import SensorConfig, Sensors
from sim.streams import make_streams

N, J, DT = 4, 3, 0.02

EVERYTHING: dict[str, Any] = {
    "q": {"noise": 0.01, "walk": 0.1, "quantum": 0.001, "delay_s": [0.0, 0.05]},
    "dq": {"jitter_s": 0.03, "dropout": 0.3},
    "gyro": {"rate_hz": 25, "noise": 0.1},
    "orientation": {"walk": 0.05, "delay_s": [0.01, 0.03]},
    "imu_frame": 0.1,
}


def at(step: int, num: int = N) -> RobotState:
    """A robot whose joints turn at 1 rad/s, each from a place of its own, and whose base yaws."""
    ramp = step * DT + np.arange(num * J).reshape(num, J)
    turn = np.zeros((num, 3))
    turn[:, 0], turn[:, 2] = 0.3, step * DT
    return RobotState(
        stamp_ns=np.full(num, step), q=ramp, dq=10 * ramp, tau=ramp, quat_wb=from_rpy(turn),
        gyro_b=ramp.copy(), acc_b=-ramp,
    )  # fmt: skip


def sensors(config: Any, num: int = N, seed: int = 0) -> Sensors:
    streams = make_streams(seed, num)["sensor"]
    made = Sensors(config, num, streams, joints=J, control_dt_s=DT)
    made.reset(np.arange(num))
    return made


def test_a_delay_is_the_signal_of_that_much_earlier_also_between_two_steps():
    made = sensors({"q": {"delay_s": [0.005, 0.055]}})
    seen = [made.sense(at(step)).q for step in range(12)]
    late = at(11).q - seen[11]  # at 1 rad/s, the age in seconds
    np.testing.assert_allclose(late, late[:, :1] * np.ones(J))
    assert (late > 0.005).all() and (late < 0.055).all() and np.ptp(late) > 0.003
    np.testing.assert_allclose(at(10).q - seen[10], late, atol=1e-12)  # of the whole episode
    np.testing.assert_array_equal(seen[0], at(0).q)  # there is nothing earlier


def test_jitter_is_another_age_in_every_step():
    made = sensors({"q": {"jitter_s": 0.03}})
    seen = [(at(step).q - made.sense(at(step)).q)[:, 0] for step in range(60)]
    ages = np.array(seen[3:])
    assert (ages >= -1e-12).all() and (ages < 0.03).all() and np.ptp(ages, axis=0).min() > 0.02


def test_a_slow_sensor_repeats_itself_and_a_lost_measurement_too():
    made = sensors({"dq": {"rate_hz": 12.5}})
    for step in range(9):
        np.testing.assert_array_equal(made.sense(at(step)).dq, at(step - step % 4).dq)
    made = sensors({"gyro": {"dropout": 0.25}})
    seen = np.array([made.sense(at(step)).gyro_b for step in range(400)])
    repeated = (np.diff(seen[:, :, 0], axis=0) == 0.0).mean(axis=0)
    assert (abs(repeated - 0.25) < 0.08).all() and np.ptp(repeated) > 0.0
    with pytest.raises(FerryError, match=r"acc.rate_hz is 40; signals are read at 50 Hz.*25, 16"):
        sensors({"acc": {"rate_hz": 40}})


def test_a_scale_has_steps_and_a_drift_grows_with_the_root_of_time():
    q = sensors({"q": {"quantum": 0.25}}).sense(at(7)).q
    np.testing.assert_array_equal(q, np.round(at(7).q * 4) / 4)
    num = 300
    made = sensors({"dq": {"walk": 2.0}}, num)
    errors = np.array([made.sense(at(s, num)).dq - at(s, num).dq for s in range(51)])
    assert (errors[0] == 0.0).all()
    for step in (12, 50):  # 0.24 s, 1 s
        assert abs(errors[step].std() / (2.0 * np.sqrt(step * DT)) - 1.0) < 0.1
    made.reset(np.arange(num))
    assert (made.sense(at(0, num)).dq == at(0, num).dq).all()


def test_a_turned_imu_reports_all_it_feels_in_its_own_axes():
    seen, true = sensors({"imu_frame": 0.2}).sense(at(3)), at(3)
    assert (np.abs(seen.gyro_b - true.gyro_b).max(axis=1) > 0.01).all()
    # In the world, nothing has changed.
    for name in ("gyro_b", "acc_b"):
        np.testing.assert_allclose(
            rotate(seen.quat_wb, getattr(seen, name)), rotate(true.quat_wb, getattr(true, name))
        )


def test_worlds_do_not_depend_on_others_and_a_saved_state_continues():
    one, two = sensors(EVERYTHING), sensors(EVERYTHING, 2)
    for step in range(40):
        seen, alone = one.sense(at(step)), two.sense(at(step, 2))
        for name, values in alone.reported().items():
            np.testing.assert_array_equal(getattr(seen, name)[:2], values, err_msg=name)
    other = sensors(EVERYTHING, seed=5)
    other.load_state_dict(one.state_dict())
    for step in range(40, 60):  # within the drawn blocks
        seen, again = one.sense(at(step)), other.sense(at(step))
        for name, values in again.reported().items():
            np.testing.assert_array_equal(getattr(seen, name), values, err_msg=name)
    with pytest.raises(FerryError, match="were the sensors changed"):
        sensors({"q": {"noise": 0.01}, "dq": {"dropout": 0.1}}).load_state_dict(
            sensors({"q": {"noise": 0.01}, "dq": {"noise": 0.1}}).state_dict()
        )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"q": {}}, "changes nothing"),
        ({"q": {"delay_s": [0.02, 0.01]}}, "is empty"),
        ({"orientation": {"quantum": 0.1}}, "no scale"),
        ({"q": {"dropout": 1.0}}, "< 1.0"),
        ({"q": {"delay": 0.1}}, "delay_s"),
    ],
)
def test_sensors_that_cannot_be_right_are_refused(config: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        parse_config(SensorConfig, config, source="sensors")
