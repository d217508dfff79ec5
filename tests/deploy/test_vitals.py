from __future__ import annotations

import math

import numpy as np
import pytest

from deploy.checks import Check
from deploy.safety import Verdict
from deploy.vitals import VitalSettings
from real.joint_limits import LimitKind, LimitSettings
from tests.deploy.safety_bench import POSE, ROBOT, Bench

FREE = LimitSettings(disabled=dict.fromkeys(("rate", "acceleration", "position"), ("all",)))


def found(result) -> set[tuple[str, str | None, int]]:
    return {(v.kind, v.joint, v.world) for v in result.violations}


def hot(num: int, *, world: int, joint: int, value: float) -> np.ndarray:
    temperature = np.full((num, 12), 30.0)
    temperature[world, joint] = value
    return temperature


def test_a_hot_motor_is_named_before_it_stops_the_robot():
    bench = Bench(3)
    bench.temperature = hot(3, world=1, joint=4, value=70.0)
    result = bench.send(POSE)
    assert result.verdict.tolist() == [Verdict.PASS] * 3
    assert result.warned
    assert found(result) == {(Check.TEMPERATURE, "FL_upper_joint", 1)}
    assert str(result.violations[0]) == "temperature of FL_upper_joint: 70 °C, limit 65 °C"
    bench.temperature = hot(3, world=1, joint=4, value=80.0)
    result = bench.send(POSE)
    assert result.stop.tolist() == [False, True, False]
    assert found(result) == {(Check.TEMPERATURE, "FL_upper_joint", 1)}
    assert result.violations[0].limit == 80.0


def test_a_hot_motor_gets_less_torque_the_hotter_it_is():
    bench = Bench(2, limits=FREE, outside=None, implausible=100.0)
    # Half way from 65 to 80 degrees, half of the torque; the others keep all of theirs.
    bench.temperature = hot(2, world=1, joint=4, value=72.5)
    result = bench.send(POSE + 3.0)
    torque = ROBOT.actuated_array("kp") * (result.command.q_des - POSE)
    expected = np.tile(ROBOT.actuated_array("tau_max"), (2, 1))
    expected[1, 4] *= 0.5
    assert np.allclose(torque, expected)
    clipped = {(v.joint, v.world): v for v in result.violations if v.kind == LimitKind.TORQUE}
    assert clipped["FL_upper_joint", 1].limit == pytest.approx(expected[1, 4])


@pytest.mark.parametrize(
    ("signal", "bad", "low", "good", "kind"),
    [
        ("voltage", 17.9, 20.0, 22.0, Check.VOLTAGE),
        ("height", 0.09, 0.15, 0.3, Check.HEIGHT),
    ],
)
def test_battery_and_height_have_a_soft_and_a_hard_limit(signal, bad, low, good, kind):
    limits = {"voltage_min": 18.0, "voltage_soft": 21.0, "height_min": 0.1, "height_soft": 0.2}
    bench = Bench(3, vitals=VitalSettings(**limits))
    setattr(bench, signal, np.array([good, low, bad]))
    result = bench.send(POSE)
    assert result.verdict.tolist() == [Verdict.PASS, Verdict.PASS, Verdict.DAMP]
    assert found(result) == {(kind, None, 1), (kind, None, 2)}


def test_absent_zero_and_disabled_are_three_things():
    temperature = hot(1, world=0, joint=2, value=99.0)
    absent = Bench(vitals=VitalSettings(voltage_min=18.0))
    # Nobody reports it, or not for this motor: nothing is checked.
    assert absent.send(POSE).verdict[0] == Verdict.PASS
    absent.temperature = hot(1, world=0, joint=2, value=math.nan)
    assert absent.send(POSE).verdict[0] == Verdict.PASS
    zero = Bench(vitals=VitalSettings(temperature_max=0.0, temperature_soft=None))
    zero.temperature = np.full((1, 12), 20.0)
    assert zero.send(POSE).stop.all()
    disabled = Bench(vitals=VitalSettings(temperature_max=None, temperature_soft=None))
    disabled.temperature = temperature
    result = disabled.send(POSE)
    assert (result.verdict[0], result.violations) == (Verdict.PASS, [])


def test_arming_is_refused_beyond_a_hard_limit_and_not_in_a_soft_zone():
    bench = Bench()
    bench.temperature = hot(1, world=0, joint=0, value=70.0)
    assert bench.filter.check(bench.now, bench.state()) == []
    bench.temperature = hot(1, world=0, joint=0, value=85.0)
    assert [f.kind for f in bench.filter.check(bench.now, bench.state())] == [Check.TEMPERATURE]
