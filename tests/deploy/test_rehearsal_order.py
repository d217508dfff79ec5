"""A rehearsal of a robot whose driver has the joints in another order than the policy."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from deploy.bundle import read_bundle
from deploy.controller import Controller
from deploy.policy import OnnxPolicy
from deploy.rehearsal import Rehearsal
from deploy.rehearsal_order import ContractOrder
from real.contract import RobotContract
from real.signals import RobotState
from real.spec import load_robot
from tests.deploy.stand_bundle import stand_contract, write_bundle

A1 = load_robot("a1")
#: Two on: an order that is not its own inverse.
TURNED = replace(A1, joints=(*A1.joints[2:], *A1.joints[:2]))
PLAN = {"seed": 0, "latency_s": 0.0, "jitter_s": 0.0, "loss": 0.0}


def test_two_on_in_the_one_direction_is_two_back_in_the_other():
    policy = stand_contract()
    order = ContractOrder(policy, RobotContract.from_spec(TURNED))
    numbers = np.arange(12.0)  # of the robot: 0 is the policy's joint 2
    state = replace(RobotState.zeros(1, 12), q=numbers[None], temperature=numbers[None])
    expected = [10, 11, *range(10)]
    assert order.state(state).q[0].tolist() == expected
    assert order.state(state).temperature[0].tolist() == expected
    assert order.targets(numbers).tolist() == [*range(2, 12), 0, 1]


def test_graph_and_controller_are_compared_joint_by_joint(tmp_path):
    bundle = read_bundle(write_bundle(tmp_path / "p.onnx", gain=0.5))
    shadow, alone = (Controller(OnnxPolicy(bundle), 1) for _ in range(2))
    order = ContractOrder(bundle.contract, RobotContract.from_spec(TURNED))
    node = SimpleNamespace(spec=TURNED, shadow=shadow, order=order)
    played = Rehearsal(node, PLAN)
    rng, command = np.random.default_rng(0), np.array([0.5, 0.0, 0.1])
    q = A1.q_default + rng.uniform(-0.1, 0.1, 12)
    ours = replace(RobotState.zeros(1, 12), q=q[None])
    theirs = replace(ours, q=np.array([*q[2:], *q[:2]])[None])
    for controller, state in ((shadow, order.state(theirs)), (alone, ours)):
        assert not controller.arm(0, state)
    for step in range(1, 4):
        stamp = np.array([step * 20_000_000])
        tick = alone.tick(int(stamp[0]), replace(ours, stamp_ns=stamp), command[None])
        q_des = tick.command.q_des[0]
        assert not tick.safety.stop[0]
        played._compare(
            replace(theirs, stamp_ns=stamp), command, np.array([*q_des[2:], *q_des[:2]])
        )
    assert (played.samples, played.difference) == (3, 0.0)
