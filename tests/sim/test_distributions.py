"""Distributions: what is written is what is drawn, and nothing else is accepted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from real.errors import ConfigError
from sim.distributions import Distribution, Sampler, parse_distribution

MANY = 4000


def draws(text: str, *, seed: int = 0) -> np.ndarray:
    return Sampler([(parse_distribution(text), MANY)]).draw(np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("=U(0.4, 1.2)", Distribution("=", "U", 0.4, 1.2)),
        ("*U(0.8,1.2)", Distribution("*", "U", 0.8, 1.2)),
        (" + U ( -2e-2 , +.02 ) ", Distribution("+", "U", -0.02, 0.02)),
        ("=LogU(0.5, 2)", Distribution("=", "LogU", 0.5, 2.0)),
        ("*N(1, 0.1)", Distribution("*", "N", 1.0, 0.1)),
    ],
)
def test_a_distribution_is_read_as_written(text: str, expected: Distribution) -> None:
    assert parse_distribution(text) == expected
    assert parse_distribution(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("U(0.4, 1.2)", r"= \(replace\), \* \(scale\) or \+ \(add\) in front"),
        ("=Uni(0, 1)", r"no distribution 'Uni'.*expected U\(low, high\)"),
        ("*logu(1, 2)", "did you mean 'LogU'"),
        ("=U(0.4)", r"two finite numbers in the brackets, found '0\.4'"),
        ("=U(0.4, 1.2, 3)", "two finite numbers"),
        ("=U(a, b)", "two finite numbers"),
        ("=U(0, inf)", "two finite numbers"),
        ("=U(nan, 1)", "two finite numbers"),
        ("=U(1.2, 0.4)", r"low end 1\.2 is above the high end 0\.4"),
        ("=LogU(0, 1)", "needs it > 0"),
        ("*N(1, -0.1)", r"standard deviation is -0\.1"),
        ("0.5", "cannot read"),
        ("", "cannot read"),
        ("=U(0, 1) m", "cannot read"),
        ("-U(0, 1)", "cannot read"),
    ],
)
def test_what_cannot_be_a_distribution_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_distribution(text)


def test_uniform_draws_fill_their_range_evenly() -> None:
    found = draws("+U(-3, 5)")
    counts, _ = np.histogram(found, bins=8, range=(-3.0, 5.0))
    assert counts.sum() == MANY
    # Each bin expects 500 with a standard deviation of 21.
    assert np.abs(counts - 500).max() < 5 * 21


def test_log_uniform_draws_are_as_often_in_each_octave() -> None:
    found = draws("*LogU(0.5, 8)")
    counts = [((found >= low) & (found < 2 * low)).sum() for low in (0.5, 1.0, 2.0, 4.0)]
    assert sum(counts) == MANY
    # Each octave expects 1000 with a standard deviation of 27.
    assert np.abs(np.array(counts) - 1000).max() < 5 * 27


def test_normal_draws_have_their_mean_and_spread_and_are_cut_at_three_deviations() -> None:
    found = draws("*N(1, 0.2)")
    assert found.min() >= 0.4 and found.max() <= 1.6
    assert (np.abs(found - 1.0) > 0.5).any()
    assert abs(found.mean() - 1.0) < 5 * 0.2 / math.sqrt(MANY)
    # A normal cut at 3 deviations has 0.987 of its standard deviation.
    assert abs(found.std() - 0.2 * 0.987) < 0.012


def test_many_distributions_are_drawn_in_order() -> None:
    """Kinds mixed, so that no column can take another's law."""
    texts = ("*N(10, 0.1)", "=U(1, 2)", "+LogU(100, 200)", "=U(5, 5)", "*N(-7, 0)", "+U(-2, -1)")
    sampler = Sampler(
        [(parse_distribution(t), n) for t, n in zip(texts, (2, 3, 1, 1, 1, 2), strict=True)]
    )
    assert sampler.size == 10
    rng = np.random.default_rng(5)
    found = np.stack([sampler.draw(rng) for _ in range(200)])
    low = [9.7, 9.7, 1, 1, 1, 100, 5, -7, -2, -2]
    high = [10.3, 10.3, 2, 2, 2, 200, 5, -7, -1, -1]
    assert (found >= low).all() and (found <= high).all()
    varying = [0, 1, 2, 3, 4, 5, 8, 9]
    assert (np.ptp(found, axis=0)[varying] > 0.05).all()
    correlation = np.corrcoef(found[:, varying].T) - np.eye(len(varying))
    assert np.abs(correlation).max() < 0.4


def test_what_a_draw_does_to_nominal_values() -> None:
    nominal, draw = np.array([2.0, 3.0, 5.0]), np.array([[10.0], [20.0]])
    expected = {
        "=": [[10, 10, 10], [20, 20, 20]],
        "*": [[20, 30, 50], [40, 60, 100]],
        "+": [[12, 13, 15], [22, 23, 25]],
    }
    for op, values in expected.items():
        np.testing.assert_array_equal(
            parse_distribution(f"{op}U(0, 9)").apply(nominal, draw), values
        )


def test_bounds_hold_also_for_negative_nominal_values() -> None:
    low, high = parse_distribution("*U(0.5, 2)").bounds(np.array([-4.0, 0.0, 3.0]))
    assert low.tolist() == [-8.0, 0.0, 1.5] and high.tolist() == [-2.0, 0.0, 6.0]
    low, high = parse_distribution("+N(1, 2)").bounds(np.array([10.0]))
    assert low.tolist() == [5.0] and high.tolist() == [17.0]


def test_normalized_draws_run_from_minus_one_to_one() -> None:
    """The ends and the middle; for LogU the middle of the logarithm: 2 between 0.5 and 8."""
    texts = ("=U(1, 5)", "*LogU(0.5, 8)", "+N(2, 1)", "=U(3, 3)")
    sampler = Sampler([(parse_distribution(t), 1) for t in texts])
    points = np.array([[1.0, 0.5, -1.0, 3.0], [3.0, 2.0, 2.0, 3.0], [5.0, 8.0, 5.0, 3.0]])
    expected = [[-1, -1, -1, 0], [0, 0, 0, 0], [1, 1, 1, 0]]
    np.testing.assert_allclose(sampler.normalize(points), expected, atol=1e-12)
    np.testing.assert_array_equal(points[0], [1.0, 0.5, -1.0, 3.0])


numbers = st.floats(1e-3, 1e3)


@given(kind=st.sampled_from(["U", "LogU", "N"]), a=numbers, b=numbers, seed=st.integers(0, 99))
def test_no_draw_leaves_the_bounds_that_were_checked(
    kind: str, a: float, b: float, seed: int
) -> None:
    low, high = sorted((a, b))
    law = parse_distribution(f"*{kind}({low!r}, {high!r})")
    sampler = Sampler([(law, 50)])
    found = sampler.draw(np.random.default_rng(seed))
    assert (found >= law.low).all() and (found <= law.high).all()
    assert (np.abs(sampler.normalize(found)) <= 1.0 + 1e-9).all()


def test_the_same_generator_draws_the_same_again() -> None:
    np.testing.assert_array_equal(draws("*N(1, 0.2)", seed=3), draws("*N(1, 0.2)", seed=3))
    assert not np.array_equal(draws("=U(0, 1)", seed=3), draws("=U(0, 1)", seed=4))
