"""A policy with a memory over real DDS: every step follows from the one before, from arming on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.extras import reason

pytest.importorskip("rclpy", reason=reason("rclpy"))

from deploy.bundle import read_bundle
from deploy.graph import Graph
from tests.deploy.memory_bundle import START, answer, memory_contract, write_memory_bundle
from tests.deploy.ros_probe import describe, running

pytestmark = [pytest.mark.ros, pytest.mark.timeout(120)]

#: Steps of each run that are looked at.
STEPS = 40


def remembering(folder) -> Graph:
    """The graph of the standing policy, but with one that remembers."""
    bundle = read_bundle(write_memory_bundle(folder / "memory.onnx"))
    described = describe(folder)
    nodes = []
    for node in described.nodes:
        given = dict(node.parameters)
        if "bundle" in given:
            given["bundle"] = bundle.source
        if "bundle_sha256" in given:
            given["bundle_sha256"] = bundle.sha256
        nodes.append(replace(node, parameters=given))
    return replace(described, nodes=tuple(nodes))


def test_the_node_remembers_while_it_runs_and_begins_anew_when_it_is_armed_again(tmp_path):
    with running(remembering(tmp_path), tmp_path) as (_, probe):
        for _ in range(2):
            probe.arm()
            seen = len(probe.steps)
            probe.until(lambda seen=seen: len(probe.steps) > seen + STEPS, "steps of a run")
            assert probe.call("/disarm") == (True, "")
            probe.until_mode("DAMP")
            seen = len(probe.steps)
            probe.until(lambda seen=seen: len(probe.steps) > seen + 5, "steps after the stop")
        steps = list(probe.steps)
    contract, start = memory_contract(), np.float32(START)
    hidden, remembered, before = start, [], 0
    period_ns = round(contract.control_dt_s * 1e9)
    for step in steps:
        if step.stamp_ns - before > 1.5 * period_ns:
            hidden = None  # a message was lost on the way, so nobody knows what is remembered
        before = step.stamp_ns
        observation = np.asarray(step.observation, dtype=np.float32)
        anew, first = answer(contract, observation, start)
        begins = bool(np.abs(step.mean - anew).max() < 1e-5)
        if hidden is None and not begins:
            remembered.append(False)
            continue
        mean, following = answer(contract, observation, start if hidden is None else hidden)
        remembered.append(bool(np.abs(step.mean - mean).max() < 1e-5))
        assert remembered[-1] or begins, "a step that follows from nothing"
        # A step that begins anew may be one that is not executed; then the next begins, too.
        hidden = following if remembered[-1] and not begins else first
    # Two runs, each an uninterrupted chain from the initial state on.
    edges = np.flatnonzero(np.diff([0, *remembered, 0]))
    runs = edges[1::2] - edges[::2]
    assert (runs > STEPS // 4).sum() >= 2, runs
