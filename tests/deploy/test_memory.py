"""What a policy remembers on the robot: per robot, from the beginning of a run, always finite."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from deploy.agreement import changes
from deploy.bundle import BundleError, parse_bundle
from deploy.checks import Check
from deploy.controller import Controller
from deploy.modes import Mode
from deploy.policy import OnnxPolicy
from deploy.policy_pipeline import PolicyPipeline
from deploy.safety import SafetySettings, Verdict
from ferry import app
from real.contract import PolicyContract
from real.memory import HiddenState
from real.signals import RobotState
from tests.deploy.memory_bundle import (
    START,
    H,
    answer,
    bundle_bytes,
    memory_contract,
    write_memory_bundle,
)
from tests.deploy.stand_bundle import stand_contract

DT = 20_000_000  # ns
CONTRACT = memory_contract()
POSE = np.array([j.q_default for j in CONTRACT.joints])
BUNDLE = parse_bundle(bundle_bytes(), source="m.onnx")


class Bench:
    """N robots with states of their own, a clock, and a controller of the real runtime."""

    def __init__(self, num: int = 3, *, policy=None) -> None:
        self.num, self.now = num, 10**10
        self.policy = OnnxPolicy(BUNDLE) if policy is None else policy
        self.controller = Controller(self.policy, num, settings=SafetySettings(ramp_s=0.0))
        self.command = np.tile([0.3, -0.1, 0.2], (num, 1)) * np.arange(1, num + 1)[:, None]
        self.stamp = np.full(num, self.now, dtype=np.int64)

    def state(self) -> RobotState:
        plain = RobotState.zeros(self.num, len(POSE))
        q = POSE + 0.01 * np.arange(self.num)[:, None]
        return dataclasses.replace(plain, stamp_ns=self.stamp.copy(), q=q)

    def arm(self, rows=None):
        return self.controller.arm(self.now, self.state(), rows)

    def tick(self, *, periods: int = 1):
        self.now += DT * periods
        self.stamp[:] = self.now
        return self.controller.tick(self.now, self.state(), self.command)

    @property
    def hidden(self) -> np.ndarray:
        return self.controller.policy.hidden

    def modes(self):
        return [Mode(m) for m in self.controller.safety.modes.mode]


# ------------------------------------------------------------------ a run


def test_each_robot_remembers_its_own_run_from_the_beginning_on():
    bench = Bench()
    assert bench.arm() == []
    expected = np.tile(np.float32(START), (3, 1))
    for _ in range(5):
        tick = bench.tick()
        assert tick.errors == ()
        mean, expected = answer(CONTRACT, tick.policy.observation, expected)
        np.testing.assert_allclose(tick.policy.mean, mean, atol=1e-6)
        np.testing.assert_allclose(bench.hidden, expected, atol=1e-6)
    assert np.abs(expected[0] - expected[2]).max() > 1e-3
    assert (tick.verdict == Verdict.PASS).all()


def test_who_does_not_run_remembers_nothing():
    bench = Bench()
    bench.arm(np.array([1]))
    for _ in range(3):
        bench.tick()
    assert bench.modes() == [Mode.DAMP, Mode.RUN, Mode.DAMP]
    assert np.array_equal(bench.hidden[[0, 2]], np.tile(np.float32(START), (2, 1)))
    assert not np.array_equal(bench.hidden[1], np.float32(START))


@pytest.mark.parametrize("how", ["disarm", "estop", "fault"])
def test_a_robot_that_is_armed_again_begins_anew_also_without_a_tick_between(how):
    bench = Bench()
    bench.arm()
    for _ in range(3):
        bench.tick()
    before = bench.hidden
    only = np.array([1])
    getattr(bench.controller.safety, how)(only)
    if how == "estop":
        bench.controller.safety.reset_estop(only)
    assert bench.arm(only) == []
    assert np.array_equal(bench.hidden[1], np.float32(START))
    assert np.array_equal(bench.hidden[[0, 2]], before[[0, 2]])
    tick = bench.tick()
    expected, _ = answer(CONTRACT, tick.policy.observation[1], np.float32(START))
    np.testing.assert_allclose(tick.policy.mean[1], expected, atol=1e-6)
    # The action before last is forgotten with it.
    columns = CONTRACT.observation.slices()["prev_action"]
    assert not tick.policy.observation[1, columns].any()
    assert tick.policy.observation[0, columns].any()


def test_arming_a_robot_that_runs_is_refused_and_it_forgets_nothing():
    bench = Bench()
    bench.arm()
    bench.tick()
    before = bench.hidden
    assert {v.kind for v in bench.arm()} == {Check.MODE}
    assert np.array_equal(bench.hidden, before)


def pipeline_step(front: PolicyPipeline, stamps: list[int]):
    state = dataclasses.replace(
        RobotState.zeros(len(stamps), len(POSE)), stamp_ns=np.array(stamps, dtype=np.int64)
    )
    return front.step(state, np.zeros((len(stamps), 3)))


def test_an_interruption_of_its_states_makes_a_robot_begin_anew_and_a_late_state_does_not():
    front = PolicyPipeline(OnnxPolicy(BUNDLE), 4)
    now = 10**10
    for k in range(3):
        pipeline_step(front, [now + k * DT] * 4)
    hidden, last = front.hidden, now + 2 * DT
    # One period, three, four, and back in time.
    gaps = [DT, 3 * DT, 4 * DT, -DT]
    out = pipeline_step(front, [last + gap for gap in gaps])
    begins = np.tile(np.float32(START), (4, 1))
    begins[:2] = hidden[:2]
    _, expected = answer(CONTRACT, out.observation, begins)
    np.testing.assert_allclose(front.hidden, expected, atol=1e-6)


def test_warming_up_neither_forgets_nor_remembers():
    bench = Bench()
    bench.arm()
    for _ in range(3):
        bench.tick()
    other = Bench()
    other.arm()
    for _ in range(3):
        other.tick()
        other.controller.policy.warm_up()
    assert np.array_equal(bench.hidden, other.hidden)
    for _ in range(2):
        one, two = bench.tick(), other.tick()
        assert np.array_equal(one.policy.observation, two.policy.observation)
        assert np.array_equal(one.command.q_des, two.command.q_des)


# ------------------------------------------------------------------ numbers that are none


class Broken:
    """The real policy until robot 1's state is made infinite, behind a mean that looks innocent."""

    def __init__(self, number: float) -> None:
        self._real, self.contract = OnnxPolicy(BUNDLE), CONTRACT
        self.number, self.at = number, 3
        self.seen: list[np.ndarray] = []

    def infer(self, observation):
        raise AssertionError("a policy with a memory is not asked without it")

    def advance(self, observation, hidden):
        self.seen.append(hidden.copy())
        mean, log_std, following = self._real.advance(observation, hidden)
        if len(self.seen) == self.at:
            following[1, 2] = self.number
        return mean, log_std, following


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_state_that_is_not_finite_stops_its_robot_and_is_never_carried_on(number):
    policy = Broken(number)
    bench = Bench(policy=policy)
    bench.arm()
    for _ in range(2):
        assert (bench.tick().verdict == Verdict.PASS).all()
    tick = bench.tick()
    assert tick.safety.stop.tolist() == [False, True, False]
    assert bench.modes() == [Mode.RUN, Mode.DAMP, Mode.RUN]
    (found,) = [v for v in tick.violations if v.note]
    assert (found.world, found.note) == (1, "what the policy remembers is not finite")
    assert np.isfinite(tick.command.q_des).all()
    assert np.array_equal(bench.hidden[1], np.float32(START))
    for _ in range(3):
        tick = bench.tick()
    assert (tick.verdict[[0, 2]] == Verdict.PASS).all()
    assert bench.arm(np.array([1])) == []
    assert bench.tick().verdict[1] == Verdict.PASS
    assert all(np.isfinite(hidden).all() for hidden in policy.seen)


