"""A learned actuator moves joints as the drive does that it was made from, in both engines."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from real.errors import ConfigError, FerryError
from real.signals import JointCommand
from real.spec import RobotSpec, load_robot
from sim.actuator_export import fit_linear, robot_card, servo_network, with_card
from sim.actuator_file import load_actuators
from sim.actuator_models import linear_model, shared_model
from sim.actuator_samples import Samples
from sim.engine import InitialState
from sim.env import VecEnv, make_env
from sim.motors import NetworkMotors, Servos
from sim.mujoco_engine import MujocoEngine
from sim.replay import replay
from sim.task import load_env_config
from tests.extras import need

A1 = load_robot("a1")
NAMES = tuple(joint.name for joint in A1.actuated)
PERMUTED = tuple(np.random.default_rng(1).permutation(NAMES).tolist())
DEFAULT = A1.actuated_array("q_default")
ROWS = np.arange(3)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    """The robot's own servos as networks, their joints in another order than the robot's."""
    folder = tmp_path_factory.mktemp("actuators")
    return {
        "double": servo_network(A1, folder / "double.onnx", joints=PERMUTED, double=True),
        "float": servo_network(A1, folder / "float.onnx", joints=PERMUTED),
        "late": servo_network(A1, folder / "late.onnx", joints=PERMUTED, double=True, late=3),
    }


def worlds(robot: RobotSpec = A1) -> MujocoEngine:
    """Three that differ: in where they start, how late they hear, and how strong they are."""
    engine = MujocoEngine(robot, 3, threads=1, delay_max_s=0.02)
    motors = len(robot.actuated)
    rng = np.random.default_rng(2)
    engine.servos.bend(ROWS, strength=rng.uniform(0.5, 1.2, (3, motors)))
    engine.servos.set_delay(ROWS, np.array([0.0, 0.007, 0.02]))
    start = InitialState.default(robot, 3)
    spread = rng.uniform(-0.1, 0.1, (3, motors))
    engine.reset(ROWS, replace(start, q=start.q + spread, dq=10.0 * spread))
    return engine


def targets(steps: int, *, wide: float = 0.3) -> np.ndarray:
    return DEFAULT + np.random.default_rng(3).uniform(-wide, wide, (steps, 3, len(DEFAULT)))


@pytest.mark.parametrize(("name", "exact"), [("double", 1e-9), ("float", 2e-4)])
def test_the_network_of_a_servo_moves_the_robot_as_the_servo_does(files, name, exact):
    ours, theirs = worlds(), worlds()
    motors = NetworkMotors(load_actuators(files[name], A1), ours)
    saturated = 0.0
    for wide in (0.3, 1.5):  # within the torque limit, and far beyond it
        for q_des in targets(15, wide=wide):
            motors.step(q_des)
            theirs.step(q_des)
            found, expected = ours.state(), theirs.state()
            for signal in ("q", "dq", "tau", "quat_wb", "gyro_b"):
                np.testing.assert_allclose(
                    getattr(found.robot, signal),
                    getattr(expected.robot, signal),
                    atol=exact,
                    err_msg=signal,
                )
            np.testing.assert_allclose(found.position_w, expected.position_w, atol=exact)
            limits = theirs.servos.strength * A1.actuated_array("tau_max")
            saturated += (np.abs(expected.robot.tau) > 0.999 * limits).mean()
    assert saturated > 1.0  # limits were reached, and held
    assert np.ptp(expected.robot.q, axis=0).min() > 1e-3  # the worlds differ


def test_a_late_drive_is_what_a_loop_over_worlds_joints_and_physics_steps_makes(files):
    ours, slow = worlds(), worlds()
    network = load_actuators(files["late"], A1)
    np.testing.assert_allclose(network.damping.newest, 0.0, atol=1e-9)
    np.testing.assert_allclose(network.damping.steady, A1.actuated_array("kd"), rtol=1e-9)
    motors = NetworkMotors(network, ours)
    state = slow.state().robot
    seen: list[Any] = [None] * 3
    heard: list[Any] = [None] * 3

    def begin(n: int) -> None:
        """Before the episode the robot stood at its targets with the velocity it begins with."""
        seen[n] = [deque([(0.0, v)] * 4, maxlen=4) for v in state.dq[n]]
        heard[n] = deque([state.q[n].copy()] * 5, maxlen=5)

    for n in ROWS:
        begin(n)
    late = [0, 2, 4]  # 0, 7 and 20 ms in physics steps of 5 ms
    zero = np.zeros((3, len(NAMES)))
    for number, q_des in enumerate(targets(8)):
        if number == 4:  # one world begins anew, in the middle of the others' episodes
            again = InitialState.default(A1, 1)
            again = replace(again, q=again.q + 0.05, dq=again.dq + 2.0)
            for engine in (ours, slow):
                engine.reset(np.array([1]), again)
            motors.reset(np.array([1]))
            state = slow.state().robot
            begin(1)
        motors.step(q_des)
        for _ in range(A1.substeps):
            state, torque = slow.state().robot, np.zeros((3, len(NAMES)))
            for n in ROWS:
                heard[n].append(q_des[n])
                for j, joint in enumerate(A1.actuated):
                    error = heard[n][-1 - late[n]][j] - state.q[n, j]
                    seen[n][j].append((error, state.dq[n, j]))
                    old_error, old_velocity = seen[n][j][0]
                    torque[n, j] = joint.kp * old_error - joint.kd * old_velocity
            stamp = np.zeros(3, dtype=np.int64)
            slow.apply(JointCommand(stamp, q_des, zero, torque, zero, zero), substeps=1)
        np.testing.assert_allclose(ours.state().robot.q, slow.state().robot.q, atol=1e-9)


def test_other_gains_such_as_those_of_a_safe_stop_are_the_engines_servos(files):
    ours, theirs = worlds(), worlds()
    motors = NetworkMotors(load_actuators(files["late"], A1), ours)
    damping = JointCommand.damping(np.zeros(3, dtype=np.int64), len(NAMES), damping_kd=5.0)
    for _ in range(3):
        motors.apply(damping)
        theirs.apply(damping)
    np.testing.assert_allclose(ours.state().robot.q, theirs.state().robot.q, atol=1e-12)


def task(file: Path | None, *overrides: str) -> Any:
    own = ["randomize.kp=null", "randomize.kd=null", "episode_s=0.2"]
    network = [] if file is None else [f"actuators.network={file}"]
    return load_env_config("a1_walk", [*own, *network, *overrides])


def run(env: VecEnv, steps: int, *, first: int = 0) -> np.ndarray:
    rng = [np.random.default_rng((first + k, 7)) for k in range(steps)]
    return np.array([env.step(r.uniform(-1.0, 1.0, (env.num_envs, 12))).obs["critic"] for r in rng])


@pytest.mark.slow
def test_an_env_with_it_is_the_env_with_servos_through_resets_draws_and_a_continuation(files):
    expected = run(make_env(task(None), num=4, threads=1, seed=5), 26)
    env = make_env(task(files["double"]), num=4, threads=1, seed=5)
    found = run(env, 14)
    assert env.counters["episodes"] >= 4  # history is of each row's own episode
    np.testing.assert_allclose(found, expected[:14], atol=1e-6)
    # Where the history matters, too: a fresh process goes on bit by bit.
    late = make_env(task(files["late"]), num=4, threads=1, seed=5)
    run(late, 13)
    other = make_env(task(files["late"]), num=4, threads=1, seed=9)
    other.load_state_dict(late.state_dict())
    np.testing.assert_array_equal(run(late, 12, first=13), run(other, 12, first=13))
    with pytest.raises(FerryError, match="no history of the learned actuator"):
        late.load_state_dict(make_env(task(None), num=4, threads=1).state_dict())


def test_no_world_depends_on_the_others(files):
    many = run(make_env(task(files["late"]), num=5, threads=1, seed=5), 12)
    few = make_env(task(files["late"]), num=3, threads=1, seed=5)
    for k in range(12):
        actions = np.random.default_rng((k, 7)).uniform(-1.0, 1.0, (5, 12))
        np.testing.assert_array_equal(few.step(actions[:3]).obs["critic"], many[k, :3])


def test_a_world_that_breaks_is_alone_and_breaks_again_in_the_same_physics_step(files, tmp_path):
    config = task(files["late"], "episode_s=5.0", "randomize_episode_phase=false")
    sound = run(make_env(config, num=3, threads=1, seed=5), 14)
    env = make_env(config, num=3, threads=1, seed=5, diverged=tmp_path / "diverged" / "actor-0")
    before = run(env, 10)
    engine: Any = env.engine
    engine.batch.bind("qvel")[1] = 1e12
    after = run(env, 4, first=10)
    assert env.counters["diverged"] == 1 and np.isfinite(after).all()
    np.testing.assert_array_equal(np.concatenate([before, after])[:, [0, 2]], sound[:, [0, 2]])
    (file,) = (tmp_path / "diverged").glob("actor-0*.npz")
    again = replay(file)
    record, each = again.record, A1.substeps
    # The last eight control steps, of which the last breaks in its first physics step already.
    assert (record.substeps, len(record.states)) == (1, 8 * each)
    assert again.diverged_at == 7 * each
    # By this test; up to there each leads to the next, bit by bit.
    assert again.moved == (7 * each,)
    assert again.same
    assert np.isfinite(record.states[: 7 * each + 1]).all()
    assert not any(name.startswith("model/") for name in again.broken)
    # What the network said in the end was no number any more: with that alone it begins broken.
    assert replay(replace(record, changing={})).diverged_at == 0


def test_a_drive_that_says_no_number_is_found_in_the_step_in_which_it_did(tmp_path):
    """Torque -20 sqrt(3 - v): no number above 3 rad/s, which the robot reaches by itself."""
    from onnx import TensorProto, helper, numpy_helper

    def number(name: str, value: float | list[int]) -> Any:
        kind = np.int64 if isinstance(value, list) else np.float64
        return numpy_helper.from_array(np.array(value, dtype=kind), name)

    nodes = [
        helper.make_node("Sub", ["most", "velocity"], ["left"]),
        helper.make_node("Sqrt", ["left"], ["root"]),
        helper.make_node("Mul", ["root", "gain"], ["torques"]),
        helper.make_node("Mul", ["error", "nothing"], ["no_error"]),
        helper.make_node("Add", ["torques", "no_error"], ["sum"]),
        helper.make_node("Squeeze", ["sum", "axis"], ["torque"]),
    ]
    kind, shape = TensorProto.DOUBLE, ["N", 1, 12]
    ports = [helper.make_tensor_value_info(n, kind, shape) for n in ("error", "velocity")]
    out = [helper.make_tensor_value_info("torque", kind, ["N", 12])]
    constants = [number("most", 3.0), number("gain", -20.0), number("nothing", 0.0)]
    graph = helper.make_graph(nodes, "root", ports, out, [*constants, number("axis", [1])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    wide = np.tile([-1.0, 1.0], (12, 1))
    card = robot_card(A1, history=1, error_range=wide, velocity_range=wide, source="a test")
    config = task(with_card(model, card, tmp_path / "root.onnx"), "episode_s=5.0")
    env = make_env(config, num=2, threads=1, seed=5, diverged=tmp_path / "diverged" / "actor-0")
    for _ in range(20):
        env.step(np.zeros((2, 12)))
        if env.counters["diverged"]:
            break
    again = replay(next((tmp_path / "diverged").glob("actor-0*.npz")))
    assert again.diverged_at is not None and again.same
    # Nothing was broken before: the drive is what broke it.
    states, biases = again.record.states, again.record.changing["actuator_biasprm"]
    assert np.isfinite(states[: again.diverged_at + 1]).all()
    sound = np.isfinite(biases).all(axis=(1, 2))
    assert sound[: again.diverged_at].all() and not sound[again.diverged_at]


def test_the_share_of_samples_outside_what_was_fitted_is_counted_by_episode(files, tmp_path):
    card = load_actuators(files["double"], A1).card
    # Of the twelve joints three are too far from their targets, and one of them too fast as well.
    narrow = [(-0.05, 0.05) if k < 3 else (-9.0, 9.0) for k in range(12)]
    slow = [(-1e-9, 1e-9) if k in (2, 5) else (-1e9, 1e9) for k in range(12)]
    model = linear_model(np.zeros((1, 12)), np.zeros((1, 12)))
    cut = card.model_copy(
        update={
            "error_range": tuple(narrow[NAMES.index(name)] for name in PERMUTED),
            "velocity_range": tuple(slow[NAMES.index(name)] for name in PERMUTED),
        }
    )
    network = load_actuators(with_card(model, cut, tmp_path / "narrow.onnx"), A1)
    mask = network.outside(np.full((2, 12), 0.1), np.zeros((2, 12)))
    assert (mask == ([True] * 3 + [False] * 9)).all()
    engine = MujocoEngine(A1, 3, threads=1)
    motors = NetworkMotors(network, engine)
    engine.batch.bind("qvel")[1, engine.built.joint_dof_adr[5]] = 1.0
    q = engine.state().robot.q
    motors._substeps = 1  # one sample, which can be counted by hand
    motors.step(q + np.array([[0.1], [0.0], [0.0]]))
    np.testing.assert_allclose(motors.episode(ROWS)["out_of_range"], [3 / 12, 1 / 12, 0.0])
    motors.reset(np.array([0]))
    np.testing.assert_allclose(motors.episode(ROWS)["out_of_range"], [0.0, 1 / 12, 0.0])
    # The run's metrics have it.
    env = make_env(task(tmp_path / "narrow.onnx", "episode_s=0.04"), num=3, threads=1)
    run(env, 1)
    ended = env.step(np.zeros((3, 12)))
    assert (ended.episode["out_of_range"] > 0.0).all()


def test_a_network_of_something_else_is_refused_by_name(files, tmp_path):
    other = replace(
        A1,
        name="b1",
        physics_dt_s=0.004,
        joints=tuple(
            replace(joint, kp=joint.kp + 5.0) if joint.name == NAMES[4] else joint
            for joint in A1.joints
            if joint.name != NAMES[0]
        ),
    )
    with pytest.raises(FerryError) as error:
        load_actuators(files["double"], other)
    for part in (
        "robot: fitted for 'a1', this is 'b1'",
        f"joint {NAMES[0]!r}: the robot has no such motor",
        f"joint {NAMES[4]!r}: fitted with kp",
        "rate: fitted for samples every 0.005 s, physics_dt_s is 0.004 s",
    ):
        assert part in str(error.value)
    with pytest.raises(FerryError, match=r"cannot read nowhere\.onnx"):
        load_actuators("nowhere.onnx", A1)
    with pytest.raises(FerryError, match=r"ONNX Runtime cannot load it"):
        load_actuators(__file__, A1)


def test_a_network_in_the_runtimes_own_format_is_refused(files, tmp_path):
    import onnxruntime

    own = tmp_path / "own.onnx"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(own)
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(files["double"], options)
    session = onnxruntime.InferenceSession(own.read_bytes())
    assert session.get_outputs()[0].name == "torque"  # it would do
    with pytest.raises(FerryError, match=r"own\.onnx: ONNX Runtime cannot load it"):
        load_actuators(own, A1)


def test_a_model_that_does_not_do_what_its_card_says_is_refused(files, tmp_path):
    import onnx

    card = load_actuators(files["double"], A1).card

    def written(change: Any, **changes: Any) -> Path:
        model = linear_model(np.ones((1, 12)), np.ones((1, 12)))
        change(model)
        return with_card(model, card.model_copy(update=changes), tmp_path / "wrong.onnx")

    def for_one_world(model: Any) -> None:
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = 1

    with pytest.raises(FerryError, match=r"does not run on inputs \[3, 1, 12\]"):
        load_actuators(written(for_one_world), A1)
    with pytest.raises(FerryError, match=r"does not run on inputs \[1, 2, 12\]"):
        load_actuators(written(lambda model: None, history=2), A1)
    with pytest.raises(FerryError, match=r"kp 2; expected as many of each"):
        load_actuators(written(lambda model: None, kp=(1.0, 2.0)), A1)
    bare = linear_model(np.ones((1, 12)), np.ones((1, 12)))
    onnx.save(bare, tmp_path / "bare.onnx")
    with pytest.raises(FerryError, match=r"no 'ferry\.actuator' in its metadata"):
        load_actuators(tmp_path / "bare.onnx", A1)


def test_gains_of_servos_that_are_not_there_cannot_be_randomised(files):
    with pytest.raises(ConfigError, match=r"randomize\.kp changes servos.*learned actuator"):
        load_env_config("a1_walk", [f"actuators.network={files['float']}"])
    assert task(files["float"]).nominal().actuators is not None  # it is the motor, not an error


def test_a_fit_finds_the_lateness_and_damping_of_a_drive_and_how_well_it_knows_it(tmp_path):
    """A drive with gains of its own per joint, which answers what was two samples ago."""
    rng = np.random.default_rng(4)
    steps, kp, kd = 3000, np.linspace(20.0, 40.0, 12), np.linspace(0.5, 2.0, 12)
    q, q_des = np.cumsum(rng.normal(0.0, 0.02, (2, steps, 12)), axis=1)
    dq = rng.normal(0.0, 3.0, (steps, 12))
    tau = np.zeros((steps, 12))
    tau[2:] = kp * (q_des - q)[:-2] - kd * dq[:-2]
    noisy = tau + rng.normal(0.0, 0.1, tau.shape)
    cut = [slice(0, 700), slice(700, 701), slice(701, steps)]  # a log with a hole
    pieces = [Samples(q_des[c], q[c], dq[c], noisy[c]) for c in cut]
    fit = fit_linear(pieces, history=4)
    assert (fit.explained > 0.99).all()
    network = load_actuators(fit.write(A1, tmp_path / "fit.onnx", source="a test"), A1)
    np.testing.assert_allclose(network.damping.steady, kd, atol=0.02)
    np.testing.assert_allclose(network.damping.newest, 0.0, atol=0.02)
    once = np.zeros((2, 1, 4, 12))
    once[0, 0, 1] = 1.0  # an error of two samples ago
    np.testing.assert_allclose(network.torque(*once)[0], kp, atol=0.5)
    np.testing.assert_array_equal(network.card.velocity_range[3], (dq[:, 3].min(), dq[:, 3].max()))
    still = dq.copy()
    still[:, 5] = 0.0
    with pytest.raises(FerryError, match=r"joints \[5\] never moved"):
        fit_linear([Samples(q_des, q, still, tau)], history=4)
    with pytest.raises(FerryError, match=r"59 samples for a history of 4; expected 80"):
        fit_linear([Samples(q_des[:62], q[:62], dq[:62], tau[:62])], history=4)


def test_in_pybullet_it_is_the_servo_too_where_both_look_equally_often(tmp_path):
    """PyBullet's servos look every millisecond; slower ones differ by what happens in between."""
    need("pybullet")
    from sim.pybullet_engine import PyBulletEngine

    robot = replace(load_robot("cartpole"), physics_dt_s=0.001, control_dt_s=0.01)
    file = servo_network(robot, tmp_path / "servo.onnx", double=True)
    engines = [PyBulletEngine(robot, 3, delay_max_s=0.02) for _ in range(2)]
    start = InitialState.default(robot, 3)
    start = replace(start, q=start.q + np.array([[0.1, 0.2], [0.0, -0.1], [-0.2, 0.0]]))
    for engine in engines:
        engine.set_parameter("delay_s", ROWS, np.array([[0.0], [0.0035], [0.02]]))
        engine.reset(ROWS, start)
    ours, theirs = NetworkMotors(load_actuators(file, robot), engines[0]), Servos(engines[1])
    for k in range(4):
        for motors in (ours, theirs):
            motors.step(np.array([[0.3], [-0.5], [0.1 * k]]))
        found, expected = (engine.state().robot for engine in engines)
        np.testing.assert_allclose(found.q, expected.q, atol=1e-12)
        np.testing.assert_allclose(found.tau, expected.tau, atol=1e-9)
    for engine in engines:
        engine.close()


