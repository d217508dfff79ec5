"""The shipped bundle, damaged in many ways: refused in one sentence, or the working policy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ferry
from deploy.bundle import DIGEST_KEY, BundleError, parse_bundle
from deploy.contract_check import contract_problems
from deploy.onnx_file import read_onnx, with_metadata, without_metadata
from deploy.policy import OnnxPolicy

pytestmark = pytest.mark.usefixtures("same_process")
SHIPPED = (Path(ferry.__file__).parent / "configs" / "bundles" / "a1_walk.onnx").read_bytes()
#: Without its digest, so that a fitting one can be put under damaged bytes.
BARE = without_metadata(SHIPPED, DIGEST_KEY)


def refused(data: bytes) -> None:
    """Nothing but one kind of error, and nothing half loaded."""
    with pytest.raises(BundleError) as error:
        parse_bundle(data, source="p.onnx")
    assert str(error.value).startswith("p.onnx: ")
    assert "\n" not in str(error.value)


def resealed(data: bytes) -> None:
    """Damage with a digest that fits: refused, or a policy that answers with its golden vectors."""
    try:
        data = with_metadata(data, {DIGEST_KEY: read_onnx(data).digest})
        bundle = parse_bundle(data, source="p.onnx")
    except BundleError as error:
        assert "\n" not in str(error)
        return
    assert contract_problems(bundle.contract) == []
    mean, log_std = OnnxPolicy(bundle).infer(bundle.golden.observation)
    assert np.allclose(mean, bundle.golden.mean, atol=1e-5)
    assert np.isfinite(log_std).all()


def flips(size: int, most: int):
    return st.lists(
        st.tuples(st.integers(0, size - 1), st.integers(1, 255)), min_size=1, max_size=most
    )


def damaged(data: bytes, places) -> bytes:
    out = bytearray(data)
    # Each place once: two equal flips would mend each other.
    for place, value in dict(places).items():
        out[place] ^= value
    return bytes(out)


@settings(max_examples=60)
@given(flips(len(SHIPPED), 8))
def test_flipped_bytes_are_refused(places):
    refused(damaged(SHIPPED, places))


@settings(max_examples=60)
@given(st.integers(0, len(SHIPPED) - 1))
def test_a_file_that_is_cut_short_is_refused(size):
    refused(SHIPPED[:size])


@settings(max_examples=60)
@given(st.integers(0, len(SHIPPED)), st.binary(min_size=1, max_size=40))
def test_bytes_put_in_between_are_refused(place, more):
    refused(SHIPPED[:place] + more + SHIPPED[place:])


@settings(max_examples=40, deadline=None)
@given(flips(len(BARE), 3))
def test_damage_under_a_fitting_digest_is_refused_or_a_working_policy(places):
    resealed(damaged(BARE, places))


@pytest.mark.slow
def test_two_thousand_damages_of_the_graphs_own_structure():
    """Where names, shapes and attributes lie, not the weights, which most of the file is."""
    rng = np.random.default_rng(5)
    parts = [
        BARE.index(word)
        for word in (b"observation", b"mean", b"log_std", b"MatMul")
        if word in BARE
    ]
    for _ in range(2000):
        near = int(rng.choice(parts)) + int(rng.integers(-200, 200))
        place = min(max(near, 0), len(BARE) - 1)
        resealed(damaged(BARE, [(place, int(rng.integers(1, 256)))]))
