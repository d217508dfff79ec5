from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from real.errors import FerryError
from real.frames import from_rpy
from real.observation import (
    POSE_SOURCES,
    SOURCES,
    ObservationBuilder,
    ObservationInput,
    ObservationSpec,
    make_term,
)
from real.signals import RobotState
from real.spec import RobotSpec, load_robot

NUM = 3

#: What any robot can observe; the rest needs a commanded pose.
OWN = [name for name in SOURCES if name not in POSE_SOURCES]


@pytest.fixture(scope="module")
def robot() -> RobotSpec:
    return load_robot("a1")


def spec_of(robot: RobotSpec, *names: str, **options) -> ObservationSpec:
    return ObservationSpec(
        terms=tuple(make_term(n, robot, command_dim=3, **options) for n in names)
    )


def sample(seed: int = 0, num: int = NUM) -> tuple[RobotState, np.ndarray, np.ndarray]:
    """A state, command and previous action in which no two numbers are equal."""
    rng = np.random.default_rng(seed)
    state = RobotState(
        stamp_ns=np.arange(num, dtype=np.int64),
        q=rng.normal(size=(num, 12)),
        dq=rng.normal(size=(num, 12)),
        tau=rng.normal(size=(num, 12)),
        quat_wb=from_rpy(rng.uniform(-1.0, 1.0, (num, 3))),
        gyro_b=rng.normal(size=(num, 3)),
        acc_b=rng.normal(size=(num, 3)),
    )
    return state, rng.normal(size=(num, 3)), rng.normal(size=(num, 12))


def test_terms_stand_in_the_order_of_the_spec(robot: RobotSpec) -> None:
    spec = spec_of(robot, "joint_vel", "command", "base_ang_vel", "prev_action", "joint_pos")
    state, command, action = sample()
    obs = ObservationBuilder(spec, robot.q_default, NUM).build(state, command, action)
    expected = np.concatenate(
        [state.dq, command, state.gyro_b, action, state.q - robot.q_default], axis=1
    )
    assert obs.dtype == np.float32
    np.testing.assert_allclose(obs, expected, rtol=1e-6)


def test_slices_name_every_part_of_the_vector(robot: RobotSpec) -> None:
    spec = spec_of(robot, "command", "joint_pos", "projected_gravity", history=2)
    assert spec.slices() == {
        "command": slice(0, 6),
        "joint_pos": slice(6, 30),
        "projected_gravity": slice(30, 36),
    }
    assert spec.dim == 36


def test_projected_gravity_points_where_a_weight_would_hang(robot: RobotSpec) -> None:
    state, command, action = sample()
    # nose down 0.1, left side up 0.2, upside down; each with some heading
    tilted = dataclasses.replace(
        state, quat_wb=from_rpy([[0.0, 0.1, 0.7], [0.2, 0.0, -2.0], [np.pi, 0.0, 1.0]])
    )
    builder = ObservationBuilder(spec_of(robot, "projected_gravity"), robot.q_default, NUM)
    np.testing.assert_allclose(
        builder.build(tilted, command, action),
        [[np.sin(0.1), 0.0, -np.cos(0.1)], [0.0, -np.sin(0.2), -np.cos(0.2)], [0.0, 0.0, 1.0]],
        atol=1e-6,
    )


def test_scale_comes_before_clip(robot: RobotSpec) -> None:
    spec = spec_of(robot, "joint_vel", scale=0.5, clip=1.0)
    state, command, action = sample()
    state.dq[1, 3], state.dq[2, 7] = 1.5, -9.0
    obs = ObservationBuilder(spec, robot.q_default, NUM).build(state, command, action)
    assert obs[1, 3] == 0.75
    assert obs[2, 7] == -1.0
    np.testing.assert_allclose(obs, np.clip(0.5 * state.dq, -1.0, 1.0), rtol=1e-6)


def test_one_pass_over_the_vector_gives_what_term_by_term_gives_bit_by_bit(
    robot: RobotSpec,
) -> None:
    options = [(0.25, 5.0), (1.0, None), (2.0, 0.7), (1.0, 1.0), (0.05, 0.1), (1 / 3, None)]
    spec = ObservationSpec(
        terms=tuple(
            make_term(name, robot, command_dim=3, scale=scale, clip=clip)
            for name, (scale, clip) in zip(OWN, options, strict=True)
        )
    )
    builder = ObservationBuilder(spec, robot.q_default, NUM)
    for seed in range(20):
        state, command, action = sample(seed)
        state.dq[:, :4] = [np.nan, np.inf, -np.inf, -0.0]
        state.dq[:, 4:7] = [
            2.0 * (1.0 + 1e-9),
            -2.0 * (1.0 - 1e-9),
            1e-42,
        ]  # beside the bound of 0.1
        action[:, :3] = [1e300, -1e300, 5e-324]
        inputs = ObservationInput(state, command, action, robot.q_default)
        expected = np.empty((NUM, spec.dim), dtype=np.float32)
        with np.errstate(over="ignore"):
            for term in spec.terms:
                part = expected[:, spec.slices()[term.name]]
                value = SOURCES[term.source].read(inputs)
                np.multiply(value, term.scale, out=part, casting="unsafe")
                if term.clip is not None:
                    np.clip(part, -term.clip, term.clip, out=part)
            found = builder.build(state, command, action)
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_history_is_term_major_with_the_oldest_first(robot: RobotSpec) -> None:
    terms = spec_of(robot, "command", "base_ang_vel", history=3)
    builder = ObservationBuilder(terms, robot.q_default, NUM)
    samples = [sample(seed) for seed in range(5)]
    for state, command, action in samples:
        obs = builder.build(state, command, action)
    commands = [c for _, c, _ in samples[2:]]
    rates = [s.gyro_b for s, _, _ in samples[2:]]
    np.testing.assert_allclose(obs, np.concatenate([*commands, *rates], axis=1), rtol=1e-6)


