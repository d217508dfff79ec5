from __future__ import annotations

import numpy as np
import pytest

from real import frames

RNG = np.random.default_rng(5)
QUATS = frames.normalize(RNG.normal(size=(50, 4)))
VECTORS = RNG.normal(size=(50, 3))


def matrix(quat: np.ndarray) -> np.ndarray:
    """Rotation matrix of one unit quaternion, written out (a slow reference)."""
    w, x, y, z = quat
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def axis_rotation(axis: int, angle: float) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    i, j = [(1, 2), (2, 0), (0, 1)][axis]
    out = np.eye(3)
    out[i, i], out[j, j], out[i, j], out[j, i] = c, c, -s, s
    return out


def test_a_quarter_turn_left_takes_forward_to_the_left() -> None:
    quat = frames.from_rpy([0.0, 0.0, np.pi / 2])
    np.testing.assert_allclose(frames.rotate(quat, [1.0, 0.0, 0.0]), [0.0, 1.0, 0.0], atol=1e-15)
    # A12: world velocity (1, 0, 0) of a base that looks to +y is (0, -1, 0) in the base frame.
    np.testing.assert_allclose(
        frames.rotate_inverse(quat, [1.0, 0.0, 0.0]), [0.0, -1.0, 0.0], atol=1e-15
    )


def test_rotate_equals_the_matrix() -> None:
    expected = [matrix(q) @ v for q, v in zip(QUATS, VECTORS, strict=True)]
    np.testing.assert_allclose(frames.rotate(QUATS, VECTORS), expected, atol=1e-14)
    np.testing.assert_allclose(frames.to_matrix(QUATS), [matrix(q) for q in QUATS], atol=1e-14)


def test_rotate_inverse_undoes_rotate() -> None:
    turned = frames.rotate(QUATS, VECTORS)
    np.testing.assert_allclose(frames.rotate_inverse(QUATS, turned), VECTORS, atol=1e-14)


def test_multiply_chains_rotations_right_one_first() -> None:
    other = QUATS[::-1]
    chained = frames.rotate(QUATS, frames.rotate(other, VECTORS))
    np.testing.assert_allclose(
        frames.rotate(frames.multiply(QUATS, other), VECTORS), chained, atol=1e-14
    )


def test_conjugate_is_the_inverse() -> None:
    product = frames.multiply(QUATS, frames.conjugate(QUATS))
    np.testing.assert_allclose(product, np.tile(frames.IDENTITY, (50, 1)), atol=1e-14)


def test_rpy_is_roll_then_pitch_then_yaw_about_fixed_axes() -> None:
    rpy = np.array([[0.3, -0.7, 2.1], [-1.2, 0.4, -0.5], [0.1, 1.5, 3.0]])
    expected = [axis_rotation(2, y) @ axis_rotation(1, p) @ axis_rotation(0, r) for r, p, y in rpy]
    np.testing.assert_allclose(frames.to_matrix(frames.from_rpy(rpy)), expected, atol=1e-14)


def test_projected_gravity_is_the_downward_direction_seen_from_the_base() -> None:
    down = np.tile([0.0, 0.0, -1.0], (50, 1))
    np.testing.assert_allclose(
        frames.projected_gravity(QUATS), frames.rotate_inverse(QUATS, down), atol=1e-14
    )
    # Nose down by 0.1: gravity points forward. Left side up by 0.2: gravity points right (-y).
    nose_down = frames.projected_gravity(frames.from_rpy([0.0, 0.1, 0.7]))
    np.testing.assert_allclose(nose_down, [np.sin(0.1), 0.0, -np.cos(0.1)], atol=1e-15)
    left_up = frames.projected_gravity(frames.from_rpy([0.2, 0.0, -2.0]))
    np.testing.assert_allclose(left_up, [0.0, -np.sin(0.2), -np.cos(0.2)], atol=1e-15)


def test_tilt_ignores_the_heading_and_reaches_pi() -> None:
    rpy = [[0.0, 0.0, 2.0], [0.4, 0.0, 1.0], [0.0, -0.9, 0.0], [np.pi, 0.0, 0.3], [0.8, 0.8, 0.0]]
    expected = [0.0, 0.4, 0.9, np.pi, np.arccos(np.cos(0.8) ** 2)]
    np.testing.assert_allclose(frames.tilt(frames.from_rpy(rpy)), expected, atol=1e-7)


def test_yaw_reads_the_heading_of_a_tilted_base() -> None:
    angles = np.array([[0.2, -0.3, 2.5], [-0.1, 0.6, -3.0], [0.0, 0.0, 0.4]])
    np.testing.assert_allclose(frames.yaw(frames.from_rpy(angles)), angles[:, 2], atol=1e-14)


def test_the_sign_of_a_quaternion_does_not_matter() -> None:
    np.testing.assert_allclose(
        frames.rotate(-QUATS, VECTORS), frames.rotate(QUATS, VECTORS), atol=1e-15
    )
    np.testing.assert_allclose(
        frames.projected_gravity(-QUATS), frames.projected_gravity(QUATS), atol=1e-15
    )


def test_normalize_gives_unit_length_and_refuses_to_invent_an_orientation() -> None:
    scaled = frames.normalize([[2.0, 0.0, 0.0, 0.0], [0.0, 3.0, 4.0, 0.0], [0.0] * 4])
    np.testing.assert_allclose(scaled[:2], [[1.0, 0.0, 0.0, 0.0], [0.0, 0.6, 0.8, 0.0]])
    assert np.isnan(scaled[2]).all()


@pytest.mark.parametrize("function", [frames.projected_gravity, frames.tilt, frames.yaw])
def test_single_robot_and_extra_axes_broadcast(function) -> None:
    batched = function(QUATS.reshape(5, 10, 4))
    np.testing.assert_array_equal(batched[2, 3], function(QUATS[23]))


def test_a_slight_turn_is_the_product_of_its_parts_normalised() -> None:
    rng = np.random.default_rng(4)
    quat = frames.normalize(rng.normal(size=(5, 4)))
    turn = rng.normal(0.0, 0.2, (5, 3))
    small = np.concatenate([np.ones((5, 1)), 0.5 * turn], axis=1)
    expected = frames.normalize(frames.multiply(quat, small))
    np.testing.assert_allclose(frames.turn_slightly(quat, turn), expected, atol=1e-15)
    # One robot gets bit for bit what it gets among others.
    alone = [frames.turn_slightly(quat[[i]], turn[[i]])[0] for i in range(5)]
    np.testing.assert_array_equal(alone, frames.turn_slightly(quat, turn))
