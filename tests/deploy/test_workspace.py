from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from pydantic import ValidationError

from deploy.checks import Check
from deploy.safety import SafetyFilter, SafetySettings, Verdict
from deploy.workspace import Workspace, WorkspaceSettings
from real.chain import read_chain
from real.errors import FerryError
from real.kinematics import Kinematics
from real.reach import Reach
from real.signals import JointCommand, RobotState
from real.spec import RobotSpec, load_robot
from tests.deploy.stand_bundle import stand_contract

DT = 20_000_000
FAR = 9.0
#: Walls left and right, a floor; open above and along.
BOX = {"low": (-FAR, -0.3, 0.1), "high": (FAR, 0.4, FAR), "margin": 0.02}


@pytest.fixture(scope="module")
def arm(tmp_path_factory) -> tuple[RobotSpec, str]:
    """Two bars of 0.5 m that turn in the horizontal plane 0.2 m above the table, and a lift."""
    folder = tmp_path_factory.mktemp("arm")
    limit = '<limit lower="-3" upper="3" effort="50" velocity="5"/>'
    links = "".join(f'<link name="{n}"/>' for n in ("base", "post", "near", "far", "tip"))
    parts = [
        ("lift", "prismatic", "base", "post", "0 0 0.2", "0 0 1"),
        ("shoulder", "revolute", "post", "near", "0 0 0", "0 0 1"),
        ("elbow", "revolute", "near", "far", "0.5 0 0", "0 0 1"),
    ]
    joints = "".join(
        f'<joint name="{n}" type="{t}"><parent link="{p}"/><child link="{c}"/>'
        f'<origin xyz="{o}"/><axis xyz="{a}"/>{limit}</joint>'
        for n, t, p, c, o, a in parts
    )
    joints += '<joint name="end" type="fixed"><parent link="far"/><child link="tip"/>'
    joints += '<origin xyz="0.5 0 0"/></joint>'
    (folder / "arm.urdf").write_text(f'<robot name="arm">{links}{joints}</robot>')
    (folder / "arm.yaml").write_text(
        "schema_version: 1\nname: arm\ndescription: arm.urdf\n"
        "base: {kind: fixed, link: base, height_m: 0.0}\nimu_link: null\nfeet: []\n"
        "end_effector: tip\ncontrol_dt_s: 0.02\nphysics_dt_s: 0.005\nsafe_stop: hold\n"
        "damping_kd: 1.0\ndefaults: {kp: 200.0, kd: 5.0, action_scale: 0.5}\njoints:\n"
        "  lift: {q_default: 0.0}\n  shoulder: {q_default: 0.0}\n  elbow: {q_default: 0.0}\n"
    )
    file = str(folder / "arm.yaml")
    return load_robot(file), file


class ArmBench:
    """A filter for N of these arms, which are where they were told to be."""

    def __init__(self, arm, num=1, **box) -> None:
        robot, file = arm
        settings = SafetySettings(
            workspace=WorkspaceSettings(robot=file, **{**BOX, **box}), implausible=100.0
        )
        self.num, self.now, self.q = num, 1_000_000_000, np.zeros((num, 3))
        self.filter = SafetyFilter(stand_contract(robot), num, settings=settings)
        self.arm = Kinematics(read_chain(robot), robot.joint_names)

    def send(self, q_des):
        self.now += DT
        stamp = np.full(self.num, self.now)
        state = dataclasses.replace(RobotState.zeros(self.num, 3), stamp_ns=stamp, q=self.q.copy())
        q_des = np.array(np.broadcast_to(q_des, (self.num, 3)), dtype=float)
        command = JointCommand.position(stamp, q_des, kp=np.ones(3), kd=np.ones(3))
        result = self.filter.filter(self.now, state, command)
        self.q = result.command.q_des.copy()
        return result

    def hand(self) -> np.ndarray:
        return self.arm.pose(self.q)[0]


def test_a_hand_stops_before_the_wall_and_goes_back_freely(arm):
    bench = ArmBench(arm)
    verdicts = []
    for _ in range(60):
        result = bench.send([0.0, 1.0, 0.0])  # asks for y = 0.84, the wall is at 0.4
        verdicts.append(result.verdict[0])
        assert bench.hand()[0, 1] <= 0.38 + 1e-9
    assert bench.hand()[0, 1] > 0.36
    assert verdicts[-1] == Verdict.CLAMPED
    found = [v for v in result.violations if v.kind == Check.WORKSPACE]
    assert len(found) == 1
    assert str(found[0]).startswith("workspace: ")
    assert not result.stop.any()
    for _ in range(60):
        result = bench.send([0.1, -0.2, 0.0])
    assert np.allclose(bench.q, [[0.1, -0.2, 0.0]])
    assert result.verdict[0] == Verdict.PASS


def test_the_floor_holds_although_each_joint_is_within_its_range(arm):
    bench = ArmBench(arm)
    for _ in range(60):
        bench.send([-0.5, 0.0, 0.0])
    assert bench.hand()[0, 2] == pytest.approx(0.12, abs=0.01)