def test_the_first_sample_after_a_reset_fills_the_history_of_its_rows_alone(
    robot: RobotSpec,
) -> None:
    builder = ObservationBuilder(spec_of(robot, "command", history=2), robot.q_default, NUM)
    (s0, c0, a0), (s1, c1, a1), (s2, c2, a2) = (sample(seed) for seed in range(3))
    np.testing.assert_allclose(builder.build(s0, c0, a0), np.hstack([c0, c0]), rtol=1e-6)
    np.testing.assert_allclose(builder.build(s1, c1, a1), np.hstack([c0, c1]), rtol=1e-6)
    builder.reset(np.array([1]))
    expected = np.hstack([c1, c2])
    expected[1] = np.hstack([c2[1], c2[1]])
    np.testing.assert_allclose(builder.build(s2, c2, a2), expected, rtol=1e-6)


def test_looking_without_commit_changes_nothing_that_follows(robot: RobotSpec) -> None:
    spec = spec_of(robot, "command", history=3)
    looked, plain = (ObservationBuilder(spec, robot.q_default, NUM) for _ in range(2))
    for seed in range(4):
        looked.build(*sample(100 + seed), commit=False)
        first = looked.build(*sample(seed), commit=False)
        np.testing.assert_array_equal(first, looked.build(*sample(seed)))
        np.testing.assert_array_equal(first, plain.build(*sample(seed)))


def test_state_carries_the_history_and_freshness(robot: RobotSpec) -> None:
    spec = spec_of(robot, "joint_pos", "command", history=3)
    first, second = (ObservationBuilder(spec, robot.q_default, NUM) for _ in range(2))
    for seed in range(4):
        first.build(*sample(seed))
    first.reset(np.array([2]))
    second.load_state_dict(first.state_dict())
    for seed in range(4, 8):
        np.testing.assert_array_equal(first.build(*sample(seed)), second.build(*sample(seed)))


def test_saved_state_does_not_follow_the_builder(robot: RobotSpec) -> None:
    builder = ObservationBuilder(spec_of(robot, "command", history=2), robot.q_default, NUM)
    builder.build(*sample(0))
    state = builder.state_dict()
    before = {k: v.copy() for k, v in state.items()}
    builder.reset()
    builder.build(*sample(1))
    for key, value in before.items():
        np.testing.assert_array_equal(state[key], value)


def test_rows_are_independent(robot: RobotSpec) -> None:
    spec = spec_of(robot, *OWN, history=2)
    order = np.array([2, 0, 1])
    together = ObservationBuilder(spec, robot.q_default, NUM)
    shuffled = ObservationBuilder(spec, robot.q_default, NUM)
    for seed in range(3):
        state, command, action = sample(seed)
        mixed = RobotState(**{k: v[order] for k, v in state.reported().items()})
        expected = together.build(state, command, action)[order]
        np.testing.assert_array_equal(
            expected, shuffled.build(mixed, command[order], action[order])
        )


def test_out_is_filled_in_place_also_when_it_is_part_of_a_wider_array(robot: RobotSpec) -> None:
    builder = ObservationBuilder(spec_of(robot, "command", "joint_pos"), robot.q_default, NUM)
    wide = np.full((NUM, 20), 7.0, dtype=np.float32)
    builder.build(*sample(1), out=wide[:, :15])
    np.testing.assert_array_equal(wide[:, :15], builder.build(*sample(1)))
    np.testing.assert_array_equal(wide[:, 15:], 7.0)


def test_a_new_array_is_returned_each_time(robot: RobotSpec) -> None:
    builder = ObservationBuilder(spec_of(robot, "command"), robot.q_default, NUM)
    first = builder.build(*sample(0))
    kept = first.copy()
    builder.build(*sample(1))
    np.testing.assert_array_equal(first, kept)


def test_sizes_follow_the_robot_and_the_command(robot: RobotSpec) -> None:
    joints = list(robot.joints)
    joints[0] = dataclasses.replace(joints[0], actuated=False)
    passive = dataclasses.replace(robot, joints=tuple(joints))
    assert make_term("joint_pos", passive, command_dim=3).dim == 12
    assert make_term("prev_action", passive, command_dim=3).dim == 11
    assert make_term("command", passive, command_dim=5, history=4).size == 20


def test_a_signal_of_the_wrong_size_is_refused_by_name(robot: RobotSpec) -> None:
    builder = ObservationBuilder(spec_of(robot, "command"), robot.q_default, NUM)
    state, command, action = sample()
    with pytest.raises(FerryError, match=r"'command': got shape \(3, 2\), expected \(3, 3\)"):
        builder.build(state, command[:, :2], action)


def test_unknown_terms_are_refused_with_the_nearest_name(robot: RobotSpec) -> None:
    with pytest.raises(FerryError, match=r"'joint_poss'.*did you mean 'joint_pos'"):
        make_term("joint_poss", robot, command_dim=3)
    foreign = dataclasses.replace(make_term("command", robot, command_dim=3), source="comand")
    with pytest.raises(FerryError, match=r"'comand'.*did you mean 'command'"):
        ObservationBuilder(ObservationSpec(terms=(foreign,)), robot.q_default, NUM)
    with pytest.raises(FerryError, match="history is 0"):
        make_term("command", robot, command_dim=3, history=0)


def test_every_source_has_a_unit_and_a_meaning(robot: RobotSpec) -> None:
    for name, source in SOURCES.items():
        assert source.unit, name
        assert source.doc, name
        assert make_term(name, robot, command_dim=3).dim == source.dim(robot, 3)
