"""What follows from the middleware's events, by the events alone; over DDS see test_faults.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.extras import reason

pytest.importorskip("rclpy", reason=reason("rclpy"))

from rclpy.qos import QoSCompatibility, qos_check_compatible

from deploy.links import Links, asked, offered

TOPIC = "/policy/joint_command"


@pytest.fixture
def heard():
    """The events of a listener, and what they led to."""
    out = SimpleNamespace(lost=[], late=[])
    out.links = Links(
        SimpleNamespace(), on_loss=out.lost.append, on_late=lambda: out.late.append(1)
    )
    out.events = out.links.heard(TOPIC, asked(0.02, 0.06))
    return out


def lives(*, dead, change):
    return SimpleNamespace(not_alive_count=dead, not_alive_count_change=change)


def test_a_publisher_that_is_not_alive_wakes_the_watchdog_and_bars_arming_until_it_is(heard):
    heard.events.liveliness(lives(dead=1, change=1))
    assert len(heard.late) == 1
    assert heard.links.problems() == [f"the publisher of {TOPIC} is not alive"]
    assert heard.links.counts == {f"liveliness lost {TOPIC}": 1}
    heard.events.liveliness(lives(dead=0, change=-1))
    assert len(heard.late) == 1
    assert heard.links.problems() == []


def test_a_late_message_wakes_the_watchdog_and_a_lost_match_stops_at_once(heard):
    heard.events.deadline(SimpleNamespace(total_count_change=3))
    assert (len(heard.late), heard.lost) == (1, [])
    assert heard.links.counts == {f"deadline missed {TOPIC}": 3}
    gone = f"nobody publishes {TOPIC} any more"
    heard.events.matched(SimpleNamespace(current_count=1, current_count_change=1))
    assert heard.lost == []
    heard.events.matched(SimpleNamespace(current_count=0, current_count_change=-1))
    assert heard.lost == heard.links.problems() == [gone]
    heard.events.matched(SimpleNamespace(current_count=1, current_count_change=1))
    assert heard.links.problems() == []


@pytest.mark.parametrize("timeout_s", [0.001, 0.06, 1.0])
@pytest.mark.parametrize("period_s", [0.005, 0.02])
def test_what_a_listener_asks_for_is_offered_whatever_its_time_out(period_s, timeout_s):
    found, why = qos_check_compatible(offered(period_s), asked(period_s, timeout_s))
    assert found == QoSCompatibility.OK, why
