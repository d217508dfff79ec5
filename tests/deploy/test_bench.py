"""The benchmark of deployment: what it runs, and that its numbers are there."""

from __future__ import annotations

import math

import numpy as np
import pytest

from deploy.bench import (
    BUNDLE,
    _chosen,
    _growth_mib,
    _Run,
    at_rate,
    bench_deploy,
    table_rows,
    tick_times_us,
)
from deploy.bundle import read_bundle
from real.contract import RobotContract
from real.errors import FerryError
from real.spec import load_robot
from tests.extras import need


@pytest.mark.slow
@pytest.mark.parametrize("rate", [50, 200])
def test_policy_and_robot_of_a_run_fit_each_other_at_its_rate(tmp_path, rate):
    shipped = read_bundle(BUNDLE)
    described = at_rate(shipped, rate, tmp_path, seconds=2.0)
    copy = read_bundle(tmp_path / "policy.onnx")
    assert copy.contract.control_dt_s == 1.0 / rate
    robot = load_robot(tmp_path / "robot.yaml", read_limits=False)
    copy.contract.require_match(RobotContract.from_spec(robot))
    np.testing.assert_array_equal(copy.golden.mean, shipped.golden.mean)
    nodes = {n.name: n.parameters for n in described.nodes}
    assert f'"period_s": {1.0 / rate}' in nodes["robot_node"]["plugin_options"]
    assert {"operator_node", "policy_node", "safety_node"} < set(nodes)


@pytest.mark.slow
def test_ticks_are_those_of_a_robot_that_runs():
    times = tick_times_us(read_bundle(BUNDLE), seconds=0.05)
    assert times.size >= 1
    assert (times > 1.0).all()


def test_memory_grows_from_after_the_warm_up():
    mib = 1024 * 1024
    # 30 samples: 9 of the start, in which all is allocated, then a MiB in every ten.
    sizes = [(float(i), 50 * mib) for i in range(9)]
    sizes += [(9.0 + i, (100 + i // 10) * mib) for i in range(21)]
    assert _growth_mib(sizes) == 1.0 + 0.5  # medians: 100 of the first two, 101.5 of the last two
    assert _growth_mib([]) == 0.0


def test_deadlines_count_from_the_first_command():
    said = {"steps": 500, "missed_deadlines": 40, "steps_before": 100, "missed_before": 37}
    run = _Run(said, {}, 0.0, 0)
    assert (run.missed, run.deadlines) == (3, 403)


def test_rates_are_those_two_and_each_is_run_once():
    assert _chosen([200, 50, 200]) == [50, 200]
    assert _chosen([200]) == [200]
    with pytest.raises(FerryError, match=r"--rate 100: expected 50 or 200 \[Hz\]"):
        bench_deploy(rates=[50, 100])
    one = {
        "tick_us": {"p50": 80.0, "p99": 100.0},
        "message_to_command_ms": {"200": {"p50": 1.0, "p99": 2.0, "max": 4.0}},
        "missed_deadlines": {"200": 1},
        "deadlines": {"200": 400},
        "period_error_ms_p99": 0.1,
        "period_error_ms_max": 0.7,
        "bare": {
            "missed": {"200": 1},
            "period_error_ms_p99": 0.05,
            "period_error_ms_max": 0.6,
        },
        "rss_growth_mib": 0.0,
        "safety_stops": 0,
        "realtime_priority": 20,
        "seconds": 2.0,
    }
    rows = table_rows(one)
    assert rows["missed deadlines at 200 Hz"] == "1 of 400 (by a bare loop: 1)"
    assert rows["state to command at 200 Hz p50 / p99 / max"] == "1.00 / 2.00 / 4.00 ms"
    assert rows["period error p99 / max"] == ("0.100 / 0.700 ms (of a bare loop: 0.050 / 0.600 ms)")
    assert not any("50 Hz" in name for name in rows)


@pytest.mark.ros
@pytest.mark.slow
def test_the_graph_runs_at_both_rates_and_every_number_is_there():
    need("rclpy")
    seen = []
    result = bench_deploy(seconds=2.0, progress=lambda done, total, what: seen.append(what))
    assert {"controller tick", "50 Hz", "200 Hz"} == set(seen)
    for rate, least in (("50", 50), ("200", 200)):
        times = result["message_to_command_ms"][rate]
        assert 0.0 < times["p50"] <= times["p99"] <= times["max"]
        assert result["deadlines"][rate] >= least
        assert 0 <= result["missed_deadlines"][rate] <= result["deadlines"][rate]
        assert result["bare"]["missed"][rate] >= 0
    assert 0.0 < result["bare"]["period_error_ms_p99"] <= result["bare"]["period_error_ms_max"]
    assert 0.0 < result["tick_us"]["p50"] <= result["tick_us"]["p99"]
    assert math.isfinite(result["rss_growth_mib"])
    assert result["seconds"] == 2.0
    assert len(table_rows(result)) == 10
