"""The graph over real DDS: what it does, and what it does when something breaks."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.extras import reason

pytest.importorskip("rclpy", reason=reason("rclpy"))

from geometry_msgs.msg import Twist, TwistStamped
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from deploy.bundle import read_bundle
from deploy.convert import set_stamp, to_ns
from deploy.evaluation_stamp import stamp_of, stamped
from deploy.introduction import contract_of
from deploy.modes import Mode
from deploy.policy_node import COMMAND_AGE_S
from deploy.signing import make_keys, write_signature
from real.errors import FerryError
from real.log import read_log
from real.spec import load_robot
from tests.deploy.ros_probe import (
    LATCHED,
    PATIENCE_S,
    RELIABLE,
    describe,
    positions,
    running,
    stamps,
    with_parameters,
)
from tests.deploy.stand_bundle import other_gain, stand_contract, write_bundle

pytestmark = [pytest.mark.ros, pytest.mark.patient, pytest.mark.timeout(300)]

#: What robot_node says where the middleware notices first that safety_node is gone.
UNCOMMANDED = "nobody publishes /joint_command any more"

A1 = load_robot("a1")
NAMES = A1.joint_names
DEFAULT = A1.q_default


def test_armed_it_ramps_from_the_measured_pose_runs_and_stops_when_told(tmp_path):
    start = {"FL_hip_joint": 0.35, "RR_lower_joint": -1.2}
    measured = np.array([start.get(n, d) for n, d in zip(NAMES, DEFAULT, strict=True)])
    record = tmp_path / "out.mcap"
    graph = describe(tmp_path, start=start, record=record, ramp_s=2.0)
    with running(graph, tmp_path) as (run, probe):
        probe.until(lambda: bool(probe.commands), "the safety node speaks")
        assert not any(len(c.position) for c in probe.commands), "before arming: safe stops only"
        probe.arm()
        seen = len(probe.states)
        probe.until(lambda: len(probe.states) > seen + 100, "half a second of standing")
        # Once a second: what is told of RUN, and by then of a rate.
        probe.until(
            lambda: probe.values.get("safety_node", {}).get("mode") == "RUN", "RUN in diagnostics"
        )
        probe.until(lambda: float(probe.values["safety_node"]["rate_hz"]) > 1.0, "its rate")
        assert {"verdict CLAMPED", "tick_p99_ms"} <= probe.values["safety_node"].keys()
        assert {"rate_hz", "tick_p50_ms", "tick_p99_ms"} <= probe.values["policy_node"].keys()
        assert {"state_rate_hz", "lateness_p50_ms", "lateness_p99_ms", "missed_deadlines"} <= (
            probe.values["robot_node"].keys()
        )
        assert probe.call("/disarm") == (True, "")
        told_ns = time.time_ns()
        probe.until_mode("DAMP")

        def since_the_stop():
            """Answers to later states; targets from before may still be on their way."""
            return [c for c in probe.commands if to_ns(c.header.stamp) > told_ns]

        probe.until(lambda: len(since_the_stop()) > 5, "commands after the stop")
        assert not any(len(c.position) for c in since_the_stop())
    assert [p.returncode for p in run.processes.values()] == [0, 0, 0, 0]
    _check_recording(record, measured, known=stamps(probe.states))


def _check_recording(record, measured, *, known):
    """The recording tells the same story, to this project's reader and to another one.

    Best effort may lose messages to a recorder on a busy computer: states that somebody else saw
    are ``known`` too.
    """
    log = read_log(record)
    assert log.damage is None
    assert log.metadata["ferry"] == {"bundle": "stand"}
    assert log["/safety/mode"].text[-3:] == ("RAMP", "RUN", "DAMP")
    moved = log["/joint_command"]
    armed_ns = log["/safety/mode"].log_ns[-3]
    moving = np.isfinite(moved.values["position"]).all(axis=1) & (moved.log_ns >= armed_ns - 10**7)
    order = [moved.names.index(n) for n in NAMES]
    targets = moved.values["position"][moving][:, order]
    # A cubic over 2 s from the pose it was in; its steepest slope is 1.5 times the mean one.
    steepest = 1.5 * np.abs(measured - DEFAULT).max() / 2.0
    begun_s = max(0.0, (moved.stamp_ns[moving][0] - armed_ns) * 1e-9)
    np.testing.assert_allclose(targets[0], measured, atol=0.02 + steepest * begun_s)
    np.testing.assert_allclose(targets[-1], DEFAULT, atol=1e-6)
    elapsed = np.diff(moved.stamp_ns[moving])[:, None] * 1e-9
    assert (np.abs(np.diff(targets, axis=0)) <= 1.01 * steepest * elapsed + 1e-6).all()
    states = log["/joint_states"]
    final = states.values["position"][-1][[states.names.index(n) for n in NAMES]]
    np.testing.assert_allclose(final, DEFAULT, atol=0.01)
    # One tick per control period of the states' stamps, each answering a state of that stamp.
    ticks = log["/policy/step"].stamp_ns
    recorded = (ticks >= states.stamp_ns[0]) & (ticks <= states.stamp_ns[-1])
    assert recorded.sum() > 20
    assert set(ticks[recorded]) <= set(states.stamp_ns) | set(known)
    assert len(ticks) <= (ticks[-1] - ticks[0]) / 20e6 + 2
    from rosbags.rosbag2 import Reader

    with Reader(record) as bag:
        counts = {c.topic: c.msgcount for c in bag.connections}
    assert counts["/joint_states"] == len(states)
    assert counts["/joint_command"] == len(moved)


def test_told_to_the_three_nodes_of_the_loop_take_a_real_time_priority(tmp_path):
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except PermissionError:
        pytest.skip("this user may take no real-time priority")
    described = describe(tmp_path, record=tmp_path / "walk.mcap")
    for name in ("policy_node", "safety_node", "robot_node"):
        described = with_parameters(described, name, realtime_priority=5.0)
    with running(described, tmp_path) as (run, probe):
        probe.arm()
        for name, process in run.processes.items():
            threads = [int(path.name) for path in Path(f"/proc/{process.pid}/task").iterdir()]
            kinds = {os.sched_getscheduler(thread) for thread in threads}
            expected = os.SCHED_OTHER if name == "recorder_node" else os.SCHED_FIFO
            assert (name, kinds) == (name, {expected})


def test_a_killed_policy_node_ends_in_damp_and_says_why(tmp_path):
    with running(describe(tmp_path), tmp_path) as (run, probe):
        probe.arm()
        run.processes["policy_node"].kill()
        probe.until_mode("DAMP")
        # Whichever comes first: the middleware may notice a death before silence is long enough.
        gone = "DAMP: nobody publishes /policy/joint_command any more"
        probe.until_said("safety_node", "DAMP: no policy command for", gone)
        probe.until(lambda: not len(probe.commands[-1].position), "an empty command")
        probe.refused("no fresh command from policy_node")


def test_a_stalled_policy_node_ends_in_damp_and_may_not_catch_up(tmp_path):
    with running(describe(tmp_path), tmp_path) as (run, probe):
        probe.arm()
        run.processes["policy_node"].send_signal(signal.SIGSTOP)
        probe.until_mode("DAMP")
        # A stalled process neither speaks nor tells the middleware that it lives.
        probe.until_said("safety_node", "DAMP: no policy command for", "DAMP: nobody publishes")
        lost = "liveliness lost /policy/joint_command"
        probe.until(lambda: lost in probe.values["safety_node"], lost)
        run.processes["policy_node"].send_signal(signal.SIGCONT)
        wishes = len(probe.wishes)
        probe.until(lambda: len(probe.wishes) > wishes + 10, "the policy answers again")
        assert probe.modes[-1] == "DAMP", "only arming leads out of a stop"
        probe.arm()


def test_a_killed_safety_node_leaves_a_robot_that_stops_by_itself(tmp_path):
    with running(describe(tmp_path), tmp_path) as (run, probe):
        probe.arm()
        probe.until_said("robot_node", "following commands")
        run.processes["safety_node"].kill()
        probe.until_said("robot_node", "safe stop: newest command is", f"safe stop: {UNCOMMANDED}")


def test_states_that_stop_coming_end_in_damp_and_the_policy_is_not_blamed(tmp_path):
    with running(describe(tmp_path), tmp_path) as (run, probe):
        probe.arm()
        run.processes["robot_node"].send_signal(signal.SIGSTOP)
        probe.until_mode("DAMP")
        probe.until_said("safety_node", "DAMP: no new state for")
        run.processes["robot_node"].send_signal(signal.SIGCONT)


def test_a_safety_node_that_stood_still_blames_nobody_else(tmp_path):
    with running(describe(tmp_path), tmp_path) as (run, probe):
        probe.arm()
        run.processes["safety_node"].send_signal(signal.SIGSTOP)
        # The robot stops by itself meanwhile.
        probe.until_said("robot_node", "safe stop: newest command is", f"safe stop: {UNCOMMANDED}")
        stopped = len(probe.commands)
        run.processes["safety_node"].send_signal(signal.SIGCONT)
        probe.until(lambda: len(probe.commands) > stopped, "it speaks again")
        # Where it hears all that came before it looks at its clock, it may go on.
        probe.until(lambda: probe.modes[-1] == "DAMP" or len(probe.commands) > stopped + 20, "more")
        if probe.modes[-1] == "DAMP":
            probe.until_said("safety_node", "DAMP: ")
            said = probe.diagnostics["safety_node"]
            assert "no new state" not in said
            assert "no policy command" not in said


def test_joints_are_mapped_by_name_and_what_is_not_finite_is_never_forwarded(tmp_path):
    rng = np.random.default_rng(1)
    order = rng.permutation(len(NAMES))
    names = [NAMES[i] for i in order]
    target = DEFAULT + rng.uniform(-0.1, 0.1, 12)
    wish = {"names": names, "values": target[order]}
    with running(describe(tmp_path, without=("policy_node",)), tmp_path) as (_, probe):
        probe.policy(lambda: wish["names"], lambda: wish["values"])
        probe.arm()
        probe.until(
            lambda: np.allclose(positions(probe.states[-1], NAMES), target, atol=1e-3),
            "the robot is where it was told to be",
        )
        broken, wild = "command_not_finite", "command_implausible"
        for bad, fault in ((np.nan, broken), (np.inf, broken), (-np.inf, broken), (1e9, wild)):
            values = target[order].copy()
            values[4] = bad
            wish["values"] = values
            probe.until_mode("DAMP")
            probe.until_said("safety_node", f"DAMP: {fault} of {names[4]}")
            forwarded = [c for c in probe.commands if len(c.position)]
            assert all(np.abs(np.array(c.position)).max() < 3.0 for c in forwarded)
            wish["values"] = target[order]
            probe.arm()
        wish["names"] = [*names[:-1], "FR_toe_joint"]
        probe.until_mode("DAMP")
        probe.until_said("safety_node", f"'{names[-1]}' is missing")
        probe.until_said("safety_node", "'FR_toe_joint' is unknown")


def test_stale_answers_of_a_living_policy_end_in_damp(tmp_path):
    with running(describe(tmp_path, without=("policy_node",)), tmp_path) as (_, probe):
        probe.policy(lambda: NAMES, lambda: DEFAULT)
        probe.arm()
        answer = probe.on_state
        old = probe.states[-1]
        probe.on_state = lambda _state: answer(old)
        probe.until_mode("DAMP")
        probe.until_said("safety_node", "command_stale")


def test_two_writers_on_a_command_topic_are_refused(tmp_path):
    with running(describe(tmp_path), tmp_path) as (_, probe):
        driving = [probe.node.create_publisher(Twist, "/cmd_vel", RELIABLE) for _ in range(2)]
        probe.refused("2 publishers on /cmd_vel")
        for operator in driving:
            probe.node.destroy_publisher(operator)
        probe.arm()
        probe.policy(lambda: NAMES, lambda: None)  # a second publisher, even a silent one
        probe.until_mode("DAMP")
        probe.until_said("safety_node", "2 publishers on /policy/joint_command")
        probe.refused("2 publishers on /policy/joint_command")


def test_a_second_writer_to_the_robot_stops_it_even_if_nobody_filters(tmp_path):
    with running(describe(tmp_path), tmp_path) as (_, probe):
        probe.arm()
        probe.node.create_publisher(JointState, "/joint_command", RELIABLE)
        probe.until_mode("DAMP")
        probe.until_said("safety_node", "2 publishers on /joint_command")
        probe.until_said("robot_node", "safe stop: 2 publishers on /joint_command")


def test_another_bundle_is_loaded_while_stopped_and_refused_if_it_is_another_contract(tmp_path):
    other = write_bundle(tmp_path / "other.onnx", gain=0.1)
    foreign = write_bundle(tmp_path / "gains.onnx", other_gain(stand_contract(), kp=55.0))
    with running(describe(tmp_path), tmp_path) as (_, probe):
        probe.until(lambda: bool(probe.steps), "the policy ticks")
        assert not probe.steps[-1].mean.any()
        probe.arm()
        # It may not have heard yet that the ramp is over.
        probe.until_answered("/policy/reload", (False, "mode is RUN: /disarm first"))
        assert "mode is RUN" in probe.set_parameter("policy_node", "bundle", str(other))
        probe.call("/disarm")
        probe.until_mode("DAMP")
        probe.settle("policy_node", "bundle", str(foreign))
        success, why = probe.call("/policy/reload")
        assert not success
        assert why.endswith("joint 'FL_hip_joint' kp: running 40.0, new 55.0")
        probe.settle("policy_node", "bundle", str(tmp_path / "none.onnx"))
        success, why = probe.call("/policy/reload")
        assert (success, "cannot be read" in why) == (False, True)
        assert not probe.steps[-1].mean.any(), "the old policy stays"
        probe.settle("policy_node", "bundle", str(other))
        assert probe.call("/policy/load") == (True, "")
        probe.until(lambda: probe.steps[-1].mean.any(), "the new policy answers")
        step = probe.steps[-1]
        np.testing.assert_allclose(step.mean, 0.1 * step.observation[:12], atol=1e-6)
        probe.arm()


def evaluated(bundle):
    """Write into a bundle that somebody found it good."""
    told = {"mean": 0.95, "low": 0.9, "high": 1.0}
    result = {"suite": "nominal", "episodes": 5, "seed": 0, "measure": "tracking"}
    result |= {"tracking": told, "falls_per_minute": 0.0, "clamped_share": 0.0}
    stamp = stamp_of(result, digest=read_bundle(bundle).digest)
    bundle.write_bytes(stamped(bundle.read_bytes(), stamp))
    return bundle


def test_with_trusted_keys_only_signed_bundles_start_and_only_those_are_loaded_later(tmp_path):
    """The order is: evaluate, stamp, sign; the robot requires both."""
    described = describe(tmp_path)
    bundle = evaluated(tmp_path / "stand.onnx")
    make_keys(tmp_path / "keys" / "fleet")
    for node in ("policy_node", "safety_node"):
        parameters = ["-p", f"bundle:={bundle}", "-p", f"trusted_keys:={tmp_path / 'keys'}"]
        command = [sys.executable, "-m", f"deploy.{node}", "--ros-args", *parameters]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2, done.stderr
        assert "it is not signed (there is no stand.onnx.sig)" in done.stderr
    write_signature(bundle, bundle.read_bytes(), tmp_path / "keys" / "fleet")
    for node in ("policy_node", "safety_node"):
        described = with_parameters(
            described, node, trusted_keys=str(tmp_path / "keys"), minimum_score=0.9
        )
    other = write_bundle(tmp_path / "other.onnx", gain=0.1)
    with running(described, tmp_path) as (_, probe):
        probe.until(lambda: bool(probe.commands), "the safety node speaks")
        probe.settle("policy_node", "bundle", str(other))
        success, why = probe.call("/policy/reload")
        assert (success, "other.onnx: it is not signed" in why) == (False, True)
        write_signature(other, other.read_bytes(), tmp_path / "keys" / "fleet")
        success, why = probe.call("/policy/reload")
        assert (success, "other.onnx: it carries no evaluation" in why) == (False, True)
        evaluated(other)
        write_signature(other, other.read_bytes(), tmp_path / "keys" / "fleet")
        assert probe.call("/policy/reload") == (True, "")


def test_nodes_refuse_to_start_on_other_bytes_than_were_checked(tmp_path):
    bundle = write_bundle(tmp_path / "stand.onnx")
    for module in ("deploy.policy_node", "deploy.safety_node"):
        extra = ["-p", f"bundle:={bundle}", "-p", "bundle_sha256:=c0ffee"]
        done = subprocess.run(
            [sys.executable, "-m", module, "--ros-args", *extra],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        assert "but c0ffee was checked before the start" in done.stderr
    extra = ["-p", f"bundle:={bundle}", "-p", "require_evaluation:=true"]
    done = subprocess.run(
        [sys.executable, "-m", "deploy.safety_node", "--ros-args", *extra],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "it carries no evaluation, and this robot requires one" in done.stderr


def test_a_robot_whose_imu_is_silent_is_not_armed_and_the_reason_is_told(tmp_path):
    described = describe(tmp_path, without=("robot_node",))
    with running(described, tmp_path) as (_, probe):
        robot = contract_of(A1)
        says = probe.node.create_publisher(String, "/robot/contract", LATCHED)
        says.publish(String(data=robot.to_json()))
        joints = probe.node.create_publisher(JointState, "/joint_states", RELIABLE)
        message = JointState(name=list(NAMES), position=DEFAULT, velocity=np.zeros(12))

        def speak():
            set_stamp(message.header.stamp, time.time_ns())
            joints.publish(message)

        probe.node.create_timer(0.02, speak)
        probe.refused("no fresh state from robot_node: no /imu/data comes")


def test_a_bundle_for_other_gains_is_refused_by_name_before_anything_moves(tmp_path):
    contract = other_gain(stand_contract(), kp=55.0)
    with running(describe(tmp_path, contract=contract), tmp_path) as (_, probe):
        words = probe.refused("joint 'FL_hip_joint' kp: policy has 55.0, robot reports 40.0")
        assert "not trained for this robot" in words
        probe.until_said("policy_node", "no commands: the policy was not trained for this robot")
        assert not probe.wishes
        assert not any(len(c.position) for c in probe.commands)


def test_an_emergency_stop_holds_until_it_is_reset_and_armed_again(tmp_path):
    with running(describe(tmp_path), tmp_path) as (_, probe):
        probe.arm()
        assert probe.call("/reset") == (False, "mode is RUN: /disarm first")
        assert probe.call("/estop") == (True, "")
        probe.until_mode("ESTOP")
        probe.refused("mode is ESTOP: reset it first")
        assert probe.call("/disarm") == (True, "")
        assert probe.modes[-1] == "ESTOP"
        assert probe.call("/reset") == (True, "")
        probe.until_mode("DAMP")
        before = len(probe.steps)
        probe.arm()
        slices = stand_contract().observation.slices()
        assert all(np.all(s.observation[slices["prev_action"]] == 0) for s in probe.steps[before:])


def test_velocity_commands_are_clamped_and_forgotten_after_half_a_second(tmp_path):
    seen = stand_contract().observation.slices()["command"]
    with running(describe(tmp_path), tmp_path) as (_, probe):
        message = Twist()
        message.linear.x, message.linear.y, message.angular.z = 5.0, -0.2, 0.7
        probe.until(lambda: bool(probe.steps), "the policy ticks")

        sent_s = 0.0

        def told():
            nonlocal sent_s
            sent_s = time.monotonic()
            probe.drive(message)
            return np.allclose(probe.steps[-1].observation[seen], [1.2, -0.2, 0.7])

        probe.until(told, "the command, in its range")
        probe.until(lambda: not probe.steps[-1].observation[seen].any(), "the command is forgotten")
        assert time.monotonic() - sent_s > COMMAND_AGE_S


def test_stamped_velocity_commands_are_judged_by_their_stamp(tmp_path):
    seen = stand_contract().observation.slices()["command"]
    graph = with_parameters(describe(tmp_path), "policy_node", twist_stamped=True)
    with running(graph, tmp_path) as (_, probe):
        message = TwistStamped()
        message.twist.angular.z = 0.6
        probe.until(lambda: bool(probe.steps), "the policy ticks")

        def told(age_s):
            set_stamp(message.header.stamp, time.time_ns() - round(age_s * 1e9))
            probe.drive(message)
            return probe.steps[-1].observation[seen][2] == np.float32(0.6)

        ticks = len(probe.steps)
        probe.until(lambda: told(2.0) or len(probe.steps) > ticks + 40, "some time")
        assert not any(s.observation[seen].any() for s in probe.steps), "it was sent long ago"
        probe.until(lambda: told(0.0), "the command")


def test_told_to_explore_the_policy_samples_and_records_with_what_probability(tmp_path):
    graph = with_parameters(describe(tmp_path), "policy_node", explore=True, seed=3)
    with running(graph, tmp_path) as (_, probe):
        probe.until(lambda: len(probe.steps) > 40, "steps")
        steps, wishes = probe.steps[:40], probe.wishes
        by_stamp = {to_ns(w.header.stamp): w for w in wishes}
    noise = np.array([s.action - s.mean for s in steps])
    assert all(s.explore for s in steps)
    # The bundle's log_std is -1 everywhere.
    assert noise.std() == pytest.approx(np.exp(-1.0), rel=0.15)
    z = noise / np.exp(-1.0)
    expected = (-0.5 * z**2 + 1.0 - 0.5 * np.log(2 * np.pi)).sum(axis=1)
    np.testing.assert_allclose([s.log_prob for s in steps], expected, rtol=1e-5)
    step = next(s for s in steps if s.stamp_ns in by_stamp)
    scale = np.array(stand_contract().action.scale)
    target = DEFAULT + scale * step.action
    np.testing.assert_allclose(positions(by_stamp[step.stamp_ns], NAMES), target, rtol=1e-6)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_every_node_in_order(tmp_path, number):
    with running(describe(tmp_path, record=tmp_path / "out.mcap"), tmp_path) as (run, probe):
        probe.arm()
        for name in ("policy_node", "safety_node", "robot_node", "recorder_node"):
            run.processes[name].send_signal(number)
            assert run.processes[name].wait(timeout=PATIENCE_S) == 0
    assert run.summaries["safety_node"]["mode"] == Mode.DAMP.name
    assert read_log(tmp_path / "out.mcap").damage is None


def test_a_full_disk_stops_nobody_and_a_killed_recorder_leaves_all_it_had_written_down(tmp_path):
    """It does so every quarter of a second: nobody must end it for that."""
    record = tmp_path / "out.mcap"

    def written_ns():
        with contextlib.suppress(FerryError):
            return read_log(record, topics=["/joint_states"])["/joint_states"].stamp_ns[-1]
        return 0

    with running(describe(tmp_path, record=record), tmp_path) as (run, probe):
        probe.arm()
        probe.until_said("recorder_node", "recording")
        pid, no_limit = run.processes["recorder_node"].pid, resource.RLIM_INFINITY
        # The limit on the size of a file stands in for the disk's.
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (record.stat().st_size + 10, no_limit))
        full = f"nothing is written: {record} cannot be written: File too large"
        probe.until_said("recorder_node", full)
        seen = len(probe.states)
        probe.until(lambda: len(probe.states) > seen + 50, "states")
        assert probe.modes[-1] == "RUN", "the robot goes on"
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (no_limit, no_limit))
        probe.until_said("recorder_node", "recording")
        heard_ns = stamps(probe.states)[-1]
        deadline = time.monotonic() + PATIENCE_S
        while written_ns() < heard_ns:
            assert time.monotonic() < deadline, "what came is not written down"
            time.sleep(0.1)
        run.processes["recorder_node"].kill()
    assert written_ns() >= heard_ns
    assert read_log(record).damage is not None


SUPERVISOR = """
import sys
from pathlib import Path
from deploy.graph_run import run_graph
from tests.deploy.ros_probe import describe
folder = Path(sys.argv[1])
run_graph(describe(folder), on_status=lambda line: print(line, flush=True), log_dir=folder)
"""


def test_nodes_stop_by_themselves_when_their_supervisor_is_killed(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        ready = set()
        while len(ready) < 3:
            line = parent.stdout.readline()
            assert line, "the supervisor ended"
            if ": ready" in line:
                ready.add(line.split(":")[0])
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(parent.pid)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        assert len(children) == 3
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    deadline = time.monotonic() + PATIENCE_S
    while any(_alive(int(pid)) for pid in children):
        assert time.monotonic() < deadline, "processes are left behind"
        time.sleep(0.1)


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:  # a zombie is not alive
        return stat.read().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["deploy.policy_node"], "parameter bundle is missing"),
        (["deploy.policy_node", "bundle:=none.onnx"], "none.onnx: cannot be read"),
        (["deploy.safety_node"], "parameter bundle is missing"),
        (["deploy.recorder_node"], "parameter path is missing"),
        (["deploy.operator_node", "schedule:=none.json"], "none.json cannot be read"),
        (["deploy.robot_node", "robot:=a2"], "no configuration 'a2'"),
        (["deploy.robot_node", "plugin:=real.loopback:Loopback"], "did you mean 'LoopbackRobot'"),
        (["deploy.robot_node", "plugin_options:='[1]'"], "expected a JSON object"),
        (["deploy.robot_node", "plugin_options:='{\"speed\": 1}'"], "speed"),
        (["deploy.robot_node", "command_timeout_periods:=0"], "command_timeout_periods is 0"),
        (["deploy.robot_node", "command_timeout_periods:=0.5"], "command_timeout_periods"),
        (["deploy.robot_node", "command_timeout_periods:=fast"], "expected a number"),
        (["deploy.robot_node", "publish_clock:=maybe"], "expected true or false"),
    ],
)
def test_a_node_with_a_wrong_parameter_says_so_and_exits_with_2(arguments, words):
    module, *parameters = arguments
    extra = [a for p in parameters for a in ("-p", p)]
    done = subprocess.run(
        [sys.executable, "-m", module, "--ros-args", *extra],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
