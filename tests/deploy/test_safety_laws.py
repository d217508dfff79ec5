"""Nothing outside the limits ever leaves the filter: many random cases, and awkward ones."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.safety import Verdict
from real.contract import PolicyContract
from real.frames import from_rpy
from tests.deploy.safety_bench import CONTRACT, DT, POSE, ROBOT, Bench, assert_safe
from tests.deploy.stand_bundle import stand_contract


def random_contract(rng: np.random.Generator) -> PolicyContract:
    """A1 with other limits and gains at every joint; some speed and torque limits are zero."""
    joints = []
    for joint in ROBOT.joints:
        low, high = joint.q_default - rng.uniform(0.05, 1.5), joint.q_default + rng.uniform(0.05, 1)
        joints.append(
            dataclasses.replace(
                joint,
                q_min=low,
                q_max=high,
                dq_max=rng.choice([0.0, math.inf, rng.uniform(0.5, 40.0)], p=[0.1, 0.1, 0.8]),
                tau_max=rng.choice([0.0, math.inf, rng.uniform(0.5, 60.0)], p=[0.1, 0.1, 0.8]),
                kp=rng.uniform(5.0, 200.0),
                kd=rng.uniform(0.0, 8.0),
            )
        )
    return stand_contract(dataclasses.replace(ROBOT, joints=tuple(joints)))


def check_many(rng: np.random.Generator, bench: Bench, *, ticks: int) -> set[Verdict]:
    """Random states, commands and time steps for the bench's robots, a stream of them each."""
    num, seen = bench.num, set()
    before = np.full((num, 12), math.nan)
    for _ in range(ticks):
        big = 10.0 ** rng.uniform(-2.0, 3.0, (num, 1))
        bench.q = POSE + rng.normal(0.0, 0.3, (num, 12)) * rng.choice([0.1, 1.0], (num, 1))
        bench.dq = rng.normal(0.0, 1.0, (num, 12)) * big
        bench.quat = from_rpy(rng.normal(0.0, 0.4, (num, 3)))
        bench.temperature = rng.uniform(20.0, 81.0, (num, 12))
        q_des = POSE + rng.normal(0.0, 1.0, (num, 12)) * big
        for array, share in ((q_des, 0.01), (bench.q, 0.002), (bench.dq, 0.002)):
            array[rng.random(array.shape) < share] = rng.choice([math.nan, math.inf, -math.inf])
        bench.command_age = int(rng.integers(-DT, 4 * DT))
        result = bench.send(q_des, advance=int(rng.integers(0, 3 * DT)))
        assert_safe(bench, result, before=before)
        moved = result.verdict != Verdict.DAMP
        before = np.where(moved[:, None], result.command.q_des, math.nan)
        seen |= set(map(Verdict, result.verdict.tolist()))
    return seen


def off(**changes):
    """Checks that would stop most of these robots at once are not what is looked at here."""
    return {"outside": None, "jump_factor": None, "gyro_slack": None, **changes}


def test_nothing_outside_the_limits_leaves_for_random_states_and_commands():
    rng = np.random.default_rng(12)
    assert check_many(rng, Bench(500), ticks=5) >= {Verdict.CLAMPED, Verdict.DAMP}
    bench = Bench(500, contract=random_contract(rng), **off())
    for violation in bench.send(POSE + 1.0).violations:
        assert str(violation)
    assert check_many(rng, bench, ticks=5) >= {Verdict.CLAMPED, Verdict.DAMP}


@pytest.mark.slow
def test_nothing_outside_the_limits_leaves_for_a_million_random_cases():
    rng = np.random.default_rng(13)
    for _ in range(10):  # robots with other limits; 9 x 1000 x 12 joint commands of each
        bench = Bench(1000, contract=random_contract(rng), **off())
        assert check_many(rng, bench, ticks=9) >= {Verdict.CLAMPED, Verdict.DAMP}


anything = st.floats(allow_nan=True, allow_infinity=True, width=64)
#: Of three joints; the others stand. Few numbers leave time for many cases.
ODD = [1, 6, 11]
awkward = {
    "q_des": st.tuples(anything, anything, anything),
    "q": st.tuples(*[st.floats(-4.0, 4.5) | anything] * 3),
    "dq": st.tuples(*[st.floats(-50.0, 50.0) | anything] * 3),
    "ages": st.tuples(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12)),
    "advance": st.integers(-(10**10), 10**10),
    "hold": st.booleans(),
}


def check_awkward(q_des, q, dq, ages, advance, hold):
    contract = dataclasses.replace(CONTRACT, safe_stop="hold") if hold else CONTRACT
    bench = Bench(contract=contract)
    bench.send(POSE)
    bench.state_age, bench.command_age = ages
    bench.q[0, ODD], bench.dq[0, ODD] = q, dq
    wanted = POSE.copy()
    wanted[ODD] = q_des
    with np.errstate(all="raise", under="ignore"):
        result = bench.send(wanted, advance=advance)
    assert_safe(bench, result, before=POSE[None])
    for violation in result.violations:
        assert str(violation)


@pytest.mark.slow
@settings(max_examples=200)
@given(**awkward)
def test_nothing_outside_the_limits_leaves_for_awkward_numbers(**numbers):
    check_awkward(**numbers)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None)
@given(**awkward)
def test_nothing_outside_the_limits_leaves_for_ten_thousand_awkward_cases(**numbers):
    check_awkward(**numbers)
