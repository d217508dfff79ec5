from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

import ferry
from deploy.bundle import read_bundle
from deploy.signing import TrustedKeys, make_keys, write_signature
from real.errors import FerryError
from tests.deploy.stand_bundle import write_bundle
from training.stamping import evaluate_and_stamp


@pytest.mark.slow
def test_evaluate_stamp_and_sign_in_this_order_and_a_later_stamp_breaks_the_signature(tmp_path):
    path = write_bundle(tmp_path / "p.onnx")
    before = read_bundle(path)
    arguments = ["evaluate", path, "--episodes", "2", "--seed", "5", "--stamp", "0.01"]
    result = CliRunner().invoke(ferry.app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    after = read_bundle(path)
    assert after.evaluation is not None
    assert (after.evaluation.suite, after.evaluation.episodes) == ("nominal", 2)
    assert (after.evaluation.seed, after.evaluation.required) == (5, 0.01)
    assert after.evaluation.score > 0.01
    assert after.digest == before.digest
    assert np.array_equal(after.golden.mean, before.golden.mean)
    make_keys(tmp_path / "keys" / "mine")
    trusted = TrustedKeys.load(tmp_path / "keys")
    write_signature(path, after.model_bytes, tmp_path / "keys" / "mine")
    assert read_bundle(path, trusted=trusted).evaluation == after.evaluation
    evaluate_and_stamp(path, required=0.0, episodes=1)
    with pytest.raises(FerryError, match="altered after it was signed"):
        read_bundle(path, trusted=trusted)


@pytest.mark.slow
def test_a_bundle_that_scores_too_little_stays_as_it_was(tmp_path):
    path = write_bundle(tmp_path / "p.onnx")
    before = path.read_bytes()
    with pytest.raises(FerryError, match=r"at least 0\.999 was asked for"):
        evaluate_and_stamp(path, required=0.999, episodes=1)
    assert path.read_bytes() == before


def test_a_run_folder_carries_no_stamp(tmp_path):
    with pytest.raises(FerryError, match="ferry export"):
        evaluate_and_stamp(tmp_path, required=0.5)
