"""A network learns what a linear filter cannot, and the command line makes and shows its file."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

import ferry
from real.spec import load_robot
from sim.actuator_export import fit_linear, servo_network
from sim.actuator_file import load_actuators
from sim.actuator_samples import Samples
from sim.mujoco_engine import MujocoEngine
from sim.task import load_env_config
from tests.real.test_log import T0, joint_state, write
from tests.training.growing_run import growing_config, run_env
from training.actor import ActorWorker
from training.actuator_fit import fit_network
from training.learner import Learner
from training.loop import SerialRuntime
from training.suites import SUITES, episode_seeds
from training.trial import Worlds

A1 = load_robot("a1")
NAMES = [joint.name for joint in A1.actuated]


def saturating(steps: int) -> Samples:
    """Drives of A1's gains that give 8 N m at most, one sample late."""
    rng = np.random.default_rng(0)
    error = rng.normal(0.0, 0.3, (steps, 12))
    dq = rng.normal(0.0, 2.0, (steps, 12))
    tau = np.zeros((steps, 12))
    tau[1:] = np.clip(40.0 * error - dq, -8.0, 8.0)[:-1]
    return Samples(error, np.zeros((steps, 12)), dq, tau)


@pytest.mark.slow
def test_a_network_explains_a_torque_limit_that_a_linear_filter_does_not(tmp_path):
    samples = [saturating(600)]
    straight = fit_linear(samples, history=2)
    network = fit_network(samples, history=2, passes=30)
    assert straight.explained.max() < 0.95 < network.explained.min()
    file = network.write(A1, tmp_path / "a.onnx", source="a test")
    twice = [fit_network(samples, history=2, passes=2).model.SerializeToString() for _ in range(2)]
    assert twice[0] == twice[1]
    # What the file says is what was measured on the samples that were kept.
    found, piece = load_actuators(file, A1), samples[0]
    error = np.stack([piece.q_des[:-1], piece.q_des[1:]], axis=1)[-110:]
    velocity = np.stack([piece.dq[:-1], piece.dq[1:]], axis=1)[-110:]
    missed = piece.tau[-110:] - found.torque(error, velocity)
    explained = 1.0 - missed.var(axis=0) / piece.tau[-110:].var(axis=0)
    np.testing.assert_allclose(explained, network.explained, atol=0.01)


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """Ten seconds of a simulated A1 that hangs in the air and follows targets, as a log."""
    from sim.engine import InitialState

    engine = MujocoEngine(A1, 1, threads=1)
    start = InitialState.default(A1, 1)
    start.position_w[:, 2] = 50.0
    engine.reset(np.arange(1), start)
    engine.gravity()[:] = 0.0
    rng, rows = np.random.default_rng(0), []
    for step in range(100):
        q_des = A1.actuated_array("q_default") + rng.uniform(-0.3, 0.3, (1, 12))
        for sub in range(A1.substeps):
            at = T0 + round((step * A1.substeps + sub) * A1.physics_dt_s * 1e9)
            state = engine.state().robot
            # What the drive gives now, as its sensor would measure it.
            q, dq = state.q[0, A1.actuated_ids], state.dq[0, A1.actuated_ids]
            if sub == 0:
                rows.append(("/joint_command", at, joint_state(at, NAMES, q_des[0])))
            kp, kd = A1.actuated_array("kp"), A1.actuated_array("kd")
            tau = kp * (q_des[0] - q) - kd * dq
            rows.append(
                ("/joint_states", at, joint_state(at, NAMES[::-1], q[::-1], dq[::-1], tau[::-1]))
            )
            engine.step(q_des, substeps=1)
    path = tmp_path_factory.mktemp("log") / "a1.mcap"
    kind = "sensor_msgs/msg/JointState"
    return write(path, rows, {"/joint_states": kind, "/joint_command": kind})


def test_from_a_log_to_a_file_that_drives_the_robot_in_an_evaluation(logged, tmp_path):
    file = tmp_path / "motors.onnx"
    options = ["--out", str(file), "--linear", "--history", "1"]
    result = CliRunner().invoke(ferry.app, ["robot", "fit", "a1", str(logged), *options])
    assert result.exit_code == 0, result.output
    network = load_actuators(file, A1)
    np.testing.assert_allclose(network.damping.newest, A1.actuated_array("kd"), rtol=0.02)
    shown = CliRunner().invoke(ferry.app, ["robot", "actuator", str(file), "a1"])
    assert shown.exit_code == 0 and "a1.mcap" in shown.output and NAMES[3] in shown.output
    refused = CliRunner().invoke(ferry.app, ["robot", "actuator", str(file), "laikago"])
    assert refused.exit_code == 2
    assert "fitted for 'a1', this is 'laikago'" in refused.output
    # Suites of a run with it have it, too: the robot stands as on its servos.
    task = [f"actuators.network={file}", "randomize={}"]
    seeds = episode_seeds(0, 3, purpose="report")
    height = []
    for config in (load_env_config("a1_walk", task), None):
        worlds = Worlds(SUITES["nominal"], A1, config=config, seeds=seeds)
        state = worlds.start()
        for _ in range(25):
            q_des = np.tile(A1.actuated_array("q_default"), (3, 1))
            state, truth = worlds.step(_own(state.stamp_ns, q_des))
        height.append(truth.position_w[:, 2])
        worlds.close()
    np.testing.assert_allclose(height[0], height[1], atol=0.005)
    assert not np.array_equal(height[0], height[1])  # it is the network that drove


def _own(stamp, q_des):
    from real.signals import JointCommand

    kp, kd = A1.actuated_array("kp"), A1.actuated_array("kd")
    return JointCommand.position(stamp, q_des, kp=kp, kd=kd)


def test_a_run_with_a_late_drive_is_resumed_bit_by_bit_and_says_what_it_never_saw(tmp_path):
    """A cart-pole, whose second joint has no motor."""
    cart = load_robot("cartpole")
    file = servo_network(cart, tmp_path / "cart.onnx", late=2)
    without = ("randomize.kp=null", "randomize.kd=null", "episode_s=0.4")
    config = growing_config(f"actuators.network={file}", *without)
    training = config.training

    def run(steps: int, start: SerialRuntime | None = None) -> SerialRuntime:
        env = run_env(config, (0, 0))
        actor = ActorWorker(env, "a", network=training.network, seed=0)
        sizes = env.policy_dim, env.critic_dim
        learner = Learner(*sizes, action_dim=1, network=training.network, ppo=training.ppo, seed=0)
        runtime = SerialRuntime(actor, learner, horizon=training.horizon)
        if start is not None:
            runtime.restore(start.checkpoint())
        for _ in range(steps):
            metrics = runtime.iterate()
        assert 0.0 <= metrics["episode/out_of_range"] <= 1.0
        return runtime

    twice, once = run(2, run(2)).checkpoint(), run(4).checkpoint()
    assert once.actor["env.motors.error"].shape == (6, 3, 1)
    for name, value in once.actor.items():
        np.testing.assert_array_equal(twice.actor[name], value, err_msg=name)
    assert once.counters["policy_digest"] == twice.counters["policy_digest"]
