"""What the robot's limits make of an action in training is what they make of it on the robot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy.safety import SafetyFilter, SafetySettings, Verdict
from real.action import ActionSpec
from real.config import config_path
from real.contract import PolicyContract
from real.errors import ConfigError, FerryError
from real.joint_limits import JointLimits, LimitSettings
from real.limits import limit_targets
from real.signals import JointCommand, RobotState
from real.spec import RobotSpec, load_robot
from sim.commands import command_limits
from sim.env import VecEnv, make_env
from sim.mujoco_engine import MujocoEngine
from sim.randomize import delay_max_s
from sim.targets import FilterConfig, Targets
from sim.task import EnvConfig, action_spec, load_env_config, observation_spec

N = 4
_FILES = config_path("a1_walk").parent.glob("*.yaml")
TASKS = sorted(path.stem for path in _FILES if path.stem != "gym")  # which has no robot
ROBOTS = sorted(path.stem for path in (config_path("a1_walk").parent / "robots").glob("*.yaml"))
#: The filter's answers to faults are not limits; here a robot may lie over, jump and be anywhere.
NO_FAULTS: dict[str, Any] = {
    "tilt_rad": None,
    "outside": None,
    "jump_factor": None,
    "implausible": 1e9,
}


def permuted(robot: RobotSpec, seed: int = 3) -> RobotSpec:
    """The robot with its joints in another order, and gains and ranges that tell them apart."""
    order = np.random.default_rng(seed).permutation(len(robot.joints))
    joints = [robot.joints[i] for i in order]
    return replace(
        robot,
        joints=tuple(
            replace(j, kp=j.kp * (1.0 + 0.1 * i), kd=j.kd * (1.0 + 0.05 * i))
            for i, j in enumerate(joints)
        ),
    )


def contract_of(config: EnvConfig, robot: RobotSpec) -> PolicyContract:
    return PolicyContract.of_robot(
        robot,
        observation=observation_spec(config, robot),
        action=action_spec(config, robot),
        command=command_limits(config.command),
    )


def env_of(task: str, *overrides: str, num: int = N) -> VecEnv:
    config = load_env_config(task, ["filter.enabled=true", "episode_s=0.4", *overrides])
    robot = permuted(load_robot(config.robot))
    engine = MujocoEngine(robot, num, threads=1, delay_max_s=delay_max_s(config.randomize))
    return VecEnv(config, robot, engine=engine, seed=5)


def wished(spec: ActionSpec, action: np.ndarray, robot: RobotSpec, seen: RobotState) -> np.ndarray:
    """The targets that actions ask for; a delta counts from what the policy saw."""
    counts_from_q = spec.kind == "joint_position_delta"
    origin = seen.q[:, robot.actuated_ids] if counts_from_q else np.zeros(action.shape)
    return origin + np.array(spec.offset) + np.array(spec.scale) * action


def sent_by(robot: SafetyFilter, now_ns: int, state: RobotState, wish: np.ndarray) -> Any:
    """What the robot's filter lets through of targets that answer ``state``."""
    stamps = np.full(N, now_ns, dtype=np.int64)
    command = JointCommand.position(stamps, wish, kp=np.ones(wish.shape[1]), kd=np.ones(1))
    return robot.filter(now_ns, replace(state, stamp_ns=stamps), command)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_the_env_sends_what_the_safety_filter_would_have_let_through(task: str) -> None:
    env = env_of(task, "filter.limits.margin=0.03")
    env_settings = env.config.filter.limits
    contract = contract_of(env.config, env.robot)
    safety = SafetyFilter(contract, N, settings=SafetySettings(limits=env_settings, **NO_FAULTS))
    spec, rng = env.action_spec, np.random.default_rng(1)
    period = round(env.robot.control_dt_s * 1e9)
    verdicts, begun = set(), 0
    for step in range(60):
        # From gentle to wild, so that targets pass and are clamped.
        action = rng.normal(size=(N, env.action_dim)) * 0.03 * 1.2**step
        wish = wished(
            env.action_spec, np.clip(action, -spec.clip, spec.clip), env.robot, env.sensed
        )
        there = sent_by(safety, (step + 1) * period, env.sensed, wish)
        result = env.step(action)
        np.testing.assert_allclose(env.targets.sent, there.command.q_des, rtol=0.0, atol=1e-12)
        moved = np.stack(list(result.clamped.values()), axis=1)
        assert list(result.clamped) == list(spec.joints)
        assert (moved.any(axis=1) == (there.verdict == Verdict.CLAMPED)).all()
        verdicts |= set(there.verdict.tolist())
        begun += result.final_ids.size
        safety.reset(result.final_ids, now_ns=(step + 1) * period)
    assert verdicts == {Verdict.PASS, Verdict.CLAMPED}
    assert begun >= N
    env.close()