def test_a_hand_that_starts_outside_may_only_move_inwards(arm):
    bench = ArmBench(arm, outside=None)
    bench.q[:] = [0.0, -0.8, 0.0]  # y = -0.72
    start = bench.hand()[0, 1]
    bench.send([0.0, -1.2, 0.0])
    assert bench.hand()[0, 1] == pytest.approx(start)
    seen = [start]
    for _ in range(60):
        bench.send([0.0, 0.0, 0.0])
        seen.append(bench.hand()[0, 1])
    assert (np.diff(seen) >= -1e-12).all()
    assert np.allclose(bench.q, 0.0)


def test_a_measured_hand_far_outside_stops_and_the_arm_holds(arm):
    bench = ArmBench(arm, num=2)
    pose = [0.0, 0.3, 0.15]  # y = 0.37
    bench.q[:] = pose
    bench.send(pose)
    before = bench.q.copy()
    bench.q[1] = [0.0, 0.3, 0.44]  # pushed to y = 0.48, beyond the wall at 0.4 and 0.05 more
    result = bench.send(pose)
    assert result.stop.tolist() == [False, True]
    assert result.verdict.tolist() == [Verdict.PASS, Verdict.HOLD]
    assert Check.WORKSPACE in {v.kind for v in result.violations if v.world == 1}
    assert np.array_equal(result.command.q_des[1], before[1])


@pytest.mark.slow
def test_no_hand_leaves_the_box_for_random_commands(arm):
    rng = np.random.default_rng(2)
    bench = ArmBench(arm, num=200, outside=None)
    for _ in range(100):
        wanted = rng.uniform(-2.0, 2.0, (200, 3))
        wanted[rng.random(wanted.shape) < 0.01] = np.nan
        for _ in range(3):
            bench.send(wanted)
            hand = bench.hand()
            assert (hand[:, 1] <= 0.38 + 1e-6).all()
            assert (hand[:, 1] >= -0.28 - 1e-6).all()
            assert (hand[:, 2] >= 0.12 - 1e-6).all()
    # They got to the walls and were not simply stuck.
    assert (hand[:, 1] > 0.3).any()
    assert (hand[:, 1] < -0.2).any()


def test_a_box_without_a_hand_or_without_room_is_refused():
    with pytest.raises(FerryError, match="names no end_effector"):
        settings = SafetySettings(workspace=WorkspaceSettings(**BOX))
        SafetyFilter(stand_contract(), 1, settings=settings)
    with pytest.raises(ValidationError, match="y: nothing is left"):
        WorkspaceSettings(low=(0.0, 0.0, 0.0), high=(1.0, 0.03, 1.0))


def test_each_of_many_arms_gets_what_it_would_get_alone(arm):
    rng = np.random.default_rng(3)
    made = ArmBench(arm).filter._workspace
    assert isinstance(made, Workspace)
    previous, q = rng.uniform(-1.0, 1.0, (2, 50, 3))
    target = previous + rng.uniform(-0.1, 0.1, (50, 3))
    together, _ = made.limit(target, previous=previous, q=q)
    for i in range(50):
        row = slice(i, i + 1)
        alone, _ = made.limit(target[row], previous=previous[row], q=q[row])
        assert np.allclose(alone[0], together[i])


def test_a_bundle_that_commands_poses_brings_its_arm_along(arm):
    robot, _ = arm
    contract = stand_contract(robot)
    # On a robot computer there may be no description of this arm at all.
    contract = dataclasses.replace(
        contract, robot="nowhere", reach=Reach(read_chain(robot), share=0.5)
    )
    settings = SafetySettings(workspace=WorkspaceSettings(**BOX))
    box = SafetyFilter(contract, 1, settings=settings)._workspace
    assert isinstance(box, Workspace)
    # The first bar lies along -y to -0.5, the second along x: 0.22 beyond -0.3 and its margin.
    q = np.array([[0.0, -np.pi / 2, np.pi / 2]])
    assert box.distance(q, margin=0.02) == pytest.approx(0.22)


def test_joints_are_those_of_the_bundle_in_whatever_order_the_robot_file_has_them(arm):
    robot, file = arm
    turned = dataclasses.replace(robot, joints=robot.joints[::-1])
    q = np.array([[0.1, -0.4, 0.2]])
    settings = WorkspaceSettings(robot=file, **BOX)
    one = Workspace.load(settings, stand_contract(robot), columns=slice(None))
    two = Workspace.load(settings, stand_contract(turned), columns=slice(None))
    assert one.distance(q, margin=0.02) > 0.0
    assert two.distance(q[:, ::-1], margin=0.02) == pytest.approx(one.distance(q, margin=0.02))


def test_a_box_never_draws_a_joint_out_of_its_range_again(arm):
    """Joints that were outside have come back a little; hands are at the walls or beyond."""
    rng = np.random.default_rng(6)
    num, span = 400, 3.0
    bench = ArmBench(arm, num, outside=None)
    rows, joint = np.arange(num), rng.integers(1, 3, num)
    side = rng.choice([-1.0, 1.0], num)
    bench.q[:, 1:] = rng.uniform(-2.9, 2.9, (num, 2))
    bench.q[rows, joint] = side * (span + 0.2)
    bench.send(bench.q.copy())
    bench.q[rows, joint] = side * (span + rng.uniform(0.0, 0.15, num))
    measured = bench.q.copy()
    result = bench.send(measured + rng.normal(0.0, 0.2, (num, 3)))
    assert sum(v.kind == Check.WORKSPACE for v in result.violations) > 50
    most = np.maximum(span, np.abs(measured))
    assert (np.abs(result.command.q_des) <= most + 1e-9).all()