def test_the_card_of_a_robot_names_its_joints_in_any_order():
    zeros = np.tile([-1.0, 1.0], (12, 1))
    card = robot_card(
        A1, history=1, error_range=zeros, velocity_range=zeros, source="a test", joints=PERMUTED
    )
    gains = {joint.name: (joint.kp, joint.kd) for joint in A1.actuated}
    assert [gains[name] for name in PERMUTED] == list(zip(card.kp, card.kd, strict=True))


def test_a_network_that_all_joints_share_is_what_numpy_makes_of_each(tmp_path):
    rng = np.random.default_rng(8)
    layers = [(rng.normal(size=shape), rng.normal(size=shape[1])) for shape in ((6, 5), (5, 1))]
    wide = np.tile([-9.0, 9.0], (12, 1))
    card = robot_card(
        A1, history=3, error_range=wide, velocity_range=wide, source="a test", joints=PERMUTED
    )
    file = with_card(shared_model(layers, joints=12), card, tmp_path / "shared.onnx")
    error, velocity = rng.normal(size=(2, 4, 3, 12))
    found = load_actuators(file, A1).torque(error, velocity)
    for n in range(4):
        for a in range(12):
            x = np.concatenate([error[n, :, a], velocity[n, :, a]])
            hidden = x @ layers[0][0] + layers[0][1]
            hidden = hidden / (1.0 + np.abs(hidden))
            assert found[n, a] == pytest.approx(
                float((hidden @ layers[1][0] + layers[1][1])[0]), abs=1e-5
            )