@pytest.mark.parametrize("name", ROBOTS)
def test_any_state_of_any_robot_gives_the_same_target_here_and_there(name: str) -> None:
    robot = permuted(load_robot(name))
    task = next(t for t in map(load_env_config, TASKS) if t.robot == name)
    spec, contract = action_spec(task, robot), contract_of(task, robot)
    settings = LimitSettings(target_rate=3.0, stop_s=0.1)
    targets = Targets(spec, robot, N, config=FilterConfig(enabled=True, limits=settings))
    safety = SafetyFilter(contract, N, settings=SafetySettings(limits=settings, **NO_FAULTS))
    rng = np.random.default_rng(2)
    span = np.array([max(1.0, min(j.dq_max, 20.0)) for j in robot.joints])
    for step in range(40):
        if step == 17:
            rows = np.array([2, 0])
            targets.reset(rows)
            safety.reset(rows)
        state = replace(
            RobotState.zeros(N, len(robot.joints)),
            q=robot.q_default + rng.normal(size=(N, len(robot.joints))),
            dq=span * rng.normal(size=(N, len(robot.joints))),
        )
        action = targets.clip(rng.normal(size=(N, spec.dim)) * 3.0)
        wish = wished(spec, action, robot, state)
        now = round((step + 1) * robot.control_dt_s * 1e9)
        there = sent_by(safety, now, state, wish)
        np.testing.assert_allclose(
            targets.decode(action, state), there.command.q_des, rtol=0.0, atol=1e-12
        )


def test_the_first_target_of_an_episode_starts_from_the_measured_pose_by_hand() -> None:
    robot = load_robot("a1")
    spec = action_spec(load_env_config("a1_walk"), robot)
    rate = FilterConfig(enabled=True, limits=LimitSettings(target_rate=0.5))
    targets = Targets(spec, robot, 3, config=rate)
    state = replace(RobotState.zeros(3, 12), q=np.tile(robot.q_default, (3, 1)))
    state.q[1, 0] = 0.1
    action = np.zeros((3, 12))
    action[:, 0] = 1.0  # a quarter radian; 0.5 rad/s allow 0.01 in 0.02 s
    targets.decode(action, state)
    np.testing.assert_allclose(targets.sent[:, 0], [0.01, 0.11, 0.01])
    targets.reset(np.array([1]))
    targets.decode(action, state)
    np.testing.assert_allclose(targets.sent[:, 0], [0.02, 0.11, 0.02])
    assert targets.clamped[:, 0].all() and not targets.clamped[:, 1:].any()


def test_the_policy_goes_on_seeing_its_own_action() -> None:
    env = env_of("a1_walk", "sensors=null")
    where = env.observation_spec.slices()["prev_action"]
    action = np.full((N, 12), 4.0)
    result = env.step(action)
    assert np.mean(list(result.clamped.values())) > 0.9
    np.testing.assert_array_equal(result.obs["policy"][:, where], 4.0)
    env.close()


def test_without_a_filter_every_target_passes_and_nothing_is_remembered() -> None:
    env = make_env(load_env_config("a1_walk"), num=3, threads=1)
    action = np.full((3, 12), 9.0)
    result = env.step(action)
    assert result.clamped == {}
    sent = env.robot.q_default + 0.25 * 5.0
    np.testing.assert_array_equal(env.targets.sent, np.tile(sent, (3, 1)))
    assert not [key for key in env.state_dict() if key.startswith("targets.")]
    env.close()