def test_a_reading_that_is_none_does_not_stay_in_memory():
    front = PolicyPipeline(OnnxPolicy(BUNDLE), 2)
    state = RobotState.zeros(2, len(POSE))
    state.gyro_b[1, 0] = math.nan
    out = front.step(state, np.zeros((2, 3)))
    assert np.isnan(out.command.q_des[1]).all()
    assert np.isfinite(out.command.q_des[0]).all()
    assert np.isfinite(front.hidden).all()


# ------------------------------------------------------------------ bundles


def refused(**changes) -> str:
    with pytest.raises(BundleError) as error:
        parse_bundle(bundle_bytes(**changes), source="m.onnx")
    return str(error.value)


def stateless() -> PolicyContract:
    return memory_contract(hidden_size=0, state=None)


def test_a_bundle_says_what_it_remembers(tmp_path):
    shown = "hidden[5] -> hidden_next[5], begins with values of its own"
    assert BUNDLE.rows()["remembers"] == shown
    path = write_memory_bundle(tmp_path / "m.onnx")
    result = CliRunner().invoke(app, ["inspect", str(path)])
    assert result.exit_code == 0, result.output
    assert "remembers" in result.output
    assert "hidden[5]" in result.output


@pytest.mark.slow
def test_a_graph_with_a_state_and_a_contract_without_or_the_reverse_are_refused():
    words = refused(contract=stateless())
    assert "['observation', 'hidden'] -> ['mean', 'log_std', 'hidden_next']" in words
    assert "since its contract has no state" in words
    words = refused(remembers=False)
    assert "its graph is ['observation'] -> ['mean', 'log_std']" in words
    assert "since its contract has a state" in words
    parse_bundle(bundle_bytes(stateless(), remembers=False), source="neither has one")


