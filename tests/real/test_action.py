from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from real.action import ActionDecoder, ActionSpec
from real.errors import FerryError
from real.spec import load_robot

SPEC = ActionSpec(
    kind="joint_position",
    joints=("hip", "knee", "ankle"),
    scale=(0.25, 0.5, 2.0),
    offset=(0.1, -1.6, 0.0),
    clip=3.0,
)


def test_targets_are_offset_plus_scale_times_action_joint_by_joint() -> None:
    decoder = ActionDecoder(SPEC)
    action = np.array([[1.0, 1.0, 1.0], [-2.0, 0.4, 0.0], [0.0, 0.0, -1.5]])
    np.testing.assert_allclose(
        decoder.decode(action), [[0.35, -1.1, 2.0], [-0.4, -1.4, 0.0], [0.1, -1.6, -3.0]]
    )


def test_encode_undoes_decode() -> None:
    decoder = ActionDecoder(SPEC)
    action = np.random.default_rng(1).normal(size=(7, 3))
    np.testing.assert_allclose(decoder.encode(decoder.decode(action)), action, atol=1e-14)


def test_clip_bounds_the_action_before_scaling() -> None:
    decoder = ActionDecoder(SPEC)
    clipped = decoder.clip(np.array([[9.0, -9.0, 3.0], [0.5, -3.0, np.inf]]))
    np.testing.assert_array_equal(clipped, [[3.0, -3.0, 3.0], [0.5, -3.0, 3.0]])
    np.testing.assert_allclose(decoder.decode(clipped)[0], [0.85, -3.1, 6.0])


def test_clip_leaves_nan_for_the_safety_filter_to_see() -> None:
    clipped = ActionDecoder(SPEC).clip(np.array([[np.nan, 9.0, 0.0]]))
    assert np.isnan(clipped[0, 0])
    np.testing.assert_array_equal(clipped[0, 1:], [3.0, 0.0])


def test_clip_does_not_write_into_its_argument_and_gives_float64() -> None:
    action = np.array([[5.0, 0.1, 0.0]], dtype=np.float32)
    clipped = ActionDecoder(SPEC).clip(action)
    assert action[0, 0] == 5.0
    assert clipped.dtype == np.float64
    clipped[0, 1] = 7.0
    assert action[0, 1] == np.float32(0.1)


def test_a_robot_gives_its_own_order_scales_and_default_pose() -> None:
    robot = load_robot("a1")
    reordered = dataclasses.replace(
        robot,
        joints=tuple(
            dataclasses.replace(j, action_scale=0.1 + 0.01 * i)
            for i, j in enumerate(robot.joints[::-1])
        ),
    )
    spec = ActionSpec.from_robot(reordered, clip=4.0)
    assert spec.joints == robot.joint_names[::-1]
    np.testing.assert_allclose(spec.scale, 0.1 + 0.01 * np.arange(12))
    assert spec.offset == tuple(robot.q_default[::-1])
    assert spec.dim == 12


def test_passive_joints_have_no_action() -> None:
    robot = load_robot("a1")
    joints = list(robot.joints)
    joints[4] = dataclasses.replace(joints[4], actuated=False)
    spec = ActionSpec.from_robot(dataclasses.replace(robot, joints=tuple(joints)), clip=1.0)
    assert spec.dim == 11
    assert joints[4].name not in spec.joints


def test_wrong_lengths_and_clips_are_refused() -> None:
    with pytest.raises(FerryError, match="3 joints, 2 scales and 3 offsets"):
        dataclasses.replace(SPEC, scale=(1.0, 1.0))
    for clip in (0.0, -1.0, float("nan")):
        with pytest.raises(FerryError, match=r"action\.clip"):
            dataclasses.replace(SPEC, clip=clip)


def test_a_delta_counts_from_the_observed_joints_and_needs_them():
    spec = ActionSpec("joint_position_delta", ("a", "b"), (0.1, 0.5), (0.0, 0.0), 2.0)
    decoder = ActionDecoder(spec)
    q = np.array([[1.0, -1.0], [0.0, 0.25], [2.0, 2.0]])
    action = decoder.clip(np.array([[1.0, -1.0], [9.0, 0.0], [0.0, 0.5]]))
    target = decoder.decode(action, q)
    np.testing.assert_allclose(target, [[1.1, -1.5], [0.2, 0.25], [2.0, 2.25]])
    np.testing.assert_allclose(decoder.encode(target, q), action)
    with pytest.raises(ValueError, match="counts from the observed"):
        decoder.decode(action)