def test_a_filtered_env_continues_bit_by_bit() -> None:
    first, second = env_of("a1_walk"), env_of("a1_walk")
    rng = np.random.default_rng(0)
    for _ in range(13):
        first.step(rng.normal(size=(N, 12)))
    second.load_state_dict(first.state_dict())
    for _ in range(25):
        action = rng.normal(size=(N, 12))
        one, two = first.step(action), second.step(action)
        np.testing.assert_array_equal(first.targets.sent, second.targets.sent)
        np.testing.assert_array_equal(one.obs["critic"], two.obs["critic"])
        np.testing.assert_array_equal(one.reward, two.reward)
    first.close()
    second.close()


def test_the_state_of_an_unfiltered_env_is_refused() -> None:
    env = env_of("a1_walk")
    state = {k: v for k, v in env.state_dict().items() if not k.startswith("targets.")}
    with pytest.raises(FerryError, match="filter: off"):
        env.load_state_dict(state)
    env.close()


def test_a_clamped_joint_costs_its_share() -> None:
    env = env_of("a1_walk", "rewards.clamped={weight: -3.0}", "sensors=null")
    result = env.step(np.full((N, 12), 4.0))
    share = np.mean(list(result.clamped.values()), axis=0)
    assert (share > 0.0).all()
    np.testing.assert_allclose(result.reward_parts["clamped"], -3.0 * 0.02 * share, rtol=1e-6)
    env.close()


def test_the_slow_reference_limits_one_joint_of_one_world_at_a_time() -> None:
    robot = permuted(load_robot("a1"))
    spec = action_spec(load_env_config("a1_walk"), robot)
    targets = Targets(spec, robot, 3, config=FilterConfig(enabled=True))
    rng = np.random.default_rng(4)
    state = replace(
        RobotState.zeros(3, 12),
        q=robot.q_default + 0.3 * rng.normal(size=(3, 12)),
        dq=5.0 * rng.normal(size=(3, 12)),
    )
    action = rng.normal(size=(3, 12)) * 2.0
    found = targets.decode(action, state)
    for world in range(3):
        for joint, spec_of in enumerate(robot.joints):
            at = np.s_[world : world + 1, joint : joint + 1]
            limits = JointLimits.from_joints([spec_of])
            wish = spec_of.q_default + spec_of.action_scale * action[at]
            alone = limit_targets(
                limits,
                wish,
                q=state.q[at],
                dq=state.dq[at],
                previous=state.q[at],
                dt_s=0.02,
                velocity=np.zeros((1, 1)),
            )
            assert found[at] == alone.target


def write(tmp_path: Path, line: str) -> Path:
    text = config_path("a1_walk").read_text(encoding="utf-8")
    file = tmp_path / "task.yaml"
    lines = [line if old.startswith("filter:") else old for old in text.splitlines()]
    assert line in lines
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("line", "enabled"),
    [
        ("filter: on", True),
        ("filter: true", True),
        ("filter: off", False),
        ("filter: {enabled: true, limits: {margin: 0.1}}", True),
        ("filter: {limits: {margin: 0.1}}", False),
    ],
)
def test_the_filter_is_switched_by_a_word_or_a_section(
    tmp_path: Path, line: str, enabled: bool
) -> None:
    assert load_env_config(write(tmp_path, line)).filter.enabled is enabled
    assert not load_env_config("a1_walk").filter.enabled


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("filter: onn", r"task\.yaml:\d+.*filter is 'onn'; expected on, off, or a mapping"),
        ("filter: 1", r"filter is 1; expected on, off"),
        ("filter: {enable: true}", r"did you mean 'enabled'"),
        ("filter: {enabled: true, limits: {margn: 0.1}}", r"did you mean 'margin'"),
    ],
)
def test_a_wrong_filter_is_refused_at_its_line(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_env_config(write(tmp_path, line))


def test_a_cost_of_clamping_needs_the_filter() -> None:
    with pytest.raises(ConfigError, match=r"rewards\.clamped.*add `filter: on`"):
        load_env_config("a1_walk", ["rewards.clamped={weight: -1.0}"])


def test_an_unknown_joint_among_the_disabled_limits_is_refused() -> None:
    with pytest.raises(FerryError, match=r"no joint 'FR_hip'.*FR_hip_joint"):
        env_of("a1_walk", "filter.limits.disabled={torque: [FR_hip]}")
