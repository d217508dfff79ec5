"""A policy with a memory over real DDS: every step follows from the one before, from arming on."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.extras import reason

pytest.importorskip("rclpy", reason=reason("rclpy"))

from deploy.bundle import read_bundle
from deploy.graph import Graph
from tests.deploy.memory_bundle import (
    START,
    answer,
    memory_contract,
    weights,
    write_memory_bundle,
)
from tests.deploy.ros_probe import describe, running

pytestmark = [pytest.mark.ros, pytest.mark.timeout(120)]

#: Steps of each run that follow from the one before.
STEPS = 20


class Recall:
    """Says of each step what the policy remembered when it made it: how that follows is known.

    ``anew``: what a robot begins with. ``follows``: what it had after the step before, which that
    step's mean tells, by the least squares of mean = next @ out. ``unknown``: the step before never
    came, since nobody repeats a message that is lost. ``neither``: a fault.
    """

    def __init__(self):
        self.contract, self.kinds = memory_contract(), []
        self._back = np.linalg.pinv(weights(self.contract)[1].astype(np.float64))
        self._period_ns = round(self.contract.control_dt_s * 1e9)
        self._before_ns, self._next = 0, None

    def of(self, steps):
        """The kinds of all steps, of which those that were there before are known."""
        for step in steps[len(self.kinds) :]:
            self.kinds.append(self._kind(step))
        return self.kinds

    def _kind(self, step):
        lost = step.stamp_ns - self._before_ns > 1.5 * self._period_ns
        remembered, self._before_ns = self._next, step.stamp_ns
        self._next = (step.mean @ self._back).astype(np.float32)
        if self._fits(step, np.float32(START)):
            return "anew"
        if lost or remembered is None:
            return "unknown"
        return "follows" if self._fits(step, remembered) else "neither"

    def _fits(self, step, hidden):
        mean, _ = answer(self.contract, np.asarray(step.observation, dtype=np.float32), hidden)
        return np.abs(step.mean - mean).max() < 1e-5


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
    recall = Recall()
    with running(remembering(tmp_path), tmp_path) as (_, probe):

        def more(kind, number):
            since = len(probe.steps)

            def enough():
                return recall.of(probe.steps)[since:].count(kind) >= number

            probe.until(enough, f"{number} steps that are {kind}")

        for _ in range(2):
            probe.arm()
            more("follows", STEPS)
            assert probe.call("/disarm") == (True, "")
            probe.until_mode("DAMP")
            more("anew", 5)
    assert "neither" not in recall.kinds, recall.kinds


def steps_of(*, lost=(), forgets=True, remembers=True):
    """What a node says: 10 steps stopped, 10 running, the same again."""
    contract, rng = memory_contract(), np.random.default_rng(5)
    hidden = start = np.float32(START)
    for i in range(40):
        seen = rng.normal(size=contract.observation.dim).astype(np.float32)
        mean, following = answer(contract, seen, hidden)
        executed = remembers and i // 10 % 2 == 1
        hidden = following if executed or not forgets else start
        if i not in lost:
            stamp_ns = 10**18 + i * 20_000_000
            yield SimpleNamespace(stamp_ns=stamp_ns, observation=seen, mean=mean.astype(float))


def test_what_a_policy_remembers_is_told_from_its_steps():
    def kinds(**how):
        return Recall().of(list(steps_of(**how)))

    # The first step of a run is made of what a robot begins with.
    run = ["anew"] * 11 + ["follows"] * 9
    assert kinds() == [*run, "follows", *run[1:]]
    # One lost message costs what is known of the next step, and no more.
    assert kinds(lost=(13,)) == [*run[:13], "unknown", *run[15:], "follows", *run[1:]]
    assert set(kinds(remembers=False)) == {"anew"}
    wrong = list(steps_of())
    wrong[15].mean = wrong[15].mean + 0.01
    assert Recall().of(wrong)[15] == "neither"
    assert kinds(forgets=False)[1:] == ["follows"] * 39
