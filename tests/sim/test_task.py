from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from real.action import ActionSpec
from real.config import config_dict, config_hash, config_path, load_config, parse_config
from real.errors import ConfigError
from real.frames import yaw
from real.robot_config import RobotConfig
from real.spec import load_robot
from sim.observe import PRIVILEGED
from sim.reward_terms import TERMS
from sim.streams import make_streams
from sim.task import (
    EnvConfig,
    StartConfig,
    action_spec,
    draw_start,
    load_env_config,
    observation_spec,
)

ROBOT = load_robot("a1")
START = StartConfig(joint_offset=0.1, joint_vel=0.5, yaw=3.0, lin_vel=0.3, ang_vel=0.2, lift=0.02)


def with_line(tmp_path: Path, old: str, new: str) -> Path:
    """The shipped task with one line changed."""
    text = config_path("a1_walk").read_text()
    assert old in text
    path = tmp_path / "task.yaml"
    path.write_text(text.replace(old, new, 1))
    return path


def line_of(path: Path, word: str) -> int:
    return next(i for i, line in enumerate(path.read_text().splitlines(), 1) if word in line)


# ------------------------------------------------------------------ the file


def test_the_issue_s_command_ranges_and_rates_are_in_the_file() -> None:
    config = load_env_config("a1_walk")
    assert config.command.vx == (-0.8, 1.2)
    assert config.command.vy == (-0.4, 0.4)
    assert config.command.wz == (-1.0, 1.0)
    assert config.command.standing_share > 0.0
    assert config.command.hold_s[1] < config.episode_s == 20.0
    assert (ROBOT.control_dt_s, ROBOT.physics_dt_s) == (0.02, 0.005)


@pytest.mark.parametrize("task", ["a1_walk", "cartpole_balance"])
def test_every_number_in_the_file_has_its_reason_beside_it(task: str) -> None:
    section = ""
    for line in config_path(task).read_text().splitlines():
        section = line.split(":")[0] if re.match(r"\w", line) else section
        if section in {"schema_version", "training"} or not re.search(r"[:,\[] *-?\d", line):
            continue
        assert "#" in line, line


@pytest.mark.parametrize(
    ("old", "new", "word", "message"),
    [
        ("foot_slip:", "foot_slp:", "foot_slp", "did you mean 'foot_slip'"),
        ("- base_height", "- base_hight", "base_hight", "did you mean 'base_height'"),
        ("joint_pos: {", "joint_poss: {", "joint_poss", "did you mean 'joint_pos'"),
        ("standing_share:", "standing-share:", "standing-share", "did you mean 'standing_share'"),
        ("vx: [-0.8, 1.2]", "vx: [1.2, -0.8]", "vx:", "is empty; expected low <= high"),
        ("lift: 0.02", "lift: high", "lift:", "high"),
        ("tilt_rad: 1.0", "tilt_rad: -1.0", "tilt_rad", "tilt_rad"),
        ("tilt_rad: 1.0", "tilt_rad: 57.3", "tilt_rad", "< 3.1416"),
        ("episode_s: 20.0", "episode_s: 1.0e+300", "episode_s", "<= 86400"),
        ("- base_height", "- base_height\n  - base_height", "critic:", "twice: base_height"),
        ("name: a1_walk", "name: ../a1_walk", "name:", "begins the name of run folders"),
        (
            "{sigma: 0.25}",
            "{sigma: 0.0}",
            "track_lin_vel:",
            "'track_lin_vel': sigma is 0, expected",
        ),
    ],
)
def test_a_mistake_is_reported_at_its_line(
    tmp_path: Path, old: str, new: str, word: str, message: str
) -> None:
    path = with_line(tmp_path, old, new)
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        load_env_config(path)
    assert f"{path}:{line_of(path, word)}:" in str(error.value)


