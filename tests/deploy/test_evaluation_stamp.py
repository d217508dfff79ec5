from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import ferry
from deploy.bundle import DIGEST_KEY, BundleError, parse_bundle
from deploy.evaluation_stamp import EVALUATION_KEY, EvaluationStamp, stamp_of, stamped, strictest
from deploy.onnx_file import read_onnx, with_metadata, without_metadata
from real.errors import FerryError
from tests.deploy.stand_bundle import write_bundle

SHIPPED = Path(ferry.__file__).parent / "configs" / "bundles" / "a1_walk.onnx"

RESULT = {
    "suite": "nominal",
    "episodes": 20,
    "seed": 3,
    "measure": "tracking",
    "tracking": {"mean": 0.93, "low": 0.91, "high": 0.95},
    "falls_per_minute": 0.25,
    "clamped_share": 0.004,
    "each": [],
}


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> bytes:
    return write_bundle(tmp_path_factory.mktemp("stamp") / "p.onnx").read_bytes()


def stamp(data: bytes, **changes) -> EvaluationStamp:
    made = stamp_of(RESULT, digest=parse_bundle(data, source="x").digest, git_sha="abc")
    return dataclasses.replace(made, **changes)


def refusal(data: bytes) -> str:
    with pytest.raises(BundleError) as error:
        parse_bundle(data, source="p.onnx")
    return str(error.value)


@pytest.mark.slow
def test_a_stamp_is_read_back_and_changes_neither_digest_nor_what_it_speaks_of(good):
    data = stamped(good, stamp(good))
    before, after = (parse_bundle(d, source="x") for d in (good, data))
    assert before.evaluation is None
    assert after.evaluation == stamp(good)
    assert after.digest == before.digest
    assert after.sha256 != before.sha256
    assert after.contract == before.contract
    shown = " ".join(after.rows().values())
    assert "nominal, 20 episodes, seed 3" in shown
    assert "tracking 0.930 [0.910, 0.950]" in shown
    assert before.rows()["evaluated on"] == "never"


@pytest.mark.slow
def test_a_second_stamp_takes_the_place_of_the_first(good):
    twice = stamped(stamped(good, stamp(good)), stamp(good, seed=8))
    found = parse_bundle(twice, source="x").evaluation
    assert found is not None
    assert found.seed == 8
    assert without_metadata(twice, EVALUATION_KEY) == good


def test_the_stamp_of_another_bundle_is_refused(good, tmp_path):
    other = write_bundle(tmp_path / "o.onnx", gain=0.3).read_bytes()
    assert "of another graph or contract" in refusal(stamped(other, stamp(good)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"score": "0.9"}, "no usable value of score"),
        ({"episodes": 2.5}, "no usable value of episodes"),
        ({"episodes": True}, "no usable value of episodes"),
        ({"extra": 1}, "expected digest, suite"),
        ({"score": float("nan")}, "no usable value of score"),
    ],
)
def test_a_stamp_that_is_none_is_refused(good, change, words):
    body = {**json.loads(stamp(good).to_json()), **change}
    assert words in refusal(with_metadata(good, {EVALUATION_KEY: json.dumps(body)}))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "3", '{"tracking": 0.9}'])
def test_text_that_is_no_stamp_is_refused(good, text):
    assert "p.onnx: not a usable bundle" in refusal(with_metadata(good, {EVALUATION_KEY: text}))


def test_a_bundle_below_the_score_that_was_asked_for_gets_no_stamp():
    with pytest.raises(FerryError, match=r"tracking is 0\.930 on nominal; at least 0\.95"):
        stamp_of(RESULT, digest="d", required=0.95)
    assert stamp_of(RESULT, digest="d", required=0.93).required == 0.93
    nothing = {**RESULT, "tracking": {"mean": float("nan"), "low": 0.0, "high": 0.0}}
    with pytest.raises(FerryError, match="not stamped"):
        stamp_of(nothing, digest="d")


@pytest.mark.slow
def test_a_robot_that_requires_an_evaluation_refuses_none_and_a_low_one(good):
    bare = parse_bundle(good, source="p.onnx")
    passed = parse_bundle(stamped(good, stamp(good)), source="p.onnx")
    assert bare.require_evaluation(None) is bare
    assert passed.require_evaluation(0.93) is passed
    with pytest.raises(BundleError, match=r"p\.onnx: it carries no evaluation.*--stamp 0`"):
        bare.require_evaluation(0.0)
    with pytest.raises(BundleError, match=r"tracking 0\.930 on nominal; this robot.*least 0\.94"):
        passed.require_evaluation(0.94)


def test_the_strictest_of_all_who_ask_counts():
    assert strictest({}) is None
    assert strictest({"policy_node": {"require_evaluation": False}}) is None
    assert strictest({"policy_node": {"require_evaluation": True}}) == 0.0
    # A minimum that nobody looks at would be a trap, so it asks by itself.
    assert strictest({"policy_node": {}, "safety_node": {"minimum_score": 1}}) == 1.0
    both = {"policy_node": {"require_evaluation": True}, "safety_node": {"minimum_score": 0.6}}
    assert strictest(both) == 0.6
    assert strictest(both, minimum=0.7) == 0.7
    assert strictest(both, minimum=0.0) == 0.6


def test_a_stamp_does_not_hide_a_change_of_the_graph(good):
    data = bytearray(stamped(good, stamp(good)))
    place = bytes(data).index(b"spread")
    data[place] ^= 1
    assert "p.onnx: not a usable bundle" in refusal(bytes(data))


@pytest.mark.slow
def test_the_shipped_bundle_takes_a_stamp_and_is_the_same_policy():
    data = SHIPPED.read_bytes()
    before = parse_bundle(data, source="x")
    after = parse_bundle(stamped(data, stamp(data)), source="x")
    assert (after.digest, after.contract) == (before.digest, before.contract)
    assert read_onnx(data).metadata[DIGEST_KEY] == before.digest
