"""Temperatures, battery and height over the wire: by name, in turn, and missed when they stop."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.extras import reason

pytest.importorskip("rclpy", reason=reason("rclpy"))

from deploy.checks import Check
from deploy.convert import TOPICS, to_ns
from deploy.vitals import VitalSettings, vital_faults
from deploy.vitals_wire import BATTERY, HEIGHT, SILENT_S, TEMPERATURES, VitalsIn, VitalsOut
from real.contract import RobotContract
from real.domain import DomainSample
from real.log import read_log
from real.signals import RobotState
from real.spec import load_robot
from tests.deploy.ros_probe import describe, running, with_parameters

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]

A1 = load_robot("a1")
NAMES = A1.joint_names
S = 10**9
#: Every signal has a limit.
LIMITS = VitalSettings(voltage_min=18.0, height_min=0.1)


class Wire:
    """Publishers that hand a copy of what they publish to the subscriber, or lose it."""

    def __init__(self, reader):
        self.sent = []
        self._reader = reader
        self.callbacks = {}
        reader.listen_on(lambda topic, callback: self.callbacks.__setitem__(topic, callback))

    def publisher(self, topic):
        wire = self

        class Publisher:
            def publish(self, message):
                assert isinstance(message, TOPICS[topic])
                frame = message.header.frame_id
                wire.sent.append((topic, frame, to_ns(message.header.stamp)))
                if topic in wire.callbacks:
                    wire.callbacks[topic](message)

        return Publisher()


def reporting(temperature=None, voltage=None, height=None):
    def row(value):
        return None if value is None else np.array([value], dtype=float)

    state = RobotState.zeros(1, 12)
    return replace(state, temperature=row(temperature), voltage=row(voltage), height=row(height))


def joined(joints, settings=LIMITS, clock=lambda: 0):
    reader = VitalsIn(joints, settings, clock=clock)
    wire = Wire(reader)
    return VitalsOut(RobotContract.from_spec(A1), wire.publisher), reader, wire


def test_motors_report_in_turn_and_land_on_their_joint_in_any_order():
    permuted = NAMES[5:] + NAMES[:5]
    out, reader, wire = joined(permuted)
    values = np.arange(12.0) + 30.0
    values[[2, 7]] = np.nan  # these report none
    for tick in range(12):
        out.publish(reporting(values, voltage=24.5, height=0.3), tick * S // 50)
    state = reader.add_to(RobotState.zeros(1, 12))
    expected = [values[NAMES.index(name)] for name in permuted]
    np.testing.assert_array_equal(state.temperature[0], expected)
    assert (state.voltage[0], state.height[0]) == (24.5, 0.3)
    turns = [frame for topic, frame, _ in wire.sent if topic == TEMPERATURES]
    reported = [n for i, n in enumerate(NAMES) if i not in (2, 7)]
    assert sorted(turns[:10]) == sorted(reported)
    assert turns[10:] == turns[:2]


def test_one_message_of_a_kind_per_control_period_and_on_after_the_clock_was_set_back():
    out, _, wire = joined(NAMES)
    for ms in (0, 5, 10, 15, 20, 25, 40, 1):
        out.publish(reporting(voltage=24.0), ms * 10**6)
    assert [stamp // 10**6 for _, _, stamp in wire.sent] == [0, 20, 40, 1]


def test_what_nobody_reports_is_absent_and_what_has_no_limit_is_not_looked_at():
    out, reader, wire = joined(NAMES, VitalSettings(temperature_max=None, temperature_soft=None))
    state = RobotState.zeros(1, 12)
    out.publish(state, 0)
    assert wire.sent == []
    assert wire.callbacks == {}
    out, reader, wire = joined(NAMES, VitalSettings(voltage_soft=20.0))
    assert set(wire.callbacks) == {TEMPERATURES, BATTERY}
    out.publish(reporting(np.full(12, np.nan), voltage=np.nan, height=0.3), S)
    assert [topic for topic, _, _ in wire.sent] == [HEIGHT], "NaN is what is not measured"
    assert reader.add_to(state) is state


def test_what_was_reported_and_stops_is_missed_until_the_robot_starts_anew():
    now = [S]
    out, reader, wire = joined(NAMES, clock=lambda: now[0])
    hot = np.full(12, np.nan)
    hot[3] = 40.0
    out.publish(reporting(hot, voltage=24.0), 0)
    now[0] += round(SILENT_S * S)
    assert reader.problems() == []
    out.publish(reporting(hot, voltage=np.nan), S)
    now[0] += S
    assert reader.problems() == ["no voltage of the battery for 4 s, which was reported before"]
    reader.forget()
    assert reader.problems() == []
    wire.callbacks[TEMPERATURES](type("M", (), {"header": type("H", (), {"frame_id": "FL_hip"})}))
    (unknown,) = reader.problems()
    assert unknown == "/motor_temperatures: no joint 'FL_hip' (did you mean 'FL_hip_joint'?)"


def test_an_infinity_stops_at_once_where_it_is_beyond_the_limit_and_is_missed_where_it_is_not():
    now = [0]
    out, reader, _ = joined(NAMES, clock=lambda: now[0])
    out.publish(reporting(np.full(12, 40.0), voltage=24.0, height=0.3), 0)
    heard = reader.add_to(RobotState.zeros(1, 12))
    first = NAMES[int(np.flatnonzero(heard.temperature[0] == 40.0)[0])]
    # No sensor measures these, and no limit would ever stop a robot for them.
    now[0] = round((SILENT_S + 1) * S)
    cold = np.where(np.array(NAMES) == first, -np.inf, np.nan)
    out.publish(reporting(cold, voltage=np.inf, height=np.inf), S)
    assert reader.problems() == [
        f"no {what} for 4 s, which was reported before"
        for what in (f"temperature of {first}", "voltage of the battery", "height of the base")
    ]
    state = reader.add_to(RobotState.zeros(1, 12))
    assert (state.voltage[0], state.height[0]) == (24.0, 0.3)
    out.publish(reporting(-cold, voltage=-np.inf, height=-np.inf), 2 * S)
    state = reader.add_to(RobotState.zeros(1, 12))
    faults = vital_faults(state, LIMITS, slice(None))
    assert {f.kind for f in faults if f.stops} == {
        Check.TEMPERATURE,
        Check.VOLTAGE,
        Check.HEIGHT,
    }


def test_a_hot_motor_an_empty_battery_a_low_base_and_a_dead_sensor_each_stop_the_robot(tmp_path):
    file, settings = tmp_path / "vitals.json", tmp_path / "vital_limits.yaml"
    settings.write_text("{ramp_s: 0.1, vitals: {voltage_min: 18.0, height_min: 0.1}}\n")
    well = {"temperature": dict.fromkeys(NAMES, 35.0), "voltage": 24.5, "height": 0.3}

    def say(**changes):
        part = file.with_suffix(".part")
        part.write_text(json.dumps({**well, **changes}))
        part.replace(file)

    def feels(**temperature):
        return {**well["temperature"], **temperature}

    say()
    record = tmp_path / "out.mcap"
    graph = describe(tmp_path, record=record)
    graph = with_parameters(graph, "safety_node", safety_settings=str(settings))
    graph = with_parameters(
        graph,
        "robot_node",
        plugin="tests.deploy.faulty_robot:WarmRobot",
        plugin_options=json.dumps({"vitals": str(file)}),
    )
    without = {name: t for name, t in well["temperature"].items() if name != "RR_hip_joint"}
    with running(graph, tmp_path) as (_, probe):
        for changes, reason in (
            (
                {"temperature": feels(FL_upper_joint=85.0)},
                "temperature of FL_upper_joint: 85 °C, limit 80 °C",
            ),
            ({"voltage": 17.5}, "voltage: 17.5 V, limit 18 V"),
            ({"height": 0.05}, "height: 0.05 m, limit 0.1 m"),
            ({"temperature": without}, "no temperature of RR_hip_joint for 3 s"),
        ):
            probe.arm()
            say(**changes)
            probe.until_mode("DAMP")
            probe.until_said("safety_node", reason)
            probe.refused(reason.rpartition(":")[0] or reason[:40])
            say()
        probe.arm()
    log = read_log(record)
    heard = log[TEMPERATURES]
    assert set(heard.text) == set(NAMES)
    assert heard.values["temperature"].max() == 85.0
    assert log[BATTERY].values["voltage"].min() == 17.5
    assert log[HEIGHT].values["position"][:, 2].min() == 0.05
    assert DomainSample.from_json(log["/ground_truth/domain"].text[0]).values == {"friction": [0.7]}
    steps = log["/safety/step"]
    assert set(steps.stamp_ns) <= set(log["/policy/step"].stamp_ns) | set(
        log["/joint_states"].stamp_ns
    )
    stopped = steps.values["verdict"][:, 0] == 3.0
    assert stopped.any()
    assert (steps.values["violations"][stopped, 0] >= 1.0).all()