@pytest.mark.parametrize(
    ("override", "at"),
    [
        ("randomize.friction='=U(1'", "randomize.friction = "),
        ("randomize.frction='=U(1, 2)'", "randomize.frction = "),
        ("randomize.push.value='=U(0, 0)'", "randomize.push.value = "),
        ("randomize.push.interval_s=[3, 2]", "randomize.push.interval_s = [3, 2]"),
        ("randomize.mass={value: '*U(0.8, 1.2)', per: joint}", "randomize.mass.per = "),
        ("rewards.track_lin_vel.params.sigma=-1", "rewards.track_lin_vel.params.sigma = -1"),
        ("rewards.torque.params={q: 3}", "rewards.torque.params.q = 3"),
        ("rewards.clamped={weight: -1}", "rewards.clamped = "),
    ],
)
def test_a_mistake_in_an_override_names_the_override_and_the_value(override: str, at: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_env_config("a1_walk", [override])
    assert str(error.value).startswith(f"--set {override.partition('=')[0]}: {at}")
    assert "a1_walk.yaml" not in str(error.value)


def test_a_wrong_term_is_reported_at_its_own_line_among_others(tmp_path: Path) -> None:
    path = with_line(tmp_path, 'kd: "*U(0.8, 1.2)"', 'kd: "*U(1.2, 0.8)"')
    with pytest.raises(ConfigError, match=r"the low end 1\.2 is above") as error:
        load_env_config(path)
    assert f"{path}:{line_of(path, 'kd:')}: randomize.kd = " in str(error.value)


def test_the_order_of_observation_terms_is_part_of_the_hash_and_that_of_rewards_is_not() -> None:
    config = load_env_config("a1_walk")
    turned = dict(reversed(config.observation.items()))
    assert config_hash(config.model_copy(update={"observation": turned})) != config_hash(config)
    same = {
        "rewards": dict(reversed(config.rewards.items())),
        "randomize": dict(reversed(config.randomize.items())),
    }
    assert config_hash(config.model_copy(update=same)) == config_hash(config)
    robot = load_config(RobotConfig, "a1", folder="robots")
    other = robot.model_copy(update={"joints": dict(reversed(robot.joints.items()))})
    assert config_hash(other) != config_hash(robot)


def test_a_wrong_parameter_of_a_term_names_those_it_has(tmp_path: Path) -> None:
    path = with_line(tmp_path, "target_m: 0.28", "taget_m: 0.28")
    with pytest.raises(ConfigError, match=r"'base_height' has no parameter 'taget_m'.*'target_m'"):
        load_env_config(path)


def test_overrides_reach_weights_and_parameters() -> None:
    config = load_env_config(
        "a1_walk", ["rewards.torque.weight=-3e-4", "rewards.track_lin_vel.params.sigma=0.1"]
    )
    assert config.rewards["torque"].weight == -3e-4
    assert config.rewards["track_lin_vel"].params["sigma"] == 0.1
    assert (
        config.rewards["track_lin_vel"].weight
        == load_env_config("a1_walk").rewards["track_lin_vel"].weight
    )


def test_a_task_survives_the_way_through_a_run_folder() -> None:
    config = load_env_config("a1_walk")
    assert parse_config(EnvConfig, config_dict(config), source="run") == config


def test_nominal_drops_randomness_and_nothing_else() -> None:
    config = load_env_config("a1_walk")
    nominal = config.nominal()
    assert not nominal.randomize
    assert nominal.sensors is None
    assert not nominal.randomize_episode_phase
    changed = {
        name for name in EnvConfig.model_fields if getattr(config, name) != getattr(nominal, name)
    }
    assert changed <= {"randomize", "sensors", "randomize_episode_phase"}


def test_vocabularies_are_documented() -> None:
    assert all(term.__doc__ for term in TERMS.values())
    assert all(term.doc for term in PRIVILEGED.values())


# ------------------------------------------------------------------ what it becomes


def test_observation_follows_the_order_and_options_of_the_file() -> None:
    config = load_env_config("a1_walk", ["observation.joint_vel.history=2"])
    spec = observation_spec(config, ROBOT)
    assert [t.name for t in spec.terms] == list(config.observation)
    by_name = {t.name: t for t in spec.terms}
    assert by_name["joint_vel"].scale == 0.05
    assert by_name["joint_vel"].size == 24
    assert by_name["projected_gravity"].clip == config.observation["projected_gravity"].clip


def test_action_takes_scale_and_offset_from_the_robot() -> None:
    config = load_env_config("a1_walk")
    spec = action_spec(config, ROBOT)
    assert spec == ActionSpec.from_robot(ROBOT, clip=config.action.clip)
    assert spec.joints == ROBOT.joint_names


# ------------------------------------------------------------------ where episodes start


def test_starts_spread_over_their_ranges_and_no_further() -> None:
    start = draw_start(START, ROBOT, make_streams(1, 400)["start"])
    for values, spread in (
        (start.q - ROBOT.q_default, 0.1),
        (start.dq, 0.5),
        (yaw(start.quat_wb)[:, None], 3.0),
        (start.lin_vel_b, 0.3),
        (start.ang_vel_b, 0.2),
    ):
        assert np.abs(values).max() <= spread + 1e-12
        np.testing.assert_array_less(values.min(axis=0), -0.9 * spread)
        np.testing.assert_array_less(0.9 * spread, values.max(axis=0))
    np.testing.assert_allclose(start.position_w[:, 2], ROBOT.base_height_m + 0.02)
    np.testing.assert_allclose(np.linalg.norm(start.quat_wb, axis=1), 1.0)
    assert not start.quat_wb[:, 1:3].any()  # upright


def test_starts_stay_within_the_joint_limits() -> None:
    wide = START.model_copy(update={"joint_offset": 5.0})
    q = draw_start(wide, ROBOT, make_streams(1, 50)["start"]).q
    low, high = ROBOT.actuated_array("q_min"), ROBOT.actuated_array("q_max")
    assert (q >= low).all()
    assert (q <= high).all()
    assert (q == low).any(axis=0).all()
    assert (q == high).any(axis=0).all()


def test_a_joint_without_limits_starts_anywhere() -> None:
    free = tuple(
        dataclasses.replace(j, q_min=float("nan"), q_max=float("nan")) for j in ROBOT.joints
    )
    wide = START.model_copy(update={"joint_offset": 5.0})
    q = draw_start(wide, dataclasses.replace(ROBOT, joints=free), make_streams(1, 50)["start"]).q
    assert np.abs(q).max() > 4.0


def test_no_spread_is_the_default_pose_at_rest() -> None:
    start = draw_start(StartConfig(), ROBOT, make_streams(1, 3)["start"])
    np.testing.assert_array_equal(start.q, np.tile(ROBOT.q_default, (3, 1)))
    assert not start.dq.any()
    assert not start.lin_vel_b.any()
    np.testing.assert_array_equal(start.quat_wb, np.tile([1.0, 0.0, 0.0, 0.0], (3, 1)))


def test_a_world_s_start_depends_on_its_own_generator_alone() -> None:
    all_three = draw_start(START, ROBOT, make_streams(1, 3)["start"])
    last = draw_start(START, ROBOT, make_streams(1, 3)["start"][2:])
    np.testing.assert_array_equal(all_three.q[2:], last.q)
    np.testing.assert_array_equal(all_three.ang_vel_b[2:], last.ang_vel_b)


# ------------------------------------------------------------------ a task without a command


def test_what_follows_a_command_is_refused_where_there_is_none(tmp_path: Path) -> None:
    text = config_path("a1_walk").read_text()
    section = text[text.index("command:\n") : text.index("soft_limit:")]
    path = tmp_path / "task.yaml"
    path.write_text(text.replace(section, "command: null\n"))
    with pytest.raises(ConfigError, match="follow a velocity command, but the task has none") as e:
        load_env_config(path)
    lost = ("track_lin_vel", "track_ang_vel", "feet_air_time", "foot_clearance", "trot")
    assert all(f"rewards.{name}" in str(e.value) for name in lost)
    assert "observation.command" in str(e.value)
    assert "rewards.orientation" not in str(e.value)


def test_the_command_of_a_task_is_said_to_be_absent_and_never_just_left_out(tmp_path: Path) -> None:
    text = config_path("cartpole_balance").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("command:")]
    path = tmp_path / "task.yaml"
    path.write_text(text.replace(line, ""))
    with pytest.raises(ConfigError, match="command"):
        load_env_config(path)
