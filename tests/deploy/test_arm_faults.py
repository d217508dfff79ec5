"""Faults over real DDS on an arm, which drops what it holds without gains: each ends in HOLD."""

from __future__ import annotations

import signal
from dataclasses import replace

import numpy as np
import pytest

from tests.extras import reason

pytest.importorskip("rclpy", reason=reason("rclpy"))

from real.spec import load_robot
from tests.deploy.faulty_robot import Voice
from tests.deploy.ros_probe import positions, running
from tests.deploy.test_faults import BEST_EFFORT, TRIES, said
from tests.deploy.test_nodes import UNCOMMANDED
from tests.deploy.test_target_pose import DEFAULT, NAMES, arm_graph

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]

PANDA = load_robot("panda")


def graph_without(folder, *names):
    described = arm_graph(folder)
    return replace(described, nodes=tuple(n for n in described.nodes if n.name not in names))


def frozen(voice):
    voice.frozen = True


def set_back(voice):
    voice.shift_ns -= 30_000_000_000  # further than to the moment of arming


def duplicated(voice):
    voice.names = [*NAMES[:-1], NAMES[0]]


def missing(voice):
    voice.names, voice.q = list(NAMES[:-1]), DEFAULT[:-1]


def jumped(voice):
    voice.q = DEFAULT.copy()
    voice.q[0] += 2.0  # within its range, and far even for the time of a pause


#: Fault, who says why, and the words.
FAULTS = [
    (frozen, "safety_node", "no new state for"),
    (set_back, "safety_node", "clock"),
    (duplicated, "policy_node", f"'{NAMES[0]}' is named twice"),
    (missing, "policy_node", f"'{NAMES[-1]}' is missing"),
    (jumped, "safety_node", "position_jump"),
]


def test_each_fault_of_an_arms_states_ends_in_hold_and_says_why(tmp_path):
    with running(graph_without(tmp_path, "robot_node"), tmp_path) as (_, probe):
        voice = Voice(probe, robot=PANDA, states=BEST_EFFORT)
        for fault, who, words in FAULTS:
            for _ in range(TRIES):
                probe.arm()
                fault(voice)
                probe.until_mode("HOLD")
                probe.until_said("safety_node", "HOLD: ")
                told = said(probe, who, words)
                voice.heal()
                if told:
                    break
            else:
                pytest.fail(f"{fault.__name__}: {who} never said {words!r}: {probe.diagnostics}")
            assert "DAMP" not in probe.modes


def test_each_broken_command_leaves_an_arm_where_it_was(tmp_path):
    wish = {"names": list(NAMES), "values": DEFAULT.copy()}
    with running(graph_without(tmp_path, "policy_node"), tmp_path) as (_, probe):
        probe.policy(lambda: wish["names"], lambda: wish["values"])
        broken, wild = "command_not_finite", "command_implausible"
        for bad, fault in ((np.nan, broken), (np.inf, broken), (-np.inf, broken), (1e9, wild)):
            wish["values"] = DEFAULT.copy()
            probe.arm()
            wish["values"][3] = bad
            probe.until_mode("HOLD")
            probe.until_said("safety_node", f"HOLD: {fault} of {NAMES[3]}")
            settled(probe)
        wish["values"] = DEFAULT.copy()
        probe.arm()
        wish["names"] = [*NAMES[:-1], "panda_thumb"]
        probe.until_mode("HOLD")
        probe.until_said("safety_node", f"'{NAMES[-1]}' is missing")
        wish["names"] = list(NAMES)
        probe.arm()
        answer, old = probe.on_state, probe.states[-1]
        probe.on_state = lambda _state: answer(old)
        probe.until_mode("HOLD")
        probe.until_said("safety_node", "command_stale")
        settled(probe)
        probe.on_state = answer
        probe.arm()
        assert probe.call("/estop") == (True, "")
        probe.until_mode("ESTOP")
        probe.refused("ESTOP")
        assert probe.call("/reset") == (True, "")
        probe.until_mode("HOLD")
        probe.arm()


def test_whichever_node_dies_an_arm_holds_and_the_others_say_why(tmp_path):
    with running(arm_graph(tmp_path), tmp_path) as (run, probe):
        probe.arm()
        run.processes["policy_node"].send_signal(signal.SIGSTOP)
        probe.until_mode("HOLD")
        probe.until_said("safety_node", "HOLD: no policy command for", "HOLD: nobody publishes")
        settled(probe)
        run.processes["policy_node"].send_signal(signal.SIGCONT)
        probe.arm()
        run.processes["policy_node"].kill()
        probe.until_mode("HOLD")
        probe.until_said("safety_node", "nobody publishes /policy/joint_command any more")
        settled(probe)
        run.processes["safety_node"].kill()
        probe.until_said("robot_node", "safe stop: newest command is", f"safe stop: {UNCOMMANDED}")
        settled(probe)


def settled(probe):
    """Half a second of states, in all of which the arm is where it was when the fault came."""
    seen = len(probe.states)
    probe.until(lambda: len(probe.states) > seen + 100, "half a second of states")
    for state in probe.states[seen:]:
        np.testing.assert_allclose(positions(state, NAMES), DEFAULT, atol=0.05)
