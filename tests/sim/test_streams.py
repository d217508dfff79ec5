from __future__ import annotations

import numpy as np
import pytest

from sim.streams import (
    PURPOSES,
    Generators,
    make_streams,
    pack_streams,
    reseed,
    unpack_streams,
)


def first_draws(streams: dict[str, Generators]) -> list[bytes]:
    return [rng.random(4).tobytes() for rngs in streams.values() for rng in rngs]


def test_no_two_worlds_purposes_seeds_workers_or_restarts_share_a_stream() -> None:
    draws: list[bytes] = []
    for seed in (0, 1, 2):
        for stream in ((0, 0), (0, 1), (1, 0), (2, 3), (3, 2)):
            draws += first_draws(make_streams(seed, 4, stream=stream))
    assert len(draws) == 3 * 5 * 4 * len(PURPOSES)
    assert len(set(draws)) == len(draws)


def test_same_seed_same_streams_however_many_worlds() -> None:
    few, many = make_streams(5, 2), make_streams(5, 7)
    for purpose in PURPOSES:
        for a, b in zip(few[purpose], many[purpose][:2], strict=True):
            np.testing.assert_array_equal(a.random(3), b.random(3))


def test_packed_streams_continue_exactly_also_with_half_a_number_left() -> None:
    rngs = make_streams(5, 3)["start"]
    rngs[1].integers(10, dtype=np.uint32)  # draws 32 of 64 bits and keeps the rest
    rngs[2].normal(size=7)
    packed = pack_streams(rngs)
    assert packed.shape == (3, 6)
    assert packed.dtype == np.uint64
    assert packed[1, 4] == 1
    expected = [(rng.integers(2**32, dtype=np.uint32), rng.random(5)) for rng in rngs]
    others = make_streams(99, 3)["sensor"]
    unpack_streams(others, packed)
    for (whole, draws), rng in zip(expected, others, strict=True):
        assert rng.integers(2**32, dtype=np.uint32) == whole
        np.testing.assert_array_equal(rng.random(5), draws)


def test_reseeding_changes_the_list_that_others_hold() -> None:
    held = make_streams(1, 3)["command"]
    alias = held
    reseed(held, make_streams(2, 3)["command"])
    expected = make_streams(2, 3)["command"]
    for mine, new in zip(alias, expected, strict=True):
        np.testing.assert_array_equal(mine.random(3), new.random(3))
    with pytest.raises(ValueError, match="2 generators for a list of 3"):
        reseed(held, make_streams(2, 2)["command"])


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed is -1"):
        make_streams(-1, 2)