@pytest.mark.parametrize(
    ("contract", "words"),
    [
        (memory_contract(hidden_size=4), "hidden_size is not the 5 numbers"),
        (memory_contract(hidden_size=0), "hidden_size is not the 5 numbers"),
        (memory_contract(state=None), "hidden_size is not the 0 numbers"),
        (memory_contract(state=HiddenState("h", "hidden_next", START)), "'h'"),
        (memory_contract(state=HiddenState("hidden", "mean", START)), "not of their own"),
        (memory_contract(state=HiddenState("hidden", "hidden", START)), "not of their own"),
        (memory_contract(state=HiddenState("", "hidden_next", START)), "not of their own"),
        (memory_contract(hidden_size=0, state=HiddenState("a", "b", ())), "has no numbers"),
        (
            memory_contract(state=HiddenState("hidden", "hidden_next", (*START[:4], math.inf))),
            "state.initial is not finite",
        ),
        (
            memory_contract(hidden_size=6, state=HiddenState("hidden", "hidden_next", (0.0,) * 6)),
            "hidden is (4, 5)",
        ),
    ],
)
def test_a_state_that_makes_no_sense_or_is_not_the_graphs_is_refused(contract, words):
    assert words in refused(contract=contract)


@pytest.mark.parametrize(
    ("golden", "words"),
    [
        ({"hidden": None}, "golden vectors: expected"),
        ({"hidden_next": np.zeros((4, H), dtype=np.float32)}, "hidden_next is off by"),
        ({"hidden": np.full((4, H), np.nan, dtype=np.float32)}, "not finite"),
    ],
)
def test_golden_vectors_include_the_state(golden, words):
    assert words in refused(**golden)


def test_the_contract_survives_json_and_a_running_graph_refuses_another_state():
    assert PolicyContract.from_json(CONTRACT.to_json()) == CONTRACT
    assert json.loads(CONTRACT.to_json())["state"]["initial"] == list(START)
    (found,) = [c for c in changes(stand_contract(), CONTRACT) if c.startswith("state")]
    assert "running None" in found


def test_a_contract_of_before_there_were_states_is_still_read():
    body = json.loads(stand_contract().to_json())
    del body["state"]
    assert PolicyContract.from_json(json.dumps(body)) == stand_contract()
